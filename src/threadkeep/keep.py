"""`threadkeep.open` and the Keep: a storage with its checkpointer, its store, and its verbs, sync and async."""

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
from threadkeep.engine.health.verify import known
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
from threadkeep.work import Tell, Work, change, read, reporting

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, TTLConfig
    from psycopg_pool import ConnectionPool

    from threadkeep.adapters.cubeloop import KeepCube
    from threadkeep.adapters.langgraph_saver import KeepSaver
    from threadkeep.adapters.langgraph_store import KeepStore

__all__ = ["Keep", "OpenOptions", "open"]
_SERDES = (("dumps_typed", "loads_typed"), ("dumps", "loads"))


class Keep:
    """Threads and memories of AI agents, stored. Made by `threadkeep.open(url)`; `with` and `async with` close it.

    Each verb has an async twin with the same parameters: `tree` and `atree`. What a verb does is in the module of `jobs/`
    that is named here. `on_progress` is called with (done, total, what) now and then; total is None where it is unknown.
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

    @property
    def checkpointer(self) -> KeepSaver:
        """LangGraph's checkpointer; the same object each time. It works on after this Keep is forgotten."""
        if self._checkpointer is None:
            from threadkeep.adapters.langgraph_saver import KeepSaver  # noqa: PLC0415 - the saver's types import LangChain

            self._checkpointer = KeepSaver(self._session, serde=self._serde)
        return self._checkpointer

    @property
    def store(self) -> KeepStore:
        """LangGraph's store; the same object each time. It works on after this Keep is forgotten."""
        if self._store is None:
            from threadkeep.adapters.langgraph_store import KeepStore  # noqa: PLC0415 - as above

            self._store = KeepStore(self._session, index=self._index, ttl=self._ttl)
        return self._store

    @property
    def cube(self) -> KeepCube:
        """CubeLoop's checkpointer, and old CubePi's; the same object each time. It works on after this Keep is forgotten."""
        if self._cube is None:
            from threadkeep.adapters.cubeloop import KeepCube  # noqa: PLC0415 - CubeLoop is an extra

            self._cube = KeepCube(self._session, claim_timeout=self._claim_timeout)
        return self._cube

    def setup(self) -> Awaitable[None]:
        """Set the storage up now instead of at first use; may be awaited."""
        return self._session.setup()

    def close(self) -> None:
        """Finish what is under way and let go of connections and workers. Harmless when repeated."""
        self._session.runner.close()

    async def aclose(self) -> None:
        """The same, without blocking the event loop."""
        await self._session.runner.aclose()

    # Threads
    threads, athreads = verb(jobs.catalogue.threads)
    thread, athread = verb(jobs.catalogue.thread)
    delete, adelete = verb(jobs.catalogue.delete)
    copy, acopy = verb(jobs.catalogue.copy)

    # Look into a thread
    log, alog = verb(jobs.look.log)
    show, ashow = verb(jobs.look.show)
    tree, atree = verb(jobs.look.tree)
    find, afind = verb(jobs.look.find)
    diff, adiff = verb(jobs.look.diff)
    blame, ablame = verb(jobs.look.blame)

    # Audit
    trace, atrace = verb(jobs.audit.trace)
    activity, aactivity = verb(jobs.audit.activity)
    sizes, asizes = verb(jobs.audit.sizes)
    stats, astats = verb(jobs.audit.stats)

    # Branches
    rollback, arollback = verb(jobs.branches.rollback)
    fork, afork = verb(jobs.branches.fork)
    tag, atag = verb(jobs.branches.tag)

    # Retention
    prune, aprune = verb(jobs.prune.prune)

    def _sweep(self, *, dry_run: bool = False, on_progress: Tell | None = None) -> Work[SweepResult]:
        """Remove expired memories of all tenants, and what the policies of this Keep do not keep of its threads.

        `dry_run` changes nothing and does not count memories. One round trip for 1,000 memories, then as for `prune`.
        """
        return reporting(jobs.sweep.sweep(self._session, self._retention, dry_run=dry_run), on_progress)

    sweep, asweep = keep_verb(_sweep)

    def start_sweeping(self, minutes: float = 5.0) -> Any:
        """Sweep in a background thread every `minutes`, until the Keep is closed or the returned future is cancelled.

        If it runs already, return the same future. Raise ReadOnly if the Keep is.
        """
        if type(minutes) not in (int, float) or not minutes > 0:
            raise ValueError(f"minutes must be a number above 0, not {minutes!r}")
        return self._session.start_upkeep(minutes, partial(jobs.sweep.sweep_now, policies=self._retention))

    def stop_sweeping(self, timeout: float | None = None) -> Any:
        """Stop the background sweep; return whether it has stopped. Inside an event loop, return an awaitable of that."""
        return self._session.stop_upkeep(timeout)

    # Health
    verify, averify = verb(jobs.verify.verify)
    doctor, adoctor = verb(jobs.doctor.doctor)
    compact, acompact = verb(jobs.compact.compact)

    def _repair(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        ns: str = "",
        graph: Any = None,
        dry_run: bool = False,
        kind: str | None = None,
    ) -> Work[RepairResult]:
        """Rebuild a damaged checkpoint as a new branch, from what is left of it, its ancestors and the stored writes.

        Without `checkpoint_id`, repair the newest checkpoint if it is damaged. Name an older one to repair that: the
        branch becomes the latest. With a compiled LangGraph `graph`, its channels apply the writes; otherwise lists are
        concatenated, dicts merged, and for anything else the last value counts. Nothing is overwritten or removed. The
        result lists what had to be assumed. Raise Corrupt if nothing is left to build from, Missing if there is no such
        thread or checkpoint.
        """
        ref, space = as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
        id, of = as_id(thread_id, "thread_id"), as_kind(kind)
        key = yield from read(lambda: known(self._session.tenant, id, of))
        if key.kind == CUBE and (space or graph is not None):
            raise ValueError(f"thread {key.id!r} is CubeLoop's: it has neither namespaces nor a graph")
        replay = self._replaying(graph) if graph is not None else None
        options = engine_repair.RepairOptions(ref, space, BranchStamp(now_us(), nonce()), dry_run)
        return (yield from change(key, lambda: engine_repair.repair(self._session.heads, key, options, replay)))

    repair, arepair = keep_verb(_repair)

    def _replaying(self, graph: Any) -> Replay:
        from threadkeep.adapters.graph_replay import GraphReplay  # noqa: PLC0415 - it imports LangGraph

        saver = getattr(graph, "checkpointer", None)
        return GraphReplay(graph, getattr(saver, "serde", None) or self._serde)

    # Import and export

    def _import_from(
        self,
        source: Any,
        *,
        kind: str | None = None,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        verify: bool = True,
        dry_run: bool = False,
        on_progress: Tell | None = None,
    ) -> Work[TransferResult]:
        """Import what another saver, store or checkpointer stored: from a file, a postgresql:// URL or an object in memory.

        The kind of source is detected unless `kind` names it. `thread_id` or `prefix` select threads; memories are only
        imported without them. The source is not changed, and nothing here is overwritten: repeating an interrupted
        import continues it. `verify` reads both sides again and compares them; `dry_run` only counts. Raise ValueError
        for an unknown source, FileNotFoundError, Unavailable if a server cannot be reached, Missing if the source has
        no such thread.
        """
        selection = select(thread_id, prefix, None, memories=None)
        into = Transfer(self._session, self._indexing, verify=bool(verify), dry_run=bool(dry_run))
        return reporting(import_from(into, source, kind, selection), on_progress)

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
        on_progress: Tell | None = None,
    ) -> ExportResult:
        """Write threads and memories to a portable file: a path, or a binary file open for writing.

        Export all threads, those with the given ids, or those whose id starts with `prefix`; of one kind or both.
        Memories belong to no thread: by default they are only exported together with all threads. `redact` replaces
        what people wrote. A path is written completely or not at all; it is compressed unless its name ends in .jsonl.
        Each thread is consistent in itself. Async callers: `on_progress` is called in another thread.
        """
        selection = select(thread_id, prefix, kind, memories=memories)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"made": made, "by": "threadkeep", "tenant": "" if redact else self._session.tenant}
        redaction = Redaction(secrets.token_bytes(32)) if redact else None
        with open_for_writing(file) as out:
            return self._session.work(Export(self._session, selection, out, redaction).work(about), on_progress)

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
        on_progress: Tell | None = None,
    ) -> TransferResult:
        """Import threads and memories from a portable file: a path, or a binary file open for reading.

        Nothing here is overwritten: a thread gets the checkpoints that it lacks; a CubeLoop thread that differs is left
        alone and listed in `differences`. Repeating an interrupted import continues it. `verify` reads each thread
        again and compares it with the file; `dry_run` only counts. Raise ValueError if the file is truncated or
        damaged; threads that were complete before that stay imported. `partial` accepts a truncated file. Raise Missing
        if the file lacks a named thread. Async callers: `on_progress` is called in another thread.
        """
        selection = select(thread_id, prefix, kind, memories=memories)
        into = Transfer(self._session, self._indexing, verify=bool(verify), dry_run=bool(dry_run))
        with open_for_reading(file) as lines:
            return self._session.work(PortableImport(into, lines, selection, partial).work(), on_progress)

    import_portable, aimport_portable = blocking_verb(_import_portable)

    def _indexing(self) -> Any:
        return self.store._index  # noqa: SLF001 - nobody else needs it

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


