"""What a CubeLoop checkpointer must do. Import everything from here into a test file and give the fixture `cube`.

`cube` gives a Checkpointer, empty and of its own for each test; or a context manager of one, or a function without
arguments that makes one, which are entered while an event loop runs. One that is its own async context manager, as
CubeLoop's are, is entered too. All verbs are async and have one name, so there is one colour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from threadkeep.conformance.colours import hosted
from threadkeep.conformance.cube import answers, crowds, extra, forks, messages, questions, runs, threads
from threadkeep.conformance.cube.talking import Checkpointer, Cube
from threadkeep.conformance.declared import declared, deviations, tests_of

__all__ = ["Capabilities", "capabilities", "declared", "deviations", "my_cube", "my_other_cube", "other_cube"]
TESTS = tests_of(answers, crowds, extra, forks, messages, questions, runs, threads)
globals().update(TESTS)
__all__ += list(TESTS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a checkpointer can do. All is demanded unless it is declared absent: then its tests are skipped, and say so."""

    runs: bool = True
    """`claim_run` and `mark_run_complete`."""
    forks: bool = True
    """`snapshot` and `fork`."""
    pending: bool = True
    """`save_pending_request`, `load_pending_request`, `load_pending`, `clear_pending_request_if_matches`."""
    answers: bool = True
    """`save_hitl_answer`, `load_hitl_answer`, `clear_hitl_answers`."""
    dedup: bool = True
    """A message whose id is not empty and in the thread already is left out of an append."""
    other_handles: bool = True
    """Several checkpointers may be open on the same data; see `other_cube`."""


@pytest.fixture
def capabilities() -> Capabilities:
    """Override it to declare what a checkpointer lacks."""
    return Capabilities()


@pytest.fixture
def my_cube(declared: None, cube: Any) -> Iterator[Cube]:  # noqa: ARG001 - what is declared comes first
    """The checkpointer, with verbs that may be called in the thread of the test."""
    with hosted(cube, Checkpointer, enters=True) as host:
        yield Cube(host)


@pytest.fixture
def other_cube() -> Any:
    """Another checkpointer on the data of `cube`. There is none to fall back on."""
    pytest.fail("give the fixture `other_cube`, or declare Capabilities(other_handles=False)")


@pytest.fixture
def my_other_cube(my_cube: Cube, other_cube: Any) -> Iterator[Cube]:  # noqa: ARG001 - the first is opened first
    """The other checkpointer, on a loop of its own."""
    with hosted(other_cube, Checkpointer, enters=True) as host:
        yield Cube(host)
