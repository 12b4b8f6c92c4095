"""Long work: many plans one after the other, with a word on how far it is in between. Nothing is held between two of them.

A work is a generator that decides what comes next and is given what it gave; `Session.work` and `Session.awork` carry it out,
so it is written once for both colours, and ending it between two plans leaves nothing half done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from threadkeep.engine.identity import ThreadKey
from threadkeep.plan import Failure, Outcome, Plan, Reply, result, resume

T = TypeVar("T")


class Read(NamedTuple):
    """A plan that changes nothing."""

    make: Callable[[], Plan[Any]]


class Change(NamedTuple):
    """A plan that changes a thread, while no other change of it is under way here; or something else, if `key` is None."""

    key: ThreadKey | None
    make: Callable[[], Plan[Any]]


class Blocking(NamedTuple):
    """Something that blocks and is no plan, such as reading a file: done where no event loop waits for it."""

    make: Callable[[], Any]


class Progress(NamedTuple):
    """How far it is: so many of so many (None where nobody knows), and at what."""

    done: int
    total: int | None
    what: str = ""


Step: TypeAlias = Read | Change | Blocking | Progress
Work: TypeAlias = Generator[Step, Any, T]
Tell: TypeAlias = Callable[[int, int | None, str], Any]
"""Called with (done, total, what) now and then."""


def read(make: Callable[[], Plan[T]]) -> Work[T]:
    """Run a plan that changes nothing, and return its result."""
    return cast("T", (yield Read(make)))


def change(key: ThreadKey | None, make: Callable[[], Plan[T]]) -> Work[T]:
    """Run a plan that changes a thread, or something else if `key` is None, and return its result."""
    return cast("T", (yield Change(key, make)))


def reporting(work: Work[T], on_progress: Tell | None) -> Work[T]:
    """Hand on the steps of some work, except Progress: call `on_progress` for it. What that raises, the work hears first."""
    outcome: Outcome = Reply()
    while True:
        step = resume(work, outcome)
        if isinstance(step, (Reply, Failure)):
            return cast("T", result(step))
        try:
            if not isinstance(step, Progress):
                outcome = Reply((yield step))
            else:
                outcome = Reply(on_progress(*step) if on_progress is not None else None)
        except BaseException as error:  # noqa: BLE001 - the work decides
            outcome = Failure(error)
