"""Who wrote what: the writes on one checkpoint (trace), and totals by node and channel over many threads (activity).

The writes on a checkpoint come from the tasks that ran from it; its child applied them. A cube thread has no writes:
the messages that a checkpoint appended are reported instead, as its run log lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.commit import check_epoch, read_consistently
from threadkeep.engine.cube.channels import EVENTS, MESSAGES, read_events
from threadkeep.engine.cube.channels import decode_json_text as message
from threadkeep.engine.cube.events import RunEvent
from threadkeep.engine.history.checkpoint_info import old_sends, utc_time
from threadkeep.engine.history.sizes import measure_items
from threadkeep.engine.history.writers import (
    Mark,
    Writer,
    Writes,
    find_writers,
    mark_of,
    mark_of_event,
    messages_of,
    writes_on,
)
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.codec import MSGPACK
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import ItemRange, join_ranges, union
from threadkeep.engine.log.plain import plain
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites, WriteEntry
from threadkeep.engine.requests import LoadItems
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.kept_rows import load_rows_to_show
from threadkeep.engine.threads.thread_rows import (
    CheckpointKey,
    DamagedWrites,
    ThreadRows,
    find_checkpoint,
    is_send_path,
    load_slots,
    node_of_task,
    resolve_ref,
    slot_value,
)
from threadkeep.errors import Corrupt
from threadkeep.short_repr import short_repr

_MAX_SEND_ITEMS = 64
"""The number of items of pending sends that are held at a time, roughly."""


@dataclass(frozen=True, slots=True)
class TracedWrite:
    """A write: which task of which node wrote how many bytes (uncompressed) to which channel, and when.

    `node` is None if it is not known: for update_state, for the value that resumes an interrupt, and for tasks of the
    functional API. `value` is plain data, or None if values were not requested.

    `damaged` says why the value cannot be read. If the whole row of a task cannot be read, there is one such write for
    it, without a channel.

    `thread` is the thread in which the write was made: another one, if it came from there with a copy or a fork.
    `source_missing` is the id of a thread that it may have come from, but that does not exist or have it any more.
    """

    task: str
    node: str | None
    path: str
    idx: int
    channel: str
    size: int
    time: datetime
    run: str | None
    value: Any = None
    damaged: str | None = None
    thread: str = ""
    source_missing: str | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """The writes of one node, to one channel, or of one node to one channel.

    `node` or `channel` is None where the row sums over all of them. `node` is also None where it is not known.
    """

    node: str | None
    channel: str | None
    writes: int
    bytes: int
    average: float

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Activity:
    """Writes over many threads; rows with the most writes come first.

    `threads` and `checkpoints` are the numbers that were read. `damaged` has the ids of threads with damaged rows,
    which do not count; `skipped` those of threads that cannot be read at all.
    """

    since: datetime | None
    until: datetime | None
    threads: int
    checkpoints: int
    writes: int
    bytes: int
    by_node: list[ActivityRow]
    by_channel: list[ActivityRow]
    by_node_and_channel: list[ActivityRow]
    skipped: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    __repr__ = short_repr


# --- trace


async def trace(heads: Heads, key: ThreadKey, ref: str | None, ns: str, *, values: bool) -> list[TracedWrite]:
    """Return the writes on a checkpoint, by time, path, task and idx.

    Writes whose checkpoint is not stored yet are found by its whole id. Missing if the checkpoint does not exist and
    has no writes. One round trip, one more to read pending sends, one more to read values; and one or two for each
    thread that the writes may have come from.
    """
    traced, writes = await read_consistently(key, lambda: _trace(heads, key, ref, ns, values=values))
    writers = await find_writers(heads, writes)
    found = [replace(write, **writers.get(mark, Writer(key.id))._asdict()) for mark, write in traced]
    return sorted(found, key=lambda write: (write.time, write.path, write.task, write.idx))


_Traced: TypeAlias = list[tuple[Mark, TracedWrite]]


async def _trace(heads: Heads, key: ThreadKey, ref: str | None, ns: str, *, values: bool) -> tuple[_Traced, Writes]:
    rows = await load_rows_to_show(heads, key)
    if key.kind == CUBE:
        return await _trace_messages(heads, rows, find_checkpoint(rows, ref, ns), values=values)
    checkpoint = (ns, ref or "")
    if checkpoint not in rows.tasks or checkpoint in rows.records:
        checkpoint = resolve_ref(rows, ref, ns)
    tasks = rows.tasks.get(checkpoint, [])
    sends = (await load_sends(rows, [checkpoint] if has_send_paths(tasks) else [])).get(checkpoint, [])
    entries = [(task.row.task, idx, entry) for task in tasks for idx, entry in task.entries.items()]
    read = await _load_values(rows, [entry.slot for *_, entry in entries]) if values else [None] * len(entries)
    traced: _Traced = [
        (mark_of(*write), _traced_write(*write, sends, value)) for write, value in zip(entries, read, strict=True)
    ]
    traced += [((), _damaged_write(key[2], each)) for key, each in rows.damaged_writes.items() if key[:2] == checkpoint]
    return traced, writes_on(rows, *checkpoint)


def _traced_write(task: str, idx: int, entry: WriteEntry, sends: Sequence[Any], value: Any) -> TracedWrite:
    path, run, time = entry.origin
    damaged = str(value) if isinstance(value, Corrupt) else None
    return TracedWrite(
        task,
        node_of_task(path, sends),
        path,
        idx,
        entry.channel,
        entry.size,
        utc_time(time),
        run,
        value if damaged is None else None,
        damaged,
    )


def _damaged_write(task: str, damaged: DamagedWrites) -> TracedWrite:
    time = utc_time(damaged.row.time if damaged.row is not None else 0)
    return TracedWrite(task, None, "", 0, "", 0, time, None, damaged=damaged.reason)


def has_send_paths(tasks: Iterable[TaskWrites]) -> bool:
    """Return whether `load_sends` is needed to name the nodes of these tasks."""
    return any(is_send_path(entry.origin[0]) for task in tasks for entry in task.entries.values())


async def load_sends(rows: ThreadRows, checkpoints: Iterable[CheckpointKey]) -> dict[CheckpointKey, list[Any]]:
    """Return the pending sends of checkpoints, as far as they can be read.

    One round trip for each group of about 64 items.
    """
    records = {checkpoint: rows.records[checkpoint] for checkpoint in checkpoints if checkpoint in rows.records}
    found = {checkpoint: old_sends(record) for checkpoint, record in records.items() if TASKS not in record.slots}
    stored = [(checkpoint, record.slots[TASKS]) for checkpoint, record in records.items() if TASKS in record.slots]
    for group in _groups(stored):
        values = await _load_values(rows, [slot for _, slot in group])
        found.update({checkpoint: value for (checkpoint, _), value in zip(group, values, strict=True)})
    return {checkpoint: sends for checkpoint, sends in found.items() if isinstance(sends, list)}


def _groups(slots: Iterable[tuple[CheckpointKey, Slot]]) -> Iterator[list[tuple[CheckpointKey, Slot]]]:
    group: list[tuple[CheckpointKey, Slot]] = []
    size = 0
    for checkpoint, slot in slots:
        group.append((checkpoint, slot))
        size += sum(each.length for each in slot.ranges)
        if size >= _MAX_SEND_ITEMS:
            yield group
            group, size = [], 0
    if group:
        yield group


async def _load_values(rows: ThreadRows, slots: Sequence[Slot]) -> list[Any]:
    """The values of slots as plain data; Corrupt in place of one that cannot be read.

    Their items do not enter the thread's cache.
    """
    cache = await _load_items(rows, [each for slot in slots for each in slot.ranges])
    head = rows.head._replace(cache=cache)
    return [_value_or_error(head, slot) for slot in slots]


def _value_or_error(head: Head, slot: Slot) -> Any:
    try:
        return slot_value(head, slot, f"a write of {head.where}")
    except Corrupt as error:
        return error


async def _load_items(rows: ThreadRows, ranges: Iterable[ItemRange]) -> ItemCache:
    wanted = tuple(union(ranges))
    cache = ItemCache()
    if wanted:
        loaded = await LoadItems(rows.key, wanted)
        check_epoch(rows.head.row, loaded.thread)
        cache.fill_intact(loaded.items, rows.head.where, rows.head.family)
    return cache


# --- cube threads


class _AppendedMessages(NamedTuple):
    """Messages that were appended together: the event, the items that hold them, and the number of messages before."""

    event: RunEvent
    ranges: tuple[ItemRange, ...]
    before: int


async def _load_appends(heads: Heads, rows: ThreadRows, record: CheckpointRecord | None) -> list[_AppendedMessages]:
    """The events in the run log of a checkpoint, with the items of their messages. One round trip."""
    if record is None or EVENTS not in record.slots:
        return []
    await load_slots(heads, rows, [record.slots[EVENTS]])
    slot = record.slots.get(MESSAGES)
    ids = (id for each in (slot.ranges if slot is not None else ()) for id in each.ids())
    appends: list[_AppendedMessages] = []
    before = 0
    for event in read_events(rows.head, record):
        appends.append(_AppendedMessages(event, join_ranges(islice(ids, event.items)), before))
        before += len(event.ids)
    return appends


async def _trace_messages(
    heads: Heads, rows: ThreadRows, record: CheckpointRecord, *, values: bool
) -> tuple[_Traced, Writes]:
    """The messages that a cube thread's checkpoint has and its parent does not."""
    parent = rows.records.get((record.row.ns, record.row.parent or ""))
    old = parent.slots[EVENTS].elements if parent is not None and EVENTS in parent.slots else 0
    new = [append for append in (await _load_appends(heads, rows, record))[old:] if append.ranges]
    cache = await _load_items(rows, [each for append in new for each in append.ranges])
    traced = [
        (mark_of_event(append.event), write)
        for append in new
        for write in _message_writes(append, cache, rows.head.where, values=values)
    ]
    made = messages_of(rows, record)
    return traced, made._replace(places={mark: made.places[mark] for mark, _ in traced})


