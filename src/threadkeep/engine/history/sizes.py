"""How much is stored, and of what: by thread, channel and kind; what sharing saved; and the whole in numbers.

Items are measured, not read: a stored item's length and first bytes tell how long it is with and without compression.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, ItemRange, full_length, minus, union
from threadkeep.engine.log.msgpack import WHOLE, header
from threadkeep.engine.log.records import Slot, TaskWrites
from threadkeep.engine.requests import MeasureItems, StorageSize
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.status import STATUSES
from threadkeep.engine.threads.thread_rows import ThreadRows, load_thread_rows
from threadkeep.errors import Conflict

KINDS = ("state", "writes", "checkpoint_rows", "write_rows", "shared", "unused")
"""What bytes are for: items of checkpoints' values; items that only writes have; rows of checkpoints and of tasks'
writes, small values in them included; names, run lists, labels and shapes; and items that nothing refers to any more."""
_AT_ONCE = 8192
"""So many items are measured at a time."""


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """What a thread takes. `stored` is its `ThreadInfo.bytes`, and the sum of `by_kind`.

    `logical` is what it would take if every checkpoint's values and every write were stored whole, uncompressed.
    """

    id: str
    kind: str
    stored: int
    logical: int
    by_kind: dict[str, int]


@dataclass(frozen=True, slots=True)
class ChannelSize:
    """What a channel takes: its `items` and their `stored` bytes, which its values and writes share.

    Uncompressed: what tasks have `written` to it, its value in all checkpoints (`state`), and in the `latest` of the
    root namespace. Values of some bytes stand in rows, so `stored` may be 0.
    """

    channel: str
    items: int
    stored: int
    writes: int
    written: int
    state: int
    latest: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What threads take. `by_thread` has the largest of them, `by_channel` and `by_kind` are sums over all.

    `logical` is `written` (all writes) and `state` (all checkpoints' values), uncompressed and whole each time;
    `saved` is what of it need not be stored. `skipped` are damaged threads, which are not counted.
    """

    threads: int
    stored: int
    logical: int
    saved: int
    written: int
    state: int
    by_thread: list[ThreadSize]
    by_channel: list[ChannelSize]
    by_kind: dict[str, int]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """A tenant's threads and memories in numbers; and what the storage takes, with all tenants and all others in it."""

    threads: int
    by_kind: dict[str, int]
    by_status: dict[str, int]
    checkpoints: int
    writes: int
    bytes: int
    oldest: datetime | None
    newest: datetime | None
    memories: int
    namespaces: int
    storage: StorageSize | None


class _LaneTotals(NamedTuple):
    """Sums over the items of a lane from `low` on: how many, how many bytes stored, how many uncompressed."""

    low: int
    counts: array[int]
    stored: array[int]
    full: array[int]

    def between(self, sums: array[int], run: ItemRange) -> int:
        last = len(sums) - 1
        start, end = run.start - self.low, run.start + run.length - self.low
        return sums[min(max(end, 0), last)] - sums[min(max(start, 0), last)]


class ItemTotals:
    """Items, measured. Any run of them is summed at once, however long."""

    def __init__(self) -> None:
        self._lanes: dict[int, _LaneTotals] = {}

    def add(self, items: Iterable[tuple[int, int, int, int]]) -> None:
        """More items, as (lane, n, stored, full), which come after those that are here."""
        for lane, n, stored, full in items:
            held = self._lanes.get(lane)
            if held is None:
                held = self._lanes[lane] = _LaneTotals(n, *(array("q", [0]) for _ in range(3)))
            sums = (held.counts, held.stored, held.full)
            while len(held.counts) <= n - held.low:
                for each in sums:
                    each.append(each[-1])
            for each, more in zip(sums, (1, stored, full), strict=True):
                each.append(each[-1] + more)

    def count(self, runs: Iterable[ItemRange]) -> int:
        """How many items there are in these runs."""
        return sum(lane.between(lane.counts, run) for run, lane in self._of(runs))

    def stored(self, runs: Iterable[ItemRange]) -> int:
        """How many bytes they take."""
        return sum(lane.between(lane.stored, run) for run, lane in self._of(runs))

    def full(self, runs: Iterable[ItemRange]) -> int:
        """How many bytes they hold."""
        return sum(lane.between(lane.full, run) for run, lane in self._of(runs))

    def _of(self, runs: Iterable[ItemRange]) -> Iterator[tuple[ItemRange, _LaneTotals]]:
        return ((run, self._lanes[run.lane]) for run in runs if run.lane in self._lanes)


async def measured(thread: ThreadRows, runs: Iterable[ItemRange]) -> ItemTotals:
    """Items of a thread, measured some at a time. Conflict if it was pruned since it was surveyed."""
    lanes = ItemTotals()
    for some in _slices(runs):
        told = await MeasureItems(thread.key, some)
        if told.thread is None or thread.head.row is None or told.thread.epoch != thread.head.row.epoch:
            raise Conflict(f"{thread.head.where} was pruned while it was read")
        lanes.add(
            (lane, n, length, full_length(length, beginning, f"item {lane}:{n} of {thread.head.where}"))
            for lane, n, length, beginning in sorted(told.items)
        )
    return lanes


def _slices(runs: Iterable[ItemRange]) -> Iterator[tuple[ItemRange, ...]]:
    some: list[ItemRange] = []
    room = _AT_ONCE
    for lane, start, length in runs:
        at = start
        while at < start + length:
            taken = min(room, start + length - at)
            some.append(ItemRange(lane, at, taken))
            at, room = at + taken, room - taken
            if not room:
                yield tuple(some)
                some, room = [], _AT_ONCE
    if some:
        yield tuple(some)


