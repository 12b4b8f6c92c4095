"""The runner: who drives which plan, in which thread, and when commits go out.

Reads are driven where they are asked for. Changes of one thread (of an agent) queue up in its lane: one plan at a
time, and the ops that waited go into the next plan together. When a plan asks for a commit it is set aside, and
whoever finds nobody committing commits everything that waits, in one transaction, and goes on with those plans. So a
lone caller never waits for company, and two hundred tasks need a few transactions.

Nothing here blocks an event loop: async callers hand over once, to a worker, and are called back.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import random
from typing import Any, Protocol, TypeAlias, TypeVar

from threadkeep.engine.backend import Commit, Drop, Duplicate, Pause
from threadkeep.errors import Closed
from threadkeep.plan import Failure, Outcome, Plan, Reply, Request, answer, attempt, drive, result, resume

T = TypeVar("T")
Together: TypeAlias = Callable[[Sequence[Any]], Plan[list[Outcome]]]
_WRITES = (Commit, Duplicate, Drop)
_WORKERS = 6


class Transport(Protocol):
    """What executes requests. All methods may be called from any thread."""

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes in one transaction, if possible; one that fails undoes itself only. Called by one at a time."""

    def setup(self) -> None:
        """Make the storage ready now instead of at first use."""

    def close(self) -> None:
        """Let go of everything. Nothing is called afterwards."""

    def abandon(self) -> None:
        """Forget connections that belong to the parent process, without touching them."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A change that somebody waits for: an op that can go together with others, or a plan of its own."""

    op: Any = None
    plan: Callable[[], Plan[Any]] | None = None
    outcome: Outcome | None = None
    ready: threading.Event | None = None
    call_back: Callable[[Outcome], None] | None = None

    def deliver(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.ready is not None:
            self.ready.set()
        if self.call_back is not None:
            self.call_back(outcome)


@dataclass(slots=True, eq=False)
class _Lane:
    """The queue of one agent thread."""

    key: Hashable
    together: Together
    waiting: deque[_Ticket] = field(default_factory=deque)

    def next_tickets(self) -> list[_Ticket]:
        """What can go out as one: ops up to the next plan, or that plan."""
        taken = [self.waiting.popleft()]
        while taken[0].plan is None and self.waiting and self.waiting[0].plan is None:
            taken.append(self.waiting.popleft())
        return taken


@dataclass(slots=True, eq=False)
class _Job:
    """A plan under way for some tickets of a lane."""

    lane: _Lane
    tickets: list[_Ticket]
    plan: Plan[Any]
    alone: bool


class _State:
    """All that must be made anew in a forked child."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.lanes: dict[Hashable, _Lane] = {}
        self.commits: deque[tuple[_Job, Request[Any]]] = deque()
        self.committing = threading.Lock()
        self.workers: ThreadPoolExecutor | None = None
        self.busy = 0
        self.idle = threading.Condition(self.lock)


class Runner:
    """Drives the plans of one Keep on one transport."""

    def __init__(self, transport: Transport, *, on_fork: Callable[[], None]) -> None:
        self._transport = transport
        self._on_fork = on_fork
        self._state = _State()
        self._closed = False

    def run(self, plan: Plan[T]) -> T:
        """Drive a plan that only reads, here and now."""
        self._enter(plan)
        try:
            return drive(plan, self._execute)
        finally:
            self._leave()

    async def arun(self, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that only reads, on a worker; even making it is the worker's work."""
        return await self._on_worker(lambda: self.run(make()))

    def change(self, key: Hashable, together: Together, make: Callable[[], Any]) -> Any:
        """Make an op of an agent thread and wait until it is committed."""
        ticket = _Ticket(op=make(), ready=threading.Event())
        return self._wait(key, together, ticket)

    async def achange(self, key: Hashable, together: Together, make: Callable[[], Any]) -> Any:
        """The same for async callers. A cancelled caller leaves the change to finish."""
        return await self._call_back(key, together, lambda: _Ticket(op=make()))

    def exclusive(self, key: Hashable, together: Together, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that changes an agent thread, with no other change of that thread under way."""
        value: T = self._wait(key, together, _Ticket(plan=make, ready=threading.Event()))
        return value

    async def aexclusive(self, key: Hashable, together: Together, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        value: T = await self._call_back(key, together, lambda: _Ticket(plan=make))
        return value

    def close(self) -> None:
        """Finish what is under way, then let go of workers and transport. Harmless when repeated."""
        state = self._here()
        with state.lock:
            already, self._closed = self._closed, True
            while state.busy:
                state.idle.wait()
            workers, state.workers = state.workers, None
        if workers is not None:
            workers.shutdown(wait=threading.current_thread() not in workers._threads)  # noqa: SLF001 - no public way
        if not already:
            self._transport.close()

    async def aclose(self) -> None:
        """The same, without blocking the event loop."""
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def close() -> None:
            outcome = attempt(self.close)
            loop.call_soon_threadsafe(_settle, done, outcome)

        threading.Thread(target=close, name="threadkeep-close").start()
        await done

    def _here(self) -> _State:
        """The state of this process. After a fork everything of the parent's is left alone and made anew."""
        state = self._state
        if state.pid != os.getpid():
            self._transport.abandon()
            self._on_fork()
            state = self._state = _State()
        return state

    def _enter(self, plan: Plan[Any] | None = None) -> _State:
        state = self._here()
        with state.lock:
            if self._closed:
                if plan is not None:
                    plan.close()
                raise Closed
            state.busy += 1
        return state

    def _leave(self) -> None:
        state = self._state
        with state.lock:
            state.busy -= 1
            if not state.busy:
                state.idle.notify_all()

    def _execute(self, request: Request[Any]) -> Any:
        if isinstance(request, Pause):
            time.sleep(min(0.002 * 2**request.attempt, 0.25) * (0.5 + random()))  # noqa: S311 - spreads retries, no secret
            return None
        return self._transport.read(request)

    def _workers(self, state: _State) -> ThreadPoolExecutor:
        with state.lock:
            if state.workers is None:
                if self._closed:
                    raise Closed
                state.workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="threadkeep")
            return state.workers

    async def _on_worker(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            outcome = attempt(work)
            _from_outside(loop, done, outcome)

        self._workers(self._here()).submit(job)
        return await done

    async def _call_back(self, key: Hashable, together: Together, make: Callable[[], _Ticket]) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        state = self._enter()

        def tell(outcome: Outcome) -> None:
            self._leave()
            _from_outside(loop, done, outcome)

        def job() -> None:
            made = attempt(make)
            if isinstance(made, Failure):
                tell(made)
                return
            ticket: _Ticket = made.value
            ticket.call_back = tell
            self._enqueue(state, key, together, ticket)
            self._commit_all(state, None)

        try:
            self._workers(state).submit(job)
        except BaseException:
            self._leave()
            raise
        return await done

    def _wait(self, key: Hashable, together: Together, ticket: _Ticket) -> Any:
        state = self._enter()
        try:
            self._enqueue(state, key, together, ticket)
            self._commit_all(state, ticket)
            assert ticket.ready is not None
            ticket.ready.wait()
            assert ticket.outcome is not None
            return result(ticket.outcome)
        finally:
            self._leave()

    def _enqueue(self, state: _State, key: Hashable, together: Together, ticket: _Ticket) -> None:
        """Put a ticket into its lane; if the lane was empty, start it here."""
        with state.lock:
            lane = state.lanes.get(key)
            if lane is not None:
                lane.waiting.append(ticket)
                return
            lane = state.lanes[key] = _Lane(key, together)
            lane.waiting.append(ticket)
        self._start_next(state, lane)

    def _start_next(self, state: _State, lane: _Lane) -> None:
        """Start plans of a lane until one waits for its commit or nothing is left."""
        while True:
            with state.lock:
                if not lane.waiting:
                    del state.lanes[lane.key]
                    return
                tickets = lane.next_tickets()
            made = attempt(partial(_plan_of, lane, tickets))
            if isinstance(made, Failure):
                _deliver_all(tickets, made)
                continue
            job = _Job(lane, tickets, made.value, alone=tickets[0].plan is not None)
            if not self._go_on(state, job, Reply()):
                return

    def _go_on(self, state: _State, job: _Job, outcome: Outcome) -> bool:
        """Step a job until it asks for a commit (False) or ends (True)."""
        step = resume(job.plan, outcome)
        while isinstance(step, Request):
            if isinstance(step, _WRITES):
                state.commits.append((job, step))
                return False
            step = resume(job.plan, answer(self._execute, step))
        if job.alone or isinstance(step, Failure):
            _deliver_all(job.tickets, step)
        else:
            for ticket, own in zip(job.tickets, step.value, strict=True):
                ticket.deliver(own)
        return True

    def _commit_all(self, state: _State, own: _Ticket | None) -> None:
        """Commit what waits, unless somebody does; one with a ticket of its own stops when that is done."""
        while state.commits and state.committing.acquire(blocking=False):
            try:
                jobs = self._commit_waiting(state)
            finally:
                state.committing.release()
            for job, outcome in jobs:
                if self._go_on(state, job, outcome):
                    self._start_next(state, job.lane)
            if own is not None and own.outcome is not None and state.commits:
                self._workers(state).submit(self._commit_all, state, None)
                return

    def _commit_waiting(self, state: _State) -> list[tuple[_Job, Outcome]]:
        waiting = [state.commits.popleft() for _ in range(len(state.commits))]
        if not waiting:
            return []
        outcomes = attempt(partial(self._transport.write, [request for _, request in waiting]))
        if isinstance(outcomes, Failure):
            return [(job, outcomes) for job, _ in waiting]
        return [(job, outcome) for (job, _), outcome in zip(waiting, outcomes.value, strict=True)]


def _plan_of(lane: _Lane, tickets: list[_Ticket]) -> Plan[Any]:
    return tickets[0].plan() if tickets[0].plan else lane.together([ticket.op for ticket in tickets])


def _deliver_all(tickets: Sequence[_Ticket], outcome: Outcome) -> None:
    for ticket in tickets:
        ticket.deliver(outcome)


def _from_outside(loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], outcome: Outcome) -> None:
    try:
        loop.call_soon_threadsafe(_settle, done, outcome)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more


def _settle(done: asyncio.Future[Any], outcome: Outcome) -> None:
    if done.done():
        return
    if isinstance(outcome, Failure):
        done.set_exception(outcome.error)
    else:
        done.set_result(outcome.value)
