"""What a backend declares of itself: the capabilities that it lacks, and where it is known to deviate.

Nothing is left out silently: a test of an absent capability is skipped and names it, a known deviation must show.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

FIXTURES_NEED = {
    "my_ttl_store": "ttl",
    "my_text_store": "text",
    "my_embedding_store": "vectors",
    "my_other_cube": "other_handles",
}
"""A test that uses one of these fixtures is about a capability."""


def needs(*capabilities: str) -> Callable[[Test], Test]:
    """Marks a test that is about these capabilities. An attribute, since a project may forbid marks it does not know."""

    def marked(test: Test) -> Test:
        vars(test)["needs"] = capabilities
        return test

    return marked


def require(capabilities: Any, *names: str) -> None:
    """Skip the test if one of these capabilities is declared absent."""
    for name in names:
        if not getattr(capabilities, name):
            pytest.skip(f"the capability {name!r} is declared absent")


@pytest.fixture
def deviations() -> Mapping[str, str]:
    """Tests that are known to fail, and why; one that passes after all is a failure. Override it.

    `test_x` is a test in all its cases, `test_x[case]` one case, `test_x[sync-case]` one case in one colour.
    """
    return {}


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest, capabilities: Any, deviations: Mapping[str, str]) -> str:
    """In which colour a test runs, if it runs."""
    chosen: str = request.param
    require(capabilities, f"{chosen}_verbs")
    _declare(request, capabilities, deviations, chosen)
    return chosen


@pytest.fixture
def declared(request: pytest.FixtureRequest, capabilities: Any, deviations: Mapping[str, str]) -> None:
    """Let a test of verbs that have one colour run, if it runs."""
    _declare(request, capabilities, deviations, None)


def _declare(
    request: pytest.FixtureRequest, capabilities: Any, deviations: Mapping[str, str], chosen: str | None
) -> None:
    """Skip a test of what is absent, expect one to fail that is known to; a module may say what all its tests need."""
    named = (*getattr(request.function, "needs", ()), *request.function.__globals__.get("NEEDS", ()))
    used = [FIXTURES_NEED[name] for name in request.fixturenames if name in FIXTURES_NEED]
    require(capabilities, *named, *used)
    unknown = [name for name in deviations if not hasattr(request.module, name.partition("[")[0])]
    if unknown:
        pytest.fail(f"deviations names tests that there are not: {', '.join(unknown)}")
    for name in _names(request.node, chosen):
        if name in deviations:
            request.applymarker(pytest.mark.xfail(reason=deviations[name], strict=True))
            return


def _names(test: Any, chosen: str | None) -> tuple[str, ...]:
    """How a test may be called: in one colour, as one case in both colours, or as a whole."""
    if chosen is None:
        return test.name, test.originalname
    case = "-".join(part for part in test.callspec.id.split("-") if part != chosen)
    return test.name, f"{test.originalname}[{case}]", test.originalname


def rewrite_asserts(package: str, path: Iterable[str]) -> None:
    """Let pytest explain the failed asserts of a package's modules; called before they are imported."""
    pytest.register_assert_rewrite(*(f"{package}.{module.name}" for module in pkgutil.iter_modules(path)))


def tests_of(*parts: ModuleType) -> dict[str, Callable[..., None]]:
    """All tests of these modules, by name; a name may be there once only."""
    found = [(name, test) for part in parts for name, test in vars(part).items() if name.startswith("test_")]
    assert len(found) == len(dict(found)), "two tests have the same name"
    return dict(found)
