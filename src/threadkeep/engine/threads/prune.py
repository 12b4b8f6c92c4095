"""Letting go: prune, delete_for_runs. What nothing refers to any more is freed in the same commit.

A thread is judged on a survey of it, and changed only if it is still as surveyed; else it is judged again. So whoever
writes to it meanwhile loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from threadkeep.engine.commit import TRIES, Decision, Seen, commit, forgetting
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, TaskWrites
from threadkeep.engine.requests import (
    Batch,
    Commit,
    DropThread,
    FindThreadsOfRuns,
    LoadItems,
    LoadThreadRows,
    MeasureItems,
)
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.survivors import PruneSelection, Survivors, TaskPlace, at, counted, survivors
from threadkeep.engine.threads.thread_rows import CheckpointPlace, ThreadRows, thread_rows
from threadkeep.errors import Conflict

KEEP_LATEST = "keep_latest"
STRATEGIES = (KEEP_LATEST, "delete", "delete_all")

Judge = Callable[[ThreadRows], PruneSelection]


class ThreadLoss(NamedTuple):
    """What a thread loses: rows of checkpoints, those that become hidden, writes, and bytes. Or all, if it is `dropped`."""

    dropped: bool
    checkpoints: tuple[CheckpointPlace, ...]
    hidden: tuple[CheckpointPlace, ...]
    writes: int
    bytes: int


async def prune(heads: Heads, key: ThreadKey, strategy: str, nonce: int) -> None:
    """Keep only the latest checkpoint of each namespace, or nothing. Two round trips; one for nothing."""
    if strategy == KEEP_LATEST:
        await _judged(heads, key, keep_latest, nonce)
    else:
        await delete(heads, key)


async def delete(heads: Heads, key: ThreadKey) -> None:
    """Remove a thread. One round trip."""
    with forgetting(heads, key):
        await DropThread(key)


async def threads_of_runs(tenant: str, kind: str, runs: Iterable[str]) -> tuple[ThreadKey, ...]:
    """The threads in which these runs left something."""
    return await FindThreadsOfRuns(tenant, kind, tuple(runs))


async def delete_runs(heads: Heads, key: ThreadKey, runs: frozenset[str], nonce: int) -> None:
    """Remove what these runs left in a thread: their checkpoints, and their writes on others' checkpoints."""
    await _judged(heads, key, lambda thread: _without_runs(thread, runs), nonce, runs)


async def prune_thread(
    heads: Heads, key: ThreadKey, judge: Judge, nonce: int, *, dry_run: bool = False, tries: int = TRIES
) -> ThreadLoss | None:
    """Leave what a verdict leaves; what went, or would go in a dry run. None if nothing does, or there is no such thread.

    Three round trips: what it weighs is asked before it goes. Conflict if others change it at each of so many tries.
    """

    async def read() -> Seen[_Judged | None]:
        thread = thread_rows(heads, key, await LoadThreadRows(key))
        if thread is None:
            return Seen(None, None)
        left = survivors(thread, judge(thread))
        return Seen(_Judged(thread, left, await _freed(thread, left)), thread.head.row)

    def decide(seen: Seen[_Judged | None], attempt: int) -> Decision[ThreadLoss | None]:
        judged = seen.state
        batch = _batch(judged.thread, judged.left, nonce + attempt) if judged is not None else None
        if judged is None or batch is None:
            return Decision(None)
        return Decision(_loss(judged, batch), None if dry_run else Commit(batch))

    return await commit(heads, key, read, decide, tries=tries)


class _Judged(NamedTuple):
    """A thread, what is left of it, and how many bytes the items hold that go."""

    thread: ThreadRows
    left: Survivors
    freed: int


async def _freed(thread: ThreadRows, left: Survivors) -> int:
    """How many bytes the items hold that go; 0 if all of the thread goes."""
    if _ends(left) or not left.unused:
        return 0
    row, items = await MeasureItems(thread.key, left.unused)
    if row is None or thread.head.row is None or row.epoch != thread.head.row.epoch:
        raise Conflict(f"thread {thread.key.id!r} was pruned by others")
    return sum(length for _, _, length, _ in items)


def _loss(judged: _Judged, batch: Batch) -> ThreadLoss:
    thread, left, freed = judged
    row = thread.head.row
    assert row is not None
    hidden = (place for place, new in left.rows.items() if new.hidden and not thread.records[place].row.hidden)
    writes = row.writes - sum(len(task.entries) for task in left.tasks.values())
    size = row.bytes if batch.drops_thread else freed - batch.thread.bytes
    return ThreadLoss(batch.drops_thread, tuple(sorted(batch.removed_checkpoints)), tuple(sorted(hidden)), writes, size)


class Freed(NamedTuple):
    """How many items were freed, and the thread's stored bytes before and after."""

    items: int
    before: int
    after: int


async def free_unused_items(heads: Heads, key: ThreadKey, nonce: int) -> Freed:
    """Free what nothing refers to, and nothing else. Two round trips; four if there is something."""
    row = (await LoadItems(key, ())).thread
    batch = await _judged(heads, key, _keep_all, nonce) if row is not None else None
    if row is None or batch is None:
        return Freed(0, row.bytes if row is not None else 0, row.bytes if row is not None else 0)
    left = (await LoadItems(key, ())).thread
    return Freed(sum(run.length for run in batch.removed_items), row.bytes, left.bytes if left is not None else 0)


