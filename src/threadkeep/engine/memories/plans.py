"""Plans for memories: get, list, search by words and vectors, write, refresh and sweep them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from threadkeep.engine.memories.checksums import damaged_memory, memory_name
from threadkeep.engine.memories.filters import (
    EVERYTHING,
    FilterNode,
    KeyPath,
    dotted_keys,
    has_literal_key,
    is_everything,
    matches,
    with_literal_keys,
)
from threadkeep.engine.memories.json_text import load, load_all
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, NamespacePattern, known_prefix
from threadkeep.engine.memories.requests import (
    NO_VECTORS,
    ChangeMemories,
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
    WordMatch,
    WordMatches,
    WriteMemories,
)
from threadkeep.engine.memories.vectors import PartitionVectors, nearest
from threadkeep.engine.memories.words import count_words, word_score, words
from threadkeep.errors import Conflict, Corrupt, WrongKey

_MAX_SLICE = 1000
_CHECKED_FIRST = 100
"""This many of the best memories are checked against a filter before the database is queried for all that match."""
_MAX_RANKED = 10_000
"""The number of memories that each ranking of a hybrid search ranks."""
_MAX_QUERY_WORDS = 200
"""The number of words of a query that count."""
_RRF_CONSTANT = 60
"""The constant of reciprocal rank fusion. The larger it is, the less the first ranks stand out."""
_SWEEP_BATCH = 1000
_REFRESH_AFTER = 0.01
"""The fraction of its ttl that must have passed before reading a memory refreshes it."""
_MICROSECONDS_PER_MINUTE = 60_000_000


class FoundMemory(NamedTuple):
    """A memory, its decoded value, and its score if it was found by a query."""

    row: MemoryRow
    value: dict[str, Any]
    score: float | None = None


class MemoryQuery(NamedTuple):
    """A search: prefix, filter and page, and the vector and words that it is ranked by.

    If it `only_ranks`, the memories without these words are found too, after the others.
    """

    tenant: str
    prefix: Namespace
    filter: FilterNode
    limit: int
    offset: int
    now: int
    vector: bytes | None = None
    words: tuple[str, ...] | None = None
    only_ranks: bool = False


class _Ranking(NamedTuple):
    """Memories that may match the filter, best first; `is_all` says that there are no others.

    `by_words` has those that were found by words.
    """

    scored: Iterator[Scored]
    is_all: bool
    by_words: Mapping[int, WordMatch] = {}


class _RankedPage(NamedTuple):
    """A page of a ranking, the number of memories up to its end, and all that were found by words."""

    page: list[FoundMemory]
    end: int
    by_words: Mapping[int, WordMatch]


def query_words(text: str) -> tuple[str, ...]:
    """Return the words of a query that count, each once."""
    return tuple(dict.fromkeys(words(text)))[:_MAX_QUERY_WORDS]


@dataclass(slots=True)
class VectorCache:
    """The vectors that a Keep caches, by tenant and partition; at most about `budget` bytes for one search."""

    dims: int
    metric: str
    budget: int
    partitions: dict[tuple[str, str], PartitionVectors] = field(default_factory=dict)
    large: set[tuple[str, str | None]] = field(default_factory=set)
    """Partitions, and tenants as a whole (None), that the storage ranks itself."""
    wants_index: bool = False
    """Whether a large partition was found and no index was requested since."""

    def clear(self) -> None:
        """Drop everything."""
        self.partitions.clear()
        self.large.clear()

    async def load(self, tenant: str, first: str | None) -> list[PartitionVectors] | None:
        """Return the current vectors of a partition, or of all partitions of a tenant if `first` is None.

        None if they are too large, so that the storage must rank them. One round trip.
        """
        if (tenant, first) in self.large:
            return None
        cached = {
            name: partition
            for (owner, name), partition in self.partitions.items()
            if owner == tenant and first in (None, name)
        }
        since = {name: partition.version for name, partition in cached.items()}
        full = sum(partition.size for partition in cached.values()) > self.budget
        for change in await LoadVectorChanges(tenant, first, since, self.budget // (4 * self.dims), full, self.dims):
            if change.large:
                self._mark_large(tenant, first)
                return None
            before = cached.pop(change.partition, PartitionVectors(NO_VECTORS))
            partition = before.with_changes(change, self.dims, self.metric)
            if partition.blocks or change.changed or change.present:
                cached[change.partition] = self.partitions[(tenant, change.partition)] = partition
            else:
                self.partitions.pop((tenant, change.partition), None)
        return list(cached.values())

    def _mark_large(self, tenant: str, first: str | None) -> None:
        """From now on, let the storage rank this partition, or the whole tenant."""
        self.wants_index = self.wants_index or not self.large
        self.large.add((tenant, first))
        if first is not None:
            self.partitions.pop((tenant, first), None)


def decode_memories(rows: Sequence[MemoryRow], filter: FilterNode = EVERYTHING) -> list[FoundMemory]:
    """Return the memories that match, with their decoded values; Corrupt if one cannot be decoded."""
    found: list[FoundMemory] = []
    add, make, holds = found.append, tuple.__new__, None if is_everything(filter) else filter.holds
    try:
        values = load_all([row[2] for row in rows])
    except (ValueError, RecursionError):
        values = [decode_memory(row).value for row in rows]  # raises the error of the first one
    for row, value in zip(rows, values, strict=True):
        if holds is None or holds(value):
            add(make(FoundMemory, (row, value, None)))
    return found


def decode_memory(row: MemoryRow, score: float | None = None) -> FoundMemory:
    """Return a memory with its decoded value; Corrupt if it cannot be decoded, WrongKey if it is encrypted."""
    try:
        return tuple.__new__(FoundMemory, (row, load(row[2]), score))
    except (ValueError, RecursionError) as error:
        if row.value[:1] == '"':  # a value is an object, and an encrypted one a string
            raise WrongKey(f"{memory_name(*row.memory_key)} is encrypted: open the storage with keys=") from error
        raise damaged_memory(row.memory_key, f"its value cannot be decoded: {error}") from error


async def get(tenant: str, keys: Sequence[MemoryKey], now: int) -> list[FoundMemory | None]:
    """Return memories by key; None for each that does not exist. One round trip."""
    rows = await GetMemories(tenant, tuple(keys), now)
    found = iter(decode_memories([row for row in rows if row is not None]))
    return [next(found) if row is not None else None for row in rows]


async def search(query: MemoryQuery, vectors: VectorCache | None) -> list[FoundMemory]:
    """Return one page of the memories that a query finds.

    One round trip without words and vector, unless there is a filter. Otherwise two or more: one for each ranking, and
    one for each slice of rows until the page is full. For each key with a dot in the filter, one more.
    """
    if query.limit == 0:
        return []
    if paths := dotted_keys(query.filter):
        literal = {path for path in set(paths) if await _has_literal_key(query, path)}
        query = query._replace(filter=with_literal_keys(query.filter, literal))
    if query.vector is None and (query.words is None or (query.only_ranks and not query.words)):
        return await _list_matching(query)
    if query.only_ranks:
        return await _search_and_fill(query)
    return (await _search_ranked(query, vectors)).page


async def _search_ranked(query: MemoryQuery, vectors: VectorCache | None) -> _RankedPage:
    """Return a page of what a ranking finds."""
    depth = 1
    while True:
        ranking = await _rank(query, vectors, depth)
        found = await _load_ranked(query, ranking)
        if ranking.is_all or len(found.page) == query.limit:
            return found
        depth *= 8  # too few of the ranked memories matched the filter, which only `matches` decides exactly


async def _search_and_fill(query: MemoryQuery) -> list[FoundMemory]:
    """Return a page of the memories that have words of the query, followed by all others by time."""
    page, end, matched = await _search_ranked(query, None)
    if len(page) == query.limit:
        return page
    left = query._replace(limit=query.limit - len(page), offset=max(0, query.offset - end))
    return page + await _list_matching(left, matched)


async def _has_literal_key(query: MemoryQuery, path: KeyPath) -> bool:
    """Return whether a memory below the prefix has this key, so that it is no path."""
    return bool(await _list_matching(query._replace(filter=has_literal_key(path), limit=1, offset=0)))


async def _list_matching(query: MemoryQuery, skipped: Mapping[int, WordMatch] | None = None) -> list[FoundMemory]:
    """Return a page ordered by time, without those that are `skipped`.

    One round trip; more if the database cannot evaluate the filter exactly.
    """
    tenant, prefix, filter, limit, offset, now = query[:6]
    if is_everything(filter) and not skipped:
        return decode_memories(await ListMemories(tenant, prefix, now, limit, offset))
    found: list[FoundMemory] = []
    after: Position | None = None
    step = min(offset + limit + len(skipped or ()), _MAX_SLICE)
    while len(found) < offset + limit:
        rows = await ListMemories(tenant, prefix, now, step, 0, after, filter)
        wanted = rows
        if skipped:
            wanted = tuple(row for row in rows if row.number(tenant) not in skipped)
        found += decode_memories(wanted, filter)
        if len(rows) < step:
            break
        after = (rows[-1].updated, rows[-1].namespace, rows[-1].key)
        step = min(4 * step, _MAX_SLICE)
    return found[offset : offset + limit]


async def _rank(query: MemoryQuery, vectors: VectorCache | None, depth: int) -> _Ranking:
    """Rank memories by words, by vectors, or by both."""
    by_words = await _rank_by_words(query, depth) if query.words is not None else WordMatches((), is_all=True)
    matched = {match.memory: match for match in by_words.matches}
    scored = ((match.memory, word_score(match.distinct, match.frequency)) for match in by_words.matches)
    if query.vector is None or vectors is None:
        return _Ranking(scored, by_words.is_all, matched)
    by_vectors, is_all = await _rank_by_vectors(query, vectors, depth)
    if query.words is None:
        return _Ranking(iter(by_vectors), is_all)
    expired = await FindExpired(query.tenant, query.prefix, query.now)
    not_expired = (scored for scored in by_vectors if scored[0] not in expired)
    if is_everything(query.filter):
        return _Ranking(_fuse_rankings(scored, not_expired), is_all, matched)
    candidates = await _find_candidates(query)
    fused = _fuse_rankings(_restrict(scored, candidates), _restrict(not_expired, candidates))
    return _Ranking(fused, is_all, matched)


async def _find_candidates(query: MemoryQuery) -> frozenset[int]:
    """Return the numbers of all memories that may match the filter."""
    return await FindMatching(query.tenant, query.prefix, query.now, query.filter)


def _restrict(ranking: Iterable[Scored], numbers: frozenset[int]) -> Iterator[Scored]:
    return ((number, score) for number, score in ranking if number in numbers)


async def _rank_by_words(query: MemoryQuery, depth: int) -> WordMatches:
    if not query.words:
        return WordMatches((), is_all=True)
    limit = (query.offset + query.limit) * depth if query.vector is None else _MAX_RANKED
    found = await SearchFullText(query.tenant, query.prefix, query.now, query.words, limit, query.filter)
    for match in found.matches:
        if not 0 < match.distinct <= match.frequency:
            rows = await GetMemoriesByNumber(query.tenant, query.prefix, (match.memory,), query.now)
            raise _wrong_words(rows.get(match.memory))
    return found


async def _rank_by_vectors(query: MemoryQuery, vectors: VectorCache, depth: int) -> tuple[Iterable[Scored], bool]:
    tenant, prefix, filter, limit, offset, now, vector = query[:7]
    assert vector is not None
    partitions = await vectors.load(tenant, prefix[0] if prefix else None)
    if partitions is not None:
        return nearest(partitions, vector, prefix, vectors.metric), True
    needed = (offset + limit) * depth
    return await SearchVectors(tenant, prefix, now, vector, vectors.metric, max(4 * needed, 100), needed, filter)


def _fuse_rankings(*rankings: Iterable[Scored]) -> Iterator[Scored]:
    """Merge rankings by reciprocal rank fusion: memories that rank high in both come first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (number, _) in enumerate(islice(ranking, _MAX_RANKED), 1):
            scores[number] = scores.get(number, 0.0) + 1 / (_RRF_CONSTANT + rank)
    return iter(sorted(scores.items(), key=lambda scored: (-scored[1], scored[0])))


