"""Reads of one thread in SQL: checkpoints, items, ancestors, and all rows of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.engine.identity import to_bytes
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import NAMES, RANGE_LISTS, SHARED, ItemId, ItemRange, new_tuple
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import (
    SERVER_CLOCK,
    CachedItems,
    CheckpointRows,
    ItemSizes,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadSeveral,
    LoadSeveralItems,
    LoadThreadRows,
    MeasureItems,
    ReadClock,
    StorageClock,
    ranges_of,
)
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext
    from threadkeep.backends.sql.rows import Row


def _load_checkpoints(db: SqlContext, request: LoadCheckpoints) -> LoadedRows:
    thread = db.thread(request.key)
    if thread is None:
        return LoadedRows(None)
    number, row = thread
    found: list[CheckpointRows] = []
    ranges: list[ItemRange] = []
    for want in request.wanted:
        rows = _load_checkpoint(db, number, want.ns, want.id)
        found.append(rows)
        if want.items:
            ranges += ranges_of(rows, row.nexts)
    return LoadedRows(row, tuple(found), _load_items_of(db, number, row, found, ranges, request.cached))


def _load_several(db: SqlContext, request: LoadSeveral) -> tuple[LoadedRows, ...]:
    return tuple(_load_checkpoints(db, each) for each in request.loads)


def _load_checkpoint(db: SqlContext, number: int, ns: str, id: str | None) -> CheckpointRows:
    """Return a checkpoint with its writes; without an id, the latest visible one."""
    dialect, ns_bytes = db.dialect, ns.encode("utf-8", "surrogatepass")
    id_bytes = id.encode("utf-8", "surrogatepass") if id is not None else None
    row = dialect.fetch_checkpoint(db, number, ns_bytes, id_bytes)
    if id_bytes is None:
        if row is None:
            return CheckpointRows(None, ())
        id_bytes = row[1]
    writes = dialect.fetch_writes(db, number, ns_bytes, [id_bytes])
    return CheckpointRows(dialect.checkpoint_row(row) if row else None, tuple(map(dialect.write_row, writes)))


def _load_items(db: SqlContext, request: LoadItems) -> LoadedRows:
    thread = db.thread(request.key, unchecked=request.unchecked)
    if thread is None:
        return LoadedRows(None)
    return LoadedRows(thread[1], (), _load_items_of(db, *thread, (), request.ranges, request.cached))


def _load_several_items(db: SqlContext, request: LoadSeveralItems) -> tuple[dict[ItemId, bytes], ...]:
    return tuple(_items_at_epoch(db, *each) for each in request.loads)


def _items_at_epoch(db: SqlContext, row: ThreadRow, ranges: Sequence[ItemRange]) -> dict[ItemId, bytes]:
    found = db.thread(row.key, unchecked=True)
    return _fetch_missing(db, found[0], ranges, None) if found is not None and found[1].epoch == row.epoch else {}


def _measure_items(db: SqlContext, request: MeasureItems) -> ItemSizes:
    thread = db.thread(request.key)
    if thread is None:
        return ItemSizes(None)
    return ItemSizes(thread[1], tuple(db.dialect.fetch_lengths(db, thread[0], request.ranges)))


def _load_ancestors(db: SqlContext, request: LoadAncestors) -> LoadedRows:
    thread = db.thread(request.key)
    if thread is None:
        return LoadedRows(None)
    ns = to_bytes(request.ns)
    ancestors, adjacent = _follow_parents(db, thread[0], ns, request)
    writes: dict[str, list[WriteRow]] = {id: [] for id in ancestors}
    ids = list(map(to_bytes, ancestors))
    for row in db.dialect.fetch_writes(db, thread[0], ns, ids, adjacent=adjacent):
        write = db.dialect.write_row(row)
        if write.checkpoint not in writes:
            raise Corrupt(f"writes on checkpoint {write.checkpoint!r} of thread {request.key.id!r} are damaged")
        writes[write.checkpoint].append(write)
    found = tuple(CheckpointRows(row, tuple(writes[id])) for id, row in ancestors.items())
    return LoadedRows(thread[1], found, _load_items_of(db, *thread, found, (), request.cached))


def _follow_parents(
    db: SqlContext, number: int, ns: bytes, request: LoadAncestors
) -> tuple[dict[str, CheckpointRow], bool]:
    """Return a checkpoint and its ancestors by id, and whether most checkpoints between them are ancestors too.

    A parent usually has the next lower id, so each query reads ahead: 64 rows, then twice what was found so far.
    """
    ancestors: dict[str, CheckpointRow] = {}
    nearby: dict[bytes, Row] = {}
    passed = 0
    id: str | None = request.id
    while id is not None and id not in ancestors and len(ancestors) < request.limit:
        key = to_bytes(id)
        row = nearby.get(key)
        if row is None:
            limit = min(request.limit - len(ancestors), max(64, 2 * len(ancestors)))
            rows = db.rows("checkpoints-down", thread=number, ns=ns, id=key, limit=limit)
            nearby = {row[1]: row for row in rows}
            row = nearby.get(key)
            passed += len(rows)
        if row is None:
            for other in nearby.values():
                db.dialect.checkpoint_row(other)  # raises if the id of one of them cannot be read
            break
        ancestors[id] = db.dialect.checkpoint_row(row)
        id = ancestors[id].parent
    return ancestors, passed <= 2 * max(len(ancestors), 64)


def _load_thread_rows(db: SqlContext, request: LoadThreadRows) -> LoadedRows:
    thread = db.thread(request.key)
    if thread is None:
        return LoadedRows(None)
    checkpoints = map(db.dialect.checkpoint_row, db.rows("checkpoints", thread=thread[0]))
    rows = {(row.ns, row.id): row for row in checkpoints}
    writes: dict[tuple[str, str], list[WriteRow]] = {key: [] for key in rows}
    for write in map(db.dialect.write_row, db.rows("all-writes", thread=thread[0])):
        writes.setdefault((write.ns, write.checkpoint), []).append(write)
    found = tuple(CheckpointRows(rows.get(key), tuple(own)) for key, own in sorted(writes.items()))
    stored = itemlog.join_ranges(ItemId(*row) for row in db.rows("item-ids", thread=thread[0]))
    return LoadedRows(thread[1], found, _load_items_of(db, *thread, found, (), None), stored)


def _load_items_of(
    db: SqlContext,
    number: int,
    thread: ThreadRow,
    found: Sequence[CheckpointRows],
    ranges: Iterable[ItemRange],
    cached: CachedItems | None,
) -> dict[ItemId, bytes]:
    """Return the names, labels, shapes and range lists of some rows, and the items in `ranges`, except what is cached.

    Range lists are read first, because the items that they name are wanted too.
    """
    cached = cached if cached is not None and cached.epoch == thread.epoch else None
    names, known = (thread.nexts[NAMES] if thread.nexts else 0), (cached.names if cached else 0)
    wanted = list(ranges)
    lists: list[ItemRange] = []
    for rows in found:
        if rows.row is not None:
            wanted.append(ItemRange(SHARED, rows.row.labels, 1))
        for each in ranges_of(rows, thread.nexts):
            if each[0] == SHARED:
                wanted.append(each)
            elif each[0] == RANGE_LISTS:
                lists.append(each)
    if names > known:
        wanted.append(ItemRange(NAMES, known, names - known))
    items = _fetch_missing(db, number, lists, cached) if lists else {}
    if lists and any(each.lane == RANGE_LISTS for each in wanted):
        wanted += _listed_ranges(lists, items, cached, thread.family)
    return items | _fetch_missing(db, number, wanted, cached)


def _listed_ranges(
    lists: Iterable[ItemRange], items: dict[ItemId, bytes], cached: CachedItems | None, family: int
) -> list[ItemRange]:
    """Return the ranges in some range lists, which were read just now or are cached."""
    found: list[ItemRange] = []
    for at in (at for each in lists for at in each.ids()):
        if at in items:
            found += itemlog.unpack_range_list(at, items[at], family)
        elif cached is not None:
            found += cached.items.range_lists.get(at.n, ())
    return found


def _fetch_missing(
    db: SqlContext, number: int, ranges: Sequence[ItemRange], cached: CachedItems | None
) -> dict[ItemId, bytes]:
    """Return the items in some ranges, except what is cached. If nothing is missing, no statement is run."""
    missing: Sequence[ItemRange] = cached.items.lacking(ranges) if cached is not None else ranges
    items: dict[ItemId, bytes] = {}
    if missing:
        for lane, n, payload in db.dialect.fetch_items(db, number, itemlog.union(missing)):
            items[new_tuple(ItemId, (lane, n))] = payload
    return items


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    LoadCheckpoints: _load_checkpoints,
    LoadSeveral: _load_several,
    LoadItems: _load_items,
    LoadSeveralItems: _load_several_items,
    MeasureItems: _measure_items,
    LoadAncestors: _load_ancestors,
    LoadThreadRows: _load_thread_rows,
    ReadClock: lambda db, _: StorageClock(int(db.rows("clock")[0][0]), SERVER_CLOCK),
}
