"""Memories in SQL: requests to the blocks of `memories.sql`, rows to records. Part of every SQL backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.rows import Row
from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.memories.filters import EVERYTHING
from threadkeep.engine.memories.namespaces import (
    MemoryKey,
    Space,
    decode,
    encode,
    end_of,
    memory_number,
    partition_number,
)
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
from threadkeep.errors import Conflict
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext

_AND = "\n  AND "
_LAST = b"\xff"
"""After all namespaces."""


def numbered(tenant: str, place: MemoryKey) -> dict[str, Any]:
    """Which memory a statement means."""
    return {
        "memory": memory_number(tenant, place),
        "part": partition_number(tenant, place.namespace[0]),
        "tenant": to_bytes(tenant),
    }


def memory_values(tenant: str, memories: Iterable[NewMemory]) -> Iterator[dict[str, Any]]:
    """Memories as values."""
    whose = to_bytes(tenant)
    for memory in memories:
        space, key, value, created, updated, expires, ttl = memory.row
        yield {
            "memory": memory_number(tenant, MemoryKey(space, key)), "part": partition_number(tenant, space[0]), "tenant": whose,
            "space": encode(space), "key": to_bytes(key), "created": created, "updated": updated, "expires": expires,
            "ttl": ttl, "value": value,
        }  # fmt: skip


def memory_row(row: Row) -> MemoryRow:
    """A row of {memory-columns}."""
    _, space, key, value, created, updated, expires, ttl = row
    return MemoryRow(decode(space), from_bytes(key), value, created, updated, expires, ttl)


def below(tenant: str, prefix: Space) -> dict[str, Any]:
    """The tenant and the range of namespaces with a prefix."""
    low = encode(prefix)
    return {"tenant": to_bytes(tenant), "low": low, "high": end_of(low) if low else _LAST}


def remember(work: SqlContext, request: WriteMemories) -> int:
    """Store and remove memories, statement by statement; how many were removed. Nobody else writes meanwhile."""
    gone = _forget(work, request.tenant, [numbered(request.tenant, place) for place in request.deletes])
    values = list(memory_values(request.tenant, request.puts))
    last = _last(work)
    if work.many("put-memories", values) != len(values):
        raise Conflict
    all_new = _last(work) - last == len(values)  # then there is nothing to remove beside them
    _put_vectors(work, request, values, all_new=all_new)
    told = ((value["memory"], memory.words) for value, memory in zip(values, request.puts, strict=True))
    work.dialect.put_words(work, [each for each in told if each[1] or not all_new])
    return gone


def _last(work: SqlContext) -> int:
    return int(work.rows("last-memory")[0][0])


def _put_vectors(work: SqlContext, request: WriteMemories, values: Sequence[dict[str, Any]], *, all_new: bool) -> None:
    """Vectors beside memories that were stored: new ones replace old ones, of which there may have been more."""
    if all_new and not any(memory.vectors for memory in request.puts):
        return
    seqs = {
        first: _tell(work, request.tenant, first, stored=1)
        for first in dict.fromkeys(memory.row.namespace[0] for memory in request.puts if memory.vectors)
    }
    places = [
        {"memory": value["memory"], "part": value["part"], "count": len(memory.vectors)}
        for value, memory in zip(values, request.puts, strict=True)
    ]
    vectors = (
        place | {"field": n, "seq": seqs[memory.row.namespace[0]], "vector": vector}
        for place, memory in zip(places, request.puts, strict=True)
        for n, vector in enumerate(memory.vectors)
    )
    lost = work.many("less-vectors", places) if not all_new else 0
    work.many("put-vectors", vectors)
    for first in dict.fromkeys(memory.row.namespace[0] for memory in request.puts) if lost else ():
        _tell(work, request.tenant, first, lost=1)


def _tell(work: SqlContext, tenant: str, first: str, *, stored: int = 0, lost: int = 0) -> int:
    part = {"part": partition_number(tenant, first), "tenant": to_bytes(tenant), "first": to_bytes(first)}
    return int(work.rows("tell-part", **part, stored=stored, lost=lost)[0][0])


def _forget(work: SqlContext, tenant: str, gone: Sequence[dict[str, Any]]) -> int:
    """Remove memories with all that belongs to them."""
    work.dialect.put_words(work, [(each["memory"], "") for each in gone])
    removed = work.many("gone-memories", gone)
    lost = work.many("less-vectors", [{"memory": each["memory"], "part": each["part"], "count": 0} for each in gone])
    for part in {each["part"] for each in gone} if lost else ():
        work.rows("tell-part", part=part, tenant=to_bytes(tenant), first=b"", stored=0, lost=1)
    return removed


def _refresh(work: SqlContext, request: RefreshMemories) -> None:
    work.dialect.refresh_in(work, [numbered(request.tenant, place) | {"now": request.now} for place in request.keys])


def _sweep(work: SqlContext, request: SweepMemories) -> int:
    by_tenant: dict[str, list[MemoryKey]] = {}
    rows = work.rows("expired", now=request.now, limit=request.limit)
    for tenant, space, key in rows:
        by_tenant.setdefault(from_bytes(tenant), []).append(MemoryKey(decode(space), from_bytes(key)))
    return sum(
        work.dialect.remember_in(work, WriteMemories(tenant, (), tuple(gone), request.now, expired=True))
        for tenant, gone in by_tenant.items()
    )


def _recall(work: SqlContext, request: GetMemories) -> tuple[MemoryRow | None, ...]:
    numbers = [memory_number(request.tenant, place) for place in request.keys]
    rows = map(memory_row, _fetched(work, request.tenant, numbers, request.now))
    found = {row[:2]: row for row in rows}  # by place: what is there may be another memory with the same number
    return tuple([found.get(place) for place in request.keys])


def _recall_numbered(work: SqlContext, request: GetMemoriesByNumber) -> dict[int, MemoryRow]:
    return {row[0]: memory_row(row) for row in _fetched(work, request.tenant, request.numbers, request.now)}


def _fetched(work: SqlContext, tenant: str, numbers: Sequence[int], now: int) -> list[Row]:
    return work.dialect.fetch_memories(work, {"tenant": to_bytes(tenant), "now": now}, numbers)


def conditions_of(work: SqlContext, request: ListMemories | FindMatching) -> tuple[list[str], dict[str, Any]]:
    """What is asked of a memory, where it is first, and the values."""
    blocks = [work.dialect.sql["is-below" if request.prefix else "is-of"], work.dialect.sql["is-alive"]]
    values = below(request.tenant, request.prefix) | {"now": request.now}
    if request.filter != EVERYTHING:
        text, given = work.dialect.prefilter(request.filter)
        blocks.append(text)
        values |= given
    return blocks, values


def _browse(work: SqlContext, request: ListMemories) -> tuple[MemoryRow, ...]:
    conditions, values = conditions_of(work, request)
    if request.after is not None:
        updated, space, key = request.after
        conditions.append(work.dialect.sql["after-memory"])
        values |= {"after_updated": updated, "after_space": encode(space), "after_key": to_bytes(key)}
    block = "browse-below" if request.prefix else "browse"
    sql = work.dialect.sql[block].replace("{conditions}", _AND.join(conditions))
    rows = work.cursor.rows(sql, values | {"limit": request.limit, "offset": request.offset})
    return tuple(map(memory_row, rows))


def _matching(work: SqlContext, request: FindMatching) -> frozenset[int]:
    conditions, values = conditions_of(work, request)
    rows = work.cursor.rows(work.dialect.sql["matching"].replace("{conditions}", _AND.join(conditions)), values)
    return frozenset(row[0] for row in rows)


def _expired(work: SqlContext, request: FindExpired) -> frozenset[int]:
    values = below(request.tenant, request.prefix) | {"now": request.now}
    return frozenset(row[0] for row in work.rows("expired-below", **values))


def _spaces(work: SqlContext, request: ListNamespaces) -> tuple[Space, ...]:
    values = below(request.tenant, request.prefix) | {"now": request.now, "limit": request.limit}
    values["start"] = encode(request.after) + b"\x00" if request.after is not None else values["low"]
    return tuple(decode(row[0]) for row in work.rows("spaces", **values))


def _count(work: SqlContext, request: CountMemories) -> int:
    return int(work.rows("count-memories", tenant=to_bytes(request.tenant), now=request.now)[0][0])


def _worded(work: SqlContext, request: SearchFullText) -> tuple[Scored, ...]:
    values = below(request.tenant, request.prefix) | {"now": request.now, "limit": request.limit}
    return tuple(
        (number, score) for number, score in work.rows("worded", **values, words=work.dialect.any_of(request.words))
    )


def changes(work: SqlContext, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
    """The partitions whose vectors changed, with what changed."""
    tenant = to_bytes(request.tenant)
    if request.first is None:
        parts = work.rows("all-parts", tenant=tenant)
    else:
        parts = work.rows("one-part", tenant=tenant, part=partition_number(request.tenant, request.first))
    return tuple(
        _changed(work, part, from_bytes(first), (seq, drops), request.since.get(from_bytes(first), (0, 0)))
        for part, first, seq, drops in parts
        if request.since.get(from_bytes(first)) != (seq, drops)
    )


def _changed(work: SqlContext, part: int, first: str, at: tuple[int, int], since: tuple[int, int]) -> PartitionChanges:
    rows = work.rows("vectors-since", part=part, since=since[0]) if at[0] != since[0] else []
    unpack = work.dialect.unpack_vector
    changed = tuple(VectorRow(memory, field, decode(space), unpack(vector)) for memory, field, space, vector in rows)
    if at[1] == since[1]:
        return PartitionChanges(first, at, changed)
    return PartitionChanges(
        first, at, changed, frozenset((row[0], row[1]) for row in work.rows("vector-ids", part=part))
    )


VERBS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    WriteMemories: lambda work, request: work.dialect.remember_in(work, request),
    RefreshMemories: _refresh,
    SweepMemories: _sweep,
    GetMemories: _recall,
    GetMemoriesByNumber: _recall_numbered,
    ListMemories: _browse,
    FindMatching: _matching,
    FindExpired: _expired,
    ListNamespaces: _spaces,
    CountMemories: _count,
    SearchFullText: _worded,
    LoadVectorChanges: changes,
    CreateVectorIndex: lambda _work, _request: None,
}
