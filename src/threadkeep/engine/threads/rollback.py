"""Roll a thread back to an earlier checkpoint, or fork it. Nothing is removed and no state is copied.

A branch in the same thread is one new row with the slots, versions and labels of its target. It becomes the latest
checkpoint of its namespace, whatever the clock says, so the graph continues from there. Its parent is the target.

There is one exception. A delta channel is rebuilt from the writes on the checkpoint's ancestors. The writes on the
target belong to another child: they made the graph continue the first time, or come later if somebody replays it. If
the branch were a child of the target, they would count as its past. So if a delta channel of the target is not stored
in the target's own row, the branch becomes a child of the target's parent, and has exactly the target's past. In both
cases metadata `forked_from` names the target.

A branch in a new thread gets the rows and items of its lineage, copied inside the database, and notes its origin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from threadkeep.engine.commit import Decision, Seen, commit, copied_row
from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow
from threadkeep.engine.requests import Batch, Commit, ForkThread, LoadItems, NewLabels
from threadkeep.engine.threads import description
from threadkeep.engine.threads.copy import copy_labels
from threadkeep.engine.threads.damaged_rows import load_thread_rows, load_to_change
from threadkeep.engine.threads.delta_channels import delta_channels
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.metadata import root_checkpoint
from threadkeep.engine.threads.ops import Put
from threadkeep.engine.threads.origins import Origin
from threadkeep.engine.threads.staging import CheckpointStaging
from threadkeep.engine.threads.status import is_internal
from threadkeep.engine.threads.survivors import PruneSelection, Survivors, find_survivors, recount
from threadkeep.engine.threads.thread_rows import (
    BRANCH_NAME,
    FORKED_FROM,
    TAG,
    ThreadRows,
    children,
    find_checkpoint,
    forked_from,
    lineage,
)
from threadkeep.errors import Corrupt, Missing
from threadkeep.plan import result
from threadkeep.short_repr import short_repr

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREGORIAN = 0x01B21DD213814000
"""From the start of UUID time (1582) to 1970, in units of 100 ns."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Branch:
    """The first checkpoint of a branch, or the checkpoint from which a new thread continues.

    `forked_from` is the checkpoint that it was made from; for a new thread, it is in the old one.
    """

    thread: str
    kind: Kind
    ns: str
    id: str
    parent: str | None
    forked_from: str

    __repr__ = short_repr

    @property
    def config(self) -> dict[str, Any]:
        """The config with which LangGraph continues from here."""
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": self.id}}


class BranchStamp(NamedTuple):
    """When a branch is made, in microseconds, and a random number of 62 bits that makes its id unique."""

    micros: int
    nonce: int

    @property
    def time(self) -> int:
        """The time in milliseconds."""
        return self.micros // 1000

    @property
    def timestamp(self) -> str:
        """The time as LangGraph writes it."""
        return (_EPOCH + timedelta(microseconds=self.micros)).isoformat()


async def rollback(
    heads: Heads, key: ThreadKey, ref: str, ns: str, moment: BranchStamp, *, dry_run: bool = False
) -> Branch:
    """Make a new branch from an earlier checkpoint, as the latest checkpoint of its namespace. Two round trips.

    If the latest checkpoint is already an unused branch from there, it is returned and nothing changes. Missing if the
    thread or the checkpoint does not exist.
    """
    return await _branch(heads, key, ref, ns, moment, reuse=True, dry_run=dry_run)


async def fork(heads: Heads, key: ThreadKey, ref: str | None, ns: str, moment: BranchStamp) -> Branch:
    """Make a new branch from a checkpoint, or from the latest if `ref` is None. Two round trips.

    Missing if the thread or the checkpoint does not exist.
    """
    return await _branch(heads, key, ref, ns, moment, reuse=False, dry_run=False)


async def _branch(
    heads: Heads, key: ThreadKey, ref: str | None, ns: str, moment: BranchStamp, *, reuse: bool, dry_run: bool
) -> Branch:

    def decide(seen: Seen[ThreadRows], _: int) -> Decision[Branch]:
        nonlocal ref
        thread = seen.state
        target = find_visible(thread, ref, ns)
        ref = target.row.id  # the next try must not choose another checkpoint
        unused = _unused_branch(thread, target) if reuse else None
        batch = _batch(thread, target, moment)
        branch = _branch_of(key, unused or batch.new_checkpoints[0], ref)
        return Decision(branch, None if unused is not None or dry_run else Commit(batch))

    return await commit(heads, key, partial(load_to_change, heads, key), decide)


