"""Memories in SQL: one function for each request, on the blocks of `memories.sql`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from threadkeep.backends.sql.rows import Row
from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.memories.checksums import (
    CHECKSUM_HEAD,
    MALFORMED_MEMORY_ERRORS,
    StoredVector,
    damaged_memory,
    memory_name,
    read_memories,
    read_vectors,
    sum_of_times,
    vector_checksum,
)
from threadkeep.engine.memories.filters import is_everything
from threadkeep.engine.memories.namespaces import (
    MemoryKey,
    Namespace,
    decode,
    encode,
    memory_number,
    memory_numbers,
    pack_length,
    partition_number,
    place,
    prefix_end,
    unpack_number,
)
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
    WordMatch,
    WordMatches,
    WriteMemories,
    changed_memory,
)
from threadkeep.engine.memories.words import words_check
from threadkeep.errors import Conflict, Corrupt, reason
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext

_AND = "\n  AND "
_UTF8 = ("utf-8", "surrogatepass")
"""How ids become bytes, as in `to_bytes`."""
_BEFORE_ALL = -(1 << 62)
"""A time at which nothing has expired."""
_LAST = b"\xff"
"""Greater than every encoded namespace."""


def memory_id_values(tenant: str, key: MemoryKey) -> dict[str, Any]:
    """Return the values that identify a memory in a statement."""
    return {
        "memory": memory_number(tenant, key),
        "part": partition_number(tenant, key.namespace[0]),
        "tenant": to_bytes(tenant),
    }


MEMORY_COLUMNS = (
    "memory", "part", "tenant", "space", "key", "created", "updated", "expires", "ttl", "value", "vectors", "checksum",
    "times", "words_check",
)  # fmt: skip
"""The values of `put-memories`, in their order, without the last one: whether they are encrypted."""
_SPACE, _COUNT = MEMORY_COLUMNS.index("space"), MEMORY_COLUMNS.index("vectors")


def memory_columns(tenant: str, memory: NewMemory) -> tuple[Any, ...]:
    """Return a memory as a row: the values of MEMORY_COLUMNS.

    This is the longest step of a put, so `memory_number`, `memory_checksum`, `sum_of_times` and `words_check` are
    written out here: one call instead of five. `tests/test_store_steps.py` compares them.
    """
    (namespace, key, value, created, updated, expires, ttl), vectors, words = memory
    owner, space, partition, hasher = place(tenant, namespace)
    name, hashed, count = key.encode("utf-8", "surrogatepass"), hasher.copy(), len(vectors)
    hashed.update(pack_length(len(name)) + name)
    (number,) = unpack_number(hashed.digest())
    minutes = ttl or (None if ttl is None else 0.0)
    head = crc32(CHECKSUM_HEAD % (number, tenant, minutes, count, len(space), space, name))
    checksum = crc32(value.encode("utf-8", "surrogatepass"), head)
    times = created + updated + (expires or 0)
    check = words_check(words) if words else 0
    return number, partition, owner, space, name, created, updated, expires, ttl, value, count, checksum, times, check


def prefix_values(db: SqlContext, tenant: str, prefix: Namespace) -> dict[str, Any]:
    """Return the tenant, the range of encoded namespaces with a prefix, and their partition if it is needed."""
    low = encode(prefix)
    values: dict[str, Any] = {"tenant": tenant.encode(*_UTF8), "low": low, "high": prefix_end(low) if low else _LAST}
    if prefix and db.dialect.by_partition:
        values["part"] = partition_number(tenant, prefix[0])
    return values


# --- changes


def store_memories(db: SqlContext, request: WriteMemories) -> int:
    """Add, replace and delete memories, and return the number deleted. There must be no concurrent writer."""
    if request.deletes and not request.sealed:
        db.dialect.refuse_sealed(db, request.tenant)
    deleted = _delete_memories(db, request) if request.deletes else 0
    if not request.puts:
        return deleted
    tenant = request.tenant
    rows = [memory_columns(tenant, memory) for memory in request.puts]
    last = _last_row(db)
    marker = 1 if request.sealed else None
    if db.many("put-memories", [(*row, marker) for row in rows]) != len(rows):
        _get_memories(db, GetMemories(tenant, tuple([each.row.memory_key for each in request.puts]), 0))
        raise Conflict  # unless a damaged memory, which that read, has one of the numbers
    all_new = _last_row(db) - last == len(rows)  # then no old vectors or words need to be deleted
    if not all_new or any(memory.vectors for memory in request.puts):
        _put_vectors(db, request, rows, all_new=all_new)
    words = [(row[0], memory[2]) for row, memory in zip(rows, request.puts, strict=True) if memory[2] or not all_new]
    if words:
        db.dialect.store_words(db, words)
    return deleted


def _last_row(db: SqlContext) -> int:
    return int(db.rows("last-memory")[0][0])


def _put_vectors(db: SqlContext, request: WriteMemories, rows: Sequence[tuple[Any, ...]], *, all_new: bool) -> None:
    """Store the vectors of memories. They replace the old vectors; surplus old ones are deleted."""
    seqs = {
        first: count_vector_changes(db, request, first, stored=1)
        for first in dict.fromkeys(memory.row.namespace[0] for memory in request.puts if memory.vectors)
    }
    owners = [{"memory": row[0], "part": row[1], "count": row[_COUNT]} for row in rows]
    vectors = (
        {"memory": row[0], "part": row[1], "field": n, "seq": seq, "vector": vector}
        | {"checksum": seq + vector_checksum(row[0], n, row[_COUNT], row[_SPACE], vector)}
        for row, memory in zip(rows, request.puts, strict=True)
        if (seq := seqs.get(memory.row.namespace[0], 0))
        for n, vector in enumerate(memory.vectors)
    )
    lost = db.many("delete-vectors", owners) if not all_new else 0
    db.many("put-vectors", vectors)
    for first in dict.fromkeys(memory.row.namespace[0] for memory in request.puts) if lost else ():
        count_vector_changes(db, request, first, lost=1)


def count_vector_changes(db: SqlContext, request: WriteMemories, first: str, *, stored: int = 0, lost: int = 0) -> int:
    """Count changes of a partition's vectors and return its new sequence number."""
    tenant = request.tenant
    part = {"part": partition_number(tenant, first), "tenant": to_bytes(tenant), "first": to_bytes(first)}
    return int(db.rows("count-vector-changes", **part, now=request.now, stored=stored, lost=lost)[0][0])


