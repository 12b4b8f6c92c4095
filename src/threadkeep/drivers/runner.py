"""The runner: who drives which plan, in which thread, and when commits go out.

Reads are driven where they are asked for, or on a worker for async callers. Changes are made by workers, or by callers
that nothing can interrupt, which are those in threads other than the main one: so a cancelled task or a Ctrl-C ends the
waiting, not the work, and nothing is left half done for others. A caller that has what it came for goes; what is left of
its lane goes to the next one who waits there, or to a worker.

The changes of one agent thread queue up in its lane: one plan at a time, and the ops that waited meanwhile go into the
next plan together. When a plan asks for a commit it is set aside. A worker that finds no more jobs, and nobody else
committing, commits everything that waits, in one transaction, and goes on with those plans. So a lone caller never waits
for company, and two hundred tasks need a few transactions. Where the storage takes changes from several sides at once,
several workers may be committing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import random
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

from threadkeep.drivers import forks
from threadkeep.drivers.workers import Workers
from threadkeep.engine.requests import Pause
from threadkeep.errors import Closed
from threadkeep.plan import Failure, Outcome, Plan, Reply, Request, answer, attempt, drive, result, resume

T = TypeVar("T")
Together: TypeAlias = Callable[[Sequence[Any]], Plan[list[Outcome]]]
_WORKERS = 6
_ENOUGH = 32
"""So many commits go out together even if more are on their way."""


class Transport(Protocol):
    """What executes requests. All methods may be called from any thread."""

    writers: int
    """How many callers of `write` there may be at once."""
    read_only: bool
    """Whether changes are refused."""
    has_words: bool
    """Whether memories can be found by their words."""

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes, in one transaction if possible; one that fails undoes itself only."""

    def setup(self) -> None:
        """Make the storage ready now instead of at first use."""

    def close(self) -> None:
        """Let what is under way finish and let go of everything."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A change that somebody waits for: an op that can go together with others, or a plan of its own."""

    tell: Callable[[Outcome], None]
    op: Any = None
    plan: Callable[[], Plan[Any]] | None = None
    caller: _Caller | None = None
    """Who waits for it and can drive its lane."""


