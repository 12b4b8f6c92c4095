"""How much space threads take, by thread, channel and kind, and totals of the whole storage: the verbs sizes and stats.

Items are measured, not read: the length and the first bytes of a stored item give its compressed and its full size.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from threadkeep.engine.commit import check_epoch, read_consistently
from threadkeep.engine.identity import CUBE, GRAPH, Kind, ThreadKey
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, ItemRange, full_length, subtract, union
from threadkeep.engine.log.msgpack import WHOLE, header
from threadkeep.engine.log.records import STATUSES, Slot, TaskWrites
from threadkeep.engine.requests import MeasureItems
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.damaged_rows import load_thread_rows
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import ThreadRows
from threadkeep.errors import Corrupt
from threadkeep.short_repr import short_repr

if TYPE_CHECKING:
    from threadkeep.engine.health.requests import StorageSize
    from threadkeep.engine.history.checkpoint_sizes import CheckpointSize

KINDS = ("state", "writes", "checkpoint_rows", "write_rows", "shared", "unused")
"""What bytes are used for.

state             items of checkpoints' values
writes            items that only writes refer to
checkpoint_rows   rows of checkpoints, with the small values in them
write_rows        rows of tasks' writes, with the small values in them
shared            names, range lists, labels and shapes
unused            items that nothing refers to any more
"""
_IMPLAUSIBLE = 1 << 40
"""An item that says that it holds so many bytes is damaged."""
_MAX_ITEMS = 8192
"""The number of items that one request measures."""


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """The space that a thread takes. `stored` is its `ThreadInfo.bytes` and the sum of `by_kind`.

    `logical` is the space it would take if every value of every checkpoint and every write were stored uncompressed.
    `damaged` counts rows and items that cannot be read. The items of such rows may be counted as unused.
    """

    id: str
    kind: Kind
    stored: int
    logical: int
    by_kind: dict[str, int]
    damaged: int = 0

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class ChannelSize:
    """The space that a channel takes: its `items` and their `stored` bytes, which its values and writes share.

    The other sizes are uncompressed: what tasks have `written` to the channel, the sum of its values in all checkpoints
    (`state`), and its value in the `latest` checkpoint of the root namespace. Values of a few bytes are stored in rows,
    so `stored` may be 0.
    """

    channel: str
    items: int
    stored: int
    writes: int
    written: int
    state: int
    latest: int

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Sizes:
    """The space that threads take. `by_thread` has the largest threads; `by_channel` and `by_kind` are sums over all.

    `logical` is the sum of `written` (all writes) and `state` (the values of all checkpoints), each uncompressed and
    whole. `saved` is the part of it that is not stored. `damaged` has the ids of threads with damaged rows or items,
    which count as far as they can be measured; `skipped` those of threads that cannot be read at all. `checkpoint` is
    the size of one checkpoint, if that was asked for.
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
    damaged: tuple[str, ...] = ()
    checkpoint: CheckpointSize | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals of a tenant's threads and memories. `storage` is the space the whole storage takes, for all tenants."""

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

    __repr__ = short_repr


# --- items


class _LaneTotals(NamedTuple):
    """Running sums over the items of a lane from number `low` on: count, stored bytes, uncompressed bytes."""

    low: int
    counts: array[int]
    stored: array[int]
    full: array[int]

    def sum_of(self, sums: array[int], items: ItemRange) -> int:
        last = len(sums) - 1
        start, end = items.start - self.low, items.start + items.length - self.low
        return sums[min(max(end, 0), last)] - sums[min(max(start, 0), last)]


