"""LangGraph's store (BaseStore) for long-term memories, sync and async on one object, the same on every backend."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Literal, NamedTuple, Unpack

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    NamespacePath,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    _ensure_refresh,
    _ensure_ttl,
    _validate_namespace,
    validate_op_namespace,
)

from threadkeep import clock, keep
from threadkeep.adapters.from_conn_string import KeepContext
from threadkeep.drivers.loops import run_in_own_loop
from threadkeep.engine.identity import as_count, as_id
from threadkeep.engine.memories import filters, json_text
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.memories.indexing import NO_VECTORS, EmbeddedTexts, QueryIndex
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, NamespacePattern
from threadkeep.engine.memories.plans import (
    FoundMemory,
    MemoryQuery,
    decode_memories,
    decode_memory,
    needs_refresh,
    ttl_microseconds,
)
from threadkeep.engine.memories.requests import GetMemories, MemoryRow, NewMemory, WriteMemories
from threadkeep.errors import ReadOnly
from threadkeep.keep import OpenOptions
from threadkeep.plan import Plan
from threadkeep.session import Session
from threadkeep.urls import StorageUrl

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONLY_STR = frozenset((str,))
_ONLY_GETS = frozenset((GetOp,))
_MAX_COUNT = 10**9
_RESERVED = ((), ("langgraph",))
"""How a namespace does not start that LangGraph's `put` accepts."""
_AT_END = {"prefix": False, "suffix": True}


class _CheckedBatch(NamedTuple):
    """The checked ops of a batch.

    `reads` are in order, each with its index in the batch. `puts` has the last put (or delete) of each key; `values`
    has the JSON text of those that store a value, and `texts` what to embed of them.
    """

    reads: list[tuple[int, Op]]
    puts: dict[MemoryKey, PutOp]
    values: dict[MemoryKey, str]
    texts: dict[MemoryKey, tuple[str, ...]]
    total: int

    def queries(self) -> list[str]:
        """Return the queries of all searches."""
        return [op.query for _, op in self.reads if isinstance(op, SearchOp) and op.query]


class StoredMemory(SearchItem):
    """A memory as it is stored: what a search returns, and when it expires; None if it never does."""

    __slots__ = ("expires_at",)

    def __init__(self, item: SearchItem, expires_at: datetime | None) -> None:
        super().__init__(item.namespace, item.key, item.value, item.created_at, item.updated_at, item.score)
        self.expires_at = expires_at


