"""Branches: going back to an earlier checkpoint, and going on from one elsewhere. Nothing is removed, no state is copied.

A branch in the same thread is one new row that holds what its target holds: the same slots, versions and labels. It is
the latest of its namespace, whatever the clock says, so the graph goes on from there. Its parent is the target.

With one exception. A delta channel is not held by a checkpoint; it is rebuilt from the writes on its ancestors, and the
writes on the target are those of another child: those that made it go on the first time, or that come later if somebody
replays it. Below the target they would count as the branch's past. So where a delta channel of the target stands not in
its own row, the branch is put beside it, below the target's parent, which gives it exactly the target's past. Metadata
`forked_from` names the target in both cases.

A branch in a new thread takes over rows and items of the lineage, inside the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from threadkeep.engine.commit import Decision, Seen, commit, copied_row
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import Codec, pack, unpack
from threadkeep.engine.log.itemlog import SHARED, Item, ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow
from threadkeep.engine.requests import Batch, Commit, ForkThread, LoadItems, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.copy import about_target
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.ops import Put
from threadkeep.engine.threads.staging import CheckpointStaging
from threadkeep.engine.threads.survivors import PruneSelection, Survivors, counted, delta_channels, survivors
from threadkeep.engine.threads.thread_rows import (
    FORKED_FROM,
    TAG,
    ThreadRows,
    children,
    find,
    forked_from,
    lineage,
    load_thread_rows,
    survey_to_change,
)
from threadkeep.errors import Missing
from threadkeep.plan import result

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREGORIAN = 0x01B21DD213814000
"""The beginning of UUIDs' time before that of 1970, in steps of 100 ns."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Branch:
    """A checkpoint that begins a branch, or a new thread: where it is, what came before it, and what it is made from.

    In a new thread, `forked_from` is a checkpoint of the thread that it came from.
    """

    thread: str
    kind: str
    ns: str
    id: str
    parent: str | None
    forked_from: str

    @property
    def config(self) -> dict[str, Any]:
        """The config by which LangGraph goes on from here."""
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": self.id}}


class BranchStamp(NamedTuple):
    """When a branch is made, in microseconds, and a random number of 62 bits that tells it from others."""

    micros: int
    nonce: int

    @property
    def time(self) -> int:
        """Milliseconds."""
        return self.micros // 1000

    @property
    def timestamp(self) -> str:
        """As LangGraph writes it."""
        return (_EPOCH + timedelta(microseconds=self.micros)).isoformat()


async def rollback(
    heads: Heads, key: ThreadKey, ref: str, ns: str, moment: BranchStamp, *, dry_run: bool = False
) -> Branch:
    """Let a namespace go on from an earlier checkpoint: a new branch, and the latest. Two round trips.

    Done again before something went on from there, it is the same branch. Missing if there is no such checkpoint.
    """
    return await _branch(heads, key, ref, ns, moment, again=True, dry_run=dry_run)


async def fork(heads: Heads, key: ThreadKey, ref: str | None, ns: str, moment: BranchStamp) -> Branch:
    """One more branch from a checkpoint, or from the latest. Two round trips."""
    return await _branch(heads, key, ref, ns, moment, again=False, dry_run=False)


async def _branch(
    heads: Heads, key: ThreadKey, ref: str | None, ns: str, moment: BranchStamp, *, again: bool, dry_run: bool
) -> Branch:

    def decide(seen: Seen[ThreadRows], _: int) -> Decision[Branch]:
        nonlocal ref
        thread = seen.state
        target = visible(thread, ref, ns)
        ref = target.row.id  # by another name it may be another one at the next try
        made = _unused_branch(thread, target) if again else None
        batch = _batch(thread, target, moment)
        branch = _told(key, made or batch.new_checkpoints[0], ref)
        return Decision(branch, None if made is not None or dry_run else Commit(batch))

    return await commit(heads, key, partial(survey_to_change, heads, key), decide)


