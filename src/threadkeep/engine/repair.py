"""Repair: a damaged checkpoint's state, rebuilt as far as it can be, as a new branch. Nothing is overwritten or removed.

The new checkpoint is greater than all others of its namespace, so a graph goes on from it; its metadata `repaired` names
the damaged one. Everything is read row by row: one that is damaged hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from threadkeep.engine import metadata
from threadkeep.engine.backend import Commit, Pause
from threadkeep.engine.checkpoints import TRIES
from threadkeep.engine.codec import Codec
from threadkeep.engine.heads import Head, Heads
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.itemlog import FIRST_CHANNEL, NAMES, SHARED, Item, ItemId
from threadkeep.engine.ops import Put
from threadkeep.engine.rebuild import Rebuilder, Replay, State
from threadkeep.engine.records import Record, ThreadRow
from threadkeep.engine.staging import Staging
from threadkeep.engine.survey import BACK, LATEST, Place, is_short_for
from threadkeep.engine.talks.repair import mended
from threadkeep.engine.thread_scan import ThreadScan
from threadkeep.engine.verify import examined
from threadkeep.errors import Conflict, Corrupt, Missing
from threadkeep.plan import result

_NEAR = 1 << 16
"""So many lanes after the last are counted: a thread that goes on may come to have them."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair made, or would make.

    `damaged` is the checkpoint that was repaired, None if there is nothing to do. `checkpoint` is the new one, None if
    nothing was done; `parent` its parent. `channels` tells how each was obtained: intact, taken from an ancestor, rebuilt
    from one and writes, what can be read of it, or lost. `assumptions` is what nobody can be sure of. `affected` are
    the other checkpoints that are damaged too.
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
class Wish:
    """What to repair, and what only the outside has: a new id, the time, a random number."""

    ref: str | None
    ns: str
    id: str
    time: int
    timestamp: str
    draw: int
    dry_run: bool = False


async def repair(heads: Heads, key: ThreadKey, wish: Wish, replay: Callable[[], Replay] | None) -> Repaired:
    """Rebuild a checkpoint as a new branch. Corrupt if nothing is left to build from, or if nothing can be written."""
    for attempt in range(TRIES):
        scan = await examined(key)
        if scan is None or not scan.found.is_there:
            raise Missing(f"there is no thread {key.id!r}")
        _refuse_hopeless(scan)
        try:
            return await _repaired(heads, scan, wish, replay() if replay else None)
        except Conflict:
            await Pause(attempt)
    raise Conflict(f"thread {key.id!r} was changed by others at each of {TRIES} tries")


async def _repaired(heads: Heads, scan: ThreadScan, wish: Wish, replay: Replay | None) -> Repaired:
    rebuilder = Rebuilder(scan, replay)
    damage = rebuilder.damage()
    target = _target(scan, wish, damage)
    others = sorted(_said(place) for place in damage if place != target)
    if target is None or (target not in damage and target in scan.records):
        intact = ["the newest checkpoint is intact, so the thread goes on; name a damaged one to have a branch of it"]
        return Repaired(
            scan.key.id, scan.key.kind, wish.ns, None, assumptions=intact if others else [], affected=others
        )
    if scan.key.kind == CUBE:
        talk = await mended(rebuilder, target, wish.time, wish.draw)
        made = Repaired(
            scan.key.id, CUBE, "", target[1], talk.id, talk.parent, talk.channels, [*rebuilder.assumed], others
        )
        batch = talk.batch
    else:
        made, batch = await _branched(rebuilder, target, wish, damage, others)
    if wish.dry_run:
        return replace(made, checkpoint=None)
    heads.forget(scan.key)
    try:
        await Commit(batch)
    finally:
        heads.forget(scan.key)
    return made


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
            f"{scan.where}: {len(names)} names of channels or nodes are damaged (no. {', '.join(map(str, names[:5]))}), which {count} checkpoints are spelled with: {advice}"
        )


