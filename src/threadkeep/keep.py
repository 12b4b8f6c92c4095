"""`threadkeep.open(url)` and the `Keep` that it returns: checkpointers, the store, and every verb, sync and async.

A verb's docstring and code are in the module of `jobs/` that is named here, which is imported when the verb is used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

from threadkeep import jobs
from threadkeep.collector import paused_collector
from threadkeep.engine.identity import as_count, as_id
from threadkeep.engine.log.type_gate import AllowedType, KeepSerializer
from threadkeep.session import Caches, Session
from threadkeep.urls import ServerOptions, Settings, transport_for
from threadkeep.verb import blocking_keep_verb, keep_verb, verb

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, TTLConfig
    from psycopg_pool import ConnectionPool

    from threadkeep.adapters.cubeloop import KeepCube
    from threadkeep.adapters.langgraph_saver import KeepSaver
    from threadkeep.adapters.langgraph_store import KeepStore
    from threadkeep.jobs.policies import Retention

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
    with paused_collector():  # it imports the driver
        transport = transport_for(url, settings, server)
    session = Session(transport, tenant=as_id(tenant, "tenant"), caches=caches)
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
        self._retention = jobs.policies.policies(retention) if retention is not None else ()
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
            with paused_collector():
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
    threads, athreads = verb(lambda: jobs.catalogue.threads)
    thread, athread = verb(lambda: jobs.catalogue.thread)
    delete, adelete = verb(lambda: jobs.catalogue.delete)
    copy, acopy = verb(lambda: jobs.catalogue.copy)
    erase, aerase = verb(lambda: jobs.erase.erase)
    delete_memories, adelete_memories = verb(lambda: jobs.erase.delete_memories)

    # Read the checkpoints of a thread
    log, alog = verb(lambda: jobs.history.log)
    show, ashow = verb(lambda: jobs.history.show)
    tree, atree = verb(lambda: jobs.history.tree)
    find, afind = verb(lambda: jobs.history.find)
    diff, adiff = verb(lambda: jobs.history.diff)
    blame, ablame = verb(lambda: jobs.history.blame)

    # Audit: who wrote what, and what takes how much space
    trace, atrace = verb(lambda: jobs.audit.trace)
    activity, aactivity = verb(lambda: jobs.audit.activity)
    sizes, asizes = verb(lambda: jobs.audit.sizes)
    stats, astats = verb(lambda: jobs.audit.stats)

    # Go back, branch off, tag
    rollback, arollback = verb(lambda: jobs.branches.rollback)
    fork, afork = verb(lambda: jobs.branches.fork)
    tag, atag = verb(lambda: jobs.branches.tag)

    # Retention: remove what policies do not keep
    prune, aprune = verb(lambda: jobs.prune.prune)

    sweep, asweep = keep_verb(lambda: jobs.sweep.sweep)

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
    verify, averify = verb(lambda: jobs.verify.verify)
    doctor, adoctor = verb(lambda: jobs.doctor.doctor)
    compact, acompact = verb(lambda: jobs.compact.compact)
    migrate, amigrate = verb(lambda: jobs.migrate.migrate)

    repair, arepair = keep_verb(lambda: jobs.repair.repair)

    # Move threads and memories between storages

    import_from, aimport_from = keep_verb(lambda: jobs.transfer.import_from)

    export, aexport = blocking_keep_verb(lambda: jobs.transfer.export)

    import_portable, aimport_portable = blocking_keep_verb(lambda: jobs.transfer.import_portable)

    def _indexing(self) -> Any:
        return self.store._index  # noqa: SLF001 - of the same package