def find_visible(thread: ThreadRows, ref: str | None, ns: str) -> CheckpointRecord:
    """Return the checkpoint that a reference names. Missing if it does not exist or is hidden."""
    target = find_checkpoint(thread, ref, ns)
    if target.row.hidden:
        raise Missing(f"checkpoint {target.row.id!r} of thread {thread.key.id!r} was pruned")
    return target


def _branch_of(key: ThreadKey, row: CheckpointRow, target: str) -> Branch:
    return Branch(key.id, key.kind, row.ns, row.id, row.parent, target)


def _unused_branch(thread: ThreadRows, target: CheckpointRecord) -> CheckpointRow | None:
    """The latest checkpoint, if it is a branch from the target without writes and children."""
    key = thread.visible_keys(target.row.ns)[-1]
    if key in thread.damaged_keys():
        return None
    latest = thread.records[key]
    unused = not thread.tasks.get(key) and key not in children(thread)
    same = latest.slots == target.slots and latest.versions == target.versions and latest.seen == target.seen
    return latest.row if unused and same and forked_from(thread, latest) == target.row.id else None


def _batch(thread: ThreadRows, target: CheckpointRecord, moment: BranchStamp) -> Batch:
    staging = CheckpointStaging(thread.head, {})
    result(staging.take(_put(thread, target, moment)))
    batch = staging.batch()
    assert batch is not None
    return batch


def _put(thread: ThreadRows, target: CheckpointRecord, moment: BranchStamp) -> Put:
    """The branch as a put of values that the thread already stores."""
    row = target.row
    op = Put(
        codec=Codec(None),
        ns=row.ns,
        parent=_branch_parent(thread, target),
        checkpoint={
            **target.fields,
            "ts": moment.timestamp,
            "updated_channels": None,  # so that LangGraph checks every node for what to run next
            "id": new_checkpoint_id(_greatest_id(thread, row.ns), moment),
            "channel_versions": target.versions,
            "versions_seen": target.seen,
        },
        given_metadata=_fork_metadata(thread, target),
        new_versions={},
        time=moment.time,
        nonce=moment.nonce,
        stored_slots=target.slots,
    )
    op.rest = target.rest
    return op


def _fork_metadata(thread: ThreadRows, target: CheckpointRecord) -> dict[str, Any]:
    """The target's metadata without its tag and name, changed as LangGraph changes it in a fork."""
    metadata = {name: value for name, value in thread.metadata(target).items() if name not in (TAG, BRANCH_NAME)}
    step = metadata.get("step")
    step = step if type(step) is int else -1
    return metadata | {"source": "fork", "step": step + 1, FORKED_FROM: target.row.id}


def _branch_parent(thread: ThreadRows, target: CheckpointRecord) -> str | None:
    """The target, or its parent if a delta channel of the target is stored elsewhere (see the top of this file)."""
    key = (target.row.ns, target.row.id)
    stored_elsewhere = delta_channels(thread.records, thread.tasks)[key] - target.slots.keys()
    return target.row.parent if stored_elsewhere else target.row.id


def _greatest_id(thread: ThreadRows, ns: str) -> str:
    """The greatest id of a namespace, including hidden and damaged ones and those that only have writes so far."""
    return max(id for space, id in (*thread.records, *thread.tasks, *thread.damaged_keys()) if space == ns)


def new_checkpoint_id(greatest: str, moment: BranchStamp) -> str:
    """Return a new checkpoint id after the greatest one and of its form.

    If that is a UUID, the result is a UUID of this moment, or the next one if the clock is behind.
    """
    if _UUID.fullmatch(greatest):
        made = _uuid6(moment)
        return made if made > greatest else _next_uuid(greatest)
    return _next_id(greatest)


def _uuid6(moment: BranchStamp) -> str:
    """A UUID of version 6, as LangGraph makes them."""
    ticks = moment.micros * 10 + _GREGORIAN
    number = (ticks >> 12) << 80 | 6 << 76 | (ticks & 0xFFF) << 64 | 2 << 62 | moment.nonce & ((1 << 62) - 1)
    return str(UUID(int=number & ((1 << 128) - 1)))


def _next_uuid(id: str) -> str:
    number = UUID(id).int + 1
    return str(UUID(int=number)) if number < 1 << 128 else _next_id(id)


def _next_id(id: str) -> str:
    """The id with the number at its end increased; with one more digit if there is none, or if it is all nines."""
    found = _NUMBER.search(id)
    if found is None or set(found[0]) == {"9"}:
        return id + "0"
    return id[: found.start()] + f"{int(found[0]) + 1:0{len(found[0])}}"