def visible(thread: ThreadRows, ref: str | None, ns: str) -> CheckpointRecord:
    """The checkpoint that is meant; Missing if it is only there for the delta channels of others."""
    target = find(thread, ref, ns)
    if target.row.hidden:
        raise Missing(f"checkpoint {target.row.id!r} of thread {thread.key.id!r} was pruned")
    return target


def _told(key: ThreadKey, made: CheckpointRow, target: str) -> Branch:
    return Branch(key.id, key.kind, made.ns, made.id, made.parent, target)


def _unused_branch(thread: ThreadRows, target: CheckpointRecord) -> CheckpointRow | None:
    """The latest checkpoint, if it is a branch from here that nobody went on from."""
    latest = find(thread, None, target.row.ns)
    place = (latest.row.ns, latest.row.id)
    fresh = not thread.tasks.get(place) and place not in children(thread)
    same = latest.slots == target.slots and latest.versions == target.versions and latest.seen == target.seen
    return latest.row if fresh and same and forked_from(thread, latest) == target.row.id else None


def _batch(thread: ThreadRows, target: CheckpointRecord, moment: BranchStamp) -> Batch:
    staging = CheckpointStaging(thread.head, {})
    result(staging.take(_put(thread, target, moment)))
    batch = staging.batch()
    assert batch is not None
    return batch


def _put(thread: ThreadRows, target: CheckpointRecord, moment: BranchStamp) -> Put:
    """The branch as a put of what the thread has already."""
    row = target.row
    anew = {"ts": moment.timestamp, "updated_channels": None}  # so LangGraph looks at every node for what comes next
    id = fresh_id(_greatest(thread, row.ns), moment)
    known = {"id": id, "channel_versions": target.versions, "versions_seen": target.seen}
    op = Put(
        codec=Codec(None), ns=row.ns, parent=_parent(thread, target), checkpoint={**target.fields, **anew, **known},
        given_metadata=_about(thread, target), new_versions={}, time=moment.time, nonce=moment.nonce, held=target.slots,
    )  # fmt: skip
    op.rest = target.rest
    return op


def _about(thread: ThreadRows, target: CheckpointRecord) -> dict[str, Any]:
    """The target's metadata, as LangGraph says it of a fork; its tag is its own."""
    about = {name: value for name, value in thread.metadata(target).items() if name != TAG}
    step = about.get("step")
    step = step if type(step) is int else -1
    return about | {"source": "fork", "step": step + 1, FORKED_FROM: target.row.id}


def _parent(thread: ThreadRows, target: CheckpointRecord) -> str | None:
    place = (target.row.ns, target.row.id)
    elsewhere = delta_channels(thread.records)[place] - target.slots.keys()
    return target.row.parent if elsewhere else target.row.id


def _greatest(thread: ThreadRows, ns: str) -> str:
    """The greatest id of a namespace, hidden ones and those that only have writes so far included."""
    return max(id for space, id in (*thread.records, *thread.tasks) if space == ns)


def fresh_id(greatest: str, moment: BranchStamp) -> str:
    """An id after all others, of their kind: a UUID of this moment if they are UUIDs and time went on, else the next."""
    if _UUID.fullmatch(greatest):
        made = _uuid6(moment)
        return made if made > greatest else _next_uuid(greatest)
    return _next(greatest)


def _uuid6(moment: BranchStamp) -> str:
    """A UUID of version 6, as LangGraph makes them."""
    ticks = moment.micros * 10 + _GREGORIAN
    number = (ticks >> 12) << 80 | 6 << 76 | (ticks & 0xFFF) << 64 | 2 << 62 | moment.nonce & ((1 << 62) - 1)
    return str(UUID(int=number & ((1 << 128) - 1)))


def _next_uuid(id: str) -> str:
    number = UUID(id).int + 1
    return str(UUID(int=number)) if number < 1 << 128 else _next(id)


def _next(id: str) -> str:
    """The number at the end and one; where all digits are nines, or there are none, one more digit."""
    found = _NUMBER.search(id)
    if found is None or set(found[0]) == {"9"}:
        return id + "0"
    return id[: found.start()] + f"{int(found[0]) + 1:0{len(found[0])}}"


