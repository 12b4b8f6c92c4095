"""Who wrote what: the writes on a checkpoint in their order, and what nodes and channels did over many threads.

The writes on a checkpoint are what ran from it and became its child. CubeLoop's talks have no writes: there, the
messages that a checkpoint's run appended are told instead, from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.cube.channels import EVENTS, MESSAGES, events
from threadkeep.engine.cube.channels import plain as message
from threadkeep.engine.cube.events import RunEvent
from threadkeep.engine.history.sizes import measured
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.codec import MSGPACK
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import ItemRange, join_ranges, union
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.plain import plain, plain_parts
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites, WriteEntry
from threadkeep.engine.requests import LoadItems
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import (
    CheckpointPlace,
    ThreadRows,
    find,
    is_send_path,
    load_thread_rows,
    node_of,
    with_items,
)
from threadkeep.errors import Conflict, Corrupt

SENDS = "__pregel_tasks"
"""The channel with the sends that are pending on a checkpoint."""
_AT_ONCE = 64
"""So many items of pending sends are at hand at a time."""


@dataclass(frozen=True, slots=True)
class TracedWrite:
    """A write: which task of which node gave how many bytes (uncompressed) to which channel, and when.

    `node` is None where nothing tells it: writes of update_state, of a caller that resumes, tasks of the functional
    API. `value` is plain data, if it was asked for.
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


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """What one node, one channel, or one node in one channel did; None stands for all of them, or for an unknown node."""

    node: str | None
    channel: str | None
    writes: int
    bytes: int
    average: float


@dataclass(frozen=True, slots=True)
class Activity:
    """Writes over many threads, the most first. `threads` and `checkpoints` were looked at; `skipped` are damaged."""

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


async def trace(heads: Heads, key: ThreadKey, ref: str | None, ns: str, *, values: bool) -> list[TracedWrite]:
    """The writes on a checkpoint, by time, path, task and idx. One round trip; one more for sends, one for values.

    Missing if there is no such checkpoint; writes that came before their checkpoint are found by its whole id.
    """
    return await read_consistently(key, lambda: _trace(heads, key, ref, ns, values=values))


async def _trace(heads: Heads, key: ThreadKey, ref: str | None, ns: str, *, values: bool) -> list[TracedWrite]:
    thread = await load_thread_rows(heads, key)
    if key.kind == CUBE:
        return await _appended(heads, thread, find(thread, ref, ns), values=values)
    place = (ns, ref or "")
    if place not in thread.tasks or place in thread.records:
        found = find(thread, ref, ns)
        place = (ns, found.row.id)
    tasks = thread.tasks.get(place, [])
    sends = (await _sends(thread, [place] if _has_sends(tasks) else []))[place]
    entries = [(task.row.task, idx, entry) for task in tasks for idx, entry in task.entries.items()]
    held = await _decoded(thread, [entry.slot for _, _, entry in entries]) if values else [None] * len(entries)
    told = [_traced(task, idx, entry, sends, value) for (task, idx, entry), value in zip(entries, held, strict=True)]
    return sorted(told, key=lambda each: (each.time, each.path, each.task, each.idx))


def _traced(task: str, idx: int, entry: WriteEntry, sends: Sequence[Any], value: Any) -> TracedWrite:
    path, run, time = entry.origin
    node = node_of(path, sends)
    return TracedWrite(task, node, path, idx, entry.channel, entry.size, moment(time), run, value)