async def read_messages(
    heads: Heads, rows: ThreadRows, record: CheckpointRecord
) -> tuple[list[TracedWrite], list[str]]:
    """Return the messages of a cube thread's checkpoint, with values, and what is wrong with those that are damaged.

    Two round trips.
    """
    try:
        appends = await _load_appends(heads, rows, record)
    except Corrupt as error:
        return [], [str(error)]
    cache = await _load_items(rows, [each for append in appends for each in append.ranges])
    found, problems = list[TracedWrite](), list[str]()
    for append in appends:
        try:
            found += _message_writes(append, cache, rows.head.where, values=True) if append.ranges else ()
        except Corrupt as error:
            problems.append(str(error))
    return found, problems


def _message_writes(append: _AppendedMessages, cache: ItemCache, where: str, *, values: bool) -> Iterator[TracedWrite]:
    elements = cache.elements(append.ranges)
    if elements is None:
        raise Corrupt(f"messages of {where} are referred to but not stored")
    run, time = append.event.run, utc_time(append.event.time)
    for n, data in enumerate(elements):
        value = message(plain(MSGPACK, data, what=f"a message of {where}")) if values else None
        yield TracedWrite(run or "", None, "", append.before + n, MESSAGES, len(data), time, run, value)


# --- activity

Pair: TypeAlias = tuple[str | None, str | None]
"""Node and channel."""
Sums: TypeAlias = dict[Pair, tuple[int, int]]
"""Writes and bytes by node and channel."""


