"""The size of one checkpoint: its state, what of it is its own, and the writes of the tasks that ran from it.

Items are measured, not read, as for the sizes of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from threadkeep.engine.history.checkpoint_info import ThreadReader, read_thread
from threadkeep.engine.history.sizes import ItemTotals, full_size, measure_items
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.itemlog import ItemRange, subtract, union
from threadkeep.engine.log.records import CheckpointRecord
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import find_checkpoint
from threadkeep.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class StateSize:
    """The size of a channel's value in a checkpoint: `bytes`, uncompressed; `own` of them are in no earlier checkpoint.

    `stored` is the compressed size of the items that are its own. A value of a few bytes is in the row: `stored` is 0.
    """

    channel: str
    bytes: int
    own: int
    stored: int

    __repr__ = short_repr

    @property
    def shared(self) -> int:
        """The bytes that are in items of earlier checkpoints, too."""
        return self.bytes - self.own


@dataclass(frozen=True, slots=True)
class WriteSize:
    """What a task wrote to a channel: the number of writes and their `bytes`, uncompressed.

    `in_state` is how many of them are in items that the state of a checkpoint has, too, so they are stored once.
    """

    task: str
    node: str | None
    channel: str
    writes: int
    bytes: int
    in_state: int

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """The size of a checkpoint. `state` and `writes` are sums over `by_channel` and `by_write`, uncompressed.

    `writes` are those on the checkpoint: they come from the tasks that ran from it, and led to its child. `own` is the
    part of the state that no earlier checkpoint has, and `stored` what its items and the checkpoint's row take. The
    largest come first. `damaged` says which writes and items cannot be measured.
    """

    thread: str
    kind: str
    ns: str
    id: str
    state: int
    own: int
    stored: int
    writes: int
    by_channel: tuple[StateSize, ...]
    by_write: tuple[WriteSize, ...]
    damaged: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def shared(self) -> int:
        """The part of the state that earlier checkpoints have, too."""
        return self.state - self.own


async def measure_checkpoint(heads: Heads, key: ThreadKey, ref: str, ns: str) -> CheckpointSize:
    """Measure a checkpoint. Missing if it does not exist, Corrupt if its row is damaged.

    Two round trips; one more if tasks came from sends, and one for each 8,192 items more.
    """

    async def measure(reader: ThreadReader) -> CheckpointSize:
        record = find_checkpoint(reader.rows, ref, ns)
        await reader.fetch(reader.send_slots([record]))
        used = [each for slot in record.slots.values() for each in slot.ranges]
        used += [each for task in reader.tasks(record) for entry in task.entries.values() for each in entry.slot.ranges]
        items = await measure_items(reader.rows, union(used))
        return _checkpoint_size(reader, record, items)

    return await read_thread(heads, key, measure)


def _checkpoint_size(reader: ThreadReader, record: CheckpointRecord, items: ItemTotals) -> CheckpointSize:
    channels = sorted(_state_sizes(reader, record, items), key=lambda each: (-each.bytes, each.channel))
    writes = sorted(_write_sizes(reader, record, items), key=lambda each: (-each.bytes, each.task, each.channel))
    damaged = [each.reason for each in reader.damaged_writes((record.row.ns, record.row.id)).values()]
    if items.damaged:
        damaged.append(f"{items.damaged} items are damaged")
    return CheckpointSize(
        thread=reader.key.id,
        kind=reader.key.kind,
        ns=record.row.ns,
        id=record.row.id,
        state=sum(each.bytes for each in channels),
        own=sum(each.own for each in channels),
        stored=sum(each.stored for each in channels) + record.row.size,
        writes=sum(each.bytes for each in writes),
        by_channel=tuple(channels),
        by_write=tuple(writes),
        damaged=tuple(damaged),
    )


def _state_sizes(reader: ThreadReader, record: CheckpointRecord, items: ItemTotals) -> Iterator[StateSize]:
    earlier = (one for one in reader.rows.records.values() if one.row.id < record.row.id)
    taken = union(_state_ranges(earlier))
    for name, slot in record.slots.items():
        size, own = full_size(slot, items), subtract(slot.ranges, taken)
        shared = items.full(slot.ranges) - items.full(own)
        yield StateSize(name, size, size - shared, items.stored(own))


def _state_ranges(records: Iterator[CheckpointRecord]) -> Iterator[ItemRange]:
    return (each for record in records for slot in record.slots.values() for each in slot.ranges)


def _write_sizes(reader: ThreadReader, record: CheckpointRecord, items: ItemTotals) -> Iterator[WriteSize]:
    state = union(_state_ranges(iter(reader.rows.records.values())))
    for task in reader.tasks(record):
        for channel in dict.fromkeys(entry.channel for entry in task.entries.values()):
            entries = [entry for entry in task.entries.values() if entry.channel == channel]
            node = reader.node(record, entries[0].origin[0])
            ranges = [each for entry in entries for each in entry.slot.ranges]
            in_state = items.full(ranges) - items.full(subtract(ranges, state))
            size = sum(entry.size for entry in entries)
            yield WriteSize(task.row.task, node, channel, len(entries), size, in_state)