def _delete_memories(db: SqlContext, request: WriteMemories) -> int:
    """Delete memories with their words and vectors, and return the number deleted."""
    memories = [memory_id_values(request.tenant, key) for key in request.deletes]
    db.dialect.store_words(db, [(each["memory"], "") for each in memories])
    deleted = db.many("delete-memories", memories)
    vectors = [{"memory": each["memory"], "part": each["part"], "count": 0} for each in memories]
    lost = db.many("delete-vectors", vectors)
    for first in dict.fromkeys(key.namespace[0] for key in request.deletes) if lost else ():
        count_vector_changes(db, request, first, lost=1)
    return deleted


def _write_memories(db: SqlContext, request: WriteMemories) -> int:
    return db.dialect.store_memories(db, request)


def _change_memories(db: SqlContext, request: ChangeMemories) -> None:
    """Write memories unless others changed them. PostgreSQL locks them first, and adds new ones if it still can."""
    write, keys = request.write, tuple([key for key, _ in request.expected])
    db.dialect.lock_memories(db, write.tenant, keys)
    stored = _get_memories(db, GetMemories(write.tenant, keys, _BEFORE_ALL))
    try:
        request.check(stored)
    except Conflict:
        if not write.sealed:
            db.dialect.refuse_sealed(db, write.tenant)
        raise
    missing = {key for key, row in zip(keys, stored, strict=True) if row is None}
    for put in (put for put in write.puts if put.row.memory_key in missing):
        if not db.dialect.add_memory(db, write, put):
            raise changed_memory(put.row.memory_key)
    db.dialect.store_memories(db, write)