async def _load_ranked(query: MemoryQuery, ranking: _Ranking) -> _RankedPage:
    """Load the page of a ranking: the memories that match the filter, from `offset` on."""
    end, found, checked, skipped = query.offset + query.limit, list[FoundMemory](), 0, 0
    scored, is_restricted = ranking.scored, is_everything(query.filter)
    if is_restricted and query.vector is None:  # then all of them are found, and those before the page are not needed
        skipped = sum(1 for _ in islice(scored, query.offset))
    while len(found) < end - skipped:
        if not is_restricted and checked >= _CHECKED_FIRST:
            scored, is_restricted = _restrict(scored, await _find_candidates(query)), True
        scores = dict(islice(scored, end - skipped - len(found) if is_restricted else max(end, _CHECKED_FIRST)))
        if not scores:
            break
        rows = await GetMemoriesByNumber(query.tenant, query.prefix, tuple(scores), query.now)
        for number, score in scores.items():
            if number in rows:
                memory = decode_memory(rows[number], score)
                _check_words(query, memory, ranking.by_words.get(number))
                if matches(query.filter, memory.value):
                    found.append(memory)
        checked += len(scores)
    page = found[query.offset - skipped :][: query.limit]
    return _RankedPage(page, skipped + len(found), ranking.by_words)


