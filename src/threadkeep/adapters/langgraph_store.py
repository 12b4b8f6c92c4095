"""LangGraph's store (BaseStore) for long-term memories, sync and async on one object, the same on every backend."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Unpack

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    NamespacePath,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    _ensure_refresh,
    validate_op_namespace,
)

from threadkeep import clock, keep
from threadkeep.adapters.from_conn_string import KeepContext
from threadkeep.drivers.loops import run_in_own_loop
from threadkeep.engine.identity import as_count, as_id
from threadkeep.engine.memories import filters, json_text
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.memories.indexing import EmbeddedTexts, QueryIndex
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, NamespacePattern
from threadkeep.engine.memories.plans import FoundMemory, MemoryQuery, needs_refresh, ttl_microseconds
from threadkeep.engine.memories.requests import MemoryRow, NewMemory
from threadkeep.errors import ReadOnly
from threadkeep.keep import OpenOptions
from threadkeep.plan import Plan
from threadkeep.session import Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONLY_STR = frozenset((str,))
_MAX_COUNT = 10**9
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
    def from_conn_string(cls, url: str, **options: Unpack[OpenOptions]) -> KeepContext[KeepStore]:
        """Return a store for `with` or `async with`. Takes the options of `threadkeep.open`."""
        inspect.signature(keep.open).bind(url, **options)  # so that an unknown option is a TypeError here, not later
        return KeepContext(partial(keep.open, url, **options), lambda opened: opened.store)

    def setup(self) -> Awaitable[None]:
        """Set up the storage now instead of at first use. The result may be awaited."""
        return self._session.setup()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute ops: all reads first, which see the state before the batch, then all puts in one commit."""
        batch = self._check_ops(ops)
        embedded = self._index.embed(chain.from_iterable(batch.texts.values()), batch.queries())
        now = clock.now_us()
        found = self._session.runner.run(self._read(batch, embedded, now))
        if batch.puts:
            self._session.change_outside_threads(lambda: self._write(batch, embedded, now))
        if keys := self._keys_to_refresh(batch, found, now):
            with suppress(ReadOnly):
                self._session.change_outside_threads(self._refresh(keys, now))
        self._session.create_vector_index_if_needed()
        return self._results(batch, found)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Async version of `batch`."""
        batch = self._check_ops(ops)
        embedded = await self._index.aembed(chain.from_iterable(batch.texts.values()), batch.queries())
        now = clock.now_us()
        found = await self._session.runner.arun(lambda: self._read(batch, embedded, now)) if batch.reads else []
        if batch.puts:
            await self._session.achange_outside_threads(lambda: self._write(batch, embedded, now))
        if keys := self._keys_to_refresh(batch, found, now):
            with suppress(ReadOnly):
                await self._session.achange_outside_threads(self._refresh(keys, now))
        self._session.create_vector_index_if_needed()
        return self._results(batch, found)

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """Return a memory, or None if it does not exist. One round trip; one more if it is refreshed.

        Gets are the most frequent calls, so this one does without the steps of a batch.
        """
        now = clock.now_us()
        found = self._session.runner.run(memory_plans.get_one(self._session.tenant, _memory_key(namespace, key), now))
        if found is None:
            return None
        row = found.row
        if row.ttl is not None and _ensure_refresh(self.ttl_config, refresh_ttl) and needs_refresh(row, now):
            with suppress(ReadOnly):
                self._session.change_outside_threads(self._refresh([row.memory_key], now))
        return _item(found)

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
    ) -> list[SearchItem]:
        """Search as `search` does, also below labels that LangGraph refuses but an import stored. Refresh no ttl."""
        op = SearchOp(_check_namespace(namespace_prefix), filter, limit, offset, query)
        embedded = self._index.embed((), [query] if query else [])
        plan = memory_plans.search(self._query(op, embedded, clock.now_us()), self._session.vectors)
        return [_search_item(memory) for memory in self._session.runner.run(plan)]

    def _refresh(self, keys: Sequence[MemoryKey], now: int) -> Callable[[], Plan[None]]:
        return lambda: memory_plans.refresh(self._session.tenant, keys, now)

    def _check_ops(self, ops: Iterable[Op]) -> _CheckedBatch:
        batch = _CheckedBatch([], {}, {}, {}, 0)
        total = 0
        for n, op in enumerate(ops):
            total += 1
            if isinstance(op, PutOp):
                key = _check_put(op)
                batch.puts.pop(key, None)
                batch.puts[key] = op
            else:
                batch.reads.append((n, _check_read(op)))
        for key, op in batch.puts.items():
            if op.value is None:
                continue
            value = op.value if type(op.value) is dict else dict(op.value)
            batch.values[key] = json_text.dump(value)  # first: an invalid value is refused before anything is embedded
            if op.index is not False and self.embeddings is not None:
                batch.texts[key] = self._index.texts(value, op.index)
        return batch._replace(total=total)

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

    async def _write(self, batch: _CheckedBatch, embedded: EmbeddedTexts, now: int) -> None:
        """Execute the puts. Texts are split into words here, in a worker, so that no event loop waits for it."""
        puts = [self._new_memory(key, batch, embedded, now) for key in batch.values]
        deletes = [key for key in batch.puts if key not in batch.values]
        await memory_plans.write(self._session.tenant, puts, deletes, now)

    def _new_memory(self, key: MemoryKey, batch: _CheckedBatch, embedded: EmbeddedTexts, now: int) -> NewMemory:
        op, value = batch.puts[key], batch.values[key]
        ttl = float(op.ttl) if op.ttl is not None else None
        expires = now + ttl_microseconds(ttl) if ttl is not None else None
        row = MemoryRow(key.namespace, key.key, value, now, now, expires, ttl)
        if op.index is False:
            return NewMemory(row)
        words = self._index.words(json_text.load(value), op.index) if self._index.has_words else ""
        return NewMemory(row, tuple([embedded.texts[text] for text in batch.texts.get(key, ())]), words)

    def _keys_to_refresh(self, batch: _CheckedBatch, found: Sequence[Any], now: int) -> list[MemoryKey]:
        """Return the memories whose ttl restarts because they were read, except those that this batch puts."""
        read: list[FoundMemory] = []
        for (_, op), result in zip(batch.reads, found, strict=True):
            if isinstance(op, GetOp) and op.refresh_ttl and result is not None:
                read.append(result)
            elif isinstance(op, SearchOp) and op.refresh_ttl:
                read += result
        keys = (memory.row.memory_key for memory in read if needs_refresh(memory.row, now))
        return [key for key in dict.fromkeys(keys) if key not in batch.puts]

    def _results(self, batch: _CheckedBatch, found: Sequence[Any]) -> list[Result]:
        results: list[Result] = [None] * batch.total
        for (n, op), result in zip(batch.reads, found, strict=True):
            if isinstance(op, GetOp):
                results[n] = _item(result) if result is not None else None
            else:
                results[n] = [_search_item(memory) for memory in result] if isinstance(op, SearchOp) else result
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
    checked = MemoryKey(_check_namespace(namespace), key if type(key) is str else as_id(key, "key"))
    characters = "".join(checked.namespace)
    if "" in checked.namespace or "." in characters or "\x00" in characters:
        validate_op_namespace(GetOp(*checked))  # raises LangGraph's error
    return checked


def _are_str(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _check_index(index: Any) -> None:
    if not (index is None or index is False or (isinstance(index, (list, tuple)) and _are_str(index))):
        raise TypeError(f"index must be False or a list of fields, not {index!r}")


def _to_datetime(microseconds: int) -> datetime:
    return _EPOCH + timedelta(0, 0, microseconds)


def _item(memory: FoundMemory) -> Item:
    row = memory.row
    return Item(
        namespace=row.namespace,
        key=row.key,
        value=memory.value,
        created_at=_to_datetime(row.created),
        updated_at=_to_datetime(row.updated),
    )


def _search_item(memory: FoundMemory) -> SearchItem:
    row = memory.row
    return SearchItem(
        namespace=row.namespace,
        key=row.key,
        value=memory.value,
        created_at=_to_datetime(row.created),
        updated_at=_to_datetime(row.updated),
        score=memory.score,
    )
