"""Compare two checkpoints, of one thread or of two: the verb diff.

Channels that both checkpoints store in the same items are equal and are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from threadkeep.engine.history.checkpoint_info import CheckpointInfo, ThreadReader, read_thread
from threadkeep.engine.history.value_diff import ADDED, CHANGED, REMOVED, ValueChange, changes
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.records import CheckpointRecord
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.status import is_internal
from threadkeep.engine.threads.thread_rows import resolve_ref
from threadkeep.errors import Corrupt
from threadkeep.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """A channel that differs: whether it was added, removed or changed, and each change in its value."""

    channel: str
    change: str
    changes: tuple[ValueChange, ...]

    __repr__ = short_repr

    @property
    def is_internal(self) -> bool:
        """Whether it is one of LangGraph's own channels."""
        return is_internal(self.channel)


@dataclass(frozen=True, slots=True)
class Diff:
    """What checkpoint `b` changed compared with checkpoint `a`: the channels that differ, and those that do not.

    `damaged` has the channels that cannot be compared, because one of the values cannot be read, with the reason. If
    the row of a checkpoint is damaged (`a.damaged`, `b.damaged`), nothing can be compared, and there are no channels.
    """

    a: CheckpointInfo
    b: CheckpointInfo
    channels: tuple[ChannelDiff, ...]
    unchanged: tuple[str, ...]
    damaged: dict[str, str] = field(default_factory=dict)

    __repr__ = short_repr

    @property
    def is_complete(self) -> bool:
        """Whether all channels could be compared."""
        return not (self.a.damaged or self.b.damaged or self.damaged)


class _Side(NamedTuple):
    """One of the two checkpoints, with the reader of its thread."""

    reader: ThreadReader
    record: CheckpointRecord

    def channels(self) -> list[str]:
        return self.reader.channels(self.record)

    async def fetch(self, channels: list[str]) -> None:
        slots = [slot for name in channels for slot in self.reader.slots(self.record, name)]
        await self.reader.fetch(slots + self.reader.send_slots([self.record]))

    def values(self, channel: str) -> list[Any]:
        """The value of a channel; empty if the checkpoint does not have it."""
        return [self.reader.value(self.record, channel)] if channel in self.channels() else []

    def info(self) -> CheckpointInfo:
        return self.reader.info(self.record)


class CheckpointInThread(NamedTuple):
    """Where a checkpoint is: its thread, a reference to it (None for the latest), and its namespace."""

    key: ThreadKey
    ref: str | None
    ns: str


async def diff(heads: Heads, a: CheckpointInThread, b: CheckpointInThread) -> Diff:
    """Compare two checkpoints. Two round trips for each thread."""

    async def compare_in(reader: ThreadReader) -> Diff:
        async def compare_with(other: ThreadReader) -> Diff:
            one, two = resolve_ref(reader.rows, a.ref, a.ns), resolve_ref(other.rows, b.ref, b.ns)
            first, second = reader.rows.records.get(one), other.rows.records.get(two)
            if first is None or second is None:
                return Diff(reader.info_at(one), other.info_at(two), (), ())
            return await _compare(_Side(reader, first), _Side(other, second))

        return await (compare_with(reader) if b.key == a.key else read_thread(heads, b.key, compare_with))

    return await read_thread(heads, a.key, compare_in)


async def _compare(a: _Side, b: _Side) -> Diff:
    every = dict.fromkeys((*a.channels(), *b.channels()))
    candidates = [
        name for name in every if a.reader is not b.reader or not a.reader.is_unchanged(a.record, b.record, name)
    ]
    for side in (a, b):
        await side.fetch(candidates)
    found: list[ChannelDiff] = []
    damaged: dict[str, str] = {}
    for name in candidates:
        try:
            found += _channel_diff(name, a.values(name), b.values(name))
        except Corrupt as error:
            damaged[name] = str(error)
    differing = {*damaged, *(each.channel for each in found)}
    unchanged = tuple(name for name in every if name not in differing)
    return Diff(a.info(), b.info(), tuple(found), unchanged, damaged)


def _channel_diff(name: str, before: list[Any], after: list[Any]) -> Iterator[ChannelDiff]:
    if not before:
        yield ChannelDiff(name, ADDED, (ValueChange(name, ADDED, after=after[0]),))
    elif not after:
        yield ChannelDiff(name, REMOVED, (ValueChange(name, REMOVED, before=before[0]),))
    elif found := tuple(changes((name,), before[0], after[0])):
        yield ChannelDiff(name, CHANGED, found)
