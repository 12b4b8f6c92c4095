"""Checking on Valkey: a thread with all that tells of it, and the sets that memories are found by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.backends.valkey import memories
from threadkeep.backends.valkey import rows as threads
from threadkeep.backends.valkey.calls import AT_ONCE, PARTITIONS, Call, CallExecutor
from threadkeep.engine.health.requests import (
    NONSENSE,
    CompactStorage,
    InspectedThread,
    InspectMemories,
    InspectThread,
    IntegrityCheck,
    ListStoredThreads,
    StoredMemory,
    StoredMemoryPage,
    ThreadEntry,
    UnreadableRow,
    each_read,
    loosely,
)
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.memories.namespaces import decode, encode, memory_number
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.valkey.backend import ValkeyBackend

_SETS = (b"n", b"u", b"c", b"b")
"""What tells which threads there are; one that a set has lost is found by the others."""


class ValkeyHealth:
    """The requests of `engine.health`, below a prefix of keys."""

    def __init__(self, backend: ValkeyBackend, remembered: memories.ValkeyMemories) -> None:
        self._backend = backend
        self._remembered = remembered
        self.verbs: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            ListStoredThreads: self._roster, InspectThread: self._inspect, InspectMemories: self._inspect_memories,
            IntegrityCheck: lambda *_: (), CompactStorage: self._compact,
        }  # fmt: skip

    def _told_of(self, executor: CallExecutor, tenant: str) -> list[ThreadKey]:
        """All threads that some set tells of, by id."""
        calls = [
            Call("ZRANGE", (self._backend.key(partition, what, to_bytes(tenant)),), (0, -1))
            for what in _SETS
            for partition in range(PARTITIONS)
        ]
        found: set[ThreadKey] = set()
        for call, members in zip(calls, executor.calls(calls), strict=True):
            by_id = call.keys[0].split(b"}:", 1)[1][:1] == b"n"
            found.update(_keys(tenant, members, by_id=by_id))
        return sorted(found, key=lambda key: (to_bytes(key.id), key.kind))

    def _roster(self, executor: CallExecutor, request: ListStoredThreads) -> tuple[ThreadEntry, ...]:
        """All at once: an empty page follows."""
        if request.after is not None:
            return ()
        told = self._told_of(executor, request.tenant)
        wanted = [key for key in told if request.kind in (None, key.kind) and key.id.startswith(request.prefix)]
        return tuple(ThreadEntry(key.kind, key.id, True) for key in wanted)

    def _inspect(self, executor: CallExecutor, request: InspectThread) -> InspectedThread:
        names = self._backend.names(request.key)
        there, version, row, size, fields, values, shared, held, stored, places, untold, told = executor.call(
            Call("inspect", names.keys, (names.member, names.id, names.last))
        )
        if not there:
            return InspectedThread(
                reported=() if self._backend.expires else ("sets tell of it, but it is not there; compact forgets it",)
            )
        rows, odd = each_read([(row, size)], lambda pair: threads.thread_row(*pair), lambda _: UnreadableRow(""))
        named = list(zip(fields, values, strict=True))
        checkpoints, odd_checkpoints = each_read(
            [pair for pair in named if pair[0][:1] == b"c"], _checkpoint, lambda pair: _place(pair[0])
        )
        writes, odd_writes = each_read(
            [pair for pair in named if pair[0][:1] == b"w"], _write, lambda pair: _place(pair[0])
        )
        items = {threads.item_id(field): value for field, value in zip(shared, held, strict=True)}
        sizes = [
            (*threads.item_id(field), int(length)) for field, length in zip(stored[::2], stored[1::2], strict=True)
        ]
        wrong = [*_misplaced(checkpoints, writes, places), *_mistold(version, rows, checkpoints, told)]
        wrong += [f"run {loosely(each[1:])!r} is not in the index of runs" for each in untold]
        return InspectedThread(
            True, rows[0] if rows else None, checkpoints, writes, items, tuple(sorted(sizes)), None,
            frozenset(decode(place[1:])[0] for place in places if place[:1] == b"u"),
            (*odd, *odd_checkpoints, *odd_writes), tuple(wrong),
        )  # fmt: skip

    # --- memories

    def _inspect_memories(self, executor: CallExecutor, request: InspectMemories) -> StoredMemoryPage:
        """One partition at a time."""
        parts = sorted(self._remembered.parts(executor, request.tenant), key=lambda part: part.name)
        left = [part for part in parts if request.after is None or part.name > request.after]
        if not left:
            return StoredMemoryPage(())
        seen, wrong = self._partition(executor, request.tenant, left[0])
        return StoredMemoryPage(tuple(seen), left[0].name if left[1:] else None, tuple(wrong))

    def _partition(
        self, executor: CallExecutor, tenant: str, part: memories.PartitionKeys
    ) -> tuple[list[StoredMemory], list[str]]:
        hashed, expiry, spaces, times, vectors, changes, _ = part.keys
        numbers, fields, known, timed, placed, expiring = executor.calls(
            [Call("HKEYS", (hashed,)), Call("HKEYS", (vectors,)), Call("ZRANGE", (changes,), (0, -1)),
             Call("ZRANGE", (times,), (0, -1)), Call("ZRANGE", (spaces,), (0, -1)), Call("ZRANGE", (expiry,), (0, -1))]
        )  # fmt: skip
        held = {field for field in fields if b":" in field}
        sets = {"time of change": set(timed), "namespaces": {each[-16:] for each in placed}}
        here = set(numbers)
        wrong = [
            f"the set by {what} tells of memory {n.decode()}, which is not there"
            for what, told in sets.items()
            for n in sorted(told - here)
        ]
        wrong += [
            f"the set by expiry tells of memory {n.decode()}, which is not there" for n in sorted(set(expiring) - here)
        ]
        wrong += [
            f"memory {n.decode()} is not in the set by {what}"
            for what, told in sets.items()
            for n in sorted(here - told)
        ]
        wrong += [
            f"vector {each.decode()} belongs to a memory that is not there"
            for each in sorted(held)
            if each.partition(b":")[0] not in here
        ]
        wrong += [
            f"vector {each.decode()} is not in the set of changes, or not stored: no search finds it"
            for each in sorted(held ^ set(known))
        ]
        sizes = self._vector_sizes(executor, vectors, sorted(held))
        return list(self._memories(executor, tenant, hashed, numbers, sizes)), wrong

    def _vector_sizes(self, executor: CallExecutor, key: bytes, fields: Sequence[bytes]) -> dict[bytes, dict[int, int]]:
        sizes: dict[bytes, dict[int, int]] = {}
        for start in range(0, len(fields), AT_ONCE):
            some = fields[start : start + AT_ONCE]
            for field, stored in zip(some, executor.call(Call("HMGET", (key,), tuple(some))), strict=True):
                number, _, n = field.partition(b":")
                sizes.setdefault(number, {})[int(n)] = _vector_size(stored)
        return sizes

    def _memories(
        self,
        executor: CallExecutor,
        tenant: str,
        key: bytes,
        numbers: Sequence[bytes],
        sizes: dict[bytes, dict[int, int]],
    ) -> Iterator[StoredMemory]:
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            for name, stored in zip(some, executor.call(Call("HMGET", (key,), tuple(some))), strict=True):
                if stored is not None:
                    yield _memory(tenant, name, stored, sizes.get(name, {}))

    # --- tidying

    def _compact(self, executor: CallExecutor, request: CompactStorage) -> tuple[int, int]:
        """Forget threads that have expired; bytes are not told by every server, so none are."""
        keys = self._told_of(executor, request.tenant)
        there = executor.calls([Call("EXISTS", self._backend.names(key).keys[:1]) for key in keys])
        self._backend.tidy(executor, [key for key, held in zip(keys, there, strict=True) if not held])
        return (0, 0)


def _keys(tenant: str, members: Iterable[bytes], *, by_id: bool) -> Iterator[ThreadKey]:
    for member in members:
        try:
            one, other = threads.segments(member, 1)
        except NONSENSE:
            continue  # a member that is no thread's; the thread is told of by other sets
        yield ThreadKey(tenant, other, one) if by_id else ThreadKey(tenant, one, other)


def _checkpoint(pair: tuple[bytes, bytes]) -> CheckpointRow:
    row = threads.checkpoint_row(pair[1])
    if threads.row_place(row.ns, row.id) != pair[0]:
        raise ValueError(f"it says that it is checkpoint {row.id!r} of namespace {row.ns!r}")
    return row


def _write(pair: tuple[bytes, bytes]) -> WriteRow:
    row = threads.write_row(pair[1])
    if threads.task_place(row.ns, row.checkpoint, row.task) != pair[0]:
        raise ValueError(f"it says that it is of task {row.task!r} on checkpoint {row.checkpoint!r}")
    return row


def _place(field: bytes) -> UnreadableRow:
    """Where a row stands, told by its field."""
    ns, _, rest = field[1:].partition(b"\x00\x01")
    checkpoint, _, task = rest.partition(b"\x00\x01")
    return UnreadableRow("", loosely(ns), loosely(checkpoint), loosely(task) if field[:1] == b"w" else None)


def _misplaced(
    checkpoints: Iterable[CheckpointRow], writes: Iterable[WriteRow], places: Iterable[bytes]
) -> Iterator[str]:
    """Rows that the order of a thread has no place for, and places without a row."""
    there = {place for place in places if place[:1] != b"u"}
    wanted = {threads.visible_place(row): f"checkpoint {row.id!r} of namespace {row.ns!r}" for row in checkpoints}
    wanted |= {
        threads.task_place(row.ns, row.checkpoint, row.task): f"task {row.task!r} on checkpoint {row.checkpoint!r}"
        for row in writes
    }
    for place in sorted(wanted.keys() - there):
        yield f"{wanted[place]} has no place in the order of the thread: it is not found"
    for place in sorted(there - wanted.keys()):
        yield f"the order of the thread tells of {loosely(place)!r}, which is not there or cannot be read"


def _mistold(
    version: bytes, rows: Sequence[ThreadRow], checkpoints: Iterable[CheckpointRow], told: Sequence[bytes]
) -> Iterator[str]:
    """What the sets of the partition say otherwise than the thread's row."""
    if not rows:
        return
    row = rows[0]
    if version != b"%d:%d" % (row.epoch, row.rev):
        yield f"its version is {loosely(version)}, and {row.epoch}:{row.rev} in its row"
    wanted = {"time of change": row.updated, "time of making": row.created, "bytes": row.bytes, "id": 0}
    for (what, number), score in zip(wanted.items(), told, strict=False):
        if score == b"" or float(score) != number:
            yield f"the set by {what} says {loosely(score) or 'nothing'} of it, not {number}"
    greatest = max((encode((each.id,)) for each in checkpoints), default=b"")
    if greatest and (told[4] < greatest or told[5] == b""):
        yield "the set by greatest checkpoint does not tell of it rightly: lists over all threads may leave it out"


def _vector_size(stored: bytes) -> int:
    length, _, rest = stored.partition(b":")
    return len(rest) - int(length) if length.isdigit() else -1


def _memory(tenant: str, name: bytes, stored: bytes, vectors: dict[int, int]) -> StoredMemory:
    try:
        number = int(name, 16) - (1 << 63)
        row = memories.memory_row(stored)
    except NONSENSE as error:
        return StoredMemory(0, None, "", {}, (f"memory {loosely(name)} does not make sense: {error!r}",))
    right = number == memory_number(tenant, row.memory_key)
    return StoredMemory(
        number, row.memory_key, row.value, vectors, () if right else ("its number is another memory's",)
    )
