"""Repair: rebuild the state of a damaged checkpoint as a new branch. Nothing is overwritten or removed.

The id of the new checkpoint is greater than all others of its namespace, so a graph continues from it. Its metadata
`repaired` names the damaged one. Each row is read by itself, so a damaged row does not hide others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from threadkeep.engine.commit import Decision, Seen, commit
from threadkeep.engine.cube.repair import repair_cube
from threadkeep.engine.health.rebuild import Rebuilder, Replay
from threadkeep.engine.health.thread_scan import ThreadScan
from threadkeep.engine.health.verify import examined
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.itemlog import NAMES
from threadkeep.engine.log.records import CheckpointRow
from threadkeep.engine.requests import Batch, Commit
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.branches import BranchStamp, fresh_id
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.ops import Put
from threadkeep.engine.threads.staging import CheckpointStaging
from threadkeep.engine.threads.thread_rows import BACK, CheckpointPlace, match_id
from threadkeep.errors import Corrupt, Missing
from threadkeep.plan import result


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair made, or would make.

    `damaged` is the checkpoint that was repaired, None if there is nothing to do. `checkpoint` is the new one, None if
    nothing was done; `parent` is its parent. `channels` says how each was obtained: intact, taken from an ancestor,
    rebuilt from one and writes, what can be read of it, or lost. `assumptions` lists what is not certain, `affected`
    the other damaged checkpoints.
    """

    thread: str
    kind: str
    ns: str
    damaged: str | None
    checkpoint: str | None = None
    parent: str | None = None
    channels: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    affected: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Which checkpoint to repair, in which namespace, and when."""

    ref: str | None
    ns: str
    moment: BranchStamp
    dry_run: bool = False


async def repair(heads: Heads, key: ThreadKey, options: RepairOptions, replay: Replay | None) -> RepairResult:
    """Rebuild a checkpoint as a new branch. Corrupt if nothing is left to build from, or if nothing can be written."""

    async def read() -> Seen[tuple[RepairResult, Batch | None]]:
        scan = await examined(key)
        if scan is None or not scan.found.is_there:
            raise Missing(f"there is no thread {key.id!r}")
        _refuse_hopeless(scan)
        return Seen(await _rebuild(scan, options, replay), scan.row, scan.records)

    def decide(seen: Seen[tuple[RepairResult, Batch | None]], _: int) -> Decision[RepairResult]:
        made, batch = seen.state
        return Decision(made, Commit(batch) if batch is not None else None)

    return await commit(heads, key, read, decide)


async def _rebuild(
    scan: ThreadScan, options: RepairOptions, replay: Replay | None
) -> tuple[RepairResult, Batch | None]:
    """Return what a repair makes, and the batch that makes it; None if there is nothing to do or it is a dry run."""
    rebuilder = Rebuilder(scan, replay)
    target = _target(rebuilder, options)
    affected = sorted(f"{ns}|{id}" if ns else id for ns, id in rebuilder.damaged if (ns, id) != target)
    told = RepairResult(scan.key.id, scan.key.kind, options.ns, None, affected=affected)
    if target is None or (target not in rebuilder.damaged and target in scan.records):
        intact = ["the newest checkpoint is intact, so the thread goes on; name a damaged one to have a branch of it"]
        return replace(told, assumptions=intact if affected else []), None
    if scan.key.kind == CUBE:
        row, channels, batch = await repair_cube(rebuilder, target, _fresh_id(scan, "", options.moment), options.moment)
    else:
        row, channels, batch = await _branched(rebuilder, target, options.moment)
    made = replace(told, damaged=target[1], parent=row.parent, channels=channels, assumptions=[*rebuilder.assumptions])
    return (made, None) if options.dry_run else (replace(made, checkpoint=row.id), batch)


# --- what to repair


def _refuse_hopeless(scan: ThreadScan) -> None:
    """Nothing can be written to a thread whose row or names are damaged; say what can be done."""
    advice = "nothing can be added to it. Restore it from a backup; `verify` tells what is damaged"
    if scan.row is None:
        raise Corrupt(f"the row of {scan.where} cannot be read: {advice}")
    names = [at.n for at in scan.bad if at.lane == NAMES]
    if names:
        count = len(scan.records) + len(scan.broken)
        raise Corrupt(
            f"{scan.where}: {len(names)} names of channels or nodes are damaged "
            f"(no. {', '.join(map(str, names[:5]))}), which {count} checkpoints are spelled with: {advice}"
        )


def _target(rebuilder: Rebuilder, options: RepairOptions) -> CheckpointPlace | None:
    """The checkpoint that is named; else the newest, if it is damaged. A branch of an older one would be the latest."""
    scan, ns = rebuilder.scan, options.ns
    ids = {id for space, id in (*scan.records, *scan.broken, *_top(scan)) if space == ns}
    if options.ref is not None:
        named = {r.row.parent for (space, _), r in scan.records.items() if space == ns and r.row.parent is not None}
        return (ns, _meant(sorted(ids | named), options.ref, scan.where))
    newest = max(ids - {row.id for row in scan.found.checkpoints if row.ns == ns and row.hidden}, default=None)
    is_damaged = (ns, newest) in rebuilder.damaged or (ns, newest) not in scan.records
    return (ns, newest) if newest is not None and is_damaged else None


def _top(scan: ThreadScan) -> set[CheckpointPlace]:
    """The newest root checkpoint that the thread's row names; its own row may be gone."""
    return {("", scan.row.top)} if scan.row is not None and scan.row.top is not None else set()


