"""Changes of memories as plain statements, each of one partition, for databases that distribute partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from threadkeep.backends.postgres.memories import Put, in_lock_order, row_of
from threadkeep.backends.sql.memories import count_vector_changes, memory_id_values
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories.checksums import vector_checksum
from threadkeep.engine.memories.namespaces import MemoryKey, partition_number
from threadkeep.engine.memories.requests import WriteMemories
from threadkeep.errors import Conflict

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext
    from threadkeep.backends.sql.rows import Values


def lock_memories(db: SqlContext, tenant: str, keys: Sequence[MemoryKey]) -> None:
    """Lock memories, in the order in which `store_memories` changes them."""
    db.many("lock-memories", sorted((memory_id_values(tenant, key) for key in keys), key=itemgetter("memory")))


def store_memories(db: SqlContext, request: WriteMemories) -> int:
    """Add, replace and delete memories, and return the number deleted. Conflict if one has the number of another.

    Memories come first, by number: who changes one holds its lock, so nobody else changes its vectors. Then come
    partitions, by number, and vectors. A transaction of several partitions may be one of several machines.
    """
    puts, deletes = in_lock_order(request)
    if not request.sealed:
        db.dialect.check_plain(db, request.tenant)
    if db.many("put-memories", map(row_of, puts)) != len(puts):
        raise Conflict
    conditions = {"expired": request.expired, "now": request.now}
    deleted = [each for each in deletes if db.rows("delete-memories", **each, **conditions)]
    _store_vectors(db, request, puts, deleted)
    return len(deleted)


def _store_vectors(db: SqlContext, request: WriteMemories, puts: Sequence[Put], deleted: Sequence[Values]) -> None:
    """Replace the vectors of memories. Surplus old ones are deleted. Each partition counts its changes."""
    surplus: dict[int, list[Values]] = {}
    for row, memory in puts:
        surplus.setdefault(row[1], []).append({"memory": row[0], "part": row[1], "count": len(memory.vectors)})
    for each in deleted:
        surplus.setdefault(each["part"], []).append({**each, "count": 0})
    stored = {row[1] for row, memory in puts if memory.vectors}
    seqs = {}
    for part, first in _partitions(request):
        lost = db.many("delete-vectors", surplus.get(part, ()))
        if lost or part in stored:
            changes = {"stored": int(part in stored), "lost": lost}
            seqs[part] = count_vector_changes(db, request, first, **changes)
    db.many("put-vectors", (values for put in puts for values in _vector_rows(request, put, seqs.get(put[0][1], 0))))


def _partitions(request: WriteMemories) -> list[tuple[int, str]]:
    """Return the partitions of a change with their first segments, in the order in which their rows are locked."""
    firsts = {put.row.namespace[0] for put in request.puts} | {key.namespace[0] for key in request.deletes}
    return sorted((partition_number(request.tenant, first), first) for first in firsts)


def _vector_rows(request: WriteMemories, put: Put, seq: int) -> Iterable[dict[str, Any]]:
    (number, part, _, space, *_), memory = put
    count = len(memory.vectors)
    for n, vector in enumerate(memory.vectors):
        yield {
            "memory": number, "part": part, "seq": seq, "field": n, "dims": len(vector) // 4,
            "tenant": to_bytes(request.tenant), "space": space, "vector": vector,
            "checksum": seq + vector_checksum(number, n, count, space, vector),
        }  # fmt: skip
