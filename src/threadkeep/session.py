"""The session: what the adapters and the verbs of a Keep share."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from threadkeep import clock
from threadkeep.drivers.background import Periodic, PeriodicRun, in_background
from threadkeep.drivers.loops import Done, call_or_task, finish_in_thread, run_in_thread
from threadkeep.drivers.runner import Runner, Transport
from threadkeep.engine.cube import plans as talks
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.memories.plans import VectorCache
from threadkeep.engine.memories.requests import CreateVectorIndex
from threadkeep.engine.threads import checkpoints
from threadkeep.engine.threads.heads import Heads
from threadkeep.errors import Closed, ReadOnly
from threadkeep.plan import Failure, Outcome, Plan, Reply, attempt, result, resume
from threadkeep.work import Blocking, Progress, Read, Step, Tell, Work

T = TypeVar("T")


class Caches:
    """What a Keep remembers between calls: recently used threads, and vectors if its store compares them."""

    def __init__(self, max_bytes: int) -> None:
        self.heads = Heads(max_bytes)
        self.vectors: VectorCache | None = None
        self._max_bytes = max_bytes

    def clear(self) -> None:
        """Forget everything: the storage may not hold it any more."""
        self.heads.clear()
        if self.vectors is not None:
            self.vectors.clear()

    def keep_vectors(self, dims: int, measure: str) -> None:
        """Remember vectors of `dims` dimensions too."""
        if self.vectors is None:
            self.vectors = VectorCache(dims, measure, self._max_bytes // 2)


class Session:
    """What the adapters and the verbs of a Keep share: the runner, the caches and the tenant.

    A verb that starts with `a` is for async callers and does the same as the one without.
    """

    def __init__(self, transport: Transport, *, tenant: str, caches: Caches) -> None:
        self.transport = transport
        self.tenant = tenant
        self.caches = caches
        self._sweeping = Periodic()
        self._upkeep = Periodic()
        stop = partial(_stop_all, self._sweeping, self._upkeep)
        self.runner = Runner(transport, on_fork=caches.clear, on_close=stop)

    @property
    def heads(self) -> Heads:
        """The cache of threads."""
        return self.caches.heads

    @property
    def vectors(self) -> VectorCache | None:
        """The cache of vectors, if the store compares any."""
        return self.caches.vectors

    def key(self, kind: str, id: str) -> ThreadKey:
        """A thread of this tenant."""
        return ThreadKey(self.tenant, kind, id)

    def change(self, key: ThreadKey, make: Callable[[], Any]) -> Any:
        """Make an op and commit it, together with what waits for the same thread. Return what the op gives."""
        return self.runner.change(key, self._together(key), make)

    async def achange(self, key: ThreadKey, make: Callable[[], Any]) -> Any:
        """The same for async callers."""
        return await self.runner.achange(key, self._together(key), make)

    def exclusive(self, key: ThreadKey, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that changes a thread while this process makes no other change of it."""
        return self.runner.exclusive(key, self._together(key), make)

    async def aexclusive(self, key: ThreadKey, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        return await self.runner.aexclusive(key, self._together(key), make)

    def change_outside_threads(self, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that changes no thread but something else, such as memories. It waits for no other change."""
        return self.runner.exclusive(object(), _no_ops, make)

    async def achange_outside_threads(self, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        return await self.runner.aexclusive(object(), _no_ops, make)

    def work(self, work: Work[T], tell: Tell | None = None) -> T:
        """Carry out long work; `tell` is called with its progress. The work receives what a plan raises."""
        step = resume(work, Reply())
        while not isinstance(step, (Reply, Failure)):
            step = resume(work, attempt(partial(self._carried_out, step, tell)))
        return cast("T", result(step))

    def _carried_out(self, step: Step, tell: Tell | None) -> Any:
        if isinstance(step, Progress):
            return tell(*step) if tell else None
        if isinstance(step, Read):
            return self.runner.run(step.make())
        if isinstance(step, Blocking):
            return step.make()
        return self.exclusive(step.key, step.make) if step.key else self.change_outside_threads(step.make)

    async def awork(self, work: Work[T], tell: Tell | None = None) -> T:
        """The same for async callers."""
        step = resume(work, Reply())
        while not isinstance(step, (Reply, Failure)):
            try:
                outcome: Outcome = Reply(await self._acarried_out(step, tell))
            except BaseException as error:  # noqa: BLE001 - the work decides
                outcome = Failure(error)
            step = resume(work, outcome)
        return cast("T", result(step))

    async def _acarried_out(self, step: Step, tell: Tell | None) -> Any:
        if isinstance(step, Progress):
            return tell(*step) if tell else None
        if isinstance(step, Read):
            return await self.runner.arun(step.make)
        if isinstance(step, Blocking):
            return await finish_in_thread(step.make)
        return await (self.aexclusive(step.key, step.make) if step.key else self.achange_outside_threads(step.make))

    def see_to_index(self) -> None:
        """Have an index of vectors made in the background, if a search met so many that one is needed."""
        vectors = self.vectors
        if vectors is not None and vectors.wants_index:
            vectors.wants_index = False
            request = CreateVectorIndex(vectors.dims, vectors.metric)
            in_background(lambda: result(self.transport.write([request])[0]))

    def sweep(self) -> Any:
        """Remove expired memories and return how many. Inside an event loop it returns an awaitable."""
        return call_or_task(self.sweep_now, lambda: self.achange_outside_threads(_sweep))

    def sweep_now(self) -> int:
        """Remove expired memories and return how many."""
        return self.change_outside_threads(_sweep)

    def start_sweeping(self, minutes: float | None) -> PeriodicRun:
        """Sweep every `minutes` (5) until it is stopped."""
        return self._start(self._sweeping, minutes, Session.sweep_now)

    def stop_sweeping(self, timeout: float | None = None) -> Any:
        """Stop sweeping and return whether it has stopped. Inside an event loop it returns an awaitable."""
        return _stopped(self._sweeping, timeout)

    def start_upkeep(self, minutes: float | None, upkeep: Callable[[Session], object]) -> PeriodicRun:
        """Call `upkeep` with this session every `minutes` (5) until it is stopped."""
        return self._start(self._upkeep, minutes, upkeep)

    def stop_upkeep(self, timeout: float | None = None) -> Any:
        """Stop upkeep and return whether it has stopped. Inside an event loop it returns an awaitable."""
        return _stopped(self._upkeep, timeout)

    def _start(self, periodic: Periodic, minutes: float | None, work: Callable[[Session], object]) -> PeriodicRun:
        self.runner.check_open()
        if self.transport.read_only:
            raise ReadOnly
        return periodic.start(partial(_while_alive, weakref.ref(self), work), minutes)

    def _together(self, key: ThreadKey) -> Callable[[Sequence[Any]], Plan[list[Outcome]]]:
        write = talks.write if key.kind == CUBE else checkpoints.write
        return lambda ops: write(self.heads, key, ops)

    def setup(self) -> Awaitable[None]:
        """Set the storage up now. Inside an event loop a worker does it: await what this returns."""
        started: Any = call_or_task(
            lambda: self.runner.run(_setup(self.transport)), lambda: self.runner.arun(lambda: _setup(self.transport))
        )
        return cast("Awaitable[None]", started or Done())


def _sweep() -> Plan[int]:
    return memory_plans.sweep(clock.now_us())


def _while_alive(session: weakref.ref[Session], work: Callable[[Session], object]) -> None:
    """Do periodic work. A thread that repeats it keeps no Keep alive."""
    alive = session()
    if alive is None:
        raise Closed
    work(alive)


def _stopped(periodic: Periodic, timeout: float | None) -> Any:
    stop = partial(periodic.stop, timeout)
    return call_or_task(stop, lambda: run_in_thread(stop))


def _stop_all(*periodics: Periodic) -> None:
    for periodic in periodics:
        periodic.stop()


async def _no_ops(ops: Sequence[Any]) -> list[Outcome]:
    """Outside threads there are plans only."""
    raise AssertionError(f"ops of no thread: {ops}")


async def _setup(transport: Transport) -> None:
    transport.setup()