def _meant(ids: list[str], ref: str, where: str) -> str:
    """The id that a reference means, as in `survey.find`; but `~2` goes back by id, because parents may be gone."""
    back = BACK.fullmatch(ref) if ref not in ids else None
    if back is None:
        return ref if ref in ids else match_id(ids, ref, where)
    at = ids.index(_meant(ids, back["ref"], where)) - int(back["steps"])
    if at < 0:
        raise Missing(f"there is no checkpoint {ref!r} in {where}")
    return ids[at]


# --- the new branch


async def _branched(
    rebuilder: Rebuilder, target: CheckpointPlace, moment: BranchStamp
) -> tuple[CheckpointRow, dict[str, str], Batch]:
    scan = rebuilder.scan
    rebuilt = await rebuilder.state(target)
    if rebuilt is None:
        raise Corrupt(
            f"checkpoint {target[1]!r} of {scan.where} cannot be rebuilt: no checkpoint before it can be read"
        )
    state, base = rebuilt
    parent = next(
        (at for at in rebuilder.ancestors(target) if at in scan.records and at not in rebuilder.damaged), None
    )
    tasks = scan.tasks.get(target, ())
    if tasks:  # they belong to the damaged checkpoint's id
        rebuilder.assume(f"{len(tasks)} tasks had written on {target[1]}: on the branch they run again")
    newer = [id for ns, id in scan.records if ns == target[0] and id > target[1]]
    if newer:
        rebuilder.assume(
            f"{max(newer)} and other checkpoints are newer than {target[1]}: the branch is the latest from now on"
        )
    op = Put(
        codec=Codec(None), ns=target[0], parent=parent[1] if parent else None,
        checkpoint={
            "v": 4, **state.fields, "ts": moment.timestamp, "id": _fresh_id(scan, target[0], moment),
            "channel_values": state.values, "channel_versions": state.versions, "versions_seen": state.seen,
        },
        given_metadata={**_metadata(rebuilder, target, base), "source": "fork", "repaired": target[1]},
        new_versions={}, time=moment.time, nonce=moment.nonce,
    )  # fmt: skip
    op.encoded = dict(state.values)
    op.rest = scan.records[target].rest if target in scan.records else None
    recent = {parent: scan.records[parent]} if parent is not None else {}
    staging = CheckpointStaging(replace(rebuilder.head, recent=recent), {})
    result(staging.take(op))
    batch = staging.batch()
    assert batch is not None
    return batch.new_checkpoints[0], dict(sorted(state.how.items())), batch


def _fresh_id(scan: ThreadScan, ns: str, moment: BranchStamp) -> str:
    """An id after all that a namespace has or names."""
    return fresh_id(
        max(id for space, id in (*scan.records, *scan.broken, *scan.tasks, *_top(scan)) if space == ns), moment
    )


def _metadata(rebuilder: Rebuilder, target: CheckpointPlace, base: CheckpointPlace) -> dict[str, Any]:
    """The metadata of the damaged one, as far as it can be read; else that of the one it is built from."""
    scan, record = rebuilder.scan, rebuilder.scan.records[base]
    step, own = record.row.step, dict(record.own)
    if base != target:
        row = next((row for row in scan.found.checkpoints if (row.ns, row.id) == target), None)
        steps = 1 + list(rebuilder.ancestors(target)).index(base)
        step = row.step if row is not None and row.step is not None else (step or 0) + steps
        own = {key: value for key, value in own.items() if key == "parents"}
    return metadata.join(metadata.SplitMetadata(None, step, None, scan.labels(record.row.labels) or {}, own))