def moment(milliseconds: int) -> datetime:
    """A stored time."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _has_sends(tasks: Iterable[TaskWrites]) -> bool:
    return any(is_send_path(entry.origin[0]) for task in tasks for entry in task.entries.values())


class _Sends(dict[CheckpointPlace, list[Any]]):
    """Pending sends of checkpoints; none where nobody asked."""

    def __missing__(self, place: CheckpointPlace) -> list[Any]:
        return []


async def _sends(thread: ThreadRows, places: Iterable[CheckpointPlace]) -> _Sends:
    """The pending sends of some checkpoints, read some at a time. What is no list of sends tells nothing."""
    records = {place: thread.records[place] for place in places if place in thread.records}
    wanted = [(place, record.slots[SENDS]) for place, record in records.items() if SENDS in record.slots]
    found = _Sends({place: _old_sends(record) for place, record in records.items() if SENDS not in record.slots})
    for group in _groups(wanted):
        held = await _decoded(thread, [slot for _, slot in group])
        found.update({place: value for (place, _), value in zip(group, held, strict=True) if isinstance(value, list)})
    return found


def _old_sends(record: CheckpointRecord) -> list[Any]:
    """Those of a checkpoint before LangGraph 0.5, which had a key of its own for them."""
    rest = plain(*record.rest, what=f"checkpoint {record.row.id!r}") if record.rest is not None else None
    sends = rest.get("pending_sends") if isinstance(rest, dict) else None
    return sends if isinstance(sends, list) else []


def _groups(wanted: Iterable[tuple[CheckpointPlace, Slot]]) -> Iterator[list[tuple[CheckpointPlace, Slot]]]:
    group: list[tuple[CheckpointPlace, Slot]] = []
    size = 0
    for place, slot in wanted:
        group.append((place, slot))
        size += sum(run.length for run in slot.ranges)
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


async def _decoded(thread: ThreadRows, slots: Sequence[Slot]) -> list[Any]:
    """What slots hold, as plain data. Nothing is kept at hand."""
    pool = await _items(thread, [run for slot in slots for run in slot.ranges])
    where = thread.head.where
    return [_plain(slot, pool.join(slot.ranges, where), f"a write of {where}") for slot in slots]


def _plain(slot: Slot, data: bytes, what: str) -> Any:
    if slot.inline is not None:
        return plain_parts(WHOLE, slot.tag, 1, slot.inline, what=what)
    return plain_parts(slot.kind, slot.tag, slot.elements, data, what=what)


async def _items(thread: ThreadRows, runs: Iterable[ItemRange]) -> ItemCache:
    wanted = tuple(union(runs))
    pool = ItemCache()
    if wanted:
        loaded = await LoadItems(thread.key, wanted)
        if loaded.thread is None or thread.head.row is None or loaded.thread.epoch != thread.head.row.epoch:
            raise Conflict(f"{thread.head.where} was pruned while it was read")
        pool.fill(loaded.items, thread.head.where)
    return pool


# --- talks


class _AppendedMessages(NamedTuple):
    """Messages that came together: the event, the items that hold them, and how many came before."""

    event: RunEvent
    runs: tuple[ItemRange, ...]
    before: int


async def _appends(heads: Heads, thread: ThreadRows, record: CheckpointRecord | None) -> list[_AppendedMessages]:
    """What the ledger of a checkpoint tells of messages. One round trip."""
    if record is None or EVENTS not in record.slots:
        return []
    await with_items(heads, thread, [record.slots[EVENTS]])
    slot = record.slots.get(MESSAGES)
    ids = (at for run in (slot.ranges if slot is not None else ()) for at in run.ids())
    told: list[_AppendedMessages] = []
    before = 0
    for event in events(thread.head, record):
        told.append(_AppendedMessages(event, join_ranges(islice(ids, event.items)), before))
        before += len(event.ids)
    return told


async def _appended(heads: Heads, thread: ThreadRows, record: CheckpointRecord, *, values: bool) -> list[TracedWrite]:
    """The messages that a talk's checkpoint has and its parent has not."""
    parent = thread.records.get((record.row.ns, record.row.parent or ""))
    old = parent.slots[EVENTS].elements if parent is not None and EVENTS in parent.slots else 0
    fresh = [append for append in (await _appends(heads, thread, record))[old:] if append.runs]
    pool = await _items(thread, [run for append in fresh for run in append.runs])
    return [each for append in fresh for each in _messages(append, pool, thread.head.where, values=values)]


def _messages(append: _AppendedMessages, pool: ItemCache, where: str, *, values: bool) -> Iterator[TracedWrite]:
    held = pool.elements(append.runs)
    if held is None:
        raise Corrupt(f"messages of {where} are referred to but not there")
    run, time = append.event.run, moment(append.event.time)
    for n, data in enumerate(held):
        value = message(plain(MSGPACK, data, what=f"a message of {where}")) if values else None
        yield TracedWrite(run or "", None, "", append.before + n, MESSAGES, len(data), time, run, value)


# --- activity

Pair: TypeAlias = tuple[str | None, str]
"""Node and channel."""


class ActivityQuery(NamedTuple):
    """Which writes count: at or after `since`, before `until` (milliseconds), in a namespace or in all."""

    since: int | None = None
    until: int | None = None
    ns: str | None = None

    def has_time(self, time: int) -> bool:
        """Whether a write of that time counts."""
        return (self.since is None or time >= self.since) and (self.until is None or time < self.until)

    def has_space(self, ns: str) -> bool:
        """Whether a namespace counts: the one that is named, or any call of the subgraph that is named."""
        return self.ns is None or self.ns in (ns, _without_calls(ns))


