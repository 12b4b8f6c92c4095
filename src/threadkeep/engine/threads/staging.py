"""Staging: apply ops to a draft of a thread, one after the other, and make the batch that commits them.

Each op sees the changes of those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from threadkeep.engine.commit import new_row, next_batch, next_head, with_top
from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.itemlog import SHARED, ItemId
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
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head
from threadkeep.engine.threads.ops import Op, Put, PutWrites
from threadkeep.engine.threads.status import status_of_checkpoint, status_of_writes, worse_status
from threadkeep.plan import Failure, Outcome, Reply


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
        self._nonce = op.nonce
        try:
            if isinstance(op, PutWrites):
                self._put_writes(op, self._thread(op))
            else:
                self._put(op, self._thread(op), self._values(op))
        except Exception as error:  # noqa: BLE001 - the caller of this op gets it
            return Failure(error)
        return Reply()

    def _thread(self, op: Op) -> ThreadRow:
        """The thread row at this point; a new thread starts below revision 0."""
        if self._row is not None:
            return self._row
        row = new_row(self.head.key, op.time, op.nonce)
        self._draft.family = row.family
        return row

    def _find(self, ns: str, id: str | None) -> CheckpointRecord | None:
        if id is None:
            return None
        staged = self._records.get((ns, id)) or self.head.recent.get((ns, id))
        if staged is None and (ns, id) in self._known:
            return self._known[(ns, id)].record
        return staged

    def _values(self, op: Put) -> dict[str, Parts | Slot]:
        """Each channel's value: the parent's slot if it has the same version, else encoded parts.

        Never found by version alone: integer versions come again on other branches.
        """
        if op.stored_slots is not None:
            return dict(op.stored_slots)
        parent = self._find(op.ns, op.parent)
        values: dict[str, Parts | Slot] = {}
        for name, value in op.values.items():
            if name in op.encoded:
                values[name] = op.encoded[name]
            elif parent is not None and name in parent.slots and _same_version(parent, op, name):
                values[name] = parent.slots[name]
            else:
                values[name] = op.encoded[name] = op.codec.encode(value)
        if op.inherits and parent is not None:
            values.update(_inherited_slots(op, parent))
        return values

    def _put(self, op: Put, thread: ThreadRow, values: dict[str, Parts | Slot]) -> None:
        parent, before = self._find(op.ns, op.parent), self._find(op.ns, op.id)
        if before is not None and op.only_new:
            return
        like = parent or before
        slots = {
            name: value
            if isinstance(value, Slot)
            else self._draft.store_value(name, value, like.slots.get(name) if like else None)
            for name, value in values.items()
        }
        row = CheckpointRow(
            ns=op.ns,
            id=op.id,
            parent=op.parent,
            run=op.metadata.run,
            step=op.metadata.step,
            source=op.metadata.source,
            labels=self._share_labels(op),
            time=op.time,
            hidden=op.hidden,
            refs=(),
            body=b"",
        )
        record = CheckpointRecord(row, op.fields, op.versions, op.seen, slots, op.metadata.own, op.rest)
        record = record._replace(row=pack_checkpoint(row, record, self._draft.name_table(), self._draft.share))
        self._add_run(op.metadata.run)
        self._store(thread, record, before)

    def _share_labels(self, op: Put) -> int:
        n = self._draft.share(op.labels)
        if ItemId(SHARED, n) in self._draft.new_items:
            self._labels[n] = NewLabels(n, metadata.tags(op.metadata.labels))
        return n

    def _store(self, thread: ThreadRow, record: CheckpointRecord, before: CheckpointRecord | None) -> None:
        """Add a checkpoint, or replace the one with the same id, and update the thread row."""
        row, key = record.row, (record.row.ns, record.row.id)
        if before is None:
            self._new.add(key)
        self._bytes += row.size - (before.row.size if before else 0)
        self._records[key] = record
        more = (not row.hidden) - (before is not None and not before.row.hidden)
        thread = thread._replace(checkpoints=thread.checkpoints + more, updated=max(thread.updated, row.time))
        is_top = row.ns == "" and not row.hidden and (thread.top is None or row.id >= thread.top)
        self._row = self._with_top(thread, record) if is_top else thread

    def _with_top(self, thread: ThreadRow, record: CheckpointRecord) -> ThreadRow:
        """The thread row when this checkpoint is the newest of the root namespace.

        Nobody knows of writes on it that are not early, were not loaded and are not staged here.
        """
        row, early = record.row, thread.early == record.row.id
        known = self._known.get((row.ns, row.id), KnownCheckpoint(None, {}))
        status = status_of_checkpoint(record)
        if early and thread.early_status:
            status = worse_status(status, thread.early_status)
        staged = {task: found for (*key, task), found in self._tasks.items() if key == [row.ns, row.id]}
        tasks = known.tasks | staged
        writes = thread.top_writes if thread.top == row.id else thread.early_writes if early else len(tasks)
        for found in tasks.values():
            status = worse_status(status, status_of_writes(entry.channel for entry in found.entries.values()))
        thread = with_top(thread, row, status, writes)
        if thread.early is None or thread.early > row.id:
            return thread
        return thread._replace(early=None, early_status=None, early_writes=None)

    def _put_writes(self, op: PutWrites, thread: ThreadRow) -> None:
        """Add a task's writes: of a regular one the first stays, of a special one (idx < 0) the last."""
        key = (op.ns, op.checkpoint, op.task)
        before = self._tasks.get(key) or self._known_task(op)
        entries = dict(before.entries) if before else {}
        for idx, channel, parts in op.writes:
            if before is None or idx not in before.entries or (idx < 0 and not op.only_new):
                written = self._find(op.ns, op.checkpoint) if parts.joined else None
                like = written.slots.get(channel) if written else None
                slot = self._draft.store_value(channel, parts, like, early=True)
                entries[idx] = WriteEntry(channel, slot, parts.size, (op.path, op.run, op.time))
        if not entries or (before is not None and entries == before.entries):
            return
        row = WriteRow(op.ns, op.checkpoint, op.task, op.path, op.run, op.time, (), (), b"")
        row = pack_writes(row, entries, self._draft.name_table())
        self._tasks[key] = TaskWrites(row, entries)
        if before is None:
            self._new.add(key)
        self._bytes += row.size - (before.row.size if before else 0)
        self._add_run(op.run)
        more = len(entries) - (len(before.entries) if before else 0)
        thread = thread._replace(writes=thread.writes + more, updated=max(thread.updated, op.time))
        self._row = _with_writes(thread, op, is_new=before is None)

    def _known_task(self, op: PutWrites) -> TaskWrites | None:
        known = self._known.get((op.ns, op.checkpoint))
        return known.tasks.get(op.task) if known else None

    def _add_run(self, run: str | None) -> None:
        if run is not None:
            self._runs[run] = None

    def batch(self) -> Batch | None:
        """Return the complete change; None if nothing changes."""
        if self._row is None or not (self._records or self._tasks):
            return None
        return next_batch(self._draft, self._row, nonce=self._nonce, grown=self._bytes)._replace(
            new_checkpoints=tuple(r.row for key, r in self._records.items() if key in self._new),
            changed_checkpoints=tuple(r.row for key, r in self._records.items() if key not in self._new),
            new_writes=tuple(t.row for key, t in self._tasks.items() if key in self._new),
            changed_writes=tuple(t.row for key, t in self._tasks.items() if key not in self._new),
            labels=tuple(self._labels.values()),
            runs=tuple(self._runs),
        )

    def next_head(self, batch: Batch) -> Head:
        """Return the head after the batch was committed."""
        return next_head(self._draft, batch, [*_records(self._known), *self._records.values()])


def _records(known: Mapping[tuple[str, str], KnownCheckpoint]) -> Iterable[CheckpointRecord]:
    return (found.record for found in known.values() if found.record is not None)


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


def _with_writes(thread: ThreadRow, op: PutWrites, *, is_new: bool) -> ThreadRow:
    """The thread row with the status after writes, and the number of their rows; `is_new` is whether theirs is new.

    Writes on the newest root checkpoint count at once; writes on one that does not exist yet count when it is put.
    """
    status = status_of_writes(channel for _, channel, _ in op.writes)
    if op.ns != "":
        return thread
    if op.checkpoint == thread.top:
        count = None if thread.top_writes is None else thread.top_writes + is_new
        return thread._replace(status=worse_status(thread.status, status), top_writes=count)
    if op.checkpoint < max(thread.top or "", thread.early or ""):
        return thread
    before, count = (thread.early_status, thread.early_writes) if thread.early == op.checkpoint else (None, 0)
    return thread._replace(
        early=op.checkpoint,
        early_status=worse_status(before or "idle", status),
        early_writes=None if count is None else count + is_new,
    )
