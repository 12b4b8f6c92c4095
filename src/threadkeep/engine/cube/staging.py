"""Staging: ops taken into a draft of a talk one after the other, and the batch that they make."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from threadkeep.engine.commit import new_row, next_batch, next_head, with_top
from threadkeep.engine.cube.channels import (
    ANSWERS,
    EVENTS,
    EXTRA,
    FOLDED_EVENTS,
    MESSAGES,
    PARENT_THREAD,
    PENDING,
    after,
    checkpoint,
    is_cleared,
    encode_parts,
    status,
    value,
)
from threadkeep.engine.cube.events import APPENDED, CLAIMED, COMPLETED, RunEvent, RunLog
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
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot
from threadkeep.engine.requests import Batch, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head
from threadkeep.plan import Failure, Outcome, Reply

_FOLD_AT = 32
"""So many items of events become one: a long ledger is read in few rows."""


_METHODS = {
    AppendMessages: "_append", SetParent: "_adopt", MergeExtra: "_merge", SetPendingRequest: "_ask", ClearPendingRequest: "_settle", SaveAnswer: "_answer", ClearAnswers: "_forget",
    ClaimRun: "_claim", CompleteRun: "_complete",
}  # fmt: skip


class CubeStaging:
    """The next state of a talk. `record` is its newest checkpoint; `ledger` is there if an op needs it."""

    def __init__(self, head: Head, record: CheckpointRecord | None, ledger: RunLog | None) -> None:
        self.head = head
        self._draft = Draft(head)
        self._row = head.row
        self._ledger = ledger
        self._before = record
        self._at = record.row if record else None
        self._slots = dict(record.slots) if record else {}
        self._own = record.own if record else {}
        self._changed = False
        self._values: dict[str, Any] = {}
        self._records: dict[str, CheckpointRecord] = {}
        self._new: set[str] = set()
        self._labels: dict[int, NewLabels] = {}
        self._runs: dict[str, None] = {}
        self._nonce = 0

    def take(self, op: AnyOp) -> Outcome:
        """Stage one op; what can fail comes before any change."""
        self._nonce = op.nonce
        try:
            return Reply(getattr(self, _METHODS[type(op)])(op))
        except Exception as error:  # noqa: BLE001 - the caller of that op gets it
            return Failure(error)

    def _append(self, op: AppendMessages) -> None:
        ledger = self._known_ledger()
        if op.nonce in ledger.draws:
            return
        fresh: dict[str | int, EncodedMessage] = {}
        for n, each in enumerate(op.messages):
            if not each.id or op.keep_duplicates:
                fresh[n] = each
            elif each.id not in ledger.ids:
                fresh.setdefault(each.id, each)
        done = sorted({each.run for each in fresh.values() if each.run is not None and ledger.is_completed(each.run)})
        if done:
            raise Refused(COMPLETED_ALREADY, f"{self.head.where}: append to completed run {', '.join(map(repr, done))}")
        for group in _group_by_run(fresh.values()):
            self._begin(op.time, group[0].run, anew=group[0].run is None and group[0].is_user)
            items = self._draft.append(MESSAGES, [each.data for each in group])
            self._extend(MESSAGES, items, len(group))
            ids = tuple(each.id for each in group)
            known_again = all(ids) and not op.keep_duplicates
            self._tell(RunEvent(APPENDED, op.time, group[0].run, ids, len(items), 0 if known_again else op.nonce))

    def _adopt(self, op: SetParent) -> None:
        if self._at is None:
            self._begin(op.time, None, labels={PARENT_THREAD: op.parent})

    def _merge(self, op: MergeExtra) -> None:
        extra = self._read(EXTRA) or {}
        self._set(op.time, EXTRA, {**extra, **op.extra})

    def _ask(self, op: SetPendingRequest) -> None:
        if op.pending is not None or self._read(PENDING) is not None:
            self._set(op.time, PENDING, list(op.pending) if op.pending is not None else None)

    def _settle(self, op: ClearPendingRequest) -> bool:
        """What is left says who settled it."""
        pending = self._read(PENDING)
        if pending is not None and is_cleared(pending):
            return bool(pending[2] == op.nonce)
        if pending is None or pending[0].get("question_id") != op.question or pending[1] != op.run:
            return False
        self._set(op.time, PENDING, [None, None, op.nonce])
        return True

    def _answer(self, op: SaveAnswer) -> None:
        answers = self._read(ANSWERS) or {}
        self._set(op.time, ANSWERS, {**answers, op.run: {**answers.get(op.run, {}), op.question: op.answer}})

    def _forget(self, op: ClearAnswers) -> None:
        answers = self._read(ANSWERS) or {}
        held = answers.get(op.run, {})
        gone = held.keys() if op.questions is None else held.keys() & set(op.questions)
        if gone:
            left = {question: answer for question, answer in held.items() if question not in gone}
            others = {run: each for run, each in answers.items() if run != op.run}
            self._set(op.time, ANSWERS, {**others, **({op.run: left} if left else {})} or None)

    def _claim(self, op: ClaimRun) -> None:
        ledger = self._known_ledger()
        if op.nonce in ledger.draws:
            return
        if ledger.is_completed(op.run):
            raise Refused(COMPLETED_ALREADY, f"{self.head.where}: run {op.run!r} was completed already")
        if op.run in ledger.open and not (op.patience is not None and self._idle(op) >= op.patience):
            raise Refused(CLAIMED_ALREADY, f"{self.head.where}: run {op.run!r} is under way")
        self._begin(op.time, op.run)
        self._tell(RunEvent(CLAIMED, op.time, op.run, nonce=op.nonce))

    def _idle(self, op: ClaimRun) -> int:
        return op.time - self._known_ledger().runs[op.run].touched

    def _complete(self, op: CompleteRun) -> None:
        ledger = self._known_ledger()
        if ledger.is_completed(op.run):
            return
        if op.run not in ledger.open:
            raise Refused(NOT_CLAIMED, f"{self.head.where}: run {op.run!r} was not claimed")
        self._begin(op.time, self._at.run if self._at else op.run)
        self._tell(RunEvent(COMPLETED, op.time, op.run))

    def _known_ledger(self) -> RunLog:
        if self._ledger is None:
            raise AssertionError("the ledger was not read")
        return self._ledger

    def _read(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = value(self.head, self._before, name)
        return self._values[name]

    def _set(self, time: int, name: str, value: Any) -> None:
        """Let a channel hold another value; None removes it."""
        placed = encode_parts(value) if value is not None else None  # may fail, before anything changes
        self._begin(time, self._at.run if self._at else None)
        self._values[name] = value
        if placed is None:
            self._slots.pop(name, None)
        else:
            self._slots[name] = self._draft.place(name, placed, self._slots.get(name))

    def _tell(self, event: RunEvent) -> None:
        """Write an event into the ledger."""
        ledger = self._known_ledger()
        items = self._draft.append(EVENTS, [ledger.pack(event)])
        ledger.add(event)
        self._extend(EVENTS, items, 1)
        self._fold()

    def _extend(self, name: str, items: Iterable[ItemId], elements: int) -> None:
        """Let a list channel go on with these items."""
        slot = self._slots.get(name) or Slot(LIST, MSGPACK, 0, False, None)
        grown = slot._replace(ranges=itemlog.add_to_ranges(slot.ranges, items), elements=slot.elements + elements)
        self._slots[name] = self._draft.spilled(grown, slot)

    def _fold(self) -> None:
        """Store the last events again, together, when they are many items."""
        slot = self._slots[EVENTS]
        tail = slot.ranges[-1]
        if tail.length < _FOLD_AT or tail.lane != self._draft.lane(EVENTS):
            return
        held = [self._draft.new_items.get(at) or self.head.cache.get(at) for at in tail.ids()]
        elements = [item.data for item in held if item is not None and item.elements == 1]
        if len(elements) == tail.length:
            folded = self._draft.append(FOLDED_EVENTS, elements)
            self._slots[EVENTS] = slot._replace(ranges=itemlog.add_to_ranges(slot.ranges[:-1], folded))

    def _begin(self, time: int, run: str | None, *, anew: bool = False, labels: dict[str, Any] | None = None) -> None:
        """Change the newest checkpoint from here on, or begin another, if this is another run."""
        if self._row is None:
            self._row = new_row(self.head.key, time, self._nonce)
        if self._at is None or self._at.run != run or anew:
            self._finish()
            before = self._at
            self._at = CheckpointRow(
                ns="", id=after(before), parent=before.id if before else None, run=run, step=None,
                source="run" if run is not None else "turn", labels=before.labels if before else self._label(labels or {}),
                time=time, hidden=False, refs=(), body=b"",
            )  # fmt: skip
            self._own = {}
            self._new.add(self._at.id)
            if run is not None:
                self._runs[run] = None
        self._at = self._at._replace(time=time)
        self._changed = True

    def _label(self, labels: dict[str, Any]) -> int:
        n = self._draft.share(pack(labels))
        if ItemId(SHARED, n) in self._draft.new_items:
            self._labels[n] = NewLabels(n, metadata.tags(labels))
        return n

    def _finish(self) -> None:
        """Pack the checkpoint that was being changed."""
        if self._at is None or not self._changed:
            return
        record = checkpoint(self._at, self._slots, self._draft, self._own)
        self._records[record.row.id] = record
        self._at, self._changed = record.row, False

    def batch(self) -> Batch | None:
        """The change as a whole, or None if there is none."""
        self._finish()
        if self._row is None or self._at is None or not self._records:
            self._give_back()
            return None
        rows = [record.row for record in self._records.values()]
        replaced = self._before.row.size if self._before and self._before.row.id in self._records else 0
        thread = with_top(self._row, self._at, self._status())._replace(
            updated=self._at.time, checkpoints=self._row.checkpoints + len(self._new)
        )
        grown = sum(row.size for row in rows) - replaced
        return next_batch(self._draft, thread, nonce=self._nonce, grown=grown)._replace(
            new_checkpoints=tuple(row for row in rows if row.id in self._new),
            changed_checkpoints=tuple(row for row in rows if row.id not in self._new),
            labels=tuple(self._labels.values()),
            runs=tuple(self._runs),
        )

    def _status(self) -> str:
        """As it was, if no op changed the events or the question."""
        if self._ledger is None:
            return self._row.status if self._row is not None else "idle"
        return status(self._read(PENDING), self._ledger)

    def next_head(self, batch: Batch) -> Head:
        """The head that the batch made."""
        self._give_back()
        return next_head(self._draft, batch, self._records.values())

    def _give_back(self) -> None:
        """Have the ledger at hand for the next change."""
        if self._ledger is not None and EVENTS in self._slots:
            self.head.cache.ledger = (self._slots[EVENTS].ranges, self._ledger)


def _group_by_run(messages: Iterable[EncodedMessage]) -> list[list[EncodedMessage]]:
    """Neighbours of the same run together."""
    return [list(group) for _, group in groupby(messages, key=lambda each: each.run)]
