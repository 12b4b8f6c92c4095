"""Repair a thread: rebuild a damaged checkpoint as a new branch, or discard what is damaged.

A rebuild overwrites and removes nothing: the damaged checkpoint stays until it is discarded. Both rebuild the thread's
own row, if that is damaged or does not match the other rows.

The id of the new checkpoint is greater than all others of its namespace, so a graph continues from it. Its metadata
`repaired` names the damaged one. Each row is read by itself, so a damaged row does not hide others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from threadkeep.engine.commit import TRIES, Decision, Seen, commit
from threadkeep.engine.cube.repair import repair_cube
from threadkeep.engine.health.discard import discard
from threadkeep.engine.health.rebuild import Rebuilder, RebuiltState, Replay
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.health.thread_row import RowRepair, is_row_damaged, repair_thread_row
from threadkeep.engine.health.thread_scan import ThreadScan, scan_thread
from threadkeep.engine.health.verify import verify_thread
from threadkeep.engine.identity import CUBE, Kind, ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.itemlog import NAMES
from threadkeep.engine.log.records import CheckpointRow
from threadkeep.engine.requests import Batch, Commit
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.ops import Put
from threadkeep.engine.threads.rollback import BranchStamp, new_checkpoint_id
from threadkeep.engine.threads.staging import CheckpointStaging
from threadkeep.engine.threads.thread_rows import ANCESTOR_REF, CheckpointKey, TaskKey, match_id
from threadkeep.errors import Corrupt, Missing
from threadkeep.plan import result
from threadkeep.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair made, or would make.

    `damaged` is the checkpoint that was repaired, None if there is nothing to do. `checkpoint` is the new one, None if
    nothing was done; `parent` is its parent. `channels` says how each was obtained: intact, taken from an ancestor,
    rebuilt from one and writes, what can be read of it, or lost. `assumptions` lists what is not certain, `affected`
    the other damaged checkpoints.

    `discarded` are the checkpoints that were removed, as (namespace, id), and `discarded_writes` the writes that were
    removed from other checkpoints, as (namespace, checkpoint, task). `thread_row` are the columns of the thread's own
    row that were corrected.
    """

    thread: str
    kind: Kind
    ns: str
    damaged: str | None
    checkpoint: str | None = None
    parent: str | None = None
    channels: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    affected: list[str] = field(default_factory=list)
    discarded: list[CheckpointKey] = field(default_factory=list)
    discarded_writes: list[TaskKey] = field(default_factory=list)
    thread_row: tuple[str, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Which checkpoint to repair, in which namespace, and the stamp of the new branch.

    `ref` None means the newest, if it is damaged. With `discard`, what is damaged is removed, and all of it if `ref` is
    None.
    """

    ref: str | None
    ns: str
    stamp: BranchStamp
    dry_run: bool = False
    discard: bool = False


async def repair(heads: Heads, key: ThreadKey, options: RepairOptions, replay: Replay | None) -> RepairResult:
    """Rebuild a checkpoint as a new branch, with the graph behind `replay` if it is given; or discard what is damaged.

    Missing if the thread or the checkpoint does not exist. Corrupt if nothing is left to build from, or if nothing can
    be added to the thread. The round trips of `verify`, one or more to read items, and one to commit; one before and
    after that to check the thread's own row, one more to correct it.
    """
    nonce, dry_run = options.stamp.nonce, options.dry_run
    row = await _repair_damaged_row(heads, key, nonce, dry_run=dry_run)
    if row.was_damaged and dry_run:
        more = "the rest can be examined when the thread's own row has been rebuilt"
        return RepairResult(key.id, key.kind, options.ns, None, assumptions=[more], thread_row=row.columns)
    step = _discard_all(heads, key, options) if options.discard else _rebuild_one(heads, key, options, replay)
    repaired = await step
    if not (dry_run and (repaired.damaged is not None or repaired.discarded or repaired.discarded_writes)):
        after = await repair_thread_row(heads, key, nonce + TRIES, dry_run=dry_run)
        row = row._replace(columns=tuple(dict.fromkeys(row.columns + after.columns)))
    return replace(repaired, thread_row=row.columns)


async def _repair_damaged_row(heads: Heads, key: ThreadKey, nonce: int, *, dry_run: bool) -> RowRepair:
    """Rebuild the thread's own row if it cannot be trusted. If it only has wrong counters, it is corrected later."""
    found = await InspectThread(key)
    if not found.exists or not is_row_damaged(scan_thread(key, found)):
        return RowRepair()
    return await repair_thread_row(heads, key, nonce, dry_run=dry_run)


async def _rebuild_one(heads: Heads, key: ThreadKey, options: RepairOptions, replay: Replay | None) -> RepairResult:
    async def read() -> Seen[tuple[RepairResult, Batch | None]]:
        scan = await _verify(key)
        _check_writable(scan)
        return Seen(await _rebuild(scan, options, replay), scan.row, scan.records)

    def decide(seen: Seen[tuple[RepairResult, Batch | None]], _: int) -> Decision[RepairResult]:
        repaired, batch = seen.state
        return Decision(repaired, Commit(batch) if batch is not None else None)

    return await commit(heads, key, read, decide)


async def _verify(key: ThreadKey) -> ThreadScan:
    scan = await verify_thread(key)
    if scan is None or not scan.inspected.exists:
        raise Missing(f"thread {key.id!r} not found")
    return scan


# --- discard


async def _discard_all(heads: Heads, key: ThreadKey, options: RepairOptions) -> RepairResult:

    async def read() -> Seen[ThreadScan]:
        scan = await _verify(key)
        return Seen(scan, scan.row, scan.records)

    def decide(seen: Seen[ThreadScan], attempt: int) -> Decision[RepairResult]:
        scan = seen.state
        if scan.row is None:
            raise Corrupt(f"the row of {scan.where} cannot be rebuilt")
        target = _target(Rebuilder(scan, None), options) if options.ref is not None else None
        checkpoints, writes, batch = discard(scan, target, options.stamp.nonce + 2 * TRIES + attempt)
        found = RepairResult(
            key.id,
            key.kind,
            options.ns,
            target[1] if target is not None and checkpoints else None,
            assumptions=_consequences(scan, batch) if batch is not None else [],
            discarded=checkpoints,
            discarded_writes=writes,
        )
        return Decision(found, Commit(batch) if batch is not None and not options.dry_run else None)

    return await commit(heads, key, read, decide)


def _consequences(scan: ThreadScan, batch: Batch) -> list[str]:
    """What a user should know of a thread after damage was discarded."""
    if batch.drops_thread:
        return ["nothing of the thread is left: it is deleted"]
    old, new = scan.row.top if scan.row is not None else None, batch.thread.top
    return [] if old == new else [f"the latest checkpoint is {new}; it was {old}"]


# --- rebuild


async def _rebuild(
    scan: ThreadScan, options: RepairOptions, replay: Replay | None
) -> tuple[RepairResult, Batch | None]:
    """Return the result and the batch that makes it; None if there is nothing to do or it is a dry run."""
    rebuilder = Rebuilder(scan, replay)
    target = _target(rebuilder, options)
    affected = sorted(f"{ns}|{id}" if ns else id for ns, id in rebuilder.damaged if (ns, id) != target)
    found = RepairResult(scan.key.id, scan.key.kind, options.ns, None, affected=affected)
    if target is None or (target not in rebuilder.damaged and target in scan.records):
        intact = ["the newest checkpoint is intact, so the thread can continue; to repair an older one, name it"]
        return replace(found, assumptions=intact if affected else []), None
    id = _fresh_id(scan, target[0], options.stamp)
    make_branch = repair_cube if scan.key.kind == CUBE else _repair_graph
    row, channels, batch = await make_branch(rebuilder, target, id, options.stamp)
    made = replace(found, damaged=target[1], parent=row.parent, channels=channels, assumptions=[*rebuilder.assumptions])
    return (made, None) if options.dry_run else (replace(made, checkpoint=row.id), batch)


# --- what to repair


def _check_writable(scan: ThreadScan) -> None:
    """Raise Corrupt if the thread's row or names are damaged: nothing can be written to such a thread."""
    advice = "nothing can be added to the thread. Restore it from a backup; `verify` lists what is damaged"
    if scan.row is None:
        raise Corrupt(f"the row of {scan.where} cannot be read: {advice}")
    names = [id.n for id in scan.bad_items if id.lane == NAMES]
    if names:
        numbers, count = ", ".join(map(str, names[:5])), len(scan.records) + len(scan.broken)
        raise Corrupt(
            f"{scan.where}: {len(names)} names of channels or nodes are damaged (no. {numbers}), "
            f"which its {count} checkpoints use: {advice}"
        )


def _target(rebuilder: Rebuilder, options: RepairOptions) -> CheckpointKey | None:
    """The checkpoint that is named; else the newest, if it is damaged.

    An older one must be named, because the new branch becomes the latest.
    """
    scan, ns = rebuilder.scan, options.ns
    ids = {id for space, id in (*scan.records, *scan.broken, *_top(scan)) if space == ns}
    if options.ref is not None:
        parents = {r.row.parent for (space, _), r in scan.records.items() if space == ns and r.row.parent is not None}
        return (ns, _resolve_id(sorted(ids | parents), options.ref, scan.where))
    newest = max(ids - {row.id for row in scan.inspected.checkpoints if row.ns == ns and row.hidden}, default=None)
    is_damaged = (ns, newest) in rebuilder.damaged or (ns, newest) not in scan.records
    return (ns, newest) if newest is not None and is_damaged else None


def _top(scan: ThreadScan) -> set[CheckpointKey]:
    """The newest root checkpoint according to the thread's row. Its own row may be gone."""
    return {("", scan.row.top)} if scan.row is not None and scan.row.top is not None else set()


def _resolve_id(ids: list[str], ref: str, where: str) -> str:
    """The id that a reference means, as for `thread_rows.find`; but `~2` goes back by id, as parents may be gone."""
    back = ANCESTOR_REF.fullmatch(ref) if ref not in ids else None
    if back is None:
        return ref if ref in ids else match_id(ids, ref, where)
    index = ids.index(_resolve_id(ids, back["ref"], where)) - int(back["steps"])
    if index < 0:
        raise Missing(f"checkpoint {ref!r} not found in {where}")
    return ids[index]


# --- the new branch


async def _repair_graph(
    rebuilder: Rebuilder, target: CheckpointKey, id: str, stamp: BranchStamp
) -> tuple[CheckpointRow, dict[str, str], Batch]:
    """A new checkpoint of a LangGraph thread, how its channels were obtained, and the batch."""
    scan = rebuilder.scan
    rebuilt = await rebuilder.state(target)
    if rebuilt is None:
        problem = "no checkpoint before it can be read"
        raise Corrupt(f"checkpoint {target[1]!r} of {scan.where} cannot be rebuilt: {problem}")
    state, base = rebuilt
    _note_consequences(rebuilder, target)
    intact = (at for at in rebuilder.ancestors(target) if at in scan.records and at not in rebuilder.damaged)
    parent = next(intact, None)
    op = _put(state, target[0], parent[1] if parent else None, id, stamp, _metadata(rebuilder, target, base))
    op.rest = scan.records[target].rest if target in scan.records else None
    recent = {parent: scan.records[parent]} if parent is not None else {}
    staging = CheckpointStaging(rebuilder.head._replace(recent=recent), {})
    result(staging.take(op))
    batch = staging.batch()
    assert batch is not None
    return batch.new_checkpoints[0], dict(sorted(state.origins.items())), batch


def _note_consequences(rebuilder: Rebuilder, target: CheckpointKey) -> None:
    scan, (ns, id) = rebuilder.scan, target
    tasks = scan.tasks.get(target, ())
    if tasks:  # their writes belong to the id of the damaged checkpoint
        rebuilder.assume(f"{len(tasks)} tasks had written on {id}: on the new branch they run again")
    newer = [other for space, other in scan.records if space == ns and other > id]
    if newer:
        rebuilder.assume(f"{max(newer)} is newer than {id}: from now on the new branch is the latest")


def _put(
    state: RebuiltState, ns: str, parent: str | None, id: str, stamp: BranchStamp, given_metadata: dict[str, Any]
) -> Put:
    checkpoint = {
        "v": 4,
        **state.fields,
        "ts": stamp.timestamp,
        "id": id,
        "channel_values": state.values,
        "channel_versions": state.versions,
        "versions_seen": state.seen,
    }
    op = Put(Codec(None), ns, parent, checkpoint, given_metadata, new_versions={}, time=stamp.time, nonce=stamp.nonce)
    op.encoded = dict(state.values)
    return op


def _fresh_id(scan: ThreadScan, ns: str, stamp: BranchStamp) -> str:
    """An id greater than all that a namespace has or names."""
    ids = (id for space, id in (*scan.records, *scan.broken, *scan.tasks, *_top(scan)) if space == ns)
    return new_checkpoint_id(max(ids), stamp)


def _metadata(rebuilder: Rebuilder, target: CheckpointKey, base: CheckpointKey) -> dict[str, Any]:
    """The metadata of the damaged checkpoint, as far as it can be read; else that of the one it is built from."""
    scan, record = rebuilder.scan, rebuilder.scan.records[base]
    step, own = record.row.step, dict(record.own_metadata)
    if base != target:
        row = next((row for row in scan.inspected.checkpoints if (row.ns, row.id) == target), None)
        steps = 1 + list(rebuilder.ancestors(target)).index(base)
        step = row.step if row is not None and row.step is not None else (step or 0) + steps
        own = {key: value for key, value in own.items() if key == "parents"}
    labels = scan.labels(record.row.labels) or {}
    numbered = {"step": step} if step is not None else {}
    return {**numbered, **own, **labels, "source": "fork", "repaired": target[1]}
