"""Looking back: listing checkpoints in slices, and the history of delta channels.

Nothing is held between two slices, so the caller may do anything with the saver while it iterates. A checkpoint that
is removed between the scan and the load of a slice is left out, as if it had been removed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.log.records import CheckpointRecord, TaskWrites, unpack_labels, unpack_own
from threadkeep.engine.requests import (
    CheckpointRef,
    LoadAncestors,
    LoadedRows,
    LoadItems,
    ScanCheckpoints,
    ScannedCheckpoint,
)
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import CheckpointState, decode_value, decode_writes, get, get_all
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.errors import Conflict

_FIRST_SLICE, _LAST_SLICE = 16, 1024
_NEAR, _ALL = 64, 1 << 31
"""So many ancestors are asked for at first, since a snapshot is mostly nearer than that; then all of them."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which checkpoints to list, and how many more of them."""

    scan: ScanCheckpoints
    filter: Mapping[str, Any]
    limit: int | None


class ListPage(NamedTuple):
    """Some states and the query for those after them, if there may be any."""

    states: list[CheckpointState]
    rest: ListQuery | None


def query(
    tenant: str,
    kind: str,
    *,
    thread: str | None,
    ns: str | None,
    id: str | None,
    before: str | None,
    filter: Mapping[str, Any],
    limit: int | None,
) -> ListQuery:
    """A query; parts of the filter that columns and tags can answer go into the scan."""
    parts = metadata.split(filter)
    scan = ScanCheckpoints(
        tenant, kind, _FIRST_SLICE, thread, ns, id, before,
        source=parts.source, step=parts.step, run=parts.run, tags=metadata.tags(parts.labels),
    )  # fmt: skip
    return ListQuery(scan, filter, limit)


async def page(heads: Heads, codec: Codec, query: ListQuery) -> ListPage:
    """The next states of a query. Two round trips for a thread's slice; across threads one more for each thread."""
    if query.limit == 0:
        return ListPage([], None)
    size = query.scan.limit if query.limit is None or query.filter else min(query.scan.limit, query.limit)
    hits = await replace(query.scan, limit=size)
    chosen = [hit for hit in hits if _matches(hit, query.filter)][: query.limit]
    states = await _loaded(heads, codec, chosen)
    left = None if query.limit is None else query.limit - len(chosen)
    if len(hits) < size or left == 0:
        return ListPage(states, None)
    last = hits[-1]
    scan = replace(query.scan, after=(last.row.id, last.key.id, last.row.ns), limit=min(size * 2, _LAST_SLICE))
    return ListPage(states, replace(query, scan=scan, limit=left))