def _check_words(query: MemoryQuery, memory: FoundMemory, match: WordMatch | None) -> None:
    """Raise Corrupt if a memory was found by words that its value does not have, or not as often.

    A memory that was changed since it was found is not checked.
    """
    if match is None or not match.is_checked or match.updated != memory.row.updated:
        return
    found = count_words(memory.value, frozenset(query.words or ()))
    if match.distinct > len(found) or match.frequency > found.total():
        raise _wrong_words(memory.row)


def _wrong_words(row: MemoryRow | None) -> Corrupt:
    name = f"memory {row.key!r} in {row.namespace!r}" if row is not None else "a memory"
    return Corrupt(f"the index of words is damaged: its words of {name} are not those of the value; run `verify`")


async def namespaces(
    tenant: str, patterns: Sequence[NamespacePattern], max_depth: int | None, limit: int, offset: int, now: int
) -> list[Namespace]:
    """Return the namespaces that match all patterns, cut to `max_depth` segments, each once, in order.

    One round trip for each `_MAX_SLICE` namespaces.
    """
    prefix, after, found = known_prefix(patterns), None, list[Namespace]()
    while len(found) < offset + limit:
        listed = await ListNamespaces(tenant, prefix, now, _MAX_SLICE, after)
        for namespace in listed:
            cut = namespace if max_depth is None else namespace[:max_depth]
            if all(pattern.matches(namespace) for pattern in patterns) and (not found or found[-1] != cut):
                found.append(cut)
        if len(listed) < _MAX_SLICE:
            break
        after = listed[-1]
    return found[offset : offset + limit]


