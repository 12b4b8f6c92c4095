"""CubeLoop's threads: messages in their order, runs, extra, the question that waits and the answers to questions.

Messages only come at the end, in a talk as in its source: as many as are here already are skipped. What goes with them
follows the source as long as the thread was not continued here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from threadkeep.desk import draw, now
from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.talks import ops, plans
from threadkeep.engine.talks.form import packed
from threadkeep.transfer.sources.source import Message, Run, Talk, Talks, UnreadableError
from threadkeep.transfer.result import Tally
from threadkeep.plan import result
from threadkeep.work import Aside, Change, Progress, Read, Work

_BYTES, _OPS, _MESSAGES = 4 * 1024 * 1024, 200, 100


@dataclass(slots=True)
class CubeThread:
    """One talk on its way from a source to here."""

    source: Talks
    id: str
    key: ThreadKey
    heads: Heads
    tally: Tally

    def moved(self, *, verify: bool) -> Work[None]:
        """Bring in what is missing, and compare."""
        self.tally.threads += 1
        try:
            talk: Talk = yield Aside(lambda: self.source.talk(self.id))
            there: int = yield Aside(lambda: self.source.count(self.id))
            here: plans.Overview | None = yield Read(lambda: plans.overview(self.heads, self.key))
            known = here.messages if here is not None else 0
            self.tally.skipped += min(known, there)
            self.tally.done += min(known, there)
            yield from self._append(talk, here, known)
            if known <= there:
                yield from self._commit(_around(talk, here))
            if verify:
                yield from self._compared(talk, there, is_continued=known > there)
        except UnreadableError as error:
            self._differs(f"left out: {error}")
        self.heads.forget(self.key)

    def counted(self) -> Work[None]:
        """Count what `moved` would bring in."""
        there: int = yield Aside(lambda: self.source.count(self.id))
        here: plans.Overview | None = yield Read(lambda: plans.overview(self.heads, self.key))
        known = min(here.messages if here is not None else 0, there)
        self.tally.threads += 1
        self.tally.skipped += known
        self.tally.messages += there - known

    def _append(self, talk: Talk, here: plans.Overview | None, start: int) -> Work[None]:
        made = _appending(talk, here, self.source.messages(self.id, start))
        while some := (yield Aside(lambda: _some(made))):
            yield from self._commit(some)
            added = sum(len(op.messages) for op in some if isinstance(op, ops.Append))
            self.tally.messages += added
            self.tally.done += added
            yield Progress(self.tally.done, self.tally.total, self.id)

    def _commit(self, wanted: Sequence[ops.AnyOp]) -> Work[None]:
        if wanted:
            outcomes = yield Change(self.key, lambda: plans.write(self.heads, self.key, wanted))
            for outcome in outcomes:
                result(outcome)
            self.tally.bytes += sum(
                len(each.data) for op in wanted if isinstance(op, ops.Append) for each in op.messages
            )

    def _differs(self, what: str) -> None:
        self.tally.differs(f"thread {self.id!r}: {what}")

    def _compared(self, talk: Talk, there: int, *, is_continued: bool) -> Work[None]:
        """Read both sides again and tell where they differ."""
        theirs = self.source.messages(self.id, 0)
        self.heads.forget(self.key)
        compared = _Compared(theirs)
        yield Read(lambda: plans.load(self.heads, self.key, compared.next))
        for n in compared.unequal:
            self._differs(f"message {n} differs")
        if compared.count < there:
            self._differs(f"{there} messages there, {compared.count} here")
        here = yield Read(lambda: plans.overview(self.heads, self.key))
        for what in _differences(talk, here, is_continued=is_continued) if here is not None else ["is not here"]:
            self._differs(what)


class _Compared:
    """Messages of ours, compared with those of the source as they come."""

    def __init__(self, theirs: Iterator[Message]) -> None:
        self.count = 0
        self.unequal: list[int] = []
        self._theirs = theirs

    def next(self, ours: list[Any]) -> list[Any]:
        """Compare some; what comes after the last of the source is only ours."""
        for each in ours:
            other = next(self._theirs, None)
            if other is None:
                break
            if packed(each) != packed(other.plain):
                self.unequal.append(self.count)
            self.count += 1
        return []


def _appending(talk: Talk, here: plans.Overview | None, messages: Iterator[Message]) -> Iterator[ops.AnyOp]:
    """What makes the messages and runs of a talk, after those that are here."""
    begun = here.ledger.open | {run for run in here.ledger.runs if here.ledger.is_completed(run)} if here else set()
    to_claim = {run.id: run for run in talk.runs if run.id not in begun}
    if here is None and talk.parent is not None:
        yield ops.Adopt(talk.parent, time=talk.runs[0].claimed if talk.runs else now(), draw=draw())
    group: list[Message] = []
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


def _go_together(group: Sequence[Message], message: Message) -> bool:
    """Whether a message goes on with the same run, or turn."""
    begins_turn = message.run is None and message.plain.get("role") == "user"
    return message.run == group[-1].run and not begins_turn and len(group) < _MESSAGES


def _claim(run: Run) -> ops.Claim:
    return ops.Claim(run.id, time=run.claimed, draw=draw())


def _append(group: Sequence[Message]) -> ops.Append:
    given = [ops.message(message.plain)._replace(run=message.run) for message in group]
    return ops.Append(given, every=True, time=group[-1].time, draw=draw())


def _around(talk: Talk, here: plans.Overview | None) -> list[ops.AnyOp]:
    """What makes the rest of a talk: runs that are done, extra, the question, answers."""
    time = max([now(), *(run.completed or run.claimed for run in talk.runs)]) if here is None else now()
    done = [run for run in talk.runs if run.order is not None and not (here and here.ledger.is_completed(run.id))]
    made: list[ops.AnyOp] = [
        ops.Complete(run.id, time=run.completed or time, draw=draw())
        for run in sorted(done, key=lambda run: run.order or 0)
    ]
    held = here.extra if here is not None else None
    if talk.extra is not None and talk.extra != held:
        made.append(ops.Merge(talk.extra, time=time, draw=draw()))
    if talk.pending != (here.pending if here is not None else None):
        made.append(ops.Ask(talk.pending, time=time, draw=draw()))
    return made + list(_answering(talk, here, time))


def _answering(talk: Talk, here: plans.Overview | None, time: int) -> Iterator[ops.AnyOp]:
    held = here.answers if here is not None else {}
    for (run, question), answer in talk.answers.items():
        if question not in held.get(run, {}) or held[run][question] != answer:
            yield ops.Answer(run, question, answer, time=time, draw=draw())
    for run, answers in held.items():
        gone = [question for question in answers if (run, question) not in talk.answers]
        if gone:
            yield ops.Forget(run, gone, time=time, draw=draw())


def _some(made: Iterator[ops.AnyOp]) -> list[ops.AnyOp]:
    """The next ops, as many as one commit takes."""
    some: list[ops.AnyOp] = []
    size = 0
    for op in made:
        some.append(op)
        size += sum(len(each.data) for each in op.messages) if isinstance(op, ops.Append) else 0
        if size >= _BYTES or len(some) >= _OPS:
            break
    return some


def _differences(talk: Talk, here: plans.Overview, *, is_continued: bool) -> Iterator[str]:
    """What of the rest of a talk is not as it is in the source."""
    for run in talk.runs:
        if run.id not in here.ledger.runs or (run.order is not None and not here.ledger.is_completed(run.id)):
            yield f"run {run.id!r} differs"
    ours = [run.id for run in talk.runs if run.order is not None and here.ledger.is_completed(run.id)]
    if sorted(ours, key=lambda run: here.ledger.runs[run].completed or 0) != _in_order(talk, ours):
        yield "its runs were completed in another order"
    if here.parent != talk.parent:
        yield f"its parent is {here.parent!r}, not {talk.parent!r}"
    if is_continued:
        return
    extra = here.extra or {}
    if any(name not in extra or packed(extra[name]) != packed(value) for name, value in (talk.extra or {}).items()):
        yield "its extra differs"
    if talk.pending != here.pending:
        yield "its question differs"
    if {(run, q): answer for run, held in here.answers.items() for q, answer in held.items()} != talk.answers:
        yield "its answers differ"


def _in_order(talk: Talk, runs: Sequence[str]) -> list[str]:
    order = {run.id: run.order or 0 for run in talk.runs}
    return sorted(runs, key=order.__getitem__)