def _matches(hit: ScannedCheckpoint, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    row, where = hit.row, f"thread {hit.key.id!r}"
    labels = unpack_labels(row.labels, hit.labels, where)
    about = metadata.join(metadata.SplitMetadata(row.source, row.step, row.run, labels, unpack_own(row, where)))
    return metadata.matches(about, wanted)


async def _loaded(heads: Heads, codec: Codec, hits: Sequence[ScannedCheckpoint]) -> list[CheckpointState]:
    by_thread: dict[ThreadKey, list[CheckpointRef]] = {}
    for hit in hits:
        by_thread.setdefault(hit.key, []).append(CheckpointRef(hit.row.ns, hit.row.id))
    states = {}
    for key, wanted in by_thread.items():
        for found in await get_all(heads, codec, key, tuple(wanted)):
            states[(key, found.ns, found.id)] = found
    places = ((hit.key, hit.row.ns, hit.row.id) for hit in hits)
    return [states[place] for place in places if place in states]


class ChannelHistory(NamedTuple):
    """What one channel got on the way to a checkpoint: the nearest stored value, if any, and the writes since."""

    seeds: list[Any]
    writes: list[tuple[str, str, Any]]


async def delta_history(
    heads: Heads, codec: Codec, key: ThreadKey, ns: str, id: str | None, channels: Sequence[str]
) -> dict[str, ChannelHistory]:
    """The history of delta channels, following parents. Two round trips; three where the snapshot is far away.

    The writes on the checkpoint itself are still to come and do not count; those on the ancestor that holds the
    stored value do. Without an id the latest checkpoint is looked up first. Read again if the thread is pruned meanwhile.
    """
    if id is None:
        latest = await get(heads, codec, key, ns, None)
        id = latest.id if latest else ""
    at = id

    async def once() -> dict[str, ChannelHistory]:
        head, lineage = await _lineage(heads, key, ns, at, channels)
        return _collected(await _with_items(heads, key, head, lineage), codec, lineage, channels)

    return await read_consistently(key, once)


def _collected(head: Head, codec: Codec, lineage: _Lineage, channels: Sequence[str]) -> dict[str, ChannelHistory]:
    collected: dict[str, ChannelHistory] = {channel: ChannelHistory([], []) for channel in channels}
    for ancestor, wanted in reversed(lineage):
        for channel in wanted:
            slot = ancestor.record.slots.get(channel)
            if slot is not None:
                collected[channel].seeds.append(decode_value(head, codec, slot, f"channel {channel!r} of {head.where}"))
        tasks = [_only(task, wanted) for task in ancestor.tasks]
        for write in decode_writes(head, codec, tasks):
            collected[write[1]].writes.append(write)
    return collected


class _Ancestor(NamedTuple):
    record: CheckpointRecord
    tasks: list[TaskWrites]


_Lineage = list[tuple[_Ancestor, set[str]]]


async def _lineage(heads: Heads, key: ThreadKey, ns: str, id: str, channels: Sequence[str]) -> tuple[Head, _Lineage]:
    """The ancestors that matter, nearest first, each with the channels that were still looking for a value there."""
    limit = _NEAR
    while True:
        old = heads.get(key)
        loaded = await LoadAncestors(key, ns, id, limit)
        head = heads.seen(key, loaded, old if old and _same_epoch(old, loaded) else None)
        lineage, remaining = _walk(head, loaded, channels)
        if not remaining or len(loaded.checkpoints) < limit:
            return head, lineage
        limit = _ALL


def _walk(head: Head, loaded: LoadedRows, channels: Sequence[str]) -> tuple[_Lineage, set[str]]:
    remaining = set(channels)
    lineage = []
    for found in loaded.checkpoints[1:]:
        if not remaining or found.row is None:
            break
        ancestor = _Ancestor(head.checkpoint(found.row), [head.task(row) for row in found.writes])
        lineage.append((ancestor, set(remaining)))
        remaining -= ancestor.record.slots.keys()
    return lineage, remaining


def _same_epoch(head: Head, loaded: LoadedRows) -> bool:
    return head.row is not None and loaded.thread is not None and head.row.epoch == loaded.thread.epoch


def _slot_runs(record: CheckpointRecord, wanted: set[str]) -> list[ItemRange]:
    return [run for name, slot in record.slots.items() if name in wanted for run in slot.ranges]


def _write_runs(tasks: Sequence[TaskWrites], wanted: set[str]) -> list[ItemRange]:
    entries = (entry for task in tasks for entry in task.entries.values())
    return [run for entry in entries if entry.channel in wanted for run in entry.slot.ranges]


def _only(task: TaskWrites, channels: set[str]) -> TaskWrites:
    return task._replace(entries={idx: entry for idx, entry in task.entries.items() if entry.channel in channels})


async def _with_items(heads: Heads, key: ThreadKey, head: Head, lineage: _Lineage) -> Head:
    """The head with all items that the lineage needs; Conflict if the thread was pruned since."""
    needed = [
        run
        for ancestor, wanted in lineage
        for run in (*_slot_runs(ancestor.record, wanted), *_write_runs(ancestor.tasks, wanted))
    ]
    missing = head.cache.lacking(itemlog.union(needed))
    if not missing:
        return head
    loaded = await LoadItems(key, missing)
    if not (_same_epoch(head, loaded) and heads.is_current(head)):
        raise Conflict(f"{head.where} was pruned while it was read")
    return heads.seen(key, loaded, head)
