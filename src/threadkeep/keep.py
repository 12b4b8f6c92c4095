"""`threadkeep.open(url)` and the `Keep` that it returns: checkpointers, the store, and every verb, sync and async.

A verb's docstring and code are in the module of `jobs/` that is named here, which is imported when the verb is used.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

from threadkeep import jobs
from threadkeep.collector import paused_collector
from threadkeep.engine.identity import Kind, as_count, as_tenant
from threadkeep.engine.log.type_gate import AllowedType, KeepSerializer, Name, with_type_gate
from threadkeep.errors import without_passwords
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport
from threadkeep.urls import Durability, Group, ServerOptions, Settings, StorageUrl, as_url, transport_for
from threadkeep.verb import blocking_keep_verb, keep_verb, verb

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, TTLConfig
    from psycopg_pool import ConnectionPool

    from threadkeep.adapters.cubeloop import KeepCube
    from threadkeep.adapters.deepagents_files import KeepFiles
    from threadkeep.adapters.langgraph_cache import KeepCache
    from threadkeep.adapters.langgraph_saver import KeepSaver
    from threadkeep.adapters.langgraph_store import KeepStore
    from threadkeep.encryption.keys import Keys
    from threadkeep.engine.log.upcasters import Upcaster
    from threadkeep.engine.memories.indexing import IndexOptions
    from threadkeep.jobs.policies import Retention
    from threadkeep.leases import Lease
    from threadkeep.observability.metrics import Metrics

__all__ = ["Keep", "OpenOptions", "open"]
_OPENTELEMETRY = frozenset(("opentelemetry.trace", "opentelemetry.metrics"))
_SERDE_METHODS = (("dumps_typed", "loads_typed"), ("dumps", "loads"))


def open(
    url: StorageUrl | ConnectionPool[Any],
    *,
    serde: Any = None,
    keys: Keys | None = None,
    hide_ids: bool | None = None,
    compress: bool = True,
    index: IndexConfig | IndexOptions | None = None,
    ttl: TTLConfig | None = None,
    claim_timeout: float | None = None,
    retention: Retention = None,
    durability: Durability = "strict",
    allowed_types: Iterable[AllowedType] = (),
    upcasters: Mapping[AllowedType, Upcaster] | None = None,
    tenant: str = "",
    timeout: float = 30.0,
    cache_bytes: int = 128 * 1024 * 1024,
    read_only: bool = False,
    fenced: bool = False,
    migrate: bool = True,
    metrics: bool | None = None,
    slow_seconds: float | None = None,
    schema: str | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    prepare: bool | None = None,
    group: Group | None = None,
    application_name: str | None = None,
) -> Keep:
    """Open a Keep on the storage that `url` names. Nothing is connected or created before the first use.

    A path, as a str or a `Path`, is an SQLite file; it may start with `~/`. URLs: `sqlite:///relative.db` and
    `sqlite:////absolute/path.db` are files, too, `postgresql://user@host/database` is a server,
    `valkey://host:port,host:port/` (or `redis://`) is a server or a cluster. `memory://` is private to this Keep and
    ends with it.

    Options for every storage:

    - `durability`: "strict" makes every change durable before the call returns. "relaxed" may lose the last moments if
      the machine, not just the process, dies.
    - `timeout`: how many seconds to wait for a database that is locked, unreachable or silent.
    - `read_only`: refuse every change with ReadOnly, and create or migrate nothing.
    - `fenced`: refuse changes of threads by agents outside of a lease with Leased; see `Keep.lease`.
    - `migrate`: False creates and migrates no tables. A storage of an older version is then used as it is if that is
      possible; otherwise the first call raises SchemaTooOld.
    - `tenant`: separates threads and memories; a Keep sees those of its tenant only.
    - `cache_bytes`: how much of recently used threads to keep in memory.
    - `keys`: encrypts everything that is stored; see `Keys`. A storage with plain data needs `threadkeep encrypt`
      first. `hide_ids=True` also encrypts the ids of threads, and the namespaces and keys of memories; it is decided
      when the storage is first used with keys.
    - `compress`: False stores everything uncompressed. With `keys`, sizes then tell nothing but lengths.
    - `serde`: replaces LangGraph's serializer. `allowed_types`: classes, or their exact names, that stored values may
      be rebuilt as, in addition to the safe ones.
    - `upcasters`: for classes that were renamed or changed. Maps the names that are stored to a class, or its name, or
      a function that gets the stored data (a dict of fields, a list of arguments) and returns the object.
    - `index`, `ttl`: the store's, as `threadkeep.IndexOptions` (LangGraph's IndexConfig and more) and LangGraph's
      TTLConfig: what a query compares, how long memories live.
    - `claim_timeout`: for `Keep.cube`. Seconds without a sign of life after which a claimed run may be claimed again.
    - `retention`: what `Keep.sweep` keeps of threads: a Policy, a list of them, or the path of a threadkeep.toml, which
      is read at once.
    - `metrics`: True measures every call of a verb, for `Keep.metrics` and for OpenTelemetry if it is installed. None
      does so if an OpenTelemetry provider is set when the Keep is opened. False exports nothing.
    - `slow_seconds`: the logger `threadkeep.slow` names verbs that take at least so many seconds. None logs nothing.

    Options for PostgreSQL, where `url` is libpq's, or a `psycopg_pool.ConnectionPool` that remains yours to close. All
    but the last may also be given in the URL's query:

    - `schema`: where the tables are.
    - `min_size`, `max_size`: connections in the pool (1 and 8).
    - `prepare`: False for PgBouncer in transaction mode.
    - `group`: "thread" limits each statement to one thread, for databases that spread threads over machines.
    - `application_name`: what administrators see.

    Raise ValueError or TypeError for an option that is not valid, ImportError if the driver is not installed.
    """
    serializer = _serializer(serde, allowed_types, upcasters)
    if claim_timeout is not None and (type(claim_timeout) not in (int, float) or not claim_timeout >= 0):
        raise ValueError(f"claim_timeout must be a number of seconds, 0 or more, not {claim_timeout!r}")
    server = ServerOptions(schema, min_size, max_size, prepare, group, application_name)
    if not isinstance(compress, bool):
        raise TypeError(f"compress must be True or False, not {compress!r}")
    if not isinstance(fenced, bool):
        raise TypeError(f"fenced must be True or False, not {fenced!r}")
    caches = Caches(as_count(cache_bytes, "cache_bytes"), compress=compress)
    settings = Settings(
        durability=durability,
        timeout=timeout,
        read_only=read_only,
        migrate=migrate,
        wants_vectors=_wants_vectors(index),
        on_loss=caches.on_loss,
    )
    with paused_collector():  # it imports the driver
        url = as_url(url)
        transport = transport_for(url, settings, server)
    tenant = as_tenant(tenant, "tenant")
    transport = TenantTransport(transport, tenant, _check_keys(keys, hide_ids), hide_ids=hide_ids, compress=compress)
    session = _open_session(
        transport,
        metrics=metrics,
        slow_seconds=slow_seconds,
        tenant=tenant,
        caches=caches,
        timeout=timeout,
        fenced=fenced,
    )
    keep = Keep(
        session,
        serializer,
        url=without_passwords(url) if isinstance(url, str) else None,
        upcasters=KeepSerializer(upcasters=upcasters).upcasters,
        index=index,
        ttl=ttl,
        claim_timeout=claim_timeout,
        retention=retention,
    )
    if index is not None or ttl is not None:
        _ = keep.store  # reports errors in `index` and `ttl` now instead of at first use
    return keep


def _open_session(
    transport: TenantTransport, *, metrics: bool | None, slow_seconds: float | None, **options: Any
) -> Session:
    """Return the session of a new Keep, which is measured if somebody wants its numbers.

    If nobody has imported OpenTelemetry, nobody can have set a provider.
    """
    if metrics not in (None, True, False):
        raise TypeError(f"metrics must be True, False or None, not {metrics!r}")
    if slow_seconds is not None and (type(slow_seconds) not in (int, float) or not slow_seconds >= 0):
        raise ValueError(f"slow_seconds must be a number of seconds, 0 or more, not {slow_seconds!r}")
    if not metrics and slow_seconds is None and (metrics is False or not _OPENTELEMETRY & sys.modules.keys()):
        return Session(transport, **options)
    from threadkeep.observability.measured import open_session  # noqa: PLC0415 - few Keeps are measured

    return open_session(transport, metrics=metrics, slow_seconds=slow_seconds, **options)


def _serializer(
    serde: Any, allowed_types: Iterable[AllowedType], upcasters: Mapping[AllowedType, Upcaster] | None
) -> Any:
    if serde is None:
        return KeepSerializer(allowed_types=allowed_types, upcasters=upcasters)
    if tuple(allowed_types):
        raise ValueError("allowed_types belongs to the default serializer; give your own serde its own list")
    if not any(all(callable(getattr(serde, name, None)) for name in pair) for pair in _SERDE_METHODS):
        raise TypeError(f"serde must have dumps_typed and loads_typed (or dumps and loads), which {serde!r} lacks")
    return with_type_gate(serde, KeepSerializer(upcasters=upcasters).upcasters) if upcasters else serde


def _check_keys(keys: Any, hide_ids: Any) -> Any:
    if hide_ids is not None and not isinstance(hide_ids, bool):
        raise TypeError(f"hide_ids must be True or False, not {hide_ids!r}")
    if keys is None:
        if hide_ids:
            raise ValueError("hide_ids=True needs keys=")
        return None
    from threadkeep.encryption.keys import Keys  # noqa: PLC0415 - on use

    if not isinstance(keys, Keys):
        raise TypeError(f"keys must be a threadkeep.Keys, not {type(keys).__name__}")
    return keys


def _wants_vectors(index: Any) -> bool:
    if index is None:
        return False
    from threadkeep.engine.memories.indexing import stores_vectors  # noqa: PLC0415 - imports LangChain

    return stores_vectors(index)


class OpenOptions(TypedDict, total=False):
    """The options of `threadkeep.open`, for functions that pass them on."""

    serde: Any
    keys: Keys | None
    hide_ids: bool | None
    compress: bool
    index: IndexConfig | IndexOptions | None
    ttl: TTLConfig | None
    claim_timeout: float | None
    retention: Retention
    durability: Durability
    allowed_types: Iterable[AllowedType]
    upcasters: Mapping[AllowedType, Upcaster] | None
    tenant: str
    timeout: float
    cache_bytes: int
    read_only: bool
    fenced: bool
    migrate: bool
    metrics: bool | None
    slow_seconds: float | None
    schema: str | None
    min_size: int | None
    max_size: int | None
    prepare: bool | None
    group: Group | None
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
        url: str | None = None,
        upcasters: Mapping[Name, Upcaster] | None = None,
        index: Any = None,
        ttl: Any = None,
        claim_timeout: float | None = None,
        retention: Retention = None,
    ) -> None:
        self._session = session
        self._url = url
        self._retention = jobs.policies.policies(retention) if retention is not None else ()
        self._serde = serde
        self._upcasters = upcasters
        self._index = index
        self._ttl = ttl
        self._claim_timeout = claim_timeout
        self._checkpointer: KeepSaver | None = None
        self._store: KeepStore | None = None
        self._cache: KeepCache | None = None
        self._cube: KeepCube | None = None
        self._files: KeepFiles | None = None

    def __repr__(self) -> str:
        transport = self._session.transport
        facts = (
            (f"tenant={self._session.tenant!r}", bool(self._session.tenant)),
            ("encrypted", self._session.keys is not None),
            ("read-only", transport.read_only),
            ("closed", self._session.is_closed),
        )
        return f"<Keep {', '.join([self._url or 'on a connection pool', *(text for text, holds in facts if holds)])}>"

    # What agents use: each is the same object at every access, and works without a reference to this Keep

    @property
    def checkpointer(self) -> KeepSaver:
        """The checkpointer for LangGraph."""
        if self._checkpointer is None:
            with paused_collector():
                from threadkeep.adapters.langgraph_saver import KeepSaver  # noqa: PLC0415 - imports LangChain

            self._checkpointer = self._measured(KeepSaver)(self._session, serde=self._serde, upcasters=self._upcasters)
        return self._checkpointer

    @property
    def store(self) -> KeepStore:
        """The store for LangGraph."""
        if self._store is None:
            from threadkeep.adapters.langgraph_store import KeepStore  # noqa: PLC0415 - imports LangChain

            self._store = self._measured(KeepStore)(self._session, index=self._index, ttl=self._ttl)
        return self._store

    @property
    def cache(self) -> KeepCache:
        """The cache for LangGraph: what nodes with a `CachePolicy` have returned."""
        if self._cache is None:
            from threadkeep.adapters.langgraph_cache import KeepCache  # noqa: PLC0415 - few graphs have a cache

            self._cache = self._measured(KeepCache)(self._session, serde=self._serde, upcasters=self._upcasters)
        return self._cache

    @property
    def files(self) -> KeepFiles:
        """The files of deep agents, in the namespace `filesystem` of the store."""
        if self._files is None:
            from threadkeep.adapters.deepagents_files import KeepFiles  # noqa: PLC0415 - deepagents is an extra

            self._files = self._measured(KeepFiles)(self.store)
        return self._files

    @property
    def cube(self) -> KeepCube:
        """The checkpointer for CubeLoop, and for CubePi, as it was called before."""
        if self._cube is None:
            from threadkeep.adapters.cubeloop import KeepCube  # noqa: PLC0415 - CubeLoop is an extra

            self._cube = self._measured(KeepCube)(self._session, claim_timeout=self._claim_timeout)
        return self._cube

    def _measured(self, adapter: Any) -> Any:
        """Return the class of an adapter or a lease; if this Keep is measured, a subclass that measures its verbs."""
        if self._session.observer is None:
            return adapter
        from threadkeep.observability.adapters import measured  # noqa: PLC0415 - few Keeps are measured

        return measured(adapter)

    # Set up and close

    def setup(self) -> Awaitable[None]:
        """Create or migrate the schema now instead of at first use. Inside an event loop, await the result."""
        return self._session.setup()

    def close(self) -> None:
        """Finish what is under way, then close connections and worker threads. Closing twice does nothing.

        This closes the Keeps of its tenants, too. Closing the Keep of a tenant closes only that one.
        """
        self._session.close()

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
        await self._session.aclose()

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

    # Tenants

    def tenant(self, name: str, *, keys: Keys | None = None, quota_bytes: float | None = None) -> Keep:
        """Return a Keep for a tenant of this storage: it has threads and memories of its own, in every verb.

        It shares connections, worker threads, the cache of threads and all options with this Keep. Nothing is read
        before its first use. Without `keys` it is encrypted if this Keep is, with the same master keys and a key of its
        own. `quota_bytes` limits what it stores, in all processes, until another value is given; None leaves it as it
        is, `math.inf` removes it. QuotaExceeded is raised before anything is stored that would exceed it.

        ValueError if the name is empty, or if this Keep is that of a tenant.
        """
        from threadkeep.tenants.quota import as_quota  # noqa: PLC0415 - on use

        id = as_tenant(name, "name")
        if not id:
            raise ValueError("name is empty: that is the tenant of this Keep")
        if self._session.tenant:
            raise ValueError("only a Keep of the default tenant can open tenants: open the storage without tenant=")
        session = self._session.open_tenant(id, _check_keys(keys, None), as_quota(quota_bytes))
        return Keep(
            session,
            self._serde,
            url=self._url,
            upcasters=self._upcasters,
            index=self._index,
            ttl=self._ttl,
            claim_timeout=self._claim_timeout,
            retention=self._retention or None,
        )

    tenants, atenants = verb(lambda: jobs.tenants.tenants)
    drop_tenant, adrop_tenant = verb(lambda: jobs.tenants.drop_tenant)

    # Let one context at a time write a thread

    def lease(self, thread_id: str, *, ttl: float = 30.0, wait: float | None = None, kind: Kind | None = None) -> Lease:
        """Return a lease on a thread, to be entered with `with` or `async with`: only its holder writes the thread.

        While it is held, changes by others raise Leased. They may be in this process or another: the lease belongs to
        the context that enters it, and to what that starts. It is renewed in the background. `ttl` is how many seconds
        it lasts if this process stops; then the next one can have it. If that happened, what this process still tries
        to write raises LeaseLost.

        `wait` is how many seconds to wait for the lease, by default the `timeout` of this Keep; 0 fails at once. Leased
        if it could not be had. The thread need not exist. `kind` is `graph`, the default, or `cube`.

        ValueError if `ttl` is less than 0.05. Three round trips to take it and three to release it.
        """
        from threadkeep.leases import Lease, lease  # noqa: PLC0415 - on use

        return lease(self._session, thread_id, ttl=ttl, wait=wait, kind=kind, make=self._measured(Lease))

    break_lease, abreak_lease = verb(lambda: jobs.leases.break_lease)
    lease_info, alease_info = verb(lambda: jobs.leases.lease_info)

    # List and change whole threads
    threads, athreads = verb(lambda: jobs.catalogue.threads)
    thread, athread = verb(lambda: jobs.catalogue.thread)
    describe, adescribe = verb(lambda: jobs.catalogue.describe)
    delete, adelete = verb(lambda: jobs.catalogue.delete)
    copy, acopy = verb(lambda: jobs.catalogue.copy)
    erase, aerase = verb(lambda: jobs.erase.erase)
    delete_memories, adelete_memories = verb(lambda: jobs.erase.delete_memories)

    # Read the checkpoints of a thread
    log, alog = verb(lambda: jobs.history.log)
    show, ashow = verb(lambda: jobs.history.show)
    tree, atree = verb(lambda: jobs.history.tree)
    find, afind = verb(lambda: jobs.history.find)
    waiting, awaiting = verb(lambda: jobs.waiting.waiting)
    diff, adiff = verb(lambda: jobs.history.diff)
    blame, ablame = verb(lambda: jobs.history.blame)

    # Search what was said
    search, asearch = verb(lambda: jobs.search.search)
    build_search_index, abuild_search_index = verb(lambda: jobs.search.build_search_index)
    drop_search_index, adrop_search_index = verb(lambda: jobs.search.drop_search_index)

    # Audit: who wrote what, and what takes how much space
    trace, atrace = verb(lambda: jobs.audit.trace)
    flow, aflow = verb(lambda: jobs.audit.flow)
    activity, aactivity = verb(lambda: jobs.audit.activity)
    sizes, asizes = verb(lambda: jobs.audit.sizes)
    stats, astats = verb(lambda: jobs.audit.stats)
    usage, ausage = verb(lambda: jobs.usage.usage)
    types, atypes = keep_verb(lambda: jobs.stored_types.types)

    def metrics(self) -> Metrics:
        """Return what this process has done with this storage since the Keep was opened. No I/O.

        Retries, conflicts, lost connections, waits for connections and the size of the cache are always counted. Calls
        of verbs, with their times, errors, round trips and bytes, are counted if the Keep is measured: see the options
        `metrics` and `slow_seconds` of `threadkeep.open`. The Keep of a tenant counts together with the one that it
        comes from.
        """
        from threadkeep.observability.metrics import collect  # noqa: PLC0415 - on use

        return collect(self._session)

    # Go back, branch off, tag
    rollback, arollback = verb(lambda: jobs.rollback.rollback)
    fork, afork = verb(lambda: jobs.rollback.fork)
    tag, atag = verb(lambda: jobs.rollback.tag)
    branches, abranches = verb(lambda: jobs.branches.branches)
    name_branch, aname_branch = verb(lambda: jobs.branches.name_branch)
    compare_branches, acompare_branches = verb(lambda: jobs.branches.compare_branches)
    switch_branch, aswitch_branch = verb(lambda: jobs.branches.switch_branch)
    delete_branch, adelete_branch = verb(lambda: jobs.branches.delete_branch)

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
    distribute, adistribute = verb(lambda: jobs.distribute.distribute)

    # Encrypt the storage, and replace its keys
    encrypt, aencrypt = verb(lambda: jobs.encryption.encrypt)
    rotate, arotate = verb(lambda: jobs.encryption.rotate)
    reencrypt, areencrypt = verb(lambda: jobs.encryption.reencrypt)

    repair, arepair = keep_verb(lambda: jobs.repair.repair)

    # Move threads and memories between storages

    import_from, aimport_from = keep_verb(lambda: jobs.transfer.import_from)

    export, aexport = blocking_keep_verb(lambda: jobs.transfer.export)

    import_portable, aimport_portable = blocking_keep_verb(lambda: jobs.transfer.import_portable)

    def _indexing(self) -> Any:
        return self.store._index  # noqa: SLF001 - of the same package