class OpenOptions(TypedDict, total=False):
    """The options of `threadkeep.open`."""

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
    schema: str | None
    min_size: int | None
    max_size: int | None
    prepare: bool | None
    group: str | None
    application_name: str | None


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
    schema: str | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    prepare: bool | None = None,
    group: str | None = None,
    application_name: str | None = None,
) -> Keep:
    """Open a Keep on the storage that a URL names.

    `sqlite:///relative.db` and `sqlite:////absolute/path.db` are files, `postgresql://user@host/database` is a server,
    `valkey://host:port,host:port/` (or `redis://`) a server or a cluster. `memory://` is private to this Keep.

    Nothing is touched before the first use. `durability="strict"` has everything on disk before a call returns,
    `"relaxed"` may lose the last moments when the machine (not the process) dies. `serde` replaces LangGraph's
    serializer; `allowed_types` are classes, or their exact names, that stored rows may become besides the safe ones.
    `tenant` keeps threads apart; `timeout` is how long a database that is locked, gone or silent is waited for, in
    seconds; `cache_bytes` is how much of recently used threads is kept in memory; `read_only` never changes anything.
    `index` and `ttl` are the store's, as LangGraph's IndexConfig and TTLConfig have them: what a query compares, and
    how long memories live. `claim_timeout` is `Keep.cube`'s: after how many seconds without a sign of life a run that
    was claimed may be claimed again. `retention` is what `Keep.sweep` keeps of threads: a Policy, a list of them, or the
    path of a threadkeep.toml, which is read at once.

    For PostgreSQL the URL is libpq's, or a `psycopg_pool.ConnectionPool`, which stays yours to close. `schema` is where
    the tables are; `min_size` and `max_size` are the pool's (1 and 8); `prepare=False` is for PgBouncer in transaction
    mode; `group="thread"` keeps each statement to one thread, for databases that spread threads over machines;
    `application_name` is what administrators see. The first five may also stand in the URL's query.
    """
    if serde is not None and tuple(allowed_types):
        raise ValueError("allowed_types belongs to the default serializer; give your own serde its own list")
    if serde is not None and not any(all(callable(getattr(serde, name, None)) for name in pair) for pair in _SERDES):
        raise TypeError(f"serde needs dumps_typed and loads_typed (or dumps and loads), which {serde!r} has not")
    server = ServerOptions(schema, min_size, max_size, prepare, group, application_name)
    caches = Caches(as_count(cache_bytes, "cache_bytes"))
    settings = Settings(
        durability=durability,
        timeout=timeout,
        read_only=read_only,
        wants_vectors=_wants_vectors(index),
        on_loss=caches.clear,
    )
    session = Session(transport_for(url, settings, server), tenant=as_id(tenant, "tenant"), caches=caches)
    serializer = KeepSerializer(allowed_types=allowed_types) if serde is None else serde
    if claim_timeout is not None and (type(claim_timeout) not in (int, float) or not claim_timeout >= 0):
        raise ValueError(f"claim_timeout must be a number of seconds that is not negative, not {claim_timeout!r}")
    opened = Keep(session, serializer, index=index, ttl=ttl, claim_timeout=claim_timeout, retention=retention)
    if index is not None or ttl is not None:
        _ = opened.store  # what is wrong with them is said now
    return opened


def _wants_vectors(index: Any) -> bool:
    if index is None:
        return False
    from threadkeep.engine.memories.indexing import stores_vectors  # noqa: PLC0415 - it imports LangChain

    return stores_vectors(index)
