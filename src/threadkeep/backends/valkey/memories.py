"""Memories on Valkey: a hash and sorted sets for each partition. A partition is the first segment of a namespace.

    {n}:m:…     memories by number; in plain form: created, updated, expires, number of vectors, ttl, checksum of these
    {n}:e:…     numbers by expiry
    {n}:d:…     numbers by time of update
    {n}:s:…     namespaces with numbers, in order of bytes
    {n}:v:…     vectors; how often they were stored and lost
    {n}:w:…     vectors by when they were stored
    {n}:x:…     words by number, with the memory's key before them
    {n}:p:      the partitions in this slot

The engine applies filters, to one page at a time. A script compares words on the server, some memories at a time. A
batch is atomic within each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha1
from itertools import groupby, islice
from typing import Any, NamedTuple, TypeAlias

import ormsgpack

from threadkeep.backends.valkey.calls import AT_ONCE, Call, CallExecutor, merge_by_score
from threadkeep.backends.valkey.commits import REFUSED
from threadkeep.backends.valkey.keys import PARTITIONS, key_of, tenants_key
from threadkeep.engine.identity import decode_lossy, from_bytes, to_bytes
from threadkeep.engine.memories.checksums import (
    MALFORMED_MEMORY_ERRORS,
    StoredVector,
    check_vector,
    damaged_row,
    memory_checksum,
    read_memory,
    sum_of_times,
    vector_checksum,
)
from threadkeep.engine.memories.filters import matches
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, decode, encode, memory_number, partition_number
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
    changed_memory,
)
from threadkeep.engine.memories.words import words_check
from threadkeep.errors import Corrupt, WrongKey, reason
from threadkeep.plan import Request

_MEMORIES, _EXPIRY, _NAMESPACES, _TIMES, _VECTORS, _CHANGES, _WORDS = range(7)
"""The keys of a partition by position."""
_SEPARATOR = b"\x00\x00"
"""Stands between a namespace and the numbers in it. They come before the namespaces below it."""
DIGITS = 16
"""The number of a memory as text has so many hexadecimal digits."""
NUMBER_OFFSET = 1 << 63
"""It is added to a number, so that texts are in the order of the numbers."""
_READ_AT_ONCE = 32
_EXPECTING = 2
"""Tells the script `write_memories` that a memory is expected."""
_EXPECTING_UPDATES = 3
"""The same for several memories, of which only the time of the last update matters."""
_CHANGED = -2
"""Its reply if a memory is not as expected."""


class PartitionKeys(NamedTuple):
    """A partition: its tenant, the first segment of its namespaces, and its keys."""

    tenant: str
    first: str
    keys: tuple[bytes, ...]

    @property
    def name(self) -> bytes:
        """The partition's name in its keys."""
        return encode((self.tenant, self.first))


_Ranked: TypeAlias = tuple[float, bytes, PartitionKeys]
"""A memory by time: when it was updated, its number, and its partition."""


