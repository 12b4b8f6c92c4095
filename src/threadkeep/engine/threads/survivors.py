"""Survivors: what remains of a thread when some of its checkpoints are pruned, or when a fork copies only some.

A checkpoint alone does not store its delta channels: they are rebuilt from ancestors, back to the nearest stored value.
Ancestors that a survivor needs for this are hidden instead of removed. Hidden checkpoints can be read by id and appear
nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.status import status_of_checkpoint, status_of_writes, worse_status
from threadkeep.engine.threads.thread_rows import CheckpointKey, ThreadRows

TaskKey = tuple[str, str, str]
"""Namespace, checkpoint id and task id of some writes."""


class PruneSelection(NamedTuple):
    """What to keep: the checkpoints that stay visible, and a test for each write by its checkpoint.

    Writes and checkpoints that delta channels are rebuilt from stay in addition.
    """

    visible: set[CheckpointKey]
    keeps_write: Callable[[CheckpointKey, WriteEntry], bool]


class Survivors(NamedTuple):
    """What remains: rows as they will be stored, hidden ones included, and the items that nothing needs any more."""

    visible: set[CheckpointKey]
    rows: dict[CheckpointKey, CheckpointRow]
    tasks: dict[TaskKey, TaskWrites]
    unused: tuple[ItemRange, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the thread remains."""
        return not self.rows and not self.tasks


def find_survivors(thread: ThreadRows, selection: PruneSelection) -> Survivors:
    """Return what a selection leaves of a thread."""
    needed = _needed_ancestors(thread, selection.visible)
    kept = selection.visible | needed.keys()
    rows = {key: _surviving_row(thread, key, kept, hidden=key not in selection.visible) for key in kept}
    tasks = _repack(thread, _surviving_writes(thread, selection, needed))
    return Survivors(selection.visible, rows, tasks, _unused_items(thread, kept, list(tasks.values())))


def _needed_ancestors(thread: ThreadRows, visible: set[CheckpointKey]) -> dict[CheckpointKey, set[str]]:
    """The ancestors that survivors' delta channels are rebuilt from, each with the channels that need it."""
    deltas = delta_channels(thread.records)
    needed: dict[CheckpointKey, set[str]] = {}
    for survivor in visible:
        key, visited = survivor, {survivor}
        without_value = deltas[key] - thread.records[key].slots.keys()
        while without_value:
            key = _parent_key(thread.records[key])
            if key in visited or key not in thread.records:
                break
            visited.add(key)
            needed.setdefault(key, set()).update(without_value)
            without_value -= thread.records[key].slots.keys()
    return needed


def delta_channels(records: Mapping[CheckpointKey, CheckpointRecord]) -> dict[CheckpointKey, frozenset[str]]:
    """Return the delta channels of each checkpoint: those that it or an ancestor counts, or has a snapshot of."""
    known: dict[CheckpointKey, frozenset[str]] = {}
    for start in records:
        path: dict[CheckpointKey, None] = {}
        key = start
        while key in records and key not in known and key not in path:
            path[key] = None
            key = _parent_key(records[key])
        names = known.get(key, frozenset())
        for passed in reversed(path):
            names |= _own_delta_channels(records[passed])
            known[passed] = names
    return known


def _own_delta_channels(record: CheckpointRecord) -> frozenset[str]:
    snapshots = (name for name, slot in record.slots.items() if slot.snapshot)
    return metadata.delta_channels(record.own_metadata).union(snapshots)


def _parent_key(record: CheckpointRecord) -> CheckpointKey:
    return (record.row.ns, record.row.parent or "")


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


def _surviving_row(thread: ThreadRows, key: CheckpointKey, kept: set[CheckpointKey], *, hidden: bool) -> CheckpointRow:
    """A row that stays. It loses a parent that is removed, but not one that never existed."""
    row = thread.records[key].row
    parent = _parent_key(thread.records[key])
    lost = row.parent is not None and parent in thread.records and parent not in kept
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

    Epoch, revision and bytes are unchanged.
    """
    row = thread.head.row
    assert row is not None
    tops = [thread.records[key] for key in left.visible if key[0] == ""]
    top = max(tops, key=lambda record: record.row.id, default=None)
    tasks = list(left.tasks.values())
    early, early_status = _early_writes(thread, top.row.id if top else "", tasks)
    rows_on = Counter(task.row.checkpoint for task in tasks if task.row.ns == "")
    row = with_top(row, top.row if top else None, _status(row, top, tasks), rows_on[top.row.id] if top else 0)
    return row._replace(
        early=early,
        early_status=early_status,
        early_writes=rows_on[early] if early is not None else None,
        checkpoints=len(left.visible),
        writes=sum(len(task.entries) for task in tasks),
    )


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
    early_tasks = [
        t for t in tasks if t.row.ns == "" and t.row.checkpoint > top and ("", t.row.checkpoint) not in thread.records
    ]
    early = max((task.row.checkpoint for task in early_tasks), default=None)
    channels = [entry.channel for t in early_tasks if t.row.checkpoint == early for entry in t.entries.values()]
    return (early, status_of_writes(channels)) if early is not None else (None, None)
