"""Branches of a cube thread: roll back to an earlier checkpoint or run, or fork from one.

A branch from a checkpoint has its state as it was, with runs, pending request and answers. A branch from a completed
run has what CubeLoop's `snapshot` and `fork` return: the messages without a run, and those of the runs completed up to
this one.
"""

from __future__ import annotations

from typing import NamedTuple

from threadkeep.engine.commit import Decision, Seen, commit, next_batch, with_top
from threadkeep.engine.cube.channels import (
    EVENTS,
    PENDING,
    new_checkpoint_row,
    next_checkpoint_id,
    pack_cube_checkpoint,
    read_events,
    status_at,
)
from threadkeep.engine.cube.events import RunLog
from threadkeep.engine.cube.plans import fork_batch, slots_until_run
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot
from threadkeep.engine.requests import Batch, Commit, ForkThread, LoadItems
from threadkeep.engine.threads.damaged_rows import load_thread_rows
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.rollback import Branch, BranchStamp, find_visible
from threadkeep.engine.threads.thread_rows import (
    FORKED_FROM,
    LATEST,
    ThreadRows,
    find_checkpoint,
    load_slots,
)


class _BranchSource(NamedTuple):
    """What a branch starts from: a checkpoint, or, if `run` is given, the state after this completed run."""

    thread: ThreadRows
    record: CheckpointRecord
    run: str | None

    def slots(self, draft: Draft) -> dict[str, Slot]:
        """Return the branch's channels."""
        if self.run is None:
            return dict(self.record.slots)
        return slots_until_run(self.thread.head, find_checkpoint(self.thread, None), self.run, None, draft)

    def status(self) -> str:
        """Return the status of a thread that continues from here."""
        return status_at(self.thread.head, self.record) if self.run is None else "idle"

    def own(self) -> dict[str, str]:
        """Return the branch's own metadata."""
        return {FORKED_FROM: self.record.row.id}


async def rollback(heads: Heads, key: ThreadKey, ref: str, stamp: BranchStamp, *, dry_run: bool = False) -> Branch:
    """Continue a cube thread from an earlier checkpoint or run.

    Repeating it returns the same branch, as long as nothing was added to it. Three round trips.
    """
    return await _branch(heads, key, ref, stamp, reuse=True, dry_run=dry_run)


async def fork(heads: Heads, key: ThreadKey, ref: str | None, stamp: BranchStamp) -> Branch:
    """Add a branch from a checkpoint or run, or from the latest checkpoint. Three round trips."""
    return await _branch(heads, key, ref, stamp, reuse=False, dry_run=False)


async def _branch(
    heads: Heads, key: ThreadKey, ref: str | None, stamp: BranchStamp, *, reuse: bool, dry_run: bool
) -> Branch:

    async def read() -> Seen[_BranchSource]:
        nonlocal ref
        source = await _find_source(heads, key, ref)
        ref = source.run or source.record.row.id  # a relative reference could mean another checkpoint on a retry
        return Seen(source, source.thread.head.row, source.thread.records)

    def decide(seen: Seen[_BranchSource], _: int) -> Decision[Branch]:
        source = seen.state
        batch = _branch_batch(source, stamp)
        row = batch.new_checkpoints[0]
        existing = _unused_branch(source, row) if reuse else None
        request = Commit(batch) if existing is None and not dry_run else None
        return Decision(_branch_result(key, existing or row, source), request)

    return await commit(heads, key, read, decide)


async def fork_to(heads: Heads, key: ThreadKey, ref: str | None, to: ThreadKey, stamp: BranchStamp) -> Branch:
    """Create a cube thread with the state of a checkpoint or run. Four round trips; ValueError if `to` exists."""

    async def read() -> Seen[_BranchSource]:
        nonlocal ref
        source = await _find_source(heads, key, ref)
        ref = source.run or source.record.row.id
        return Seen(source, (await LoadItems(to, ())).thread)

    def decide(seen: Seen[_BranchSource], attempt: int) -> Decision[Branch]:
        if seen.row is not None:
            raise ValueError(f"thread {to.id!r} already exists")
        source = seen.state
        row = source.thread.head.row
        assert row is not None
        branch = Branch(to.id, to.kind, "", next_checkpoint_id(None), None, source.record.row.id)
        ranges, batch = _new_thread_batch(source, to, stamp, stamp.nonce + attempt)
        return Decision(branch, ForkThread(key, (row.epoch, row.rev), ranges, batch))

    return await commit(heads, to, read, decide, source=key)


async def _find_source(heads: Heads, key: ThreadKey, ref: str | None) -> _BranchSource:
    """Find what `ref` names: a checkpoint's id, else a completed run's id, else a reference to a checkpoint."""
    thread = await load_thread_rows(heads, key)
    newest = find_checkpoint(thread, None)
    if ref not in (None, LATEST) and ("", ref) not in thread.records:
        thread = await load_slots(heads, thread, _slots_of(newest, EVENTS))
        if RunLog(read_events(thread.head, newest)).is_completed(ref):
            of_run = [r for r in thread.visible() if r.row.run == ref and FORKED_FROM not in r.own_metadata]
            return _BranchSource(thread, of_run[-1] if of_run else newest, ref)
    record = find_visible(thread, ref, "")
    return _BranchSource(await load_slots(heads, thread, _slots_of(record, EVENTS, PENDING)), record, None)


def _slots_of(record: CheckpointRecord, *names: str) -> list[Slot]:
    return [record.slots[name] for name in names if name in record.slots]


def _branch_batch(source: _BranchSource, stamp: BranchStamp) -> Batch:
    """Return the batch that adds the branch as the newest checkpoint."""
    head, draft = source.thread.head, Draft(source.thread.head)
    assert head.row is not None
    last = max(source.thread.records.values(), key=lambda record: int(record.row.id))
    origin = source.record.row
    run = source.run or origin.run
    row = new_checkpoint_row(
        next_checkpoint_id(last.row), origin.id, run, source="fork", labels=origin.labels, time=stamp.time
    )
    row = pack_cube_checkpoint(row, source.slots(draft), draft, source.own()).row
    thread = with_top(head.row, row, source.status())
    thread = thread._replace(updated=stamp.time, checkpoints=thread.checkpoints + 1)
    runs = (row.run,) if row.run is not None else ()
    return next_batch(draft, thread, nonce=stamp.nonce, grown=row.size)._replace(new_checkpoints=(row,), runs=runs)


def _new_thread_batch(
    source: _BranchSource, to: ThreadKey, stamp: BranchStamp, epoch: int
) -> tuple[tuple[itemlog.ItemRange, ...], Batch]:
    draft = Draft(source.thread.head)
    slots = source.slots(draft)
    run = source.run or source.record.row.run
    status, own = source.status(), source.own()
    start = source.record.row.id if source.run is None else find_checkpoint(source.thread, None).row.id
    return fork_batch(draft, slots, to, run, start=start, time=stamp.time, nonce=epoch, status=status, own=own)


def _unused_branch(source: _BranchSource, row: CheckpointRow) -> CheckpointRow | None:
    """Return the newest checkpoint if it is a branch from the same source that nothing was added to."""
    newest = find_checkpoint(source.thread, None)
    same = newest.own_metadata == source.own() and newest.slots == source.slots(Draft(source.thread.head))
    return newest.row if same and newest.row.run == row.run else None


def _branch_result(key: ThreadKey, row: CheckpointRow, source: _BranchSource) -> Branch:
    return Branch(key.id, key.kind, row.ns, row.id, row.parent, source.record.row.id)
