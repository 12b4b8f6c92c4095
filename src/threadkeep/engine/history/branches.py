"""The branches of a thread for people: list them, and compare two of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from threadkeep.engine.history.checkpoint_info import CheckpointInfo, ThreadReader, read_thread
from threadkeep.engine.history.diff import CheckpointInThread, Diff
from threadkeep.engine.history.diff import diff as diff_checkpoints
from threadkeep.engine.history.show import DAMAGED, next_nodes, status_slots, status_with
from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.threads.branch_paths import BranchPath, find_branch, find_branches
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import TAG
from threadkeep.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class BranchInfo:
    """A branch of a thread: everything on the way to `head`, a checkpoint from which nothing continues.

    It leaves the other branches at `fork_point`, None if it shares no checkpoint with one. `checkpoints` is the number
    of those that are its own: they came after the fork point. `started` and `updated` are the times of the first and
    the last of them, `tags` what they are tagged with. `step`, `status` and `next` are those of the head: what the
    thread has, or would have, with this branch as the latest.
    """

    thread: str
    kind: Kind
    ns: str
    head: str
    name: str | None
    is_latest: bool
    fork_point: str | None
    checkpoints: int
    step: int | None
    status: str
    next: tuple[str, ...]
    started: datetime
    updated: datetime
    tags: tuple[str, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class BranchComparison:
    """Two branches: their last common checkpoint, what only one of them has (newest first), and their states.

    `diff` is what the state of `b` changed compared with that of `a`. `common` is None if they share no checkpoint.
    """

    a: BranchInfo
    b: BranchInfo
    common: str | None
    only_a: tuple[CheckpointInfo, ...]
    only_b: tuple[CheckpointInfo, ...]
    diff: Diff

    __repr__ = short_repr


async def list_branches(heads: Heads, key: ThreadKey, ns: str) -> list[BranchInfo]:
    """Return the branches of a namespace, that with the newest head first. Up to two round trips."""

    async def describe(reader: ThreadReader) -> list[BranchInfo]:
        return await _infos(reader, find_branches(reader.rows, ns))

    return await read_thread(heads, key, describe)


async def branch_of(heads: Heads, key: ThreadKey, ref: str, ns: str) -> tuple[BranchPath, BranchInfo, list[BranchPath]]:
    """Return the branch that a text names, as `find_branch` finds it, and all branches. Up to two round trips."""

    async def describe(reader: ThreadReader) -> tuple[BranchPath, BranchInfo, list[BranchPath]]:
        every = find_branches(reader.rows, ns)
        branch = find_branch(reader.rows, every, ref, ns)
        return branch, (await _infos(reader, [branch]))[0], every

    return await read_thread(heads, key, describe)


async def compare(heads: Heads, key: ThreadKey, refs: tuple[str, str], ns: str) -> BranchComparison:
    """Compare two branches. Up to two round trips, and two to compare their states."""

    async def describe(reader: ThreadReader) -> _Parted:
        every = find_branches(reader.rows, ns)
        a, b = (find_branch(reader.rows, every, ref, ns) for ref in refs)
        common = [id for id in a.path if id in set(b.path)]
        lost, added = ([id for id in one.path if id not in other.path] for one, other in ((a, b), (b, a)))
        records = reader.rows.records
        await reader.fetch(reader.send_slots(records[ns, id] for id in (*lost, *added) if (ns, id) in records))
        only = [tuple(reader.info_at((ns, id)) for id in reversed(ids)) for ids in (lost, added)]
        infos = await _infos(reader, [a, b])
        return _Parted(infos[0], infos[1], common[-1] if common else None, only[0], only[1])

    found = await read_thread(heads, key, describe)
    states = await diff_checkpoints(
        heads, CheckpointInThread(key, found.a.head, ns), CheckpointInThread(key, found.b.head, ns)
    )
    return BranchComparison(*found, diff=states)


class _Parted(NamedTuple):
    """A comparison of two branches without that of their states."""

    a: BranchInfo
    b: BranchInfo
    common: str | None
    only_a: tuple[CheckpointInfo, ...]
    only_b: tuple[CheckpointInfo, ...]


async def _infos(reader: ThreadReader, branches: list[BranchPath]) -> list[BranchInfo]:
    records = (reader.rows.records.get((each.ns, each.head)) for each in branches)
    await reader.fetch(slot for record in records if record is not None for slot in status_slots(reader, record))
    return [_info(reader, each) for each in branches]


def _info(reader: ThreadReader, branch: BranchPath) -> BranchInfo:
    ns, record = branch.ns, reader.rows.records.get((branch.ns, branch.head))
    head = reader.info_at((ns, branch.head))
    nodes = next_nodes(reader, record) if record is not None else ()
    tags = (_tag(reader, ns, id) for id in branch.own)
    return BranchInfo(
        thread=head.thread,
        kind=head.kind,
        ns=ns,
        head=head.id,
        name=branch.name,
        is_latest=reader.rows.visible_keys(ns)[-1][1] in branch.own,
        fork_point=branch.fork_point,
        checkpoints=len(branch.own),
        step=head.step,
        status=status_with(reader, record, nodes) if record is not None else DAMAGED,
        next=nodes,
        started=reader.info_at((ns, branch.own[0])).time,
        updated=head.time,
        tags=tuple(tag for tag in tags if tag is not None),
    )


def _tag(reader: ThreadReader, ns: str, id: str) -> str | None:
    record = reader.rows.records.get((ns, id))
    tag = reader.rows.metadata(record).get(TAG) if record is not None else None
    return tag if isinstance(tag, str) and tag else None
