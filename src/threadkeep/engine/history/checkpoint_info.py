"""Checkpoints and writes as plain data: the result types, and the reader behind log, show, tree, diff and blame.

No application class is needed. A delta channel that a checkpoint does not store is rebuilt from the nearest stored
value and the writes since, with the default merge, because the channel's reducer is not known here.

Damage does not stop the reader. A row that cannot be read becomes an info with the field `damaged`; a value that cannot
be read raises Corrupt when it is asked for, and the others can still be read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS

from threadkeep.engine.commit import fill_intact, read_consistently
from threadkeep.engine.cube import channels, plain_values
from threadkeep.engine.identity import CUBE, GRAPH, Kind, ThreadKey
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.log.plain import jsonable, plain
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites, WriteEntry
from threadkeep.engine.threads.checkpoints import metadata_of
from threadkeep.engine.threads.default_merge import merge_writes
from threadkeep.engine.threads.delta_channels import delta_channels
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.kept_rows import load_rows_to_show
from threadkeep.engine.threads.metadata import LARGE_METADATA
from threadkeep.engine.threads.thread_rows import (
    TAG,
    CheckpointKey,
    DamagedCheckpoint,
    DamagedWrites,
    ThreadRows,
    is_send_path,
    lineage,
    node_of_task,
    slot_parts,
    slot_value,
)
from threadkeep.errors import Corrupt
from threadkeep.short_repr import short_repr

T = TypeVar("T")
TaskWrite: TypeAlias = tuple[TaskWrites, int, WriteEntry]
"""A stored write: its task, its idx and its entry."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint of a thread, without its state.

    `nodes` ran from it and left `writes` writes on it. `updated` lists the channels that are stored differently than in
    its parent; their values are not compared. `bytes` is the size of its row alone. `forked_from` comes from its
    metadata. `ended` is when each of the tasks that ran from it stored its writes, in this order.

    `interrupted` and `failed` say that a node which ran from it asked a person, or raised an error; also if that was
    answered or tried again later. In a CubeLoop thread, `interrupted` says that a request waits at the checkpoint, or
    that one was made there and is cleared by its question; nothing is left of one that was replaced by None. `failed`
    is False there, since errors are not stored.

    `damaged` says what is wrong with the checkpoint's row, or with writes on it; None if they can be read. If the row
    is damaged, the other fields are what its columns say: each of them may be wrong, except the namespace and the id.
    """

    thread: str
    kind: Kind
    ns: str
    id: str
    parent: str | None
    step: int | None
    source: str | None
    time: datetime
    run: str | None
    metadata: dict[str, Any]
    writes: int
    nodes: tuple[str, ...]
    updated: tuple[str, ...]
    bytes: int
    forked_from: str | None
    damaged: str | None = None
    interrupted: bool = False
    failed: bool = False
    ended: tuple[datetime, ...] = ()

    __repr__ = short_repr

    @property
    def tag(self) -> str | None:
        """The tag of this checkpoint, which protects it from policies."""
        name = self.metadata.get(TAG)
        return name if isinstance(name, str) else None

    @property
    def config(self) -> dict[str, Any]:
        """The LangGraph config of this checkpoint. ValueError if it belongs to a CubeLoop thread."""
        if self.kind != GRAPH:
            raise ValueError(f"thread {self.thread!r} is a CubeLoop thread: only LangGraph checkpoints have a config")
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": self.id}}


@dataclass(frozen=True, slots=True)
class WriteInfo:
    """A write stored on a checkpoint, with its value as plain data. `node` is None if it is not known.

    `damaged` says why the value cannot be read; then it is None. If the whole row of a task cannot be read, there is
    one such write for it, without a channel.
    """

    task: str
    node: str | None
    path: str
    idx: int
    channel: str
    value: Any
    time: datetime
    run: str | None
    damaged: str | None = None

    __repr__ = short_repr


def utc_time(milliseconds: int) -> datetime:
    """Convert a stored time. One that no clock shows, in a damaged row, becomes 1970."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0, UTC)


