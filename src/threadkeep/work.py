"""Work: a long job as a generator of steps, most of them plans, with reports of its progress in between.

A work yields one step at a time and is resumed with the step's result. `Session.work` and `Session.awork` execute the
steps, so a job is written once for sync and async callers. No lock or connection is held between two steps: a work that
is stopped there leaves nothing half done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from threadkeep.engine.commit import pause
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.lease import LEASE_ERRORS
from threadkeep.errors import Conflict
from threadkeep.plan import Failure, Outcome, Plan, Reply, result, resume

T = TypeVar("T")


class Read(NamedTuple):
    """A step: run a plan that changes nothing."""

    make: Callable[[], Plan[Any]]


class Change(NamedTuple):
    """A step: run a plan that changes something.

    `key` is the thread that it changes; no other change of that thread runs in this process meanwhile. It is None if
    the plan changes something else than a thread. With `force`, the thread is changed whoever holds its lease.
    """

    key: ThreadKey | None
    make: Callable[[], Plan[Any]]
    force: bool = False


class Blocking(NamedTuple):
    """A step: call a function that blocks, for example on a file. Async callers' event loops are not blocked by it."""

    make: Callable[[], Any]


class Progress(NamedTuple):
    """A step: report progress. `total` is None if it is not known."""

    done: int
    total: int | None
    what: str = ""


WorkStep: TypeAlias = Read | Change | Blocking | Progress
Work: TypeAlias = Generator[WorkStep, Any, T]
OnProgress: TypeAlias = Callable[[int, int | None, str], Any]
"""A progress callback: it is called with (done, total, what)."""


def read(make: Callable[[], Plan[T]]) -> Work[T]:
    """Run a plan that changes nothing, and return its result."""
    return cast("T", (yield Read(make)))


def change(key: ThreadKey | None, make: Callable[[], Plan[T]], *, force: bool = False) -> Work[T]:
    """Run a plan that changes a thread, or something else if `key` is None, and return its result."""
    return cast("T", (yield Change(key, make, force)))


def retry(once: Callable[[], Work[T]], what: str) -> Work[T]:
    """Do some work until it raises no Conflict, as `engine.commit.retry` does for a plan.

    Conflict after the last try; `what` starts its message: "thread 't' was changed by others".
    """
    attempt = 0
    while True:
        try:
            return (yield from once())
        except LEASE_ERRORS:
            raise
        except Conflict:
            yield Read(partial(pause, attempt, what))
        attempt += 1


def with_progress(work: Work[T], on_progress: OnProgress | None) -> Work[T]:
    """Do some work and call `on_progress` for its Progress steps; the other steps are passed on.

    An exception of `on_progress` is raised inside the work first, which may clean up.
    """
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
