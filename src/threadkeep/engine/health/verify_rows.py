"""Check a thread's rows against each other: references, parents, counters, the catalogue, the indexes and a run log."""

from __future__ import annotations

from collections import Counter
from typing import Any

from threadkeep.engine.cube import channels
from threadkeep.engine.cube.events import RunLog
from threadkeep.engine.health.requests import CATALOGUE, INDEX, InspectedThread
from threadkeep.engine.health.thread_scan import COUNTER, MISSING_ITEM, MISSING_PARENT, UNDECODABLE, ThreadScan
from threadkeep.engine.identity import CUBE
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.records import CheckpointRecord, ThreadRow
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.status import status_of_checkpoint, status_of_writes, worse_status
from threadkeep.engine.threads.thread_rows import CheckpointKey
from threadkeep.errors import Corrupt


def check_rows(scan: ThreadScan) -> None:
    """Report all bad items, now that they were read, and what is wrong between rows."""
    _find_missing_items(scan)
    _find_undecodable_labels(scan)
    scan.index_bad_items()
    for id, (problem, message) in sorted(scan.bad_items.items()):
        _report_item(scan, id, problem, message)
    _check_parents(scan)
    _check_label_index(scan)
    if scan.row is not None:
        _check_counters(scan, scan.row)
        _compare(scan, scan.row, _catalogue(scan, scan.row))
    _check_run_index(scan)


# --- references


def _find_missing_items(scan: ThreadScan) -> None:
    stored = itemlog.join_ranges((lane, n) for lane, n, _ in scan.inspected.item_sizes)
    used = {each for _, _, ranges in scan.references() for each in ranges}
    for missing in itemlog.subtract(used, stored):
        for id in missing.ids():
            scan.bad_items.setdefault(id, (MISSING_ITEM, f"item {id.lane}:{id.n} of {scan.where} is missing"))


def _find_undecodable_labels(scan: ThreadScan) -> None:
    for n in _used_labels(scan):
        if scan.labels(n) is None:
            message = f"labels {n} of {scan.where} cannot be decoded"
            scan.bad_items.setdefault(ItemId(SHARED, n), (UNDECODABLE, message))


def _used_labels(scan: ThreadScan) -> set[int]:
    return {record.row.labels for record in scan.records.values()}


def _report_item(scan: ThreadScan, id: ItemId, problem: str, message: str) -> None:
    """Report a bad item at the newest checkpoint that needs it, or at a task if only writes do."""
    users = scan.needed_by[id]
    checkpoints = sorted({checkpoint for checkpoint, task in users if task is None}, key=lambda each: each[1])
    tasks = sum(task is not None for _, task in users)
    needs = [f"{len(checkpoints)} checkpoints"] * bool(checkpoints) + [f"writes of {tasks} tasks"] * bool(tasks)
    if needs:
        message += f"; {' and '.join(needs)} need it"
    elif id.lane:
        message += "; nothing readable needs it"
    checkpoint: CheckpointKey | None = None
    task: str | None = None
    if checkpoints:
        checkpoint = checkpoints[-1]
    elif users:
        checkpoint, task = users[0]
    scan.report(problem, message, checkpoint, task, id)


def _check_parents(scan: ThreadScan) -> None:
    stored = {*scan.records, *scan.broken}
    for (ns, id), record in scan.records.items():
        parent = record.row.parent
        if parent is not None and (ns, parent) not in stored:
            scan.report(MISSING_PARENT, f"{parent!r}, the parent of checkpoint {id!r}, is missing", (ns, id))


# --- indexes


def _check_label_index(scan: ThreadScan) -> None:
    """The index must have exactly the tags of the labels."""
    if scan.inspected.tags is None:
        return
    tags: dict[int, set[bytes]] = {}
    for n, tag in scan.inspected.tags:
        tags.setdefault(n, set()).add(tag)
    for n in _used_labels(scan):
        labels = scan.labels(n)
        if labels is not None and set(metadata.tags(labels)) != tags.get(n, set()):
            message = f"the metadata index does not match labels {n} of {scan.where}: filters may not find them"
            scan.report(INDEX, message, item=ItemId(SHARED, n))
    stored = {n for lane, n, _ in scan.inspected.item_sizes if lane == SHARED}
    for n in sorted(tags.keys() - stored):
        scan.report(INDEX, f"the metadata index of {scan.where} has labels {n}, which are missing")


def _check_run_index(scan: ThreadScan) -> None:
    indexed = scan.inspected.runs
    if indexed is None:
        return
    runs = {record.row.run for record in scan.records.values()}
    runs |= {entry.origin[1] for tasks in scan.tasks.values() for task in tasks for entry in task.entries.values()}
    for run in sorted(run for run in runs if run is not None and run not in indexed):
        scan.report(
            INDEX,
            f"the run index does not have run {run!r}, which wrote to {scan.where}: delete_for_runs will not find it",
        )


# --- the thread's row


def rows_size(found: InspectedThread) -> int:
    """The stored size of a thread's checkpoint and write rows."""
    return sum(row.size for row in found.checkpoints) + sum(row.size for row in found.writes)