def _replace_memories(db: SqlContext, request: ReplaceMemories) -> int:
    """Replace memories that were not changed. PostgreSQL locks them first, so that they stay as they are compared."""
    tenant, keys = request.tenant, tuple([row.memory_key for row in request.old])
    db.dialect.lock_memories(db, tenant, keys)
    stored = _get_memories(db, GetMemories(tenant, keys, _BEFORE_ALL))
    new = [put.row.memory_key for put in request.puts]
    moved = tuple([key for key, old in zip(new, keys, strict=True) if key != old])
    found = _get_memories(db, GetMemories(tenant, moved, _BEFORE_ALL)) if moved else ()
    existing = {row.memory_key for row in found if row is not None}
    puts, deletes = request.to_write(stored, existing.__contains__)
    if puts or deletes:
        db.dialect.store_memories(db, WriteMemories(tenant, puts, deletes, request.now, sealed=True))
    return request.count(stored)


def _refresh_memories(db: SqlContext, request: RefreshMemories) -> None:
    values = [memory_id_values(request.tenant, key) | {"now": request.now} for key in request.keys]
    db.dialect.restart_ttl(db, values)


def _sweep_memories(db: SqlContext, request: SweepMemories) -> int:
    """Delete expired memories. Damaged ones stay: their time, or their key, may be that of another memory."""
    tenant, expired = request.tenant, list[MemoryKey]()
    found = db.rows("expired-memories", tenant=to_bytes(tenant), now=request.now, limit=request.limit)
    for number, namespace, key in found:
        try:
            memory_key = MemoryKey(decode(namespace), from_bytes(key))
        except MALFORMED_MEMORY_ERRORS:
            continue
        if number == memory_number(tenant, memory_key):
            expired.append(memory_key)
    if not expired:
        return 0
    return db.dialect.store_memories(
        db, WriteMemories(tenant, (), tuple(expired), request.now, expired=True, sealed=True)
    )


# --- reads


def _get_memories(db: SqlContext, request: GetMemories) -> tuple[MemoryRow | None, ...]:
    tenant, keys = request.tenant, request.keys
    numbers = memory_numbers(tenant, keys)
    if len(keys) == 1 and not db.dialect.by_partition:
        values = {"tenant": tenant.encode(*_UTF8), "now": request.now, "memory": numbers[0]}
        memories = read_memories(tenant, db.cursor.rows(db.dialect.sql["memory"], values))
        return (memories[0] if memories and memories[0][:2] == keys[0] else None,)
    values = {"tenant": tenant.encode(*_UTF8), "now": request.now}
    if db.dialect.by_partition:
        parts = list({partition_number(tenant, key.namespace[0]) for key in keys})
        rows = db.rows("memories-of-parts", **values, memories=numbers, parts=parts)
    else:
        rows = db.dialect.fetch_memories(db, values, numbers)
    found = {row[0]: memory for row, memory in zip(rows, read_memories(tenant, rows), strict=True)}
    wanted = [found.get(number) for number in numbers]
    for n, (memory, key) in enumerate(zip(wanted, keys, strict=True)):
        if memory is not None and memory[:2] != key:
            wanted[n] = None  # another one has the same number
    return tuple(wanted)


def _get_memories_by_number(db: SqlContext, request: GetMemoriesByNumber) -> dict[int, MemoryRow]:
    values = {"tenant": to_bytes(request.tenant), "now": request.now}
    rows = db.dialect.fetch_memories(db, values, request.numbers)
    return {row[0]: memory for row, memory in zip(rows, read_memories(request.tenant, rows), strict=True)}


