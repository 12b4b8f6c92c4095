"""What a backend declares about itself: capabilities that it lacks, and tests that it is known to fail.

Nothing is left out silently. A test of an absent capability is skipped and names it; a known deviation must still fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

CAPABILITY_OF_FIXTURE = {
    "my_ttl_store": "ttl",
    "my_text_store": "text",
    "my_embedding_store": "vectors",
    "my_other_cube": "other_handles",
}
"""A test that uses one of these fixtures needs this capability."""


def needs(*capabilities: str) -> Callable[[Test], Test]:
    """Mark a test as needing these capabilities. This sets an attribute, since a project may forbid unknown marks."""

    def mark(test: Test) -> Test:
        vars(test)["needs"] = capabilities
        return test

    return mark


def require(capabilities: Any, *names: str) -> None:
    """Skip the test if one of these capabilities is declared absent."""
    for name in names:
        if not getattr(capabilities, name):
            pytest.skip(f"the capability {name!r} is declared absent")


@pytest.fixture
def deviations() -> Mapping[str, str]:
    """Tests that are known to fail, with the reason. A listed test that passes is a failure. Override this fixture.

    `test_x` means all cases of a test, `test_x[case]` one case, `test_x[sync-case]` one case called sync.
    """
    return {}


@pytest.fixture(params=["sync", "async"])
def sync_or_async(request: pytest.FixtureRequest, capabilities: Any, deviations: Mapping[str, str]) -> str:
    """How the test calls verbs. Skips the test, or expects it to fail, as declared."""
    variant: str = request.param
    require(capabilities, f"{variant}_verbs")
    _apply(request, capabilities, deviations, variant)
    return variant


@pytest.fixture
def declarations(request: pytest.FixtureRequest, capabilities: Any, deviations: Mapping[str, str]) -> None:
    """Skip a test of async-only verbs, or expect it to fail, as declared."""
    _apply(request, capabilities, deviations, None)


def _apply(
    request: pytest.FixtureRequest, capabilities: Any, deviations: Mapping[str, str], variant: str | None
) -> None:
    """Skip a test of an absent capability, and mark a known deviation as a strict xfail.

    A test names what it needs with `needs`; a module names what all its tests need with `NEEDS`.
    """
    named = (*getattr(request.function, "needs", ()), *request.function.__globals__.get("NEEDS", ()))
    used = [CAPABILITY_OF_FIXTURE[name] for name in request.fixturenames if name in CAPABILITY_OF_FIXTURE]
    require(capabilities, *named, *used)
    unknown = [name for name in deviations if not hasattr(request.module, name.partition("[")[0])]
    if unknown:
        pytest.fail(f"deviations names tests that do not exist: {', '.join(unknown)}")
    for name in _names(request.node, variant):
        if name in deviations:
            request.applymarker(pytest.mark.xfail(reason=deviations[name], strict=True))
            return


def _names(test: Any, variant: str | None) -> tuple[str, ...]:
    """Return the names of a test in `deviations`: one case in one variant, one case in both, and all cases."""
    if variant is None:
        return test.name, test.originalname
    case = "-".join(part for part in test.callspec.id.split("-") if part != variant)
    return test.name, f"{test.originalname}[{case}]", test.originalname
