"""Branches of a talk: going back to an earlier checkpoint or run, and going on from one in another thread.

A checkpoint's state is taken as it was, with its runs, its question and its answers. Of a run that was completed, what
`snapshot` and `fork` of CubeLoop give is taken: the messages of no run and of the runs that were completed up to this one.
"""

from __future__ import annotations

from typing import NamedTuple

from threadkeep.engine import itemlog
from threadkeep.engine.backend import Batch, Commit, Fork, Items, Pause
from threadkeep.engine.branch import Branch, Moment, visible
from threadkeep.engine.checkpoints import TRIES
from threadkeep.engine.draft import Draft
from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.records import CheckpointRow, Record, Slot
from threadkeep.engine.staging import STRIDE
from threadkeep.engine.survey import FORKED_FROM, LATEST, Whole, find, survey, with_items
from threadkeep.engine.talks.form import EVENTS, PENDING, after, checkpoint, events, is_settled, value
from threadkeep.engine.talks.ledger import Ledger
from threadkeep.engine.talks.plans import forked_slots, taken_over
from threadkeep.errors import Conflict


class _Target(NamedTuple):
    """What a branch is made from: a checkpoint, or what it and a later one tell of a run that was completed."""

    thread: Whole
    record: Record
    run: str | None

    def slots(self, draft: Draft) -> dict[str, Slot]:
        """What the branch holds."""
        if self.run is None:
            return dict(self.record.slots)
        return forked_slots(self.thread.head, find(self.thread, None), self.run, None, draft)

    def status(self) -> str:
        """A question waits; a run is under way, or broke off; or neither."""
        if self.run is not None:
            return "idle"
        pending = value(self.thread.head, self.record, PENDING)
        if pending is not None and not is_settled(pending):
            return "interrupted"
        return "pending" if Ledger(events(self.thread.head, self.record)).open else "idle"

    def own(self) -> dict[str, str]:
        """The branch's own metadata."""
        return {FORKED_FROM: self.record.row.id}


async def rollback(heads: Heads, key: ThreadKey, ref: str, moment: Moment, *, dry_run: bool = False) -> Branch:
    """Let a talk go on from an earlier checkpoint or run. Three round trips; the same branch if it is done again."""
    return await _branch(heads, key, ref, moment, again=True, dry_run=dry_run)


async def fork(heads: Heads, key: ThreadKey, ref: str | None, moment: Moment) -> Branch:
    """One more branch from a checkpoint or run, or from the latest. Three round trips."""
    return await _branch(heads, key, ref, moment, again=False, dry_run=False)


async def _branch(
    heads: Heads, key: ThreadKey, ref: str | None, moment: Moment, *, again: bool, dry_run: bool
) -> Branch:
    tried: CheckpointRow | None = None
    for attempt in range(TRIES):
        try:
            target = await _target(heads, key, ref)
            ref = target.run or target.record.row.id  # by another name it may be another one after this
            batch = _batch(target, moment)
            row = batch.new_checkpoints[0]
            made = _ours(target, tried) or (_unused_branch(target, row) if again else None)
            if made is not None or dry_run:
                return _told(key, made or row, target)
            tried = row
            heads.forget(key)
            await Commit(batch)
        except Conflict:
            await Pause(attempt)
        else:
            return _told(key, row, target)
        finally:
            heads.forget(key)
    raise Conflict(f"thread {key.id!r} was changed by others at each of {TRIES} tries")


async def fork_to(heads: Heads, key: ThreadKey, ref: str | None, to: ThreadKey, moment: Moment) -> Branch:
    """A new talk with the state of a checkpoint or run. Four round trips; ValueError if there is a thread `to`."""
    for attempt in range(TRIES):
        try:
            target = await _target(heads, key, ref)
            ref = target.run or target.record.row.id
            there = (await Items(to, ())).thread
            told = Branch(to.id, to.kind, "", after(None), None, target.record.row.id)
            if there is not None and moment.draw <= there.epoch < moment.draw + attempt:
                return told  # the answer to an earlier try got lost
            if there is not None:
                raise ValueError(f"there is a thread {to.id!r} already")
            await Fork(key, _expected(target.thread), *_taken_over(target, to, moment, attempt))
        except Conflict:
            await Pause(attempt)
        else:
            return told
        finally:
            heads.forget(to)
    raise Conflict(f"thread {key.id!r} or {to.id!r} was changed by others at each of {TRIES} tries")


