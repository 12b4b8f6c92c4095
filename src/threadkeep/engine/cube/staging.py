"""Apply ops to a draft of a cube thread, one after the other, and build the batch that commits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep.engine.commit import new_row, next_batch, next_head
from threadkeep.engine.cube.channels import (
    ANSWERS,
    EVENTS,
    EXTRA,
    FOLDED_EVENTS,
    MESSAGES,
    PARENT_THREAD,
    PENDING,
    encode_parts,
    is_cleared,
    new_checkpoint_row,
    next_checkpoint_id,
    pack_cube_checkpoint,
    read_channel,
    status,
)
from threadkeep.engine.cube.events import APPENDED, CLAIMED, COMPLETED, RunEvent, RunLog, RunLogDraft
from threadkeep.engine.cube.ops import (
    CLAIMED_ALREADY,
    COMPLETED_ALREADY,
    NOT_CLAIMED,
    AnyOp,
    AppendMessages,
    ClaimRun,
    ClearAnswers,
    ClearPendingRequest,
    CompleteRun,
    EncodedMessage,
    MergeExtra,
    Refused,
    SaveAnswer,
    SetParent,
    SetPendingRequest,
)
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import MSGPACK, pack
from threadkeep.engine.log.itemlog import CHUNK, FIRST_CHANNEL, SHARED, Item, ItemId, ItemRange, new_tuple
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot, ThreadRow
from threadkeep.engine.requests import Batch, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head
from threadkeep.plan import Failure, Outcome, Reply

_FOLD_AT = 32
"""This many event items are stored again as one, so that a long run log is read in few rows."""
_METHODS = {
    AppendMessages: "_append_messages",
    SetParent: "_set_parent",
    MergeExtra: "_merge_extra",
    SetPendingRequest: "_set_pending",
    ClearPendingRequest: "_clear_pending",
    SaveAnswer: "_save_answer",
    ClearAnswers: "_clear_answers",
    ClaimRun: "_claim_run",
    CompleteRun: "_complete_run",
}


class CubeStaging:
    """The next state of a cube thread. `record` is its newest checkpoint; `run_log` is given if an op needs it.

    What is cached does not change before `next_head`.
    """

    def __init__(self, head: Head, record: CheckpointRecord | None, run_log: RunLog | None) -> None:
        self.head = head
        self._draft = Draft(head)
        self._draft.is_quick = True  # compressing a message took longer than anything but the commit
        self._row = head.row
        self._run_log = RunLogDraft(run_log) if run_log is not None else None
        self._before = record
        self._current = record.row if record else None
        self._slots = dict(record.slots) if record else {}
        self._own = record.own_metadata if record else {}
        self._changed = False
        self._values: dict[str, Any] = {}
        self._records: dict[str, CheckpointRecord] = {}
        self._new: set[str] = set()
        self._labels: dict[int, NewLabels] = {}
        self._runs: dict[str, None] = {}
        self._nonce = 0

    def take(self, op: AnyOp) -> Outcome:
        """Stage one op. An op that fails changes nothing: everything that can fail comes first."""
        try:
            return Reply(self.apply(op))
        except Exception as error:  # noqa: BLE001 - raised to the caller of that op
            return Failure(error)

    def apply(self, op: AnyOp) -> Any:
        """Stage one op and return its result; raise what makes it fail."""
        self._nonce = op.nonce
        return getattr(self, _METHODS[type(op)])(op)

    def _append_messages(self, op: AppendMessages) -> None:
        """Append messages that are new, in groups of the same run. Makes about 8 calls for one message."""
        run_log = self._required_run_log()
        log, stored, staged = run_log.log, run_log.log.ids, run_log.ids
        if op.nonce in log.nonces or op.nonce in run_log.nonces:
            return
        fresh: dict[str | int, EncodedMessage] = {}
        for n, each in enumerate(op.messages):
            if not each.id or op.keep_duplicates:
                fresh[n] = each
            elif each.id not in stored and each.id not in staged and each.id not in fresh:
                fresh[each.id] = each
        groups: list[list[EncodedMessage]] = []
        done: set[str] = set()
        for each in fresh.values():
            if groups and groups[-1][0].run == each.run:
                groups[-1].append(each)
                continue
            groups.append([each])
            run = each.run
            if run is not None and (known := run_log.runs.get(run) or log.runs.get(run)) and known.completed:
                done.add(run)
        if done:
            runs = ", ".join(map(repr, sorted(done)))
            raise Refused(COMPLETED_ALREADY, f"{self.head.where}: cannot append to completed run {runs}")
        for group in groups:
            run, is_user = group[0].run, group[0].is_user
            self._begin(op.time, run, new=run is None and is_user)
            elements, ids, _, _ = zip(*group, strict=True)
            items = self._append(MESSAGES, elements)
            nonce = 0 if all(ids) and not op.keep_duplicates else op.nonce
            self._add_event(new_tuple(RunEvent, (APPENDED, op.time, run, ids, items, nonce)))

    def _set_parent(self, op: SetParent) -> None:
        if self._current is None:
            self._begin(op.time, None, labels={PARENT_THREAD: op.parent})

    def _merge_extra(self, op: MergeExtra) -> None:
        extra = self._read(EXTRA) or {}
        self._set(op.time, EXTRA, {**extra, **op.extra})

    def _set_pending(self, op: SetPendingRequest) -> None:
        if op.pending is not None or self._read(PENDING) is not None:
            self._set(op.time, PENDING, list(op.pending) if op.pending is not None else None)

    def _clear_pending(self, op: ClearPendingRequest) -> bool:
        """Replace the request by the op's nonce, so that a repeated call knows that it cleared it."""
        pending = self._read(PENDING)
        if pending is not None and is_cleared(pending):
            return bool(pending[2] == op.nonce)
        if pending is None or pending[0].get("question_id") != op.question or pending[1] != op.run:
            return False
        self._set(op.time, PENDING, [None, None, op.nonce])
        return True

    def _save_answer(self, op: SaveAnswer) -> None:
        answers = self._read(ANSWERS) or {}
        self._set(op.time, ANSWERS, {**answers, op.run: {**answers.get(op.run, {}), op.question: op.answer}})

    def _clear_answers(self, op: ClearAnswers) -> None:
        answers = self._read(ANSWERS) or {}
        of_run = answers.get(op.run, {})
        removed = of_run.keys() if op.questions is None else of_run.keys() & set(op.questions)
        if removed:
            left = {question: answer for question, answer in of_run.items() if question not in removed}
            others = {run: each for run, each in answers.items() if run != op.run}
            self._set(op.time, ANSWERS, {**others, **({op.run: left} if left else {})} or None)

    def _claim_run(self, op: ClaimRun) -> None:
        run_log = self._required_run_log()
        if run_log.has_nonce(op.nonce):
            return
        if run_log.is_completed(op.run):
            raise Refused(COMPLETED_ALREADY, f"{self.head.where}: run {op.run!r} is already completed")
        if run_log.is_open(op.run) and not (op.timeout_ms is not None and self._idle_ms(op) >= op.timeout_ms):
            raise Refused(CLAIMED_ALREADY, f"{self.head.where}: run {op.run!r} is already claimed")
        self._begin(op.time, op.run)
        self._add_event(RunEvent(CLAIMED, op.time, op.run, nonce=op.nonce))

    def _idle_ms(self, op: ClaimRun) -> int:
        run = self._required_run_log().run(op.run)
        assert run is not None
        return op.time - run.touched

    def _complete_run(self, op: CompleteRun) -> None:
        run_log = self._required_run_log()
        if run_log.is_completed(op.run):
            return
        if not run_log.is_open(op.run):
            raise Refused(NOT_CLAIMED, f"{self.head.where}: run {op.run!r} was not claimed")
        self._begin(op.time, self._current.run if self._current else op.run)
        self._add_event(RunEvent(COMPLETED, op.time, op.run))

    def _required_run_log(self) -> RunLogDraft:
        if self._run_log is None:
            raise AssertionError("the run log was not read")
        return self._run_log

    def _read(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = read_channel(self.head, self._before, name)
        return self._values[name]

    def _set(self, time: int, name: str, value: Any) -> None:
        """Set the value of a channel; None removes it."""
        encoded = encode_parts(value) if value is not None else None  # can fail, so it comes before any change
        self._begin(time, self._current.run if self._current else None)
        self._values[name] = value
        if encoded is None:
            self._slots.pop(name, None)
        else:
            self._slots[name] = self._draft.store_value(name, encoded, self._slots.get(name))

    def _add_event(self, event: RunEvent) -> None:
        """Append an event to the run log and to its channel."""
        self._append(EVENTS, (self._required_run_log().add(event),))
        if self._slots[EVENTS].ranges[-1].length >= _FOLD_AT:
            self._fold()

    def _append(self, name: str, elements: Sequence[bytes]) -> int:
        """Append elements to a list channel and return the number of their items.

        Makes no call for one element after the last one of the lane, which is the usual case.
        """
        draft, slot = self._draft, self._slots.get(name)
        if len(elements) == 1 and slot is not None and slot.ranges and len(elements[0]) <= CHUNK:
            kind, tag, count, snapshot, inline, ranges, spill, covered = slot
            lane, start, length = ranges[-1]
            n = start + length
            if draft.names[lane - FIRST_CHANNEL] == name and n == draft.nexts[lane]:
                draft.nexts[lane] = n + 1
                draft.new_items[new_tuple(ItemId, (lane, n))] = new_tuple(Item, (elements[0], 1))
                ranges = (*ranges[:-1], new_tuple(ItemRange, (lane, start, length + 1)))
                self._slots[name] = new_tuple(Slot, (kind, tag, count + 1, snapshot, inline, ranges, spill, covered))
                return 1
        items = draft.append(name, elements)
        slot = slot or Slot(LIST, MSGPACK, 0, False, None)
        ranges = itemlog.add_to_ranges(slot.ranges, items)
        grown = slot._replace(ranges=ranges, elements=slot.elements + len(elements))
        self._slots[name] = draft.spill_ranges(grown, slot)
        return len(items)

    def _fold(self) -> None:
        """Store the last events, which take `_FOLD_AT` items, again as one item."""
        slot = self._slots[EVENTS]
        tail = slot.ranges[-1]
        if tail.lane != self._draft.lane(EVENTS):
            return
        items = [self._draft.new_items.get(item_id) or self.head.cache.get(item_id) for item_id in tail.ids()]
        elements = [item.data for item in items if item is not None and item.elements == 1]
        if len(elements) == tail.length:
            folded = self._draft.append(FOLDED_EVENTS, elements)
            self._slots[EVENTS] = slot._replace(ranges=itemlog.add_to_ranges(slot.ranges[:-1], folded))

    def _begin(self, time: int, run: str | None, *, new: bool = False, labels: dict[str, Any] | None = None) -> None:
        """Start a change: of the newest checkpoint, or of a new one if the run differs or `new` is set."""
        if self._row is None:
            self._row = new_row(self.head.key, time, self._nonce)
            self._draft.family = self._row.family
        if self._current is None or self._current.run != run or new:
            self._finish()
            before = self._current
            parent, label = (before.id, before.labels) if before else (None, self._share_labels(labels or {}))
            source = "run" if run is not None else "turn"
            self._current = new_checkpoint_row(
                next_checkpoint_id(before), parent, run, source=source, labels=label, time=time
            )
            self._own = {}
            self._new.add(self._current.id)
            if run is not None:
                self._runs[run] = None
        self._current = new_tuple(CheckpointRow, (*self._current[:7], time, *self._current[8:]))
        self._changed = True

    def _share_labels(self, labels: dict[str, Any]) -> int:
        n = self._draft.share(pack(labels))
        if ItemId(SHARED, n) in self._draft.new_items:
            self._labels[n] = NewLabels(n, metadata.tags(labels))
        return n

    def _finish(self) -> None:
        """Pack the current checkpoint, if it was changed."""
        if self._current is None or not self._changed:
            return
        record = pack_cube_checkpoint(self._current, self._slots, self._draft, self._own)
        self._records[record.row.id] = record
        self._current, self._changed = record.row, False

    def remove_lease(self) -> None:
        """Let the change remove the thread's lease, which has expired."""
        assert self._row is not None
        self._row = self._row._replace(lease=None)

    def batch(self) -> Batch | None:
        """Return the batch with all changes, or None if nothing changed."""
        self._finish()
        row, top = self._row, self._current
        if row is None or top is None or not self._records:
            self._cache_run_log()
            return None
        new: list[CheckpointRow] = []
        changed: list[CheckpointRow] = []
        grown = 0
        for id, record in self._records.items():
            grown += record[0].size
            (new if id in self._new else changed).append(record[0])
        if self._before is not None and self._before.row.id in self._records:
            grown -= self._before.row.size
        _, id, _, run, step, source, label, time, _, _, _ = top
        row = new_tuple(ThreadRow, (
            *row[:5], time, row.checkpoints + len(self._new), *row[7:9], id, run, step, source, self.new_status(),
            label, *row[15:19], 0, *row[20:],
        ))  # fmt: skip
        base = next_batch(self._draft, row, nonce=self._nonce, grown=grown)
        labels, runs = tuple(self._labels.values()), tuple(self._runs)
        return new_tuple(Batch, (*base[:3], tuple(new), tuple(changed), (), (), labels, runs, *base[9:]))

    def new_status(self) -> str:
        """Return the new status. It stays as it is if no op reads the run log: only those change it."""
        if self._run_log is None:
            return self._row.status if self._row is not None else "idle"
        return status(self._read(PENDING) if PENDING in self._slots else None, self._run_log)

    def next_head(self, batch: Batch) -> Head:
        """Return the head after the batch is committed."""
        self._cache_run_log()
        return next_head(self._draft, batch, self._records.values())

    def _cache_run_log(self) -> None:
        """Cache the run log with the new events, which are committed now, for the next change."""
        if self._run_log is not None and EVENTS in self._slots:
            self.head.cache.run_log = (self._slots[EVENTS].ranges, self._run_log.commit())