class ItemTotals:
    """The sizes of items. The sum over a range takes the same time however long it is."""

    def __init__(self) -> None:
        self._lanes: dict[int, _LaneTotals] = {}
        self.damaged = 0

    def measure(self, item: tuple[int, int, int, bytes]) -> tuple[int, int, int, int]:
        """Return an item as `add` takes it. A damaged one, whose full size is not known, counts as it is stored."""
        lane, n, length, beginning = item
        try:
            full = full_length(length, beginning, "it")
        except Corrupt:
            full = -1
        if not 0 <= full < _IMPLAUSIBLE:
            self.damaged, full = self.damaged + 1, length
        return lane, n, length, full

    def add(self, items: Iterable[tuple[int, int, int, int]]) -> None:
        """Add items as (lane, n, stored, full). Within a lane, numbers only grow."""
        for lane, n, stored, full in items:
            totals = self._lanes.get(lane)
            if totals is None:
                totals = self._lanes[lane] = _LaneTotals(n, *(array("q", [0]) for _ in range(3)))
            sums = (totals.counts, totals.stored, totals.full)
            while len(totals.counts) <= n - totals.low:
                for each in sums:
                    each.append(each[-1])
            for each, more in zip(sums, (1, stored, full), strict=True):
                each.append(each[-1] + more)

    def count(self, ranges: Iterable[ItemRange]) -> int:
        """Return the number of items in these ranges."""
        return sum(lane.sum_of(lane.counts, items) for items, lane in self._with_lanes(ranges))

    def stored(self, ranges: Iterable[ItemRange]) -> int:
        """Return their stored size."""
        return sum(lane.sum_of(lane.stored, items) for items, lane in self._with_lanes(ranges))

    def full(self, ranges: Iterable[ItemRange]) -> int:
        """Return their uncompressed size."""
        return sum(lane.sum_of(lane.full, items) for items, lane in self._with_lanes(ranges))

    def _with_lanes(self, ranges: Iterable[ItemRange]) -> Iterator[tuple[ItemRange, _LaneTotals]]:
        return ((items, self._lanes[items.lane]) for items in ranges if items.lane in self._lanes)


async def measure_items(rows: ThreadRows, ranges: Iterable[ItemRange]) -> ItemTotals:
    """Measure items of a thread. Conflict if it was pruned since its rows were read. One round trip per 8192 items."""
    totals = ItemTotals()
    for some in _slices(ranges):
        measured = await MeasureItems(rows.key, some)
        check_epoch(rows.head.row, measured.thread)
        totals.add(map(totals.measure, sorted(measured.items)))
    return totals


def _slices(ranges: Iterable[ItemRange]) -> Iterator[tuple[ItemRange, ...]]:
    some: list[ItemRange] = []
    room = _MAX_ITEMS
    for lane, start, length in ranges:
        n = start
        while n < start + length:
            count = min(room, start + length - n)
            some.append(ItemRange(lane, n, count))
            n, room = n + count, room - count
            if not room:
                yield tuple(some)
                some, room = [], _MAX_ITEMS
    if some:
        yield tuple(some)


# --- one thread


class MeasuredThread(NamedTuple):
    """The size of a thread and of each of its channels."""

    thread: ThreadSize
    channels: dict[str, ChannelSize]


async def measure_thread(heads: Heads, key: ThreadKey) -> MeasuredThread:
    """Measure a thread. Missing if it does not exist. Two round trips; one more per 8192 items."""
    return await read_consistently(key, lambda: _measure_thread(heads, key))


async def _measure_thread(heads: Heads, key: ThreadKey) -> MeasuredThread:
    rows = await load_thread_rows(heads, key)
    items = await measure_items(rows, rows.stored)
    channels = {channel.channel: channel for channel in _channel_sizes(rows, items)}
    logical = sum(channel.written + channel.state for channel in channels.values())
    kinds = _size_by_kind(rows, items)
    damaged = len(rows.damaged) + len(rows.damaged_writes) + items.damaged
    return MeasuredThread(ThreadSize(key.id, key.kind, sum(kinds.values()), logical, kinds, damaged), channels)


def _size_by_kind(rows: ThreadRows, items: ItemTotals) -> dict[str, int]:
    state = union(each for record in rows.records.values() for slot in record.slots.values() for each in slot.ranges)
    written = union(each for task in _tasks(rows) for entry in task.entries.values() for each in entry.slot.ranges)
    of_channels = [each for each in rows.stored if each.lane >= FIRST_CHANNEL]
    not_state = subtract(of_channels, state)
    unused = subtract(not_state, written)
    damaged = (each.row.size for each in rows.damaged.values() if each.row is not None)
    damaged_writes = (each.row.size for each in rows.damaged_writes.values() if each.row is not None)
    return {
        "state": items.stored(of_channels) - items.stored(not_state),
        "writes": items.stored(not_state) - items.stored(unused),
        "checkpoint_rows": sum(record.row.size for record in rows.records.values()) + sum(damaged),
        "write_rows": sum(task.row.size for task in _tasks(rows)) + sum(damaged_writes),
        "shared": items.stored(each for each in rows.stored if each.lane < FIRST_CHANNEL),
        "unused": items.stored(unused),
    }


def _tasks(rows: ThreadRows) -> Iterator[TaskWrites]:
    return (task for tasks in rows.tasks.values() for task in tasks)