class ActivityQuery(NamedTuple):
    """Which writes count: at or after `since`, before `until` (milliseconds), in one namespace or in all."""

    since: int | None = None
    until: int | None = None
    ns: str | None = None

    def includes_time(self, time: int) -> bool:
        """Whether writes made at this time count."""
        return (self.since is None or time >= self.since) and (self.until is None or time < self.until)

    def includes_namespace(self, ns: str) -> bool:
        """Whether a namespace counts: it is the wanted one, or a call of the wanted subgraph."""
        return self.ns is None or self.ns in (ns, without_task_ids(ns))


def without_task_ids(ns: str) -> str:
    """Return a namespace without the ids of the calling tasks. LangGraph writes it as `outer:id|inner:id`."""
    return "|".join(part.partition(":")[0] for part in ns.split("|") if not part.isdigit())


class ThreadActivity(NamedTuple):
    """The activity in one thread: checkpoints that were read, and writes and bytes by node and channel.

    Rows that cannot be read do not count.
    """

    checkpoints: int
    pairs: Sums
    is_damaged: bool = False


async def thread_activity(heads: Heads, key: ThreadKey, query: ActivityQuery) -> ThreadActivity:
    """Return the activity in a thread.

    One round trip, more if there are pending sends; up to three for a cube thread.
    """
    return await read_consistently(key, lambda: _thread_activity(heads, key, query))


