"""Requests of `verify` and `compact` on Valkey: rows as they are stored, and their entries in the sorted sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from threadkeep.backends.valkey import memories
from threadkeep.backends.valkey import rows as threads
from threadkeep.backends.valkey.calls import Call, CallExecutor
from threadkeep.backends.valkey.keys import keys_of_partitions, thread_keys
from threadkeep.backends.valkey.lists import ValkeyLists
from threadkeep.engine.health.requests import (
    CleanFiles,
    CompactStorage,
    FilesState,
    FixedColumns,
    InspectedMemory,
    InspectedMemoryPage,
    InspectedThread,
    InspectMemories,
    InspectThread,
    IntegrityCheck,
    ListStoredThreads,
    ThreadEntry,
    UnreadableRow,
    read_each_row,
)
from threadkeep.engine.identity import ThreadKey, decode_lossy, to_bytes
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.memories.checksums import memory_name
from threadkeep.engine.memories.namespaces import decode, encode
from threadkeep.engine.requests import MALFORMED_ROW_ERRORS
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

_SETS = (b"n", b"u", b"c", b"b")
"""The sets that list all threads. A thread that is missing in one is found by the others."""
_RETRIES = 2
"""How often a partition of memories is read again if it seems damaged."""

REMAINS = (
    "RDB file: older snapshots hold the erased data until the next one replaces them; run BGSAVE on every server",
    "AOF: it holds the erased data until it is rewritten; run BGREWRITEAOF on every server",
    "replicas: they delete it as they receive the change; their own RDB and AOF files need the same steps",
    "backups and copies of these files: delete them, or erase again after a restore",
)
"""What an erase leaves on a server, and how to remove it."""


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
            CleanFiles: self._clean_files,
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
            fixed=_fixed_columns(version, size, entries),
            sealed=threads.sealed_of(row),
        )

    # --- memories

    def _inspect_memories(self, executor: CallExecutor, request: InspectMemories) -> InspectedMemoryPage:
        """Return one partition as a page."""
        parts = sorted(self._memories.parts(executor, request.tenant), key=lambda part: part.name)
        left = [part for part in parts if request.after is None or part.name > request.after]
        if not left:
            return InspectedMemoryPage(())
        found, problems = self._inspect_partition(executor, request.tenant, left[0])
        for _ in range(_RETRIES):
            if problems or any(map(_seems_damaged, found)):  # read again: a concurrent change looks like damage
                found, problems = self._inspect_partition(executor, request.tenant, left[0])
        return InspectedMemoryPage(tuple(found), left[0].name if left[1:] else None, tuple(problems))

    def _inspect_partition(
        self, executor: CallExecutor, tenant: str, part: memories.PartitionKeys
    ) -> tuple[list[InspectedMemory], list[str]]:
        """Return the memories of a partition, and what is wrong with its sets. The keys are not read at one moment."""
        hashed, expiry, namespaces, times, vectors, changes, words, _ = part.keys
        hashes = [Call("HKEYS", (key,)) for key in (hashed, vectors, words)]
        sets = [Call("ZRANGE", (key,), (0, -1, "WITHSCORES")) for key in (times, namespaces, expiry, changes)]
        numbers, vector_fields, worded, *members = executor.calls([*hashes, *sets])
        timed, in_namespaces, expiring, changed = map(_scores, members)
        fields = {field for field in vector_fields if b":" in field}
        own: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for field, stored in memories.fetch_fields(executor, vectors, sorted(fields)):
            own.setdefault(field[: memories.DIGITS], []).append((field, stored))
        entries = dict(memories.fetch_fields(executor, words, worded))
        found = [
            _stored_memory(tenant, number, stored, own.get(number, ()), entries.get(number))
            for number, stored in memories.fetch_fields(executor, hashed, numbers)
        ]
        spaces = {member[-memories.DIGITS :]: member[: -memories.DIGITS] for member in in_namespaces}
        orphans = sorted(set(worded) - set(numbers))
        problems = [
            *_member_problems(set(numbers), {"time of update": timed, "namespace": spaces, "expiry": expiring}),
            *(problem for memory in found for problem in _score_problems(memory, timed, spaces, expiring)),
            *_vector_problems(set(numbers), fields, set(changed)),
            *(f"words belong to memory {decode_lossy(each)}, which does not exist" for each in orphans),
        ]
        return found, problems

    # --- compact and erase

    def _clean_files(self, executor: CallExecutor, _request: CleanFiles) -> FilesState:
        """Delete the partitions that are empty: their keys contain the first segment of namespaces."""
        self._memories.delete_empty_partitions(executor)
        return FilesState(clean=None, remains=REMAINS)

    def _compact_storage(self, executor: CallExecutor, request: CompactStorage) -> tuple[int, int]:
        """Delete the entries of threads that have expired. Not every server reports its bytes, so none are returned."""
        keys = self._find_threads(executor, request.tenant)
        exist = executor.calls([Call("EXISTS", thread_keys(self._prefix, key).hash) for key in keys])
        self._lists.drop_expired(executor, [key for key, exists in zip(keys, exist, strict=True) if not exists])
        return (0, 0)


def _fixed_columns(version: bytes, size: bytes, entries: Sequence[bytes]) -> FixedColumns | None:
    """Return what is stored beside a thread's row; None if it cannot be read."""
    try:
        epoch, rev = map(int, version.split(b":"))
        return FixedColumns(epoch, rev, int(float(entries[1])), int(size.partition(b":")[0]))
    except MALFORMED_ROW_ERRORS:
        return None


