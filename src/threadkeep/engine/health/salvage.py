"""Read a thread in order to copy it: all of it if it is intact, or the part that is.

A copy never has the damage of its source. What counts as damage is what `verify` reports, except a parent that never
existed, and except the indexes, which are built anew by everything but a copy inside the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.health.discard import DamageRemoved, remove_damage
from threadkeep.engine.health.rebuild import Rebuilder
from threadkeep.engine.health.requests import INDEX, InspectThread
from threadkeep.engine.health.thread_row import with_cube_status
from threadkeep.engine.health.thread_scan import MISSING_PARENT, Problem, ThreadScan, scan_thread
from threadkeep.engine.health.verify import verify_thread
from threadkeep.engine.health.verify_items import check_seals
from threadkeep.engine.health.verify_rows import check_cube, check_rows
from threadkeep.engine.identity import CUBE, ThreadKey, to_bytes
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import NAMES, Item, ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import CheckpointRows, LoadedRows
from threadkeep.engine.threads.survivors import recount
from threadkeep.errors import Corrupt


class IntactThread(NamedTuple):
    """A thread that is intact, or the intact part of one.

    `loaded` is as a reply of LoadThreadRows. `replaced` has items that are not stored in this form: placeholders for
    names of channels and nodes that cannot be read and that nothing in `loaded` needs. `left_out` says what is damaged,
    and what was left out because of it; it is empty if the whole thread is intact.
    """

    loaded: LoadedRows
    replaced: Mapping[ItemId, bytes] = {}
    left_out: tuple[str, ...] = ()


async def load_intact(key: ThreadKey, *, items: bool, indexes: bool = False) -> LoadedRows:
    """Return all rows of a thread, as LoadThreadRows does; Corrupt if anything in it is damaged.

    The items of values are read and checked only with `items`, the indexes only with `indexes`. One round trip, one
    more for a cube thread, and one for each slice of items. If the thread is pruned meanwhile, it is read again.
    """

    async def once() -> LoadedRows:
        scan = scan_thread(key, await InspectThread(key))
        if not scan.inspected.exists:
            return LoadedRows(None)
        if items and scan.row is not None:
            await check_seals(scan)
        check_rows(scan)
        if key.kind == CUBE:
            await check_cube(scan)
        found = damage(scan, indexes=indexes)
        if found:
            more = f"; and {len(found) - 1} more problems" if len(found) > 1 else ""
            raise Corrupt(f"{found[0].message}{more}")
        return _whole(scan)

    return await read_consistently(key, once)


async def salvage(key: ThreadKey, *, indexes: bool = False) -> IntactThread:
    """Return a thread, or what is intact of it. Its checkpoints can be read completely, and it passes `verify`.

    With `indexes`, damage to the indexes counts. Corrupt if nothing is intact, or if the thread's own row cannot be
    read. Round trips as for `verify_thread`.
    """
    scan = await verify_thread(key)
    if scan is None or not scan.inspected.exists:
        return IntactThread(LoadedRows(None))
    problems = damage(scan, indexes=indexes)
    if not problems:
        return IntactThread(_whole(scan))
    if scan.row is None:
        raise Corrupt(f"{problems[0].message}: run `repair`, which rebuilds it")
    part = remove_damage(scan)
    if part.left.is_empty:
        raise Corrupt(f"nothing of {scan.where} is intact; {problems[0].message}")
    names = dict(_placeholders(scan))
    items = {id: stored for id, stored in scan.inspected.items.items() if id not in scan.bad_items} | names
    stored = itemlog.subtract(part.thread.stored, part.left.unused)
    stored = tuple(itemlog.union((*stored, *(ItemRange(*id, 1) for id in names))))
    row = await with_cube_status(scan, recount(part.thread, part.left))
    writes = [task.row for task in part.left.tasks.values()]
    loaded = _loaded(row, part.left.rows.values(), writes, items, stored)
    return IntactThread(loaded, names, (*(each.message for each in problems), *_left_out(part)))


def damage(scan: ThreadScan, *, indexes: bool) -> list[Problem]:
    """Return the problems that make a thread damaged. All checks that are wanted must have been made."""
    found = [each for each in scan.problems if each.problem != MISSING_PARENT and (indexes or each.problem != INDEX)]
    orphans = [each for each in scan.problems if each.problem == MISSING_PARENT]
    if orphans and scan.row is not None:
        needs = Rebuilder(scan, None).needs_for_deltas
        for each in orphans:
            child = (each.ns or "", each.checkpoint or "")
            if (child[0], scan.records[child].row.parent) in needs(child):
                found.append(each)
    return found


def _placeholders(scan: ThreadScan) -> Iterator[tuple[ItemId, bytes]]:
    """Names in place of those that cannot be read. A row that needs one of them is damaged, so nothing has them."""
    for id in sorted(scan.bad_items):
        if id.lane == NAMES:
            yield id, itemlog.seal_item(id, Item(to_bytes(f"(unreadable name {id.n})")), scan.family)


def _left_out(part: DamageRemoved) -> Iterator[str]:
    for ns, id in sorted(part.checkpoints):
        yield f"checkpoint {id!r}{_in(ns)} was left out, with the writes on it"
    for ns, id, task in sorted(part.writes):
        yield f"the writes of task {task!r} on checkpoint {id!r}{_in(ns)} were left out"


def _in(ns: str) -> str:
    return f" of namespace {ns!r}" if ns else ""


def _whole(scan: ThreadScan) -> LoadedRows:
    found = scan.inspected
    assert scan.row is not None
    stored = itemlog.join_ranges(sorted((lane, n) for lane, n, _ in found.item_sizes))
    return _loaded(scan.row, found.checkpoints, found.writes, dict(found.items), stored)


def _loaded(
    row: ThreadRow,
    checkpoints: Iterable[CheckpointRow],
    writes: Iterable[WriteRow],
    items: dict[ItemId, bytes],
    stored: tuple[ItemRange, ...],
) -> LoadedRows:
    by_checkpoint: dict[tuple[str, str], list[WriteRow]] = {}
    for each in writes:
        by_checkpoint.setdefault((each.ns, each.checkpoint), []).append(each)
    found = [CheckpointRows(each, tuple(by_checkpoint.pop((each.ns, each.id), ()))) for each in checkpoints]
    found += [CheckpointRows(None, tuple(each)) for each in by_checkpoint.values()]
    return LoadedRows(row, tuple(found), items, stored)
