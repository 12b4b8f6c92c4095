"""The runner: drives the plans of a Keep, one change at a time per agent thread, and commits many threads together.

A read runs in the calling thread; for async callers, on a worker. A change runs on a worker, or in the calling thread
if nothing can interrupt it there, that is, in any thread but the main one. So a cancelled task or a Ctrl-C ends the
waiting, not the work, and leaves nothing half done. A caller returns as soon as it has its outcome; what is left in
its queue is handed to the next caller that waits there, or to a worker. Such a caller commits, in one step, all ops
that wait: of a hundred parallel tasks in six threads, each commit has six.

The changes of one agent thread wait in its queue. One plan runs at a time; the ops that came meanwhile go into the next
plan together. If the agent thread is cached, its ops need no plan at first: they are applied to what is cached, which
is only a computation (`ThreadOps.stage`). A plan takes over if the commit of these does not succeed. What requests a
commit is set aside. A worker that finds no more jobs, and nobody else committing,
commits all plans that are set aside, in one transaction, and continues them. So a lone caller never waits for others,
and two hundred tasks need a few transactions. If the storage accepts several writers, several workers may be
committing.

While the storage is away, a request waits in a timer until it is sent again. Meanwhile its plan holds nothing but the
queue of its own agent thread. A commit that is sent again goes alone: what makes it fail must not delay others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import random
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

from threadkeep.collector import gc_paused
from threadkeep.drivers import forks
from threadkeep.drivers.retries import Retries, TryLater, repeat
from threadkeep.drivers.timer import Timer
from threadkeep.drivers.workers import Workers
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.lease import LEASE_ERRORS
from threadkeep.engine.requests import Batch, CallersLease, Commit, Pause
from threadkeep.engine.schema_versions import SchemaVersions
from threadkeep.errors import Closed, Conflict, Corrupt
from threadkeep.plan import (
    NO_ACCESS,
    Failure,
    Outcome,
    Plan,
    Reply,
    Request,
    drive,
    result,
    resume,
    try_call,
    try_execute,
)

T = TypeVar("T")
Deliver: TypeAlias = Callable[[Outcome], None]
"""Gives an outcome to whoever waits for it, from any thread."""
_WORKERS = 6
_LONGEST_CLAIM = 10.0
"""Closing waits so many seconds at most for changes that callers make at once."""
_ENOUGH_COMMITS = 32
"""So many commits go out together even if more jobs are waiting."""
_MANY_CHANGES = 8
"""With fewer changes, pausing the collector only delays it."""
_NOT_PAUSED = nullcontext()


class Transport(Protocol):
    """What executes requests. All methods may be called from any thread.

    While the storage is away, `read` raises TryLater, and `write` returns it for the changes concerned: the same
    request is sent again later.
    """

    writers: int
    """How many groups of changes may be written at once. Changes that are sent again, each alone, do not count."""
    read_only: bool
    """Whether changes are refused."""
    commits_at_once: bool
    """Whether `try_commit` can succeed."""

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes, in one transaction if possible. A change that fails undoes only itself."""

    def try_commit(self, batch: Batch) -> bool:
        """Commit a batch in the calling thread, if that can be done at once and in one step. Return whether it was.

        Raise Conflict if the thread is not as the batch expects. If it returns False, the outcome may be unknown.
        """

    def try_drop(self, key: ThreadKey, *, sealed: bool = False) -> bool:
        """Delete an agent thread in the calling thread, under the same conditions. Return whether it was done.

        `sealed` is that of DropThread.
        """

    def setup(self) -> None:
        """Make the storage ready now instead of at first use."""

    def schema(self) -> SchemaVersions:
        """Return the schema versions that the storage states. Change nothing."""

    def migrate(self) -> None:
        """Create or migrate the schema, even if the Keep was opened with migrate=False."""

    def copy_to_file(self, path: Path, on_progress: Callable[[int, int], object]) -> bool:
        """Copy the whole storage into a new SQLite file. Return False if only SQLite's own online backup can do that.

        `on_progress` is called with (pages copied, pages in all).
        """

    def close(self) -> None:
        """Let what is under way finish, then close all connections."""


class StagedOps:
    """Ops that were applied to a cached agent thread: the batch to commit, and the outcome of each if it is.

    `made` is to be called when the batch was committed, `failed` when it was not, or when that is not known.
    """

    __slots__ = ("batch", "failed", "made", "outcomes")

    def __init__(
        self, batch: Batch, outcomes: list[Outcome], made: Callable[[], object], failed: Callable[[], object]
    ) -> None:
        self.batch, self.outcomes, self.made, self.failed = batch, outcomes, made, failed