def _read_members(tenant: str, members: Iterable[bytes], *, by_id: bool) -> Iterator[ThreadKey]:
    for member in members:
        try:
            one, other = threads.segments(member, 1)
        except MALFORMED_ROW_ERRORS:
            continue  # not the member of a thread; the other sets have the thread
        yield ThreadKey(tenant, other, one) if by_id else ThreadKey(tenant, one, other)


def _read_checkpoint(pair: tuple[bytes, bytes]) -> CheckpointRow:
    return threads.checkpoint_at(*pair)


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


def _member_problems(numbers: set[bytes], sets: Mapping[str, Mapping[bytes, Any]]) -> Iterator[str]:
    """Compare the memories of a partition with the sets of their numbers."""
    for what, members in sets.items():
        for number in sorted(members.keys() - numbers):
            yield f"the set by {what} has memory {decode_lossy(number)}, which does not exist"
        if what != "expiry":  # a memory without a ttl never expires
            for number in sorted(numbers - members.keys()):
                yield f"memory {decode_lossy(number)} is not in the set by {what}"


def _score_problems(
    memory: InspectedMemory,
    timed: Mapping[bytes, float],
    spaces: Mapping[bytes, bytes],
    expiring: Mapping[bytes, float],
) -> Iterator[str]:
    """Compare an intact memory with its entries in the sets."""
    if memory.row is None:
        return
    number, name = memories.number_text(memory.number), memory_name(*memory.row.memory_key)
    if timed.get(number, memory.row.updated) != memory.row.updated:
        yield f"{name} has another time in the set by time of update"
    if expiring.get(number) != memory.row.expires:
        yield f"{name} has another time in the set by expiry, or is not in it"
    if number in spaces and spaces[number] != memories.namespace_start(memory.row.namespace):
        yield f"{name} has another namespace in the set by namespace"


def _vector_problems(numbers: set[bytes], stored: set[bytes], changed: set[bytes]) -> Iterator[str]:
    """Compare the vectors of a partition with its memories and with the set of changes."""
    for field in sorted(stored):
        if field.partition(b":")[0] not in numbers:
            yield f"vector {decode_lossy(field)} belongs to a memory that does not exist"
    for field in sorted(stored ^ changed):
        yield f"vector {decode_lossy(field)} is not stored, or not in the set of changes: no search finds it"


def _scores(members: Sequence[bytes]) -> dict[bytes, float]:
    """Return the members of a sorted set with their scores."""
    return {member: float(score) for member, score in zip(members[::2], members[1::2], strict=True)}


def _stored_memory(
    tenant: str, name: bytes, stored: bytes, vectors: Iterable[tuple[bytes, bytes]], words: bytes | None
) -> InspectedMemory:
    """Read a memory, its vectors, which are fields and values of the hash of vectors, and its words."""
    problems, own = list[str](), dict[int, bytes]()
    for pair in vectors:
        try:
            vector = memories.vector_row(*pair)
            own[vector.field] = vector.vector
        except Corrupt as error:
            problems.append(str(error))
    try:
        row = memories.memory_row(tenant, name, stored)
    except Corrupt as error:
        return _damaged_memory(name, stored, (*problems, str(error)))
    if words is not None and not words.startswith(memories.words_prefix(to_bytes(row.key))):
        problems.append("its words have the key of another memory")
    count, check = int(stored.split(b",")[3]), memories.stored_words_check(stored)
    number = memories.parse_number(name)
    return InspectedMemory(number, row.memory_key, row, own, count, tuple(problems), check, _read_words(words))


def _damaged_memory(name: bytes, stored: bytes, problems: tuple[str, ...]) -> InspectedMemory:
    """Return a memory that is damaged, with its key if that can be read."""
    try:
        return InspectedMemory(memories.parse_number(name), memories.stored_key(stored), None, {}, None, problems)
    except MALFORMED_ROW_ERRORS:
        return InspectedMemory(0, None, None, {}, None, problems)


def _seems_damaged(memory: InspectedMemory) -> bool:
    return bool(memory.problems) or len(memory.vectors) != memory.vector_count


def _read_words(entry: bytes | None) -> str:
    """Return the marked words of a memory; none if they cannot be read."""
    try:
        return memories.read_words(entry) if entry is not None else ""
    except MALFORMED_ROW_ERRORS:
        return ""