def _without_calls(ns: str) -> str:
    """A namespace without the ids of the tasks that called, as LangGraph writes them: `outer:id|inner:id`."""
    return "|".join(part.partition(":")[0] for part in ns.split("|") if not part.isdigit())


class ThreadActivity(NamedTuple):
    """What happened in a thread: checkpoints that were looked at, and writes and bytes by node and channel."""

    checkpoints: int
    pairs: Mapping[Pair, tuple[int, int]]


async def thread_activity(heads: Heads, key: ThreadKey, asked: ActivityQuery) -> ThreadActivity:
    """What happened in a thread. One round trip; more where sends are pending, and two more for a talk."""
    return await read_consistently(key, lambda: _done_in(heads, key, asked))


async def _done_in(heads: Heads, key: ThreadKey, asked: ActivityQuery) -> ThreadActivity:
    thread = await load_thread_rows(heads, key)
    tally = ActivityTotals()
    tally.checkpoints = sum(asked.has_space(record.row.ns) for record in thread.visible())
    if key.kind == CUBE:
        await _count_messages(heads, thread, asked, tally)
    else:
        await _count_writes(thread, asked, tally)
    return ThreadActivity(tally.checkpoints, tally.pairs)


async def _count_writes(thread: ThreadRows, asked: ActivityQuery, tally: ActivityTotals) -> None:
    spaces = {place: tasks for place, tasks in thread.tasks.items() if asked.has_space(place[0])}
    sends = await _sends(thread, [place for place, tasks in spaces.items() if _has_sends(tasks)])
    for place, tasks in spaces.items():
        for entry in (entry for task in tasks for entry in task.entries.values()):
            if asked.has_time(entry.origin[2]):
                tally.add((node_of(entry.origin[0], sends[place]), entry.channel), 1, entry.size)


async def _count_messages(heads: Heads, thread: ThreadRows, asked: ActivityQuery, tally: ActivityTotals) -> None:
    newest = thread.visible("")[-1:]
    appends = await _appends(heads, thread, newest[0]) if newest and asked.has_space("") else []
    counted = [append for append in appends if append.runs and asked.has_time(append.event.time)]
    lanes = await measured(thread, union(run for append in counted for run in append.runs))
    for append in counted:
        tally.add((None, MESSAGES), len(append.event.ids), lanes.full(append.runs))


class ActivityTotals:
    """Sums by node and channel, over threads."""

    def __init__(self) -> None:
        self.threads = 0
        self.checkpoints = 0
        self.pairs: dict[Pair, tuple[int, int]] = {}

    def add(self, pair: Pair, writes: int, size: int) -> None:
        """Some writes of a node to a channel."""
        known = self.pairs.get(pair, (0, 0))
        self.pairs[pair] = (known[0] + writes, known[1] + size)

    def take(self, done: ThreadActivity) -> None:
        """What happened in one thread."""
        self.threads += 1
        self.checkpoints += done.checkpoints
        for pair, (writes, size) in done.pairs.items():
            self.add(pair, writes, size)

    def activity(self, asked: ActivityQuery) -> Activity:
        """All of it."""
        nodes = _summed(((node, None), sums) for (node, _), sums in self.pairs.items())
        channels = _summed(((None, channel), sums) for (_, channel), sums in self.pairs.items())
        return Activity(
            since=moment(asked.since) if asked.since is not None else None,
            until=moment(asked.until) if asked.until is not None else None,
            threads=self.threads,
            checkpoints=self.checkpoints,
            writes=sum(writes for writes, _ in self.pairs.values()),
            bytes=sum(size for _, size in self.pairs.values()),
            by_node=nodes,
            by_channel=channels,
            by_node_and_channel=_summed(self.pairs.items()),
        )


def _summed(pairs: Iterable[tuple[tuple[str | None, str | None], tuple[int, int]]]) -> list[ActivityRow]:
    sums: dict[tuple[str | None, str | None], tuple[int, int]] = {}
    for pair, (writes, size) in pairs:
        known = sums.get(pair, (0, 0))
        sums[pair] = (known[0] + writes, known[1] + size)
    shares = [
        ActivityRow(node, channel, writes, size, size / writes) for (node, channel), (writes, size) in sums.items()
    ]
    return sorted(shares, key=lambda one: (-one.writes, -one.bytes, one.node or "", one.channel or ""))
