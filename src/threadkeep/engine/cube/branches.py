"""Branches of a talk: going back to an earlier checkpoint or run, and going on from one in another thread.

A checkpoint's state is taken as it was, with its runs, its question and its answers. Of a run that was completed, what
`snapshot` and `fork` of CubeLoop give is taken: the messages of no run and of the runs that were completed up to this one.
"""

from __future__ import annotations

from typing import NamedTuple

from threadkeep.engine.commit import Decision, Seen, commit, next_batch, with_top
from threadkeep.engine.cube.channels import EVENTS, PENDING, after, checkpoint, events, status_at
from threadkeep.engine.cube.events import RunLog
from threadkeep.engine.cube.plans import slots_until_run, fork_batch
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot
from threadkeep.engine.requests import Batch, Commit, ForkThread, LoadItems
from threadkeep.engine.threads.branches import Branch, BranchStamp, visible
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import FORKED_FROM, LATEST, ThreadRows, find, load_thread_rows, with_items


class _BranchSource(NamedTuple):
    """What a branch is made from: a checkpoint, or what it and a later one tell of a run that was completed."""

    thread: ThreadRows
    record: CheckpointRecord
    run: str | None

    def slots(self, draft: Draft) -> dict[str, Slot]:
        """What the branch holds."""
        if self.run is None:
            return dict(self.record.slots)
        return slots_until_run(self.thread.head, find(self.thread, None), self.run, None, draft)

    def status(self) -> str:
        """The status of a thread that goes on from there."""
        return status_at(self.thread.head, self.record) if self.run is None else "idle"

    def own(self) -> dict[str, str]:
        """The branch's own metadata."""
        return {FORKED_FROM: self.record.row.id}


async def rollback(heads: Heads, key: ThreadKey, ref: str, moment: BranchStamp, *, dry_run: bool = False) -> Branch:
    """Let a talk go on from an earlier checkpoint or run. Three round trips; the same branch if it is done again."""
    return await _branch(heads, key, ref, moment, again=True, dry_run=dry_run)


async def fork(heads: Heads, key: ThreadKey, ref: str | None, moment: BranchStamp) -> Branch:
    """One more branch from a checkpoint or run, or from the latest. Three round trips."""
    return await _branch(heads, key, ref, moment, again=False, dry_run=False)


async def _branch(
    heads: Heads, key: ThreadKey, ref: str | None, moment: BranchStamp, *, again: bool, dry_run: bool
) -> Branch:

    async def read() -> Seen[_BranchSource]:
        nonlocal ref
        target = await _find_source(heads, key, ref)
        ref = target.run or target.record.row.id  # by another name it may be another one at the next try
        return Seen(target, target.thread.head.row, target.thread.records)

    def decide(seen: Seen[_BranchSource], _: int) -> Decision[Branch]:
        target = seen.state
        batch = _branch_batch(target, moment)
        row = batch.new_checkpoints[0]
        made = _unused_branch(target, row) if again else None
        return Decision(_branch_result(key, made or row, target), None if made is not None or dry_run else Commit(batch))

    return await commit(heads, key, read, decide)


async def fork_to(heads: Heads, key: ThreadKey, ref: str | None, to: ThreadKey, moment: BranchStamp) -> Branch:
    """A new talk with the state of a checkpoint or run. Four round trips; ValueError if there is a thread `to`."""

    async def read() -> Seen[_BranchSource]:
        nonlocal ref
        target = await _find_source(heads, key, ref)
        ref = target.run or target.record.row.id
        return Seen(target, (await LoadItems(to, ())).thread)

    def decide(seen: Seen[_BranchSource], attempt: int) -> Decision[Branch]:
        if seen.row is not None:
            raise ValueError(f"there is a thread {to.id!r} already")
        target = seen.state
        row = target.thread.head.row
        assert row is not None
        branch = Branch(to.id, to.kind, "", after(None), None, target.record.row.id)
        taken = _new_thread_batch(target, to, moment, moment.nonce + attempt)
        return Decision(branch, ForkThread(key, (row.epoch, row.rev), *taken))

    return await commit(heads, to, read, decide, source=key)


async def _find_source(heads: Heads, key: ThreadKey, ref: str | None) -> _BranchSource:
    """What is meant: a checkpoint's id, a completed run's, or a reference to a checkpoint, in this order."""
    thread = await load_thread_rows(heads, key)
    newest = find(thread, None)
    if ref not in (None, LATEST) and ("", ref) not in thread.records:
        thread = await with_items(heads, thread, _slots_of(newest, EVENTS))
        if RunLog(events(thread.head, newest)).is_completed(ref):
            of_run = [r for r in thread.visible() if r.row.run == ref and FORKED_FROM not in r.own]
            return _BranchSource(thread, of_run[-1] if of_run else newest, ref)
    record = visible(thread, ref, "")
    return _BranchSource(await with_items(heads, thread, _slots_of(record, EVENTS, PENDING)), record, None)


def _slots_of(record: CheckpointRecord, *names: str) -> list[Slot]:
    return [record.slots[name] for name in names if name in record.slots]


def _branch_batch(target: _BranchSource, moment: BranchStamp) -> Batch:
    """One more checkpoint, the newest."""
    head, draft = target.thread.head, Draft(target.thread.head)
    assert head.row is not None
    last = max(target.thread.records.values(), key=lambda record: int(record.row.id))
    row = CheckpointRow(
        ns="", id=after(last.row), parent=target.record.row.id, run=target.run or target.record.row.run, step=None,
        source="fork", labels=target.record.row.labels, time=moment.time, hidden=False, refs=(), body=b"",
    )  # fmt: skip
    row = checkpoint(row, target.slots(draft), draft, target.own()).row
    thread = with_top(head.row, row, target.status())
    thread = thread._replace(updated=moment.time, checkpoints=thread.checkpoints + 1)
    runs = (row.run,) if row.run is not None else ()
    return next_batch(draft, thread, nonce=moment.nonce, grown=row.size)._replace(new_checkpoints=(row,), runs=runs)


def _new_thread_batch(
    target: _BranchSource, to: ThreadKey, moment: BranchStamp, epoch: int
) -> tuple[tuple[itemlog.ItemRange, ...], Batch]:
    draft = Draft(target.thread.head)
    slots = target.slots(draft)
    return fork_batch(
        draft, slots, to, target.run or target.record.row.run, time=moment.time, nonce=epoch,
        status=target.status(), own=target.own(),
    )  # fmt: skip


def _unused_branch(target: _BranchSource, row: CheckpointRow) -> CheckpointRow | None:
    """The newest checkpoint, if it is a branch from here that nobody went on from."""
    newest = find(target.thread, None)
    same = newest.own == target.own() and newest.slots == target.slots(Draft(target.thread.head))
    return newest.row if same and newest.row.run == row.run else None


def _branch_result(key: ThreadKey, made: CheckpointRow, target: _BranchSource) -> Branch:
    return Branch(key.id, key.kind, made.ns, made.id, made.parent, target.record.row.id)