class ValkeyMemories:
    """The memories below a prefix of keys."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self.handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
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
            CreateVectorIndex: lambda *_: None,
        }

    # --- partitions

    def _part(self, tenant: str, first: str) -> PartitionKeys:
        slot = partition_number(tenant, first) % PARTITIONS
        name = encode((tenant, first))
        keys = [key_of(self._prefix, slot, what, name) for what in (b"m", b"e", b"s", b"d", b"v", b"w", b"x")]
        return PartitionKeys(tenant, first, (*keys, key_of(self._prefix, slot, b"p", b"")))

    def parts(self, executor: CallExecutor, tenant: str | None, prefix: Namespace = ()) -> list[PartitionKeys]:
        """Return the partition of a prefix; without a prefix, all of a tenant; without a tenant, all."""
        if tenant is not None and prefix:
            return [self._part(tenant, prefix[0])]
        bounds = _bounds(encode((tenant,)) if tenant is not None else b"")
        keys = [key_of(self._prefix, slot, b"p", b"") for slot in range(PARTITIONS)]
        replies = executor.calls([Call("ZRANGEBYLEX", (key,), bounds) for key in keys])
        return [self._part(*decode(name)) for names in replies for name in names]

    # --- changes

    def _write_memories(self, executor: CallExecutor, request: WriteMemories) -> None:
        check_written(executor.calls(self.write_calls(request)))

    def write_calls(self, request: WriteMemories) -> list[Call]:
        """Return a batch of memories as calls, one for each partition."""
        puts: dict[str, list[NewMemory]] = {}
        deletes: dict[str, list[MemoryKey]] = {}
        for memory in request.puts:
            puts.setdefault(memory.row.namespace[0], []).append(memory)
        for key in request.deletes:
            deletes.setdefault(key.namespace[0], []).append(key)
        parts = {first: self._part(request.tenant, first) for first in {**puts, **deletes}}
        return [
            self._write_call(request, part, puts.get(first, ()), deletes.get(first, ()))
            for first, part in parts.items()
        ]

    def _write_call(
        self, request: WriteMemories, part: PartitionKeys, puts: Sequence[NewMemory], deletes: Sequence[MemoryKey]
    ) -> Call:
        args: list[Any] = [request.now, part.name, int(request.expired), len(puts)]
        for row, vectors, words in puts:
            namespace, own_key = encode(row.namespace), to_bytes(row.key)
            args += (_number_text(request.tenant, row.memory_key), namespace + _SEPARATOR)
            args += (row.created, row.updated, _maybe_number(row.expires), _maybe_number(row.ttl))
            number = memory_number(request.tenant, row.memory_key)
            check = (words_check(words),) if words else ()
            args += (_pack_memory(number, request.tenant, namespace, row, len(vectors), *check),)
            args += (_words_entry(own_key, words), len(vectors))
            args += (_pack_vector(number, n, len(vectors), namespace, vector) for n, vector in enumerate(vectors))
        args.append(len(deletes))
        for key in deletes:
            args += (_number_text(request.tenant, key), namespace_start(key.namespace))
        if not request.sealed:  # the script compares with the set of tenants
            args.append(to_bytes(request.tenant))
            slot = partition_number(request.tenant, part.first) % PARTITIONS
            return Call("write_memories", (*part.keys, tenants_key(self._prefix, slot)), tuple(args))
        return Call("write_memories", part.keys, tuple(args))

    def _change_memories(self, executor: CallExecutor, request: ChangeMemories) -> None:
        """Write memories of one partition if they are as expected, in one script."""
        (call,) = self.write_calls(request.write)
        args: list[Any] = [*call.args[:2], _EXPECTING_UPDATES, len(request.expected)]
        for key, updated in request.expected:
            args += (_number_text(request.tenant, key), _maybe_number(updated))
        reply = executor.call(Call(call.name, call.keys, (*args, *call.args[3:])))
        check_written([reply])
        if reply == _CHANGED:
            raise changed_memory(request.expected[0][0])

    def _replace_memories(self, executor: CallExecutor, request: ReplaceMemories) -> int:
        """Replace memories, each in one script; one whose partition changes in two, the new one first.

        If the old one was changed in between, the new one is deleted again.
        """
        pairs = list(zip(request.old, request.puts, strict=True))
        moved = [old.memory_key != put.row.memory_key for old, put in pairs]
        calls = [
            self._replace_call(request, put.row.memory_key, None if is_moved else old, put)
            for (old, put), is_moved in zip(pairs, moved, strict=True)
        ]
        replaced = [reply != _CHANGED for reply in executor.calls(calls)]
        gone = [old for (old, _), is_moved in zip(pairs, moved, strict=True) if is_moved]
        replies = executor.calls([self._replace_call(request, old.memory_key, old) for old in gone])
        deleted = iter([reply != _CHANGED for reply in replies])
        undo: list[Call] = []
        count = 0
        for (_, put), is_moved, is_replaced in zip(pairs, moved, replaced, strict=True):
            is_done = next(deleted) if is_moved else is_replaced
            count += is_done
            if is_moved and is_replaced and not is_done:
                undo.append(self._replace_call(request, put.row.memory_key, put.row))
        executor.calls(undo)
        return count

    def _replace_call(
        self, request: ReplaceMemories, key: MemoryKey, expected: MemoryRow | None, put: NewMemory | None = None
    ) -> Call:
        """Return a call that stores or deletes a memory if it is the expected one, or if there is none."""
        write = WriteMemories(request.tenant, (put,) if put else (), () if put else (key,), request.now, sealed=True)
        (call,) = self.write_calls(write)
        times = ("", "") if expected is None else (expected.updated, _maybe_number(expected.expires))
        args = (*call.args[:2], _EXPECTING, _number_text(request.tenant, key), *times, *call.args[3:])
        return Call(call.name, call.keys, args)

    def _refresh_memories(self, executor: CallExecutor, request: RefreshMemories) -> None:
        by_partition = _numbers_by_partition(request.tenant, request.keys)
        parts = ((self._part(request.tenant, first), numbers) for first, numbers in by_partition.items())
        executor.calls([Call("refresh_memories", part.keys[:2], (request.now, *numbers)) for part, numbers in parts])

    def _sweep_memories(self, executor: CallExecutor, request: SweepMemories) -> int:
        swept = 0
        for part in self.parts(executor, request.tenant):
            if swept >= request.limit:
                break
            bounds = ("-inf", request.now, "LIMIT", 0, request.limit - swept)
            numbers = executor.call(Call("ZRANGEBYSCORE", (part.keys[_EXPIRY],), bounds))
            stored = fetch_fields(executor, part.keys[_MEMORIES], numbers)
            keys = list(_expired_keys(part.tenant, stored, request.now))
            if keys:
                write = WriteMemories(part.tenant, (), tuple(keys), request.now, expired=True, sealed=True)
                swept += executor.call(self._write_call(write, part, (), keys))
        return swept

    def delete_empty_partitions(self, executor: CallExecutor) -> None:
        """Delete what is left of partitions without memories and vectors, of all tenants."""
        executor.calls([Call("delete_partition", part.keys, (part.name,)) for part in self.parts(executor, None)])

    # --- reads

    def _fetch(self, executor: CallExecutor, part: PartitionKeys, numbers: Sequence[bytes]) -> dict[bytes, MemoryRow]:
        """Return memories by number, expired ones too."""
        found = fetch_fields(executor, part.keys[_MEMORIES], numbers)
        return {number: memory_row(part.tenant, number, stored) for number, stored in found}

    def _get_memories(self, executor: CallExecutor, request: GetMemories) -> tuple[MemoryRow | None, ...]:
        """Read memories. Those of one partition are read in one snapshot."""
        by_partition = _numbers_by_partition(request.tenant, [key for key in request.keys if key.namespace])
        calls = [
            Call("HMGET", (self._part(request.tenant, first).keys[_MEMORIES],), tuple(numbers))
            for first, numbers in by_partition.items()
        ]
        replies = zip(calls, executor.calls(calls), strict=True)
        stored = (pair for call, reply in replies for pair in zip(call.args, reply, strict=True) if pair[1] is not None)
        rows = (memory_row(request.tenant, *pair) for pair in stored)
        found = {row.memory_key: row for row in rows if not _is_expired(row, request.now)}
        return tuple(found.get(key) for key in request.keys)

    def _get_memories_by_number(self, executor: CallExecutor, request: GetMemoriesByNumber) -> dict[int, MemoryRow]:
        numbers = [number_text(number) for number in request.numbers]
        found: dict[int, MemoryRow] = {}
        for part in self.parts(executor, request.tenant, request.prefix):
            rows = self._fetch(executor, part, numbers)
            found |= {parse_number(text): row for text, row in rows.items() if not _is_expired(row, request.now)}
        return found

    def _numbers_below(self, executor: CallExecutor, part: PartitionKeys, prefix: Namespace) -> list[bytes]:
        """Return the numbers of all memories below a prefix."""
        members = executor.call(Call("ZRANGEBYLEX", (part.keys[_NAMESPACES],), _bounds(encode(prefix))))
        return [member[-DIGITS:] for member in members]

    def _list_memories(self, executor: CallExecutor, request: ListMemories) -> tuple[MemoryRow, ...]:
        parts = self.parts(executor, request.tenant, request.prefix)
        high = request.after[0] if request.after is not None else None
        rows = self._read_in_order(executor, self._by_time(executor, parts, request.prefix, high))
        if request.after is not None:
            updated, namespace, key = request.after
            rows = (row for row in rows if _position(row) > (-updated, namespace, key))
        unexpired = (row for row in rows if not _is_expired(row, request.now))
        return tuple(islice(unexpired, request.offset, request.offset + request.limit))

    def _by_time(
        self, executor: CallExecutor, parts: Sequence[PartitionKeys], prefix: Namespace, high: int | None
    ) -> Iterator[_Ranked]:
        """Yield memories by time of update, descending."""
        if len(prefix) > 1:
            numbers = self._numbers_below(executor, parts[0], prefix)
            scores = executor.call(Call("ZMSCORE", (parts[0].keys[_TIMES],), tuple(numbers))) if numbers else []
            times = ((float(score), number) for score, number in zip(scores, numbers, strict=True) if score is not None)
            wanted = [(time, number) for time, number in times if high is None or time <= high]
            return ((time, number, parts[0]) for time, number in sorted(wanted, reverse=True))
        by_key = {part.keys[_TIMES]: part for part in parts}
        ranked = merge_by_score(executor, list(by_key), high if high is not None else "+inf")
        return ((time, number, by_key[key]) for time, number, key in ranked)

    def _read_in_order(self, executor: CallExecutor, ranked: Iterator[_Ranked]) -> Iterator[MemoryRow]:
        """Yield memories in the order of `ListMemories`. Those with the same time are read together."""
        for _, group in groupby(_in_pages(ranked), key=lambda each: each[0]):
            page = [each for _, each in group]
            rows: list[MemoryRow] = []
            for part in dict.fromkeys(part for _, _, part in page):
                rows += self._fetch(executor, part, [number for _, number, own in page if own is part]).values()
            yield from sorted(rows, key=_position)

    def _list_namespaces(self, executor: CallExecutor, request: ListNamespaces) -> tuple[Namespace, ...]:
        low, high = _bounds(encode(request.prefix))
        if request.after is not None:
            low = b"(" + encode(request.after) + _SEPARATOR + b"\xff"
        args = (request.now, low, high, request.limit)
        parts = self.parts(executor, request.tenant, request.prefix)
        calls = [Call("list_namespaces", (part.keys[_MEMORIES], part.keys[_NAMESPACES]), args) for part in parts]
        found = [_read_namespace(each) for reply in executor.calls(calls) for each in reply]
        return tuple(sorted(each for each in found if request.after is None or each > request.after))[: request.limit]

    def _count_memories(self, executor: CallExecutor, request: CountMemories) -> int:
        parts = self.parts(executor, request.tenant)
        stored = executor.calls([Call("HLEN", (part.keys[_MEMORIES],)) for part in parts])
        expired = executor.calls([Call("ZCOUNT", (part.keys[_EXPIRY],), ("-inf", request.now)) for part in parts])
        return int(sum(stored) - sum(expired))

    def _find_matching(self, executor: CallExecutor, request: FindMatching) -> frozenset[int]:
        found: set[int] = set()
        for part in self.parts(executor, request.tenant, request.prefix):
            rows = self._fetch(executor, part, self._numbers_below(executor, part, request.prefix))
            unexpired = ((text, row) for text, row in rows.items() if not _is_expired(row, request.now))
            found |= {parse_number(text) for text, row in unexpired if matches(request.filter, load(row.value))}
        return frozenset(found)

    def _find_expired(self, executor: CallExecutor, request: FindExpired) -> frozenset[int]:
        found: set[int] = set()
        for part in self.parts(executor, request.tenant, request.prefix):
            numbers = executor.call(Call("ZRANGEBYSCORE", (part.keys[_EXPIRY],), ("-inf", request.now)))
            rows = self._fetch(executor, part, numbers).items()
            found |= {
                parse_number(text) for text, row in rows if row.namespace[: len(request.prefix)] == request.prefix
            }
        return frozenset(found)

    def _search_full_text(self, executor: CallExecutor, request: SearchFullText) -> WordMatches:
        """Return all memories that match. Each call reads some memories of one partition."""
        start, high = _bounds(encode(request.prefix))
        count = max(_READ_AT_ONCE, AT_ONCE * 8 // (8 + len(request.words)))
        left = [(part, start) for part in self.parts(executor, request.tenant, request.prefix)]
        found: list[tuple[bytes, ...]] = []
        while left:
            calls = [
                Call(
                    "search_words",
                    tuple(part.keys[n] for n in (_MEMORIES, _NAMESPACES, _WORDS)),
                    (request.now, low, high, count, *map(to_bytes, request.words)),
                )
                for part, low in left
            ]
            replies = list(zip(left, executor.calls(calls), strict=True))
            for _, (_, *values) in replies:
                found += zip(*[iter(values)] * 5, strict=True)
            left = [(part, b"(" + last) for (part, _), (last, *_) in replies if last]
        found.sort(key=_rank)
        return WordMatches(tuple(map(_word_match, found)), is_all=True)

    # --- vectors

    def _load_vector_changes(self, executor: CallExecutor, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
        parts = self.parts(executor, request.tenant, (request.partition,) if request.partition is not None else ())
        replies = executor.calls([Call("HMGET", (part.keys[_VECTORS],), ("seq", "lost")) for part in parts])
        found = []
        for part, (seq, lost) in zip(parts, replies, strict=True):
            version = (int(seq or 0), int(lost or 0))
            since = request.since.get(part.first, NO_VECTORS)
            if version != since:
                found.append(self._partition_changes(executor, part, version, since))
        return (*found, *request.deleted_partitions({part.first for part in parts}))

    def _partition_changes(
        self, executor: CallExecutor, part: PartitionKeys, version: tuple[int, int], since: tuple[int, int]
    ) -> PartitionChanges:
        fields = executor.call(Call("ZRANGEBYSCORE", (part.keys[_CHANGES],), (f"({since[0]}", "+inf")))
        vectors = fetch_fields(executor, part.keys[_VECTORS], fields)
        changed = tuple(vector_row(field, stored) for field, stored in vectors)
        if since == NO_VECTORS or version[1] == since[1]:
            return PartitionChanges(part.first, version, changed)
        present = executor.call(Call("ZRANGE", (part.keys[_CHANGES],), (0, -1)))
        return PartitionChanges(part.first, version, changed, frozenset(map(_vector_id, present)))


def check_written(replies: Sequence[int]) -> None:
    """Raise WrongKey if a reply of the script `write_memories` says that it refused what is not encrypted."""
    if REFUSED in replies:
        raise WrongKey


def fetch_fields(executor: CallExecutor, key: bytes, fields: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the fields of a hash that exist, with their values, some in each call."""
    for start in range(0, len(fields), AT_ONCE):
        page = fields[start : start + AT_ONCE]
        values = executor.call(Call("HMGET", (key,), tuple(page)))
        yield from ((field, value) for field, value in zip(page, values, strict=True) if value is not None)


