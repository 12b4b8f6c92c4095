"""Letting go: prune, delete_for_runs. What nothing refers to any more is freed in the same commit.

Delta channels are not held by a checkpoint alone: their value is rebuilt from ancestors back to the nearest stored one.
Ancestors that a survivor needs for that are not removed but hidden: readable by id, absent from everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from threadkeep.engine import itemlog
from threadkeep.engine.backend import Batch, Commit, Drop, Items, Pause, RunThreads, Survey
from threadkeep.engine.checkpoints import TRIES
from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.itemlog import NAMES, SHARED, Run
from threadkeep.engine.records import CheckpointRow, Entry, Record, TaskWrites, ThreadRow, pack_writes, reseal
from threadkeep.engine.status import of_checkpoint, of_writes, worse
from threadkeep.engine.survey import Place, Whole, whole
from threadkeep.errors import Conflict

KEEP_LATEST = "keep_latest"
STRATEGIES = (KEEP_LATEST, "delete", "delete_all")

_TaskPlace = tuple[str, str, str]


class _Verdict(NamedTuple):
    """What shall be left: visible checkpoints, and which writes of which place (an entry may still be needed)."""

    visible: set[Place]
    stays: Callable[[Place, Entry], bool]


Judge = Callable[[Whole], _Verdict]


async def prune(heads: Heads, key: ThreadKey, strategy: str, draw: int) -> None:
    """Keep only the latest checkpoint of each namespace, or nothing. Two round trips; one for nothing."""
    if strategy == KEEP_LATEST:
        await _judge(heads, key, _keep_latest, draw)
    else:
        await delete(heads, key)


async def delete(heads: Heads, key: ThreadKey) -> None:
    """Remove a thread. One round trip."""
    heads.forget(key)
    await Drop(key)
    heads.forget(key)


async def threads_of_runs(tenant: str, kind: str, runs: Iterable[str]) -> tuple[ThreadKey, ...]:
    """The threads in which these runs left something."""
    return await RunThreads(tenant, kind, tuple(runs))


async def delete_runs(heads: Heads, key: ThreadKey, runs: frozenset[str], draw: int) -> None:
    """Remove what these runs left in a thread: their checkpoints, and their writes on others' checkpoints."""
    await _judge(heads, key, lambda thread: _without_runs(thread, runs), draw, runs)


class Freed(NamedTuple):
    """How many items were freed, and the thread's stored bytes before and after."""

    items: int
    before: int
    after: int


async def free(heads: Heads, key: ThreadKey, draw: int) -> Freed:
    """Free what nothing refers to, and nothing else. Two round trips; four if there is something."""
    row = (await Items(key, ())).thread
    batch = await _judge(heads, key, _keep_all, draw) if row is not None else None
    if row is None or batch is None:
        return Freed(0, row.bytes if row is not None else 0, row.bytes if row is not None else 0)
    left = (await Items(key, ())).thread
    return Freed(sum(run.length for run in batch.gone_items), row.bytes, left.bytes if left is not None else 0)


def _keep_all(thread: Whole) -> _Verdict:
    """All that is visible, and all writes but those on hidden checkpoints that serve nothing any more."""
    hidden = {place for place, record in thread.records.items() if record.row.hidden}
    return _Verdict(thread.records.keys() - hidden, lambda place, _: place not in hidden)


async def _judge(
    heads: Heads, key: ThreadKey, judge: Judge, draw: int, runs: frozenset[str] = frozenset()
) -> Batch | None:
    """Make the change that a verdict demands; what it was, None if nothing had to be done."""
    for attempt in range(TRIES):
        thread = whole(heads, key, await Survey(key))
        if thread is None:
            return None
        batch = _batch(thread, judge(thread), draw + attempt, runs)
        if batch is None:
            return None
        heads.forget(key)
        try:
            await Commit(batch)
        except Conflict:
            await Pause(attempt)
        else:
            return batch
        finally:
            heads.forget(key)
    raise Conflict(f"thread {key.id!r} was changed by others at each of {TRIES} tries")


def _keep_latest(thread: Whole) -> _Verdict:
    """The latest of each namespace; that of a subgraph call goes with the root checkpoint that it belongs to.

    Writes without a checkpoint stay: theirs may be on its way.
    """
    latest: dict[str, str] = {}
    for (ns, id), record in thread.records.items():
        if not record.row.hidden:
            latest[ns] = max(id, latest.get(ns, id))
    kept = {(ns, id) for ns, id in latest.items() if _belongs(thread.records[(ns, id)], latest)}
    return _Verdict(kept, lambda place, _: place in kept or place not in thread.records)