class MeasuredThread(NamedTuple):
    """A thread, and what each of its channels takes."""

    thread: ThreadSize
    channels: dict[str, ChannelSize]


async def measure_thread(heads: Heads, key: ThreadKey) -> MeasuredThread:
    """What a thread takes. Two round trips; more if it has many items. Missing if it is not there."""
    return await read_consistently(key, lambda: _weigh(heads, key))


async def _weigh(heads: Heads, key: ThreadKey) -> MeasuredThread:
    thread = await load_thread_rows(heads, key)
    lanes = await measured(thread, thread.stored)
    channels = {channel.channel: channel for channel in _channels(thread, lanes)}
    logical = sum(channel.written + channel.state for channel in channels.values())
    kinds = _by_kind(thread, lanes)
    return MeasuredThread(ThreadSize(key.id, key.kind, sum(kinds.values()), logical, kinds), channels)


def _by_kind(thread: ThreadRows, lanes: ItemTotals) -> dict[str, int]:
    state = union(run for record in thread.records.values() for slot in record.slots.values() for run in slot.ranges)
    written = union(run for task in _tasks(thread) for entry in task.entries.values() for run in entry.slot.ranges)
    of_channels = [run for run in thread.stored if run.lane >= FIRST_CHANNEL]
    rest = minus(of_channels, state)
    unused = minus(rest, written)
    sums = (
        lanes.stored(of_channels) - lanes.stored(rest),
        lanes.stored(rest) - lanes.stored(unused),
        sum(record.row.size for record in thread.records.values()),
        sum(task.row.size for task in _tasks(thread)),
        lanes.stored(run for run in thread.stored if run.lane < FIRST_CHANNEL),
        lanes.stored(unused),
    )
    return dict(zip(KINDS, sums, strict=True))


def _tasks(thread: ThreadRows) -> Iterator[TaskWrites]:
    return (task for tasks in thread.tasks.values() for task in tasks)


def _channels(thread: ThreadRows, lanes: ItemTotals) -> Iterator[ChannelSize]:
    """What each channel takes, holds and was given."""
    state, latest = Counter[str](), Counter[str]()
    for record in thread.records.values():
        state.update({name: _full(slot, lanes) for name, slot in record.slots.items()})
    for record in thread.visible("")[-1:]:
        latest.update({name: _full(slot, lanes) for name, slot in record.slots.items()})
    writes, written = Counter[str](), Counter[str]()
    for entry in (entry for task in _tasks(thread) for entry in task.entries.values()):
        writes[entry.channel] += 1
        written[entry.channel] += entry.size
    held: dict[int, list[ItemRange]] = {}
    for run in thread.stored:
        held.setdefault(run.lane, []).append(run)
    for n, name in enumerate(thread.head.names):
        runs = held.get(FIRST_CHANNEL + n, [])
        told = ChannelSize(
            name, lanes.count(runs), lanes.stored(runs), writes[name], written[name], state[name], latest[name]
        )
        if told.items or name in state or name in writes:
            yield told


def _full(slot: Slot, lanes: ItemTotals) -> int:
    """The encoded length of a value; one in parts has a header before them."""
    if slot.inline is not None:
        return len(slot.inline)
    return lanes.full(slot.ranges) + (len(header(slot.kind, slot.elements)) if slot.kind != WHOLE else 0)


@dataclass(slots=True)
class SizeTotals:
    """Sums over threads, and the largest of them."""

    limit: int
    threads: int = 0
    stored: int = 0
    largest: list[ThreadSize] = field(default_factory=list)
    channels: dict[str, ChannelSize] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)

    def take(self, weighed: MeasuredThread) -> None:
        """One more thread."""
        self.threads += 1
        self.stored += weighed.thread.stored
        self.kinds.update(weighed.thread.by_kind)
        insort(self.largest, weighed.thread, key=lambda each: (-each.stored, each.kind, each.id))
        del self.largest[self.limit :]
        for name, channel in weighed.channels.items():
            self.channels[name] = _added(self.channels[name], channel) if name in self.channels else channel

    def sizes(self) -> Sizes:
        """All of it."""
        channels = sorted(self.channels.values(), key=lambda each: (-each.stored, -each.written, each.channel))
        written, state = sum(each.written for each in channels), sum(each.state for each in channels)
        kinds = {kind: self.kinds[kind] for kind in KINDS}
        return Sizes(
            self.threads, self.stored, written + state, written + state - self.stored, written, state,
            self.largest, channels, kinds,
        )  # fmt: skip


def _added(one: ChannelSize, other: ChannelSize) -> ChannelSize:
    return ChannelSize(
        one.channel, one.items + other.items, one.stored + other.stored, one.writes + other.writes,
        one.written + other.written, one.state + other.state, one.latest + other.latest,
    )  # fmt: skip


@dataclass(slots=True)
class ThreadTotals:
    """Threads, counted from their rows."""

    threads: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    oldest: datetime | None = None
    newest: datetime | None = None

    def take(self, info: ThreadInfo) -> None:
        """One more thread."""
        self.threads += 1
        self.kinds[info.kind] += 1
        self.statuses[info.status] += 1
        self.sums.update(checkpoints=info.checkpoints, writes=info.writes, bytes=info.bytes)
        self.oldest = min(self.oldest or info.created, info.created)
        self.newest = max(self.newest or info.updated, info.updated)

    def stats(self, memories: int, namespaces: int, storage: StorageSize | None) -> Stats:
        """All of it."""
        return Stats(
            self.threads, _in_order(self.kinds, (GRAPH, CUBE)), _in_order(self.statuses, STATUSES),
            self.sums["checkpoints"], self.sums["writes"], self.sums["bytes"], self.oldest, self.newest,
            memories, namespaces, storage,
        )  # fmt: skip


def _in_order(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in names}