class _Caller:
    """A thread that waits for its outcome, or for its turn to drive a lane."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self._lane: _Lane | None = None
        self._awake = (
            threading.Lock()
        )  # not an Event: Ctrl-C may leave the lock inside one locked, and `tell` would hang
        self._awake.acquire()

    def tell(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._awake.release()

    def let_drive(self, lane: _Lane) -> None:
        self._lane = lane
        self._awake.release()

    def wait(self) -> _Lane | None:
        """The lane to drive, or None when there is an outcome."""
        self._awake.acquire()
        lane, self._lane = self._lane, None
        return lane


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

    def finish(self, outcome: Outcome) -> None:
        """Tell everybody who waited; ops that went together have an outcome each."""
        apart = isinstance(outcome, Reply) and self.tickets[0].plan is None
        outcomes = outcome.value if apart else [outcome] * len(self.tickets)  # type: ignore[union-attr]
        for ticket, own in zip(self.tickets, outcomes, strict=True):
            ticket.tell(own)


class _State:
    """All that a forked child must have anew."""

    def __init__(self, runner: Runner, writers: int) -> None:
        self.lock = threading.Lock()
        self.lanes: dict[Hashable, _Lane] = {}
        self.commits: deque[tuple[_Job, Request[Any]]] = deque()
        self.committing = threading.Semaphore(writers)
        self.workers = Workers(_WORKERS, partial(_commit_of, ref(runner)))  # a worker at rest keeps no Keep alive


def _commit_of(runner: ref[Runner]) -> None:
    alive = runner()
    if alive is not None:
        alive.commit_due()


class Runner:
    """Drives the plans of one Keep on one transport."""

    def __init__(
        self, transport: Transport, *, on_fork: Callable[[], None], on_close: Callable[[], object] = lambda: None
    ) -> None:
        self._transport = transport
        self._on_fork = on_fork
        self._on_close = on_close
        self._state = _State(self, self._transport.writers)
        self._closed = False
        forks.watch(self)

    def run(self, plan: Plan[T]) -> T:
        """Drive a plan that only reads, here and now."""
        try:
            self._open()
        except Closed:
            plan.close()
            raise
        return drive(plan, self._execute)

    async def arun(self, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that only reads, on a worker; even making it is the worker's work."""
        done, tell = _callback()
        self._open().workers.submit(lambda: tell(attempt(lambda: self.run(make()))))
        value: T = await done
        return value

    def change(self, key: Hashable, together: Together, make: Callable[[], Any]) -> Any:
        """Make an op of an agent thread, here, and wait until it is committed; what it gives."""
        op = make()
        return self._wait(key, together, lambda tell: _Ticket(tell, op=op))

    async def achange(self, key: Hashable, together: Together, make: Callable[[], Any]) -> Any:
        """The same for async callers; even making the op is a worker's work."""
        return await self._await(key, together, lambda tell: _Ticket(tell, op=make()))

    def exclusive(self, key: Hashable, together: Together, make: Callable[[], Plan[T]]) -> T:
        """Have a plan driven that changes an agent thread, with no other change of that thread under way here."""
        value: T = self._wait(key, together, lambda tell: _Ticket(tell, plan=make))
        return value

    async def aexclusive(self, key: Hashable, together: Together, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        value: T = await self._await(key, together, lambda tell: _Ticket(tell, plan=make))
        return value

    def close(self) -> None:
        """Finish what is under way, then let go of workers and transport. Harmless when repeated."""
        self._closed = True
        self._on_close()
        self._state.workers.stop()
        self._transport.close()

    async def aclose(self) -> None:
        """The same, without blocking the event loop."""
        done, tell = _callback()
        threading.Thread(target=lambda: tell(attempt(self.close)), name="threadkeep-close").start()
        await done

    def check_open(self) -> None:
        """Closed, if it is."""
        self._open()

    def before_fork(self) -> None:
        """Nothing to wait for: what the parent's workers do is the parent's."""

    def after_fork(self, *, child: bool) -> None:
        """The child has no workers and nothing under way."""
        if child:
            self._state = _State(self, self._transport.writers)
            self._on_fork()

    def _open(self) -> _State:
        if self._closed:
            raise Closed
        return self._state

    def _execute(self, request: Request[Any]) -> Any:
        if isinstance(request, Pause):
            return time.sleep(min(0.002 * 2**request.attempt, 0.25) * (0.5 + random()))  # noqa: S311 - no secret
        return self._transport.read(request)

    def _wait(self, key: Hashable, together: Together, make: Callable[[Callable[[Outcome], None]], _Ticket]) -> Any:
        state, caller = self._open(), _Caller()
        if threading.current_thread() is threading.main_thread():
            self._hand_over(key, together, make, caller.tell)
            caller.wait()
        else:
            ticket = make(caller.tell)
            ticket.caller = caller
            self._drive(state, partial(self._enqueue, state, key, together, ticket, caller), caller)
            while (lane := caller.wait()) is not None:
                self._drive(state, partial(self._start_next, state, lane, caller), caller)
        assert caller.outcome is not None
        return result(caller.outcome)

    def _drive(self, state: _State, start: Callable[[], None], caller: _Caller) -> None:
        """Do a worker's work in the caller's thread."""
        with state.workers.visited():
            start()
            self._commit_all(state, caller)

    async def _await(
        self, key: Hashable, together: Together, make: Callable[[Callable[[Outcome], None]], _Ticket]
    ) -> Any:
        done, tell = _callback()
        self._hand_over(key, together, make, tell)
        return await done

    def _hand_over(
        self,
        key: Hashable,
        together: Together,
        make: Callable[[Callable[[Outcome], None]], _Ticket],
        tell: Callable[[Outcome], None],
    ) -> None:
        """Let a worker make a ticket and take it as far as it can go."""
        state = self._open()

        def job() -> None:
            made = attempt(lambda: make(tell))
            if isinstance(made, Failure):
                tell(made)
                return
            self._enqueue(state, key, together, made.value)

        state.workers.submit(job)

    def _enqueue(
        self, state: _State, key: Hashable, together: Together, ticket: _Ticket, caller: _Caller | None = None
    ) -> None:
        """Put a ticket into its lane; if the lane was empty, start it."""
        with state.lock:
            lane = state.lanes.get(key)
            if lane is not None:
                lane.waiting.append(ticket)
                return
            lane = state.lanes[key] = _Lane(key, together)
            lane.waiting.append(ticket)
        self._start_next(state, lane, caller)

    def _start_next(self, state: _State, lane: _Lane, caller: _Caller | None = None) -> None:
        """Start plans of a lane until one waits for its commit, nothing is left, or the caller has its outcome."""
        while caller is None or caller.outcome is None:
            with state.lock:
                if not lane.waiting:
                    del state.lanes[lane.key]
                    return
                tickets = lane.next_tickets()
            job = _Job(lane, tickets, _plan_of(lane, tickets))
            if not self._go_on(state, job, Reply()):
                return
        self._pass_on(state, lane)

    def _pass_on(self, state: _State, lane: _Lane) -> None:
        """Let somebody else drive a lane: the first who waits in it, or a worker."""
        with state.lock:
            if not lane.waiting:
                del state.lanes[lane.key]
                return
            heir = lane.waiting[0].caller
        if heir is not None:
            heir.let_drive(lane)
        else:
            state.workers.submit(partial(self._start_next, state, lane))

    def _go_on(self, state: _State, job: _Job, outcome: Outcome) -> bool:
        """Step a job until it asks for a commit (False) or ends (True)."""
        step = resume(job.plan, outcome)
        while isinstance(step, Request):
            if step.access.writes:
                state.commits.append((job, step))
                return False
            step = resume(job.plan, answer(self._execute, step))
        job.finish(step)
        return True

    def commit_due(self) -> None:
        """Commit what waits, if it is time to; workers do so after each job."""
        self._commit_all(self._state)

    def _commit_all(self, state: _State, caller: _Caller | None = None) -> None:
        """Commit what waits, unless more is coming or enough others do: whoever commits looks again when done."""
        while self._is_due(state):
            if caller is not None and caller.outcome is not None:
                state.workers.submit(_nothing)  # and commit, as after each job
                return
            if not state.committing.acquire(blocking=False):
                return
            try:
                jobs = self._commit_waiting(state)
            finally:
                state.committing.release()
            for job, outcome in jobs:
                if self._go_on(state, job, outcome):
                    self._start_next(state, job.lane, caller)

    def _is_due(self, state: _State) -> bool:
        waiting = len(state.commits)
        return waiting >= _ENOUGH or (waiting > 0 and not state.workers.have_more())

    def _commit_waiting(self, state: _State) -> list[tuple[_Job, Outcome]]:
        waiting = list(_taken(state.commits))
        if not waiting:
            return []
        outcomes = attempt(partial(self._transport.write, [request for _, request in waiting]))
        if isinstance(outcomes, Failure):
            return [(job, outcomes) for job, _ in waiting]
        return [(job, outcome) for (job, _), outcome in zip(waiting, outcomes.value, strict=True)]


def _nothing() -> None:
    """A job that is only there for what comes after it."""


def _taken(waiting: deque[T]) -> Iterator[T]:
    """All that is there; others may be taking too."""
    while waiting:
        try:
            yield waiting.popleft()
        except IndexError:
            return


def _plan_of(lane: _Lane, tickets: list[_Ticket]) -> Plan[Any]:
    make = tickets[0].plan
    return make() if make else lane.together([ticket.op for ticket in tickets])


class _Mailbox:
    """Outcomes on their way to one event loop: what a group of commits brings wakes the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake = loop.call_soon_threadsafe
        self._waiting: deque[tuple[asyncio.Future[Any], Outcome]] = deque()
        self._is_awake = False

    def tell(self, done: asyncio.Future[Any], outcome: Outcome) -> None:
        """Have a future settled, from any thread."""
        self._waiting.append((done, outcome))
        if self._is_awake:
            return  # `_deliver` is still to come, and takes this one too
        self._is_awake = True
        try:
            self._wake(self._deliver)
        except RuntimeError:
            self._waiting.clear()  # the loop is closed: nobody waits any more

    def _deliver(self) -> None:
        self._is_awake = False  # before looking: what comes from now on wakes the loop again
        for done, outcome in _taken(self._waiting):
            _settle(done, outcome)


_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()


def _callback() -> tuple[asyncio.Future[Any], Callable[[Outcome], None]]:
    """A future of the running loop, and how another thread settles it."""
    loop = asyncio.get_running_loop()
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        mailbox = _mailboxes.setdefault(loop, _Mailbox(loop))
    done: asyncio.Future[Any] = loop.create_future()
    return done, partial(mailbox.tell, done)


def _settle(done: asyncio.Future[Any], outcome: Outcome) -> None:
    if done.done():
        return
    if isinstance(outcome, Failure):
        done.set_exception(outcome.error)
    else:
        done.set_result(outcome.value)
