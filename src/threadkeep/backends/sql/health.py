"""Checking in SQL: rows as they are stored, one by one, so that a row which cannot be read hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.rows import Row, thread_row
from threadkeep.engine.health.requests import (
    CATALOGUE,
    MEMORY,
    NONSENSE,
    InspectedThread,
    InspectMemories,
    InspectThread,
    IntegrityCheck,
    IntegrityProblem,
    ListStoredThreads,
    StoredMemory,
    StoredMemoryPage,
    ThreadEntry,
    UnreadableRow,
    each_read,
    loosely,
)
from threadkeep.engine.identity import CUBE, GRAPH, from_bytes, to_bytes, unpack_id
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.memories.namespaces import MemoryKey, decode, memory_number, partition_number
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext

_OWNED = ("tk_items", "tk_checkpoints", "tk_writes", "tk_tags", "tk_runs")
_LOWEST = -(1 << 63) - 1


def roster(work: SqlContext, request: ListStoredThreads) -> tuple[ThreadEntry, ...]:
    """Threads by id, whatever their rows say otherwise."""
    blocks = [work.dialect.sql["where-tenant"]]
    values: dict[str, Any] = {"tenant": to_bytes(request.tenant), "limit": request.limit}
    if request.kind is not None:
        blocks.append(work.dialect.sql["where-kind"])
        values["kind"] = request.kind
    if request.prefix:
        prefix = to_bytes(request.prefix)
        blocks.append(work.dialect.sql["where-prefix"])
        values |= {"prefix": prefix, "prefix_end": prefix[:-1] + bytes([prefix[-1] + 1])}
    if request.after is not None:
        blocks.append(work.dialect.sql["after-present"])
        values |= {"after_id": request.after[0], "after_kind": request.after[1]}
    sql = work.dialect.sql["roster"].replace("{conditions}", "\n  AND ".join(blocks))
    return tuple(_present(*row) for row in work.cursor.rows(sql, values))


def _present(id: bytes, kind: str) -> ThreadEntry:
    odd = None if kind in (GRAPH, CUBE) else f"there is no kind {kind!r} of threads"
    try:
        return ThreadEntry(kind, from_bytes(id), (id, kind), odd)
    except UnicodeDecodeError as error:
        return ThreadEntry(kind, loosely(id) or "", (id, kind), f"its id is no text: {error}")


def inspect(work: SqlContext, request: InspectThread) -> InspectedThread:
    """A thread as it is stored, row by row."""
    row = work.one("thread", **work.dialect.key_values(request.key))
    if row is None:
        return InspectedThread()
    number = row[0]
    threads, odd = each_read([row], thread_row, lambda _: UnreadableRow(""))
    checkpoints, odd_checkpoints = each_read(
        work.rows("checkpoints", thread=number), work.dialect.checkpoint_row, _checkpoint_place
    )
    writes, odd_writes = each_read(work.rows("all-writes", thread=number), work.dialect.write_row, _write_place)
    runs, odd_runs = each_read(
        work.rows("runs", thread=number), lambda row: unpack_id(row[0]), lambda _: UnreadableRow("")
    )
    told = (
        ["its row does not stand where the index by time looks for it"] if work.rows("told-tick", thread=number) else []
    )
    told += [f"a run in its index: {each.message}" for each in odd_runs]
    return InspectedThread(
        is_there=True,
        thread=threads[0] if threads else None,
        checkpoints=checkpoints,
        writes=writes,
        items={ItemId(lane, n): payload for lane, n, payload in work.rows("engine-items", thread=number)},
        stored=tuple(work.rows("item-sizes", thread=number)),
        tags=frozenset((labels, bytes(tag)) for labels, tag in work.rows("tags", thread=number)),
        runs=frozenset(runs),
        unreadable=(*odd, *odd_checkpoints, *odd_writes),
        reported=tuple(told),
    )


def _checkpoint_place(row: Row) -> UnreadableRow:
    return UnreadableRow("", loosely(row[0]), loosely(row[1]))


def _write_place(row: Row) -> UnreadableRow:
    try:
        task = unpack_id(row[2])
    except NONSENSE:
        task = loosely(row[2]) or ""
    return UnreadableRow("", loosely(row[0]), loosely(row[1]), task)


def inspect_memories(work: SqlContext, request: InspectMemories) -> StoredMemoryPage:
    """Some memories, by number."""
    after = request.after if request.after is not None else _LOWEST + 1
    rows = work.rows("inspect-memories", tenant=to_bytes(request.tenant), after=after, limit=request.limit)
    if not rows:
        return StoredMemoryPage(())
    last = rows[-1][0]
    vectors: dict[int, dict[int, tuple[int, int]]] = {}
    for memory, field, size, fits in work.rows("inspect-vectors", after=after, last=last):
        vectors.setdefault(memory, {})[field] = (size, fits)
    seen = tuple(_memory(request.tenant, row, vectors.get(row[0], {})) for row in rows)
    return StoredMemoryPage(seen, last if len(rows) >= request.limit else None)


def _memory(tenant: str, row: Row, vectors: dict[int, tuple[int, int]]) -> StoredMemory:
    number, part, space, key, value = row
    wrong = [f"vector {field} has not the dimensions that it says" for field, (_, fits) in vectors.items() if not fits]
    try:
        place = MemoryKey(decode(space), from_bytes(key))
        if number != memory_number(tenant, place) or part != partition_number(tenant, place.namespace[0]):
            wrong.append("its number or its partition is another memory's")
    except NONSENSE as error:
        return StoredMemory(number, None, value, {}, (f"its place does not make sense: {error!r}",))
    return StoredMemory(number, place, value, {field: size for field, (size, _) in vectors.items()}, tuple(wrong))


def sound(work: SqlContext, request: IntegrityCheck) -> tuple[IntegrityProblem, ...]:  # noqa: ARG001 - the same signature for all
    """Rows that belong to nothing."""
    return (*_orphans(work), *_lost_memories(work))


def _orphans(work: SqlContext) -> Iterator[IntegrityProblem]:
    found: dict[int, list[str]] = {}
    for table in _OWNED:
        sql = work.dialect.sql["orphans"].replace("{table}", table)
        for number, count in work.cursor.rows(sql, {}):
            found.setdefault(number, []).append(f"{count} in {table}")
    for number, said in found.items():
        yield IntegrityProblem(
            CATALOGUE, f"there is no row of thread number {number}, but there are rows of its own: {', '.join(said)}"
        )


def _lost_memories(work: SqlContext) -> Iterable[IntegrityProblem]:
    for number, count in work.rows("lost-vectors"):
        yield IntegrityProblem(MEMORY, f"{count} vectors belong to memory number {number}, which is not there")
    for number, count in work.rows("unseen-vectors"):
        yield IntegrityProblem(
            MEMORY,
            f"{count} vectors of memory number {number} are not counted by their partition: no search finds them",
        )
    for (number,) in work.rows("lost-words"):
        yield IntegrityProblem(MEMORY, f"words belong to the memory in row {number}, which is not there")


VERBS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    ListStoredThreads: roster,
    InspectThread: inspect,
    InspectMemories: inspect_memories,
    IntegrityCheck: sound,
}