def _target(scan: ThreadScan, wish: Wish, damage: Iterable[Place]) -> Place | None:
    """The checkpoint that is meant; if none is said, the newest one, if it is damaged: an older one would become the latest."""
    if wish.ref is None:
        rows = {(row.ns, row.id): row for row in scan.found.checkpoints}
        seen = [place for place in damage if place[0] == wish.ns and not (place in rows and rows[place].hidden)]
        top = scan.row.top if scan.row is not None and wish.ns == "" else None
        if top is not None and ("", top) not in rows and ("", top) not in scan.broken:
            seen.append(("", top))
        newest = max(seen, default=None)
        intact = [row.id for place, row in rows.items() if place[0] == wish.ns and not row.hidden and place not in seen]
        return newest if newest is not None and newest[1] > max(intact, default="") else None
    return (wish.ns, _meant(sorted(_known_ids(scan, wish.ns)), wish.ref, scan.where))


def _meant(ids: list[str], ref: str, where: str) -> str:
    """The id that somebody means, as `survey.find` has it; but `~2` is two before in the order of ids: parents may be gone."""
    if ref not in ids and (back := BACK.fullmatch(ref)) is not None:
        at = ids.index(_meant(ids, back["ref"], where)) - int(back["steps"])
        named = [ids[at]] if at >= 0 else []
    else:
        named = ids[-1:] if ref == LATEST else [ref] if ref in ids else [id for id in ids if is_short_for(ref, id)]
    if not named:
        raise Missing(f"there is no checkpoint {ref!r} in {where}, and nothing refers to one")
    if len(named) > 1:
        raise ValueError(f"{len(named)} checkpoints of {where} begin or end with {ref!r}: say more of the id")
    return named[0]


def _known_ids(scan: ThreadScan, ns: str) -> set[str]:
    """The checkpoints that are there, or that others name."""
    ids = {id for space, id in (*scan.records, *scan.broken) if space == ns}
    ids |= {r.row.parent for (space, _), r in scan.records.items() if space == ns and r.row.parent is not None}
    top = scan.row.top if scan.row is not None and ns == "" else None
    return ids | ({top} if top is not None else set())


def _said(place: Place) -> str:
    return f"{place[0]}|{place[1]}" if place[0] else place[1]


# --- the new branch


async def _branched(
    rebuilder: Rebuilder, target: Place, wish: Wish, damage: dict[Place, str], others: list[str]
) -> tuple[Repaired, Any]:
    scan = rebuilder.scan
    rebuilt = await rebuilder.state(target)
    if rebuilt is None:
        raise Corrupt(
            f"checkpoint {target[1]!r} of {scan.where} cannot be rebuilt: no checkpoint before it can be read"
        )
    state, base = rebuilt
    parent = _parent(rebuilder, target, base, damage)
    _tell_of_tasks(rebuilder, target)
    newer = [id for ns, id in scan.records if ns == target[0] and id > target[1]]
    if newer:
        rebuilder.assume(
            f"{max(newer)} and other checkpoints are newer than {target[1]}: the branch is the latest from now on"
        )
    id = greater(wish.id, (place[1] for place in _places(scan) if place[0] == target[0]))
    op = _put(rebuilder, state, target, base, parent, id, wish)
    staging = Staging(_head(rebuilder, parent), {})
    result(staging.take(op))
    made = Repaired(
        scan.key.id, scan.key.kind, target[0], target[1], id, parent[1] if parent else None, dict(sorted(state.how.items())),
        list(rebuilder.assumed), others,
    )  # fmt: skip
    return made, staging.batch()


def _parent(rebuilder: Rebuilder, target: Place, base: Place, damage: dict[Place, str]) -> Place | None:
    """The damaged one's parent if that is intact, else the nearest intact ancestor."""
    at = rebuilder.parent_of(target, say=False) if base == target else base
    met: set[Place] = set()
    while at is not None and (at in damage or at not in rebuilder.scan.records) and at not in met:
        met.add(at)
        at = rebuilder.parent_of(at, say=False)
    return at if at not in met else None


