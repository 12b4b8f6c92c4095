"""The history of delta channels: the nearest stored value among a checkpoint's ancestors, and the writes since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from threadkeep.engine.commit import fill_cache, read_consistently
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites
from threadkeep.engine.requests import CheckpointRef, CheckpointRows, LoadAncestors, LoadedRows
from threadkeep.engine.threads.checkpoints import check_newest, decode_value, decode_writes, get
from threadkeep.engine.threads.heads import Head, Heads

_NEAR, _ALL = 64, 1 << 31
"""How many ancestors are loaded first, because most snapshots are nearer than that; and if it is not, all of them."""


class ChannelHistory(NamedTuple):
    """The history of one channel: the nearest stored value, if any, and the writes since, oldest first."""

    seeds: list[Any]
    writes: list[tuple[str, str, Any]]


async def delta_history(
    heads: Heads, codec: Codec, key: ThreadKey, ns: str, id: str | None, channels: Sequence[str]
) -> dict[str, ChannelHistory]:
    """Return the history of delta channels along the parents of a checkpoint, or of the latest if `id` is None.

    Writes on the checkpoint itself are not applied yet and do not count; writes on the ancestor with the stored value
    do. Two round trips; one more if the stored value is far away, and one more to find the latest checkpoint. If the
    thread is pruned meanwhile, it is read again.
    """
    if id is None:
        latest = await get(heads, codec, key, ns, None)
        id = latest.id if latest else ""
    start = id

    async def once() -> dict[str, ChannelHistory]:
        head, ancestors = await _load_ancestors(heads, key, ns, start, channels)
        await fill_cache(heads, head, (each for slot in _needed_slots(ancestors) for each in slot.ranges))
        return _decode(head, codec, ancestors, channels)

    return await read_consistently(key, once)


class _Ancestor(NamedTuple):
    """An ancestor, and the channels for which no value was found nearer to the checkpoint."""

    record: CheckpointRecord
    tasks: list[TaskWrites]
    wanted: set[str]


async def _load_ancestors(
    heads: Heads, key: ThreadKey, ns: str, id: str, channels: Sequence[str]
) -> tuple[Head, list[_Ancestor]]:
    """Load the ancestors up to the one with the last value that is needed, nearest first."""
    limit = _NEAR
    while True:
        old = heads.get(key)
        loaded = await LoadAncestors(key, ns, id, limit)
        first = loaded.checkpoints[:1] or (CheckpointRows(None, ()),)
        check_newest(key, (CheckpointRef(ns, id),), LoadedRows(loaded.thread, first))
        head = heads.head_from(key, loaded, old if old and old.has_epoch_of(loaded.thread) else None)
        ancestors, without_value = _walk(head, loaded, channels)
        if not without_value or len(loaded.checkpoints) < limit:
            return head, ancestors
        limit = _ALL


def _walk(head: Head, loaded: LoadedRows, channels: Sequence[str]) -> tuple[list[_Ancestor], set[str]]:
    """The ancestors up to the last value that is needed, and the channels for which there is none among them."""
    without_value = set(channels)
    ancestors = []
    for found in loaded.checkpoints[1:]:
        if not without_value or found.row is None:
            break
        record, tasks = head.checkpoint(found.row), [head.task(row) for row in found.writes]
        ancestors.append(_Ancestor(record, tasks, set(without_value)))
        without_value -= record.slots.keys()
    return ancestors, without_value


def _needed_slots(ancestors: Sequence[_Ancestor]) -> Iterator[Slot]:
    for record, tasks, wanted in ancestors:
        yield from (slot for name, slot in record.slots.items() if name in wanted)
        entries = (entry for task in tasks for entry in task.entries.values())
        yield from (entry.slot for entry in entries if entry.channel in wanted)


def _decode(
    head: Head, codec: Codec, ancestors: Sequence[_Ancestor], channels: Sequence[str]
) -> dict[str, ChannelHistory]:
    histories = {channel: ChannelHistory([], []) for channel in channels}
    for record, tasks, wanted in reversed(ancestors):
        for channel in wanted & record.slots.keys():
            value = decode_value(head, codec, record.slots[channel], f"channel {channel!r} of {head.where}")
            histories[channel].seeds.append(value)
        for write in decode_writes(head, codec, [_only_channels(task, wanted) for task in tasks]):
            histories[write[1]].writes.append(write)
    return histories


def _only_channels(task: TaskWrites, channels: set[str]) -> TaskWrites:
    return task._replace(entries={idx: entry for idx, entry in task.entries.items() if entry.channel in channels})