async def fork_to(heads: Heads, key: ThreadKey, ref: str | None, to: ThreadKey, moment: BranchStamp) -> Branch:
    """Make a new thread from a checkpoint, its ancestors, and what subgraphs left on the way. Three round trips.

    The writes on the checkpoint, an interrupt above all, are copied if it has no child: the interrupt can be answered
    in the new thread too. Otherwise they belong to the child and are left out. ValueError if the thread `to` exists;
    Missing if the thread or the checkpoint does not.
    """

    async def read() -> Seen[tuple[ThreadRows, CheckpointRecord]]:
        nonlocal ref
        thread = await load_thread_rows(heads, key)
        target = find_visible(thread, ref, "")
        ref = target.row.id
        return Seen((thread, target), (await LoadItems(to, ())).thread)

    def decide(seen: Seen[tuple[ThreadRows, CheckpointRecord]], attempt: int) -> Decision[Branch]:
        if seen.row is not None:
            raise ValueError(f"thread {to.id!r} already exists")
        thread, target = seen.state
        row = thread.head.row
        assert row is not None
        _check_lineage(thread, target)
        left = find_survivors(thread, _lineage_only(thread, target))
        ranges, batch = _copied(thread, left, to, moment, moment.nonce + attempt)
        branch = _branch_of(to, left.rows[("", target.row.id)], target.row.id)
        return Decision(branch, ForkThread(key, (row.epoch, row.rev), ranges, batch))

    return await commit(heads, to, read, decide, source=key)


def _lineage_only(thread: ThreadRows, target: CheckpointRecord) -> PruneSelection:
    """Keep a checkpoint, its ancestors, and the checkpoints of other namespaces that were made in their steps.

    Writes and subgraph checkpoints of the target itself stay only if it has no child.
    """
    ids = {record.row.id for record in lineage(thread, target)}
    with_writes = ids if ("", target.row.id) not in children(thread) else ids - {target.row.id}
    kept = {
        (ns, id)
        for (ns, id), record in thread.records.items()
        if not record.row.hidden and (id in ids if ns == "" else root_checkpoint(record.own_metadata) in with_writes)
    }
    return PruneSelection(
        kept,
        lambda key, _: key in kept and (key[0] != "" or key[1] in with_writes),
        dropped=thread.damaged_keys(),
    )


def _check_lineage(thread: ThreadRows, target: CheckpointRecord) -> None:
    """Raise Corrupt if the new thread would lack damaged writes on the target, or what its delta channels need.

    Other damaged ancestors are left out, as if they had been pruned.
    """
    ancestors = list(lineage(thread, target))
    damaged = thread.damaged_keys()
    needs = [(target.row.ns, target.row.id)]
    without_value = (name for name in target.versions if name not in target.slots)
    if any(not is_internal(name) for name in without_value):  # it may be a delta channel: the damaged rows would tell
        needs += [(each.row.ns, each.row.parent or "") for each in ancestors]
    for key in needs:
        if key in damaged:
            raise Corrupt(
                f"checkpoint {key[1]!r} of {thread.head.where}, or a write on it, is damaged: repair it first"
            )


def _copied(
    thread: ThreadRows, left: Survivors, to: ThreadKey, moment: BranchStamp, epoch: int
) -> tuple[tuple[ItemRange, ...], Batch]:
    """The items to copy, and the rows and labels of the new thread."""
    tasks = list(left.tasks.values())
    labels = list(copy_labels(thread.head, {row.labels for row in left.rows.values()}, to))
    draft = Draft(thread.head)
    draft.number(Origin(thread.key.id, max(id for _, id in (*left.rows, *(key[:2] for key in left.tasks)))).note())
    items = (*((each.id, each.stored) for each in labels if each.stored), *draft.sealed_items())
    size = sum(row.size for row in left.rows.values()) + sum(task.row.size for task in tasks)
    size += sum(len(stored) for _, stored in items)
    runs = [*(row.run for row in left.rows.values()), *(e.origin[1] for t in tasks for e in t.entries.values())]
    row = copied_row(recount(thread, left), to, time=moment.time, epoch=epoch, size=size)
    batch = Batch(
        expect=None,
        thread=row._replace(
            nexts=tuple(draft.nexts), description=description.of_fork(row.description, thread.head.where)
        ),
        items=items,
        new_checkpoints=tuple(left.rows.values()),
        new_writes=tuple(task.row for task in tasks),
        labels=tuple(NewLabels(each.id.n, each.tags) for each in labels),
        runs=tuple(dict.fromkeys(run for run in runs if run is not None)),
    )
    not_copied = (*left.unused, *(ItemRange(id.lane, id.n, 1) for id, _ in items))
    return itemlog.subtract(thread.stored, not_copied), batch