class ThreadOps(Protocol):
    """How the ops of one agent thread are committed."""

    def stage(self, ops: Sequence[Any]) -> StagedOps | None:
        """Apply ops to the cached thread, without a request. None if that is not possible, or if one of them fails."""

    def plan(self, ops: Sequence[Any]) -> Plan[list[Outcome]]:
        """Return a plan that commits ops, whatever is cached. It returns an outcome for each."""


class PendingChange:
    """A change that somebody waits for: an op that can be merged with others, or a plan that runs alone.

    `make` makes the op, for async callers: encoding takes too long for an event loop. `caller` is the thread that waits
    for the change and can drive its queue. `lease` is that of the caller, if this is a plan; an op has its own.
    """

    __slots__ = ("caller", "deliver", "lease", "make", "op", "plan")

    def __init__(
        self,
        deliver: Deliver,
        op: Any = None,
        make: Callable[[], Any] | None = None,
        plan: Callable[[], Plan[Any]] | None = None,
        caller: _WaitingCaller | None = None,
        lease: bytes | None = None,
    ) -> None:
        self.deliver, self.op, self.make, self.plan, self.caller, self.lease = deliver, op, make, plan, caller, lease

    def make_op(self) -> bool:
        """Make the op, if that is still to be done. Return whether there is a change; if not, deliver the error."""
        if self.make is None:
            return True
        made = try_call(self.make)
        if isinstance(made, Failure):
            self.deliver(made)
            return False
        self.op, self.make = made.value, None
        return True