class ThreadReader:
    """Reads the channels of a thread's checkpoints as plain data.

    `fetch` the slots of a value before reading it: the other methods make no round trips.
    """

    def __init__(self, heads: Heads, rows: ThreadRows) -> None:
        self.rows = rows
        self._heads = heads
        self._sends: dict[CheckpointKey, list[Any]] = {}
        self._damaged_items: dict[ItemId, str] = {}

    @property
    def key(self) -> ThreadKey:
        """The thread's key."""
        return self.rows.key

    @property
    def is_cube(self) -> bool:
        """Whether this is a cube thread."""
        return self.key.kind == CUBE

    async def fetch(self, slots: Iterable[Slot]) -> None:
        """Load the items of these slots, as far as they can be read. One round trip; none if all are cached."""
        ranges = [each for slot in slots for each in slot.ranges]
        self._damaged_items |= await fill_intact(self._heads, self.rows.head, ranges)

    # --- checkpoints and channels

    def parent(self, record: CheckpointRecord) -> CheckpointRecord | None:
        """The parent of a checkpoint, if it is stored."""
        return self.rows.records.get((record.row.ns, record.row.parent or ""))

    def tasks(self, record: CheckpointRecord) -> list[TaskWrites]:
        """The tasks that wrote on a checkpoint."""
        return self.rows.tasks.get((record.row.ns, record.row.id), [])

    @cached_property
    def _deltas(self) -> dict[CheckpointKey, frozenset[str]]:
        """The delta channels of each checkpoint."""
        return delta_channels(self.rows.records, self.rows.tasks)

    def _is_delta(self, record: CheckpointRecord, name: str) -> bool:
        return name in self._deltas.get((record.row.ns, record.row.id), ())

    def rebuilt_channels(self, record: CheckpointRecord) -> list[str]:
        """The delta channels that a checkpoint has a version of but does not store; none in a cube thread."""
        names = self._deltas.get((record.row.ns, record.row.id), frozenset()) - record.slots.keys()
        return sorted(name for name in names if name in record.versions)

    def channels(self, record: CheckpointRecord) -> list[str]:
        """The names of a checkpoint's channels."""
        if self.is_cube:
            return list(plain_values.CHANNELS)
        return [*(name for name in record.slots if name != LARGE_METADATA), *self.rebuilt_channels(record)]

    def _stored_name(self, name: str) -> str:
        return plain_values.CHANNELS.get(name, name) if self.is_cube else name

    def slots(self, record: CheckpointRecord, name: str) -> list[Slot]:
        """The slots that hold a channel's value. `fetch` them before calling `value`."""
        stored = self._stored_name(name)
        if stored in record.slots:
            return [record.slots[stored]]
        ancestors = self._delta_ancestors(record, name)
        seeds = [one.slots[name] for one in ancestors[:1] if name in one.slots]
        return seeds + [entry.slot for one in ancestors for _, _, entry in self.channel_writes(one, name)]

    def value(self, record: CheckpointRecord, name: str) -> Any:
        """Return the value of a channel as plain data; None if the checkpoint does not have the channel.

        Corrupt if it cannot be read.
        """
        head = self.rows.head
        slots = self.slots(record, name)
        self._check_items(slots)
        if self.is_cube:
            return plain_values.value(head, record, name)
        what = f"channel {name!r} of checkpoint {record.row.id!r} in {head.where}"
        if name in record.slots:
            return slot_value(head, record.slots[name], what)
        self._check_delta_ancestors(record, name)
        parts = merge_writes(None, (slot_parts(head, slot) for slot in slots), delta=True)
        return plain(parts.tag, parts.data, what=what) if parts is not None else None

    def _check_items(self, slots: Iterable[Slot]) -> None:
        """Raise Corrupt if an item of these slots was read and is damaged."""
        for at in self._damaged_items:
            if any(
                lane == at.lane and start <= at.n < start + length for s in slots for lane, start, length in s.ranges
            ):
                raise Corrupt(self._damaged_items[at])

    def _check_delta_ancestors(self, record: CheckpointRecord, name: str) -> None:
        """Raise Corrupt if there is damage on the way from a checkpoint to the stored value of its delta channel."""
        ancestors = self._delta_ancestors(record, name)
        way = {(each.row.ns, each.row.id) for each in ancestors}
        oldest = ancestors[0] if ancestors else record
        missing = None
        if name not in oldest.slots and oldest.row.parent is not None:
            missing = (oldest.row.ns, oldest.row.parent)
            way.add(missing)
        for key in way & self.rows.damaged_keys():
            raise Corrupt(f"channel {name!r} is rebuilt from checkpoint {key[1]!r}, which is damaged")
        if missing is not None:
            raise Corrupt(f"channel {name!r} is rebuilt from checkpoint {missing[1]!r}, which is missing")
        if self.rows.incomplete is not None:
            raise Corrupt(f"channel {name!r} may be incomplete: {self.rows.incomplete}")

    def _delta_ancestors(self, record: CheckpointRecord, name: str) -> list[CheckpointRecord]:
        """The ancestors that a delta channel is rebuilt from, oldest first, back to one that stores its value."""
        found: list[CheckpointRecord] = []
        ancestors = iter(lineage(self.rows, record))
        next(ancestors)
        for one in ancestors:
            found.append(one)
            if name in one.slots:
                break
        return found[::-1]

    def is_unchanged(self, one: CheckpointRecord, other: CheckpointRecord, name: str) -> bool:
        """Whether two checkpoints store a channel in the same items. If not, the values may still be equal."""
        stored = self._stored_name(name)
        mine, theirs = one.slots.get(stored), other.slots.get(stored)
        if mine is None or theirs is None:
            return mine is theirs and not (self._is_delta(one, name) or self._is_delta(other, name))
        return mine[:6] == theirs[:6]

    # --- nodes and writes

    def sends(self, record: CheckpointRecord) -> list[Any]:
        """The pending sends of a checkpoint; none if they are damaged. `fetch` the slots of `send_slots` first."""
        checkpoint = (record.row.ns, record.row.id)
        if checkpoint not in self._sends:
            try:
                found = self.value(record, TASKS) if TASKS in record.slots else old_sends(record)
            except Corrupt:
                found = None
            self._sends[checkpoint] = found if isinstance(found, list) else []
        return self._sends[checkpoint]

    def send_slots(self, records: Iterable[CheckpointRecord]) -> list[Slot]:
        """The slots of the pending sends that are needed to name the nodes of the tasks on these checkpoints."""
        return [
            record.slots[TASKS]
            for record in records
            if TASKS in record.slots and any(is_send_path(task.row.path) for task in self.tasks(record))
        ]

    def node(self, record: CheckpointRecord, path: str) -> str | None:
        """The node of the task with this path on a checkpoint."""
        return node_of_task(path, self.sends(record) if is_send_path(path) else ())

    def info_at(self, key: CheckpointKey) -> CheckpointInfo:
        """Describe a checkpoint, damaged or not. `fetch` the slots of `send_slots` first."""
        damaged = self.rows.damaged.get(key)
        return self.info(self.rows.records[key]) if damaged is None else self._damaged_info(key, damaged)

    def _damaged_info(self, key: CheckpointKey, damaged: DamagedCheckpoint) -> CheckpointInfo:
        """Describe a damaged checkpoint by the columns of its row."""
        row, tasks = damaged.row, self.rows.tasks.get(key, [])
        nodes = (node_of_task(task.row.path) for task in sorted(tasks, key=lambda task: task.row.path))
        return CheckpointInfo(
            thread=self.key.id,
            kind=self.key.kind,
            ns=key[0],
            id=key[1],
            parent=row.parent if row is not None else None,
            step=row.step if row is not None else None,
            source=row.source if row is not None else None,
            time=utc_time(row.time if row is not None else 0),
            run=row.run if row is not None else None,
            metadata={},
            writes=sum(len(task.entries) for task in tasks),
            nodes=tuple(dict.fromkeys(node for node in nodes if node is not None)),
            updated=(),
            bytes=row.size if row is not None else 0,
            forked_from=None,
            damaged=damaged.reason,
        )

    def damaged_writes(self, key: CheckpointKey) -> dict[str, DamagedWrites]:
        """The writes on a checkpoint that cannot be read, by task."""
        return {at[2]: each for at, each in self.rows.damaged_writes.items() if at[:2] == key}

    def info(self, record: CheckpointRecord) -> CheckpointInfo:
        """Describe an intact checkpoint. `fetch` the slots of `send_slots` first."""
        row, tasks = record.row, self.tasks(record)
        metadata = jsonable(metadata_of(self.rows.head, record))
        nodes = (self.node(record, task.row.path) for task in sorted(tasks, key=lambda task: task.row.path))
        written = {entry.channel for task in tasks for entry in task.entries.values()}
        return CheckpointInfo(
            thread=self.key.id,
            kind=self.key.kind,
            ns=row.ns,
            id=row.id,
            parent=row.parent,
            step=row.step,
            source=row.source,
            time=utc_time(row.time),
            run=row.run,
            metadata=metadata,
            writes=sum(len(task.entries) for task in tasks),
            nodes=tuple(dict.fromkeys(node for node in nodes if node is not None)),
            updated=tuple(self._updated(record)),
            bytes=row.size,
            forked_from=metadata["forked_from"] if isinstance(metadata.get("forked_from"), str) else None,
            damaged="; ".join(self._damage((row.ns, row.id))) or None,
            interrupted=self._has_request(record) if self.is_cube else INTERRUPT in written,
            failed=ERROR in written,
            ended=tuple(utc_time(time) for time in sorted(task.row.time for task in tasks)),
        )

    def _has_request(self, record: CheckpointRecord) -> bool:
        """Whether a person was asked at a checkpoint of a CubeLoop thread, or the run before asked and still waits."""
        slot, parent = record.slots.get(channels.PENDING), self.parent(record)
        before = parent.slots.get(channels.PENDING) if parent is not None else None
        return channels.asks(slot) or (slot is not None and slot != before and not channels.asks(before))

    def _damage(self, key: CheckpointKey) -> Iterator[str]:
        """Yield what is wrong with the writes on an intact checkpoint: damaged rows, and rows that are missing."""
        damaged = self.damaged_writes(key)
        yield from (each.reason for each in damaged.values())
        thread, there = self.rows.head.row, len(self.rows.tasks.get(key, ())) + len(damaged)
        if thread is not None and key == ("", thread.top) and there < (thread.top_writes or 0):
            yield f"writes on it are missing: of {thread.top_writes} tasks {there} are there"

    def _updated(self, record: CheckpointRecord) -> Iterator[str]:
        parent = self.parent(record)
        if parent is None:
            yield from (name for name in self.channels(record) if not self.is_cube or self.slots(record, name))
            return
        for name in dict.fromkeys((*self.channels(record), *self.channels(parent))):
            if self._is_delta(record, name) and name not in record.slots:
                if record.versions.get(name) != parent.versions.get(name):
                    yield name
            elif not self.is_unchanged(record, parent, name):
                yield name

    def channel_writes(self, record: CheckpointRecord, channel: str) -> list[TaskWrite]:
        """The writes to a channel on a checkpoint, in LangGraph's order."""
        return [write for write in ordered_writes(self.tasks(record)) if write[2].channel == channel]

    def write_infos(self, key: CheckpointKey, writes: Iterable[TaskWrite]) -> list[WriteInfo]:
        """Describe writes on a checkpoint. `fetch` their slots and those of `send_slots` first."""
        return [self._write_info(key, *write) for write in writes]

    def _write_info(self, key: CheckpointKey, task: TaskWrites, idx: int, entry: WriteEntry) -> WriteInfo:
        path, run, time = entry.origin
        record = self.rows.records.get(key)
        node = self.node(record, path) if record is not None else node_of_task(path)
        value, damaged = None, None
        try:
            value = self.entry_value(task, entry)
        except Corrupt as error:
            damaged = str(error)
        return WriteInfo(task.row.task, node, path, idx, entry.channel, value, utc_time(time), run, damaged)

    def entry_value(self, task: TaskWrites, entry: WriteEntry) -> Any:
        """Return the value of a write as plain data; `fetch` its slot first. Corrupt if it cannot be read."""
        self._check_items([entry.slot])
        return slot_value(self.rows.head, entry.slot, f"a write of task {task.row.task!r} in {self.rows.head.where}")

    def damaged_write_infos(self, key: CheckpointKey) -> list[WriteInfo]:
        """Describe the writes on a checkpoint that cannot be read: one info for each task."""
        found = self.damaged_writes(key)
        return [
            WriteInfo(
                task, None, "", 0, "", None, utc_time(each.row.time if each.row is not None else 0), None, each.reason
            )
            for task, each in sorted(found.items())
        ]


def old_sends(record: CheckpointRecord) -> Any:
    """The pending sends of a checkpoint written before LangGraph 0.5, which stored them under a key of their own."""
    rest = plain(*record.rest, what=f"checkpoint {record.row.id!r}") if record.rest is not None else None
    return rest.get("pending_sends") if isinstance(rest, dict) else None


def ordered_writes(tasks: Iterable[TaskWrites]) -> list[TaskWrite]:
    """The writes of tasks in the order in which LangGraph applies them: by path, task and idx."""
    writes = [(task, idx, entry) for task in tasks for idx, entry in task.entries.items()]
    return sorted(writes, key=lambda write: (write[2].origin[0], write[0].row.task, write[1]))


async def read_thread(heads: Heads, key: ThreadKey, use: Callable[[ThreadReader], Awaitable[T]]) -> T:
    """Load a thread's rows, without its state, and return what `use` makes of them. One round trip, and those of `use`.

    Start over if the thread is pruned in between. Missing if the thread does not exist.
    """

    async def once() -> T:
        return await use(ThreadReader(heads, await load_rows_to_show(heads, key)))

    return await read_consistently(key, once)
