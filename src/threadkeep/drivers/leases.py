"""The leases that this process holds: in which context, whose turn it is to take one, and when each is renewed.

A lease belongs to the context that took it (`contextvars`). Tasks and LangGraph's executors copy the context, so what a
run starts writes under the lease of the run. Another run in the same process has another context, and waits.

One thread renews all leases of a Keep. It only starts the renewals: workers make them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from random import random
from typing import Protocol
from weakref import ref

from threadkeep.drivers.runner import new_future
from threadkeep.engine.identity import ThreadKey
from threadkeep.errors import Closed
from threadkeep.plan import Failure, Outcome, Reply

_log = logging.getLogger("threadkeep.leases")
_OF_ANOTHER_PROCESS = b"of another process"
"""The lease of a child process that was forked in the body of a lease: no row has it, so the child cannot write."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_RENEWALS_PER_TTL = 3


class HeldLease:
    """A lease of a context: of which thread, and the digest of its token. It may have ended, or be known to be lost."""

    __slots__ = ("digest", "has_ended", "home", "is_lost", "key")

    def __init__(self, home: ProcessLeases, key: ThreadKey, digest: bytes) -> None:
        self.home, self.key, self.digest = home, key, digest
        self.is_lost = self.has_ended = False


_held: ContextVar[tuple[HeldLease, ...]] = ContextVar("threadkeep_leases", default=())


class Renewable(Protocol):
    """A lease that is renewed until it has ended."""

    ttl: float

    @property
    def held(self) -> HeldLease:
        """What the context holds."""

    def start_renewing(self, deliver: Callable[[Outcome], None]) -> None:
        """Let a worker renew it. `deliver` gets whether it still is the thread's lease."""


class Waiter:
    """Somebody who waits for a lease, sync or async."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._wakes: Callable[[Outcome], None] | None = None

    def wake(self) -> None:
        """Let it try again, from any thread."""
        self._event.set()
        deliver = self._wakes
        if deliver is not None:
            deliver(Reply())

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds, or until it is woken."""
        self._event.wait(min(seconds, threading.TIMEOUT_MAX))
        self._event.clear()

    async def asleep(self, seconds: float) -> None:
        """Async variant."""
        future, self._wakes = new_future()
        try:
            if not self._event.is_set():
                await asyncio.wait([future], timeout=None if seconds == float("inf") else seconds)
        finally:
            self._wakes = None
            self._event.clear()
            future.cancel()


class ProcessLeases:
    """The leases of one Keep and of its tenants, in this process."""

    def __init__(self, before_fork: tuple[ProcessLeases, ...] = ()) -> None:
        self._before_fork = before_fork
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._turns: dict[ThreadKey, deque[Waiter]] = {}
        self._due: list[tuple[float, int, ref[Renewable]]] = []
        self._numbers = count()
        self._is_renewing = False

    # --- which context holds which

    def hold(self, key: ThreadKey, digest: bytes) -> HeldLease:
        """Let this context hold a lease."""
        held = HeldLease(self, key, digest)
        _held.set((*(each for each in _held.get() if not each.has_ended), held))
        return held

    def let_go(self, held: HeldLease) -> None:
        """End a lease. Contexts that inherited it keep it, and cannot write under it any more."""
        held.has_ended = True
        _held.set(tuple(each for each in _held.get() if each is not held))

    def held(self, key: ThreadKey) -> HeldLease | None:
        """Return the lease of a thread that this context holds, or held when it was copied."""
        for each in reversed(_held.get()):
            if each.key == key and each.home is self:
                return each
        return None

    def digest(self, key: ThreadKey) -> bytes | None:
        """Return the digest of the lease that a caller in this context has, None if it has none."""
        for each in reversed(_held.get()):
            if each.key == key and (each.home is self or each.home in self._before_fork):
                return each.digest if each.home is self else _OF_ANOTHER_PROCESS
        return None

    def after_fork(self) -> ProcessLeases:
        """Return those of a forked child. It holds none: what its context inherited is the parent's."""
        return ProcessLeases((*self._before_fork, self))

    # --- whose turn it is

    def queue_up(self, key: ThreadKey) -> Waiter:
        """Wait for a lease behind those who came before in this process."""
        waiter = Waiter()
        with self._lock:
            self._turns.setdefault(key, deque()).append(waiter)
        return waiter

    def is_first(self, key: ThreadKey, waiter: Waiter) -> bool:
        """Return whether it is this waiter's turn to try."""
        with self._lock:
            return self._turns[key][0] is waiter

    def leave(self, key: ThreadKey, waiter: Waiter) -> None:
        """Stop waiting. The next one may try."""
        with self._lock:
            waiting = self._turns[key]
            waiting.remove(waiter)
            if not waiting:
                del self._turns[key]
        self.wake_first(key)

    def wake_first(self, key: ThreadKey) -> None:
        """Let the first one who waits try at once: the lease has ended."""
        with self._lock:
            waiting = self._turns.get(key)
            first = waiting[0] if waiting else None
        if first is not None:
            first.wake()

    # --- renewing

    def renew(self, lease: Renewable) -> None:
        """Renew a lease again and again, until it has ended, is lost, or nobody refers to it."""
        with self._lock:
            heappush(self._due, (time.monotonic() + lease.ttl / _RENEWALS_PER_TTL, next(self._numbers), ref(lease)))
            self._changed.notify()
            if self._is_renewing:
                return
            self._is_renewing = True
        threading.Thread(target=self._renew_all, name="threadkeep-leases", daemon=True).start()

    def stop_renewing(self, lease: Renewable) -> None:
        """Stop renewing a lease."""
        with self._lock:
            self._due = [each for each in self._due if each[2]() is not lease]
            self._due.sort()
            self._changed.notify()

    def _renew_all(self) -> None:
        """Start each renewal when it is due. Ends when no lease is left."""
        while True:
            with self._lock:
                if not self._due:
                    self._is_renewing = False
                    return
                pause = self._due[0][0] - time.monotonic()
                if pause > 0:
                    self._changed.wait(min(pause, threading.TIMEOUT_MAX))
                    continue
                lease = heappop(self._due)[2]()
            if lease is not None:
                self._start_renewing(lease)
            del lease

    def _start_renewing(self, lease: Renewable) -> None:
        weak = ref(lease)

        def deliver(outcome: Outcome) -> None:
            renewed = weak()
            if renewed is not None:
                self._note_renewal(renewed, outcome)

        try:
            lease.start_renewing(deliver)
        except Closed:
            return

    def _note_renewal(self, lease: Renewable, outcome: Outcome) -> None:
        held = lease.held
        if held.has_ended:
            return
        if isinstance(outcome, Failure):
            if isinstance(outcome.error, Closed):
                return
            _log.warning("the lease on thread %r could not be renewed: %s", held.key.id, outcome.error)
        elif not outcome.value:
            held.is_lost = True
            _log.warning("the lease on thread %r was lost", held.key.id)
            return
        self.renew(lease)


def pause_before(attempt: int) -> float:
    """Return how many seconds to wait after a try that found the lease taken by another process."""
    return min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * (0.5 + random())  # type: ignore[no-any-return]  # noqa: S311
