"""Discard what is damaged in a thread: checkpoints that cannot be read as they were, and writes that cannot be read.

What is left is intact. The items that nothing refers to any more are freed, if no damage is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from threadkeep.engine.health.rebuild import Rebuilder
from threadkeep.engine.health.thread_scan import ThreadScan
from threadkeep.engine.log.itemlog import SHARED, ItemRange
from threadkeep.engine.requests import Batch
from threadkeep.engine.threads.damaged_rows import rows_of_scan
from threadkeep.engine.threads.survivors import PruneSelection, Survivors, find_survivors, recount, task_key
from threadkeep.engine.threads.thread_rows import CheckpointKey, TaskKey, ThreadRows
from threadkeep.errors import Corrupt


class Discarded(NamedTuple):
    """What is removed from a thread: checkpoints with all writes on them, and writes on checkpoints that stay.

    `batch` removes it; None if there is nothing to remove.
    """

    checkpoints: list[CheckpointKey]
    writes: list[TaskKey]
    batch: Batch | None


class DamageRemoved(NamedTuple):
    """A thread, and what is left of it without the checkpoints and writes that are damaged, or without some of them.

    `absent` are parents that do not exist: the rows that name them lose them.
    """

    thread: ThreadRows
    left: Survivors
    checkpoints: set[CheckpointKey]
    writes: set[TaskKey]
    absent: set[CheckpointKey]


def remove_damage(scan: ThreadScan, target: CheckpointKey | None = None) -> DamageRemoved:
    """Return what is left of a thread without the damage of one checkpoint, or without any.

    Checkpoints whose delta channels need a removed one are removed with it: without it, they would silently be
    different.
    """
    rebuilder, thread = Rebuilder(scan, None), rows_of_scan(scan)
    checkpoints, writes = _damage(rebuilder, thread)
    if target is not None:
        checkpoints &= {target}
        writes = {key for key in writes if key[:2] == target}
    absent = _absent_parents(thread) if target is None else set()
    checkpoints = _with_dependents(rebuilder, checkpoints, absent | {key[:2] for key in writes})
    writes = {key for key in writes if key[:2] not in checkpoints}
    return DamageRemoved(thread, _left(thread, checkpoints, writes, absent), checkpoints, writes, absent)


def discard(scan: ThreadScan, target: CheckpointKey | None, nonce: int) -> Discarded:
    """Return what is removed if the damage of one checkpoint is discarded, or all damage. `nonce` is the new epoch.

    See `remove_damage`. Corrupt if names of channels or nodes are damaged and something is left that may need them.
    """
    thread, left, checkpoints, writes, absent = remove_damage(scan, target)
    if not (checkpoints or writes or absent):
        return Discarded([], [], None)
    if thread.names_damaged and not left.is_empty:
        raise Corrupt(
            f"names of channels or nodes of {scan.where} are damaged: nothing can be added to the thread. "
            "Restore it from a backup; `verify` lists what is damaged"
        )
    return Discarded(sorted(checkpoints), sorted(writes), _batch(scan, thread, left, checkpoints, writes, nonce))


def _damage(rebuilder: Rebuilder, thread: ThreadRows) -> tuple[set[CheckpointKey], set[TaskKey]]:
    """The checkpoints that are damaged themselves, and the damaged writes."""
    scan = rebuilder.scan
    users = [user for used_by in scan.needed_by.values() for user in used_by]
    checkpoints = {*thread.damaged, *(key for key, task in users if task is None)}
    writes = {*scan.broken_writes, *((*key, task) for key, task in users if task is not None)}
    return checkpoints, writes


def _with_dependents(
    rebuilder: Rebuilder, checkpoints: set[CheckpointKey], incomplete: set[CheckpointKey]
) -> set[CheckpointKey]:
    """These checkpoints, and those that are rebuilt from them, or from others that are incomplete."""
    removed, before = checkpoints, None
    while removed != before:
        before = removed
        gone = removed | incomplete
        removed = removed | {key for key in rebuilder.scan.records if rebuilder.needs_for_deltas(key) & gone}
    return removed


def _absent_parents(thread: ThreadRows) -> set[CheckpointKey]:
    """The parents that rows name and that do not exist."""
    parents = {(ns, record.row.parent) for (ns, _), record in thread.records.items()}
    return {(ns, id) for ns, id in parents if id is not None} - thread.records.keys() - thread.damaged.keys()


def _left(
    thread: ThreadRows, checkpoints: set[CheckpointKey], writes: set[TaskKey], absent: set[CheckpointKey]
) -> Survivors:
    kept = thread.records.keys() - checkpoints
    hidden = {key for key in kept if thread.records[key].row.hidden}
    intact = thread._replace(
        tasks={key: [task for task in tasks if task_key(task) not in writes] for key, tasks in thread.tasks.items()},
        damaged_writes={key: each for key, each in thread.damaged_writes.items() if key not in writes},
    )
    selection = PruneSelection(
        kept - hidden, lambda key, _: key not in checkpoints, hidden, dropped=checkpoints | absent
    )
    return find_survivors(intact, selection)


def _batch(
    scan: ThreadScan,
    thread: ThreadRows,
    left: Survivors,
    checkpoints: set[CheckpointKey],
    writes: Iterable[TaskKey],
    nonce: int,
) -> Batch:
    row, found = thread.head.row, scan.inspected
    assert row is not None
    on_removed = [task_key(task) for key in checkpoints for task in thread.tasks.get(key, ())]
    on_removed += [key for key in thread.damaged_writes if key[:2] in checkpoints]
    size = sum(size for _, _, size in found.item_sizes)
    size += sum(each.size for each in left.rows.values()) + sum(task.row.size for task in left.tasks.values())
    size += sum(each.row.size for each in left.damaged.values() if each.row is not None)
    size += sum(each.row.size for each in left.damaged_writes.values() if each.row is not None)
    is_intact = not (left.damaged or left.damaged_writes)
    return Batch(
        expect=(row.epoch, row.rev),
        thread=recount(thread, left)._replace(epoch=nonce, rev=row.rev + 1, bytes=size - row.bytes),
        changed_checkpoints=tuple(new for key, new in left.rows.items() if new != thread.records[key].row),
        removed_checkpoints=tuple(checkpoints),
        removed_writes=(*on_removed, *writes),
        removed_items=(*left.unused, *_indexed_labels_without_item(scan)) if is_intact else (),
        drops_thread=left.is_empty,
    )


def _indexed_labels_without_item(scan: ThreadScan) -> list[ItemRange]:
    """Labels that are missing, but still in the metadata index. Removing them removes their entries in it."""
    stored = {n for lane, n, _ in scan.inspected.item_sizes if lane == SHARED}
    return [ItemRange(SHARED, n, 1) for n in sorted({n for n, _ in scan.inspected.tags or ()} - stored)]