def _channel_sizes(rows: ThreadRows, items: ItemTotals) -> Iterator[ChannelSize]:
    state, latest = Counter[str](), Counter[str]()
    for record in rows.records.values():
        state.update({name: full_size(slot, items) for name, slot in record.slots.items()})
    for record in rows.visible("")[-1:]:
        latest.update({name: full_size(slot, items) for name, slot in record.slots.items()})
    writes, written = Counter[str](), Counter[str]()
    for entry in (entry for task in _tasks(rows) for entry in task.entries.values()):
        writes[entry.channel] += 1
        written[entry.channel] += entry.size
    lanes: dict[int, list[ItemRange]] = {}
    for each in rows.stored:
        lanes.setdefault(each.lane, []).append(each)
    for n, name in enumerate(rows.head.names):
        ranges = lanes.get(FIRST_CHANNEL + n, [])
        count, stored = items.count(ranges), items.stored(ranges)
        if count or name in state or name in writes:
            yield ChannelSize(name, count, stored, writes[name], written[name], state[name], latest[name])


def full_size(slot: Slot, items: ItemTotals) -> int:
    """Return the encoded length of a value; a value in parts has a header before them."""
    if slot.inline is not None:
        return len(slot.inline)
    return items.full(slot.ranges) + (len(header(slot.kind, slot.elements)) if slot.kind != WHOLE else 0)


# --- totals over threads


@dataclass(slots=True)
class SizeTotals:
    """Sums over threads, and the `limit` largest threads."""

    limit: int
    threads: int = 0
    stored: int = 0
    largest: list[ThreadSize] = field(default_factory=list)
    channels: dict[str, ChannelSize] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)

    def add_thread(self, measured: MeasuredThread) -> None:
        """Add a thread."""
        self.threads += 1
        if measured.thread.damaged:
            self.damaged.append(measured.thread.id)
        self.stored += measured.thread.stored
        self.kinds.update(measured.thread.by_kind)
        insort(self.largest, measured.thread, key=lambda thread: (-thread.stored, thread.kind, thread.id))
        del self.largest[self.limit :]
        for name, channel in measured.channels.items():
            self.channels[name] = _add_sizes(self.channels[name], channel) if name in self.channels else channel

    def sizes(self) -> Sizes:
        """Return the totals."""
        channels = sorted(self.channels.values(), key=lambda each: (-each.stored, -each.written, each.channel))
        written, state = sum(each.written for each in channels), sum(each.state for each in channels)
        return Sizes(
            threads=self.threads,
            stored=self.stored,
            logical=written + state,
            saved=written + state - self.stored,
            written=written,
            state=state,
            by_thread=self.largest,
            by_channel=channels,
            by_kind=_counts_in_order(self.kinds, KINDS),
            damaged=tuple(self.damaged),
        )


def _add_sizes(one: ChannelSize, other: ChannelSize) -> ChannelSize:
    return replace(
        one,
        items=one.items + other.items,
        stored=one.stored + other.stored,
        writes=one.writes + other.writes,
        written=one.written + other.written,
        state=one.state + other.state,
        latest=one.latest + other.latest,
    )


@dataclass(slots=True)
class ThreadTotals:
    """Counts over threads, from their rows alone."""

    threads: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    oldest: datetime | None = None
    newest: datetime | None = None

    def add_thread(self, info: ThreadInfo) -> None:
        """Add a thread."""
        self.threads += 1
        self.kinds[info.kind] += 1
        self.statuses[info.status] += 1
        self.sums.update(checkpoints=info.checkpoints, writes=info.writes, bytes=info.bytes)
        self.oldest = min(self.oldest or info.created, info.created)
        self.newest = max(self.newest or info.updated, info.updated)

    def stats(self, memories: int, namespaces: int, storage: StorageSize | None) -> Stats:
        """Return the totals."""
        return Stats(
            threads=self.threads,
            by_kind=_counts_in_order(self.kinds, (GRAPH, CUBE)),
            by_status=_counts_in_order(self.statuses, STATUSES),
            checkpoints=self.sums["checkpoints"],
            writes=self.sums["writes"],
            bytes=self.sums["bytes"],
            oldest=self.oldest,
            newest=self.newest,
            memories=memories,
            namespaces=namespaces,
            storage=storage,
        )


def _counts_in_order(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """Return the counts of these names, which may be 0, and then of all others."""
    return dict.fromkeys(names, 0) | dict(counts)
