"""Survivors: what remains of a thread when some of its checkpoints are pruned, or when a fork copies only some.

A checkpoint alone does not store its delta channels: they are rebuilt from ancestors, back to the nearest stored value.
Ancestors that a survivor needs for this are hidden instead of removed. Hidden checkpoints can be read by id and appear
nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from threadkeep.engine.commit import with_top
from threadkeep.engine.identity import CUBE
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import NAMES, SHARED, ItemRange
from threadkeep.engine.log.records import (
    CheckpointRecord,
    CheckpointRow,
    TaskWrites,
    ThreadRow,
    WriteEntry,
    pack_writes,
    reseal,
)
from threadkeep.engine.threads.delta_channels import delta_channels, parent_key
from threadkeep.engine.threads.status import status_of_checkpoint, status_of_writes, worse_status
from threadkeep.engine.threads.thread_rows import (
    CheckpointKey,
    DamagedCheckpoint,
    DamagedWrites,
    TaskKey,
    ThreadRows,
)


class PruneSelection(NamedTuple):
    """What to keep: the checkpoints that stay visible, and a test for each write by its checkpoint.

    Writes and checkpoints that delta channels are rebuilt from stay in addition; so do those in `hidden`. Damaged
    checkpoints stay, and damaged writes with them, except those of checkpoints in `dropped` and on them. `matching` is
    the number of checkpoints that match the metadata filter of the policy that selected, if it has one. `drops_empty`:
    whether a thread that has no checkpoints to remove is removed, too; it may have a description.
    """

    visible: set[CheckpointKey]
    keeps_write: Callable[[CheckpointKey, WriteEntry], bool]
    hidden: AbstractSet[CheckpointKey] = frozenset()
    dropped: AbstractSet[CheckpointKey] = frozenset()
    matching: int | None = None
    drops_empty: bool = False


class Survivors(NamedTuple):
    """What remains: rows as they will be stored, hidden ones included, and the items that nothing needs any more.

    `damaged` and `damaged_writes` stay as they are. As long as there are any, no item may be removed: which ones they
    refer to is not known.
    """

    visible: set[CheckpointKey]
    rows: dict[CheckpointKey, CheckpointRow]
    tasks: dict[TaskKey, TaskWrites]
    unused: tuple[ItemRange, ...]
    damaged: Mapping[CheckpointKey, DamagedCheckpoint] = {}
    damaged_writes: Mapping[TaskKey, DamagedWrites] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the thread remains."""
        return not (self.rows or self.tasks or self.damaged or self.damaged_writes)


def find_survivors(thread: ThreadRows, selection: PruneSelection) -> Survivors:
    """Return what a selection leaves of a thread."""
    needed = _needed_ancestors(thread, selection.visible)
    kept = selection.visible | needed.keys() | selection.hidden
    removed = (thread.records.keys() | selection.dropped) - kept
    rows = {key: _surviving_row(thread, key, removed, hidden=key not in selection.visible) for key in kept}
    tasks = _repack(thread, _surviving_writes(thread, selection, needed))
    unused = _unused_items(thread, kept, list(tasks.values()))
    damaged = {key: each for key, each in thread.damaged.items() if key not in selection.dropped}
    writes = {key: each for key, each in thread.damaged_writes.items() if key[:2] not in selection.dropped}
    return Survivors(selection.visible, rows, tasks, unused, damaged, writes)


def _needed_ancestors(thread: ThreadRows, visible: set[CheckpointKey]) -> dict[CheckpointKey, set[str]]:
    """The ancestors that survivors' delta channels are rebuilt from, each with the channels that need it."""
    deltas = delta_channels(thread.records, thread.tasks)
    needed: dict[CheckpointKey, set[str]] = {}
    for survivor in visible:
        key, visited = survivor, {survivor}
        without_value = deltas[key] - thread.records[key].slots.keys()
        while without_value:
            key = parent_key(thread.records[key])
            if key in visited or key not in thread.records:
                break
            visited.add(key)
            needed.setdefault(key, set()).update(without_value)
            without_value -= thread.records[key].slots.keys()
    return needed


def task_key(task: TaskWrites) -> TaskKey:
    """Return the key of some writes."""
    return (task.row.ns, task.row.checkpoint, task.row.task)


def _surviving_writes(
    thread: ThreadRows, selection: PruneSelection, needed: Mapping[CheckpointKey, set[str]]
) -> list[TaskWrites]:
    """The writes that the selection keeps, and those that delta channels are rebuilt from, whoever made them."""
    left = []
    for key, tasks in thread.tasks.items():
        channels = needed.get(key, set())
        for task in tasks:
            entries = {
                idx: entry
                for idx, entry in task.entries.items()
                if entry.channel in channels or selection.keeps_write(key, entry)
            }
            if entries:
                left.append(task._replace(entries=entries))
    return left


