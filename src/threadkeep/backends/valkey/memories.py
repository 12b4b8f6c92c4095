"""Memories on Valkey: the hash and sorted sets of each partition, which is what a namespace begins with.

    {n}:m:…     memories by number; when made, changed and expiring, and how many vectors, in clear
    {n}:e:…     numbers by expiry          {n}:d:…     numbers by time of change
    {n}:s:…     namespaces with numbers, in order of bytes
    {n}:v:…     vectors; how often they were stored and lost          {n}:w:…     vectors by when they were stored
    {n}:p:      the partitions that are in this slot

Filters are decided by the asker, who is given slices; full text is not there. A batch is atomic in each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.backends.valkey.calls import AT_ONCE, PARTITIONS, Call, CallExecutor, key_of, merged_ranks
from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.memories.filters import matches
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.namespaces import MemoryKey, Space, decode, encode, memory_number, partition_number
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
    SearchFullText,
    SweepMemories,
    VectorRow,
    WriteMemories,
)
from threadkeep.plan import Request


class PartitionKeys(NamedTuple):
    """A partition: whose, what its namespaces begin with, and its keys."""

    tenant: str
    first: str
    keys: tuple[bytes, ...]

    @property
    def name(self) -> bytes:
        """What it is called."""
        return encode((self.tenant, self.first))


_MEMORIES, _EXPIRY, _SPACES, _TIMES, _VECTORS, _CHANGES = range(6)


class ValkeyMemories:
    """The memories below a prefix of keys."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self.verbs: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            WriteMemories: self._remember, RefreshMemories: self._refresh, SweepMemories: self._sweep, GetMemories: self._recall,
            GetMemoriesByNumber: self._recall_numbered, ListMemories: self._browse, ListNamespaces: self._spaces,
            FindMatching: self._matching, FindExpired: self._expired, SearchFullText: self._worded, LoadVectorChanges: self._changes,
            CountMemories: self._count, CreateVectorIndex: lambda *_: None,
        }  # fmt: skip

    def _part(self, tenant: str, first: str) -> PartitionKeys:
        slot = partition_number(tenant, first) % PARTITIONS
        name = encode((tenant, first))
        keys = [key_of(self._prefix, slot, what, name) for what in (b"m", b"e", b"s", b"d", b"v", b"w")]
        return PartitionKeys(tenant, first, (*keys, key_of(self._prefix, slot, b"p", b"")))

    def parts(self, executor: CallExecutor, tenant: str | None, prefix: Space = ()) -> list[PartitionKeys]:
        """The partitions that a prefix means: one, or all of a tenant, or all."""
        if tenant is not None and prefix:
            return [self._part(tenant, prefix[0])]
        begin = encode((tenant,)) if tenant is not None else b""
        bounds = (b"[" + begin, b"(" + begin + b"\xff") if begin else (b"-", b"+")
        keys = [key_of(self._prefix, slot, b"p", b"") for slot in range(PARTITIONS)]
        named = executor.calls([Call("ZRANGEBYLEX", (key,), bounds) for key in keys])
        return [self._part(*decode(name)) for names in named for name in names]

    # --- storing

    def _remember(self, executor: CallExecutor, request: WriteMemories) -> None:
        puts: dict[str, list[NewMemory]] = {}
        gone: dict[str, list[MemoryKey]] = {}
        for each in request.puts:
            puts.setdefault(each.row.namespace[0], []).append(each)
        for place in request.deletes:
            gone.setdefault(place.namespace[0], []).append(place)
        executor.calls(
            [
                self._remember_call(
                    request, self._part(request.tenant, first), puts.get(first, ()), gone.get(first, ())
                )
                for first in {**puts, **gone}
            ]
        )

    def _remember_call(
        self, request: WriteMemories, part: PartitionKeys, puts: Sequence[NewMemory], gone: Sequence[MemoryKey]
    ) -> Call:
        args: list[Any] = [request.now, part.name, int(request.expired), len(puts)]
        for row, vectors, _ in puts:
            space = encode(row.namespace)
            args += (
                _number(request.tenant, row.memory_key),
                space + _OWN,
                row.created,
                row.updated,
                _maybe(row.expires),
                _maybe(row.ttl),
            )
            args += (ormsgpack.packb([space, to_bytes(row.key), to_bytes(row.value)]), len(vectors))
            args += (b"%d:%s%s" % (len(space), space, vector) for vector in vectors)
        args.append(len(gone))
        for place in gone:
            args += (_number(request.tenant, place), encode(place.namespace) + _OWN)
        return Call("remember", part.keys, tuple(args))

    def _refresh(self, executor: CallExecutor, request: RefreshMemories) -> None:
        places: dict[str, list[bytes]] = {}
        for place in request.keys:
            places.setdefault(place.namespace[0], []).append(_number(request.tenant, place))
        parts = ((self._part(request.tenant, first), numbers) for first, numbers in places.items())
        executor.calls([Call("refresh", part.keys[:2], (request.now, *numbers)) for part, numbers in parts])

    def _sweep(self, executor: CallExecutor, request: SweepMemories) -> int:
        swept = 0
        for part in self.parts(executor, None):
            if swept >= request.limit:
                break
            bounds = ("-inf", request.now, "LIMIT", 0, request.limit - swept)
            numbers = executor.call(Call("ZRANGEBYSCORE", (part.keys[_EXPIRY],), bounds))
            rows = self._fetched(executor, part, numbers)
            places = [row.memory_key for row in rows.values() if not _lives(row, request.now)]
            if places:
                asked = WriteMemories(part.tenant, (), tuple(places), request.now, expired=True)
                swept += executor.call(self._remember_call(asked, part, (), places))
        return swept

    # --- reading

    def _fetched(self, executor: CallExecutor, part: PartitionKeys, numbers: Sequence[bytes]) -> dict[bytes, MemoryRow]:
        """Memories by number, whether they have expired or not, some at a time."""
        found: dict[bytes, MemoryRow] = {}
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            stored = executor.call(Call("HMGET", (part.keys[_MEMORIES],), tuple(some)))
            found |= {number: memory_row(each) for number, each in zip(some, stored, strict=True) if each is not None}
        return found

    def _recall(self, executor: CallExecutor, request: GetMemories) -> tuple[MemoryRow | None, ...]:
        """What is in one partition is read at one moment."""
        wanted: dict[str, list[bytes]] = {}
        for place in request.keys:
            if place.namespace:
                wanted.setdefault(place.namespace[0], []).append(_number(request.tenant, place))
        calls = [
            Call("HMGET", (self._part(request.tenant, first).keys[_MEMORIES],), tuple(numbers))
            for first, numbers in wanted.items()
        ]
        stored = (each for told in executor.calls(calls) for each in told if each is not None)
        living = {row.memory_key: row for row in map(memory_row, stored) if _lives(row, request.now)}
        return tuple(living.get(place) for place in request.keys)

    def _recall_numbered(self, executor: CallExecutor, request: GetMemoriesByNumber) -> dict[int, MemoryRow]:
        names = [_name(number) for number in request.numbers]
        found: dict[int, MemoryRow] = {}
        for part in self.parts(executor, request.tenant, request.prefix):
            rows = self._fetched(executor, part, names)
            found |= {int(name, 16) - _HALF: row for name, row in rows.items() if _lives(row, request.now)}
        return found

    def _below(self, executor: CallExecutor, part: PartitionKeys, prefix: Space) -> list[bytes]:
        """The numbers of all memories below a prefix."""
        begin = encode(prefix)
        bounds = (b"[" + begin, b"(" + begin + b"\xff") if begin else (b"-", b"+")
        members = executor.call(Call("ZRANGEBYLEX", (part.keys[_SPACES],), bounds))
        return [member[-_LETTERS:] for member in members]

    def _living(
        self, executor: CallExecutor, tenant: str, prefix: Space, now: int
    ) -> Iterator[tuple[bytes, MemoryRow]]:
        for part in self.parts(executor, tenant, prefix):
            rows = self._fetched(executor, part, self._below(executor, part, prefix))
            yield from ((number, row) for number, row in rows.items() if _lives(row, now))

    def _browse(self, executor: CallExecutor, request: ListMemories) -> tuple[MemoryRow, ...]:
        parts = self.parts(executor, request.tenant, request.prefix)
        high = request.after[0] if request.after is not None else None
        ranked = self._ranked(executor, parts, request.prefix, high)
        rows = self._in_order(executor, ranked)
        if request.after is not None:
            updated, space, key = request.after
            rows = (row for row in rows if _order(row) > (-updated, space, key))
        living = (row for row in rows if _lives(row, request.now))
        return tuple(islice(living, request.offset, request.offset + request.limit))

    def _ranked(
        self, executor: CallExecutor, parts: Sequence[PartitionKeys], prefix: Space, high: int | None
    ) -> Iterator[tuple[float, bytes, PartitionKeys]]:
        """Numbers of memories by time of change, descending."""
        if len(prefix) > 1:
            numbers = self._below(executor, parts[0], prefix)
            scores = executor.call(Call("ZMSCORE", (parts[0].keys[_TIMES],), tuple(numbers))) if numbers else []
            times = ((float(score), number) for score, number in zip(scores, numbers, strict=True) if score is not None)
            wanted = [(time, number) for time, number in times if high is None or time <= high]
            return ((time, number, parts[0]) for time, number in sorted(wanted, reverse=True))
        keys = {part.keys[_TIMES]: part for part in parts}
        ranks = merged_ranks(executor, list(keys), high if high is not None else "+inf")
        return ((time, number, keys[key]) for time, number, key in ranks)

    def _in_order(
        self, executor: CallExecutor, ranked: Iterator[tuple[float, bytes, PartitionKeys]]
    ) -> Iterator[MemoryRow]:
        """Memories in the order of `ListMemories`; those of one time are read together."""
        for _, group in groupby(_with_ties(ranked), key=lambda some: some[0]):
            some = [each for _, each in group]
            rows: list[MemoryRow] = []
            for part in dict.fromkeys(part for _, _, part in some):
                rows += self._fetched(executor, part, [number for _, number, where in some if where is part]).values()
            yield from sorted(rows, key=_order)

    def _spaces(self, executor: CallExecutor, request: ListNamespaces) -> tuple[Space, ...]:
        begin = encode(request.prefix)
        low = b"(" + encode(request.after) + _OWN + b"\xff" if request.after is not None else b"[" + begin
        high = b"(" + begin + b"\xff" if begin else b"+"
        parts = self.parts(executor, request.tenant, request.prefix)
        calls = [
            Call(
                "spaces",
                (part.keys[_MEMORIES], part.keys[_SPACES]),
                (request.now, low if low != b"[" else b"-", high, request.limit),
            )
            for part in parts
        ]
        found = [decode(space) for spaces in executor.calls(calls) for space in spaces]
        return tuple(sorted(space for space in found if request.after is None or space > request.after))[
            : request.limit
        ]

    def _count(self, executor: CallExecutor, request: CountMemories) -> int:
        """All that are stored, but for those that have expired."""
        parts = self.parts(executor, request.tenant)
        stored = executor.calls([Call("HLEN", (part.keys[_MEMORIES],)) for part in parts])
        over = executor.calls([Call("ZCOUNT", (part.keys[_EXPIRY],), ("-inf", request.now)) for part in parts])
        return int(sum(stored) - sum(over))

    def _matching(self, executor: CallExecutor, request: FindMatching) -> frozenset[int]:
        living = self._living(executor, request.tenant, request.prefix, request.now)
        return frozenset(int(name, 16) - _HALF for name, row in living if matches(request.filter, load(row.value)))

    def _expired(self, executor: CallExecutor, request: FindExpired) -> frozenset[int]:
        found: set[int] = set()
        for part in self.parts(executor, request.tenant, request.prefix):
            numbers = executor.call(Call("ZRANGEBYSCORE", (part.keys[_EXPIRY],), ("-inf", request.now)))
            rows = self._fetched(executor, part, numbers)
            found |= {
                int(n, 16) - _HALF for n, row in rows.items() if row.namespace[: len(request.prefix)] == request.prefix
            }
        return frozenset(found)

    def _worded(self, executor: CallExecutor, request: SearchFullText) -> Any:
        raise NotImplementedError("there is no full text on Valkey: give the store an embed, or another backend")

    # --- vectors

    def _changes(self, executor: CallExecutor, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
        parts = self.parts(executor, request.tenant, (request.first,) if request.first is not None else ())
        told = executor.calls([Call("HMGET", (part.keys[_VECTORS],), ("seq", "lost")) for part in parts])
        found = []
        for part, (seq, lost) in zip(parts, told, strict=True):
            at = (int(seq or 0), int(lost or 0))
            since = request.since.get(part.first, (0, 0))
            if at != since:
                found.append(self._changed(executor, part, at, since))
        return tuple(found)

    def _changed(
        self, executor: CallExecutor, part: PartitionKeys, at: tuple[int, int], since: tuple[int, int]
    ) -> PartitionChanges:
        fields = executor.call(Call("ZRANGEBYSCORE", (part.keys[_CHANGES],), (f"({since[0]}", "+inf")))
        changed: list[VectorRow] = []
        for start in range(0, len(fields), AT_ONCE):
            some = fields[start : start + AT_ONCE]
            stored = executor.call(Call("HMGET", (part.keys[_VECTORS],), tuple(some)))
            changed += [_vector(field, each) for field, each in zip(some, stored, strict=True) if each is not None]
        if at[1] == since[1]:
            return PartitionChanges(part.first, at, tuple(changed))
        present = executor.call(Call("ZRANGE", (part.keys[_CHANGES],), (0, -1)))
        return PartitionChanges(part.first, at, tuple(changed), frozenset(map(_field, present)))


_OWN = b"\x00\x00"
"""Between a namespace and the numbers that are in it itself: they come before the namespaces below it."""
_LETTERS = 16
_HALF = 1 << 63


def _name(number: int) -> bytes:
    """A memory's number as letters, in the order of numbers."""
    return b"%016x" % (number + _HALF)


def _number(tenant: str, place: MemoryKey) -> bytes:
    return _name(memory_number(tenant, place))


def _field(field: bytes) -> tuple[int, int]:
    name, _, n = field.partition(b":")
    return int(name, 16) - _HALF, int(n)


def _vector(field: bytes, stored: bytes) -> VectorRow:
    length, _, rest = stored.partition(b":")
    space = decode(rest[: int(length)])
    return VectorRow(*_field(field), space, rest[int(length) :])


def _maybe(value: float | None) -> str:
    return "" if value is None else repr(value)


def memory_row(stored: bytes) -> MemoryRow:
    """A memory as it is stored."""
    told, _, packed = stored.partition(b"\n")
    created, updated, expires, _, ttl = told.split(b",")
    space, key, value = ormsgpack.unpackb(packed)
    return MemoryRow(
        decode(space), from_bytes(key), from_bytes(value), int(created), int(updated),
        int(expires) if expires else None, float(ttl) if ttl else None,
    )  # fmt: skip


def _with_ties(
    ranked: Iterator[tuple[float, bytes, PartitionKeys]],
) -> Iterator[tuple[int, tuple[float, bytes, PartitionKeys]]]:
    """Numbers with the number of the slice that they are read in: so many, and as many more as have the same time."""
    slice, count, last = 0, 0, None
    for each in ranked:
        if count >= _READ and each[0] != last:
            slice, count = slice + 1, 0
        count, last = count + 1, each[0]
        yield slice, each


_READ = 32


def _lives(row: MemoryRow, now: int) -> bool:
    return row.expires is None or row.expires > now


def _order(row: MemoryRow) -> tuple[int, Space, str]:
    return (-row.updated, row.namespace, row.key)