def _tell_of_tasks(rebuilder: Rebuilder, target: Place) -> None:
    """Writes of tasks that had run on the damaged checkpoint belong to its id: on the new one they run again."""
    tasks = rebuilder.scan.tasks.get(target, ())
    if tasks:
        rebuilder.assume(f"{len(tasks)} tasks had written on {target[1]}: on the branch they run again")


def _places(scan: ThreadScan) -> set[Place]:
    top = {("", scan.row.top)} if scan.row is not None and scan.row.top is not None else set()
    return {*scan.records, *scan.broken, *scan.tasks, *top}


def greater(id: str, others: Iterable[str]) -> str:
    """An id that is greater than all others: the one that is given, if it is."""
    greatest = max(others, default="")
    if id > greatest:
        return id
    try:
        return str(UUID(int=UUID(greatest).int + 1))
    except (ValueError, AttributeError):
        return greatest + "0"


def _put(
    rebuilder: Rebuilder, state: State, target: Place, base: Place, parent: Place | None, id: str, wish: Wish
) -> Put:
    scan = rebuilder.scan
    record = scan.records.get(target)
    about = _about(scan, target, scan.records[base], steps=_steps(rebuilder, target, base))
    fields = {**state.fields, "v": state.fields.get("v", 4), "ts": wish.timestamp}
    op = Put(
        codec=Codec(None), ns=target[0], parent=parent[1] if parent else None,
        checkpoint={**fields, "id": id, "channel_versions": state.versions, "versions_seen": state.seen},
        given_metadata=about | {"source": "fork", "repaired": target[1]}, new_versions={}, time=wish.time, draw=wish.draw,
    )  # fmt: skip
    op.values = dict.fromkeys(state.values)
    op.encoded = dict(state.values)
    op.rest = record.rest if record is not None else None
    return op


def _steps(rebuilder: Rebuilder, target: Place, base: Place) -> int:
    count, at = 0, target
    while at != base and count < len(rebuilder.scan.broken) + 1:
        count += 1
        found = rebuilder.parent_of(at, say=False)
        if found is None:
            break
        at = found
    return count


def _about(scan: ThreadScan, target: Place, base: Record, *, steps: int) -> dict[str, Any]:
    """The metadata of the damaged one, as far as it can be read; else that of the one it is built from."""
    record = scan.records.get(target) or base
    labels = scan.labels(record.row.labels) or {}
    step = record.row.step
    if target not in scan.records:
        row = next((row for row in scan.found.checkpoints if (row.ns, row.id) == target), None)
        step = row.step if row is not None and row.step is not None else (step or 0) + steps
    own = (
        dict(record.own)
        if record is not base or target in scan.records
        else {key: value for key, value in record.own.items() if key == "parents"}
    )
    return metadata.join(metadata.Split(None, step, None, labels, own))


def _head(rebuilder: Rebuilder, parent: Place | None) -> Head:
    """The thread as far as it can be believed: what is new is put after all that is there."""
    scan = rebuilder.scan
    row = scan.row
    assert row is not None
    names = tuple(scan.names[n] for n in range(len(scan.names)))
    recent = {parent: scan.records[parent]} if parent is not None else {}
    for n, data in scan.shared.items():
        rebuilder.pool.add(ItemId(SHARED, n), Item(data))
    return Head(scan.key, _counting_all(scan, row), names, recent, rebuilder.pool)


def _counting_all(scan: ThreadScan, row: ThreadRow) -> ThreadRow:
    nexts = list(row.nexts)
    lanes = FIRST_CHANNEL + len(scan.names)
    for lane, n, _ in scan.found.stored:
        if not 0 <= lane < lanes + _NEAR:
            continue  # a number that is damaged: nothing new comes near it
        nexts += [0] * (lane + 1 - len(nexts))
        nexts[lane] = max(nexts[lane], n + 1)
    return row._replace(nexts=tuple(nexts))