def _keep_all(thread: ThreadRows) -> PruneSelection:
    """All that is visible, and all writes but those on hidden checkpoints that serve nothing any more."""
    hidden = {place for place, record in thread.records.items() if record.row.hidden}
    return PruneSelection(thread.records.keys() - hidden, lambda place, _: place not in hidden)


async def _judged(
    heads: Heads, key: ThreadKey, judge: Judge, nonce: int, runs: frozenset[str] = frozenset()
) -> Batch | None:
    """Make the change that a verdict demands; what it was, None if nothing had to be done."""

    async def read() -> Seen[ThreadRows | None]:
        thread = thread_rows(heads, key, await LoadThreadRows(key))
        return Seen(thread, thread.head.row if thread is not None else None)

    def decide(seen: Seen[ThreadRows | None], attempt: int) -> Decision[Batch | None]:
        thread = seen.state
        batch = _batch(thread, survivors(thread, judge(thread)), nonce + attempt, runs) if thread is not None else None
        return Decision(batch, Commit(batch) if batch is not None else None)

    return await commit(heads, key, read, decide)


def keep_latest(thread: ThreadRows) -> PruneSelection:
    """The latest of each namespace; that of a subgraph call goes with the root checkpoint that it belongs to.

    Writes without a checkpoint stay: theirs may be on its way.
    """
    latest: dict[str, str] = {}
    for (ns, id), record in thread.records.items():
        if not record.row.hidden:
            latest[ns] = max(id, latest.get(ns, id))
    newest = latest.get("", "")
    roots = {newest} if "" in latest else set()
    kept = {(ns, id) for ns, id in latest.items() if belongs(thread.records[(ns, id)], roots, newest)}
    return selection_of(thread, kept)


def selection_of(thread: ThreadRows, kept: set[CheckpointPlace]) -> PruneSelection:
    """These checkpoints stay with their writes, and so do writes without a checkpoint: theirs may be on its way."""
    return PruneSelection(kept, lambda place, _: place in kept or place not in thread.records)


def belongs(record: CheckpointRecord, roots: set[str], newest: str) -> bool:
    """Whether a checkpoint is not of a subgraph call whose root checkpoint goes; these stay, of which that is the newest.

    A root checkpoint that would come after it is still on its way.
    """
    if ":" not in record.row.ns or not roots:
        return True
    root = (record.own.get("parents") or {}).get("")
    return root is None or root in roots or root > newest


def _without_runs(thread: ThreadRows, runs: frozenset[str]) -> PruneSelection:
    visible = {place for place, r in thread.records.items() if not r.row.hidden and r.row.run not in runs}
    gone = thread.records.keys() - visible  # hidden ones too: what of them is still needed stays anyway
    return PruneSelection(visible, lambda place, entry: place not in gone and entry.origin[1] not in runs)


def _batch(thread: ThreadRows, left: Survivors, nonce: int, runs: frozenset[str] = frozenset()) -> Batch | None:
    """The change that leaves this, or None if all of it is there and nothing else."""
    row = thread.head.row
    assert row is not None
    before = {at(task): task for rows in thread.tasks.values() for task in rows}
    changed = [new for place, new in left.rows.items() if new != thread.records[place].row]
    rewritten = {place: task for place, task in left.tasks.items() if task.row != before[place].row}
    gone = tuple(place for place in thread.records if place not in left.rows)
    gone_writes = tuple(place for place in before if place not in left.tasks)
    if not (gone or gone_writes or changed or rewritten or left.unused):
        return None
    grown = _grown(thread, changed, gone) + _grown_writes(before, rewritten, gone_writes)
    return Batch(
        expect=(row.epoch, row.rev),
        thread=counted(thread, left)._replace(epoch=nonce, rev=row.rev + 1, bytes=grown),
        changed_checkpoints=tuple(changed),
        changed_writes=tuple(task.row for task in rewritten.values()),
        removed_checkpoints=gone,
        removed_writes=gone_writes,
        removed_items=left.unused,
        drops_thread=_ends(left),
        removed_runs=tuple(runs - _runs(left)),
    )


def _ends(left: Survivors) -> bool:
    """Whether nothing is left."""
    return not left.rows and not left.tasks


def _runs(left: Survivors) -> set[str | None]:
    """The runs of what is left, be it hidden: the index has to know of them."""
    written = {entry.origin[1] for task in left.tasks.values() for entry in task.entries.values()}
    return written | {row.run for row in left.rows.values()}


def _grown(thread: ThreadRows, changed: Iterable[CheckpointRow], gone: Iterable[CheckpointPlace]) -> int:
    """By how many bytes the rows of checkpoints grow (or shrink); the items are counted by the backend."""
    grown = sum(row.size - thread.records[(row.ns, row.id)].row.size for row in changed)
    return grown - sum(thread.records[place].row.size for place in gone)


def _grown_writes(
    before: Mapping[TaskPlace, TaskWrites], rewritten: Mapping[TaskPlace, TaskWrites], gone: Iterable[TaskPlace]
) -> int:
    grown = sum(task.row.size - before[place].row.size for place, task in rewritten.items())
    return grown - sum(before[place].row.size for place in gone)
