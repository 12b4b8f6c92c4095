"""The history of delta channels: the nearest stored value among a checkpoint's ancestors, and the writes since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from threadkeep.collector import gc_paused
from threadkeep.engine.commit import fill_cache, read_consistently
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.log.records import Slot, WriteEntry, unpack_channels, unpack_own_metadata, unpack_writes_to
from threadkeep.engine.requests import CheckpointRef, CheckpointRows, LoadAncestors, LoadedRows
from threadkeep.engine.threads.checkpoints import check_newest, decode_slots, decode_value, get, in_order
from threadkeep.engine.threads.heads import Head, Heads

_NEAR, _ALL = 64, 1 << 31
"""How many ancestors are loaded first if it is not known how far away the stored value is; and if that is not enough,
and still not known, all of them."""
_SPARE = 4
"""Some more than LangGraph counted cost little."""


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
        ranges: list[ItemRange] = []
        for slots, writes in ancestors:
            for slot in slots.values():
                ranges += slot.ranges
            for _, _, _, entry in writes:
                ranges += entry.slot.ranges
        await fill_cache(heads, head, ranges)
        with gc_paused():
            return _decode(head, codec, ancestors, channels)

    return await read_consistently(key, once)


class _Ancestor(NamedTuple):
    """What an ancestor has of the channels for which no value was found nearer to the checkpoint.

    `writes` are (path, task, idx, entry), in LangGraph's order.
    """

    slots: dict[str, Slot]
    writes: list[tuple[str, str, int, WriteEntry]]


async def _load_ancestors(
    heads: Heads, key: ThreadKey, ns: str, id: str, channels: Sequence[str]
) -> tuple[Head, list[_Ancestor]]:
    """Load the ancestors up to the one with the last value that is needed, nearest first."""
    head = heads.get(key)
    cached = head.recent.get((ns, id)) if head is not None else None
    limit = _expected_distance(cached.own_metadata, channels) if cached is not None else _NEAR
    while True:
        old = heads.get(key)
        loaded = await LoadAncestors(key, ns, id, limit, old.cached_items() if old is not None else None)
        if old is not None and not heads.is_current(old):  # as in `checkpoints.load_checkpoints`
            old, loaded = None, await LoadAncestors(key, ns, id, limit)
        first = loaded.checkpoints[0] if loaded.checkpoints else CheckpointRows(None, ())
        check_newest(key, (CheckpointRef(ns, id),), LoadedRows(loaded.thread, (first,)))
        head = heads.head_from(key, loaded, old if old and old.has_epoch_of(loaded.thread) else None)
        with gc_paused():
            ancestors, without_value = _walk(head, loaded, channels)
        if not without_value or len(loaded.checkpoints) < limit or first.row is None:
            return head, ancestors
        expected = _expected_distance(unpack_own_metadata(first.row, head.where, head.family), channels)
        limit = expected if expected > limit else _ALL


def _expected_distance(own_metadata: Mapping[str, Any], channels: Sequence[str]) -> int:
    """Return how many ancestors to load, as LangGraph counted them in the metadata of a checkpoint; _NEAR if not."""
    counters = own_metadata.get("counters_since_delta_snapshot")
    if not isinstance(counters, Mapping):  # another program may have stored anything
        return _NEAR
    distance = 0
    for channel in channels:
        match counters.get(channel):
            case [_, int(supersteps)]:
                distance = max(distance, supersteps)
            case _:
                return _NEAR
    return min(distance + _SPARE, _ALL)


def _walk(head: Head, loaded: LoadedRows, channels: Sequence[str]) -> tuple[list[_Ancestor], set[str]]:
    """Return the ancestors back to the last value that is needed, and the channels without a value in any of them.

    LangGraph reads the same ancestors again in every run, so they stay cached as they were decoded. A row that is
    equal in all columns needs no other check: its checksum was compared then.
    """
    names, shared, where = head.name_table(), head.shared_parts(), head.where
    wanted = {n: name for n, name in enumerate(head.names) if name in channels}
    without_value = set(channels)
    decoded = head.cache.decoded
    ancestors = []
    for found in loaded.checkpoints[1:]:
        row = found.row
        if not without_value or row is None:
            break
        place = (row.ns, row.id, *wanted)
        known = decoded.get(place)
        if known is not None and known[0] == row and known[1] == found.writes:
            ancestor = known[2]
        else:
            slots = unpack_channels(row, names, shared, where, wanted)
            writes = in_order([unpack_writes_to(each, names, shared, where, wanted) for each in found.writes])
            ancestor = _Ancestor(slots, writes)
            head.cache.add_decoded(place, (row, found.writes, ancestor))
        ancestors.append(ancestor)
        if ancestor.slots:
            without_value -= ancestor.slots.keys()
            wanted = {n: name for n, name in wanted.items() if name in without_value}
    return ancestors, without_value


def _decode(
    head: Head, codec: Codec, ancestors: Sequence[_Ancestor], channels: Sequence[str]
) -> dict[str, ChannelHistory]:
    """Decode the values, oldest first. All in one call; one by one if that fails, to name the one that is wrong."""
    histories = {channel: ChannelHistory([], []) for channel in channels}
    places: list[tuple[str | None, str, Slot]] = []
    for slots, writes in reversed(ancestors):
        places += [(None, channel, slot) for channel, slot in slots.items()]
        places += [(task, entry.channel, entry.slot) for _, task, _, entry in writes]
    try:
        values = decode_slots(head.cache, codec, [slot for _, _, slot in places])
    except Exception:  # noqa: BLE001 - the loop says which one it is
        values = [decode_value(head, codec, slot, _name(head, by, channel)) for by, channel, slot in places]
    for (task, channel, _), value in zip(places, values, strict=True):
        if task is None:
            histories[channel].seeds.append(value)
        else:
            histories[channel].writes.append((task, channel, value))
    return histories


def _name(head: Head, task: str | None, channel: str) -> str:
    """Name a value in errors."""
    return f"channel {channel!r} of {head.where}" if task is None else f"a write of task {task!r} in {head.where}"
