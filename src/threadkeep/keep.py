"""The Keep: one store of threads, with its faces. Sync and async, from any thread and any event loop."""

from __future__ import annotations

import asyncio
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, TypeVar

from threadkeep.engine import catalogue, checkpoints, copy, prune, remembering
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.gate import AllowedType, KeepSerializer
from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id
from threadkeep.engine.memories import IndexVectors
from threadkeep.engine.remembering import Vectors
from threadkeep.engine.talks import plans as talks
from threadkeep.errors import Closed, ReadOnly
from threadkeep.plan import Outcome, Plan, result
from threadkeep.transports.runner import Runner, Transport
from threadkeep.transports.sweeper import Sweeper, Sweeping, in_background, run_apart
from threadkeep.urls import Server, transport_for

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, TTLConfig
    from psycopg_pool import ConnectionPool

    from threadkeep.adapters.cube import KeepCube
    from threadkeep.adapters.saver import KeepSaver
    from threadkeep.adapters.store import KeepStore

__all__ = ["Desk", "Keep", "OpenOptions", "as_count", "draw", "now", "now_exactly", "open", "run_apart"]
T = TypeVar("T")
_Change: TypeAlias = tuple[ThreadKey, Callable[[], Plan[None]]]
"""A thread, and the plan that changes it."""
_SWEEP_MINUTES = 5.0
_SERDES = (("dumps_typed", "loads_typed"), ("dumps", "loads"))


@dataclass(slots=True)
class AtHand:
    """What a Keep remembers between calls."""

    heads: Heads
    vectors: Vectors | None = None

    def clear(self) -> None:
        """It may not be true any more."""
        self.heads.clear()
        if self.vectors is not None:
            self.vectors.clear()


