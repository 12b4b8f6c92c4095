"""Memories in dicts, for the in-memory backend: the reference that the other backends must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from threadkeep.engine.health.requests import (
    CleanFiles,
    FilesState,
    InspectedMemory,
    InspectedMemoryPage,
    InspectMemories,
)
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories.checksums import (
    StoredVector,
    damaged_memory,
    memory_checksum,
    memory_name,
    read_memory,
    read_vectors,
    sum_of_times,
    vector_checksum,
)
from threadkeep.engine.memories.filters import FilterNode, is_everything, matches
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, encode, memory_number
from threadkeep.engine.memories.plans import ttl_microseconds
from threadkeep.engine.memories.requests import (
    NO_VECTORS,
    ChangeMemories,
    CountMemories,
    CreateVectorIndex,
    FindExpired,
    FindMatching,
    GetMemories,
    GetMemoriesByNumber,
    ListMemories,
    ListNamespaces,
    LoadVectorChanges,
    MemoryRow,
    NewMemory,
    PartitionChanges,
    RefreshMemories,
    ReplaceMemories,
    SearchFullText,
    SweepMemories,
    VectorRow,
    WordMatch,
    WordMatches,
    WriteMemories,
    is_sealed,
)
from threadkeep.engine.memories.words import mark, unmark, words_check
from threadkeep.errors import Corrupt
from threadkeep.plan import Request


class _Checksums(NamedTuple):
    """The checksums of a memory: of its row, of its times, and of each of its vectors."""

    row: int
    times: int
    vectors: tuple[int, ...]


@dataclass(slots=True)
class _TenantMemories:
    rows: dict[MemoryKey, NewMemory] = field(default_factory=dict)
    checksums: dict[MemoryKey, _Checksums] = field(default_factory=dict)
    numbers: dict[int, MemoryKey] = field(default_factory=dict)
    word_counts: dict[MemoryKey, dict[str, int]] = field(default_factory=dict)
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By partition: how often its vectors were stored, and how often they were lost, each plus a starting time."""
    stored_at: dict[MemoryKey, int] = field(default_factory=dict)
    """By memory: the first number of its partition's version when its vectors were stored."""

    def unexpired(self, prefix: Namespace, now: int) -> Iterator[MemoryRow]:
        return (
            memory.row
            for memory in self.rows.values()
            if memory.row.namespace[: len(prefix)] == prefix and not _is_expired(memory.row, now)
        )


