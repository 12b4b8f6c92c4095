"""Requests of `verify` in SQL: rows as they are stored, each read by itself, so that a damaged row hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.lists import Conditions
from threadkeep.backends.sql.memories import stored_vector
from threadkeep.backends.sql.rows import FAMILY, Row, sealed_of, thread_row
from threadkeep.engine.health.requests import (
    CATALOGUE,
    MEMORY,
    WRONG_WORDS,
    CleanFiles,
    InspectedMemory,
    InspectedMemoryPage,
    InspectedThread,
    InspectMemories,
    InspectThread,
    IntegrityCheck,
    IntegrityProblem,
    ListStoredThreads,
    ThreadEntry,
    UnreadableRow,
    fixed_columns,
    read_each_row,
)
from threadkeep.engine.identity import CUBE, GRAPH, Kind, ThreadKey, decode_lossy, from_bytes, to_bytes, unpack_id
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.log.records import thread_problem
from threadkeep.engine.memories.checksums import check_vector, memory_name, read_memory
from threadkeep.engine.memories.namespaces import MemoryKey, decode, memory_number, partition_number
from threadkeep.engine.memories.words import words_check
from threadkeep.engine.requests import MALFORMED_ROW_ERRORS
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext

_THREAD_TABLES = ("tk_items", "tk_checkpoints", "tk_writes", "tk_tags", "tk_runs")
_THREADS_AT_ONCE = 1000
_BEFORE_ALL = -(1 << 63)
"""The inspection starts after the smallest 64-bit number."""
_MEMORIES_AT_ONCE = 50_000
"""The number of memories whose words are compared at once."""


def _list_stored_threads(db: SqlContext, request: ListStoredThreads) -> tuple[ThreadEntry, ...]:
    """Return threads by id, using only the columns of the key."""
    where = Conditions(db.dialect, {"limit": request.limit})
    where.add("where-tenant", tenant=to_bytes(request.tenant))
    where.add("where-kind", kind=request.kind)
    where.add_prefix(request.prefix)
    if request.after is not None:
        id, kind = request.after  # None sorts before everything else
        where.add("after-stored-thread", after_id=b"" if id is None else id, after_kind="" if kind is None else kind)
    rows = db.cursor.rows(where.put_into("list-stored-threads"), where.values)
    return tuple(_thread_entry(db, request.tenant, *row) for row in rows)


def _thread_entry(db: SqlContext, tenant: str, number: int, id: bytes, kind: Kind) -> ThreadEntry:
    problem = None if kind in (GRAPH, CUBE) else f"its kind is {kind!r}, which does not exist"
    try:
        name = from_bytes(id)
        if problem is None and db.dialect.thread_number(ThreadKey(tenant, kind, name)) not in (None, number):
            problem = "it has the number of another thread, so nothing finds it"
        return ThreadEntry(kind, name, (id, kind), problem)
    except MALFORMED_ROW_ERRORS as error:
        return ThreadEntry(kind, decode_lossy(id) or "", (id, kind), f"its id is not valid text: {error}")


def _inspect_thread(db: SqlContext, request: InspectThread) -> InspectedThread:
    """Return a thread as it is stored, reading each row by itself."""
    row = db.one("thread", **db.dialect.key_values(request.key))
    if row is None:
        return InspectedThread()
    number, dialect = row[0], db.dialect
    threads, bad_threads = read_each_row([row], thread_row, _nowhere)
    checkpoints, bad_checkpoints = read_each_row(
        db.rows("checkpoints", thread=number), dialect.checkpoint_row, _locate_checkpoint
    )
    writes, bad_writes = read_each_row(db.rows("all-writes", thread=number), dialect.write_row, _locate_write)
    runs, bad_runs = read_each_row(db.rows("runs", thread=number), lambda row: unpack_id(row[0]), _nowhere)
    problems = [f"a run in its index: {each.message}" for each in bad_runs]
    sizes = db.rows("item-sizes", thread=number)
    if db.rows("stale-tick", thread=number):
        problems.append("its entry in the index by time is wrong")
    return InspectedThread(
        exists=True,
        thread=threads[0] if threads else None,
        family=row[FAMILY] if type(row[FAMILY]) is int else 0,
        checkpoints=checkpoints,
        writes=writes,
        items={
            ItemId(lane, n): payload
            for lane, n, payload in db.rows("engine-items", thread=number)
            if type(lane) is type(n) is int and type(payload) is bytes
        },
        item_sizes=tuple(row for row in sizes if set(map(type, row)) == {int}),
        tags=frozenset((labels, bytes(tag)) for labels, tag in db.rows("tags", thread=number)),
        runs=frozenset(runs),
        unreadable=(*bad_threads, *bad_checkpoints, *bad_writes),
        index_errors=(*problems, *_odd_items(sizes)),
        fixed=fixed_columns(row[4], row[5], row[7], row[11]),
        sealed=sealed_of(row),
    )


def _nowhere(_row: Any) -> UnreadableRow:
    return UnreadableRow("")


def _odd_items(sizes: Iterable[Row]) -> Iterator[str]:
    """Describe items whose lane or number is no integer: SQLite does not check the types of what it reads."""
    for lane, n, size in sizes:
        if {type(lane), type(n), type(size)} != {int}:
            yield f"item {lane!r}:{n!r} has a lane, a number or a payload of another type"


def _locate_checkpoint(row: Row) -> UnreadableRow:
    return UnreadableRow("", decode_lossy(row[0]), decode_lossy(row[1]))


def _locate_write(row: Row) -> UnreadableRow:
    try:
        task = unpack_id(row[2])
    except MALFORMED_ROW_ERRORS:
        task = decode_lossy(row[2]) or ""
    return UnreadableRow("", decode_lossy(row[0]), decode_lossy(row[1]), task)


def _inspect_memories(db: SqlContext, request: InspectMemories) -> InspectedMemoryPage:
    """Return a page of memories by number."""
    after = request.after if request.after is not None else _BEFORE_ALL
    rows = db.rows("inspect-memories", tenant=to_bytes(request.tenant), after=after, limit=request.limit)
    if not rows:
        return InspectedMemoryPage(())
    last = rows[-1][0]
    vectors: dict[int, list[Row]] = {}
    for row in db.rows("inspect-vectors", tenant=to_bytes(request.tenant), after=after, last=last):
        vectors.setdefault(row[0], []).append(row[1:])
    found = [_stored_memory(db, request.tenant, row, vectors.get(row[0], [])) for row in rows]
    if request.with_words and any(memory.words is None for memory in found):
        scope = {"tenant": to_bytes(request.tenant), "after": after, "last": last}
        words: dict[int, str] = dict(db.rows("inspect-words-of-tenant", **scope))
        found = [each._replace(words=" ".join(sorted(words.get(each.number, "").split(" ")))) for each in found]
    return InspectedMemoryPage(tuple(found), last if len(rows) >= request.limit else None)


def _stored_memory(db: SqlContext, tenant: str, row: Row, vectors: list[Row]) -> InspectedMemory:
    number, part, *stored, check, words = row
    problems, read, count = list[str](), None, None
    try:
        key = MemoryKey(decode(stored[0]), from_bytes(stored[1]))
        if number != memory_number(tenant, key) or part != partition_number(tenant, key.namespace[0]):
            problems.append(
                "it has the number or the partition of another memory, so no key leads to it: delete the row of "
                f"tk_memories where memory = {number}"
            )
    except MALFORMED_ROW_ERRORS as error:
        return InspectedMemory(number, None, None, {}, None, (f"its namespace or key cannot be read: {error!r}",))
    try:
        read, count = read_memory(tenant, number, *stored), stored[-3]
    except Corrupt as error:
        problems.append(str(error))
    read_vectors: dict[int, bytes] = {}
    for field, its_part, fits, *vector in vectors:
        try:
            found = stored_vector(db, number, field, *vector)
            read_vectors[field] = found.vector
            check_vector(found, len(vectors) if count is None else count)
        except Corrupt as error:
            problems.append(str(error))
        if not fits or its_part != part:
            problems.append(f"vector {field} has another number of dimensions, namespace or partition")
    marked = db.dialect.marked_words(words)
    return InspectedMemory(number, key, read, read_vectors, count, tuple(problems), check, marked)


def _check_integrity(db: SqlContext, request: IntegrityCheck) -> tuple[IntegrityProblem, ...]:
    """Return rows that belong to no thread and no memory, damaged threads of other tenants, and wrong words."""
    threads = (*_orphan_rows(db), *_lost_threads(db, request.tenant))
    return (*threads, *_orphan_vectors(db), *_misplaced_memories(db), *db.dialect.word_problems(db))


def _lost_threads(db: SqlContext, tenant: str) -> Iterator[IntegrityProblem]:
    """A damaged row may be of this tenant. Its name is not shown, since it may be of another."""
    after = _BEFORE_ALL
    while rows := db.rows("threads-of-others", tenant=to_bytes(tenant), after=after, limit=_THREADS_AT_ONCE):
        for row in rows:
            found, _ = read_each_row([row], thread_row, _nowhere)
            if not found or thread_problem(found[0], found[0].key) is not None:
                yield IntegrityProblem(CATALOGUE, f"the row of thread number {row[0]} does not match its checksum")
        after = rows[-1][0]


def _orphan_rows(db: SqlContext) -> Iterator[IntegrityProblem]:
    found: dict[int, list[str]] = {}
    for table in _THREAD_TABLES:
        sql = db.dialect.sql["orphan-rows"].replace("{table}", table)
        for number, count in db.cursor.rows(sql, {}):
            found.setdefault(number, []).append(f"{count} in {table}")
    for number, counts in found.items():
        yield IntegrityProblem(
            CATALOGUE, f"thread number {number} does not exist, but there are rows of it: {', '.join(counts)}"
        )


def _orphan_vectors(db: SqlContext) -> Iterable[IntegrityProblem]:
    for number, count in db.rows("orphan-vectors"):
        yield IntegrityProblem(
            MEMORY,
            f"{count} vectors belong to memory number {number}, which does not exist: delete the rows of tk_vectors "
            f"where memory = {number}",
        )
    for number, count in db.rows("uncounted-vectors"):
        yield IntegrityProblem(
            MEMORY,
            f"the partition of memory number {number} does not count {count} of its vectors: no search finds them",
        )
    for (number,) in db.rows("orphan-words"):
        yield IntegrityProblem(MEMORY, f"words belong to the memory in row {number}, which does not exist")


def _misplaced_memories(db: SqlContext) -> Iterator[IntegrityProblem]:
    """Compare the number of each partition with its tenant and with the first segment of its first and last namespace.

    So a memory is found whose tenant is damaged: no tenant would have it otherwise.
    """
    for part, tenant, *spaces in db.rows("partitions-of-memories"):
        for space in spaces:
            if not _is_partition(part, tenant, space, _first_segment):
                yield IntegrityProblem(
                    MEMORY,
                    f"a memory in {decode_lossy(space)!r} has the tenant {decode_lossy(tenant)!r} and the partition "
                    f"number {part}, which do not belong together: delete these rows of tk_memories",
                )
    for part, tenant, first in db.rows("all-partitions"):
        if not _is_partition(part, tenant, first, from_bytes):
            yield IntegrityProblem(
                MEMORY,
                f"partition number {part} has the tenant {decode_lossy(tenant)!r} and the first segment "
                f"{decode_lossy(first)!r}, which do not belong together: searches by vector raise Corrupt",
            )


def _first_segment(space: bytes) -> str:
    return decode(space)[0]


def _is_partition(part: int, tenant: bytes, stored: bytes, read: Callable[[bytes], str]) -> bool:
    try:
        return part == partition_number(from_bytes(tenant), read(stored))
    except MALFORMED_ROW_ERRORS:
        return False


def word_problems(db: SqlContext) -> Iterator[IntegrityProblem]:
    """Compare the index of words with the checksum that each memory has of its words.

    The index is ordered by word, so all of it is read for each page of memories: the pages are large.
    """
    after = 0
    while (last := db.rows("inspected-memories", after=after, limit=_MEMORIES_AT_ONCE)[0][0]) is not None:
        for namespace, key, check, words in db.rows("inspect-words", after=after, last=last):
            if words_check(" ".join(sorted(words.split(" ")))) != check:
                yield IntegrityProblem(MEMORY, f"{_memory_name(namespace, key)}: {WRONG_WORDS}")
        after = last


def _memory_name(namespace: bytes, key: bytes) -> str:
    try:
        return memory_name(decode(namespace), from_bytes(key))
    except MALFORMED_ROW_ERRORS:
        return f"memory {decode_lossy(key)!r} in {decode_lossy(namespace)!r}"


def _delete_empty_partitions(db: SqlContext, _request: CleanFiles) -> None:
    """Delete the rows of partitions that have no vectors: they contain the first segment of namespaces."""
    db.many(
        "delete-partition",
        [dict(zip(("part", "seq", "drops"), row, strict=True)) for row in db.rows("empty-partitions")],
    )


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    ListStoredThreads: _list_stored_threads,
    InspectThread: _inspect_thread,
    InspectMemories: _inspect_memories,
    IntegrityCheck: _check_integrity,
    CleanFiles: _delete_empty_partitions,
}
