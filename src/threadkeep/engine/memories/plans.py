"""Plans over memories: read them, look through them, rank them by vectors and words, store them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from threadkeep.engine.memories.filters import EVERYTHING, FilterNode, matches
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.namespaces import MemoryKey, NamespacePattern, Space, known_prefix
from threadkeep.engine.memories.requests import (
    FindExpired,
    FindMatching,
    GetMemories,
    GetMemoriesByNumber,
    ListMemories,
    ListNamespaces,
    LoadVectorChanges,
    MemoryRow,
    NewMemory,
    Position,
    RefreshMemories,
    Scored,
    SearchFullText,
    SearchVectors,
    SweepMemories,
    WriteMemories,
)
from threadkeep.engine.memories.vectors import PartitionVectors, nearest
from threadkeep.engine.memories.words import words
from threadkeep.errors import Corrupt

_EXTRA_ROWS, _MAX_SLICE = 2, 1000
_CHECKED_FIRST = 100
"""So many of the best are looked at before the database is asked which memories match a filter at all."""
_MAX_RANKED = 10_000
"""So many memories a search by words, or by an approximate index, ranks."""
_MAX_QUERY_WORDS = 200
"""So many words of a query count."""
_RRF_CONSTANT = 60
"""The constant of reciprocal rank fusion: how little the first places matter more than the next."""
_SWEEP_BATCH = 1000
_REFRESH_AFTER = 0.01
"""Of its ttl must have passed before reading a memory makes it live longer."""
_MICROSECONDS_PER_MINUTE = 60_000_000


class FoundMemory(NamedTuple):
    """A memory that was found, its value, and how well it fits if that was asked."""

    row: MemoryRow
    value: dict[str, Any]
    score: float | None = None


class MemoryQuery(NamedTuple):
    """What a search asks: below which prefix, with which filter, which page; and what it is ranked by."""

    tenant: str
    prefix: Space
    filter: FilterNode
    limit: int
    offset: int
    now: int
    vector: bytes | None = None
    text: str | None = None


@dataclass(slots=True)
class VectorCache:
    """What a Keep has at hand of the vectors, by tenant and partition; of at most about `budget` bytes each."""

    dims: int
    metric: str
    budget: int
    parts: dict[tuple[str, str], PartitionVectors] = field(default_factory=dict)
    large: set[tuple[str, str | None]] = field(default_factory=set)
    """Partitions, and tenants as a whole (None), that the storage ranks."""
    wants_index: bool = False
    """Something large was met, and nobody has seen to an index yet."""

    def clear(self) -> None:
        """Nothing is certain any more."""
        self.parts.clear()
        self.large.clear()

    async def current(self, tenant: str, first: str | None) -> list[PartitionVectors] | None:
        """The partition, or all of the tenant, as they are now; None if that is too much. One round trip."""
        if (tenant, first) in self.large:
            return None
        known = {name: part for (whose, name), part in self.parts.items() if whose == tenant and first in (None, name)}
        since = {name: part.at for name, part in known.items()}
        full = sum(part.size for part in known.values()) > self.budget
        for change in await LoadVectorChanges(tenant, first, since, self.budget // (4 * self.dims), full, self.dims):
            if change.large:
                self._let_go(tenant, first)
                return None
            before = known.get(change.first, PartitionVectors((0, 0)))
            known[change.first] = before.changed(change, self.dims, self.metric)
            self.parts[(tenant, change.first)] = known[change.first]
        return list(known.values())

    def _let_go(self, tenant: str, first: str | None) -> None:
        """From now on the storage is asked."""
        self.wants_index = self.wants_index or not self.large
        self.large.add((tenant, first))
        if first is not None:
            self.parts.pop((tenant, first), None)


def _decode_memory(row: MemoryRow, score: float | None = None) -> FoundMemory:
    """A memory with its value; Corrupt if that is none."""
    try:
        return FoundMemory(row, load(row.value), score)
    except ValueError as error:
        raise Corrupt(f"the value of memory {row.key!r} in {row.namespace!r} cannot be read: {error}") from error


async def get(tenant: str, places: Sequence[MemoryKey], now: int) -> list[FoundMemory | None]:
    """Memories by place. One round trip."""
    rows = await GetMemories(tenant, tuple(places), now)
    return [_decode_memory(row) if row is not None else None for row in rows]


async def get_one(tenant: str, place: MemoryKey, now: int) -> FoundMemory | None:
    """One memory. One round trip."""
    (row,) = await GetMemories(tenant, (place,), now)
    return _decode_memory(row) if row is not None else None


async def search(question: MemoryQuery, vectors: VectorCache | None) -> list[FoundMemory]:
    """A page of what a question finds."""
    if question.limit == 0:
        return []
    if question.vector is None and question.text is None:
        return await _list_matching(question)
    depth = 1
    while True:
        ranking, is_all = await _rank(question, vectors, depth)
        page = await _load_page(question, ranking)
        if is_all or len(page) == question.limit:
            return page
        depth *= 8  # what was found did not match the filter, which only we can tell


async def _list_matching(question: MemoryQuery) -> list[FoundMemory]:
    """By time. One round trip, or some if there is a filter that the database cannot answer exactly."""
    tenant, prefix, filter, limit, offset, now = question[:6]
    if filter == EVERYTHING:
        rows = await ListMemories(tenant, prefix, now, limit, offset)
        return [_decode_memory(row) for row in rows]
    found: list[FoundMemory] = []
    after: Position | None = None
    step = min(offset + limit + _EXTRA_ROWS, _MAX_SLICE)
    while len(found) < offset + limit:
        rows = await ListMemories(tenant, prefix, now, step, after=after, filter=filter)
        found += _filter_rows(rows, filter)
        if len(rows) < step:
            break
        after = (rows[-1].updated, rows[-1].namespace, rows[-1].key)
        step = min(4 * step, _MAX_SLICE)
    return found[offset : offset + limit]


def _filter_rows(rows: Iterable[MemoryRow], filter: FilterNode) -> Iterator[FoundMemory]:
    hits = map(_decode_memory, rows)
    return (hit for hit in hits if matches(filter, hit.value))


async def _rank(question: MemoryQuery, vectors: VectorCache | None, depth: int) -> tuple[Iterator[Scored], bool]:
    """Numbers of memories, best first, of those that may match the filter; and whether there are no more."""
    by_words = await _rank_by_words(question) if question.text is not None else None
    if question.vector is None or vectors is None:
        return iter(by_words or ()), True
    by_vectors, is_all = await _rank_by_vectors(question, vectors, depth)
    if by_words is None:
        return iter(by_vectors), is_all
    gone = await FindExpired(question.tenant, question.prefix, question.now)
    living = (scored for scored in by_vectors if scored[0] not in gone)
    if question.filter == EVERYTHING:
        return _fuse_rankings(by_words, living), is_all
    allowed = await _find_candidates(question)
    return _fuse_rankings(_restrict(by_words, allowed), _restrict(living, allowed)), is_all


async def _find_candidates(question: MemoryQuery) -> frozenset[int]:
    """What the database does not say to be left out."""
    return await FindMatching(question.tenant, question.prefix, question.now, question.filter)


def _restrict(ranking: Iterable[Scored], allowed: frozenset[int]) -> Iterator[Scored]:
    return ((number, score) for number, score in ranking if number in allowed)


async def _rank_by_words(question: MemoryQuery) -> Sequence[Scored]:
    wanted = tuple(dict.fromkeys(words(question.text or "")))[:_MAX_QUERY_WORDS]
    if not wanted:
        return ()
    is_page = question.filter == EVERYTHING and question.vector is None
    deepest = question.offset + question.limit if is_page else _MAX_RANKED
    return await SearchFullText(question.tenant, question.prefix, question.now, wanted, deepest)


async def _rank_by_vectors(question: MemoryQuery, vectors: VectorCache, depth: int) -> tuple[Iterable[Scored], bool]:
    tenant, prefix, filter, limit, offset, now, vector, _ = question
    assert vector is not None
    parts = await vectors.current(tenant, prefix[0] if prefix else None)
    if parts is not None:
        return nearest(parts, vector, prefix, vectors.metric), True
    needed = (offset + limit) * depth
    return await SearchVectors(tenant, prefix, now, vector, vectors.metric, max(4 * needed, 100), needed, filter)


def _fuse_rankings(*rankings: Iterable[Scored]) -> Iterator[Scored]:
    """Reciprocal rank fusion: what stands high in either ranking, and best what stands high in both."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (number, _) in enumerate(islice(ranking, _MAX_RANKED), 1):
            scores[number] = scores.get(number, 0.0) + 1 / (_RRF_CONSTANT + rank)
    return iter(sorted(scores.items(), key=lambda scored: (-scored[1], scored[0])))


