"""Staging: apply ops to a draft of a thread, one after the other, and make the batch that commits them.

Each op sees the changes of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from threadkeep.engine.commit import new_row, next_batch, next_head
from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.itemlog import SHARED, new_tuple
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.records import (
    CheckpointRecord,
    CheckpointRow,
    Slot,
    TaskWrites,
    ThreadRow,
    WriteEntry,
    WriteRow,
    pack_checkpoint,
    pack_writes,
)
from threadkeep.engine.requests import Batch, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.delta_channels import counted_channels
from threadkeep.engine.threads.draft import MAX_INLINE, Draft
from threadkeep.engine.threads.heads import Head
from threadkeep.engine.threads.ops import Op, Put, PutWrites
from threadkeep.engine.threads.status import status_of_writes, triggered_channels, worse_status
from threadkeep.plan import Failure, Outcome, Reply

_channel = itemgetter(1)


class KnownCheckpoint(NamedTuple):
    """What a read returned of one checkpoint; `record` is None if it does not exist."""

    record: CheckpointRecord | None
    tasks: dict[str, TaskWrites]


class CheckpointStaging:
    """The next state of a thread: its new and changed rows, its draft, and its thread row."""

    def __init__(self, head: Head, known: Mapping[tuple[str, str], KnownCheckpoint]) -> None:
        self.head = head
        self._known = known
        self._draft = Draft(head)
        self._row = head.row
        self._records: dict[tuple[str, str], CheckpointRecord] = {}
        self._tasks: dict[tuple[str, str, str], TaskWrites] = {}
        self._new: set[tuple[str, ...]] = set()
        self._labels: dict[int, NewLabels] = {}
        self._runs: dict[str, None] = {}
        self._bytes = 0
        self._nonce = 0

    def take(self, op: Op) -> Outcome:
        """Stage one op. Encoding and packing, which can fail, come before any row changes."""
        try:
            self.apply(op)
        except Exception as error:  # noqa: BLE001 - the caller of this op gets it
            return Failure(error)
        return Reply()

    def apply(self, op: Op) -> None:
        """Stage one op; raise what makes it fail."""
        self._nonce = op.nonce
        thread = self._row
        if thread is None:  # a new thread starts below revision 0
            thread = new_row(self.head.key, op.time, op.nonce)
            self._draft.family = thread.family
        if isinstance(op, PutWrites):
            self._put_writes(op, thread)
        else:
            self._put(op, thread)

    def _find(self, ns: str, id: str | None) -> CheckpointRecord | None:
        if id is None:
            return None
        staged = self._records.get((ns, id)) or self.head.recent.get((ns, id))
        if staged is None and (ns, id) in self._known:
            return self._known[(ns, id)].record
        return staged

    def _put(self, op: Put, thread: ThreadRow) -> None:
        """Add a checkpoint, or replace the one with the same id. Makes about 12 calls, and those of its values."""
        ns, id = op.ns, op.id
        parent, before = self._find(ns, op.parent), self._find(ns, id)
        values = _values(op, parent)
        if before is not None and op.only_new:
            return
        draft, like = self._draft, parent or before
        slots: dict[str, Slot] = {}
        for name, value in values.items():
            if isinstance(value, Slot):
                slots[name] = value
            elif value[0] == WHOLE and len(value[2][0]) <= MAX_INLINE and not value[3]:  # as `Draft.store_value`
                slots[name] = new_tuple(Slot, (WHOLE, value[1], 1, False, value[2][0], (), (), 0))
            else:
                slots[name] = draft.store_value(name, value, like.slots.get(name) if like is not None else None)
        source, step, run, labels, own = op.metadata
        n = draft.share(op.labels)
        if (SHARED, n) in draft.new_items:
            self._labels[n] = NewLabels(n, metadata.tags(labels))
        row = new_tuple(CheckpointRow, (ns, id, op.parent, run, step, source, n, op.time, op.hidden, (), b""))
        record = new_tuple(CheckpointRecord, (row, op.fields, op.versions, op.seen, slots, own, op.rest))
        row = pack_checkpoint(row, record, draft.name_table(), draft.share)
        record = new_tuple(CheckpointRecord, (row, *record[1:]))
        if run is not None:
            self._runs[run] = None
        if before is None:
            self._new.add((ns, id))
        self._bytes += row.size - (before.row.size if before is not None else 0)
        self._records[(ns, id)] = record
        more = (not row.hidden) - (before is not None and not before.row.hidden)
        is_top = ns == "" and not row.hidden and (thread.top is None or id >= thread.top)
        changes = self._top(thread, record) if is_top else {}
        changes["checkpoints"], changes["updated"] = thread.checkpoints + more, max(thread.updated, row.time)
        self._row = new_tuple(ThreadRow, map(changes.get, ThreadRow._fields, thread))

    def _top(self, thread: ThreadRow, record: CheckpointRecord) -> dict[str, Any]:
        """What changes in the thread row when this checkpoint is the newest of the root namespace.

        Nobody knows of writes on it that are not early, were not loaded and are not staged here.
        """
        row, early = record.row, thread.early == record.row.id
        status = "pending" if triggered_channels(record) else "idle"
        if early and thread.early_status:
            status = worse_status(status, thread.early_status)
        tasks = self._tasks_of(row) if self._known or self._tasks else {}
        for found in tasks.values():
            status = worse_status(status, status_of_writes(entry.channel for entry in found.entries.values()))
        writes = thread.top_writes if thread.top == row.id else thread.early_writes if early else len(tasks)
        top: dict[str, Any] = {
            "top": row.id, "run": row.run, "step": row.step, "source": row.source, "labels": row.labels,
            "status": status, "top_writes": writes,
        }  # fmt: skip
        if thread.early is None or thread.early > row.id:
            return top
        return {**top, "early": None, "early_status": None, "early_writes": None}

    def _tasks_of(self, row: CheckpointRow) -> dict[str, TaskWrites]:
        known = self._known.get((row.ns, row.id), KnownCheckpoint(None, {}))
        return known.tasks | {task: found for (*key, task), found in self._tasks.items() if key == [row.ns, row.id]}

    def _put_writes(self, op: PutWrites, thread: ThreadRow) -> None:
        """Add a task's writes: of a regular one the first stays, of a special one (idx < 0) the last.

        Makes about 10 calls, and those of its values.
        """
        key = (op.ns, op.checkpoint, op.task)
        before = self._tasks.get(key) or (self._known_task(op) if self._known else None)
        entries = dict(before.entries) if before is not None else {}
        draft, origin = self._draft, (op.path, op.run, op.time)
        for idx, channel, parts in op.writes:
            if before is None or idx not in before.entries or (idx < 0 and not op.only_new):
                if parts[0] == WHOLE and len(parts[2][0]) <= MAX_INLINE and not parts[3]:
                    slot = new_tuple(Slot, (WHOLE, parts[1], 1, False, parts[2][0], (), (), 0))
                else:
                    written = self._find(op.ns, op.checkpoint) if parts[4] else None
                    like = written.slots.get(channel) if written else None
                    slot = draft.store_value(channel, parts, like, early=True)
                entries[idx] = new_tuple(WriteEntry, (channel, slot, sum(map(len, parts[2])), origin))
        if not entries or (before is not None and entries == before.entries):
            return
        row = new_tuple(WriteRow, (*key, *origin, (), (), b""))
        row = pack_writes(row, entries, draft.name_table())
        self._tasks[key] = new_tuple(TaskWrites, (row, entries))
        if before is None:
            self._new.add(key)
        self._bytes += row.size - (before.row.size if before is not None else 0)
        if op.run is not None:
            self._runs[op.run] = None
        more = len(entries) - (len(before.entries) if before is not None else 0)
        changes = _after_writes(thread, op, is_new=before is None)
        changes["writes"], changes["updated"] = thread.writes + more, max(thread.updated, op.time)
        self._row = new_tuple(ThreadRow, map(changes.get, ThreadRow._fields, thread))

    def _known_task(self, op: PutWrites) -> TaskWrites | None:
        known = self._known.get((op.ns, op.checkpoint))
        return known.tasks.get(op.task) if known else None

    def remove_lease(self) -> None:
        """Let the change remove the thread's lease, which has expired."""
        assert self._row is not None
        self._row = self._row._replace(lease=None)

    def batch(self) -> Batch | None:
        """Return the complete change; None if nothing changes."""
        if self._row is None or not (self._records or self._tasks):
            return None
        checkpoints: tuple[list[CheckpointRow], list[CheckpointRow]] = ([], [])
        for key, record in self._records.items():
            checkpoints[key not in self._new].append(record.row)
        writes: tuple[list[WriteRow], list[WriteRow]] = ([], [])
        for task, found in self._tasks.items():
            writes[task not in self._new].append(found.row)
        base = next_batch(self._draft, self._row, nonce=self._nonce, grown=self._bytes)
        added = (*map(tuple, checkpoints), *map(tuple, writes), tuple(self._labels.values()), tuple(self._runs))
        return new_tuple(Batch, (*base[:3], *added, *base[9:]))

    def next_head(self, batch: Batch) -> Head:
        """Return the head after the batch was committed."""
        known = [found.record for found in self._known.values() if found.record is not None] if self._known else []
        return next_head(self._draft, batch, (*known, *self._records.values()))