class Desk:
    """What the faces of a Keep share: the runner, what is remembered of threads, and the tenant."""

    def __init__(self, transport: Transport, *, tenant: str, cache_bytes: int) -> None:
        self.transport = transport
        self.tenant = tenant
        self.at_hand = AtHand(Heads(cache_bytes))
        self._cache_bytes = cache_bytes
        transport.on_loss = self.at_hand.clear
        self._sweeper = Sweeper(partial(_sweep, weakref.ref(self)))  # a sweeper keeps no Keep alive
        self.runner = Runner(transport, on_fork=self.at_hand.clear, on_close=self._sweeper.stop)

    @property
    def heads(self) -> Heads:
        """What is remembered of threads."""
        return self.at_hand.heads

    @property
    def vectors(self) -> Vectors | None:
        """What is at hand of vectors, if the store has any."""
        return self.at_hand.vectors

    def keep_vectors(self, dims: int, measure: str) -> None:
        """Have vectors of so many dimensions at hand, where the storage does not compare them itself."""
        self.transport.wants_vectors = True
        if self.vectors is None:
            self.at_hand.vectors = Vectors(dims, measure, self._cache_bytes // 2)

    def key(self, kind: str, id: str) -> ThreadKey:
        """A thread of this tenant."""
        return ThreadKey(self.tenant, kind, id)

    def change(self, key: ThreadKey, make: Callable[[], Any]) -> Any:
        """Make an op and commit it, together with what waits for the same thread; what it gives."""
        return self.runner.change(key, self._together(key), make)

    async def achange(self, key: ThreadKey, make: Callable[[], Any]) -> Any:
        """The same for async callers."""
        return await self.runner.achange(key, self._together(key), make)

    def exclusive(self, key: ThreadKey, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that changes a thread while no other change of it is under way here."""
        return self.runner.exclusive(key, self._together(key), make)

    async def aexclusive(self, key: ThreadKey, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        return await self.runner.aexclusive(key, self._together(key), make)

    def apart(self, make: Callable[[], Plan[T]]) -> T:
        """Drive a plan that changes something but no thread, beside all others."""
        return self.runner.exclusive(object(), _no_ops, make)

    async def aapart(self, make: Callable[[], Plan[T]]) -> T:
        """The same for async callers."""
        return await self.runner.aexclusive(object(), _no_ops, make)

    def see_to_index(self) -> None:
        """Have an index of vectors made in the background, if somebody met so many that one is needed."""
        vectors = self.vectors
        if vectors is not None and vectors.wants_index:
            vectors.wants_index = False
            request = IndexVectors(vectors.dims, vectors.measure)
            in_background(lambda: result(self.transport.write([request])[0]))

    def sweep(self) -> Any:
        """Remove expired memories; how many. Inside an event loop it gives something to await."""
        if _in_a_loop():
            return asyncio.ensure_future(self.aapart(lambda: remembering.sweep(now_exactly())))
        return self.apart(lambda: remembering.sweep(now_exactly()))

    def start_sweeping(self, minutes: float | None) -> Sweeping:
        """Sweep every so many minutes until it is stopped."""
        self.runner.check_open()
        if self.transport.read_only:
            raise ReadOnly
        return self._sweeper.start(minutes or _SWEEP_MINUTES)

    def stop_sweeping(self, timeout: float | None = None) -> Any:
        """Stop sweeping; whether it has stopped. Inside an event loop it gives something to await."""
        if _in_a_loop():
            return asyncio.get_running_loop().run_in_executor(None, self._sweeper.stop, timeout)
        return self._sweeper.stop(timeout)

    def _together(self, key: ThreadKey) -> Callable[[Sequence[Any]], Plan[list[Outcome]]]:
        write = talks.write if key.kind == CUBE else checkpoints.write
        return lambda ops: write(self.heads, key, ops)

    def setup(self) -> Awaitable[None]:
        """Set the storage up now; inside an event loop that happens on a worker, so await it there."""
        if not _in_a_loop():
            self.runner.run(_setup(self.transport))
            return _Done()
        return asyncio.ensure_future(self.runner.arun(lambda: _setup(self.transport)))


def _sweep(desk: weakref.ref[Desk]) -> int:
    alive = desk()
    if alive is None:
        raise Closed
    return alive.apart(lambda: remembering.sweep(now_exactly()))


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _no_ops(ops: Sequence[Any]) -> list[Outcome]:
    """Where there are only plans."""
    raise AssertionError(f"ops of no thread: {ops}")


async def _setup(transport: Transport) -> None:
    transport.setup()


class _Done:
    """Something to await that is done already."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def now_exactly() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1_000


def draw() -> int:
    """A random number for an epoch."""
    return secrets.randbits(62)


class Keep:
    """Threads of AI agents, kept. Made by `threadkeep.open(url)`; usable with or without `with` and `async with`."""

    def __init__(
        self, desk: Desk, serde: Any, *, index: Any = None, ttl: Any = None, claim_timeout: float | None = None
    ) -> None:
        self._desk = desk
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

    def sweep(self) -> int:
        """Remove what has expired; how many memories it were."""
        return self._desk.apart(lambda: remembering.sweep(now_exactly()))

    async def asweep(self) -> int:
        """The same for async callers."""
        return await self._desk.aapart(lambda: remembering.sweep(now_exactly()))

    def threads(
        self,
        *,
        limit: int = 50,
        after: str | ThreadInfo | None = None,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        order: str = "updated",
        kind: str | None = None,
    ) -> list[ThreadInfo]:
        """A page of the thread catalogue, both kinds, read from the thread rows alone.

        `order` is updated, created or bytes (greatest first) or id; `after` is the last thread of the page before,
        best as its ThreadInfo. `metadata` compares with that of each thread's newest root checkpoint. One round trip.
        """
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        return self._desk.runner.run(catalogue.threads(query, wanted, last))

    async def athreads(
        self,
        *,
        limit: int = 50,
        after: str | ThreadInfo | None = None,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        order: str = "updated",
        kind: str | None = None,
    ) -> list[ThreadInfo]:
        """The same for async callers."""
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        return await self._desk.runner.arun(lambda: catalogue.threads(query, wanted, last))

    def _query(
        self, limit: int, after: Any, prefix: str, metadata: Any, status: str | None, order: str, kind: str | None
    ) -> tuple[Any, Mapping[str, Any], str | None]:
        if metadata is not None and not (
            isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)
        ):
            raise TypeError(f"metadata must be a dict with str keys, not {metadata!r}")
        query = catalogue.query(
            self._desk.tenant, limit=as_count(limit, "limit"), after=after, prefix=as_id(prefix, "prefix"),
            metadata=metadata, status=status, order=order, kind=_checked_kind(kind),
        )  # fmt: skip
        last = None if after is None or isinstance(after, ThreadInfo) else as_id(after, "after")
        return query, dict(metadata or {}), last

    def delete(self, thread_id: str, *, kind: str | None = None) -> bool:
        """Remove a thread and all that it holds; whether it was there. `kind` is needed where both kinds have this id."""
        return self._change(thread_id, kind, self._deleting)

    async def adelete(self, thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(thread_id, kind, self._deleting)

    def copy(self, source_thread_id: str, target_thread_id: str, *, kind: str | None = None) -> bool:
        """Copy a thread with all its checkpoints; whether it was there. The copy survives it.

        Of a LangGraph thread, checkpoints that the target has stay; onto a CubeLoop thread that exists it is a
        ValueError.
        """
        return self._change(source_thread_id, kind, self._copying(target_thread_id))

    async def acopy(self, source_thread_id: str, target_thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(source_thread_id, kind, self._copying(target_thread_id))

    def prune(self, thread_id: str, *, kind: str | None = None) -> bool:
        """Keep only the latest checkpoint of each namespace, and what it needs; whether the thread was there."""
        return self._change(thread_id, kind, self._pruning)

    async def aprune(self, thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(thread_id, kind, self._pruning)

    def _deleting(self, key: ThreadKey) -> _Change:
        return key, lambda: prune.delete(self._desk.heads, key)

    def _pruning(self, key: ThreadKey) -> _Change:
        return key, lambda: prune.prune(self._desk.heads, key, prune.KEEP_LATEST, draw())

    def _copying(self, target_thread_id: str) -> Callable[[ThreadKey], _Change]:
        id = as_id(target_thread_id, "target_thread_id")

        def of(source: ThreadKey) -> _Change:
            target = self._desk.key(source.kind, id)
            return target, lambda: copy.copy(self._desk.heads, source, target, now(), draw())

        return of

    def _change(self, thread_id: str, kind: str | None, change: Callable[[ThreadKey], _Change]) -> bool:
        """Change a thread, if it is there."""
        key = self._desk.runner.run(self._key_of(thread_id, kind))
        if key is not None:
            self._desk.exclusive(*change(key))
        return key is not None

    async def _achange(self, thread_id: str, kind: str | None, change: Callable[[ThreadKey], _Change]) -> bool:
        key = await self._desk.runner.arun(lambda: self._key_of(thread_id, kind))
        if key is not None:
            await self._desk.aexclusive(*change(key))
        return key is not None

    def _key_of(self, thread_id: str, kind: str | None) -> Plan[ThreadKey | None]:
        return catalogue.key_of(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))

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


def _checked_kind(kind: str | None) -> str | None:
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    return kind


def as_count(value: Any, what: str) -> int:
    """A number of things: an int that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{what} must not be negative: {value}")
    return value


class OpenOptions(TypedDict, total=False):
    """The options of `threadkeep.open`."""

    serde: Any
    index: IndexConfig | None
    ttl: TTLConfig | None
    claim_timeout: float | None
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
    was claimed may be claimed again.

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
    opened = Keep(desk, serializer, index=index, ttl=ttl, claim_timeout=claim_timeout)
    if index is not None or ttl is not None:
        _ = opened.store  # what is wrong with them is said now
    return opened
