"""All stores give the same results: each random batch is applied to all backends and to a reference.

Memory, SQLite and PostgreSQL, each with five Keeps on the same storage: two that find by vectors and by words (on
PostgreSQL the second lets pgvector rank, because it has no cache), one with vectors only, one with words only, one
without an index, which ranks by words. Any of them reads and writes, sync or async; the clock stands still unless it is
moved. The same on Valkey, in fewer examples.

The reference is LangGraph's InMemoryStore, where it is right. Where it is not, `Peer` corrects it:

    order without a query    newest first, then namespace and key; InMemoryStore has insertion order
    created_at               an overwrite keeps it; InMemoryStore moves it
    ttl                      InMemoryStore has none; expired items are deleted from it
    empty namespaces         are not listed; InMemoryStore lists them, and those that were only read
    filters                  those of `LACKING`: InMemoryStore has fewer operators, no paths, and True == 1
    vectors                  an overwrite replaces all; InMemoryStore keeps those of removed fields
    the same text twice      is embedded once; InMemoryStore raises on duplicates in a batch, so it gets single puts
    items without vectors    are not found by a query; InMemoryStore fills pages with them
    words                    InMemoryStore does not rank by words

Vector scores agree to 1e-5, word scores exactly. Hits by both are compared as sets, and pages with the whole result.
`THREADKEEP_HYPOTHESIS=prove` searches longer.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from langgraph.store.base import (
    GetOp,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
    get_text_at_path,
    tokenize_path,
)
from langgraph.store.memory import InMemoryStore

import shared_pool
import stored_memories
from hypothesis_profiles import machine_settings
from threadkeep import clock
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.conformance.store.embedder import DIMS, UNEMBEDDABLE, embed
from threadkeep.drivers.runner import Transport
from threadkeep.engine.memories.filters import matches, parse
from threadkeep.engine.memories.namespaces import MemoryKey, memory_number
from threadkeep.keep import Keep
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport
from threadkeep.transports.direct import Direct
from threadkeep.transports.sqlite import SqliteFile

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = 60_000_000
ALL = 1000
"""More items than there ever are."""

SPACES = [("a",), ("a",), ("a", "b"), ("a", "b", "c"), ("ab", "*"), ("A", "b"), ("é\x01", "\ud83d")]
KEYS = ["k", "k", "K", "", "ключ.\x00"]
PREFIXES = [(), (), *SPACES, ("a", "c"), ("nowhere",), ("*",)]
PATHS = [("a",), ("*",), ("*", "b"), ("a", "*"), ("b",), ("b", "c"), ("*", "*", "c"), ("é\x01",), ("z",)]
TEXTS = ["apple", "apple pear", "pear plum plum", "rain", "rain snow", "wind and sea", "nothing known", ""]
QUERIES = ["apple", "pear plum", "rain", "snow sea wind", "nothing", "1 x plum", "?!"]
FIELDS = ["text", "about.title", "notes[*].text"]
INDEXES = [None] * 5 + [False, ["text"], ["about.title"], ["notes[0].text", "text"], []]

RIGHT: list[dict[str, Any]] = [
    {}, {"kind": "x"}, {"kind": {"$ne": "x"}}, {"size": {"$gt": 1}}, {"size": {"$gte": 1, "$lt": 3}}, {"size": 2},
    {"size": {"$lte": 2}, "kind": {"$eq": "y"}}, {"about": {"title": "APPLE"}}, {"tags": ["u", "v"]}, {"tags": []},
]  # fmt: skip
"""Filters that InMemoryStore answers correctly for the values below."""
LACKING: list[dict[str, Any]] = [
    {"odd": True}, {"odd": 1}, {"odd": None}, {"odd": {"$ne": 1}}, {"odd": {"$gt": 0}}, {"odd": {"$lt": "b"}},
    {"kind": {"$in": ["x", "z"]}}, {"size": {"$nin": [1, 2, None]}}, {"odd": {"$exists": True}},
    {"tags": {"$contains": "u"}}, {"odd": {"$contains": "b"}}, {"about.title": "APPLE"}, {"about.size": {"$gte": 2}},
    {"l.m": 1}, {"$or": [{"kind": "x"}, {"size": {"$gt": 2}}]}, {"$not": {"kind": "x"}},
    {"$and": [{"kind": {"$ne": "x"}}, {"odd": {"$not": {"$gt": 1}}}]}, {"odd": {"$gt": 2**53}}, {"odd": 2**53 + 1},
]  # fmt: skip
ODD = [True, False, 0, 1, 1.0, None, "b", "bb", [1], {"b": 1}, 2**53, 2**53 + 1, float(2**53), -0.5]

NEAR = {"dims": DIMS, "embed": embed, "fields": FIELDS}
KINDS: list[dict[str, Any]] = [
    {**NEAR, "search": "hybrid"},
    {**NEAR, "search": "hybrid"},
    {**NEAR, "search": "vector"},
    {"search": "text", "fields": FIELDS},
    {},
]
FIRST, RANKED, NEAREST, WORDED, PLAIN = range(5)
"""The Keeps of each storage; the second has no cache for vectors, the last has no index."""
BUDGETS = [1 << 26, 0, 1 << 26, 1 << 26, 1 << 26]

notes = st.lists(st.sampled_from([f"{text} !" for text in TEXTS]), max_size=3, unique=True)
values = st.fixed_dictionaries(
    {"kind": st.sampled_from("xyz"), "size": st.integers(0, 3), "tags": st.sampled_from([[], ["u"], ["u", "v"]])},
    optional={
        "text": st.sampled_from(TEXTS),
        "about": st.sampled_from([{"title": text.upper(), "size": len(text) % 4} for text in TEXTS[:-1]]),
        "notes": notes.map(lambda texts: [{"text": text} for text in texts]),
        "odd": st.sampled_from(ODD),
        "l.m": st.just(1),
        "l": st.just({"m": 2}),
        "\x00\ud83d": st.just("\x01\ude00"),
    },
)
puts = st.builds(
    PutOp, st.sampled_from(SPACES), st.sampled_from(KEYS), values, st.sampled_from(INDEXES),
    st.sampled_from([None, None, None, 0, 1, 10, 100.7 / MINUTE]),
)  # fmt: skip
deletes = st.builds(PutOp, st.sampled_from(SPACES), st.sampled_from(KEYS), st.none(), st.none(), st.none())
gets = st.builds(GetOp, st.sampled_from(SPACES), st.sampled_from(KEYS), st.booleans())
filters = st.sampled_from([None, *RIGHT, *LACKING])
browses = st.builds(
    SearchOp, st.sampled_from(PREFIXES), filters, st.sampled_from([0, 1, 2, 10, ALL]), st.sampled_from([0, 0, 1, 5]),
    st.none(), st.booleans(),
)  # fmt: skip
conditions = st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), st.sampled_from(PATHS))
listings = st.builds(
    ListNamespacesOp, st.lists(conditions, max_size=2).map(tuple), st.sampled_from([None, None, 1, 2, 3]),
    st.sampled_from([1, 2, ALL]), st.sampled_from([0, 0, 1]),
)  # fmt: skip
changes = st.one_of(puts, puts, puts, deletes)
reads = st.one_of(gets, browses, listings)
batches = st.lists(st.one_of(changes, changes, reads), min_size=2, max_size=8)


@dataclass(frozen=True, slots=True)
class Life:
    """What InMemoryStore does not store of an item; `words` are those that find it, with their counts."""

    created: int
    updated: int
    expires: int | None
    ttl: float | None
    words: Counter[str]


@dataclass(slots=True)
class Peer:
    """InMemoryStore, and what it lacks."""

    store: InMemoryStore = field(default_factory=lambda: InMemoryStore(index=NEAR))
    lives: dict[MemoryKey, Life] = field(default_factory=dict)
    unswept: set[MemoryKey] = field(default_factory=set)

    def batch(self, ops: Sequence[Any], index: dict[str, Any], now: int) -> list[Any]:
        """Apply reads, then puts, then restart the TTL of what was read."""
        self.forget_what_is_over(now)
        found = [None if isinstance(op, PutOp) else self.read(op) for op in ops]
        put = {MemoryKey(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        for memory_key, op in put.items():
            self.change(memory_key, op, index, now)
        for memory_key in {
            memory_key for op, one in zip(ops, found, strict=True) for memory_key in _refreshed(op, one)
        } - put.keys():
            self.refresh(memory_key, now)
        return found

    def forget_what_is_over(self, now: int) -> None:
        over = [
            memory_key for memory_key, life in self.lives.items() if life.expires is not None and life.expires <= now
        ]
        for memory_key in over:
            self.forget(memory_key)
            self.unswept.add(memory_key)

    def forget(self, memory_key: MemoryKey) -> None:
        self.store.delete(*memory_key)
        self.lives.pop(memory_key, None)
        for space in [space for space, items in self.store._data.items() if not items]:
            del self.store._data[space]

    def change(self, memory_key: MemoryKey, op: PutOp, index: dict[str, Any], now: int) -> None:
        life = self.lives.get(memory_key)
        self.forget(memory_key)
        self.unswept.discard(memory_key)
        if op.value is not None:
            self.store.batch([op if "embed" in index else op._replace(index=False)])
            expires = None if op.ttl is None else now + int(op.ttl * MINUTE)
            words = _words(op, index) if index.get("search") != "vector" else Counter[str]()
            self.lives[memory_key] = Life(life.created if life else now, now, expires, op.ttl, words)

    def refresh(self, memory_key: MemoryKey, now: int) -> None:
        life = self.lives[memory_key]
        if life.ttl is not None and life.expires is not None:
            whole = int(life.ttl * MINUTE)
            if now + whole - life.expires >= 0.01 * whole:
                self.lives[memory_key] = replace(life, expires=now + whole)

    def sweep(self, now: int) -> int:
        self.forget_what_is_over(now)
        swept = len(self.unswept)
        self.unswept.clear()
        return swept

    def read(self, op: Any) -> Any:
        if isinstance(op, GetOp):
            there = MemoryKey(op.namespace, op.key) in self.lives
            return self.dump_item(self.store.get(op.namespace, op.key)) if there else None
        if isinstance(op, SearchOp):
            return self.browse(op)
        return self.store.batch([op])[0]

    def browse(self, op: SearchOp) -> list[Any]:
        found = sorted(self.matching(op.namespace_prefix, op.filter), key=self.newest_first)
        return [self.dump_item(item) for item in found[op.offset : op.offset + op.limit]]

    def matching(self, prefix: tuple[str, ...], filter: Any, query: str | None = None) -> list[Any]:
        """Return all items that match, by InMemoryStore's filter where it is right."""
        own = filter is None or filter in RIGHT
        found = self.store.search(prefix, query=query, filter=filter if own else None, limit=ALL)
        return found if own else [item for item in found if matches(parse(filter), item.value)]

    def newest_first(self, item: Any) -> Any:
        return (-self.lives[_place(item)].updated, item.namespace, item.key)

    def dump_item(self, item: Any) -> Any:
        life = self.lives[_place(item)]
        return (item.namespace, item.key, json.dumps(item.value), life.created, life.updated)

    def near(self, op: SearchOp) -> dict[MemoryKey, float]:
        """Return all items that match and have vectors, with their scores."""
        found = self.matching(op.namespace_prefix, op.filter, op.query)
        return {_place(item): item.score for item in found if item.score is not None}

    def worded(self, op: SearchOp) -> dict[MemoryKey, float]:
        """Return all items that match and contain a word of the query, best first, with their scores."""
        scores: dict[MemoryKey, float] = {}
        ranks: dict[MemoryKey, Any] = {}
        for item in self.matching(op.namespace_prefix, op.filter):
            life = self.lives[_place(item)]
            counts = [life.words[word] for word in set(str(op.query).split()) if word in life.words]
            if counts:
                scores[_place(item)] = len(counts) + sum(counts) / (sum(counts) + 1)
                ranks[_place(item)] = (-len(counts), -sum(counts), self.newest_first(item))
        return {memory_key: scores[memory_key] for memory_key in sorted(scores, key=ranks.__getitem__)}

    def others(self, op: SearchOp, found: Iterable[MemoryKey]) -> list[MemoryKey]:
        """Return all items that match but were not found, newest first."""
        matching = sorted(self.matching(op.namespace_prefix, op.filter), key=self.newest_first)
        return [memory_key for memory_key in map(_place, matching) if memory_key not in set(found)]


