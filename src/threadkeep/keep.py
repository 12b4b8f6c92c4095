"""The Keep: one store of threads, with its faces. Sync and async, from any thread and any event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

from threadkeep.desk import Desk, as_count
from threadkeep.engine.gate import AllowedType, KeepSerializer
from threadkeep.engine.identity import as_id
from threadkeep.operating.policies import Retention, policies
from threadkeep.operator import Operator
from threadkeep.urls import Server, transport_for

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, TTLConfig
    from psycopg_pool import ConnectionPool

    from threadkeep.adapters.cube import KeepCube
    from threadkeep.adapters.saver import KeepSaver
    from threadkeep.adapters.store import KeepStore

__all__ = ["Desk", "Keep", "OpenOptions", "open"]
_SERDES = (("dumps_typed", "loads_typed"), ("dumps", "loads"))


class Keep(Operator):
    """Threads of AI agents, kept. Made by `threadkeep.open(url)`; usable with or without `with` and `async with`."""

    def __init__(
        self,
        desk: Desk,
        serde: Any,
        *,
        index: Any = None,
        ttl: Any = None,
        claim_timeout: float | None = None,
        retention: Retention = None,
    ) -> None:
        super().__init__(desk, policies(retention))
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
            from threadkeep.adapters.saver import KeepSaver  # noqa: PLC0415 - the saver's types import LangChain

            self._checkpointer = KeepSaver(self._desk, serde=self._serde)
        return self._checkpointer

    @property
    def store(self) -> KeepStore:
        """LangGraph's store; the same object each time. It works on after this Keep is forgotten."""
        if self._store is None:
            from threadkeep.adapters.store import KeepStore  # noqa: PLC0415 - as above

            self._store = KeepStore(self._desk, index=self._index, ttl=self._ttl)
        return self._store

    @property
    def cube(self) -> KeepCube:
        """CubeLoop's checkpointer, and old CubePi's; the same object each time. It works on after this Keep is forgotten."""
        if self._cube is None:
            from threadkeep.adapters.cube import KeepCube  # noqa: PLC0415 - CubeLoop is an extra

            self._cube = KeepCube(self._desk, claim_timeout=self._claim_timeout)
        return self._cube

    def _indexing(self) -> Any:
        return self.store._index  # noqa: SLF001 - nobody else needs it

    def setup(self) -> Awaitable[None]:
        """Set the storage up now instead of at first use; may be awaited."""
        return self._desk.setup()

    def close(self) -> None:
        """Finish what is under way and let go of connections and workers. Harmless when repeated."""
        self._desk.runner.close()

    async def aclose(self) -> None:
        """The same, without blocking the event loop."""
        await self._desk.runner.aclose()

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
    """Open a Keep: `sqlite:///relative.db`, `sqlite:////absolute/path.db`, `postgresql://user@host/database` or `memory://`.

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
    server = Server(schema, min_size, max_size, prepare, group, application_name)
    desk = Desk(
        transport_for(url, durability=durability, timeout=timeout, read_only=read_only, server=server),
        tenant=as_id(tenant, "tenant"),
        cache_bytes=as_count(cache_bytes, "cache_bytes"),
    )
    serializer = KeepSerializer(allowed_types=allowed_types) if serde is None else serde
    if claim_timeout is not None and (type(claim_timeout) not in (int, float) or not claim_timeout >= 0):
        raise ValueError(f"claim_timeout must be a number of seconds that is not negative, not {claim_timeout!r}")
    opened = Keep(desk, serializer, index=index, ttl=ttl, claim_timeout=claim_timeout, retention=retention)
    if index is not None or ttl is not None:
        _ = opened.store  # what is wrong with them is said now
    return opened