class InMemoryMemories:
    """All memories of one Keep. `check_plain` raises if those of a tenant must be encrypted."""

    def __init__(self, check_plain: Callable[[str], None]) -> None:
        self._check_plain = check_plain
        self._tenants: dict[str, _TenantMemories] = {}
        self.handlers: dict[type[Request[Any]], Callable[[Any], Any]] = {
            WriteMemories: self._write_memories,
            ChangeMemories: self._change_memories,
            ReplaceMemories: self._replace_memories,
            RefreshMemories: self._refresh_memories,
            SweepMemories: self._sweep_memories,
            GetMemories: self._get_memories,
            GetMemoriesByNumber: self._get_memories_by_number,
            ListMemories: self._list_memories,
            ListNamespaces: self._list_namespaces,
            CountMemories: self._count_memories,
            FindMatching: self._find_matching,
            FindExpired: self._find_expired,
            SearchFullText: self._search_full_text,
            LoadVectorChanges: self._load_vector_changes,
            CreateVectorIndex: lambda _: None,
            InspectMemories: self._inspect_memories,
            CleanFiles: self._clean_files,
        }

    def tenants(self) -> list[str]:
        """Return the tenants that have memories."""
        return [tenant for tenant, memories in self._tenants.items() if memories.rows]

    def _of(self, tenant: str) -> _TenantMemories:
        return self._tenants.setdefault(tenant, _TenantMemories())

    # --- changes

    def _write_memories(self, request: WriteMemories) -> None:
        if not request.sealed:
            self._check_plain(request.tenant)
        memories = self._of(request.tenant)
        for key in request.deletes:
            _delete(memories, request.tenant, key, request.now)
        for memory in request.puts:
            _put(memories, request.tenant, memory, request.now)

    def _change_memories(self, request: ChangeMemories) -> None:
        if not request.write.sealed:
            self._check_plain(request.tenant)
        rows = self._of(request.tenant).rows
        request.check([rows[key].row if key in rows else None for key, _ in request.expected])
        self._write_memories(request.write)

    def _replace_memories(self, request: ReplaceMemories) -> int:
        rows = self._of(request.tenant).rows
        stored = [rows[row.memory_key].row if row.memory_key in rows else None for row in request.old]
        puts, deletes = request.to_write(stored, lambda key: key in rows)
        self._write_memories(WriteMemories(request.tenant, puts, deletes, request.now, sealed=True))
        return request.count(stored)

    def _refresh_memories(self, request: RefreshMemories) -> None:
        memories = self._of(request.tenant)
        for key in request.keys:
            memory = memories.rows.get(key)
            if memory is not None and memory.row.ttl is not None and not _is_expired(memory.row, request.now):
                row = memory.row._replace(expires=request.now + ttl_microseconds(memory.row.ttl))
                memories.rows[key] = memory._replace(row=row)
                old = memories.checksums[key]
                later = (row.expires or 0) - (memory.row.expires or 0)
                memories.checksums[key] = old._replace(times=old.times + later)

    def _sweep_memories(self, request: SweepMemories) -> int:
        memories = self._of(request.tenant)
        expired = [
            key
            for key, memory in memories.rows.items()
            if _is_expired(memory.row, request.now) and not _has_damaged_times(memories, key)
        ][: request.limit]
        for key in expired:
            _delete(memories, request.tenant, key, request.now)
        return len(expired)

    def _clean_files(self, _request: CleanFiles) -> FilesState:
        """Forget the partitions that have no memories. There are no files."""
        for memories in self._tenants.values():
            used = {key.namespace[0] for key in memories.rows}
            memories.versions = {first: version for first, version in memories.versions.items() if first in used}
        return FilesState(clean=True)

    # --- reads

    def _get_memories(self, request: GetMemories) -> tuple[MemoryRow | None, ...]:
        memories = self._of(request.tenant)
        found = (_read(memories, request.tenant, key) if key in memories.rows else None for key in request.keys)
        return tuple(row if row is not None and not _is_expired(row, request.now) else None for row in found)

    def _get_memories_by_number(self, request: GetMemoriesByNumber) -> dict[int, MemoryRow]:
        memories = self._of(request.tenant)
        numbers = (number for number in request.numbers if number in memories.numbers)
        rows = {number: _read(memories, request.tenant, memories.numbers[number]) for number in numbers}
        return {number: row for number, row in rows.items() if not _is_expired(row, request.now)}

    def _list_memories(self, request: ListMemories) -> tuple[MemoryRow, ...]:
        rows = sorted(self._of(request.tenant).unexpired(request.prefix, request.now), key=_position)
        if request.after is not None:
            updated, namespace, key = request.after
            rows = [row for row in rows if _position(row) > (-updated, namespace, key)]
        filter = None if is_everything(request.filter) else request.filter
        matching = (row for row in rows if filter is None or _may_match(filter, row.value))
        page = tuple(matching)[request.offset : request.offset + request.limit]
        return tuple(_read(self._of(request.tenant), request.tenant, row.memory_key) for row in page)

    def _list_namespaces(self, request: ListNamespaces) -> tuple[Namespace, ...]:
        memories = self._of(request.tenant)
        found = {row.namespace: row for row in memories.unexpired(request.prefix, request.now)}
        listed = sorted(each for each in found if request.after is None or each > request.after)[: request.limit]
        return tuple(_read(memories, request.tenant, found[each].memory_key).namespace for each in listed)

    def _count_memories(self, request: CountMemories) -> int:
        return sum(1 for _ in self._of(request.tenant).unexpired((), request.now))

    def _find_matching(self, request: FindMatching) -> frozenset[int]:
        rows = self._of(request.tenant).unexpired(request.prefix, request.now)
        return frozenset(
            memory_number(request.tenant, row.memory_key) for row in rows if _may_match(request.filter, row.value)
        )

    def _find_expired(self, request: FindExpired) -> frozenset[int]:
        memories = self._of(request.tenant)
        rows = (memory.row for memory in memories.rows.values() if _is_expired(memory.row, request.now))
        below = (row for row in rows if row.namespace[: len(request.prefix)] == request.prefix)
        return frozenset(memory_number(request.tenant, row.memory_key) for row in below)

    def _search_full_text(self, request: SearchFullText) -> WordMatches:
        """Return all memories that match."""
        memories = self._of(request.tenant)
        found: list[tuple[WordMatch, MemoryRow]] = []
        for row in memories.unexpired(request.prefix, request.now):
            own = memories.word_counts.get(row.memory_key, {})
            counts = [own[word] for word in request.words if word in own]
            if counts:
                number = memory_number(request.tenant, row.memory_key)
                found.append((WordMatch(number, len(counts), sum(counts), row.updated), row))
        found.sort(key=lambda each: (-each[0].distinct, -each[0].frequency, _position(each[1])))
        return WordMatches(tuple(match for match, _ in found), is_all=True)

    def _load_vector_changes(self, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
        memories = self._of(request.tenant)
        changed = [
            _partition_changes(memories, request.tenant, first, version, request.since.get(first, NO_VECTORS))
            for first, version in memories.versions.items()
            if request.partition in (None, first) and request.since.get(first) != version
        ]
        return (*changed, *request.deleted_partitions(memories.versions))

    def _inspect_memories(self, request: InspectMemories) -> InspectedMemoryPage:
        """Return all memories in one page."""
        memories = self._of(request.tenant)
        found = (_stored_memory(memories, request.tenant, key, memory) for key, memory in memories.rows.items())
        lost = memories.checksums.keys() - memories.rows.keys()
        return InspectedMemoryPage(
            tuple(found), problems=tuple(f"{memory_name(*key)} is gone, but its checksum is left" for key in lost)
        )


def _read(memories: _TenantMemories, tenant: str, key: MemoryKey) -> MemoryRow:
    """Return a memory after comparing it with its checksums."""
    if key not in memories.rows or key not in memories.checksums:
        raise damaged_memory(key, "its row or its checksum is missing")
    (namespace, own_key, value, created, updated, expires, ttl), vectors, _ = memories.rows[key]
    checks = (len(vectors), memories.checksums[key].row, memories.checksums[key].times)
    stored = (encode(namespace), to_bytes(own_key), value)
    row = read_memory(tenant, memory_number(tenant, key), *stored, created, updated, expires, ttl, *checks)
    if row.memory_key != key:
        raise damaged_memory(key, "another memory is in its place")
    return row


def _read_vectors(memories: _TenantMemories, tenant: str, key: MemoryKey) -> tuple[VectorRow, ...]:
    """Return the vectors of a memory after comparing them with their checksums."""
    number, space, checksums = memory_number(tenant, key), encode(key.namespace), memories.checksums[key].vectors
    pairs = zip(memories.rows[key].vectors, checksums, strict=False)
    return read_vectors([StoredVector(number, n, space, *pair) for n, pair in enumerate(pairs)])


def _has_damaged_times(memories: _TenantMemories, key: MemoryKey) -> bool:
    row = memories.rows[key].row
    return memories.checksums[key].times != sum_of_times(row.created, row.updated, row.expires)


def _stored_memory(memories: _TenantMemories, tenant: str, key: MemoryKey, memory: NewMemory) -> InspectedMemory:
    number = memory_number(tenant, key)
    problems = [] if memories.numbers.get(number) == key else ["it has the number of another memory"]
    row = None
    try:
        row = _read(memories, tenant, key)
        _read_vectors(memories, tenant, key)
    except Corrupt as error:
        problems.append(str(error))
    words = mark(memories.word_counts.get(key, {}))
    count = len(memories.checksums[key].vectors)
    vectors = dict(enumerate(memory.vectors))
    return InspectedMemory(number, key, row, vectors, count, tuple(problems), words_check(memory.words), words)


def _put(memories: _TenantMemories, tenant: str, memory: NewMemory, now: int) -> None:
    key = memory.row.memory_key
    old = memories.rows.get(key)
    if old is not None and not _is_expired(old.row, now) and not _has_damaged_times(memories, key):
        memory = memory._replace(row=memory.row._replace(created=old.row.created))
    memories.rows[key] = memory
    memories.checksums[key] = _checksums(tenant, memory)
    memories.numbers[memory_number(tenant, key)] = key
    _count_words(memories, key, memory.words)
    lost = len(old.vectors) > len(memory.vectors) if old is not None else False
    _count_changes(memories, key.namespace[0], now, stored=bool(memory.vectors), lost=lost)
    memories.stored_at[key] = memories.versions.get(key.namespace[0], NO_VECTORS)[0]


def _checksums(tenant: str, memory: NewMemory) -> _Checksums:
    namespace, key, value, created, updated, expires, ttl = memory.row
    space, count = encode(namespace), len(memory.vectors)
    number = memory_number(tenant, memory.row.memory_key)
    return _Checksums(
        memory_checksum(number, tenant, space, to_bytes(key), ttl, count, to_bytes(value)),
        sum_of_times(created, updated, expires),
        tuple([vector_checksum(number, n, count, space, vector) for n, vector in enumerate(memory.vectors)]),
    )


def _count_words(memories: _TenantMemories, key: MemoryKey, words: str) -> None:
    memories.word_counts.pop(key, None)
    if words:
        memories.word_counts[key] = unmark(words)


def _delete(memories: _TenantMemories, tenant: str, key: MemoryKey, now: int) -> None:
    memory = memories.rows.pop(key, None)
    memories.checksums.pop(key, None)
    memories.numbers.pop(memory_number(tenant, key), None)
    memories.word_counts.pop(key, None)
    memories.stored_at.pop(key, None)
    if memory is not None:
        _count_changes(memories, key.namespace[0], now, stored=False, lost=bool(memory.vectors))


def _count_changes(memories: _TenantMemories, first: str, now: int, *, stored: bool, lost: bool) -> None:
    """Count a change of a partition's vectors. A new partition starts at the time."""
    if stored or lost:
        seq, drops = memories.versions.get(first, (now, now))
        memories.versions[first] = (seq + stored, drops + lost)


def _partition_changes(
    memories: _TenantMemories, tenant: str, first: str, version: tuple[int, int], since: tuple[int, int]
) -> PartitionChanges:
    own = {key: memory for key, memory in memories.rows.items() if key.namespace[0] == first}
    numbers = {key: memory_number(tenant, key) for key in own}
    changed = tuple(
        row for key in own if memories.stored_at[key] > since[0] for row in _read_vectors(memories, tenant, key)
    )
    if since == NO_VECTORS or version[1] == since[1]:
        return PartitionChanges(first, version, changed)
    present = {(numbers[key], n) for key, memory in own.items() for n in range(len(memory.vectors))}
    return PartitionChanges(first, version, changed, frozenset(present))


def _is_expired(row: MemoryRow, now: int) -> bool:
    return row.expires is not None and row.expires <= now


def _position(row: MemoryRow) -> tuple[int, Namespace, str]:
    return (-row.updated, row.namespace, row.key)


def _may_match(filter: FilterNode, value: str) -> bool:
    """Whether a memory may match a filter. Only whoever has the keys knows whether an encrypted one does."""
    return is_sealed(value) or matches(filter, load(value))