async def fork_to(heads: Heads, key: ThreadKey, ref: str | None, to: ThreadKey, moment: BranchStamp) -> Branch:
    """A new thread that begins with a checkpoint, its ancestors, and what subgraphs left on the way. Three round trips.

    What waits on the checkpoint, an interrupt above all, is taken over if nothing came after it: it can be answered in
    the new thread too. Else it belongs to what came after, and is left out. ValueError if there is a thread `to`.
    """

    async def read() -> Seen[tuple[ThreadRows, CheckpointRecord]]:
        nonlocal ref
        thread = await load_thread_rows(heads, key)
        target = visible(thread, ref, "")
        ref = target.row.id
        return Seen((thread, target), (await LoadItems(to, ())).thread)

    def decide(seen: Seen[tuple[ThreadRows, CheckpointRecord]], attempt: int) -> Decision[Branch]:
        if seen.row is not None:
            raise ValueError(f"there is a thread {to.id!r} already")
        thread, target = seen.state
        row = thread.head.row
        assert row is not None
        left = survivors(thread, _lineage_only(thread, target))
        taken = _taken_over(thread, left, to, moment, moment.nonce + attempt)
        branch = _told(to, left.rows[("", target.row.id)], target.row.id)
        return Decision(branch, ForkThread(key, (row.epoch, row.rev), *taken))

    return await commit(heads, to, read, decide, source=key)


def _lineage_only(thread: ThreadRows, target: CheckpointRecord) -> PruneSelection:
    """A checkpoint and its ancestors, and of other namespaces what was made in their steps."""
    line = {record.row.id for record in lineage(thread, target)}
    begun = line if ("", target.row.id) not in children(thread) else line - {target.row.id}
    kept = {
        place
        for place, record in thread.records.items()
        if not record.row.hidden
        and (place[1] in line if place[0] == "" else (record.own.get("parents") or {}).get("") in begun)
    }
    return PruneSelection(kept, lambda place, _: place in kept and (place[0] != "" or place[1] in begun))


def _taken_over(
    thread: ThreadRows, left: Survivors, to: ThreadKey, moment: BranchStamp, epoch: int
) -> tuple[tuple[ItemRange, ...], Batch]:
    """The items that are copied, and the rows and labels of the new thread."""
    tasks = list(left.tasks.values())
    labels = {n: _labels(thread, n, to) for n in {row.labels for row in left.rows.values()}}
    items = tuple(_repointed(thread, labels))
    size = sum(row.size for row in left.rows.values()) + sum(task.row.size for task in tasks)
    size += sum(len(stored) for _, stored in items)
    row = copied_row(counted(thread, left), to, time=moment.time, epoch=epoch, size=size)
    runs = [*(each.run for each in left.rows.values()), *(e.origin[1] for t in tasks for e in t.entries.values())]
    batch = Batch(
        expect=None,
        thread=row,
        items=items,
        new_checkpoints=tuple(left.rows.values()),
        new_writes=tuple(task.row for task in tasks),
        labels=tuple(NewLabels(n, metadata.tags(about)) for n, about in labels.items()),
        runs=tuple(dict.fromkeys(run for run in runs if run is not None)),
    )
    return itemlog.minus(thread.stored, (*left.unused, *(ItemRange(at.lane, at.n, 1) for at, _ in items))), batch


def _labels(thread: ThreadRows, n: int, to: ThreadKey) -> dict[str, Any]:
    return about_target(unpack(thread.head.shared(n), f"labels {n} of {thread.head.where}") or {}, thread.key, to)


def _repointed(thread: ThreadRows, labels: dict[int, dict[str, Any]]) -> Iterator[tuple[ItemId, bytes]]:
    """The labels that differ from those of the old thread, stored."""
    for n, about in labels.items():
        at = ItemId(SHARED, n)
        if pack(about) != thread.head.shared(n):
            yield at, itemlog.seal_item(at, Item(pack(about)))