def memory_conditions(
    db: SqlContext, request: ListMemories | FindMatching | SearchFullText
) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions of a request on the table of memories, and their values.

    The first condition says where a memory is. The others are about the memory itself.
    """
    blocks = [db.dialect.sql["below-prefix" if request.prefix else "of-tenant"], db.dialect.sql["not-expired"]]
    values = prefix_values(db, request.tenant, request.prefix) | {"now": request.now}
    if not is_everything(request.filter):
        condition, operands = db.dialect.prefilter(request.filter)
        blocks.append(condition)
        values |= operands
    return blocks, values


def _list_memories(db: SqlContext, request: ListMemories) -> tuple[MemoryRow, ...]:
    conditions, values = memory_conditions(db, request)
    if request.after is not None:
        updated, namespace, key = request.after
        conditions.append(db.dialect.sql["after-memory"])
        values |= {"after_updated": updated, "after_space": encode(namespace), "after_key": to_bytes(key)}
    block = "list-memories-below" if request.prefix else "list-memories"
    sql = _with_conditions(db.dialect.sql[block], *conditions)
    rows = _filtered_rows(db, request.tenant, sql, values | {"limit": request.limit, "offset": request.offset})
    return tuple(read_memories(request.tenant, rows))


@lru_cache(maxsize=512)
def _with_conditions(sql: str, *conditions: str) -> str:
    return sql.replace("{conditions}", _AND.join(conditions))


def _find_matching(db: SqlContext, request: FindMatching) -> frozenset[int]:
    conditions, values = memory_conditions(db, request)
    sql = _with_conditions(db.dialect.sql["matching-memories"], *conditions)
    return frozenset(row[0] for row in _filtered_rows(db, request.tenant, sql, values))


def _filtered_rows(db: SqlContext, tenant: str, sql: str, values: dict[str, Any]) -> list[Row]:
    """Return the rows of a statement with a filter. If the database finds a value that is not JSON, name the memory."""
    try:
        return db.cursor.rows(sql, values)
    except Corrupt:
        read_memories(tenant, db.rows("malformed-memories", tenant=to_bytes(tenant)))
        raise


def _find_expired(db: SqlContext, request: FindExpired) -> frozenset[int]:
    values = prefix_values(db, request.tenant, request.prefix) | {"now": request.now}
    return frozenset(row[0] for row in db.rows("expired-below" if request.prefix else "expired-of-tenant", **values))


def _list_namespaces(db: SqlContext, request: ListNamespaces) -> tuple[Namespace, ...]:
    values = prefix_values(db, request.tenant, request.prefix) | {"now": request.now, "limit": request.limit}
    values["start"] = encode(request.after) + b"\x00" if request.after is not None else values["low"]
    tenant, now, found = request.tenant, request.now, list[Namespace]()
    for row in db.rows("list-namespaces", **values):
        space, number, key, created, updated, expires, times = row
        try:
            is_right = number == _number(tenant, space, key) and times == created + updated + (expires or 0)
        except MALFORMED_MEMORY_ERRORS:
            is_right = False
        if is_right and (expires is None or expires > now):
            found.append(decode(space))
        else:
            found.append(_read_namespace(request, *row))
    return tuple(found)


@lru_cache(maxsize=4096)
def _number(tenant: str, space: bytes, key: bytes) -> int:
    """Return the number of a memory by its columns. Each list of namespaces reads the same ones."""
    return memory_number(tenant, (decode(space), from_bytes(key)))


def _read_namespace(request: ListNamespaces, space: bytes, number: int, key: bytes, *times: int | None) -> Namespace:
    """Return a namespace. An unexpired memory in it proves that it is right."""
    created, updated, expires, total = times
    try:
        memory_key = MemoryKey(decode(space), from_bytes(key))
        is_alive = expires is None or expires > request.now
        times_are_right = total in (None, sum_of_times(created or 0, updated or 0, expires))
        if is_alive and times_are_right and number == memory_number(request.tenant, memory_key):
            return memory_key.namespace
    except MALFORMED_MEMORY_ERRORS as error:
        raise Corrupt(f"the namespace of memory number {number} cannot be read: {reason(error)}") from error
    raise damaged_memory(memory_key, "its namespace, key or times are not what was stored")


def _count_memories(db: SqlContext, request: CountMemories) -> int:
    return int(db.rows("count-memories", tenant=to_bytes(request.tenant), now=request.now)[0][0])


def _search_full_text(db: SqlContext, request: SearchFullText) -> WordMatches:
    conditions, values = memory_conditions(db, request)
    sql = _with_conditions(db.dialect.sql["search-words"], *conditions)
    rows = db.cursor.rows(sql, values | db.dialect.word_values(request.words) | {"limit": request.limit})
    return WordMatches(tuple(WordMatch(*row) for row in rows), is_all=len(rows) < request.limit)


# --- vectors


def load_vector_changes(db: SqlContext, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
    """Return the partitions whose vectors have changed, with the changes."""
    tenant = to_bytes(request.tenant)
    if request.partition is None:
        parts = db.rows("partitions", tenant=tenant)
    else:
        parts = db.rows("partition", tenant=tenant, part=partition_number(request.tenant, request.partition))
    found = [_read_partition(request.tenant, *row) for row in parts]
    changed = [
        _partition_changes(db, part, first, version, request.since.get(first, NO_VECTORS))
        for part, first, version in found
        if request.since.get(first) != version
    ]
    return (*changed, *request.deleted_partitions({first for _, first, _ in found}))


def _read_partition(tenant: str, part: int, first: bytes, seq: int, drops: int) -> tuple[int, str, tuple[int, int]]:
    """Read a row of the block `partitions`. Corrupt if it is that of another partition."""
    try:
        segment = from_bytes(first)
        if part == partition_number(tenant, segment) and seq >= 0 and drops >= 0:
            return part, segment, (seq, drops)
    except MALFORMED_MEMORY_ERRORS as error:
        raise Corrupt(f"the row of partition number {part} cannot be read: {reason(error)}") from error
    raise Corrupt(f"the row of partition {segment!r} is damaged: see `threadkeep verify`")


def _partition_changes(
    db: SqlContext, part: int, first: str, version: tuple[int, int], since: tuple[int, int]
) -> PartitionChanges:
    """Compare (sequence number, number of losses) of a partition with what the client has."""
    rows = db.rows("vectors-since", part=part, since=since[0]) if version[0] != since[0] else []
    changed = read_vectors([stored_vector(db, *row) for row in rows])
    if since == NO_VECTORS or version[1] == since[1]:
        return PartitionChanges(first, version, changed)
    present = frozenset((row[0], row[1]) for row in db.rows("vector-ids", part=part))
    return PartitionChanges(first, version, changed, present)


def stored_vector(
    db: SqlContext, memory: int, field: int, space: bytes, vector: Any, seq: int, checksum: int | None
) -> StoredVector:
    """Read a row of the block `vectors-since`."""
    try:
        return StoredVector(
            memory, field, space, db.dialect.unpack_vector(vector), None if checksum is None else checksum - seq
        )
    except MALFORMED_MEMORY_ERRORS as error:
        raise Corrupt(f"vector {field} of memory number {memory} cannot be read: {reason(error)}") from error


def _create_vector_index(_db: SqlContext, _request: CreateVectorIndex) -> None:
    """Do nothing: only pgvector has such an index."""


def names_of(request: Request[Any]) -> str:
    """Return how an error names the memories of a request; empty if they are not known."""
    return " or ".join(memory_name(*each) for each in request.keys) if isinstance(request, GetMemories) else ""


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    WriteMemories: _write_memories,
    ChangeMemories: _change_memories,
    ReplaceMemories: _replace_memories,
    RefreshMemories: _refresh_memories,
    SweepMemories: _sweep_memories,
    GetMemories: _get_memories,
    GetMemoriesByNumber: _get_memories_by_number,
    ListMemories: _list_memories,
    FindMatching: _find_matching,
    FindExpired: _find_expired,
    ListNamespaces: _list_namespaces,
    CountMemories: _count_memories,
    SearchFullText: _search_full_text,
    LoadVectorChanges: load_vector_changes,
    CreateVectorIndex: _create_vector_index,
}
