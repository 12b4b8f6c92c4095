"""The difference between two checkpoints, of one thread or of two: per channel, deep, as plain data.

What both hold in the same items of one thread is equal and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from threadkeep.engine.history.checkpoint_info import CheckpointInfo, ThreadReader, fetch, is_internal, read, sends_of
from threadkeep.engine.history.value_diff import ADDED, CHANGED, REMOVED, ValueChange, changes
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.records import CheckpointRecord
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import find


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """A channel that differs: added, removed or changed, and what exactly."""

    channel: str
    change: str
    changes: tuple[ValueChange, ...]

    @property
    def is_internal(self) -> bool:
        """Whether it is LangGraph's own channel."""
        return is_internal(self.channel)


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs in checkpoint `b` from checkpoint `a`, by channel; the others are `unchanged`."""

    a: CheckpointInfo
    b: CheckpointInfo
    channels: tuple[ChannelDiff, ...]
    unchanged: tuple[str, ...]


async def diff(heads: Heads, a: tuple[ThreadKey, str | None], b: tuple[ThreadKey, str | None], ns: str) -> Diff:
    """Compare two checkpoints. Two round trips for each thread."""

    async def told(reading: ThreadReader) -> Diff:
        if b[0] == a[0]:
            one, other = find(reading.thread, a[1], ns), find(reading.thread, b[1], ns)
            return await _compared(heads, (reading, one), (reading, other))

        async def both(second: ThreadReader) -> Diff:
            one, other = find(reading.thread, a[1], ns), find(second.thread, b[1], ns)
            return await _compared(heads, (reading, one), (second, other))

        return await read(heads, b[0], both)

    return await read(heads, a[0], told)


async def _compared(
    heads: Heads, a: tuple[ThreadReader, CheckpointRecord], b: tuple[ThreadReader, CheckpointRecord]
) -> Diff:
    every = dict.fromkeys((*a[0].names(a[1]), *b[0].names(b[1])))
    differing = [name for name in every if a[0] is not b[0] or not a[0].is_unchanged(a[1], b[1], name)]
    for reading, record in (a, b):
        held = [slot for name in differing for slot in reading.slots(record, name)]
        await fetch(heads, reading, held + sends_of(reading, [record]))
    found = [one for name in differing for one in _channel(a, b, name)]
    named = {one.channel for one in found}
    unchanged = tuple(name for name in every if name not in named)
    return Diff(a[0].step(a[1]), b[0].step(b[1]), tuple(found), unchanged)


def _channel(
    a: tuple[ThreadReader, CheckpointRecord], b: tuple[ThreadReader, CheckpointRecord], name: str
) -> Iterator[ChannelDiff]:
    before, after = (_held(*side, name) for side in (a, b))
    if not before:
        yield ChannelDiff(name, ADDED, (ValueChange(name, ADDED, after=after[0]),))
    elif not after:
        yield ChannelDiff(name, REMOVED, (ValueChange(name, REMOVED, before=before[0]),))
    elif found := tuple(changes((name,), before[0], after[0])):
        yield ChannelDiff(name, CHANGED, found)


def _held(reading: ThreadReader, record: CheckpointRecord, name: str) -> list[Any]:
    """What a channel holds, if it is there."""
    return [reading.value(record, name)] if name in reading.names(record) else []
