"""Memories in dicts, for the memory backend: the reference that the others must agree with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from threadkeep.engine.health.requests import InspectMemories, StoredMemory, StoredMemoryPage
from threadkeep.engine.memories.filters import matches
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.namespaces import MemoryKey, Space, memory_number
from threadkeep.engine.memories.plans import lifetime
from threadkeep.engine.memories.requests import (
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
    Scored,
    SearchFullText,
    SweepMemories,
    VectorRow,
    WriteMemories,
)
from threadkeep.plan import Request


@dataclass(slots=True)
class _Tenant:
    rows: dict[MemoryKey, NewMemory] = field(default_factory=dict)
    numbers: dict[int, MemoryKey] = field(default_factory=dict)
    counts: dict[MemoryKey, Counter[str]] = field(default_factory=dict)
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    stored: dict[MemoryKey, int] = field(default_factory=dict)
    """At which change of its partition the vectors of a memory were stored."""

    def living(self, prefix: Space, now: int) -> Iterator[MemoryRow]:
        return (
            memory.row
            for memory in self.rows.values()
            if memory.row.namespace[: len(prefix)] == prefix and _lives(memory.row, now)
        )


class InMemoryMemories:
    """All memories of one Keep."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self.verbs: dict[type[Request[Any]], Callable[[Any], Any]] = {
            WriteMemories: self._remember, RefreshMemories: self._refresh, SweepMemories: self._sweep, GetMemories: self._recall,
            GetMemoriesByNumber: self._recall_numbered, ListMemories: self._browse, ListNamespaces: self._spaces,
            FindMatching: self._matching, FindExpired: self._expired, SearchFullText: self._worded, LoadVectorChanges: self._changes,
            CountMemories: self._count, CreateVectorIndex: lambda _: None, InspectMemories: self._inspect,
        }  # fmt: skip

    def _of(self, tenant: str) -> _Tenant:
        return self._tenants.setdefault(tenant, _Tenant())

    def _remember(self, request: WriteMemories) -> None:
        here = self._of(request.tenant)
        for place in request.deletes:
            _remove(here, request.tenant, place)
        for memory in request.puts:
            _put(here, request.tenant, memory, request.now)

    def _refresh(self, request: RefreshMemories) -> None:
        here = self._of(request.tenant)
        for place in request.keys:
            memory = here.rows.get(place)
            if memory is not None and memory.row.ttl is not None and _lives(memory.row, request.now):
                row = memory.row._replace(expires=request.now + lifetime(memory.row.ttl))
                here.rows[place] = memory._replace(row=row)

    def _sweep(self, request: SweepMemories) -> int:
        gone = [
            (here, tenant, place)
            for tenant, here in self._tenants.items()
            for place, memory in here.rows.items()
            if not _lives(memory.row, request.now)
        ][: request.limit]
        for here, tenant, place in gone:
            _remove(here, tenant, place)
        return len(gone)

    def _recall(self, request: GetMemories) -> tuple[MemoryRow | None, ...]:
        here = self._of(request.tenant)
        found = (here.rows.get(place) for place in request.keys)
        return tuple(one.row if one is not None and _lives(one.row, request.now) else None for one in found)

    def _recall_numbered(self, request: GetMemoriesByNumber) -> dict[int, MemoryRow]:
        here = self._of(request.tenant)
        rows = {number: here.rows[here.numbers[number]].row for number in request.numbers if number in here.numbers}
        return {number: row for number, row in rows.items() if _lives(row, request.now)}

    def _browse(self, request: ListMemories) -> tuple[MemoryRow, ...]:
        rows = sorted(self._of(request.tenant).living(request.prefix, request.now), key=_order)
        if request.after is not None:
            updated, space, key = request.after
            rows = [row for row in rows if _order(row) > (-updated, space, key)]
        matching = (row for row in rows if matches(request.filter, load(row.value)))
        return tuple(matching)[request.offset : request.offset + request.limit]

    def _spaces(self, request: ListNamespaces) -> tuple[Space, ...]:
        spaces = {row.namespace for row in self._of(request.tenant).living(request.prefix, request.now)}
        return tuple(sorted(s for s in spaces if request.after is None or s > request.after))[: request.limit]

    def _count(self, request: CountMemories) -> int:
        return sum(1 for _ in self._of(request.tenant).living((), request.now))

    def _matching(self, request: FindMatching) -> frozenset[int]:
        rows = self._of(request.tenant).living(request.prefix, request.now)
        return frozenset(
            memory_number(request.tenant, row.memory_key) for row in rows if matches(request.filter, load(row.value))
        )

    def _expired(self, request: FindExpired) -> frozenset[int]:
        here = self._of(request.tenant)
        rows = (memory.row for memory in here.rows.values() if not _lives(memory.row, request.now))
        below = (row for row in rows if row.namespace[: len(request.prefix)] == request.prefix)
        return frozenset(memory_number(request.tenant, row.memory_key) for row in below)

    def _worded(self, request: SearchFullText) -> tuple[Scored, ...]:
        """BM25, as SQLite's full text has it."""
        here = self._of(request.tenant)
        wanted = {row.memory_key for row in here.living(request.prefix, request.now)}
        average = sum(counts.total() for counts in here.counts.values()) / max(len(here.counts), 1)
        rare = {word: _rarity(word, here) for word in request.words}
        scored = [
            (memory_number(request.tenant, place), sum(rare[w] * _weight(counts, w, average) for w in request.words))
            for place, counts in here.counts.items()
            if place in wanted and any(word in counts for word in request.words)
        ]
        return tuple(sorted(scored, key=lambda one: (-one[1], one[0])))[: request.limit]

    def _changes(self, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
        here = self._of(request.tenant)
        parts = {f: at for f, at in here.parts.items() if request.first in (None, f) and request.since.get(f) != at}
        return tuple(_changed(here, request.tenant, f, at, request.since.get(f, (0, 0))) for f, at in parts.items())

    def _inspect(self, request: InspectMemories) -> StoredMemoryPage:
        """All at once."""
        here = self._of(request.tenant)
        return StoredMemoryPage(
            tuple(_seen(here, request.tenant, place, memory) for place, memory in here.rows.items())
        )


def _seen(here: _Tenant, tenant: str, place: MemoryKey, memory: NewMemory) -> StoredMemory:
    number = memory_number(tenant, memory.row.memory_key)
    wrong = () if here.numbers.get(number) == place == memory.row.memory_key else ("its number is another memory's",)
    sizes = {field: len(vector) for field, vector in enumerate(memory.vectors)}
    return StoredMemory(number, memory.row.memory_key, memory.row.value, sizes, wrong)


def _put(here: _Tenant, tenant: str, memory: NewMemory, now: int) -> None:
    place = memory.row.memory_key
    before = here.rows.get(place)
    if before is not None and _lives(before.row, now):
        memory = memory._replace(row=memory.row._replace(created=before.row.created))
    here.rows[place] = memory
    here.numbers[memory_number(tenant, place)] = place
    _count_words(here, place, memory.words)
    lost = len(before.vectors) > len(memory.vectors) if before is not None else False
    _tell(here, place.namespace[0], stored=bool(memory.vectors), lost=lost)
    here.stored[place] = here.parts.get(place.namespace[0], (0, 0))[0]


def _count_words(here: _Tenant, place: MemoryKey, words: str) -> None:
    here.counts.pop(place, None)
    if words:
        here.counts[place] = Counter(words.split())


def _remove(here: _Tenant, tenant: str, place: MemoryKey) -> None:
    memory = here.rows.pop(place, None)
    here.numbers.pop(memory_number(tenant, place), None)
    here.counts.pop(place, None)
    here.stored.pop(place, None)
    if memory is not None:
        _tell(here, place.namespace[0], stored=False, lost=bool(memory.vectors))


def _tell(here: _Tenant, first: str, *, stored: bool, lost: bool) -> None:
    """Count a change of a partition's vectors."""
    if stored or lost:
        seq, drops = here.parts.get(first, (0, 0))
        here.parts[first] = (seq + stored, drops + lost)


def _changed(here: _Tenant, tenant: str, first: str, at: tuple[int, int], since: tuple[int, int]) -> PartitionChanges:
    own = {place: memory for place, memory in here.rows.items() if place.namespace[0] == first}
    numbered = {place: memory_number(tenant, place) for place in own}
    changed = tuple(
        VectorRow(numbered[place], n, place.namespace, vector)
        for place, memory in own.items()
        if here.stored[place] > since[0]
        for n, vector in enumerate(memory.vectors)
    )
    if at[1] == since[1]:
        return PartitionChanges(first, at, changed)
    present = {(numbered[place], n) for place, memory in own.items() for n in range(len(memory.vectors))}
    return PartitionChanges(first, at, changed, frozenset(present))


def _rarity(word: str, here: _Tenant) -> float:
    having = sum(word in counts for counts in here.counts.values())
    return max(math.log((len(here.counts) - having + 0.5) / (having + 0.5)), 1e-6)


def _weight(counts: Counter[str], word: str, average: float) -> float:
    often = counts[word]
    return often * 2.2 / (often + 1.2 * (0.25 + 0.75 * counts.total() / average))


def _lives(row: MemoryRow, now: int) -> bool:
    return row.expires is None or row.expires > now


def _order(row: MemoryRow) -> tuple[int, Space, str]:
    return (-row.updated, row.namespace, row.key)
