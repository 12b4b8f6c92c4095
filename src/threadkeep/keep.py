"""`threadkeep.open(url)` and the `Keep` that it returns: checkpointers, the store, and every verb, sync and async.

A verb's docstring and code are in the module of `jobs/` that is named here. Verbs that need more than the session are
written below; `import` and `export` are in `transfer/`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

from threadkeep import jobs
from threadkeep.clock import nonce, now_us
from threadkeep.engine.health import repair as engine_repair
from threadkeep.engine.health.rebuild import Replay
from threadkeep.engine.health.repair import RepairResult
from threadkeep.engine.health.verify import stored_thread_key
from threadkeep.engine.identity import CUBE, as_count, as_id, as_kind, as_optional_id
from threadkeep.engine.log.type_gate import AllowedType, KeepSerializer
from threadkeep.engine.threads.branches import BranchStamp
from threadkeep.engine.threads.retention import SweepResult
from threadkeep.jobs.policies import Retention, policies
from threadkeep.session import Caches, Session
from threadkeep.transfer.import_from import import_from
from threadkeep.transfer.pipeline import Transfer
from threadkeep.transfer.portable.export import Export, ExportResult
from threadkeep.transfer.portable.files import PortableFile, open_for_reading, open_for_writing
from threadkeep.transfer.portable.import_portable import PortableImport
from threadkeep.transfer.portable.redact import Redaction
from threadkeep.transfer.result import TransferResult
from threadkeep.transfer.selection import select
from threadkeep.urls import ServerOptions, Settings, transport_for
from threadkeep.verb import blocking_verb, keep_verb, verb
from threadkeep.work import OnProgress, Work, change, read, with_progress

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, TTLConfig
    from psycopg_pool import ConnectionPool

    from threadkeep.adapters.cubeloop import KeepCube
    from threadkeep.adapters.langgraph_saver import KeepSaver
    from threadkeep.adapters.langgraph_store import KeepStore

__all__ = ["Keep", "OpenOptions", "open"]
_SERDE_METHODS = (("dumps_typed", "loads_typed"), ("dumps", "loads"))


def open(
    url: str | ConnectionPool[Any],
    *,
    serde: Any = None,
    index: IndexConfig | None = None,
    ttl: TTLConfig | None = None,
    claim_timeout: float | None = None,
    retention: Retention = None,
    durability: str = "strict",
    allowed_types: Iterable[AllowedType] = (),
    tenant: str = "",
    timeout: float = 30.0,
    cache_bytes: int = 128 * 1024 * 1024,
    read_only: bool = False,
    migrate: bool = True,
    schema: str | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    prepare: bool | None = None,
    group: str | None = None,
    application_name: str | None = None,
) -> Keep:
    """Open a Keep on the storage that `url` names. Nothing is connected or created before the first use.

    URLs: `sqlite:///relative.db` and `sqlite:////absolute/path.db` are files, `postgresql://user@host/database` is a
    server, `valkey://host:port,host:port/` (or `redis://`) is a server or a cluster. `memory://` is private to this
    Keep and ends with it.

    Options for every storage:

    - `durability`: "strict" makes every change durable before the call returns. "relaxed" may lose the last moments if
      the machine, not just the process, dies.
    - `timeout`: how many seconds to wait for a database that is locked, unreachable or silent.
    - `read_only`: refuse every change with ReadOnly, and create or migrate nothing.
    - `migrate`: False creates and migrates no tables. A storage of an older version is then used as it is if that is
      possible; otherwise the first call raises SchemaTooOld.
    - `tenant`: separates threads and memories; a Keep sees those of its tenant only.
    - `cache_bytes`: how much of recently used threads to keep in memory.
    - `serde`: replaces LangGraph's serializer. `allowed_types`: classes, or their exact names, that stored values may
      be rebuilt as, in addition to the safe ones.
    - `index`, `ttl`: the store's, as LangGraph's IndexConfig and TTLConfig: what a query compares, how long memories
      live.
    - `claim_timeout`: for `Keep.cube`. Seconds without a sign of life after which a claimed run may be claimed again.
    - `retention`: what `Keep.sweep` keeps of threads: a Policy, a list of them, or the path of a threadkeep.toml, which
      is read at once.

    Options for PostgreSQL, where `url` is libpq's, or a `psycopg_pool.ConnectionPool` that remains yours to close. All
    but the last may also be given in the URL's query:

    - `schema`: where the tables are.
    - `min_size`, `max_size`: connections in the pool (1 and 8).
    - `prepare`: False for PgBouncer in transaction mode.
    - `group`: "thread" limits each statement to one thread, for databases that spread threads over machines.
    - `application_name`: what administrators see.

    Raise ValueError or TypeError for an option that is not valid, ImportError if the driver is not installed.
    """
    serializer = _serializer(serde, allowed_types)
    if claim_timeout is not None and (type(claim_timeout) not in (int, float) or not claim_timeout >= 0):
        raise ValueError(f"claim_timeout must be a number of seconds, 0 or more, not {claim_timeout!r}")
    server = ServerOptions(schema, min_size, max_size, prepare, group, application_name)
    caches = Caches(as_count(cache_bytes, "cache_bytes"))
    settings = Settings(
        durability=durability,
        timeout=timeout,
        read_only=read_only,
        migrate=migrate,
        wants_vectors=_wants_vectors(index),
        on_loss=caches.clear,
    )
    session = Session(transport_for(url, settings, server), tenant=as_id(tenant, "tenant"), caches=caches)
    keep = Keep(session, serializer, index=index, ttl=ttl, claim_timeout=claim_timeout, retention=retention)
    if index is not None or ttl is not None:
        _ = keep.store  # reports errors in `index` and `ttl` now instead of at first use
    return keep


def _serializer(serde: Any, allowed_types: Iterable[AllowedType]) -> Any:
    if serde is None:
        return KeepSerializer(allowed_types=allowed_types)
    if tuple(allowed_types):
        raise ValueError("allowed_types belongs to the default serializer; give your own serde its own list")
    if not any(all(callable(getattr(serde, name, None)) for name in pair) for pair in _SERDE_METHODS):
        raise TypeError(f"serde must have dumps_typed and loads_typed (or dumps and loads), which {serde!r} lacks")
    return serde


def _wants_vectors(index: Any) -> bool:
    if index is None:
        return False
    from threadkeep.engine.memories.indexing import stores_vectors  # noqa: PLC0415 - imports LangChain

    return stores_vectors(index)


class OpenOptions(TypedDict, total=False):
    """The options of `threadkeep.open`, for functions that pass them on."""

    serde: Any
    index: IndexConfig | None
    ttl: TTLConfig | None
    claim_timeout: float | None
    retention: Retention
    durability: str
    allowed_types: Iterable[AllowedType]
    tenant: str
    timeout: float
    cache_bytes: int
    read_only: bool
    migrate: bool
    schema: str | None
    min_size: int | None
    max_size: int | None
    prepare: bool | None
    group: str | None
    application_name: str | None


class Keep:
    """An open storage: `checkpointer`, `store` and `cube` for agents, and verbs for the people who run them.

    Made by `threadkeep.open(url)`; closed by `close`, `with` or `async with`. All of it may be used from many threads
    and event loops at once. Each verb has an async twin with the same parameters: `tree` and `atree`. A verb's
    `on_progress` is called with (done, total, what) now and then; total is None if it is not known.
    """

    def __init__(
        self,
        session: Session,
        serde: Any,
        *,
        index: Any = None,
        ttl: Any = None,
        claim_timeout: float | None = None,
        retention: Retention = None,
    ) -> None:
        self._session = session
        self._retention = policies(retention)
        self._serde = serde
        self._index = index
        self._ttl = ttl
        self._claim_timeout = claim_timeout
        self._checkpointer: KeepSaver | None = None
        self._store: KeepStore | None = None
        self._cube: KeepCube | None = None

    # What agents use: each is the same object at every access, and works without a reference to this Keep

    @property
    def checkpointer(self) -> KeepSaver:
        """The checkpointer for LangGraph."""
        if self._checkpointer is None:
            from threadkeep.adapters.langgraph_saver import KeepSaver  # noqa: PLC0415 - imports LangChain

            self._checkpointer = KeepSaver(self._session, serde=self._serde)
        return self._checkpointer

    @property
    def store(self) -> KeepStore:
        """The store for LangGraph."""
        if self._store is None:
            from threadkeep.adapters.langgraph_store import KeepStore  # noqa: PLC0415 - imports LangChain

            self._store = KeepStore(self._session, index=self._index, ttl=self._ttl)
        return self._store

    @property
    def cube(self) -> KeepCube:
        """The checkpointer for CubeLoop, and for CubePi, as it was called before."""
        if self._cube is None:
            from threadkeep.adapters.cubeloop import KeepCube  # noqa: PLC0415 - CubeLoop is an extra

            self._cube = KeepCube(self._session, claim_timeout=self._claim_timeout)
        return self._cube

    # Set up and close

    def setup(self) -> Awaitable[None]:
        """Create or migrate the schema now instead of at first use. Inside an event loop, await the result."""
        return self._session.setup()

    def close(self) -> None:
        """Finish what is under way, then close connections and worker threads. Closing twice does nothing."""
        self._session.runner.close()

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
        await self._session.runner.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # List and change whole threads
    threads, athreads = verb(jobs.catalogue.threads)
    thread, athread = verb(jobs.catalogue.thread)
    delete, adelete = verb(jobs.catalogue.delete)
    copy, acopy = verb(jobs.catalogue.copy)
    erase, aerase = verb(jobs.erase.erase)
    delete_memories, adelete_memories = verb(jobs.erase.delete_memories)

    # Read the checkpoints of a thread
    log, alog = verb(jobs.history.log)
    show, ashow = verb(jobs.history.show)
    tree, atree = verb(jobs.history.tree)
    find, afind = verb(jobs.history.find)
    diff, adiff = verb(jobs.history.diff)
    blame, ablame = verb(jobs.history.blame)

    # Audit: who wrote what, and what takes how much space
    trace, atrace = verb(jobs.audit.trace)
    activity, aactivity = verb(jobs.audit.activity)
    sizes, asizes = verb(jobs.audit.sizes)
    stats, astats = verb(jobs.audit.stats)

    # Go back, branch off, tag
    rollback, arollback = verb(jobs.branches.rollback)
    fork, afork = verb(jobs.branches.fork)
    tag, atag = verb(jobs.branches.tag)

    # Retention: remove what policies do not keep
    prune, aprune = verb(jobs.prune.prune)

    def _sweep(self, *, dry_run: bool = False, on_progress: OnProgress | None = None) -> Work[SweepResult]:
        """Remove expired memories of all tenants, then prune this tenant's threads by the Keep's `retention` policies.

        `dry_run` changes nothing and does not count memories. One round trip for 1,000 memories, then as for `prune`.
        """
        return with_progress(jobs.sweep.sweep(self._session, self._retention, dry_run=dry_run), on_progress)

    sweep, asweep = keep_verb(_sweep)

    def start_sweeping(self, minutes: float = 5.0) -> Any:
        """Sweep in a background thread every `minutes`, until the Keep is closed or the returned future is cancelled.

        Return the same future if it is running already. Raise ReadOnly if the Keep is read-only.
        """
        if type(minutes) not in (int, float) or not minutes > 0:
            raise ValueError(f"minutes must be a number greater than 0, not {minutes!r}")
        return self._session.start_upkeep(minutes, partial(jobs.sweep.sweep_now, policies=self._retention))

    def stop_sweeping(self, timeout: float | None = None) -> Any:
        """Stop the background sweep and return whether it has stopped. Inside an event loop, await the result."""
        return self._session.stop_upkeep(timeout)

    # Check and maintain the storage
    verify, averify = verb(jobs.verify.verify)
    doctor, adoctor = verb(jobs.doctor.doctor)
    compact, acompact = verb(jobs.compact.compact)
    migrate, amigrate = verb(jobs.migrate.migrate)

    def _repair(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        ns: str = "",
        graph: Any = None,
        discard: bool = False,
        dry_run: bool = False,
        kind: str | None = None,
    ) -> Work[RepairResult]:
        """Rebuild a damaged checkpoint as a new branch, from what is left of it, its ancestors and the stored writes.

        Without `checkpoint_id`, repair the newest checkpoint if it is damaged. Name an older one to repair that one:
        the branch becomes the latest checkpoint. With a compiled LangGraph `graph`, its channels apply the writes;
        otherwise lists are concatenated, dicts are merged, and for anything else the last value counts. No checkpoint
        is overwritten or removed. The result lists what had to be assumed.

        With `discard`, nothing is rebuilt: remove the damaged checkpoint instead, or all damaged checkpoints and writes
        of the thread if none is named. Checkpoints whose delta channels need a removed one are removed too.

        In both cases, rebuild the thread's own row if it is damaged or its counters are wrong. Raise Corrupt if nothing
        is left to build from, Missing if the thread or checkpoint does not exist, ValueError if `graph` and `discard`
        are given.
        """
        ref, namespace = as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
        id, thread_kind = as_id(thread_id, "thread_id"), as_kind(kind)
        key = yield from read(lambda: stored_thread_key(self._session.tenant, id, thread_kind))
        if key.kind == CUBE and (namespace or graph is not None):
            raise ValueError(f"thread {key.id!r} is a CubeLoop thread: it has neither namespaces nor a graph")
        if discard and graph is not None:
            raise ValueError("discard rebuilds nothing: it needs no graph")
        replay = self._graph_replay(graph) if graph is not None else None
        options = engine_repair.RepairOptions(ref, namespace, BranchStamp(now_us(), nonce()), dry_run, discard)
        return (yield from change(key, lambda: engine_repair.repair(self._session.heads, key, options, replay)))

    repair, arepair = keep_verb(_repair)

    # Move threads and memories between storages

    def _import_from(
        self,
        source: Any,
        *,
        kind: str | None = None,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        verify: bool = True,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Work[TransferResult]:
        """Import what another saver, store or checkpointer wrote: from a file, a postgresql:// URL or an object.

        The kind of source is detected unless `kind` names it. `thread_id` or `prefix` selects threads; memories are
        imported only without them. The source is not changed and nothing here is overwritten: repeat an interrupted
        import to continue it. `verify` reads both sides again and compares them; `dry_run` only counts. Raise
        ValueError for an unknown source, FileNotFoundError if the file does not exist, Unavailable if a server cannot
        be reached, Missing if the source does not have the thread.
        """
        selection = select(thread_id, prefix, None, memories=None)
        into = Transfer(self._session, self._indexing, verify=bool(verify), dry_run=bool(dry_run))
        return with_progress(import_from(into, source, kind, selection), on_progress)

    import_from, aimport_from = keep_verb(_import_from)

    def _export(
        self,
        file: PortableFile,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        redact: bool = False,
        salvage: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ExportResult:
        """Write threads and memories to a portable file: a path, or a binary file open for writing.

        Export all threads, those with the given ids, or those whose id starts with `prefix`; of one kind or both.
        Memories belong to no thread: by default they are exported only together with all threads. `redact` replaces
        what people wrote. A damaged thread is left out and listed in `skipped`; with `salvage`, its intact part is
        exported. A damaged memory is left out. `damage` names all of it.

        A path is written completely or not at all; it is compressed unless its name ends in .jsonl.
        Each thread is a consistent snapshot; the file as a whole is not. In `aexport`, `on_progress` is called in
        another thread.
        """
        selection = select(thread_id, prefix, kind, memories=memories)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        header = {"made": made, "by": "threadkeep", "tenant": "" if redact else self._session.tenant}
        redaction = Redaction(secrets.token_bytes(32)) if redact else None
        with open_for_writing(file) as out:
            work = Export(self._session, selection, out, redaction, bool(salvage)).work(header)
            return self._session.work(work, on_progress)

    export, aexport = blocking_verb(_export)

    def _import_portable(
        self,
        file: PortableFile,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        partial: bool = False,
        verify: bool = True,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> TransferResult:
        """Import threads and memories from a portable file: a path, or a binary file open for reading.

        Nothing here is overwritten: a thread gets the checkpoints that it lacks; a CubeLoop thread that differs is left
        alone and listed in `differences`. Repeat an interrupted import to continue it. `verify` reads each thread again
        and compares it with the file; `dry_run` only counts. Raise ValueError if the file is truncated or damaged;
        threads that were complete before that point stay imported. `partial` accepts a truncated file. Raise Missing if
        the file does not have a named thread. In `aimport_portable`, `on_progress` is called in another thread.
        """
        selection = select(thread_id, prefix, kind, memories=memories)
        into = Transfer(self._session, self._indexing, verify=bool(verify), dry_run=bool(dry_run))
        with open_for_reading(file) as lines:
            return self._session.work(PortableImport(into, lines, selection, partial).work(), on_progress)

    import_portable, aimport_portable = blocking_verb(_import_portable)

    def _indexing(self) -> Any:
        return self.store._index  # noqa: SLF001 - of the same package

    def _graph_replay(self, graph: Any) -> Replay:
        from threadkeep.adapters.graph_replay import GraphReplay  # noqa: PLC0415 - imports LangGraph

        saver = getattr(graph, "checkpointer", None)
        return GraphReplay(graph, getattr(saver, "serde", None) or self._serde)