async def _target(heads: Heads, key: ThreadKey, ref: str | None) -> _Target:
    """What is meant: a checkpoint's id, a completed run's, or a reference to a checkpoint, in this order."""
    thread = await survey(heads, key)
    newest = find(thread, None)
    if ref not in (None, LATEST) and ("", ref) not in thread.records:
        thread = await with_items(heads, thread, _held(newest, EVENTS))
        if Ledger(events(thread.head, newest)).is_completed(ref):
            of_run = [r for r in thread.visible() if r.row.run == ref and FORKED_FROM not in r.own]
            return _Target(thread, of_run[-1] if of_run else newest, ref)
    record = visible(thread, ref, "")
    return _Target(await with_items(heads, thread, _held(record, EVENTS, PENDING)), record, None)


def _held(record: Record, *names: str) -> list[Slot]:
    return [record.slots[name] for name in names if name in record.slots]


def _expected(thread: Whole) -> tuple[int, int]:
    row = thread.head.row
    assert row is not None
    return row.epoch, row.rev


def _batch(target: _Target, moment: Moment) -> Batch:
    """One more checkpoint, the newest."""
    head, draft = target.thread.head, Draft(target.thread.head)
    assert head.row is not None
    last = max(target.thread.records.values(), key=lambda record: int(record.row.id))
    row = CheckpointRow(
        ns="", id=after(last.row), parent=target.record.row.id, run=target.run or target.record.row.run, step=None,
        source="fork", labels=target.record.row.labels, time=moment.time, hidden=False, refs=(), body=b"",
    )  # fmt: skip
    row = checkpoint(row, target.slots(draft), draft, target.own()).row
    sealed = tuple((at, itemlog.seal_item(at, item)) for at, item in draft.new_items.items())
    thread = head.row._replace(
        rev=head.row.rev + 1 + moment.draw % STRIDE, nexts=tuple(draft.nexts), updated=moment.time,
        checkpoints=head.row.checkpoints + 1, top=row.id, run=row.run, step=row.step, source=row.source,
        labels=row.labels, status=target.status(), bytes=row.size + sum(len(stored) for _, stored in sealed),
    )  # fmt: skip
    runs = (row.run,) if row.run is not None else ()
    return Batch(_expected(target.thread), thread, items=sealed, new_checkpoints=(row,), runs=runs)


def _taken_over(target: _Target, to: ThreadKey, moment: Moment, attempt: int) -> tuple[tuple[itemlog.Run, ...], Batch]:
    draft = Draft(target.thread.head)
    slots = target.slots(draft)
    return taken_over(
        draft, slots, to, target.run or target.record.row.run, time=moment.time, draw=moment.draw + attempt,
        status=target.status(), own=target.own(),
    )  # fmt: skip


def _ours(target: _Target, tried: CheckpointRow | None) -> CheckpointRow | None:
    """What an earlier try made whose answer got lost; somebody may have gone on in it."""
    found = target.thread.records.get(("", tried.id)) if tried is not None else None
    same = tried is not None and found is not None and (found.row.time, found.row.parent) == (tried.time, tried.parent)
    return found.row if found is not None and same and found.own.get(FORKED_FROM) else None


def _unused_branch(target: _Target, row: CheckpointRow) -> CheckpointRow | None:
    """The newest checkpoint, if it is a branch from here that nobody went on from."""
    newest = find(target.thread, None)
    same = newest.own == target.own() and newest.slots == target.slots(Draft(target.thread.head))
    return newest.row if same and newest.row.run == row.run else None


def _told(key: ThreadKey, made: CheckpointRow, target: _Target) -> Branch:
    return Branch(key.id, key.kind, made.ns, made.id, made.parent, target.record.row.id)
