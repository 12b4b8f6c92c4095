"""The session of a Keep: the runner, the caches and the tenant, shared by its adapters and verbs."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from threadkeep import clock
from threadkeep.drivers.background import Periodic, PeriodicRun, in_background
from threadkeep.drivers.loops import Done, call_or_task, finish_in_thread, run_in_thread
from threadkeep.drivers.retries import TryLater
from threadkeep.drivers.runner import (
    Deliver,
    PendingChange,
    Runner,
    StagedOps,
    ThreadOps,
    ThreadQueue,
    Transport,
    new_future,
)
from threadkeep.drivers.waiting_writes import WaitingWrites
from threadkeep.engine import cube, memories, threads
from threadkeep.engine.identity import CUBE, Kind, ThreadKey
from threadkeep.engine.lease import FORCED, digest_of, hold
from threadkeep.engine.requests import Batch
from threadkeep.engine.threads import checkpoints
from threadkeep.engine.threads.checkpoints import stage_cached
from threadkeep.engine.threads.heads import Heads
from threadkeep.errors import Closed, Conflict, Leased, ReadOnly
from threadkeep.plan import Failure, Outcome, Plan, Reply, Request, drive, result, resume, send, try_call

if TYPE_CHECKING:
    from threadkeep.drivers.leases import ProcessLeases
    from threadkeep.encryption.keys import Keys
    from threadkeep.engine.commit import Staged
    from threadkeep.engine.memories.plans import VectorCache
    from threadkeep.engine.memories.requests import WriteMemories
    from threadkeep.observability.observer import Observer
    from threadkeep.tenants.transport import TenantTransport
    from threadkeep.work import OnProgress, Work, WorkStep

_DONE = Reply()
_NOT_MEASURED = nullcontext()
S = TypeVar("S")
T = TypeVar("T")


class Caches:
    """What a Keep caches between calls: recently used threads, and vectors if its store searches by them.

    The Keeps of its tenants share the cache of threads, and have vectors of their own.
    """

    def __init__(self, max_bytes: int, heads: Heads | None = None, *, compress: bool = True) -> None:
        self.heads = Heads(max_bytes, compress=compress) if heads is None else heads
        self._tenants: weakref.WeakValueDictionary[str, Caches] | None = None
        self.vectors: VectorCache | None = None
        self.max_bytes = max_bytes
        self.losses = 0
        """How often a connection was lost, so that everything was dropped."""

    def on_loss(self) -> None:
        """Drop everything: a connection was lost, and the next one may lead to another server."""
        self.losses += 1
        self.clear()

    def clear(self) -> None:
        """Drop everything: the storage may not have it any more."""
        self.heads.clear()
        if self.vectors is not None:
            self.vectors.clear()
        if self._tenants is not None:
            for each in list(self._tenants.values()):
                each.clear()

    def of_tenant(self, name: str) -> Caches:
        """Return the caches of a tenant. They are kept for as long as a Keep uses them."""
        if self._tenants is None:
            self._tenants = weakref.WeakValueDictionary()
        caches = self._tenants.get(name)
        return self._tenants.setdefault(name, Caches(self.max_bytes, self.heads)) if caches is None else caches

    def keep_vectors(self, dims: int, measure: str) -> None:
        """Also cache vectors of `dims` dimensions, in half as many bytes as threads may take."""
        if self.vectors is None:
            self.vectors = memories.plans.VectorCache(dims, measure, self.max_bytes // 2)


class Session:
    """How the adapters and the verbs of a Keep run plans. All methods may be called from any thread.

    A method whose name starts with `a` does the same as the one without, for async callers.
    """

    _leases: ProcessLeases

    def __init__(
        self,
        transport: TenantTransport,
        *,
        tenant: str,
        caches: Caches,
        parent: Session | None = None,
        timeout: float = 30.0,
        fenced: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self.transport = transport
        self.observer = observer
        """What measures the calls of verbs; None if they are not measured."""
        self.tenant = tenant
        self.caches = caches
        self.timeout = timeout
        self._is_fenced = fenced
        """Whether changes of callers without a lease are refused."""
        caches.heads.has_leases |= fenced
        self._memory_sweeper = Periodic()
        self._upkeep = Periodic()
        self._is_changing = False
        """Whether an async caller is making a change of a thread at once."""
        self._parent = parent
        """The session of the Keep that `Keep.tenant` was called on: its runner drives the plans of this one, too."""
        self._tenants: weakref.WeakSet[Session] | None = None
        """The sessions of tenants that are in use. These keep this one alive."""
        if parent is None:
            this = weakref.ref(self)
            stop = partial(_stop_all, this, self._memory_sweeper, self._upkeep)
            self.runner = Runner(transport, on_fork=partial(_after_fork, this), on_close=stop)
            if observer is not None:
                from threadkeep.observability.runner import MeasuredRunner  # noqa: PLC0415 - few Keeps are measured

                self.runner = cast("Runner", MeasuredRunner(self.runner, observer))
        else:
            self.runner = parent.runner
        self._waiting_writes = self._no_waiting_writes()

    def start_anew(self) -> None:
        """In a forked child: what the parent cached and has under way is the parent's."""
        self.caches.clear()
        self.caches.losses = 0
        if self.observer is not None and self._parent is None:
            self.observer.start_anew()
        if "_leases" in self.__dict__:
            self._leases = self.leases.after_fork()
        self._is_changing = False
        self._waiting_writes = self._no_waiting_writes()
        for session in self.sessions_of_tenants():
            session.start_anew()

    def open_tenant(self, name: str, keys: Any, quota_bytes: float | None) -> Session:
        """Return the session of a tenant, which shares everything with this one except what is a tenant's own."""
        self.runner.check_open()
        self.transport.open_tenant(name, keys, quota_bytes)
        session = Session(
            self.transport,
            tenant=name,
            caches=self.caches.of_tenant(name),
            parent=self,
            timeout=self.timeout,
            fenced=self._is_fenced,
            observer=self.observer,
        )
        if self._tenants is None:
            self._tenants = weakref.WeakSet()
        self._tenants.add(session)
        return session

    def sessions_of_tenants(self) -> list[Session]:
        """Return the sessions that `open_tenant` returned and that are in use."""
        return list(self._tenants or ())

    def close(self) -> None:
        """Close the storage; that of a tenant ends only this session. Closing twice does nothing."""
        if self._parent is None:
            self.runner.close()
        elif self.runner is self._parent.runner:
            self.runner = cast("Runner", _CLOSED)
            self.stop_periodic_work()
            self.transport.close_tenant(self.tenant)

    async def aclose(self) -> None:
        """Async variant."""
        await (self.runner.aclose() if self._parent is None else finish_in_thread(self.close))

    def stop_periodic_work(self) -> None:
        """Stop sweeping and upkeep."""
        self._memory_sweeper.stop()
        self._upkeep.stop()

    @property
    def root(self) -> Session:
        """The session of the Keep that opened the storage: this one, unless it is that of a tenant."""
        return self if self._parent is None else self._parent

    def measure(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager: what is done in it is measured as a call of a verb, if this Keep is measured."""
        return self.observer.measure(name) if self.observer is not None else _NOT_MEASURED

    @property
    def is_closed(self) -> bool:
        """Whether its Keep, or the one that opened the storage, was closed."""
        return self.runner.is_closed or self.root.runner.is_closed

    @property
    def keys(self) -> Keys | None:
        """The keys of its tenant; None if it has none."""
        return self.transport.tenant(self.tenant).keys

    @property
    def cache_bytes(self) -> int:
        """How many bytes of threads may be cached; 0 if nothing may be."""
        return self.caches.max_bytes

    @property
    def heads(self) -> Heads:
        """The cache of threads."""
        return self.caches.heads

    def keep_rows(self) -> None:
        """Keep the rows of the last few threads that verbs showed, because they will be shown again."""
        from threadkeep.engine.threads.kept_rows import KeptRows  # noqa: PLC0415 - few Keeps need it

        self.heads.kept_rows = self.heads.kept_rows or KeptRows()

    @property
    def vectors(self) -> VectorCache | None:
        """The cache of vectors, if the store searches by them."""
        return self.caches.vectors

    def key(self, kind: Kind, id: str) -> ThreadKey:
        """Return the key of a thread of this tenant."""
        return ThreadKey(self.tenant, kind, id)

    def change(self, key: ThreadKey, op: Any) -> Any:
        """Commit an op, together with other ops that wait for the same thread. Return the op's result.

        If the thread is cached and nobody else is changing it, the op is committed here and now: this is the first try
        of `engine.commit.commit_ops`, without a plan and in the calling thread. The transport makes the change in one
        step that nothing can interrupt. Everything unusual takes the general path. So does a thread that several
        callers are changing: one of them commits for all.
        """
        if self.caches.heads.has_leases:
            self._set_lease(key, op)
        queue = ThreadQueue()
        queue.key, queue.ops, queue.owner, queue.is_claim = key, None, None, True
        runner = self.runner
        is_shared = runner.shared_key is not None and runner.is_shared(key)
        if self.transport.commits_at_once and not is_shared and self._try_change(key, queue, op):
            return None
        return runner.change(key, self._thread_ops(key), op)

    def _try_change(self, key: ThreadKey, queue: ThreadQueue, op: Any, *, deliver: Deliver | None = None) -> bool:
        """Commit an op here and now, and return whether that was possible.

        With `deliver`, the thread has been claimed before; if it is not possible, the op waits first in the queue.
        """
        heads, runner, is_made, may_be_new = self.caches.heads, self.runner, False, True
        try:
            try:
                if deliver is not None or runner.claim(queue):
                    head, staging = heads.get(key), cast("Staged | None", None)
                    if key.kind == CUBE:
                        staging = cube.plans.stage_cached(head or cube.plans.unseen_head(heads, key), op)
                    elif head is None or (staging := stage_cached(head, op)) is None:
                        # read the thread first, in this thread
                        staging = drive(checkpoints.load_and_stage(heads, key, op, head), self.transport.read)
                    row = staging.head.row if staging is not None else None
                    if (heads.has_leases or (row is not None and row.lease is not None)) and not hold(row, (op,)):
                        heads.drop(key)  # whose lease it is must be read anew
                        staging, may_be_new = None, False
                    batch = staging.batch() if staging is not None else None
                    is_made = batch is not None and self.transport.try_commit(batch)
                    if is_made:
                        heads.store(staging.next_head(batch))  # type: ignore[arg-type, union-attr]
            except (Conflict, TryLater) as error:
                runner.count_failure(error)
                heads.drop(key)
                may_be_new = False
            if deliver is not None and not is_made:
                queue.ops = self._thread_ops(key, may_be_new=may_be_new)
                queue.appendleft(PendingChange(deliver, op))
            runner.release(queue)
        except BaseException:  # Ctrl-C may come at any line
            heads.drop(key)  # the outcome may be unknown: read before the next write
            runner.release(queue)
            raise
        return is_made

    async def achange(self, key: ThreadKey, make: Callable[[], Any]) -> Any:
        """Async variant. A worker makes the op. If nothing else is under way, it also commits it here and now.

        The changes of many callers are committed together: while one is committed by itself, the others wait for it.
        """
        if self.caches.heads.has_leases:
            make = partial(self._make_with_lease, key, make, self.leases.digest(key))
        if self.observer is not None:
            make = self.observer.labelled(make)
        runner, queue = self.runner, ThreadQueue()
        queue.key, queue.ops, queue.owner, queue.is_claim = key, None, None, True
        if self._is_changing or not self.transport.commits_at_once or not runner.claim(queue):
            return await runner.achange(key, self._thread_ops(key), make)
        try:
            queue.owner = None  # a worker will release it, so whoever calls from here may wait
            self._is_changing = True
            future, deliver = new_future()
            runner.submit(partial(self._make_and_change, key, queue, make, deliver))
        except BaseException:
            self._is_changing = False
            runner.release(queue)
            raise
        return await future

    def _make_and_change(self, key: ThreadKey, queue: ThreadQueue, make: Callable[[], Any], deliver: Deliver) -> None:
        """Make an op and commit it, on a worker, for an async caller who claimed the thread."""
        outcome: Outcome | None = _DONE
        try:
            if not self._try_change(key, queue, make(), deliver=deliver):
                outcome = None  # the queue has it
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self.runner.release(queue)
            outcome = Failure(error)
        self._is_changing = False
        if outcome is not None:
            deliver(outcome)

    def drop(self, key: ThreadKey) -> None:
        """Delete a thread, at once if nobody else is changing it. Does nothing if it does not exist."""
        heads, runner, queue, is_made = self.caches.heads, self.runner, ThreadQueue(), False
        queue.key, queue.ops, queue.owner, queue.is_claim = key, None, None, True
        try:
            if self.transport.commits_at_once and not heads.has_leases and runner.claim(queue):
                heads.drop(key)
                is_made = self.transport.try_drop(key)
                heads.drop(key)  # a reader may have cached it meanwhile
            runner.release(queue)
        except BaseException:
            heads.drop(key)
            runner.release(queue)
            raise
        if not is_made:
            self.exclusive(key, lambda: threads.prune.delete(heads, key))

    def exclusive(self, key: ThreadKey, make: Callable[[], Plan[T]], *, force: bool = False) -> T:
        """Run a plan that changes a thread, while this Keep makes no other change to that thread.

        With `force`, it does so whoever holds the thread's lease.
        """
        lease = self._lease_of_plan(key, force=force) if force or self.caches.heads.has_leases else None
        return self.runner.exclusive(key, self._thread_ops(key), make, lease=lease)

    async def aexclusive(self, key: ThreadKey, make: Callable[[], Plan[T]], *, force: bool = False) -> T:
        """Async variant."""
        lease = self._lease_of_plan(key, force=force) if force or self.caches.heads.has_leases else None
        return await self.runner.aexclusive(key, self._thread_ops(key), make, lease=lease)

    def start_exclusive(self, key: ThreadKey, make: Callable[[], Plan[Any]], deliver: Deliver) -> None:
        """Do the same on a worker, without waiting for it, and whoever holds the thread's lease."""
        self.runner.start_exclusive(key, self._thread_ops(key), make, deliver)

    # --- leases: `Heads.has_leases` says whether they matter here

    @property
    def leases(self) -> ProcessLeases:
        """The leases that this process holds."""
        if self._parent is not None:
            return self._parent.leases
        if "_leases" not in self.__dict__:
            from threadkeep.drivers.leases import ProcessLeases  # noqa: PLC0415 - on use

            self.__dict__.setdefault("_leases", ProcessLeases())  # several threads may come here at once
        return self._leases

    def use_token(self, token: Any) -> bytes:
        """Return the lease that a token stands for."""
        if not isinstance(token, str):
            raise TypeError(f"a lease token must be a str, not {type(token).__name__}")
        self.heads.has_leases = True
        return digest_of(token)

    def _lease_of_plan(self, key: ThreadKey, *, force: bool) -> bytes | None:
        if force:
            self.heads.has_leases = True  # so that the plan asks
            return FORCED
        return self.leases.digest(key)

    def _set_lease(self, key: ThreadKey, op: Any) -> None:
        """Give an op the lease of its caller, unless a token has given it one."""
        if op.lease is None:
            op.lease = self.leases.digest(key)
        self._check_fence(key, op)

    def _make_with_lease(self, key: ThreadKey, make: Callable[[], Any], lease: bytes | None) -> Any:
        op = make()
        op.lease = op.lease or lease
        self._check_fence(key, op)
        return op

    def _check_fence(self, key: ThreadKey, op: Any) -> None:
        if self._is_fenced and op.lease is None:
            raise Leased(
                f"this Keep was opened with fenced=True: write thread {key.id!r} inside `with keep.lease({key.id!r})`"
            )

    def change_outside_threads(self, make: Callable[[], Plan[T]]) -> T:
        """Run a plan that changes something other than a thread, such as memories. It waits for no other change."""
        return self.runner.exclusive(object(), _NO_OPS, make)

    async def achange_outside_threads(self, make: Callable[[], Plan[T]]) -> T:
        """Async variant."""
        return await self.runner.aexclusive(object(), _NO_OPS, make)

    def read(self, request: Request[T]) -> T:
        """Execute one request that changes nothing, in the calling thread: a plan of one request, in fewer steps."""
        self.runner.check_open()
        try:
            reply: T = self.transport.read(request)
        except TryLater as error:
            self.runner.count_failure(error)
            return self.runner.run(send(request))
        return reply

    async def aread(self, request: Request[S], decode: Callable[[S], T]) -> T:
        """Execute one request that changes nothing, and decode its reply, on a worker."""
        try:
            return await self.runner.acall(lambda: decode(self.transport.read(request)))
        except TryLater as error:
            self.runner.count_failure(error)
            return decode(await self.runner.arun(lambda: send(request)))

    def write_memories(self, request: WriteMemories) -> None:
        """Store and delete memories: in the calling thread if the transport can do that in one step."""
        if not (self.runner.is_idle() and self.transport.write_at_once(request)):
            self.change_outside_threads(lambda: send(request))

    async def awrite_memories(self, make: Callable[[], WriteMemories]) -> None:
        """Async variant; a worker makes the request, since splitting text into words would delay the event loop.

        One change at a time is made at once; those that come meanwhile are merged and made together.
        """
        if not (self.transport.writes_at_once and self.runner.is_idle()):
            await self.achange_outside_threads(lambda: send(make()))
            return
        if self.observer is not None:
            make = self.observer.labelled(make)
        left = await self._waiting_writes.change(make)
        if left is not None:
            await self.achange_outside_threads(lambda: send(left))

    def _no_waiting_writes(self) -> WaitingWrites[WriteMemories]:
        merge: Any = lambda requests: memories.merging.merge_puts(requests)  # noqa: E731, PLW0108 - imported on use
        if self.observer is not None:
            merge = self.observer.merging(merge)
        return WaitingWrites(self.runner.submit, self.transport, merge)

    def work(self, work: Work[T], on_progress: OnProgress | None = None) -> T:
        """Run each step of some long work. What a step raises is raised inside the work, which may handle it."""
        step = resume(work, Reply())
        while not isinstance(step, (Reply, Failure)):
            step = resume(work, try_call(partial(self._run_step, step, on_progress)))
        return cast("T", result(step))

    def _run_step(self, step: WorkStep, on_progress: OnProgress | None) -> Any:
        from threadkeep.work import Blocking, Progress, Read  # noqa: PLC0415 - only jobs need it

        if isinstance(step, Progress):
            return on_progress(*step) if on_progress else None
        if isinstance(step, Read):
            return self.runner.run(step.make())
        if isinstance(step, Blocking):
            return step.make()
        if step.key:
            return self.exclusive(step.key, step.make, force=step.force)
        return self.change_outside_threads(step.make)

    async def awork(self, work: Work[T], on_progress: OnProgress | None = None) -> T:
        """Async variant."""
        step = resume(work, Reply())
        while not isinstance(step, (Reply, Failure)):
            try:
                outcome: Outcome = Reply(await self._arun_step(step, on_progress))
            except BaseException as error:  # noqa: BLE001 - the work decides
                outcome = Failure(error)
            step = resume(work, outcome)
        return cast("T", result(step))

    async def _arun_step(self, step: WorkStep, on_progress: OnProgress | None) -> Any:
        from threadkeep.work import Blocking, Progress, Read  # noqa: PLC0415 - only jobs need it

        if isinstance(step, Progress):
            return on_progress(*step) if on_progress else None
        if isinstance(step, Read):
            return await self.runner.arun(step.make)
        if isinstance(step, Blocking):
            return await finish_in_thread(step.make)
        if step.key:
            return await self.aexclusive(step.key, step.make, force=step.force)
        return await self.achange_outside_threads(step.make)

    def create_vector_index_if_needed(self) -> None:
        """Create a vector index in the background, if a search has met enough vectors to need one."""
        vectors = self.vectors
        if vectors is not None and vectors.wants_index:
            vectors.wants_index = False
            request = memories.requests.CreateVectorIndex(vectors.dims, vectors.metric)
            in_background(lambda: result(self.transport.write([request])[0]))

    def sweep(self) -> Any:
        """Remove expired memories and return the number removed. Inside an event loop, return an awaitable of it."""
        return call_or_task(self.sweep_now, self._asweep)

    def sweep_now(self) -> int:
        """Remove expired memories and return the number removed."""
        with self.measure("store.sweep_ttl"):
            return self.change_outside_threads(self._sweep)

    async def _asweep(self) -> int:
        with self.measure("store.sweep_ttl"):
            return await self.achange_outside_threads(self._sweep)

    def _sweep(self) -> Plan[int]:
        return memories.plans.sweep(self.tenant, clock.now_us())

    def start_sweeping(self, minutes: float | None) -> PeriodicRun:
        """Remove expired memories every `minutes` (default 5) until stopped. Raise ReadOnly if nothing may change."""
        return self._start(self._memory_sweeper, minutes, Session.sweep_now)

    def stop_sweeping(self, timeout: float | None = None) -> Any:
        """Stop; return whether it stopped within `timeout`. Inside an event loop, return an awaitable of that."""
        return _stop(self._memory_sweeper, timeout)

    def start_upkeep(self, minutes: float | None, upkeep: Callable[[Session], object]) -> PeriodicRun:
        """Call `upkeep` with this session every `minutes` (default 5) until stopped. Raise ReadOnly as above."""
        return self._start(self._upkeep, minutes, upkeep)

    def stop_upkeep(self, timeout: float | None = None) -> Any:
        """Stop; return whether it stopped within `timeout`. Inside an event loop, return an awaitable of that."""
        return _stop(self._upkeep, timeout)

    def _start(self, periodic: Periodic, minutes: float | None, work: Callable[[Session], object]) -> PeriodicRun:
        self.runner.check_open()
        if self.transport.read_only:
            raise ReadOnly
        return periodic.start(partial(_while_alive, weakref.ref(self), work), minutes)

    def _thread_ops(self, key: ThreadKey, *, may_be_new: bool = True) -> ThreadOps:
        ops = _CubeOps(self.heads, key, may_be_new=may_be_new) if key.kind == CUBE else _GraphOps(self.heads, key)
        if self.observer is None:
            return ops
        from threadkeep.observability.runner import MeasuredOps  # noqa: PLC0415 - few Keeps are measured

        return MeasuredOps(ops, self.observer)

    def setup(self) -> Awaitable[None]:
        """Set the storage up now. Inside an event loop a worker does it: await the result."""
        started: Any = call_or_task(
            lambda: self.runner.run(_setup(self.transport)), lambda: self.runner.arun(lambda: _setup(self.transport))
        )
        return cast("Awaitable[None]", started or Done())


def _after_fork(session: weakref.ref[Session]) -> None:
    alive = session()
    if alive is not None:
        alive.start_anew()


def _while_alive(session: weakref.ref[Session], work: Callable[[Session], object]) -> None:
    """Do periodic work. An unused Keep may be garbage-collected meanwhile: then Closed ends the repetition."""
    alive = session()
    if alive is None:
        raise Closed
    work(alive)


def _stop(periodic: Periodic, timeout: float | None) -> Any:
    stop = partial(periodic.stop, timeout)
    return call_or_task(stop, lambda: run_in_thread(stop))


class _ClosedRunner:
    """Takes the place of the runner in the session of a tenant that was closed."""

    is_closed = True

    def run(self, plan: Plan[Any]) -> NoReturn:
        plan.close()  # a coroutine that is never awaited warns
        raise Closed

    def __getattr__(self, name: str) -> Any:
        raise Closed


_CLOSED = _ClosedRunner()


def _stop_all(session: weakref.ref[Session], *periodics: Periodic) -> None:
    alive = session()
    for each in alive.sessions_of_tenants() if alive is not None else ():
        each.stop_periodic_work()
    for periodic in periodics:
        periodic.stop()


class _GraphOps:
    """How the ops of a LangGraph thread are committed."""

    __slots__ = ("_heads", "_key")

    def __init__(self, heads: Heads, key: ThreadKey) -> None:
        self._heads, self._key = heads, key

    def stage(self, ops: Sequence[Any]) -> StagedOps | None:
        head = self._heads.get(self._key)
        staging = checkpoints.stage_cached(head, *ops) if head is not None else None
        return self._staged(staging, ops) if staging is not None else None

    def _staged(self, staging: Staged, ops: Sequence[Any]) -> StagedOps | None:
        row = staging.head.row
        if (self._heads.has_leases or (row is not None and row.lease is not None)) and not hold(row, ops):
            return None
        batch = staging.batch()
        if batch is None:
            return None
        outcomes: list[Outcome] = [Reply()] * len(ops)
        return StagedOps(batch, outcomes, partial(self._made, staging, batch), partial(self._heads.drop, self._key))

    def _made(self, staging: Staged, batch: Batch) -> None:
        self._heads.store(staging.next_head(batch))

    def plan(self, ops: Sequence[Any]) -> Plan[list[Outcome]]:
        return checkpoints.write(self._heads, self._key, ops)


class _CubeOps(_GraphOps):
    """How the ops of a cube thread are committed. If it is not cached, it is first taken for a new one.

    Without `may_be_new` it is not: a commit that would have created it has failed.
    """

    __slots__ = ("_may_be_new",)

    def __init__(self, heads: Heads, key: ThreadKey, *, may_be_new: bool) -> None:
        super().__init__(heads, key)
        self._may_be_new = may_be_new

    def stage(self, ops: Sequence[Any]) -> StagedOps | None:
        head = self._heads.get(self._key)
        if head is None and self._may_be_new:
            head = cube.plans.unseen_head(self._heads, self._key)
        staging = cube.plans.stage_cached(head, *ops) if head is not None else None
        return self._staged(staging, ops) if staging is not None else None

    def plan(self, ops: Sequence[Any]) -> Plan[list[Outcome]]:
        return cube.plans.write(self._heads, self._key, ops)


class _NoOps:
    """Without a thread there are no ops, only plans."""

    def stage(self, ops: Sequence[Any]) -> StagedOps | None:
        raise AssertionError(f"ops without a thread: {ops}")

    def plan(self, ops: Sequence[Any]) -> Plan[list[Outcome]]:
        raise AssertionError(f"ops without a thread: {ops}")


_NO_OPS = _NoOps()


async def _setup(transport: Transport) -> None:
    transport.setup()