async def _thread_activity(heads: Heads, key: ThreadKey, query: ActivityQuery) -> ThreadActivity:
    rows = await load_rows_to_show(heads, key)
    totals = ActivityTotals()
    totals.checkpoints = sum(query.includes_namespace(record.row.ns) for record in rows.visible())
    if key.kind == CUBE:
        await _count_messages(heads, rows, query, totals)
    else:
        await _count_writes(rows, query, totals)
    return ThreadActivity(totals.checkpoints, totals.pairs, rows.is_damaged)


async def _count_writes(rows: ThreadRows, query: ActivityQuery, totals: ActivityTotals) -> None:
    included = {key: tasks for key, tasks in rows.tasks.items() if query.includes_namespace(key[0])}
    sends = await load_sends(rows, [key for key, tasks in included.items() if has_send_paths(tasks)])
    for key, tasks in included.items():
        for entry in (entry for task in tasks for entry in task.entries.values()):
            if query.includes_time(entry.origin[2]):
                totals.add((node_of_task(entry.origin[0], sends.get(key, ())), entry.channel), 1, entry.size)


async def _count_messages(heads: Heads, rows: ThreadRows, query: ActivityQuery, totals: ActivityTotals) -> None:
    newest = rows.visible("")[-1:]
    appends = await _load_appends(heads, rows, newest[0]) if newest and query.includes_namespace("") else []
    counted = [append for append in appends if append.ranges and query.includes_time(append.event.time)]
    sizes = await measure_items(rows, union(each for append in counted for each in append.ranges))
    for append in counted:
        totals.add((None, MESSAGES), len(append.event.ids), sizes.full(append.ranges))


class ActivityTotals:
    """Sums by node and channel, over threads."""

    def __init__(self) -> None:
        self.threads = 0
        self.checkpoints = 0
        self.pairs: Sums = {}

    def add(self, pair: Pair, writes: int, size: int) -> None:
        """Add writes of a node to a channel."""
        _add(self.pairs, pair, writes, size)

    def add_thread(self, thread: ThreadActivity) -> None:
        """Add the activity of one thread."""
        self.threads += 1
        self.checkpoints += thread.checkpoints
        for pair, (writes, size) in thread.pairs.items():
            self.add(pair, writes, size)

    def activity(self, query: ActivityQuery) -> Activity:
        """Return the totals."""
        return Activity(
            since=utc_time(query.since) if query.since is not None else None,
            until=utc_time(query.until) if query.until is not None else None,
            threads=self.threads,
            checkpoints=self.checkpoints,
            writes=sum(writes for writes, _ in self.pairs.values()),
            bytes=sum(size for _, size in self.pairs.values()),
            by_node=_activity_rows(((node, None), sums) for (node, _), sums in self.pairs.items()),
            by_channel=_activity_rows(((None, channel), sums) for (_, channel), sums in self.pairs.items()),
            by_node_and_channel=_activity_rows(self.pairs.items()),
        )


def _add(sums: Sums, pair: Pair, writes: int, size: int) -> None:
    known = sums.get(pair, (0, 0))
    sums[pair] = (known[0] + writes, known[1] + size)


def _activity_rows(pairs: Iterable[tuple[Pair, tuple[int, int]]]) -> list[ActivityRow]:
    sums: Sums = {}
    for pair, (writes, size) in pairs:
        _add(sums, pair, writes, size)
    rows = [ActivityRow(*pair, writes, size, size / writes) for pair, (writes, size) in sums.items()]
    return sorted(rows, key=lambda row: (-row.writes, -row.bytes, row.node or "", row.channel or ""))