def _belongs(record: Record, latest: Mapping[str, str]) -> bool:
    if ":" not in record.row.ns:
        return True
    root = (record.own.get("parents") or {}).get("")
    return root is None or "" not in latest or root == latest[""]


def _without_runs(thread: Whole, runs: frozenset[str]) -> _Verdict:
    visible = {place for place, r in thread.records.items() if not r.row.hidden and r.row.run not in runs}
    gone = {place for place, r in thread.records.items() if r.row.run in runs}
    return _Verdict(visible, lambda place, entry: place not in gone and entry.origin[1] not in runs)


def _needed(thread: Whole, visible: set[Place]) -> dict[Place, set[str]]:
    """The ancestors that survivors' delta channels are rebuilt from, with the channels that they serve."""
    deltas = delta_channels(thread.records)
    needed: dict[Place, set[str]] = {}
    for survivor in visible:
        place, walked = survivor, {survivor}
        looking = deltas[place] - thread.records[place].slots.keys()
        while looking:
            place = _parent(thread.records[place])
            if place in walked or place not in thread.records:
                break
            walked.add(place)
            needed.setdefault(place, set()).update(looking)
            looking -= thread.records[place].slots.keys()
    return needed


def delta_channels(records: Mapping[Place, Record]) -> dict[Place, frozenset[str]]:
    """The delta channels of each checkpoint: metadata counts them, there or before, or a snapshot of them is held."""
    known: dict[Place, frozenset[str]] = {}
    for start in records:
        path: dict[Place, None] = {}
        place = start
        while place in records and place not in known and place not in path:
            path[place] = None
            place = _parent(records[place])
        names = known.get(place, frozenset())
        for passed in reversed(path):
            names |= _own_delta_channels(records[passed])
            known[passed] = names
    return known


def _own_delta_channels(record: Record) -> frozenset[str]:
    counted = (record.own.get(key) or () for key in ("counters_since_delta_snapshot", "delta_writes_versioned"))
    held = (name for name, slot in record.slots.items() if slot.snapshot)
    return frozenset((*(name for names in counted for name in names), *held))


def _parent(record: Record) -> Place:
    return (record.row.ns, record.row.parent or "")


def _batch(thread: Whole, verdict: _Verdict, draw: int, runs: frozenset[str]) -> Batch | None:
    """The change that leaves what the verdict says, or None if all of it is there and nothing else."""
    row = thread.head.row
    assert row is not None
    needed = _needed(thread, verdict.visible)
    stay = verdict.visible | needed.keys()
    left = _writes_left(thread, verdict, needed)
    changed = [
        new
        for place in stay
        if (new := _left(thread, place, stay, hidden=place not in verdict.visible)) != thread.records[place].row
    ]
    rewritten = _rewritten(thread, left)
    gone = tuple(place for place in thread.records if place not in stay)
    gone_writes = tuple(at for rows in thread.tasks.values() for task in rows if (at := _at(task)) not in left)
    after = [rewritten.get(at, task) for at, task in left.items()]
    unused = _unused(thread, stay, after)
    if not (gone or gone_writes or changed or rewritten or unused):
        return None
    grown = _grown(thread, changed, gone, rewritten, gone_writes)
    return Batch(
        expect=(row.epoch, row.rev),
        thread=_counted(thread, row, verdict.visible, after, draw, grown),
        changed_checkpoints=tuple(changed),
        changed_writes=tuple(task.row for task in rewritten.values()),
        gone_checkpoints=gone,
        gone_writes=gone_writes,
        gone_items=unused,
        ends=not stay and not after,
        gone_runs=tuple(runs),
    )


def _at(task: TaskWrites) -> _TaskPlace:
    return (task.row.ns, task.row.checkpoint, task.row.task)


def _writes_left(thread: Whole, verdict: _Verdict, needed: Mapping[Place, set[str]]) -> dict[_TaskPlace, TaskWrites]:
    """The writes that the verdict leaves, and those that delta channels are rebuilt from, whoever made them."""
    left = {}
    for place, rows in thread.tasks.items():
        serving = needed.get(place, set())
        for task in rows:
            kept = {
                idx: entry
                for idx, entry in task.entries.items()
                if entry.channel in serving or verdict.stays(place, entry)
            }
            if kept:
                left[_at(task)] = task._replace(entries=kept)
    return left