def _repack(thread: ThreadRows, left: Sequence[TaskWrites]) -> dict[TaskKey, TaskWrites]:
    """Writes by key. The row of a task that lost some of its writes is packed again."""
    numbers = {name: n for n, name in enumerate(thread.head.names)}
    names = thread.head.name_table()._replace(number=numbers.__getitem__)
    return {
        task_key(task): task._replace(row=pack_writes(task.row, task.entries, names))
        if len(task.entries) * 3 != len(task.row.index)
        else task
        for task in left
    }


def _surviving_row(
    thread: ThreadRows, key: CheckpointKey, removed: AbstractSet[CheckpointKey], *, hidden: bool
) -> CheckpointRow:
    """A row that stays. It loses a parent that is removed, but not one that never existed."""
    row = thread.records[key].row
    lost = row.parent is not None and parent_key(thread.records[key]) in removed
    changed = row._replace(parent=None if lost else row.parent, hidden=hidden)
    return row if changed == row else reseal(row, changed, thread.head.where, thread.head.family)


def _unused_items(thread: ThreadRows, kept: set[CheckpointKey], tasks: Sequence[TaskWrites]) -> tuple[ItemRange, ...]:
    """The items that no remaining row refers to. Names stay, because rows refer to them by number."""
    records = [thread.records[key] for key in kept]
    slots = [slot for record in records for slot in record.slots.values()]
    slots += [entry.slot for task in tasks for entry in task.entries.values()]
    used = [each for slot in slots for each in (*slot.ranges, *slot.refs())]
    used += [each for record in records for each in record.row.refs]
    used += [ItemRange(SHARED, record.row.labels, 1) for record in records]
    return itemlog.subtract((each for each in thread.stored if each.lane != NAMES), itemlog.union(used))


def recount(thread: ThreadRows, left: Survivors) -> ThreadRow:
    """Return the thread row with counters, status and newest checkpoint of what remains.

    Epoch, revision and bytes are unchanged. Damaged rows count as far as their columns say.
    """
    row = thread.head.row
    assert row is not None
    tops = [thread.records[key] for key in left.visible if key[0] == ""]
    top = max(tops, key=lambda record: record.row.id, default=None)
    tasks = list(left.tasks.values())
    rows_on = Counter(task.row.checkpoint for task in tasks if task.row.ns == "")
    rows_on.update(checkpoint for ns, checkpoint, _ in left.damaged_writes if ns == "")
    shown = [key for key, damaged in left.damaged.items() if damaged.is_visible]
    damaged_top = max((id for ns, id in shown if ns == ""), default="")
    newest = max(top.row.id if top else "", damaged_top)
    if not newest or newest != damaged_top:
        uncounted = row.top is None and row.top_writes is None
        row = with_top(row, top.row if top else None, _status(row, top, tasks), rows_on[newest])
        if not newest and uncounted:
            row = row._replace(top_writes=None)
    elif row.top != damaged_top:
        damaged_row = left.damaged[("", damaged_top)].row
        row = with_top(row, damaged_row, row.status, rows_on[newest])._replace(top=damaged_top)
    else:
        row = row._replace(top_writes=rows_on[newest])
    if not left.damaged_writes:
        early, early_status = _early_writes(thread, newest, tasks)
        counted = rows_on[early] if early is not None else None
        row = row._replace(early=early, early_status=early_status, early_writes=counted)
    writes = sum(len(task.entries) for task in tasks) + sum(each.writes for each in left.damaged_writes.values())
    return row._replace(checkpoints=len(left.visible) + len(shown), writes=writes)


def _status(row: ThreadRow, top: CheckpointRecord | None, tasks: Sequence[TaskWrites]) -> str:
    if top is None:
        return "idle"
    if row.key.kind == CUBE and top.row.id == row.top:
        return row.status  # the status of a cube thread does not follow from its checkpoint alone
    status = status_of_checkpoint(top)
    for task in tasks:
        if (task.row.ns, task.row.checkpoint) == ("", top.row.id):
            status = worse_status(status, status_of_writes(entry.channel for entry in task.entries.values()))
    return status


def _early_writes(thread: ThreadRows, top: str, tasks: Sequence[TaskWrites]) -> tuple[str | None, str | None]:
    """The greatest id after the top that has writes but no checkpoint yet, and the status that the writes give."""
    known = thread.records.keys() | thread.damaged.keys()
    early_tasks = [
        t for t in tasks if t.row.ns == "" and t.row.checkpoint > top and ("", t.row.checkpoint) not in known
    ]
    early = max((task.row.checkpoint for task in early_tasks), default=None)
    channels = [entry.channel for t in early_tasks if t.row.checkpoint == early for entry in t.entries.values()]
    return (early, status_of_writes(channels)) if early is not None else (None, None)
