"""Prune, delete_for_runs and compact: remove checkpoints and writes of a thread, and free the items they alone used.

What to keep is decided on all rows of the thread. The change is committed only if the thread is still the same, else
it is decided again. So writers that change the thread meanwhile lose nothing.

A damaged checkpoint stays, and what it refers to is not known. So until it is repaired, no item of its thread is freed,
and older checkpoints of its namespace are hidden instead of removed: it may have to be rebuilt from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from threadkeep.engine.commit import TRIES, Decision, Seen, commit, dropping_head
from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.lease import FORCED
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, TaskWrites
from threadkeep.engine.requests import (
    Batch,
    CallersLease,
    Commit,
    DropThread,
    FindThreadsOfRuns,
    LoadItems,
    MeasureItems,
)
from threadkeep.engine.threads.damaged_rows import load_rows
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.metadata import root_checkpoint
from threadkeep.engine.threads.survivors import PruneSelection, Survivors, find_survivors, recount, task_key
from threadkeep.engine.threads.thread_rows import CheckpointKey, TaskKey, ThreadRows
from threadkeep.errors import Conflict, Corrupt

KEEP_LATEST = "keep_latest"
STRATEGIES = (KEEP_LATEST, "delete", "delete_all")

Selector = Callable[[ThreadRows], PruneSelection]
"""Decides what to keep of a thread."""


class ThreadLoss(NamedTuple):
    """What a thread loses: checkpoints, those that become hidden, writes, and bytes; everything if it is `dropped`.

    `matching` is that of the PruneSelection, `total` the number of checkpoints that the thread had, hidden or not.
    `damaged` are its damaged checkpoints, which stay.
    """

    dropped: bool = False
    checkpoints: tuple[CheckpointKey, ...] = ()
    hidden: tuple[CheckpointKey, ...] = ()
    writes: int = 0
    bytes: int = 0
    matching: int | None = None
    total: int = 0
    damaged: tuple[CheckpointKey, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the thread does not change."""
        return not (self.dropped or self.checkpoints or self.hidden or self.writes or self.bytes)


async def prune(heads: Heads, key: ThreadKey, strategy: str, nonce: int) -> None:
    """Keep only the latest checkpoint of each namespace, or nothing. Two round trips; one to keep nothing."""
    if strategy == KEEP_LATEST:
        await _commit_selection(heads, key, keep_latest, nonce)
    else:
        await delete(heads, key)


async def delete(heads: Heads, key: ThreadKey) -> None:
    """Delete a thread; nothing happens if it does not exist. One round trip; four if it has a lease."""
    lease = await CallersLease() if heads.has_leases else None
    if lease in (None, FORCED):
        try:
            with dropping_head(heads, key):
                await DropThread(key, leased=lease is not None)
        except Conflict:
            pass  # it has a lease
        else:
            return
    await commit(heads, key, partial(_read_row, key), _drop_if_there)


async def _read_row(key: ThreadKey) -> Seen[None]:
    return Seen(None, (await LoadItems(key, ())).thread)


def _drop_if_there(seen: Seen[None], _: int) -> Decision[None]:
    row = seen.row
    if row is None:
        return Decision(None)
    return Decision(None, Commit(Batch((row.epoch, row.rev), row._replace(bytes=0), drops_thread=True)))


async def threads_of_runs(tenant: str, kind: Kind, runs: Iterable[str]) -> tuple[ThreadKey, ...]:
    """Return the threads that have checkpoints or writes of these runs. One round trip."""
    return await FindThreadsOfRuns(tenant, kind, tuple(runs))


async def delete_runs(heads: Heads, key: ThreadKey, runs: frozenset[str], nonce: int) -> None:
    """Delete what these runs left in a thread: their checkpoints, and their writes on other checkpoints.

    Two round trips; one if there is nothing to delete.
    """
    await _commit_selection(heads, key, lambda thread: _without_runs(thread, runs), nonce, runs)


async def prune_thread(
    heads: Heads, key: ThreadKey, select: Selector, nonce: int, *, dry_run: bool = False, tries: int = TRIES
) -> ThreadLoss | None:
    """Keep what `select` selects; return what was removed, or would be in a dry run.

    None if the thread does not change and has no damage, or if it does not exist. Three round trips: the removed items
    are measured first. Conflict if others changed the thread at each try.
    """

    async def read() -> Seen[_MeasuredPrune | None]:
        thread = await load_rows(heads, key)
        if thread is None:
            return Seen(None, None)
        selection = select(thread)
        left = _survivors(thread, selection)
        freed = await _measure_unused(thread, left)
        return Seen(_MeasuredPrune(thread, left, freed, selection), thread.head.row)

    def decide(seen: Seen[_MeasuredPrune | None], attempt: int) -> Decision[ThreadLoss | None]:
        measured = seen.state
        batch = None
        if measured is not None:
            drops_empty = measured.selection.drops_empty
            batch = _batch(measured.thread, measured.left, nonce + attempt, drops_empty=drops_empty)
        if measured is None or batch is None:
            damaged = sorted(measured.thread.damaged_keys()) if measured is not None else ()
            return Decision(ThreadLoss(damaged=tuple(damaged)) if damaged else None)
        return Decision(_loss(measured, batch), None if dry_run else Commit(batch))

    return await commit(heads, key, read, decide, tries=tries)


