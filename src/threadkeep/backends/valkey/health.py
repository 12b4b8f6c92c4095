"""Requests of `verify` and `compact` on Valkey: rows as they are stored, and their entries in the sorted sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from threadkeep.backends.valkey import memories
from threadkeep.backends.valkey import rows as threads
from threadkeep.backends.valkey.calls import Call, CallExecutor
from threadkeep.backends.valkey.keys import keys_of_partitions, thread_keys
from threadkeep.backends.valkey.lists import ValkeyLists
from threadkeep.engine.health.requests import (
    MALFORMED_ROW_ERRORS,
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
    decode_lossy,
    read_each_row,
)
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.memories.namespaces import decode, encode, memory_number
from threadkeep.plan import Request

_SETS = (b"n", b"u", b"c", b"b")
"""The sets that list all threads. A thread that is missing in one is found by the others."""


class ValkeyHealth:
    """The requests of `engine.health`, below a prefix of keys."""

    def __init__(
        self, prefix: bytes, lists: ValkeyLists, all_memories: memories.ValkeyMemories, *, expires: bool
    ) -> None:
        self._prefix = prefix
        self._lists = lists
        self._memories = all_memories
        self._expires = expires
        self.handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            ListStoredThreads: self._list_stored_threads,
            InspectThread: self._inspect_thread,
            InspectMemories: self._inspect_memories,
            IntegrityCheck: lambda *_: (),
            CompactStorage: self._compact_storage,
        }

    # --- threads

    def _find_threads(self, executor: CallExecutor, tenant: str) -> list[ThreadKey]:
        """Return all threads that are in one of the sets, by id."""
        calls = [
            (what, Call("ZRANGE", (key,), (0, -1)))
            for what in _SETS
            for key in keys_of_partitions(self._prefix, what, tenant)
        ]
        found: set[ThreadKey] = set()
        replies = executor.calls([call for _, call in calls])
        for (what, _), members in zip(calls, replies, strict=True):
            found.update(_read_members(tenant, members, by_id=what == b"n"))
        return sorted(found, key=lambda key: (to_bytes(key.id), key.kind))

    def _list_stored_threads(self, executor: CallExecutor, request: ListStoredThreads) -> tuple[ThreadEntry, ...]:
        """Return all threads in the first page."""
        if request.after is not None:
            return ()
        found = self._find_threads(executor, request.tenant)
        wanted = [key for key in found if request.kind in (None, key.kind) and key.id.startswith(request.prefix)]
        return tuple(ThreadEntry(key.kind, key.id, True) for key in wanted)

    def _inspect_thread(self, executor: CallExecutor, request: InspectThread) -> InspectedThread:
        names = thread_keys(self._prefix, request.key)
        exists, version, row, size, fields, values, shared, payloads, stored, order, missing_runs, entries = (
            executor.call(Call("inspect_thread", names.keys, names.members))
        )
        if not exists:
            problem = "its entries in the sets are left, but it does not exist; `compact` deletes them"
            return InspectedThread(index_errors=() if self._expires else (problem,))
        rows, bad_rows = read_each_row(
            [(row, size)], lambda pair: threads.thread_row(*pair), lambda _: UnreadableRow("")
        )
        pairs = list(zip(fields, values, strict=True))
        checkpoints, bad_checkpoints = read_each_row(
            [pair for pair in pairs if pair[0][:1] == b"c"], _read_checkpoint, _locate
        )
        writes, bad_writes = read_each_row([pair for pair in pairs if pair[0][:1] == b"w"], _read_write, _locate)
        sizes = zip(stored[::2], stored[1::2], strict=True)
        return InspectedThread(
            exists=True,
            thread=rows[0] if rows else None,
            family=threads.family_of(row),
            checkpoints=checkpoints,
            writes=writes,
            items={threads.item_id(field): value for field, value in zip(shared, payloads, strict=True)},
            item_sizes=tuple(sorted((*threads.item_id(field), int(length)) for field, length in sizes)),
            tags=None,
            runs=frozenset(decode(member[1:])[0] for member in order if member[:1] == b"u"),
            unreadable=(*bad_rows, *bad_checkpoints, *bad_writes),
            index_errors=(
                *_order_problems(checkpoints, writes, order),
                *_entry_problems(version, rows, checkpoints, entries),
                *(f"run {decode_lossy(each[1:])!r} is not in the index of runs" for each in missing_runs),
            ),
        )

    # --- memories

    def _inspect_memories(self, executor: CallExecutor, request: InspectMemories) -> StoredMemoryPage:
        """Return one partition as a page."""
        parts = sorted(self._memories.parts(executor, request.tenant), key=lambda part: part.name)
        left = [part for part in parts if request.after is None or part.name > request.after]
        if not left:
            return StoredMemoryPage(())
        found, problems = self._inspect_partition(executor, request.tenant, left[0])
        return StoredMemoryPage(tuple(found), left[0].name if left[1:] else None, tuple(problems))

    def _inspect_partition(
        self, executor: CallExecutor, tenant: str, part: memories.PartitionKeys
    ) -> tuple[list[StoredMemory], list[str]]:
        hashed, expiry, namespaces, times, vectors, changes, _ = part.keys
        hashes = [Call("HKEYS", (key,)) for key in (hashed, vectors)]
        sets = [Call("ZRANGE", (key,), (0, -1)) for key in (times, namespaces, expiry, changes)]
        numbers, vector_fields, timed, in_namespaces, expiring, changed = executor.calls([*hashes, *sets])
        members = {
            "time of update": set(timed),
            "namespace": {member[-memories.DIGITS :] for member in in_namespaces},
            "expiry": set(expiring),
        }
        stored = {field for field in vector_fields if b":" in field}
        problems = [*_member_problems(set(numbers), members), *_vector_problems(set(numbers), stored, set(changed))]
        sizes = self._vector_sizes(executor, vectors, sorted(stored))
        return list(self._read_memories(executor, tenant, hashed, numbers, sizes)), problems

    def _vector_sizes(self, executor: CallExecutor, key: bytes, fields: Sequence[bytes]) -> dict[bytes, dict[int, int]]:
        sizes: dict[bytes, dict[int, int]] = {}
        for field, stored in memories.fetch_fields(executor, key, fields):
            number, _, n = field.partition(b":")
            sizes.setdefault(number, {})[int(n)] = _vector_size(stored)
        return sizes

    def _read_memories(
        self,
        executor: CallExecutor,
        tenant: str,
        key: bytes,
        numbers: Sequence[bytes],
        sizes: dict[bytes, dict[int, int]],
    ) -> Iterator[StoredMemory]:
        for number, stored in memories.fetch_fields(executor, key, numbers):
            yield _stored_memory(tenant, number, stored, sizes.get(number, {}))

    # --- compact

    def _compact_storage(self, executor: CallExecutor, request: CompactStorage) -> tuple[int, int]:
        """Delete the entries of threads that have expired. Not every server reports its bytes, so none are returned."""
        keys = self._find_threads(executor, request.tenant)
        exist = executor.calls([Call("EXISTS", thread_keys(self._prefix, key).hash) for key in keys])
        self._lists.drop_expired(executor, [key for key, exists in zip(keys, exist, strict=True) if not exists])
        return (0, 0)


def _read_members(tenant: str, members: Iterable[bytes], *, by_id: bool) -> Iterator[ThreadKey]:
    for member in members:
        try:
            one, other = threads.segments(member, 1)
        except MALFORMED_ROW_ERRORS:
            continue  # not the member of a thread; the other sets have the thread
        yield ThreadKey(tenant, other, one) if by_id else ThreadKey(tenant, one, other)


def _read_checkpoint(pair: tuple[bytes, bytes]) -> CheckpointRow:
    row = threads.checkpoint_row(pair[1])
    if threads.checkpoint_field(row.ns, row.id) != pair[0]:
        raise ValueError(f"the row is that of checkpoint {row.id!r} of namespace {row.ns!r}")
    return row


def _read_write(pair: tuple[bytes, bytes]) -> WriteRow:
    row = threads.write_row(pair[1])
    if threads.task_field(row.ns, row.checkpoint, row.task) != pair[0]:
        raise ValueError(f"the row is that of task {row.task!r} on checkpoint {row.checkpoint!r}")
    return row


def _locate(pair: tuple[bytes, bytes]) -> UnreadableRow:
    """Return which row this is, by its field."""
    field = pair[0]
    ns, _, rest = field[1:].partition(b"\x00\x01")
    checkpoint, _, task = rest.partition(b"\x00\x01")
    return UnreadableRow(
        "", decode_lossy(ns), decode_lossy(checkpoint), decode_lossy(task) if field[:1] == b"w" else None
    )


def _order_problems(
    checkpoints: Iterable[CheckpointRow], writes: Iterable[WriteRow], order: Iterable[bytes]
) -> Iterator[str]:
    """Compare the rows of a thread with its order."""
    members = {member for member in order if member[:1] != b"u"}
    wanted = {threads.order_member(row): f"checkpoint {row.id!r} of namespace {row.ns!r}" for row in checkpoints}
    wanted |= {threads.write_field(row): f"task {row.task!r} on checkpoint {row.checkpoint!r}" for row in writes}
    for member in sorted(wanted.keys() - members):
        yield f"{wanted[member]} is not in the order of the thread: no read finds it"
    for member in sorted(members - wanted.keys()):
        yield f"the order of the thread has {decode_lossy(member)!r}, which does not exist or cannot be read"


def _entry_problems(
    version: bytes, rows: Sequence[ThreadRow], checkpoints: Iterable[CheckpointRow], entries: Sequence[bytes]
) -> Iterator[str]:
    """Compare a thread's row with its entries in the partition's sets."""
    if not rows:
        return
    row = rows[0]
    if version != b"%d:%d" % (row.epoch, row.rev):
        yield f"its version is {decode_lossy(version)}, but {row.epoch}:{row.rev} in its row"
    wanted = {"time of update": row.updated, "time of creation": row.created, "bytes": row.bytes, "id": 0}
    for (what, number), score in zip(wanted.items(), entries, strict=False):
        if score == b"" or float(score) != number:
            yield f"its entry in the set by {what} is {decode_lossy(score) or 'missing'}, not {number}"
    greatest = max((encode((each.id,)) for each in checkpoints), default=b"")
    if greatest and (entries[4] < greatest or entries[5] == b""):
        yield "its entry in the set by greatest checkpoint is wrong: lists over all threads may leave it out"


def _member_problems(numbers: set[bytes], sets: dict[str, set[bytes]]) -> Iterator[str]:
    """Compare the memories of a partition with the sets of their numbers."""
    for what, members in sets.items():
        for number in sorted(members - numbers):
            yield f"the set by {what} has memory {number.decode()}, which does not exist"
        if what != "expiry":  # a memory without a ttl never expires
            for number in sorted(numbers - members):
                yield f"memory {number.decode()} is not in the set by {what}"


def _vector_problems(numbers: set[bytes], stored: set[bytes], changed: set[bytes]) -> Iterator[str]:
    """Compare the vectors of a partition with its memories and with the set of changes."""
    for field in sorted(stored):
        if field.partition(b":")[0] not in numbers:
            yield f"vector {field.decode()} belongs to a memory that does not exist"
    for field in sorted(stored ^ changed):
        yield f"vector {field.decode()} is not stored, or not in the set of changes: no search finds it"


def _vector_size(stored: bytes) -> int:
    """Return the bytes of a vector, or -1 if the length of its namespace cannot be read."""
    length, _, rest = stored.partition(b":")
    return len(rest) - int(length) if length.isdigit() else -1


def _stored_memory(tenant: str, name: bytes, stored: bytes, vectors: dict[int, int]) -> StoredMemory:
    try:
        number = memories.parse_number(name)
        row = memories.memory_row(stored)
    except MALFORMED_ROW_ERRORS as error:
        return StoredMemory(0, None, "", {}, (f"memory {decode_lossy(name)} cannot be read: {error!r}",))
    is_right = number == memory_number(tenant, row.memory_key)
    problems = () if is_right else ("it has the number of another memory",)
    return StoredMemory(number, row.memory_key, row.value, vectors, problems)
