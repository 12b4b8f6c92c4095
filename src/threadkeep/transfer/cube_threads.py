"""CubeLoop threads of another checkpointer: messages in their order, runs, extra, the pending request, answers.

Messages are only ever appended, here as in the source, so as many as are here already are skipped. Everything else
follows the source as long as nobody continued the thread here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from threadkeep.clock import nonce, now_ms
from threadkeep.engine.cube import ops, plans
from threadkeep.engine.cube.channels import pack_json
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.threads.heads import Heads
from threadkeep.plan import result
from threadkeep.transfer.pipeline import Transfer
from threadkeep.transfer.result import Outcome
from threadkeep.transfer.sources.source import (
    CubeDetails,
    CubeMessage,
    ForeignCubeRun,
    ForeignCubeThreads,
    UnreadableError,
)
from threadkeep.work import Blocking, Change, Progress, Read, Work

_BYTES, _OPS, _MESSAGES = 4 * 1024 * 1024, 200, 100
"""How much goes into one commit, and how many messages into one op."""


@dataclass(slots=True)
class CubeThread:
    """A CubeLoop thread of another checkpointer on its way into a Keep. `key` is its key there."""

    into: Transfer
    source: ForeignCubeThreads
    key: ThreadKey
    _details: CubeDetails | None = None
    _there: int = 0
    _before: plans.CubeOverview | None = None

    def put(self) -> Work[Outcome | None]:
        """Put what is missing; a dry run only counts messages. A thread is put as far as it can be read."""
        self._there = yield Blocking(lambda: self.source.count(self.key.id))
        self._before = yield Read(lambda: plans.overview(self._heads, self.key))
        both = min(self._known, self._there)
        self.into.tally.add("already_there", both)
        self.into.tally.done += both
        if self.into.dry_run:
            self.into.tally.add("messages", self._there - both)
            return self._outcome(self._there - both)
        added = 0
        try:
            self._details = yield Blocking(lambda: self.source.details(self.key.id))
            added += yield from self._append(self._details)
            if self._known <= self._there:
                others = _other_ops(self._details, self._before)
                yield from self._commit(others)
                added += len(others)
        except UnreadableError as error:
            self.into.differs(self.key, f"left out: {error}")
            self._details = None
        self._heads.drop(self.key)
        return self._outcome(added)

    def compare(self) -> Work[None]:
        """Read both sides again and report where they differ."""
        try:
            if self._details is not None:
                yield from self._compare(self._details)
        except UnreadableError as error:
            self.into.differs(self.key, f"not compared: {error}")
        self._heads.drop(self.key)

    def _compare(self, details: CubeDetails) -> Work[None]:
        compared = _Comparison(self.source.messages(self.key.id, 0))
        yield Read(lambda: plans.load(self._heads, self.key, compared.next))
        for n in compared.unequal:
            self.into.differs(self.key, f"message {n} differs")
        if compared.count < self._there:
            self.into.differs(self.key, f"the source has {self._there} messages, the target {compared.count}")
        here: plans.CubeOverview | None = yield Read(lambda: plans.overview(self._heads, self.key))
        for what in _differences(details, here, is_continued=self._known > self._there):
            self.into.differs(self.key, what)

    @property
    def _heads(self) -> Heads:
        return self.into.session.heads

    @property
    def _known(self) -> int:
        """The number of messages that were here before."""
        return self._before.messages if self._before is not None else 0

    def _outcome(self, added: int) -> Outcome:
        if not added:
            return "unchanged"
        return "created" if self._before is None else "merged" if self._known > self._there else "updated"

    def _append(self, details: CubeDetails) -> Work[int]:
        """Append the messages that are missing; return the number of ops."""
        messages = self.source.messages(self.key.id, self._known)
        appending, made, tally = _appending_ops(details, self._before, messages), 0, self.into.tally
        while some := (yield Blocking(lambda: _next_slice(appending))):
            yield from self._commit(some)
            appended = [each for op in some if isinstance(op, ops.AppendMessages) for each in op.messages]
            tally.add("messages", len(appended))
            tally.add("bytes", sum(len(each.data) for each in appended))
            tally.done += len(appended)
            made += len(some)
            yield Progress(tally.done, tally.total, self.key.id)
        return made

    def _commit(self, wanted: Sequence[ops.AnyOp]) -> Work[None]:
        if wanted:
            outcomes = yield Change(self.key, lambda: plans.write(self._heads, self.key, wanted))
            for outcome in outcomes:
                result(outcome)


class _Comparison:
    """Compares messages of the target with those of the source, as they are read."""

    def __init__(self, theirs: Iterator[CubeMessage]) -> None:
        self.count = 0
        self.unequal: list[int] = []
        self._theirs = theirs

    def next(self, ours: list[Any]) -> list[Any]:
        """Compare some. Messages after the last one of the source were added here."""
        for each in ours:
            other = next(self._theirs, None)
            if other is None:
                break
            if pack_json(each) != pack_json(other.plain):
                self.unequal.append(self.count)
            self.count += 1
        return []


def _appending_ops(
    details: CubeDetails, here: plans.CubeOverview | None, messages: Iterator[CubeMessage]
) -> Iterator[ops.AnyOp]:
    """The ops that add the messages and runs of a thread after those that are here."""
    begun = here.runs.open | {run for run in here.runs.runs if here.runs.is_completed(run)} if here else set()
    to_claim = {run.id: run for run in details.runs if run.id not in begun}
    if here is None and details.parent is not None:
        yield ops.SetParent(details.parent, time=details.runs[0].claimed if details.runs else now_ms(), nonce=nonce())
    group: list[CubeMessage] = []
    for message in messages:
        if group and not _go_together(group, message):
            yield _append(group)
            group = []
        if message.run in to_claim:
            yield _claim(to_claim.pop(message.run))
        group.append(message)
    if group:
        yield _append(group)
    yield from map(_claim, to_claim.values())


def _go_together(group: Sequence[CubeMessage], message: CubeMessage) -> bool:
    """Whether a message continues the same run, or the same turn."""
    begins_turn = message.run is None and message.plain.get("role") == "user"
    return message.run == group[-1].run and not begins_turn and len(group) < _MESSAGES


def _claim(run: ForeignCubeRun) -> ops.ClaimRun:
    return ops.ClaimRun(run.id, time=run.claimed, nonce=nonce())


def _append(group: Sequence[CubeMessage]) -> ops.AppendMessages:
    given = [ops.encode_message(message.plain)._replace(run=message.run) for message in group]
    return ops.AppendMessages(given, keep_duplicates=True, time=group[-1].time, nonce=nonce())


def _other_ops(details: CubeDetails, here: plans.CubeOverview | None) -> list[ops.AnyOp]:
    """The ops that add the rest of a thread: completed runs, extra, the pending request, answers."""
    time = max([now_ms(), *(run.completed or run.claimed for run in details.runs)]) if here is None else now_ms()
    done = [run for run in details.runs if run.order is not None and not (here and here.runs.is_completed(run.id))]
    made: list[ops.AnyOp] = [
        ops.CompleteRun(run.id, time=run.completed or time, nonce=nonce())
        for run in sorted(done, key=lambda run: run.order or 0)
    ]
    held = here.extra if here is not None else None
    if details.extra is not None and details.extra != held:
        made.append(ops.MergeExtra(details.extra, time=time, nonce=nonce()))
    if details.pending != (here.pending if here is not None else None):
        made.append(ops.SetPendingRequest(details.pending, time=time, nonce=nonce()))
    return made + list(_answer_ops(details, here, time))


def _answer_ops(details: CubeDetails, here: plans.CubeOverview | None, time: int) -> Iterator[ops.AnyOp]:
    held = here.answers if here is not None else {}
    for (run, question), answer in details.answers.items():
        if question not in held.get(run, {}) or held[run][question] != answer:
            yield ops.SaveAnswer(run, question, answer, time=time, nonce=nonce())
    for run, answers in held.items():
        gone = [question for question in answers if (run, question) not in details.answers]
        if gone:
            yield ops.ClearAnswers(run, gone, time=time, nonce=nonce())


def _next_slice(made: Iterator[ops.AnyOp]) -> list[ops.AnyOp]:
    """The next ops, as many as one commit takes."""
    some: list[ops.AnyOp] = []
    size = 0
    for op in made:
        some.append(op)
        size += sum(len(each.data) for each in op.messages) if isinstance(op, ops.AppendMessages) else 0
        if size >= _BYTES or len(some) >= _OPS:
            break
    return some


def _differences(details: CubeDetails, here: plans.CubeOverview | None, *, is_continued: bool) -> Iterator[str]:
    """How the rest of a thread differs from the source's."""
    if here is None:
        yield "it is missing"
        return
    for run in details.runs:
        if run.id not in here.runs.runs or (run.order is not None and not here.runs.is_completed(run.id)):
            yield f"run {run.id!r} differs"
    ours = [run.id for run in details.runs if run.order is not None and here.runs.is_completed(run.id)]
    if sorted(ours, key=lambda run: here.runs.runs[run].completed or 0) != _in_order(details, ours):
        yield "its runs were completed in another order"
    if here.parent != details.parent:
        yield f"its parent is {here.parent!r}, not {details.parent!r}"
    if is_continued:
        return
    extra = here.extra or {}
    if any(
        name not in extra or pack_json(extra[name]) != pack_json(value) for name, value in (details.extra or {}).items()
    ):
        yield "its extra differs"
    if details.pending != here.pending:
        yield "its pending request differs"
    if {(run, q): answer for run, held in here.answers.items() for q, answer in held.items()} != details.answers:
        yield "its answers differ"


def _in_order(details: CubeDetails, runs: Sequence[str]) -> list[str]:
    order = {run.id: run.order or 0 for run in details.runs}
    return sorted(runs, key=order.__getitem__)