def _refreshed(op: Any, found: Any) -> Iterable[MemoryKey]:
    """Restart the TTL of what a read found."""
    if isinstance(op, (GetOp, SearchOp)) and op.refresh_ttl and found:
        return [MemoryKey(one[0], one[1]) for one in (found if isinstance(found, list) else [found])]
    return []


def _words(op: PutOp, index: dict[str, Any]) -> Counter[str]:
    if op.index is None and not index:
        texts: Iterable[str] = _leaves(op.value)
    else:
        paths = FIELDS if op.index is None else op.index or []
        texts = (text for path in paths for text in get_text_at_path(op.value, tokenize_path(path)))
    return Counter(word for text in texts for word in re.findall("[a-z0-9]+", text.lower()))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _place(item: Any) -> MemoryKey:
    return MemoryKey(item.namespace, item.key)


def dump_item(found: Any) -> Any:
    """Return a batch's results without scores; types and order inside values count."""
    if isinstance(found, list):
        return [one if isinstance(one, tuple) else dump_item(one) for one in found]
    if found is None:
        return None
    times = ((time - EPOCH) // timedelta(microseconds=1) for time in (found.created_at, found.updated_at))
    return (found.namespace, found.key, json.dumps(found.value), *times)


def spelled(op: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return an op as a call of a verb."""
    if isinstance(op, GetOp):
        return "get", op[:2], {"refresh_ttl": op.refresh_ttl}
    if isinstance(op, SearchOp):
        _, *names = op._fields
        return "search", (op[0],), {name: getattr(op, name) for name in names}
    if isinstance(op, PutOp):
        return ("delete", op[:2], {}) if op.value is None else ("put", op[:4], {"ttl": op.ttl})
    paths = {condition.match_type: condition.path for condition in op.match_conditions}
    return "list_namespaces", (), {**paths, "max_depth": op.max_depth, "limit": op.limit, "offset": op.offset}


class Storage:
    """One storage and the Keeps on it."""

    def __init__(
        self,
        name: str,
        reach: Callable[[], Transport],
        *,
        where: Path | str | None,
        tenant: str = "",
    ) -> None:
        self.name, self.tenant = name, tenant
        self._reach, self._where = reach, where
        self._runner = asyncio.Runner()
        self._keeps = [self._open(which) for which in range(len(KINDS))]
        self._keeps[FIRST].setup()

    def _open(self, which: int) -> Keep:
        transport = self._reach()
        if not isinstance(transport, TenantTransport):  # an encrypted storage has one already
            transport = TenantTransport(transport, self.tenant)
        session = Session(transport, tenant=self.tenant, caches=Caches(BUDGETS[which]))
        return Keep(session, None, index=KINDS[which])

    def reopen(self, which: int) -> None:
        self._keeps[which].close()
        self._keeps[which] = self._open(which)

    def batch(self, which: int, ops: Sequence[Any], *, is_async: bool = False) -> list[Any]:
        store = self._keeps[which].store
        return self._runner.run(store.abatch(ops)) if is_async else store.batch(ops)

    def one(self, which: int, op: Any, *, is_async: bool) -> Any:
        """Call the verb of the op instead of `batch`."""
        verb, args, kwargs = spelled(op)
        store = self._keeps[which].store
        if is_async:
            return self._runner.run(getattr(store, f"a{verb}")(*args, **kwargs))
        return getattr(store, verb)(*args, **kwargs)

    def search(self, which: int, op: SearchOp, *, is_async: bool = False) -> list[Any]:
        found: list[Any] = self.batch(which, [op], is_async=is_async)[0]
        return found

    def sweep(self, which: int, *, is_async: bool) -> int | None:
        keep = self._keeps[which]
        return (self._runner.run(keep.asweep()) if is_async else keep.sweep()).memories

    def close(self) -> None:
        for keep in self._keeps:
            keep.close()
        self._runner.close()

    def number(self, memory_key: MemoryKey) -> int:
        """Return the number of a memory, which orders those of equal score."""
        return memory_number(self.tenant, memory_key)

    def remains(self) -> stored_memories.StoredMemories | None:
        return None if self._where is None else stored_memories.read_memories(self._where, self.tenant)

    def left_behind(self) -> list[str]:
        return [] if self._where is None else stored_memories.find_leftovers(self._where, self.tenant)


def storages(folder: Path) -> list[Storage]:
    rows, path, tenant = InMemoryBackend(), folder / "keep.db", shared_pool.fresh_tenant()
    return [
        Storage("memory", lambda: Direct(rows), where=None),
        Storage("sqlite", lambda: SqliteFile(path, SqliteDialect(), durability="relaxed", timeout=30), where=path),
        Storage("postgres", shared_pool.transport, where=shared_pool.schema(), tenant=tenant),
    ]


def on_valkey(folder: Path) -> list[Storage]:
    url, tenant = shared_pool.cluster(), shared_pool.fresh_tenant()
    reach = lambda: shared_pool.transport(url=url)
    return [Storage("valkey", reach, where=url, tenant=tenant)]


class Agreement(RuleBasedStateMachine):
    """The time is set by the state machine."""

    storages_in = staticmethod(storages)

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_800_000_000_000_000
        self.clock = patch.object(clock, "now_us", lambda: self.now)
        self.clock.start()
        self.folder = Path(tempfile.mkdtemp())
        self.storages = self.storages_in(self.folder)
        self.peer = Peer()
        self.touched = False
        self.failed = False

    def agree(self, answer: Any, expected: Any, about: str) -> None:
        if answer != expected:
            self.failed = True
            raise AssertionError(f"{about}: {answer!r} instead of {expected!r}")

    # --- changes, and reads in the same batch

    @rule(ops=batches, which=st.integers(0, 4), is_async=st.booleans(), later=st.sampled_from([0, 0, 1, 1000]))
    def batch(self, ops: list[Any], which: int, is_async: bool, later: int) -> None:
        self.now += later
        expected = self.peer.batch(ops, KINDS[which], self.now)
        for storage in self.storages:
            found = [dump_item(each) for each in storage.batch(which, ops, is_async=is_async)]
            self.agree(found, expected, f"{storage.name} at {which}: {ops}")
        self.touched = True

    @rule(op=st.one_of(changes, gets, reads), which=st.integers(0, 4), is_async=st.booleans())
    def one(self, op: Any, which: int, is_async: bool) -> None:
        if isinstance(op, ListNamespacesOp) and len({each.match_type for each in op.match_conditions}) == 1:
            op = op._replace(match_conditions=op.match_conditions[:1])  # the verb takes one of each kind
        (expected,) = self.peer.batch([op], KINDS[which], self.now)
        for storage in self.storages:
            found = dump_item(storage.one(which, op, is_async=is_async))
            self.agree(found, expected, f"{storage.name} at {which}: {op}")
        self.touched = True

    @rule(ops=batches, which=st.integers(0, 2), at=st.integers(0, 6), wrong=st.integers(0, 3), is_async=st.booleans())
    def fail(self, ops: list[Any], which: int, at: int, wrong: int, is_async: bool) -> None:
        """A batch with an error in any position does nothing."""
        bad = [
            PutOp(("a",), "bad", {"text": UNEMBEDDABLE}),
            PutOp(("a",), "bad", {"kind": {"y": object()}}),
            SearchOp(("a",), {"kind": {"$near": 1}}),
            PutOp((), "bad", {}),
        ][wrong]
        ops = [op._replace(refresh_ttl=False) if hasattr(op, "refresh_ttl") else op for op in ops]
        for storage in self.storages:
            self.agree(self._error(storage, which, [*ops[:at], bad, *ops[at:]], is_async), True, storage.name)
        self.touched = True

    def _error(self, storage: Storage, which: int, ops: Sequence[Any], is_async: bool) -> bool:
        try:
            storage.batch(which, ops, is_async=is_async)
        except (RuntimeError, TypeError, ValueError):
            return True
        return False

    # --- time

    @rule(minutes=st.sampled_from([100.7 / MINUTE, 0.05, 0.5, 1, 5, 9, 20]))
    def time_passes(self, minutes: float) -> None:
        self.now += int(minutes * MINUTE)
        self.touched = True

    @rule(which=st.integers(0, 4), is_async=st.booleans())
    def sweep(self, which: int, is_async: bool) -> None:
        expected = self.peer.sweep(self.now)
        for storage in self.storages:
            self.agree(storage.sweep(which, is_async=is_async), expected, f"{storage.name}: sweep")
        self.touched = True

    @rule(which=st.integers(0, 4))
    def reopen(self, which: int) -> None:
        for storage in self.storages:
            storage.reopen(which)

    # --- queries

    @rule(
        prefix=st.sampled_from(PREFIXES), filter=filters, query=st.sampled_from(QUERIES), is_async=st.booleans(),
        limit=st.sampled_from([1, 2, 5, ALL]), offset=st.sampled_from([0, 0, 1, 3]),
    )  # fmt: skip
    def find_the_nearest(self, prefix: Any, filter: Any, query: str, limit: int, offset: int, is_async: bool) -> None:
        """A page is a part of the whole result, ordered by score, then by memory number."""
        self.peer.forget_what_is_over(self.now)
        op = SearchOp(prefix, filter, limit, offset, query, refresh_ttl=False)
        expected = self.peer.near(op)
        for storage in self.storages:
            found = storage.search(NEAREST, op, is_async=is_async)
            self.agree(list(_misplaced(found, expected, storage.number, op)), [], f"{storage.name}: {op}")

    @rule(
        prefix=st.sampled_from(PREFIXES), filter=filters, query=st.sampled_from(QUERIES), is_async=st.booleans(),
        which=st.sampled_from([WORDED, PLAIN]), step=st.integers(1, 5),
    )  # fmt: skip
    def find_by_words(self, prefix: Any, filter: Any, query: str, which: int, step: int, is_async: bool) -> None:
        """Hits have the same order and scores; pages are parts of the whole result. Without an index all are hits."""
        self.peer.forget_what_is_over(self.now)
        op = SearchOp(prefix, filter, ALL, 0, query, refresh_ttl=False)
        expected: list[tuple[MemoryKey, float | None]] = list(self.peer.worded(op).items())
        if which == PLAIN:
            expected += [(memory_key, None) for memory_key in self.peer.others(op, self.peer.worded(op))]
        for storage in self.storages:
            whole = storage.search(which, op, is_async=is_async)
            scored = [(_place(item), item.score) for item in whole]
            self.agree(scored, expected, f"{storage.name} at {which}: {op}")
            self.agree(list(_pages(storage, which, op, step)), whole, f"{storage.name} at {which}: pages of {op}")

    @rule(
        prefix=st.sampled_from(PREFIXES), filter=filters, query=st.sampled_from(QUERIES), is_async=st.booleans(),
        which=st.sampled_from([FIRST, RANKED]), step=st.integers(1, 5),
    )  # fmt: skip
    def find_by_both(self, prefix: Any, filter: Any, query: str, which: int, step: int, is_async: bool) -> None:
        """Hits are the same; pages are parts of the whole result."""
        self.peer.forget_what_is_over(self.now)
        op = SearchOp(prefix, filter, ALL, 0, query, refresh_ttl=False)
        expected = self.peer.worded(op).keys() | self.peer.near(op).keys()
        for storage in self.storages:
            whole = storage.search(which, op, is_async=is_async)
            self.agree({_place(item) for item in whole}, expected, f"{storage.name} at {which}: {op}")
            scores = [item.score for item in whole]
            self.agree(scores, sorted(scores, reverse=True), f"{storage.name} at {which}: scores of {op}")
            self.agree(list(_pages(storage, which, op, step)), whole, f"{storage.name} at {which}: pages of {op}")

    # --- invariants

    @invariant()
    def everything_reads_the_same(self) -> None:
        if self.touched:
            self.touched = False
            ops = [SearchOp((), limit=ALL, refresh_ttl=False), ListNamespacesOp(limit=ALL)]
            expected = self.peer.batch(ops, KINDS[NEAREST], self.now)
            for storage in self.storages:
                found = [dump_item(each) for each in storage.batch(NEAREST, ops)]
                self.agree(found, expected, f"{storage.name}: everything")

    def teardown(self) -> None:
        try:
            if not self.failed:
                self.nothing_is_left_behind()
        finally:
            self.now += 10 * 365 * 24 * 60 * MINUTE
            for storage in self.storages:
                storage.sweep(FIRST, is_async=False)  # the schema is shared: the next machine counts what it sweeps
                storage.close()
            self.clock.stop()
            shutil.rmtree(self.folder)

    def nothing_is_left_behind(self) -> None:
        vectors = self.peer.store._vectors
        expected = {memory_key: len(vectors[memory_key.namespace][memory_key.key]) for memory_key in self.peer.lives}
        for storage in self.storages:
            there = storage.remains()
            if there is not None:
                found = {
                    memory_key: len(there.vectors.get(number, {})) for number, memory_key in there.memory_keys.items()
                }
                living = {memory_key: count for memory_key, count in found.items() if memory_key in expected}
                self.agree(living, expected, f"{storage.name}: vectors")
                self.agree(set(found) - set(expected), self.peer.unswept, f"{storage.name}: what is over")
            self.agree(storage.left_behind(), [], storage.name)


def _misplaced(
    found: Sequence[Any], expected: dict[MemoryKey, float], number: Callable[[MemoryKey], int], op: SearchOp
) -> Iterator[str]:
    """Return what is wrong with a page of a ranking."""
    best = sorted(expected.items(), key=lambda one: (-round(one[1], 6), number(one[0])))
    page = best[op.offset : op.offset + op.limit]
    if len(found) != len(page):
        yield f"{len(found)} hits instead of {len(page)}"
    for item, (memory_key, score) in zip(found, page, strict=False):
        if _place(item) != memory_key or abs(item.score - score) > 1e-5:
            yield f"{_place(item)} with {item.score} instead of {memory_key} with {score}"


def _pages(storage: Storage, which: int, op: SearchOp, step: int) -> Iterator[Any]:
    """Return the same by pages, until one is not full."""
    for offset in range(0, ALL, step):
        page = storage.search(which, op._replace(limit=step, offset=offset))
        yield from page
        if len(page) < step:
            return


class ValkeyAgreement(Agreement):
    """The same on Valkey."""

    storages_in = staticmethod(on_valkey)


TestStoreAgreement = Agreement.TestCase
TestStoreAgreement.settings = machine_settings(few=20, many=500, few_steps=25, many_steps=50)
TestValkeyAgreement = ValkeyAgreement.TestCase
TestValkeyAgreement.settings = machine_settings(few=6, many=150, few_steps=25, many_steps=50)