class _WaitingCaller:
    """A thread that waits for its outcome, or for its turn to drive a queue."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.thread = threading.get_ident()
        self._queue: ThreadQueue | None = None
        # Not an Event: Ctrl-C may leave the lock inside one locked, and `deliver` would hang.
        self._awake = threading.Lock()
        self._awake.acquire()

    def deliver(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._awake.release()

    def hand_over(self, queue: ThreadQueue) -> None:
        """Let this caller drive a queue. It is the owner from now on, even before it wakes up."""
        queue.is_claim, queue.owner = False, self.thread
        self._queue = queue
        self._awake.release()

    def wait(self) -> ThreadQueue | None:
        """Return the queue to drive, or None when there is an outcome."""
        self._awake.acquire()
        queue, self._queue = self._queue, None
        return queue


class ThreadQueue(deque[PendingChange]):
    """The changes of one agent thread that wait for their turn. While it is in `queues`, somebody drives it.

    A claim (`is_claim`) is the queue of a caller who makes a change at once, and who releases it when done. `owner` is
    the Python thread that does so, unless it is a worker.
    """

    __slots__ = ("is_claim", "key", "ops", "owner")
    key: Hashable
    ops: ThreadOps | None
    owner: int | None
    is_claim: bool

    def take_next(self) -> list[PendingChange]:
        """Take what one plan can do: all ops up to the next plan, or that plan."""
        changes = [self.popleft()]
        while changes[0].plan is None and self and self[0].plan is None:
            changes.append(self.popleft())
        return changes


class _RunningPlan:
    """A plan under way for some changes of a queue, or for an async reader, which has no queue.

    Instead of the plan there may be `staged` ops, whose commit is under way.
    """

    __slots__ = ("changes", "plan", "queue", "retries", "staged")

    def __init__(
        self,
        queue: ThreadQueue | None,
        changes: list[PendingChange],
        plan: Plan[Any] | None = None,
        staged: StagedOps | None = None,
    ) -> None:
        self.queue, self.changes, self.plan, self.staged = queue, changes, plan, staged
        self.retries: Retries | None = None

    def finish(self, outcome: Outcome) -> None:
        """Deliver the outcome to everybody who waits. Ops that were merged have one outcome each."""
        merged = isinstance(outcome, Reply) and self.changes[0].plan is None
        outcomes = outcome.value if merged else [outcome] * len(self.changes)  # type: ignore[union-attr]
        for change, own in zip(self.changes, outcomes, strict=True):
            change.deliver(own)


class _RunnerState:
    """Everything that a forked child must have anew."""

    def __init__(self, runner: Runner, writers: int) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Hashable, ThreadQueue] = {}
        self.inbox: deque[tuple[Hashable, ThreadOps, PendingChange | ThreadQueue]] = deque()
        """Changes of event loops and the main thread, in the order of their calls, on their way to the queues. A queue
        in it stands for all changes that wait in that queue."""
        self.emptying = threading.Lock()
        """Held by whoever empties the inbox. Others leave it to them: staging is a computation, one at a time."""
        self.commits: deque[tuple[_RunningPlan, Request[Any]]] = deque()
        self.committing = threading.Semaphore(writers)
        # By a weak reference, so that an idle worker does not keep an unused Keep alive.
        self.workers = Workers(_WORKERS, partial(_after_job_if_alive, ref(runner)))
        self.timer = Timer(self.workers.submit)


def _after_job_if_alive(runner: ref[Runner]) -> None:
    alive = runner()
    if alive is not None:
        alive.after_job()


class Runner:
    """Drives the plans of one Keep on one transport."""

    def __init__(
        self, transport: Transport, *, on_fork: Callable[[], None], on_close: Callable[[], object] = lambda: None
    ) -> None:
        self._transport = transport
        self._on_fork = on_fork
        self._on_close = on_close
        self._state = _RunnerState(self, self._transport.writers)
        self._closed = False
        self.retries = 0
        """How often a request was sent again because the storage was away."""
        self.conflicts = 0
        """How often a change was decided anew because others had changed the same thread."""
        self.shared_key: Hashable = None
        """The agent thread whose last commit has changes of several callers, such as parallel tasks of a graph."""
        forks.watch(self)

    def run(self, plan: Plan[T]) -> T:
        """Drive a plan that only reads, in the calling thread."""
        try:
            self._open_state()
        except Closed:
            plan.close()
            raise
        return drive(plan, self._execute)

    async def arun(self, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that only reads, on a worker; the worker also makes it."""
        future, deliver = new_future()
        state = self._open_state()
        state.workers.submit(partial(self._start_reading, state, make, deliver))
        value: T = await future
        return value

    async def acall(self, work: Callable[[], T]) -> T:
        """Call a function on a worker. It must not wait for the storage to come back."""
        future, deliver = new_future()
        self._open_state().workers.submit(lambda: deliver(try_call(work)))
        value: T = await future
        return value

    def _start_reading(self, state: _RunnerState, make: Callable[[], Plan[Any]], deliver: Deliver) -> None:
        made = try_call(make)
        if isinstance(made, Failure) or self._closed:
            if isinstance(made, Reply):
                made.value.close()
                made = Failure(Closed())
            deliver(made)
            return
        self._continue(state, _RunningPlan(None, [PendingChange(deliver, plan=make)], made.value), Reply())

    def submit(self, job: Callable[[], None]) -> None:
        """Let a worker do a job, which must not raise. Raise Closed if the runner is closed."""
        self._open_state().workers.submit(job)

    def is_idle(self) -> bool:
        """Return whether the runner is open and no change waits to be started or committed."""
        state = self._state
        return not (self._closed or state.commits or state.inbox)

    def is_shared(self, key: Hashable) -> bool:
        """Return whether others are probably about to change an agent thread, too.

        Then a change waits a moment for theirs, and all are committed together. In the main thread it is always False:
        a worker would have to commit, which takes longer than a commit at once.
        """
        return key == self.shared_key and threading.current_thread() is not threading.main_thread()

    def claim(self, queue: ThreadQueue) -> bool:
        """Claim an agent thread for a change in the calling thread, with a new queue for it. Return whether it is so.

        False if others are changing it, or if changes wait to be committed, or if the runner is closed. The changes of
        others wait in the queue meanwhile. No lock is needed: a dict takes the first queue for a key. Whatever happens,
        the caller must `release` the queue.
        """
        state = self._state
        if self._closed or state.commits or state.inbox:
            return False
        queue.owner = threading.get_ident()
        return state.queues.setdefault(queue.key, queue) is queue

    def release(self, queue: ThreadQueue) -> None:
        """Give up a claim, if it was one. Doing this twice does nothing more.

        The first caller that waits in the queue drives it from now on. In the main thread, where Ctrl-C might come
        between two steps of that, a worker takes over instead: the queue as a whole goes to the inbox, in one step that
        may be repeated, and only the worker takes changes out of it. It goes to the front: what came to the inbox
        meanwhile was called later.
        """
        state = self._state
        if state.queues.get(queue.key) is queue and queue.is_claim:
            if queue and queue[0].caller is not None and threading.current_thread() is not threading.main_thread():
                queue[0].caller.hand_over(queue)
                return
            del state.queues[queue.key]
        if queue and queue.is_claim:
            assert queue.ops is not None
            state.inbox.appendleft((queue.key, queue.ops, queue))
            self._wake_worker(state)

    def change(self, key: Hashable, ops: ThreadOps, op: Any) -> Any:
        """Commit an op of an agent thread and return the op's result."""
        caller = _WaitingCaller()
        return self._wait(key, ops, PendingChange(caller.deliver, op), caller)

    async def achange(self, key: Hashable, ops: ThreadOps, make: Callable[[], Any]) -> Any:
        """Async variant; whoever drives the queue also makes the op. Calls of one thread keep their order."""
        future, deliver = new_future()
        self._submit(key, ops, PendingChange(deliver, None, make))
        return await future

    def exclusive(self, key: Hashable, ops: ThreadOps, make: Callable[[], Plan[T]], *, lease: bytes | None = None) -> T:
        """Drive a plan that changes an agent thread, while no other change of that thread is under way here.

        `lease` is that of the caller.
        """
        caller = _WaitingCaller()
        value: T = self._wait(key, ops, PendingChange(caller.deliver, plan=make, lease=lease), caller)
        return value

    async def aexclusive(
        self, key: Hashable, ops: ThreadOps, make: Callable[[], Plan[T]], *, lease: bytes | None = None
    ) -> T:
        """Async variant."""
        future, deliver = new_future()
        self._submit(key, ops, PendingChange(deliver, plan=make, lease=lease))
        value: T = await future
        return value

    def start_exclusive(self, key: Hashable, ops: ThreadOps, make: Callable[[], Plan[Any]], deliver: Deliver) -> None:
        """Do the same on a worker, without waiting for it. `deliver` gets the outcome there."""
        self._submit(key, ops, PendingChange(deliver, plan=make))

    def close(self) -> None:
        """Finish what is under way, then end the workers and close the transport. Closing twice does nothing."""
        self._closed = True
        self._on_close()
        self._wait_for_claims()
        self._state.workers.stop()
        self._state.timer.wait()
        self._transport.close()

    def _wait_for_claims(self) -> None:
        """Wait for changes that other threads are making at once. One that a signal handler interrupted cannot end."""
        deadline, me = time.monotonic() + _LONGEST_CLAIM, threading.get_ident()
        while time.monotonic() < deadline:
            if all(queue.owner in (None, me) for queue in list(self._state.queues.values())):
                return
            time.sleep(0.001)

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
        future, deliver = new_future()
        threading.Thread(target=lambda: deliver(try_call(self.close)), name="threadkeep-close").start()
        await future

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def check_open(self) -> None:
        """Raise Closed if it is closed."""
        if self._closed:
            raise Closed

    def before_fork(self) -> None:
        """Do nothing: the work of the parent's workers stays the parent's."""

    def after_fork(self, *, child: bool) -> None:
        """In the child, start anew: it has no workers and nothing under way."""
        if child:
            self._state = _RunnerState(self, self._transport.writers)
            self.retries = self.conflicts = 0
            self._on_fork()

    def _open_state(self) -> _RunnerState:
        if self._closed:
            raise Closed
        return self._state

    def _execute(self, request: Request[Any]) -> Any:
        """Execute a request in the thread of a sync reader, which sleeps between tries."""
        if request.access is NO_ACCESS:
            return time.sleep(_seconds(request)) if isinstance(request, Pause) else None
        try:
            return self._transport.read(request)
        except TryLater as error:
            return repeat(partial(self._read_again, request), error)

    def _read_again(self, request: Request[Any]) -> Any:
        self.retries += 1
        return self._transport.read(request)

    def count_failure(self, error: BaseException) -> None:
        """Count what is sent again, or decided anew, after a failure."""
        if isinstance(error, TryLater):
            self.retries += 1
        elif isinstance(error, Conflict) and not isinstance(error, LEASE_ERRORS):
            self.conflicts += 1

    def _wait(self, key: Hashable, ops: ThreadOps, change: PendingChange, caller: _WaitingCaller) -> Any:
        state = self._open_state()
        claimed = state.queues.get(key)
        if claimed is not None and claimed.owner == threading.get_ident():
            key = object()  # a signal handler or finalizer interrupted the owner: waiting would never end
        if threading.current_thread() is threading.main_thread():
            self._submit(key, ops, change)
            caller.wait()
        else:
            change.caller = caller
            with state.lock:
                new = self._append(state, key, ops, change)
            if new is not None:
                if key == self.shared_key:
                    new.owner = caller.thread
                    time.sleep(0)  # those who shared the last commit with this caller may be about to call again
                    self._lead(state, new, caller)
                else:
                    self._drive(state, new, caller)
            while (queue := caller.wait()) is not None:
                self._lead(state, queue, caller)
        assert caller.outcome is not None
        return result(caller.outcome)

    def _drive(self, state: _RunnerState, queue: ThreadQueue, caller: _WaitingCaller) -> None:
        """Do a worker's work in the caller's thread."""
        with state.workers.visited():
            self._start_next(state, queue, caller)
            self._commit_all(state, caller)

    def _lead(self, state: _RunnerState, queue: ThreadQueue, caller: _WaitingCaller) -> None:
        """Commit all ops that wait in a queue here and now, and hand over those that came meanwhile.

        This does for several callers what `Session.change` does for one: about 10 calls, 2 per op, and those of
        staging and of the commit. Everything unusual takes the general path, as the first try of a plan does.
        """
        with state.lock:
            changes = queue.take_next()
        staged, is_made = None, False
        if self._transport.commits_at_once and not (self._closed or state.commits or state.inbox):
            try:
                if all(change.plan is change.make is None for change in changes):
                    assert queue.ops is not None
                    staged = queue.ops.stage([change.op for change in changes])
                is_made = staged is not None and self._transport.try_commit(staged.batch)
                if staged is not None and is_made:
                    staged.made()
            except BaseException:  # noqa: BLE001 - the general path raises it again, or gives it to the op concerned
                is_made = False
                if staged is not None:
                    staged.failed()
        self.shared_key = queue.key if len(changes) > 1 else None
        if staged is None or not is_made:
            queue.extendleft(reversed(changes))
            queue.owner = None
            self._drive(state, queue, caller)
            return
        for change, outcome in zip(changes, staged.outcomes, strict=True):
            change.deliver(outcome)
        self._hand_over(state, queue)

    def _submit(self, key: Hashable, ops: ThreadOps, change: PendingChange) -> None:
        """Let a worker put a change into the queue of its thread and drive it as far as it can.

        Changes keep the order of their calls. The caller only appends to deques: if Ctrl-C interrupts it between the
        two, no lock is held and no queue is left without a driver; the next call takes the change along. Whoever
        empties the inbox looks again when done, and so does a worker after each job. So the changes of many tasks need
        one job.
        """
        state = self._open_state()
        state.inbox.append((key, ops, change))
        self._wake_worker(state)

    @staticmethod
    def _wake_worker(state: _RunnerState) -> None:
        """Let a worker look into the inbox, unless one will do so anyway."""
        if not state.emptying.locked() and not state.workers.have_more():
            state.workers.submit(_no_job)

    def after_job(self) -> None:
        """Start what is in the inbox, then commit what is set aside if it is time to. Workers call this after a job."""
        state = self._state
        while state.inbox and state.emptying.acquire(blocking=False):
            try:
                plans = self._empty_inbox(state)
            finally:
                state.emptying.release()
            for running in plans[1:]:
                state.workers.submit(partial(self._resume, state, running, Reply()))
            if plans:
                self._resume(state, plans[0], Reply())
        self._commit_all(state)

    def _empty_inbox(self, state: _RunnerState) -> list[_RunningPlan]:
        """Move all changes from the inbox to their queues, and start the new queues.

        Ops that can be staged are staged here. Return the plans of the others, which may wait for the storage.
        """
        queues: list[ThreadQueue] = []
        with state.lock:
            while state.inbox:
                key, ops, changes = state.inbox.popleft()
                for change in [changes] if isinstance(changes, PendingChange) else _pop_all(changes):
                    queue = self._append(state, key, ops, change)
                    if queue is not None:
                        queues.append(queue)
        plans: list[_RunningPlan] = []
        with gc_paused() if sum(map(len, queues)) >= _MANY_CHANGES else _NOT_PAUSED:
            for queue in queues:
                running = self._next_of(state, queue)
                if running is not None:
                    plans.append(running)
        return plans

    @staticmethod
    def _append(state: _RunnerState, key: Hashable, ops: ThreadOps, change: PendingChange) -> ThreadQueue | None:
        """Append a change to its thread's queue, under the lock. Return the queue if it is new: nobody drives it."""
        while True:
            new = ThreadQueue()
            new.key, new.ops, new.owner, new.is_claim = key, ops, None, False
            queue = state.queues.setdefault(key, new)
            queue.ops = ops
            queue.append(change)
            if queue is new:
                return queue
            if state.queues.get(key) is queue:
                return None
            try:  # it was a claim, which was released before it had the change
                queue.remove(change)
            except ValueError:
                return None  # whoever released it has taken the change

    def _start_next(self, state: _RunnerState, queue: ThreadQueue, caller: _WaitingCaller | None = None) -> None:
        """Run plans of a queue until one waits for its commit, none is left, or the caller has its outcome."""
        while caller is None or caller.outcome is None:
            running = self._next_of(state, queue)
            if running is None or not self._continue(state, running, Reply()):
                return
        self._hand_over(state, queue)

    def _next_of(self, state: _RunnerState, queue: ThreadQueue) -> _RunningPlan | None:
        """Take the next changes of a queue and return their plan. None if they are staged: their commit is set aside.

        Also None if nothing is left in the queue, which is then removed.
        """
        while True:
            with state.lock:
                if not queue:
                    del state.queues[queue.key]
                    return None
                changes = queue.take_next()
            if changes[0].plan is not None:
                made = try_call(changes[0].plan)
                if isinstance(made, Reply):
                    return _RunningPlan(queue, changes, made.value)
                changes[0].deliver(made)
                continue
            changes = [change for change in changes if change.make is None or change.make_op()]
            if not changes:
                continue
            ops = [change.op for change in changes]
            assert queue.ops is not None
            staged = try_call(partial(queue.ops.stage, ops))
            if isinstance(staged, Failure) or staged.value is None:  # a plan gives each op its outcome
                return _RunningPlan(queue, changes, queue.ops.plan(ops))
            # From here on the plan belongs to whoever commits it, which may happen before this returns.
            state.commits.append((_RunningPlan(queue, changes, None, staged.value), Commit(staged.value.batch)))
            return None

    def _hand_over(self, state: _RunnerState, queue: ThreadQueue) -> None:
        """Let somebody else drive a queue: the first caller that waits in it, or a worker."""
        with state.lock:
            if not queue:
                del state.queues[queue.key]
                return
            next_caller = queue[0].caller
        queue.owner = None
        if next_caller is not None:
            next_caller.hand_over(queue)
        else:
            state.workers.submit(partial(self._start_next, state, queue))

    def _continue(self, state: _RunnerState, running: _RunningPlan, outcome: Outcome | None) -> bool:
        """Run a plan until it requests a commit or waits for something (return False), or ends (return True).

        `outcome` is that of its last request; None if that will be sent again.
        """
        if outcome is not None and running.staged is not None:
            staged, running.staged = running.staged, None
            if isinstance(outcome, Reply):
                staged.made()
                running.finish(Reply(staged.outcomes))
                return True
            staged.failed()
            if not isinstance(outcome.error, (Conflict, Corrupt)):
                running.finish(outcome)
                return True
            assert running.queue is not None
            assert running.queue.ops is not None
            running.plan, outcome = running.queue.ops.plan([change.op for change in running.changes]), Reply()
        while outcome is not None:
            assert running.plan is not None
            step = resume(running.plan, outcome)
            if not isinstance(step, Request):
                running.finish(step)
                return True
            if step.access.writes:
                state.commits.append((running, step))
                return False
            if step.access is NO_ACCESS:
                if isinstance(step, CallersLease):
                    outcome = Reply(running.changes[0].lease)
                    continue
                assert isinstance(step, Pause)
                state.timer.after(_seconds(step), partial(self._resume, state, running, Reply()))
                return False
            outcome = try_execute(self._transport.read, step)
            if isinstance(outcome, Failure):
                outcome = self._after_failure(state, running, step, outcome)
        return False

    def _resume(self, state: _RunnerState, running: _RunningPlan, outcome: Outcome | None) -> None:
        """Continue a plan that waited, and then its queue."""
        if self._continue(state, running, outcome) and running.queue is not None:
            self._start_next(state, running.queue)

    def _after_failure(
        self, state: _RunnerState, running: _RunningPlan, request: Request[Any], failure: Failure
    ) -> Failure | None:
        """Return the failure of a request; None if the request will be sent again."""
        error = failure.error
        self.count_failure(error)
        if not isinstance(error, TryLater):
            return failure
        if running.retries is None:
            running.retries = Retries(error)
        pause = running.retries.next_pause(error)
        if pause is None:
            return Failure(error.error)
        state.timer.after(pause, partial(self._send_again, state, running, request))
        return None

    def _send_again(self, state: _RunnerState, running: _RunningPlan, request: Request[Any]) -> None:
        execute = self._write_alone if request.access.writes else self._transport.read
        outcome: Outcome | None = try_execute(execute, request)
        if isinstance(outcome, Failure):
            outcome = self._after_failure(state, running, request, outcome)
        if outcome is not None:
            assert running.retries is not None
            running.retries.end()
            self._resume(state, running, outcome)

    def _write_alone(self, request: Request[Any]) -> Any:
        return result(self._transport.write([request])[0])

    def _commit_all(self, state: _RunnerState, caller: _WaitingCaller | None = None) -> None:
        """Commit what is set aside, unless more is coming or enough others commit, who will look again when done."""
        while self._is_due(state):
            if caller is not None and caller.outcome is not None:
                state.workers.submit(_no_job)  # a worker commits after each job
                return
            if not state.committing.acquire(blocking=False):
                return
            try:
                committed = self._commit_waiting(state)
            finally:
                state.committing.release()
            for running, request, outcome in committed:
                final: Outcome | None = outcome
                if isinstance(outcome, Failure):
                    final = self._after_failure(state, running, request, outcome)
                if self._continue(state, running, final) and running.queue is not None:
                    self._start_next(state, running.queue, caller)

    def _is_due(self, state: _RunnerState) -> bool:
        waiting = len(state.commits)
        return waiting >= _ENOUGH_COMMITS or (waiting > 0 and not state.workers.have_more())

    def _commit_waiting(self, state: _RunnerState) -> list[tuple[_RunningPlan, Request[Any], Outcome]]:
        waiting = list(_pop_all(state.commits))
        if not waiting:
            return []
        outcomes = try_call(partial(self._transport.write, [request for _, request in waiting]))
        if isinstance(outcomes, Failure):
            return [(running, request, outcomes) for running, request in waiting]
        return [(*each, outcome) for each, outcome in zip(waiting, outcomes.value, strict=True)]


