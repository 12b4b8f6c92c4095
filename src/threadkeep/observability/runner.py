"""MeasuredRunner: the runner of a Keep that knows for which calls it sends something.

A plan may run on a worker, and a commit may have the ops of several callers. So requests are labelled with the calls
that they are for, and what runs on a worker has the caller's context: what embeds texts or unwraps keys there is traced
below the span of the verb.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from threadkeep.drivers.runner import Deliver, Runner, StagedOps, ThreadOps
from threadkeep.engine.requests import Commit
from threadkeep.observability.observer import Calls, Observer
from threadkeep.plan import Failure, Outcome, Plan, Reply, Request, result, resume

T = TypeVar("T")


class MeasuredRunner:
    """Has all methods of a Runner."""

    def __init__(self, unmeasured: Runner, observer: Observer) -> None:
        self._unmeasured = unmeasured
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        """Return what needs no label: what runs in the calling thread is for its current call."""
        if name == "_unmeasured":
            raise AttributeError(name)
        return getattr(self._unmeasured, name)

    async def arun(self, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that only reads, on a worker."""
        return await self._unmeasured.arun(self._followed(make))

    async def acall(self, work: Callable[[], T]) -> T:
        """Call a function on a worker."""
        return await self._unmeasured.acall(partial(copy_context().run, work))

    def submit(self, job: Callable[[], None]) -> None:
        """Let a worker do a job."""
        self._unmeasured.submit(partial(copy_context().run, job))

    def change(self, key: Hashable, ops: ThreadOps, op: Any) -> Any:
        """Commit an op of an agent thread and return the op's result."""
        self._observer.label(op, self._observer.current())
        try:
            return self._unmeasured.change(key, ops, op)
        finally:
            self._observer.unlabel(op)

    def exclusive(self, key: Hashable, ops: ThreadOps, make: Callable[[], Plan[T]], *, lease: bytes | None = None) -> T:
        """Drive a plan that changes an agent thread."""
        return self._unmeasured.exclusive(key, ops, self._followed(make), lease=lease)

    async def aexclusive(
        self, key: Hashable, ops: ThreadOps, make: Callable[[], Plan[T]], *, lease: bytes | None = None
    ) -> T:
        """Async variant."""
        return await self._unmeasured.aexclusive(key, ops, self._followed(make), lease=lease)

    def start_exclusive(self, key: Hashable, ops: ThreadOps, make: Callable[[], Plan[Any]], deliver: Deliver) -> None:
        """Do the same on a worker, without waiting for it."""
        self._unmeasured.start_exclusive(key, ops, self._followed(make), deliver)

    def _followed(self, make: Callable[[], Plan[T]]) -> Callable[[], Plan[T]]:
        return partial(_follow, self._observer, self._observer.current(), copy_context(), make)


async def _follow(observer: Observer, calls: Calls, context: Context, make: Callable[[], Plan[T]]) -> T:
    """Make a plan and do what it does, with its requests labelled. The plan runs in `context`."""
    plan, outcome = context.run(make), Reply()  # type: tuple[Plan[T], Outcome]
    while True:
        step = context.run(resume, plan, outcome)
        if not isinstance(step, Request):
            value: T = result(step)
            return value
        sent = step.batch if isinstance(step, Commit) else step
        observer.label(sent, calls)
        try:
            outcome = Reply(await step)
        except BaseException as error:  # noqa: BLE001 - the plan decides
            outcome = Failure(error)
        finally:
            observer.unlabel(sent)


class MeasuredOps:
    """How the ops of an agent thread are committed, for the calls that the ops are for."""

    __slots__ = ("_observer", "_unmeasured")

    def __init__(self, unmeasured: ThreadOps, observer: Observer) -> None:
        self._unmeasured, self._observer = unmeasured, observer

    def stage(self, ops: Sequence[Any]) -> StagedOps | None:
        """Apply ops to the cached thread."""
        staged = self._unmeasured.stage(ops)
        if staged is None:
            return None
        self._observer.label(staged.batch, self._calls_of(ops))
        made, failed = (partial(self._done, staged.batch, each) for each in (staged.made, staged.failed))
        return StagedOps(staged.batch, staged.outcomes, made, failed)

    def plan(self, ops: Sequence[Any]) -> Plan[list[Outcome]]:
        """Return a plan that commits ops."""
        calls = self._calls_of(ops)
        return _follow(self._observer, calls, copy_context(), partial(self._unmeasured.plan, ops))

    def _done(self, batch: Any, then: Callable[[], object]) -> None:
        self._observer.unlabel(batch)
        then()

    def _calls_of(self, ops: Sequence[Any]) -> Calls:
        return [call for op in ops for call in self._observer.label_of(op)]