def _left(thread: Whole, place: Place, stay: set[Place], *, hidden: bool) -> CheckpointRow:
    """A row that stays; it forgets a parent that goes, but not one that never was there."""
    row = thread.records[place].row
    parent = _parent(thread.records[place])
    lost = row.parent is not None and parent in thread.records and parent not in stay
    changed = row._replace(parent=None if lost else row.parent, hidden=hidden)
    return row if changed == row else reseal(row, changed, thread.head.where)


def _rewritten(thread: Whole, left: Mapping[_TaskPlace, TaskWrites]) -> dict[_TaskPlace, TaskWrites]:
    """Tasks of which some writes went and some stay."""
    numbers = {name: n for n, name in enumerate(thread.head.names)}
    names = thread.head.reading()._replace(number=numbers.__getitem__)
    return {
        at: TaskWrites(pack_writes(task.row, task.entries, names), task.entries)
        for at, task in left.items()
        if len(task.entries) * 3 != len(task.row.index)
    }


def _unused(thread: Whole, stay: set[Place], tasks: list[TaskWrites]) -> tuple[Run, ...]:
    """The items that no row refers to after this. Names stay: their numbers are counted on."""
    records = [thread.records[place] for place in stay]
    used = [run for record in records for run in record.row.refs]
    used += [run for record in records for slot in record.slots.values() for run in slot.runs]
    used += [run for task in tasks for entry in task.entries.values() for run in (*entry.slot.runs, *entry.slot.refs())]
    used += [Run(SHARED, record.row.labels, 1) for record in records]
    return itemlog.minus((run for run in thread.stored if run.lane != NAMES), itemlog.union(used))


def _grown(
    thread: Whole,
    changed: list[CheckpointRow],
    gone: tuple[Place, ...],
    rewritten: Mapping[_TaskPlace, TaskWrites],
    gone_writes: tuple[_TaskPlace, ...],
) -> int:
    """By how many bytes the rows grow (or shrink); the items are counted by the backend."""
    old = {_at(task): task.row.size for rows in thread.tasks.values() for task in rows}
    grown = sum(row.size - thread.records[(row.ns, row.id)].row.size for row in changed)
    grown += sum(task.row.size - old[place] for place, task in rewritten.items())
    return grown - sum(thread.records[place].row.size for place in gone) - sum(old[place] for place in gone_writes)


def _counted(
    thread: Whole, row: ThreadRow, visible: set[Place], tasks: list[TaskWrites], draw: int, grown: int
) -> ThreadRow:
    """The thread row after this, in a new epoch; the catalogue's columns are told anew."""
    tops = [thread.records[place] for place in visible if place[0] == ""]
    top = max(tops, key=lambda record: record.row.id, default=None)
    status = of_checkpoint(top) if top else "idle"
    if top and row.key.kind == CUBE and top.row.id == row.top:
        status = row.status  # a talk's is not in its checkpoint alone
    for task in tasks:
        if top and (task.row.ns, task.row.checkpoint) == ("", top.row.id):
            status = worse(status, of_writes(entry.channel for entry in task.entries.values()))
    early, waiting = _early(thread, top.row.id if top else "", tasks)
    return row._replace(
        early=early, early_status=waiting, epoch=draw, rev=row.rev + 1, bytes=grown, checkpoints=len(visible), run=top.row.run if top else None,
        writes=sum(len(task.entries) for task in tasks), status=status,
        top=top.row.id if top else None, step=top.row.step if top else None,
        source=top.row.source if top else None, labels=top.row.labels if top else None,
    )  # fmt: skip


def _early(thread: Whole, top: str, tasks: list[TaskWrites]) -> tuple[str | None, str | None]:
    """The greatest checkpoint after the top that has writes but is not there, and the status that they give."""
    waiting = [
        t for t in tasks if t.row.ns == "" and t.row.checkpoint > top and ("", t.row.checkpoint) not in thread.records
    ]
    early = max((task.row.checkpoint for task in waiting), default=None)
    channels = [entry.channel for t in waiting if t.row.checkpoint == early for entry in t.entries.values()]
    return (early, of_writes(channels)) if early is not None else (None, None)