def _words_entry(key: bytes, words: str) -> bytes:
    """Return words as they are stored: after the key, each between spaces. Empty if there are none."""
    return b"%s%s " % (words_prefix(key), words.encode()) if words else b""


def words_prefix(key: bytes) -> bytes:
    """Return what stands before the words of a memory: its key, after the length of the key."""
    return b"%d:%s " % (len(key), key)


def read_words(entry: bytes) -> str:
    """Return the marked words of a memory as they are stored."""
    length, _, rest = entry.partition(b":")
    return rest[int(length) + 1 : -1].decode()


def _rank(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the place of a memory in the order of `SearchFullText`."""
    member, distinct, frequency, updated, key = found
    return (-distinct, -frequency, -int(updated), member[:-DIGITS], key)


def _word_match(found: tuple[Any, ...]) -> WordMatch:
    member, distinct, frequency, updated, _ = found
    return WordMatch(parse_number(member[-DIGITS:]), distinct, frequency, int(updated))


def _bounds(start: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of ZRANGEBYLEX for the members that start so."""
    return (b"[" + start, b"(" + start + b"\xff") if start else (b"-", b"+")


def number_text(number: int) -> bytes:
    """Return the number of a memory as text."""
    return b"%016x" % (number + NUMBER_OFFSET)


def parse_number(text: bytes) -> int:
    """Return the number of a memory from its text."""
    return int(text, 16) - NUMBER_OFFSET


def namespace_start(namespace: Namespace) -> bytes:
    """Return what comes before the number in a member of the set by namespace."""
    return encode(namespace) + _SEPARATOR


def _number_text(tenant: str, key: MemoryKey) -> bytes:
    return number_text(memory_number(tenant, key))


def _numbers_by_partition(tenant: str, keys: Iterable[MemoryKey]) -> dict[str, list[bytes]]:
    numbers: dict[str, list[bytes]] = {}
    for key in keys:
        numbers.setdefault(key.namespace[0], []).append(_number_text(tenant, key))
    return numbers


def _vector_id(field: bytes) -> tuple[int, int]:
    text, _, n = field.partition(b":")
    return parse_number(text), int(n)


def _pack_vector(number: int, n: int, count: int, namespace: bytes, vector: bytes) -> bytes:
    checksum = vector_checksum(number, n, count, namespace, vector)
    return b"%d,%d,%d:%s%s" % (len(namespace), count, checksum, namespace, vector)


def vector_row(field: bytes, stored: bytes) -> VectorRow:
    """Read a vector as it is stored; Corrupt if it is damaged. Older ones have no count and no checksum."""
    try:
        head, _, rest = stored.partition(b":")
        length, count, checksum = map(int, head.split(b",")) if b"," in head else (int(head), 0, None)
        found = StoredVector(*_vector_id(field), rest[:length], rest[length:], checksum)
    except MALFORMED_MEMORY_ERRORS as error:
        raise Corrupt(f"vector {decode_lossy(field)} cannot be read: {reason(error)}") from error
    return check_vector(found, count)


def _maybe_number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _pack_memory(number: int, tenant: str, namespace: bytes, row: MemoryRow, vectors: int, *words_check: int) -> bytes:
    """Pack a row with its checksum, and the checksum of its words, if it has any."""
    key, value = to_bytes(row.key), to_bytes(row.value)
    checksum = memory_checksum(number, tenant, namespace, key, row.ttl, vectors, value)
    return ormsgpack.packb([namespace, key, value, checksum, *words_check])


def memory_row(tenant: str, field: bytes, stored: bytes) -> MemoryRow:
    """Read a memory as it is stored; Corrupt if it is damaged. Older ones have no checksums.

    The script that refreshes an older one gives a checksum to its times, but not to its row.
    """
    number = namespace = key = None
    try:
        number = parse_number(field)
        namespace, key, value, *rest = ormsgpack.unpackb(stored.partition(b"\n")[2])
        created, updated, expires, count, ttl, is_checked = _read_start(stored)
        checks = (rest[0], sum_of_times(created, updated, expires)) if rest else (None, None)
        if rest and not is_checked:
            raise ValueError("the checksum of its times is missing")
    except MALFORMED_MEMORY_ERRORS as error:
        raise damaged_row(namespace, key, number, error) from error
    return read_memory(tenant, number, namespace, key, value, created, updated, expires, ttl, count, *checks)


def _read_start(stored: bytes) -> tuple[Any, ...]:
    """Return created, updated, expires, number of vectors, ttl, and whether they have a checksum."""
    created, updated, expires, count, ttl, *check = stored.partition(b"\n")[0].split(b",")
    plain = b",".join((created, updated, expires, count, ttl))
    if check and check != [sha1(plain, usedforsecurity=False).hexdigest()[:8].encode()]:
        raise ValueError("its times do not match their checksum")
    times = int(created), int(updated), int(expires) if expires else None
    return (*times, int(count), float(ttl) if ttl else None, bool(check))


def _expired_keys(tenant: str, stored: Iterable[tuple[bytes, bytes]], now: int) -> Iterator[MemoryKey]:
    """Yield the memories that have expired. Damaged ones stay: their time may be wrong."""
    for pair in stored:
        with suppress(Corrupt):
            row = memory_row(tenant, *pair)
            if _is_expired(row, now):
                yield row.memory_key


def _read_namespace(found: bytes) -> Namespace:
    """Read what the script `list_namespaces` returned."""
    if len(found) == DIGITS and not found.endswith(b"\x01"):
        raise Corrupt(
            f"memory number {parse_number(found)} is damaged, or its entry in the set by namespace is that of another "
            "namespace; see `threadkeep verify`"
        )
    return decode(found)


def stored_key(stored: bytes) -> MemoryKey:
    """Return the key of a memory from its row, which may be damaged elsewhere."""
    namespace, key, *_ = ormsgpack.unpackb(stored.partition(b"\n")[2])
    return MemoryKey(decode(namespace), from_bytes(key))


def stored_words_check(stored: bytes) -> int:
    """Return the checksum of a memory's words from its row; 0 if it has none."""
    check = ormsgpack.unpackb(stored.partition(b"\n")[2])[4:]
    return int(check[0]) if check else 0


def _in_pages(ranked: Iterator[_Ranked]) -> Iterator[tuple[int, _Ranked]]:
    """Yield memories with the number of their page. Memories with the same time are on one page."""
    page, count, last = 0, 0, None
    for each in ranked:
        if count >= _READ_AT_ONCE and each[0] != last:
            page, count = page + 1, 0
        count, last = count + 1, each[0]
        yield page, each


def _is_expired(row: MemoryRow, now: int) -> bool:
    return row.expires is not None and row.expires <= now


def _position(row: MemoryRow) -> tuple[int, Namespace, str]:
    return (-row.updated, row.namespace, row.key)