class KeepStore(BaseStore):
    """LangGraph's store on a Keep. Get one from `Keep.store` or `KeepStore.from_conn_string(url)`."""

    supports_ttl = True

    def __init__(self, session: Session, *, index: IndexConfig | None, ttl: TTLConfig | None) -> None:
        self._session = session
        self._index = QueryIndex(index, run=run_in_own_loop)
        self.index_config = index
        self.embeddings = self._index.embeddings
        self.ttl_config = _check_ttl_config(ttl)
        if self._index.dims is not None:
            session.caches.keep_vectors(self._index.dims, self._index.metric)

    @classmethod
    def from_conn_string(cls, url: StorageUrl, **options: Unpack[OpenOptions]) -> KeepContext[KeepStore]:
        """Return a store for `with` or `async with`. Takes the options of `threadkeep.open`."""
        inspect.signature(keep.open).bind(url, **options)  # so that an unknown option is a TypeError here, not later
        return KeepContext(partial(keep.open, url, **options), lambda opened: opened.store)

    def setup(self) -> Awaitable[None]:
        """Set up the storage now instead of at first use. The result may be awaited."""
        return self._session.setup()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute ops: all reads first, which see the state before the batch, then all puts in one commit."""
        ops = list(ops)
        if ops and _ONLY_GETS.issuperset(map(type, ops)):
            now = clock.now_us()
            rows = self._session.read(self._get_request(ops, now))
            self._refresh_now(self._rows_to_refresh(ops, rows, now), now)
            return _items(rows)
        batch = self._check_ops(ops)
        if not batch.reads and self.embeddings is None:
            self._session.write_memories(self._write_request(batch, NO_VECTORS, clock.now_us()))
            return [None] * batch.total
        embedded = self._index.embed(chain.from_iterable(batch.texts.values()), batch.queries())
        now = clock.now_us()
        found = self._session.runner.run(self._read(batch, embedded, now)) if batch.reads else []
        if batch.puts:
            self._session.write_memories(self._write_request(batch, embedded, now))
        self._refresh_now(self._keys_to_refresh(batch, found, now), now)
        self._session.create_vector_index_if_needed()
        return self._results(batch, found)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Async version of `batch`."""
        ops = list(ops)
        if ops and _ONLY_GETS.issuperset(map(type, ops)):
            return await self._aget_all(ops)
        batch = self._check_ops(ops)
        if not batch.reads and self.embeddings is None:
            now = clock.now_us()
            await self._session.awrite_memories(lambda: self._write_request(batch, NO_VECTORS, now))
            return [None] * batch.total
        embedded = NO_VECTORS
        if self.embeddings is not None:
            embedded = await self._index.aembed(chain.from_iterable(batch.texts.values()), batch.queries())
        now = clock.now_us()
        found = await self._session.runner.arun(lambda: self._read(batch, embedded, now)) if batch.reads else []
        if batch.puts:
            await self._session.awrite_memories(lambda: self._write_request(batch, embedded, now))
        if keys := self._keys_to_refresh(batch, found, now):
            with suppress(ReadOnly):
                await self._session.achange_outside_threads(self._refresh(keys, now))
        self._session.create_vector_index_if_needed()
        return self._results(batch, found)

    async def _aget_all(self, ops: Sequence[Any]) -> list[Result]:
        """Execute a batch that has nothing but gets."""
        now = clock.now_us()
        rows, items = await self._session.aread(self._get_request(ops, now), lambda rows: (rows, _items(rows)))
        if keys := self._rows_to_refresh(ops, rows, now):
            with suppress(ReadOnly):
                await self._session.achange_outside_threads(self._refresh(keys, now))
        return items

    def _get_request(self, ops: Sequence[Any], now: int) -> GetMemories:
        """Return the request of a batch of gets. An ordinary get takes no Python call here."""
        keys: list[MemoryKey] = []
        for namespace, key, _ in ops:
            is_plain = type(namespace) is tuple and type(key) is str and _ONLY_STR.issuperset(map(type, namespace))
            if is_plain and _are_labels(namespace):
                keys.append(tuple.__new__(MemoryKey, (namespace, key)))
            else:
                keys.append(_memory_key(namespace, key))
        return GetMemories(self._session.tenant, tuple(keys), now)

    def _rows_to_refresh(self, ops: Sequence[Any], rows: Sequence[MemoryRow | None], now: int) -> list[MemoryKey]:
        """Return the memories whose ttl restarts because a batch of gets read them."""
        keys: dict[MemoryKey, None] = {}
        for row, (_, _, refresh_ttl) in zip(rows, ops, strict=True):
            if row is not None and row[6] is not None and refresh_ttl and needs_refresh(row, now):
                keys[row.memory_key] = None
        return list(keys)

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """Return a memory, or None if it does not exist. One round trip; one more if it is refreshed.

        Gets are the most frequent calls, so this one does without the steps of a batch: `tests/test_store_steps.py`
        counts them.
        """
        now = clock.now_us()
        session = self._session
        (row,) = session.read(GetMemories(session.tenant, (_memory_key(namespace, key),), now))
        if row is None:
            return None
        place, name, text, created, updated, _, ttl = row
        try:
            value = json_text.load(text)
        except (ValueError, RecursionError):
            value = decode_memory(row).value  # raises Corrupt
        if ttl is not None and _ensure_refresh(self.ttl_config, refresh_ttl) and needs_refresh(row, now):
            self._refresh_now([row.memory_key], now)
        made = _EPOCH + timedelta(0, 0, created)
        changed = made if updated == created else _EPOCH + timedelta(0, 0, updated)
        return Item(value=value, key=name, namespace=place, created_at=made, updated_at=changed)

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """Store a memory; the last put wins. One commit.

        With `if_version`, store it only if the memory has this version (see `version_of`), or does not exist if it is
        0; otherwise raise Conflict. An ordinary put does without the steps of a batch: `tests/test_store_steps.py`
        counts them.
        """
        if if_version is not None:
            op = _checked_put(namespace, key, value, index, _ensure_ttl(self.ttl_config, ttl))
            version = as_count(if_version, "if_version")
            embedded = self._index.embed(self._texts_of(op), ())
            self._session.change_outside_threads(lambda: self._put_if(op, embedded, version))
            self._session.create_vector_index_if_needed()
            return
        if not self._is_plain_put(namespace, key, value, index, ttl):
            super().put(namespace, key, value, index, ttl=ttl)
            return
        text, now = json_text.dump(value), clock.now_us()
        self._session.write_memories(self._put_request(namespace, key, text, index, now))

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """Async version of `put`."""
        if if_version is not None:
            op = _checked_put(namespace, key, value, index, _ensure_ttl(self.ttl_config, ttl))
            version = as_count(if_version, "if_version")
            embedded = await self._index.aembed(self._texts_of(op), ()) if self.embeddings is not None else NO_VECTORS
            await self._session.achange_outside_threads(lambda: self._put_if(op, embedded, version))
            self._session.create_vector_index_if_needed()
            return
        if not self._is_plain_put(namespace, key, value, index, ttl):
            await super().aput(namespace, key, value, index, ttl=ttl)
            return
        text, now = json_text.dump(value), clock.now_us()
        await self._session.awrite_memories(partial(self._put_request, namespace, key, text, index, now))

    @staticmethod
    def version_of(item: Item | None) -> int:
        """Return the version of an item that was read, for `put(..., if_version=...)`; 0 for None, which was not there.

        It is the time of the last update in microseconds, and every conditional put makes it greater.
        """
        return 0 if item is None else (item.updated_at - _EPOCH) // timedelta(microseconds=1)

    def _texts_of(self, op: PutOp) -> tuple[str, ...]:
        """Return what is to be embedded of a put."""
        return () if op.index is False or self.embeddings is None else self._index.texts(op.value or {}, op.index)

    def _put_if(self, op: PutOp, embedded: EmbeddedTexts, version: int) -> Plan[None]:
        """Return the plan of a conditional put. The new version is greater than the old, whatever the clock says."""
        now = max(clock.now_us(), version + 1)
        write = self._write_request(self._check_ops([op]), embedded, now)
        return memory_plans.change(write, [(write.puts[0].row.memory_key, version or None)])

    def _is_plain_put(self, namespace: Any, key: Any, value: Any, index: Any, ttl: Any) -> bool:
        """Whether the arguments of a put are ordinary ones, so that nothing is to be checked, embedded or expired."""
        if self.embeddings is not None or not (index is None or index is False):
            return False
        if not (ttl is None or (ttl is NOT_PROVIDED and not self.ttl_config)):
            return False
        return type(namespace) is tuple and type(key) is str and type(value) is dict and _may_put(namespace)

    def _put_request(self, namespace: Namespace, key: str, text: str, index: object, now: int) -> WriteMemories:
        """Return the request that stores a memory. Its words are split here."""
        words = self._index.words(json_text.load(text), None) if index is None and self._index.has_words else ""
        row = tuple.__new__(MemoryRow, (namespace, key, text, now, now, None, None))
        return WriteMemories(self._session.tenant, (tuple.__new__(NewMemory, (row, (), words)),), (), now)

    async def aget(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """Async version of `get`."""
        now = clock.now_us()
        request = GetMemories(self._session.tenant, (_memory_key(namespace, key),), now)
        found = await self._session.aread(request, _decode_first)
        if found is None:
            return None
        row = found.row
        if row.ttl is not None and _ensure_refresh(self.ttl_config, refresh_ttl) and needs_refresh(row, now):
            with suppress(ReadOnly):
                await self._session.achange_outside_threads(self._refresh([row.memory_key], now))
        return _item(found)

    def search(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Return memories below a prefix: those that match the filter, ranked by a query or last updated first.

        Without a query, one round trip, and no steps of a batch: `tests/test_store_steps.py` counts them.
        """
        is_plain = type(namespace_prefix) is tuple and not query and query in ("", None)
        if not (is_plain and _has_labels(namespace_prefix) and _is_count(limit) and _is_count(offset)):
            return super().search(
                namespace_prefix, query=query, filter=filter, limit=limit, offset=offset, refresh_ttl=refresh_ttl
            )
        now = clock.now_us()
        wanted = MemoryQuery(self._session.tenant, namespace_prefix, filters.parse(filter), limit, offset, now)
        found = self._session.runner.run(memory_plans.search(wanted, None))
        keys = [row.memory_key for row, _, _ in found if row.ttl is not None and needs_refresh(row, now)]
        if keys and _ensure_refresh(self.ttl_config, refresh_ttl):
            self._refresh_now(keys, now)
        return _search_items(found)

    def list_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """List the namespaces that have memories. One round trip; more if there are many."""
        _refuse_text(prefix, suffix)
        return super().list_namespaces(prefix=prefix, suffix=suffix, max_depth=max_depth, limit=limit, offset=offset)

    async def alist_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """Async version of `list_namespaces`."""
        _refuse_text(prefix, suffix)
        return await super().alist_namespaces(
            prefix=prefix, suffix=suffix, max_depth=max_depth, limit=limit, offset=offset
        )

    def search_stored(
        self,
        namespace_prefix: tuple[str, ...],
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> list[StoredMemory]:
        """Search as `search` does, also below labels that LangGraph refuses but an import stored. Refresh no ttl."""
        op = SearchOp(_check_namespace(namespace_prefix), filter, limit, offset, query)
        embedded = self._index.embed((), [query] if query else [])
        plan = memory_plans.search(self._query(op, embedded, clock.now_us()), self._session.vectors)
        found = self._session.runner.run(plan)
        return [
            StoredMemory(item, _time(row.expires))
            for item, (row, _, _) in zip(_search_items(found), found, strict=True)
        ]

    def _refresh_now(self, keys: Sequence[MemoryKey], now: int) -> None:
        if keys:
            with suppress(ReadOnly):
                self._session.change_outside_threads(self._refresh(keys, now))

    def _refresh(self, keys: Sequence[MemoryKey], now: int) -> Callable[[], Plan[None]]:
        return lambda: memory_plans.refresh(self._session.tenant, keys, now)

    def _check_ops(self, ops: Iterable[Op]) -> _CheckedBatch:
        """Return the checked ops. An ordinary put takes no Python call here but those of `json_text.dump`."""
        reads: list[tuple[int, Op]] = []
        puts: dict[MemoryKey, PutOp] = {}
        total = 0
        for op in ops:
            if isinstance(op, PutOp):
                namespace, key, value, index, ttl = op
                is_plain = type(namespace) is tuple and type(key) is str and (type(value) is dict or value is None)
                is_plain = is_plain and ttl is None and (index is None or index is False or type(index) is list)
                texts = (*namespace, *(index or ())) if is_plain and namespace else (None,)
                if _ONLY_STR.issuperset(map(type, texts)) and _are_labels(namespace):
                    place = tuple.__new__(MemoryKey, (namespace, key))
                else:
                    place = _check_put(op)
                puts.pop(place, None)
                puts[place] = op
            else:
                reads.append((total, _check_read(op)))
            total += 1
        values: dict[MemoryKey, str] = {}
        embedded: dict[MemoryKey, tuple[str, ...]] = {}
        for place, op in puts.items():
            if op.value is None:
                continue
            value = op.value if type(op.value) is dict else dict(op.value)
            values[place] = json_text.dump(value)  # first: an invalid value is refused before anything is embedded
            if op.index is not False and self.embeddings is not None:
                embedded[place] = self._index.texts(value, op.index)
        return _CheckedBatch(reads, puts, values, embedded, total)

    async def _read(self, batch: _CheckedBatch, embedded: EmbeddedTexts, now: int) -> list[Any]:
        """Return the result of each read. All gets together take one round trip."""
        keys = [MemoryKey(op.namespace, op.key) for _, op in batch.reads if isinstance(op, GetOp)]
        gets = iter(await memory_plans.get(self._session.tenant, keys, now) if keys else [])
        return [next(gets) if isinstance(op, GetOp) else await self._find(op, embedded, now) for _, op in batch.reads]

    def _find(self, op: Op, embedded: EmbeddedTexts, now: int) -> Plan[Any]:
        if isinstance(op, SearchOp):
            return memory_plans.search(self._query(op, embedded, now), self._session.vectors)
        assert isinstance(op, ListNamespacesOp)
        patterns = [NamespacePattern(_AT_END[each.match_type], tuple(each.path)) for each in op.match_conditions or ()]
        return memory_plans.namespaces(self._session.tenant, patterns, op.max_depth, op.limit, op.offset, now)

    def _query(self, op: SearchOp, embedded: EmbeddedTexts, now: int) -> MemoryQuery:
        """Return a search as the plans take it. A store without an index, and one that is off, has no vectors."""
        vector = words = None
        if op.query:
            vector = embedded.queries.get(op.query)
            words = memory_plans.query_words(op.query) if self._index.has_words else None
        filter = filters.parse(op.filter)
        where = (self._session.tenant, op.namespace_prefix, filter, op.limit, op.offset, now)
        return MemoryQuery(*where, vector, words, self._index.only_ranks)

    def _write_request(self, batch: _CheckedBatch, embedded: EmbeddedTexts, now: int) -> WriteMemories:
        """Return the puts and deletes of a batch as a request. Texts are split into words here."""
        puts: list[NewMemory] = []
        index = self._index
        for place, text in batch.values.items():
            op = batch.puts[place]
            ttl = expires = None
            if op.ttl is not None:
                ttl = float(op.ttl)
                expires = now + ttl_microseconds(ttl)
            row = tuple.__new__(MemoryRow, (*place, text, now, now, expires, ttl))
            words = ""
            vectors: tuple[bytes, ...] = ()
            if op.index is not False:
                if index.has_words:
                    words = index.words(json_text.load(text), op.index)
                if batch.texts:
                    vectors = tuple([embedded.texts[each] for each in batch.texts.get(place, ())])
            puts.append(tuple.__new__(NewMemory, (row, vectors, words)))
        deletes = [place for place in batch.puts if place not in batch.values] if len(puts) < len(batch.puts) else ()
        return WriteMemories(self._session.tenant, tuple(puts), tuple(deletes), now)

    def _keys_to_refresh(self, batch: _CheckedBatch, found: Sequence[Any], now: int) -> list[MemoryKey]:
        """Return the memories whose ttl restarts because they were read, except those that this batch puts."""
        keys: dict[MemoryKey, None] = {}
        for (_, op), result in zip(batch.reads, found, strict=True):
            if result is None or not isinstance(op, (GetOp, SearchOp)) or not op.refresh_ttl:
                continue
            for row, _, _ in (result,) if isinstance(op, GetOp) else result:
                if row.ttl is not None and needs_refresh(row, now) and row.memory_key not in batch.puts:
                    keys[row.memory_key] = None
        return list(keys)

    def _results(self, batch: _CheckedBatch, found: Sequence[Any]) -> list[Result]:
        results: list[Result] = [None] * batch.total
        for (n, op), result in zip(batch.reads, found, strict=True):
            if isinstance(op, GetOp):
                results[n] = _item(result) if result is not None else None
            else:
                results[n] = _search_items(result) if isinstance(op, SearchOp) else result
        return results

    def sweep_ttl(self) -> Any:
        """Delete expired memories and return their number. Inside an event loop, return an awaitable instead."""
        return self._session.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Any:
        """Sweep at intervals in a thread, until the Keep is closed or the returned future is cancelled."""
        if sweep_interval_minutes is not None:
            _check_minutes(sweep_interval_minutes, "sweep_interval_minutes")
        return self._session.start_sweeping(sweep_interval_minutes or self._interval())

    def stop_ttl_sweeper(self, timeout: float | None = None) -> Any:
        """Stop sweeping. Return whether it stopped within `timeout` seconds."""
        return self._session.stop_sweeping(timeout)

    def _interval(self) -> float | None:
        return (self.ttl_config or {}).get("sweep_interval_minutes")


def _check_ttl_config(config: Any) -> TTLConfig | None:
    if config is None:
        return None
    known = set(TTLConfig.__annotations__)
    if not isinstance(config, dict):
        raise TypeError(f"ttl must be a dict, not {type(config).__name__}")
    if not config.keys() <= known:
        raise ValueError(f"ttl takes {', '.join(sorted(known))}, not {', '.join(sorted(config.keys() - known))}")
    for name in ("default_ttl", "sweep_interval_minutes"):
        if config.get(name) is not None:
            _check_minutes(config[name], f"ttl[{name!r}]")
    for name in ("refresh_on_read", "omit_expired"):
        if not isinstance(config.get(name, True), bool):
            raise TypeError(f"ttl[{name!r}] must be True or False, not {config[name]!r}")
    checked: Any = config
    return checked  # type: ignore[no-any-return]


def _check_minutes(minutes: Any, name: str = "ttl") -> None:
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)):
        raise TypeError(f"{name} must be a number of minutes, not {type(minutes).__name__}")
    if not 0 <= minutes < 10**9:
        raise ValueError(f"{name} must be a non-negative number of minutes, not {minutes!r}")


def _check_read(op: Op) -> Op:
    """Return a read with normalized arguments, or raise the error for invalid ones."""
    if type(op) is GetOp:
        is_normal = type(op.namespace) is tuple and type(op.key) is str and _has_labels(op.namespace)
    elif type(op) is SearchOp:
        is_normal = type(op.namespace_prefix) is tuple and (op.query is None or type(op.query) is str)
        is_normal = is_normal and _is_count(op.limit) and _is_count(op.offset) and _has_labels(op.namespace_prefix)
    else:
        is_normal = False
    return op if is_normal else _normalize_read(op)


def _normalize_read(op: Op) -> Op:
    """Do the work of `_check_read` for ops with unusual arguments."""
    if isinstance(op, GetOp):
        return op._replace(namespace=_check_labels(op.namespace), key=as_id(op.key, "key"))
    if isinstance(op, SearchOp):
        if op.query is not None and not isinstance(op.query, str):
            raise TypeError(f"query must be a str, not {type(op.query).__name__}")
        op = op._replace(namespace_prefix=_check_labels(op.namespace_prefix))
    elif isinstance(op, ListNamespacesOp):
        if op.max_depth is not None and as_count(op.max_depth, "max_depth") == 0:
            raise ValueError("max_depth must be at least 1")
        op = op._replace(match_conditions=tuple(map(_check_condition, op.match_conditions or ())))
    else:
        raise ValueError(f"unknown operation {type(op).__name__}")  # noqa: TRY004 - as LangGraph's stores do
    return op._replace(limit=_check_count(op.limit, "limit"), offset=_check_count(op.offset, "offset"))


def _checked_put(namespace: Any, key: Any, value: Any, index: Any, ttl: Any) -> PutOp:
    """Return a put that stores a value, or raise the error for invalid arguments, as `BaseStore.put` does."""
    if value is None:
        raise TypeError("value must be a dict, not NoneType")
    _validate_namespace(namespace)
    op = PutOp(namespace, key, value, index, ttl)
    place = _check_put(op)
    return op._replace(namespace=place.namespace, key=place.key)


def _check_put(op: PutOp) -> MemoryKey:
    """Return the key of a put, or raise the error for invalid arguments. Copies nothing: a batch can have hundreds."""
    key = _memory_key(op.namespace, op.key)
    if not key.namespace:
        raise InvalidNamespaceError("a namespace must have at least one segment")
    if op.ttl is not None:
        _check_minutes(op.ttl)
    _check_index(op.index)
    if type(op.value) is not dict and op.value is not None and not isinstance(op.value, Mapping):
        raise TypeError(f"value must be a dict, not {type(op.value).__name__}")
    return key


def _is_count(value: Any) -> bool:
    """Whether a limit or offset is one that databases accept."""
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _check_count(value: Any, name: str) -> int:
    """Return a limit or offset, cut to what databases accept."""
    return min(as_count(value, name), _MAX_COUNT)


def _check_condition(condition: MatchCondition) -> MatchCondition:
    if condition.match_type not in _AT_END:
        raise ValueError(f"match_type must be prefix or suffix, not {condition.match_type!r}")
    path: Any = condition.path
    return condition._replace(path=_check_labels((path,) if isinstance(path, str) else path))


def _refuse_text(*namespaces: Any) -> None:
    """Raise InvalidNamespaceError for a text in place of a namespace: only in a MatchCondition it is one label."""
    for namespace in namespaces:
        if isinstance(namespace, str):
            _check_namespace(namespace)


def _check_labels(namespace: Any) -> Namespace:
    """Return a namespace, or raise LangGraph's InvalidNamespaceError if it may not be read: `()` and `*` may."""
    checked = _check_namespace(namespace)
    validate_op_namespace(GetOp(checked, ""))
    return checked


def _check_namespace(namespace: Any) -> Namespace:
    if not isinstance(namespace, (tuple, list)):
        raise InvalidNamespaceError(
            f"a namespace must be a tuple of str, not {type(namespace).__name__}: {namespace!r}"
        )
    if _ONLY_STR.issuperset(map(type, namespace)):
        return tuple(namespace)
    if not _are_str(namespace):
        raise InvalidNamespaceError(f"the segments of a namespace must be str: {namespace!r}")
    return tuple(map(str, namespace))


def _memory_key(namespace: Any, key: Any) -> MemoryKey:
    if type(namespace) is tuple and type(key) is str and _has_labels(namespace):
        return tuple.__new__(MemoryKey, (namespace, key))
    checked = MemoryKey(_check_namespace(namespace), key if type(key) is str else as_id(key, "key"))
    if not _are_labels(checked.namespace):
        validate_op_namespace(GetOp(*checked))  # raises LangGraph's error
    return checked


def _has_labels(namespace: tuple[Any, ...]) -> bool:
    """Whether a tuple has only plain labels that LangGraph accepts."""
    return _ONLY_STR.issuperset(map(type, namespace)) and _are_labels(namespace)


def _may_put(namespace: tuple[Any, ...]) -> bool:
    """Whether a tuple is a namespace that LangGraph's `put` accepts."""
    return _ONLY_STR.issuperset(map(type, namespace)) and _are_labels(namespace) and namespace[:1] not in _RESERVED


@lru_cache(maxsize=4096)
def _are_labels(namespace: Namespace) -> bool:
    """Whether LangGraph accepts these labels."""
    characters = "".join(namespace)
    return "" not in namespace and "." not in characters and "\x00" not in characters


def _are_str(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _check_index(index: Any) -> None:
    if not (index is None or index is False or (isinstance(index, (list, tuple)) and _are_str(index))):
        raise TypeError(f"index must be False or a list of fields, not {index!r}")


def _decode_first(rows: Sequence[MemoryRow | None]) -> FoundMemory | None:
    return decode_memory(rows[0]) if rows[0] is not None else None


def _item(memory: FoundMemory) -> Item:
    (namespace, key, _, created, updated, _, _), value, _ = memory
    made = _EPOCH + timedelta(0, 0, created)
    changed = made if updated == created else _EPOCH + timedelta(0, 0, updated)
    return Item(value=value, key=key, namespace=namespace, created_at=made, updated_at=changed)


def _items(rows: Sequence[MemoryRow | None]) -> list[Any]:
    """Return the items of rows, None for None. One Python call each: LangGraph's constructor."""
    items: list[Item | None] = []
    for memory in decode_memories([row for row in rows if row is not None]):
        (namespace, key, _, created, updated, _, _), value, _ = memory
        made = _EPOCH + timedelta(0, 0, created)
        changed = made if updated == created else _EPOCH + timedelta(0, 0, updated)
        items.append(Item(value=value, key=key, namespace=namespace, created_at=made, updated_at=changed))
    if len(items) < len(rows):
        found = iter(items)
        items = [None if row is None else next(found) for row in rows]
    return items


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _EPOCH + timedelta(0, 0, microseconds)


def _search_items(memories: Iterable[FoundMemory]) -> list[SearchItem]:
    """Return what a search found. Two calls each: LangGraph's constructors."""
    items = []
    for (namespace, key, _, created, updated, _, _), value, score in memories:
        made = _EPOCH + timedelta(0, 0, created)
        changed = made if updated == created else _EPOCH + timedelta(0, 0, updated)
        items.append(SearchItem(namespace, key, value, made, changed, score))
    return items