class _MeasuredPrune(NamedTuple):
    """A thread, what remains of it, the stored bytes of the items that are removed, and what was selected."""

    thread: ThreadRows
    left: Survivors
    freed: int
    selection: PruneSelection


async def _measure_unused(thread: ThreadRows, left: Survivors) -> int:
    """The stored bytes of the items that are removed; 0 if the whole thread is, whose row has its bytes."""
    if left.is_empty or not left.unused:
        return 0
    row, items = await MeasureItems(thread.key, left.unused)
    if not thread.head.has_epoch_of(row):
        raise Conflict(f"thread {thread.key.id!r} was pruned by others")
    return sum(length for _, _, length, _ in items)


def _loss(measured: _MeasuredPrune, batch: Batch) -> ThreadLoss:
    thread, left, freed, selection = measured
    row = thread.head.row
    assert row is not None
    hidden = (key for key, new in left.rows.items() if new.hidden and not thread.records[key].row.hidden)
    size = row.bytes if batch.drops_thread else freed - batch.thread.bytes
    return ThreadLoss(
        dropped=batch.drops_thread,
        checkpoints=tuple(sorted(batch.removed_checkpoints)),
        hidden=tuple(sorted(hidden)),
        writes=row.writes - batch.thread.writes,
        bytes=size,
        matching=selection.matching,
        total=len(thread.records) + len(thread.damaged),
        damaged=tuple(sorted(thread.damaged_keys())),
    )


class Freed(NamedTuple):
    """The number of freed items, the thread's stored bytes before and after, and whether it has damaged rows."""

    items: int
    before: int
    after: int
    damaged: bool = False


async def free_unused_items(heads: Heads, key: ThreadKey, nonce: int) -> Freed:
    """Free the items that nothing refers to. Two round trips; four if there are any; one if there is no thread.

    Hidden checkpoints that no delta channel needs any more, and the writes on them, are removed too.
    """
    row = (await LoadItems(key, ())).thread
    if row is None:
        return Freed(0, 0, 0)
    damaged, batch = await _commit_selection(heads, key, _keep_all, nonce)
    if batch is None:
        return Freed(0, row.bytes, row.bytes, damaged)
    left = (await LoadItems(key, ())).thread
    freed = sum(each.length for each in batch.removed_items)
    return Freed(freed, row.bytes, left.bytes if left is not None else 0, damaged)


def _keep_all(thread: ThreadRows) -> PruneSelection:
    """Keep all visible checkpoints, and all writes except those on hidden checkpoints."""
    hidden = {key for key, record in thread.records.items() if record.row.hidden}
    return PruneSelection(thread.records.keys() - hidden, lambda key, _: key not in hidden)


async def _commit_selection(
    heads: Heads, key: ThreadKey, select: Selector, nonce: int, runs: frozenset[str] = frozenset()
) -> tuple[bool, Batch | None]:
    """Remove what `select` does not select. Return whether the thread is damaged, and the committed batch.

    The batch is None if there was nothing to remove.
    """

    async def read() -> Seen[ThreadRows | None]:
        thread = await load_rows(heads, key)
        return Seen(thread, thread.head.row if thread is not None else None)

    def decide(seen: Seen[ThreadRows | None], attempt: int) -> Decision[tuple[bool, Batch | None]]:
        thread = seen.state
        if thread is None:
            return Decision((False, None))
        batch = _batch(thread, _survivors(thread, select(thread)), nonce + attempt, runs)
        return Decision((thread.is_damaged, batch), Commit(batch) if batch is not None else None)

    return await commit(heads, key, read, decide)


def _survivors(thread: ThreadRows, selection: PruneSelection) -> Survivors:
    """What a selection leaves of a thread; see the top of this file for a thread with damage.

    Corrupt if rows are missing: what they refer to is not known, and counting again would hide that they are missing.
    """
    if thread.incomplete is not None:
        raise Corrupt(f"{thread.incomplete}: run repair first")
    if not thread.is_damaged:
        return find_survivors(thread, selection)
    damaged = thread.damaged_keys()
    visible = {key for key, record in thread.records.items() if _belongs_to(record, damaged) and not record.row.hidden}
    newest: dict[str, str] = {}
    for ns, id in damaged:
        newest[ns] = max(id, newest.get(ns, id))
    hidden = {(ns, id) for ns, id in thread.records if id <= newest.get(ns, "")} - selection.visible - visible
    kept = PruneSelection(
        selection.visible | visible,
        lambda key, entry: key in damaged or key in hidden or selection.keeps_write(key, entry),
        hidden,
    )
    return find_survivors(thread, kept)._replace(unused=())


