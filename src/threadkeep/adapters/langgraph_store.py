"""LangGraph's store: long-term memories, sync and async on one object, with the same answers on every backend."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping, Sequence
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
from threadkeep.engine.memories.namespaces import MemoryKey, NamespacePattern, Space
from threadkeep.engine.memories.plans import FoundMemory, MemoryQuery, lifetime, needs_refresh
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
    """A batch, checked: what is read, in order, and what is stored or removed, each place once."""

    reads: list[tuple[int, Op]]
    puts: dict[MemoryKey, PutOp]
    values: dict[MemoryKey, str]
    texts: dict[MemoryKey, tuple[str, ...]]
    total: int

    @property
    def changes(self) -> bool:
        """Whether something is stored or removed."""
        return bool(self.puts)

    def queries(self) -> list[str]:
        """The texts that searches ask for."""
        return [op.query for _, op in self.reads if isinstance(op, SearchOp) and op.query]


class KeepStore(BaseStore):
    """LangGraph's store on a Keep. Made by `Keep.store` or `KeepStore.from_conn_string(url)`."""

    supports_ttl = True

    def __init__(self, session: Session, *, index: IndexConfig | None, ttl: TTLConfig | None) -> None:
        self._session = session
        self._index = QueryIndex(index, run=run_in_own_loop, has_words=session.transport.has_words)
        self.index_config = index
        self.embeddings = self._index.embeddings
        self.ttl_config = _check_ttl_config(ttl)
        if self._index.dims is not None:
            session.caches.keep_vectors(self._index.dims, self._index.metric)

    @classmethod
    def from_conn_string(cls, url: str, **options: Unpack[OpenOptions]) -> KeepContext[KeepStore]:
        """A store to use in `with` or `async with`; options as for `threadkeep.open`."""
        inspect.signature(keep.open).bind(url, **options)  # an option that there is not is a TypeError here, not later
        return KeepContext(partial(keep.open, url, **options), lambda opened: opened.store)

    def setup(self) -> Awaitable[None]:
        """Set the storage up now instead of at first use; may be awaited."""
        return self._session.setup()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Reads, which see what was there before, then puts, all or none of them. One commit."""
        asked = self._asked(ops)
        embedded = self._index.embed(chain.from_iterable(asked.texts.values()), asked.queries())
        now = clock.now_us()
        hits = self._session.runner.run(self._reading(asked, embedded, now))
        if asked.changes:
            self._session.change_outside_threads(lambda: self._storing(asked, embedded, now))
        if stale := self._stale(asked, hits, now):
            with suppress(ReadOnly):
                self._session.change_outside_threads(lambda: memory_plans.refresh(self._session.tenant, stale, now))
        self._session.see_to_index()
        return self._results(asked, hits)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same for async callers."""
        asked = self._asked(ops)
        embedded = await self._index.aembed(chain.from_iterable(asked.texts.values()), asked.queries())
        now = clock.now_us()
        hits = await self._session.runner.arun(lambda: self._reading(asked, embedded, now)) if asked.reads else []
        if asked.changes:
            await self._session.achange_outside_threads(lambda: self._storing(asked, embedded, now))
        if stale := self._stale(asked, hits, now):
            with suppress(ReadOnly):
                await self._session.achange_outside_threads(
                    lambda: memory_plans.refresh(self._session.tenant, stale, now)
                )
        self._session.see_to_index()
        return self._results(asked, hits)

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """One memory, if it is there; without what a batch needs, since reading is what stores do most."""
        now = clock.now_us()
        hit = self._session.runner.run(memory_plans.get_one(self._session.tenant, _memory_key(namespace, key), now))
        if (
            hit is not None
            and hit.row.ttl is not None
            and _ensure_refresh(self.ttl_config, refresh_ttl)
            and needs_refresh(hit.row, now)
        ):
            with suppress(ReadOnly):
                self._session.change_outside_threads(
                    lambda: memory_plans.refresh(self._session.tenant, [hit.row.memory_key], now)
                )
        return _item(hit) if hit is not None else None

    def _asked(self, ops: Iterable[Op]) -> _CheckedBatch:
        asked = _CheckedBatch([], {}, {}, {}, 0)
        total = 0
        for n, op in enumerate(ops):
            total += 1
            if isinstance(op, PutOp):
                place = _check_put(op)
                asked.puts.pop(place, None)
                asked.puts[place] = op
            else:
                asked.reads.append((n, _check_read(op)))
        for place, op in asked.puts.items():
            if op.value is None:
                continue
            value = op.value if type(op.value) is dict else dict(op.value)
            asked.values[place] = json_text.dump(value)  # before its texts: it is refused, or copied, now
            if op.index is not False and self.embeddings is not None:
                asked.texts[place] = self._index.texts(value, op.index)
        return asked._replace(total=total)

    async def _reading(self, asked: _CheckedBatch, embedded: EmbeddedTexts, now: int) -> list[Any]:
        """What each read finds; gets are read together."""
        gets = [MemoryKey(op.namespace, op.key) for _, op in asked.reads if isinstance(op, GetOp)]
        got = iter(await memory_plans.get(self._session.tenant, gets, now) if gets else [])
        return [next(got) if isinstance(op, GetOp) else await self._found(op, embedded, now) for _, op in asked.reads]

    def _found(self, op: Op, embedded: EmbeddedTexts, now: int) -> Plan[Any]:
        if isinstance(op, SearchOp):
            return memory_plans.search(self._question(op, embedded, now), self._session.vectors)
        assert isinstance(op, ListNamespacesOp)
        patterns = [NamespacePattern(_AT_END[each.match_type], tuple(each.path)) for each in op.match_conditions or ()]
        return memory_plans.namespaces(self._session.tenant, patterns, op.max_depth, op.limit, op.offset, now)

    def _question(self, op: SearchOp, embedded: EmbeddedTexts, now: int) -> MemoryQuery:
        vector = text = None
        if op.query:
            self._index.can_be_asked()
            vector = embedded.queries.get(op.query)
            text = op.query if self._index.has_words else None
        return MemoryQuery(
            self._session.tenant, op.namespace_prefix, filters.parse(op.filter), op.limit, op.offset, now, vector, text
        )

    async def _storing(self, asked: _CheckedBatch, embedded: EmbeddedTexts, now: int) -> None:
        """What the puts say; words are taken apart here, where no event loop waits."""
        puts = [self._memory(place, asked, embedded, now) for place in asked.values]
        gone = [place for place in asked.puts if place not in asked.values]
        await memory_plans.write(self._session.tenant, puts, gone, now)

    def _memory(self, place: MemoryKey, asked: _CheckedBatch, embedded: EmbeddedTexts, now: int) -> NewMemory:
        op, value = asked.puts[place], asked.values[place]
        ttl = float(op.ttl) if op.ttl is not None else None
        expires = now + lifetime(ttl) if ttl is not None else None
        row = MemoryRow(place.namespace, place.key, value, now, now, expires, ttl)
        if op.index is False:
            return NewMemory(row)
        words = self._index.words(json_text.load(value), op.index) if self._index.has_words else ""
        return NewMemory(row, tuple([embedded.texts[text] for text in asked.texts.get(place, ())]), words)

    def _stale(self, asked: _CheckedBatch, hits: Sequence[Any], now: int) -> list[MemoryKey]:
        """What was read and lives longer for it; not what this batch stores anew."""
        read: list[FoundMemory] = []
        for (_, op), found in zip(asked.reads, hits, strict=True):
            if isinstance(op, GetOp) and op.refresh_ttl and found is not None:
                read.append(found)
            elif isinstance(op, SearchOp) and op.refresh_ttl:
                read += found
        places = (hit.row.memory_key for hit in read if needs_refresh(hit.row, now))
        return [place for place in dict.fromkeys(places) if place not in asked.puts]

    def _results(self, asked: _CheckedBatch, hits: Sequence[Any]) -> list[Result]:
        results: list[Result] = [None] * asked.total
        for (n, op), found in zip(asked.reads, hits, strict=True):
            if isinstance(op, GetOp):
                results[n] = _item(found) if found is not None else None
            else:
                results[n] = [_search_item(hit) for hit in found] if isinstance(op, SearchOp) else found
        return results

    def sweep_ttl(self) -> Any:
        """Remove what has expired; how many memories it were. Inside an event loop it gives something to await."""
        return self._session.sweep()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Any:
        """Sweep now and then, in a thread, until the Keep is closed or the future that this returns is cancelled."""
        if sweep_interval_minutes is not None:
            _check_minutes(sweep_interval_minutes, "sweep_interval_minutes")
        return self._session.start_sweeping(sweep_interval_minutes or self._interval())

    def stop_ttl_sweeper(self, timeout: float | None = None) -> Any:
        """Stop sweeping; whether it has stopped."""
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