def _seconds(pause: Pause) -> float:
    return min(0.002 * 2**pause.attempt, 0.25) * (0.5 + random())  # type: ignore[no-any-return]  # noqa: S311 - no secret


def _no_job() -> None:
    """A job that does nothing, for what a worker does after each job."""


def _pop_all(waiting: deque[T]) -> Iterator[T]:
    """Pop everything, while other threads may be popping too."""
    while waiting:
        try:
            yield waiting.popleft()
        except IndexError:
            return


class _Mailbox:
    """Outcomes on their way to one event loop. The outcomes of one group of commits wake the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_in_loop = loop.call_soon_threadsafe
        self._waiting: deque[tuple[asyncio.Future[Any], Outcome]] = deque()
        self._is_scheduled = False

    def post(self, future: asyncio.Future[Any], outcome: Outcome) -> None:
        """Have a future settled, from any thread."""
        self._waiting.append((future, outcome))
        if self._is_scheduled:
            return  # `_settle_all` has not run yet, and will take this one too
        self._is_scheduled = True
        try:
            self._call_in_loop(self._settle_all)
        except RuntimeError:
            self._waiting.clear()  # the loop is closed: nobody waits any more

    def _settle_all(self) -> None:
        self._is_scheduled = False  # before looking: whatever is posted from now on schedules another call
        for future, outcome in _pop_all(self._waiting):
            _settle(future, outcome)


_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()


def new_future() -> tuple[asyncio.Future[Any], Deliver]:
    """Return a future of the running loop, and the function with which another thread settles it."""
    loop = asyncio.get_running_loop()
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        mailbox = _mailboxes.setdefault(loop, _Mailbox(loop))
    future: asyncio.Future[Any] = loop.create_future()
    return future, partial(mailbox.post, future)


def _settle(future: asyncio.Future[Any], outcome: Outcome) -> None:
    if future.done():
        return
    if isinstance(outcome, Failure):
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.value)