def _belongs_to(record: CheckpointRecord, damaged: set[CheckpointKey]) -> bool:
    """Whether a checkpoint is one of these, which have damaged writes, or of a subgraph that one of them called."""
    parents = record.own_metadata.get("parents")
    root = parents.get("") if isinstance(parents, dict) else None
    return (record.row.ns, record.row.id) in damaged or (isinstance(root, str) and ("", root) in damaged)


def keep_latest(thread: ThreadRows) -> PruneSelection:
    """Keep the latest checkpoint of each namespace; that of a subgraph call only if its root checkpoint is kept."""
    latest: dict[str, str] = {}
    for (ns, id), record in thread.records.items():
        if not record.row.hidden:
            latest[ns] = max(id, latest.get(ns, id))
    newest = latest.get("", "")
    roots = {newest} if "" in latest else set()
    kept = {(ns, id) for ns, id in latest.items() if is_root_kept(thread.records[(ns, id)], roots, newest)}
    return selection_of(thread, kept)


def selection_of(thread: ThreadRows, kept: set[CheckpointKey]) -> PruneSelection:
    """Keep these checkpoints with their writes, and writes without a checkpoint: it may still be put."""
    return PruneSelection(kept, lambda key, _: key in kept or key not in thread.records)


def is_root_kept(record: CheckpointRecord, roots: set[str], newest: str) -> bool:
    """Return False for a checkpoint of a subgraph call whose root checkpoint is removed, True for any other.

    `roots` are the root checkpoints that are kept, `newest` is the greatest of them. A root checkpoint after that may
    still be put.
    """
    if ":" not in record.row.ns or not roots:
        return True
    root = root_checkpoint(record.own_metadata)
    return root is None or root in roots or root > newest


def _without_runs(thread: ThreadRows, runs: frozenset[str]) -> PruneSelection:
    visible = {key for key, r in thread.records.items() if not r.row.hidden and r.row.run not in runs}
    removed = thread.records.keys() - visible  # hidden ones too: those that delta channels need stay anyway
    return PruneSelection(visible, lambda key, entry: key not in removed and entry.origin[1] not in runs)


def _batch(
    thread: ThreadRows,
    left: Survivors,
    nonce: int,
    runs: frozenset[str] = frozenset(),
    *,
    drops_empty: bool = False,
) -> Batch | None:
    """The change from a thread to its survivors; None if nothing changes, or nothing may change."""
    row = thread.head.row
    assert row is not None
    if thread.names_damaged:
        return None
    before = {task_key(task): task for tasks in thread.tasks.values() for task in tasks}
    changed = [new for key, new in left.rows.items() if new != thread.records[key].row]
    changed_tasks = {key: task for key, task in left.tasks.items() if task.row != before[key].row}
    removed = tuple(key for key in thread.records if key not in left.rows)
    removed_tasks = tuple(key for key in before if key not in left.tasks)
    is_changed = removed or removed_tasks or changed or changed_tasks or left.unused
    if not is_changed and not (drops_empty and left.is_empty):
        return None
    grown = _checkpoint_growth(thread, changed, removed) + _write_growth(before, changed_tasks, removed_tasks)
    return Batch(
        expect=(row.epoch, row.rev),
        thread=recount(thread, left)._replace(epoch=nonce, rev=row.rev + 1, bytes=grown),
        changed_checkpoints=tuple(changed),
        changed_writes=tuple(task.row for task in changed_tasks.values()),
        removed_checkpoints=removed,
        removed_writes=removed_tasks,
        removed_items=left.unused,
        drops_thread=left.is_empty,
        removed_runs=() if thread.is_damaged else tuple(runs - _remaining_runs(left)),
    )


def _remaining_runs(left: Survivors) -> set[str | None]:
    """The runs of all that remains, hidden or not: the index of runs must keep them."""
    of_writes = {entry.origin[1] for task in left.tasks.values() for entry in task.entries.values()}
    return of_writes | {row.run for row in left.rows.values()}


def _checkpoint_growth(thread: ThreadRows, changed: Iterable[CheckpointRow], removed: Iterable[CheckpointKey]) -> int:
    """By how many bytes the checkpoint rows grow, or shrink if it is negative. The backend counts the items."""
    grown = sum(row.size - thread.records[(row.ns, row.id)].row.size for row in changed)
    return grown - sum(thread.records[key].row.size for key in removed)


def _write_growth(
    before: Mapping[TaskKey, TaskWrites], changed: Mapping[TaskKey, TaskWrites], removed: Iterable[TaskKey]
) -> int:
    """The same for the rows of writes."""
    grown = sum(task.row.size - before[key].row.size for key, task in changed.items())
    return grown - sum(before[key].row.size for key in removed)