def _check_minutes(given: Any, what: str = "ttl") -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"{what} must be a number of minutes, not {type(given).__name__}")
    if not 0 <= given < 10**9:
        raise ValueError(f"{what} must be a number of minutes that is not negative: {given!r}")
    return float(given)


def _check_read(op: Op) -> Op:
    """An operation with everything in its place, or the error."""
    if isinstance(op, GetOp):
        return op._replace(namespace=_check_namespace(op.namespace), key=as_id(op.key, "key"))
    if isinstance(op, SearchOp):
        if op.query is not None and not isinstance(op.query, str):
            raise TypeError(f"query must be a str, not {type(op.query).__name__}")
        op = op._replace(namespace_prefix=_check_namespace(op.namespace_prefix))
    elif isinstance(op, ListNamespacesOp):
        if op.max_depth is not None and as_count(op.max_depth, "max_depth") == 0:
            raise ValueError("max_depth must be at least 1")
        op = op._replace(match_conditions=tuple(map(_check_condition, op.match_conditions or ())))
    else:
        raise ValueError(f"unknown operation {type(op).__name__}")  # noqa: TRY004 - as LangGraph's stores do
    return op._replace(limit=_check_count(op.limit, "limit"), offset=_check_count(op.offset, "offset"))


def _check_put(op: PutOp) -> MemoryKey:
    """Where something is put, or the error if it cannot be; no copy is made of what a batch may have a hundred of."""
    place = _memory_key(op.namespace, op.key)
    if not place.namespace:
        raise InvalidNamespaceError("a namespace has at least one segment")
    if op.ttl is not None:
        _check_minutes(op.ttl)
    _check_index(op.index)
    if type(op.value) is not dict and op.value is not None and not isinstance(op.value, Mapping):
        raise TypeError(f"value must be a dict, not {type(op.value).__name__}")
    return place