async def write(tenant: str, puts: Sequence[NewMemory], deletes: Sequence[MemoryKey], now: int) -> None:
    """Store and delete memories in one commit. One round trip, or none if there is nothing to do."""
    if puts or deletes:
        await WriteMemories(tenant, tuple(puts), tuple(deletes), now)


async def change(write: WriteMemories, expected: Sequence[tuple[MemoryKey, int | None]]) -> None:
    """Store memories, each of which must be as expected: Conflict if one is not. One commit.

    If the outcome of the commit was lost, it is made again, and then finds what it stored itself: one more round trip.
    """
    try:
        await ChangeMemories(write, tuple(expected))
    except Conflict:
        new = {memory.row.memory_key: memory.row for memory in write.puts}
        for key, row in zip(new, await GetMemories(write.tenant, tuple(new), write.now), strict=True):
            if row is None or (row.updated, row.value) != (new[key].updated, new[key].value):
                raise


async def refresh(tenant: str, keys: Sequence[MemoryKey], now: int) -> None:
    """Restart the ttl of memories. One commit."""
    await RefreshMemories(tenant, tuple(keys), now)


def needs_refresh(row: MemoryRow, now: int) -> bool:
    """Whether enough of a memory's ttl has passed for a read to refresh it."""
    if row.ttl is None or row.expires is None:
        return False
    return now + ttl_microseconds(row.ttl) - row.expires >= _REFRESH_AFTER * ttl_microseconds(row.ttl)


def ttl_microseconds(ttl: float) -> int:
    """Convert a ttl in minutes to microseconds."""
    return int(ttl * _MICROSECONDS_PER_MINUTE)


async def sweep(tenant: str, now: int) -> int:
    """Delete expired memories of a tenant, in small commits. Return the number deleted."""
    total = 0
    while True:
        deleted = await SweepMemories(tenant, now, _SWEEP_BATCH)
        total += deleted
        if deleted < _SWEEP_BATCH:
            return total
