"""What is left of a thread when some of its checkpoints go, or when only some are taken over into another thread.

Delta channels are not held by a checkpoint alone: their value is rebuilt from ancestors back to the nearest stored one.
Ancestors that a survivor needs for that are not removed but hidden: readable by id, absent from everything else.
"""

from __future__ import annotations

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
from threadkeep.engine.threads.status import of_checkpoint, of_writes, worse
from threadkeep.engine.threads.thread_rows import CheckpointPlace, ThreadRows

TaskPlace = tuple[str, str, str]
"""Namespace, checkpoint and task of some writes."""


class PruneSelection(NamedTuple):
    """What shall be left: visible checkpoints, and which writes of which place (an entry may still be needed)."""

    visible: set[CheckpointPlace]
    stays: Callable[[CheckpointPlace, WriteEntry], bool]


class Survivors(NamedTuple):
    """What is left: rows as they will be, those that delta channels need among them; and the items that nothing needs."""

    visible: set[CheckpointPlace]
    rows: dict[CheckpointPlace, CheckpointRow]
    tasks: dict[TaskPlace, TaskWrites]
    unused: tuple[ItemRange, ...]


def survivors(thread: ThreadRows, verdict: PruneSelection) -> Survivors:
    """What a verdict leaves of a thread."""
    needed = _needed(thread, verdict.visible)
    stay = verdict.visible | needed.keys()
    rows = {place: _left(thread, place, stay, hidden=place not in verdict.visible) for place in stay}
    tasks = _repacked(thread, _writes_left(thread, verdict, needed))
    return Survivors(verdict.visible, rows, tasks, _unused(thread, stay, list(tasks.values())))


def _needed(thread: ThreadRows, visible: set[CheckpointPlace]) -> dict[CheckpointPlace, set[str]]:
    """The ancestors that survivors' delta channels are rebuilt from, with the channels that they serve."""
    deltas = delta_channels(thread.records)
    needed: dict[CheckpointPlace, set[str]] = {}
    for survivor in visible:
        place, walked = survivor, {survivor}
        looking = deltas[place] - thread.records[place].slots.keys()
        while looking:
            place = _parent(thread.records[place])
            if place in walked or place not in thread.records:
                break
            walked.add(place)
            needed.setdefault(place, set()).update(looking)
            looking -= thread.records[place].slots.keys()
    return needed


def delta_channels(records: Mapping[CheckpointPlace, CheckpointRecord]) -> dict[CheckpointPlace, frozenset[str]]:
    """The delta channels of each checkpoint: metadata counts them, there or before, or a snapshot of them is held."""
    known: dict[CheckpointPlace, frozenset[str]] = {}
    for start in records:
        path: dict[CheckpointPlace, None] = {}
        place = start
        while place in records and place not in known and place not in path:
            path[place] = None
            place = _parent(records[place])
        names = known.get(place, frozenset())
        for passed in reversed(path):
            names |= _own_delta_channels(records[passed])
            known[passed] = names
    return known


def _own_delta_channels(record: CheckpointRecord) -> frozenset[str]:
    held = (name for name, slot in record.slots.items() if slot.snapshot)
    return metadata.delta_channels(record.own).union(held)


def _parent(record: CheckpointRecord) -> CheckpointPlace:
    return (record.row.ns, record.row.parent or "")


def at(task: TaskWrites) -> TaskPlace:
    """Where some writes stand."""
    return (task.row.ns, task.row.checkpoint, task.row.task)


def _writes_left(
    thread: ThreadRows, verdict: PruneSelection, needed: Mapping[CheckpointPlace, set[str]]
) -> list[TaskWrites]:
    """The writes that the verdict leaves, and those that delta channels are rebuilt from, whoever made them."""
    left = []
    for place, rows in thread.tasks.items():
        serving = needed.get(place, set())
        for task in rows:
            kept = {
                idx: entry
                for idx, entry in task.entries.items()
                if entry.channel in serving or verdict.stays(place, entry)
            }
            if kept:
                left.append(task._replace(entries=kept))
    return left


def _repacked(thread: ThreadRows, left: Sequence[TaskWrites]) -> dict[TaskPlace, TaskWrites]:
    """Writes by place; of tasks of which some went and some stay, the row is another."""
    numbers = {name: n for n, name in enumerate(thread.head.names)}
    names = thread.head.reading()._replace(number=numbers.__getitem__)
    return {
        at(task): task._replace(row=pack_writes(task.row, task.entries, names))
        if len(task.entries) * 3 != len(task.row.index)
        else task
        for task in left
    }


def _left(thread: ThreadRows, place: CheckpointPlace, stay: set[CheckpointPlace], *, hidden: bool) -> CheckpointRow:
    """A row that stays; it forgets a parent that goes, but not one that never was there."""
    row = thread.records[place].row
    parent = _parent(thread.records[place])
    lost = row.parent is not None and parent in thread.records and parent not in stay
    changed = row._replace(parent=None if lost else row.parent, hidden=hidden)
    return row if changed == row else reseal(row, changed, thread.head.where)


def _unused(thread: ThreadRows, stay: set[CheckpointPlace], tasks: Sequence[TaskWrites]) -> tuple[ItemRange, ...]:
    """The items that no row refers to after this. Names stay: their numbers are counted on."""
    records = [thread.records[place] for place in stay]
    used = [run for record in records for run in record.row.refs]
    used += [run for record in records for slot in record.slots.values() for run in slot.ranges]
    used += [
        run for task in tasks for entry in task.entries.values() for run in (*entry.slot.ranges, *entry.slot.refs())
    ]
    used += [ItemRange(SHARED, record.row.labels, 1) for record in records]
    return itemlog.minus((run for run in thread.stored if run.lane != NAMES), itemlog.union(used))


def counted(thread: ThreadRows, left: Survivors) -> ThreadRow:
    """The thread row with the catalogue's columns told anew; epoch, revision and bytes are as they were."""
    row = thread.head.row
    assert row is not None
    tops = [thread.records[place] for place in left.visible if place[0] == ""]
    top = max(tops, key=lambda record: record.row.id, default=None)
    tasks = list(left.tasks.values())
    early, waiting = _early(thread, top.row.id if top else "", tasks)
    writes = sum(len(task.entries) for task in tasks)
    row = with_top(row, top.row if top else None, _status(row, top, tasks))
    return row._replace(early=early, early_status=waiting, checkpoints=len(left.visible), writes=writes)


def _status(row: ThreadRow, top: CheckpointRecord | None, tasks: Sequence[TaskWrites]) -> str:
    if top is None:
        return "idle"
    if row.key.kind == CUBE and top.row.id == row.top:
        return row.status  # a talk's is not in its checkpoint alone
    status = of_checkpoint(top)
    for task in tasks:
        if (task.row.ns, task.row.checkpoint) == ("", top.row.id):
            status = worse(status, of_writes(entry.channel for entry in task.entries.values()))
    return status


def _early(thread: ThreadRows, top: str, tasks: Sequence[TaskWrites]) -> tuple[str | None, str | None]:
    """The greatest checkpoint after the top that has writes but is not there, and the status that they give."""
    waiting = [
        t for t in tasks if t.row.ns == "" and t.row.checkpoint > top and ("", t.row.checkpoint) not in thread.records
    ]
    early = max((task.row.checkpoint for task in waiting), default=None)
    channels = [entry.channel for t in waiting if t.row.checkpoint == early for entry in t.entries.values()]
    return (early, of_writes(channels)) if early is not None else (None, None)