def _check_count(value: Any, what: str) -> int:
    """A number of memories; more than there can be is no more than that."""
    return min(as_count(value, what), _MAX_COUNT)


def _check_condition(condition: MatchCondition) -> MatchCondition:
    if condition.match_type not in _AT_END:
        raise ValueError(f"match_type must be prefix or suffix, not {condition.match_type!r}")
    return condition._replace(path=_check_namespace(condition.path))


def _check_namespace(namespace: Any) -> Space:
    if not isinstance(namespace, (tuple, list)):
        raise InvalidNamespaceError(f"a namespace is a tuple of str, not {type(namespace).__name__}: {namespace!r}")
    if _ONLY_STR.issuperset(map(type, namespace)):
        return tuple(namespace)
    if not _are_str(namespace):
        raise InvalidNamespaceError(f"the segments of a namespace are str: {namespace!r}")
    return tuple(map(str, namespace))


def _memory_key(namespace: Any, key: Any) -> MemoryKey:
    place = MemoryKey(_check_namespace(namespace), key if type(key) is str else as_id(key, "key"))
    letters = "".join(place.namespace)
    if "" in place.namespace or "." in letters or "\x00" in letters:
        validate_op_namespace(GetOp(*place))  # says what is wrong with it
    return place


def _are_str(given: Iterable[Any]) -> bool:
    return all(isinstance(each, str) for each in given)


def _check_index(index: Any) -> None:
    if not (index is None or index is False or (isinstance(index, (list, tuple)) and _are_str(index))):
        raise TypeError(f"index must be False or a list of fields, not {index!r}")


def _to_datetime(microseconds: int) -> datetime:
    return _EPOCH + timedelta(0, 0, microseconds)


def _item(hit: FoundMemory) -> Item:
    row = hit.row
    return Item(
        namespace=row.namespace,
        key=row.key,
        value=hit.value,
        created_at=_to_datetime(row.created),
        updated_at=_to_datetime(row.updated),
    )


def _search_item(hit: FoundMemory) -> SearchItem:
    row = hit.row
    return SearchItem(
        namespace=row.namespace, key=row.key, value=hit.value, created_at=_to_datetime(row.created),
        updated_at=_to_datetime(row.updated), score=hit.score,
    )  # fmt: skip