async def _load_page(question: MemoryQuery, ranking: Iterator[Scored]) -> list[FoundMemory]:
    """The memories of a ranking that match the filter, from `offset` on."""
    end, found, tried = question.offset + question.limit, list[FoundMemory](), 0
    is_sifted = question.filter == EVERYTHING
    while len(found) < end:
        if not is_sifted and tried >= _CHECKED_FIRST:
            ranking, is_sifted = _restrict(ranking, await _find_candidates(question)), True
        some = dict(islice(ranking, end - len(found) if is_sifted else max(end, _CHECKED_FIRST)))
        if not some:
            break
        rows = await GetMemoriesByNumber(question.tenant, question.prefix, tuple(some), question.now)
        hits = (_decode_memory(rows[number], score) for number, score in some.items() if number in rows)
        found += [hit for hit in hits if matches(question.filter, hit.value)]
        tried += len(some)
    return found[question.offset : end]


async def namespaces(
    tenant: str, patterns: Sequence[NamespacePattern], max_depth: int | None, limit: int, offset: int, now: int
) -> list[Space]:
    """Namespaces that fit all patterns, cut to `max_depth` segments, each once, in order."""
    prefix, after, found = known_prefix(patterns), None, list[Space]()
    while len(found) < offset + limit:
        spaces = await ListNamespaces(tenant, prefix, now, _MAX_SLICE, after)
        for space in spaces:
            cut = space if max_depth is None else space[:max_depth]
            if all(pattern.fits(space) for pattern in patterns) and (not found or found[-1] != cut):
                found.append(cut)
        if len(spaces) < _MAX_SLICE:
            break
        after = spaces[-1]
    return found[offset : offset + limit]


async def write(tenant: str, puts: Sequence[NewMemory], gone: Sequence[MemoryKey], now: int) -> None:
    """Store and remove memories. One commit."""
    if puts or gone:
        await WriteMemories(tenant, tuple(puts), tuple(gone), now)


async def refresh(tenant: str, places: Sequence[MemoryKey], now: int) -> None:
    """Let these memories live as long again. One commit."""
    await RefreshMemories(tenant, tuple(places), now)


def needs_refresh(row: MemoryRow, now: int) -> bool:
    """Whether a memory that was read has become noticeably older."""
    if row.ttl is None or row.expires is None:
        return False
    return now + lifetime(row.ttl) - row.expires >= _REFRESH_AFTER * lifetime(row.ttl)


def lifetime(ttl: float) -> int:
    """Minutes in microseconds."""
    return int(ttl * _MICROSECONDS_PER_MINUTE)


async def sweep(now: int) -> int:
    """Remove what has expired, in small commits; how many memories it were."""
    swept = 0
    while True:
        some = await SweepMemories(now, _SWEEP_BATCH)
        swept += some
        if some < _SWEEP_BATCH:
            return swept