def _values(op: Put, parent: CheckpointRecord | None) -> dict[str, Parts | Slot]:
    """Return each channel's value: the parent's slot if it has the same version, else encoded parts.

    Never found by version alone: integer versions come again on other branches.
    """
    if op.stored_slots is not None:
        return dict(op.stored_slots)
    values: dict[str, Parts | Slot] = {}
    for name, value in op.values.items():
        encoded = op.encoded.get(name)
        if encoded is None and parent is not None and name in parent.slots and _same_version(parent, op, name):
            encoded = parent.slots[name]
        elif encoded is None:
            encoded = op.encoded[name] = op.codec.encode(value)
        values[name] = encoded
    if op.inherits and parent is not None and not parent.slots.keys() <= op.values.keys():
        values.update(_inherited_slots(op, parent))
    return values


def _inherited_slots(op: Put, parent: CheckpointRecord) -> dict[str, Slot]:
    """The parent's slots of channels that have no value here, are not new and have the parent's version.

    Delta channels are excluded: without a value they are rebuilt from ancestors and their writes.
    """
    return {
        name: slot
        for name, slot in parent.slots.items()
        if name not in op.values
        and name not in op.new_versions
        and _same_version(parent, op, name)
        and not slot.snapshot
        and name not in counted_channels(op.metadata.own)
        and name not in counted_channels(parent.own_metadata)
    }


def _same_version(parent: CheckpointRecord, op: Put, name: str) -> bool:
    if name not in op.versions or name not in parent.versions:
        return False
    ours, theirs = op.versions[name], parent.versions[name]
    return type(ours) is type(theirs) and bool(ours == theirs)


def _after_writes(thread: ThreadRow, op: PutWrites, *, is_new: bool) -> dict[str, Any]:
    """What writes change in the thread row: the status, and the number of their rows; `is_new` is whether theirs is.

    Writes on the newest root checkpoint count at once; writes on one that does not exist yet count when it is put.
    """
    if op.ns != "":
        return {}
    status = status_of_writes(map(_channel, op.writes))
    if op.checkpoint == thread.top:
        count = None if thread.top_writes is None else thread.top_writes + is_new
        worse = status if status == thread.status else worse_status(thread.status, status)
        return {"status": worse, "top_writes": count}
    if op.checkpoint < max(thread.top or "", thread.early or ""):
        return {}
    before, count = (thread.early_status, thread.early_writes) if thread.early == op.checkpoint else (None, 0)
    return {
        "early": op.checkpoint,
        "early_status": worse_status(before or "idle", status),
        "early_writes": None if count is None else count + is_new,
    }
