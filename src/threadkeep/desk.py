"""The Desk: what the faces and the verbs of a Keep share, and the only clock and the only randomness."""

from __future__ import annotations

import asyncio
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from threadkeep.engine import checkpoints, remembering
from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.memories import IndexVectors
from threadkeep.engine.remembering import Vectors
from threadkeep.engine.talks import plans as talks
from threadkeep.errors import Closed, ReadOnly
from threadkeep.plan import Failure, Outcome, Plan, Reply, attempt, result, resume
from threadkeep.transports.runner import Runner, Transport
from threadkeep.transports.sweeper import Sweeper, Sweeping, in_background, run_apart
from threadkeep.work import Aside, Progress, Read, Step, Tell, Work

__all__ = ["Desk", "as_count", "aside", "draw", "now", "now_exactly", "run_apart"]
T = TypeVar("T")
_SWEEP_MINUTES = 5.0


@dataclass(slots=True)
class AtHand:
    """What a Keep remembers between calls."""

    heads: Heads
    vectors: Vectors | None = None

    def clear(self) -> None:
        """It may not be true any more."""
        self.heads.clear()
        if self.vectors is not None:
            self.vectors.clear()


class Desk:
    """What the faces of a Keep share: the runner, what is remembered of threads, and the tenant."""

    def __init__(self, transport: Transport, *, tenant: str, cache_bytes: int) -> None:
        self.transport = transport
        self.tenant = tenant
        self.at_hand = AtHand(Heads(cache_bytes))
        self._cache_bytes = cache_bytes
        transport.on_loss = self.at_hand.clear
        self.upkeep: Callable[[Desk], object] = Desk.sweep_now
        """What is done now and then, once `start_upkeep` was called."""
        self._sweeper = Sweeper(partial(_sweep, weakref.ref(self)))  # a sweeper keeps no Keep alive
        self._keeper = Sweeper(partial(_keep_up, weakref.ref(self)))
        stops = partial(_stop_both, self._sweeper, self._keeper)
        self.runner = Runner(transport, on_fork=self.at_hand.clear, on_close=stops)

    @property
    def heads(self) -> Heads:
        """What is remembered of threads."""
        return self.at_hand.heads

    @property
    def vectors(self) -> Vectors | None:
        """What is at hand of vectors, if the store has any."""
        return self.at_hand.vectors

    def keep_vectors(self, dims: int, measure: str) -> None:
        """Have vectors of so many dimensions at hand, where the storage does not compare them itself."""
        self.transport.wants_vectors = True
        if self.vectors is None:
            self.at_hand.vectors = Vectors(dims, measure, self._cache_bytes // 2)

    def key(self, kind: str, id: str) -> ThreadKey:
        """A thread of this tenant."""
        return ThreadKey(self.tenant, kind, id)

    def change(self, key: ThreadKey, make: Callable[[], Any]) -> Any:
        """Make an op and commit it, together with what waits for the same thread; what it gives."""
        return self.runner.change(key, self._together(key), make)

    async def achange(self, key: ThreadKey, make: Callable[[], Any]) -> Any:
        """The same for async callers."""
        return await self.runner.achange(key, self._together(key), make)

    def exclusive(self, key: ThreadKey, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that changes a thread while no other change of it is under way here."""
        return self.runner.exclusive(key, self._together(key), make)

    async def aexclusive(self, key: ThreadKey, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        return await self.runner.aexclusive(key, self._together(key), make)

    def apart(self, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that changes something but no thread, beside all others."""
        return self.runner.exclusive(object(), _no_ops, make)

    async def aapart(self, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        return await self.runner.aexclusive(object(), _no_ops, make)

    def work(self, work: Work[T], tell: Tell | None = None) -> T:
        """Carry out long work; `tell` hears how far it is. What a plan raises, the work hears first."""
        step = resume(work, Reply())
        while not isinstance(step, (Reply, Failure)):
            step = resume(work, attempt(partial(self._carried_out, step, tell)))
        return cast("T", result(step))

    def _carried_out(self, step: Step, tell: Tell | None) -> Any:
        if isinstance(step, Progress):
            return tell(*step) if tell else None
        if isinstance(step, Read):
            return self.runner.run(step.make())
        if isinstance(step, Aside):
            return step.make()
        return self.exclusive(step.key, step.make) if step.key else self.apart(step.make)

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
        if isinstance(step, Aside):
            return await _aside(step.make)
        return await (self.aexclusive(step.key, step.make) if step.key else self.aapart(step.make))

    def see_to_index(self) -> None:
        """Have an index of vectors made in the background, if somebody met so many that one is needed."""
        vectors = self.vectors
        if vectors is not None and vectors.wants_index:
            vectors.wants_index = False
            request = IndexVectors(vectors.dims, vectors.measure)
            in_background(lambda: result(self.transport.write([request])[0]))

    def sweep(self) -> Any:
        """Remove expired memories; how many. Inside an event loop it gives something to await."""
        if _in_a_loop():
            return asyncio.ensure_future(self.aapart(lambda: remembering.sweep(now_exactly())))
        return self.sweep_now()

    def start_sweeping(self, minutes: float | None) -> Sweeping:
        """Sweep every so many minutes until it is stopped."""
        self.runner.check_open()
        if self.transport.read_only:
            raise ReadOnly
        return self._sweeper.start(minutes or _SWEEP_MINUTES)

    def stop_sweeping(self, timeout: float | None = None) -> Any:
        """Stop sweeping; whether it has stopped. Inside an event loop it gives something to await."""
        return _stopped(self._sweeper, timeout)

    def start_upkeep(self, minutes: float | None) -> Sweeping:
        """Do `upkeep` every so many minutes until it is stopped."""
        self.runner.check_open()
        if self.transport.read_only:
            raise ReadOnly
        return self._keeper.start(minutes or _SWEEP_MINUTES)

    def stop_upkeep(self, timeout: float | None = None) -> Any:
        """Stop that; whether it has stopped. Inside an event loop it gives something to await."""
        return _stopped(self._keeper, timeout)

    def sweep_now(self) -> int:
        """Remove expired memories; how many."""
        return self.apart(lambda: remembering.sweep(now_exactly()))

    def _together(self, key: ThreadKey) -> Callable[[Sequence[Any]], Plan[list[Outcome]]]:
        write = talks.write if key.kind == CUBE else checkpoints.write
        return lambda ops: write(self.heads, key, ops)

    def setup(self) -> Awaitable[None]:
        """Set the storage up now; inside an event loop that happens on a worker, so await it there."""
        if not _in_a_loop():
            self.runner.run(_setup(self.transport))
            return _Done()
        return asyncio.ensure_future(self.runner.arun(lambda: _setup(self.transport)))


async def aside(work: Callable[[], T]) -> T:
    """Do something that reads or writes files in a thread of its own, beside the event loop.

    A cancelled caller leaves it to finish.
    """
    return await asyncio.to_thread(work)


def _sweep(desk: weakref.ref[Desk]) -> int:
    alive = desk()
    if alive is None:
        raise Closed
    return alive.sweep_now()


def _keep_up(desk: weakref.ref[Desk]) -> int:
    alive = desk()
    if alive is None:
        raise Closed
    alive.upkeep(alive)
    return 0


def _stopped(sweeper: Sweeper, timeout: float | None) -> Any:
    if _in_a_loop():
        return asyncio.get_running_loop().run_in_executor(None, sweeper.stop, timeout)
    return sweeper.stop(timeout)


def _stop_both(*sweepers: Sweeper) -> None:
    for sweeper in sweepers:
        sweeper.stop()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _aside(make: Callable[[], T]) -> T:
    """Do something that blocks in another thread. Who is cancelled waits for its end: nothing is closed under its feet."""
    doing = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise


async def _no_ops(ops: Sequence[Any]) -> list[Outcome]:
    """Where there are only plans."""
    raise AssertionError(f"ops of no thread: {ops}")


async def _setup(transport: Transport) -> None:
    transport.setup()


class _Done:
    """Something to await that is done already."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def now_exactly() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1_000


def draw() -> int:
    """A random number for an epoch."""
    return secrets.randbits(62)


def as_count(value: Any, what: str) -> int:
    """A number of things: an int that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{what} must not be negative: {value}")
    return value
