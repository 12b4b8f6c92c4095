"""The pytest suite for CubeLoop checkpointers. Import everything from here and define the fixture `cube`.

`cube` returns an empty Checkpointer, a new one for each test; or a context manager of one, or a function without
arguments that makes one. Those are opened while an event loop runs. A checkpointer that is its own async context
manager, as CubeLoop's are, is entered too. All verbs are async, so there are no sync variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from threadkeep.conformance.collect import tests_of
from threadkeep.conformance.cube import answers, concurrency, extra, forks, messages, questions, runs, threads
from threadkeep.conformance.cube.calls import Checkpointer, Cube
from threadkeep.conformance.declarations import declarations, deviations
from threadkeep.conformance.sync_async import open_on_loop

__all__ = ["Capabilities", "capabilities", "declarations", "deviations", "my_cube", "my_other_cube", "other_cube"]
TESTS = tests_of(answers, concurrency, extra, forks, messages, questions, runs, threads)
globals().update(TESTS)
__all__ += list(TESTS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a checkpointer supports. Everything is tested unless declared absent; those tests are then skipped."""

    runs: bool = True
    """`claim_run` and `mark_run_complete`."""
    forks: bool = True
    """`snapshot` and `fork`."""
    pending: bool = True
    """`save_pending_request`, `load_pending_request`, `load_pending`, `clear_pending_request_if_matches`."""
    answers: bool = True
    """`save_hitl_answer`, `load_hitl_answer`, `clear_hitl_answers`."""
    dedup: bool = True
    """An append skips messages whose id is already in the thread (empty ids never match)."""
    other_handles: bool = True
    """Several checkpointers may be open on the same data; see `other_cube`."""


@pytest.fixture
def capabilities() -> Capabilities:
    """Override this to declare what your checkpointer lacks."""
    return Capabilities()


@pytest.fixture
def my_cube(declarations: None, cube: Any) -> Iterator[Cube]:  # noqa: ARG001 - skips before anything is opened
    """The checkpointer under test. Its verbs can be called from the test's thread."""
    with open_on_loop(cube, Checkpointer, enter=True) as loop:
        yield Cube(loop)


@pytest.fixture
def other_cube() -> Any:
    """Another checkpointer on the data of `cube`. There is no default."""
    pytest.fail("define the fixture `other_cube`, or declare Capabilities(other_handles=False)")


@pytest.fixture
def my_other_cube(my_cube: Cube, other_cube: Any) -> Iterator[Cube]:  # noqa: ARG001 - opened after the first
    """The other checkpointer, on its own event loop."""
    with open_on_loop(other_cube, Checkpointer, enter=True) as loop:
        yield Cube(loop)