def _check_counters(scan: ThreadScan, row: ThreadRow) -> None:
    """Compare the counters of the thread's row."""
    for lane, end in sorted(scan.lane_ends().items()):
        if lane >= len(row.nexts) or row.nexts[lane] < end:
            message = f"lane {lane} of {scan.where} has item {end - 1}, beyond its counter: the next put would collide"
            scan.report(COUNTER, message)
    for name, count in _counts(scan).items():
        if getattr(row, name) != count:
            scan.report(COUNTER, f"the row of {scan.where} counts {getattr(row, name)} {name}, but there are {count}")


def _counts(scan: ThreadScan) -> dict[str, int]:
    """The counters that the thread's row should have; none if a row cannot be read, which cannot be counted."""
    found = scan.inspected
    if found.unreadable:
        return {}
    return {
        "checkpoints": sum(not each.hidden for each in found.checkpoints),
        "writes": sum(len(each.index) // 3 for each in found.writes),
        "bytes": sum(size for _, _, size in found.item_sizes) + rows_size(found),
    }


def _catalogue(scan: ThreadScan, row: ThreadRow) -> dict[str, Any]:
    """What the thread's row should have of the newest root checkpoint, as far as that can be read."""
    if scan.inspected.unreadable:
        return {}
    if any(ns == "" for ns, _ in scan.broken):
        visible = [each.id for each in scan.inspected.checkpoints if each.ns == "" and not each.hidden]
        return {"top": max(visible, default=None)}
    roots = [record for (ns, _), record in scan.records.items() if ns == "" and not record.row.hidden]
    top = max(roots, key=lambda record: record.row.id, default=None)
    expected: dict[str, Any] = {"top": top.row.id if top is not None else None}
    expected |= _write_counts(scan, row, top)
    for name in ("run", "step", "source", "labels"):
        expected[name] = getattr(top.row, name) if top is not None else None
    if not any(ns == "" for ns, _, _ in scan.broken_writes) and row.key.kind != CUBE:
        expected |= _statuses(scan, top)
    return expected


def _write_counts(scan: ThreadScan, row: ThreadRow, top: CheckpointRecord | None) -> dict[str, int]:
    """The number of rows of writes on the newest root checkpoint, and on the one that only has writes, if counted."""
    counts = Counter(each.checkpoint for each in scan.inspected.writes if each.ns == "")
    ids = {"top_writes": top.row.id if top is not None else None, "early_writes": row.early}
    return {name: counts[id] for name, id in ids.items() if id is not None and getattr(row, name) is not None}


def _compare(scan: ThreadScan, row: ThreadRow, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if getattr(row, name) != value:
            scan.report(CATALOGUE, f"the row of {scan.where} has the {name} {getattr(row, name)!r}, not {value!r}")


def _statuses(scan: ThreadScan, top: CheckpointRecord | None) -> dict[str, Any]:
    """The status of a LangGraph thread; and the newest root checkpoint that only has writes so far, with its status."""
    status = status_of_checkpoint(top) if top else "idle"
    newest = top.row.id if top else ""
    for task in scan.tasks.get(("", newest), ()) if top else ():
        status = worse_status(status, status_of_writes(entry.channel for entry in task.entries.values()))
    waiting = [id for ns, id in scan.tasks if ns == "" and id > newest and ("", id) not in scan.records]
    early = max(waiting, default=None)
    written = [entry.channel for task in scan.tasks.get(("", early or ""), ()) for entry in task.entries.values()]
    return {"status": status, "early": early, "early_status": status_of_writes(written) if early is not None else None}


# --- cube threads


async def check_cube(scan: ThreadScan) -> None:
    """Check that the run log of a cube thread can be decoded, and matches its messages and the thread's status.

    Conflict if the thread was pruned since it was inspected. One round trip.
    """
    row = scan.row
    record = scan.records.get(("", row.top or "")) if row is not None else None
    if row is None or record is None:
        return
    slots = [record.slots[name] for name in (channels.EVENTS, channels.PENDING) if name in record.slots]
    if not all(map(scan.is_intact, slots)):
        return
    try:
        await scan.fetch(slots)
        _check_run_log(scan, record, row)
    except (Corrupt, ValueError, TypeError, IndexError, KeyError) as error:
        message = f"the run log or the pending question of {scan.where} is malformed: {error}"
        scan.report(UNDECODABLE, message, ("", record.row.id))


def _check_run_log(scan: ThreadScan, record: CheckpointRecord, row: ThreadRow) -> None:
    head = scan.head()
    events, pending = channels.read_events(head, record), channels.read_channel(head, record, channels.PENDING)
    _compare(scan, row, {"status": channels.status(pending, RunLog(events))})
    messages = record.slots.get(channels.MESSAGES)
    stored = (messages.elements, sum(each.length for each in messages.ranges)) if messages else (0, 0)
    logged = (sum(len(event.ids) for event in events), sum(event.items for event in events))
    if stored != logged:
        scan.report(
            COUNTER,
            f"the run log of {scan.where} has {logged[0]} messages in {logged[1]} items, "
            f"but {stored[0]} in {stored[1]} are stored",
        )
