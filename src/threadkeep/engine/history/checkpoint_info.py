"""A thread's checkpoints and writes for people: what happened at each step, and what the channels held, as plain data.

Nothing here needs the application's classes. A delta channel, which a checkpoint does not hold, is rebuilt from the
nearest stored value and the writes since by the default merge, because its reducer is not known here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.cube import plain_values
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey
from threadkeep.engine.log.plain import jsonable, plain
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites, WriteEntry
from threadkeep.engine.threads.checkpoints import metadata_of
from threadkeep.engine.threads.default_merge import merged
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.survivors import delta_channels
from threadkeep.engine.threads.thread_rows import (
    CheckpointPlace,
    ThreadRows,
    lineage,
    load_thread_rows,
    node_of,
    parts_of,
    value_of,
    with_items,
)

T = TypeVar("T")
_INTERNAL = ("__", "branch:", "join:")
_HELD = ("__root__", "__end__", "__previous__")
"""Channels that hold what the application gave: a state that is no dict, and what the functional API returned and saved."""
_PUSH = "__pregel_push"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint of a thread, without its state.

    `nodes` ran from it and left `writes` writes on it; `updated` are the channels that it holds otherwise than its
    parent, told without reading them. `bytes` are its row's own. `forked_from` is what its metadata says of that.
    """

    thread: str
    kind: str
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

    @property
    def config(self) -> dict[str, Any]:
        """LangGraph's config of this checkpoint; ValueError if it is CubeLoop's."""
        if self.kind != GRAPH:
            raise ValueError(f"thread {self.thread!r} is of the kind {self.kind}: it has no config of LangGraph's")
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": self.id}}


@dataclass(frozen=True, slots=True)
class WriteInfo:
    """A write that is stored on a checkpoint: by which task, of which node (None if nothing tells), what to which channel."""

    task: str
    node: str | None
    path: str
    idx: int
    channel: str
    value: Any
    time: datetime
    run: str | None


def is_internal(channel: str) -> bool:
    """Whether a channel is LangGraph's own and not of the state that the application has."""
    return channel.startswith(_INTERNAL) and channel not in _HELD


def moment(milliseconds: int) -> datetime:
    """A stored time."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class ThreadReader:
    """A surveyed thread that is being read: which channels there are at each checkpoint, and what they hold."""

    def __init__(self, thread: ThreadRows) -> None:
        self.thread = thread
        self._sends: dict[CheckpointPlace, list[Any]] = {}

    @property
    def key(self) -> ThreadKey:
        """Which thread."""
        return self.thread.key

    @property
    def is_talk(self) -> bool:
        """Whether it is CubeLoop's."""
        return self.key.kind == CUBE

    @cached_property
    def deltas(self) -> dict[CheckpointPlace, frozenset[str]]:
        """The delta channels of each checkpoint."""
        return delta_channels(self.thread.records)

    def parent(self, record: CheckpointRecord) -> CheckpointRecord | None:
        """The checkpoint before, if it is there."""
        return self.thread.records.get((record.row.ns, record.row.parent or ""))

    def tasks(self, record: CheckpointRecord) -> list[TaskWrites]:
        """The tasks that wrote on a checkpoint."""
        return self.thread.tasks.get((record.row.ns, record.row.id), [])

    def rebuilt(self, record: CheckpointRecord) -> list[str]:
        """The delta channels that a checkpoint does not hold itself and that something was written to."""
        names = self.deltas.get((record.row.ns, record.row.id), frozenset()) - record.slots.keys()
        return sorted(name for name in names if name in record.versions)

    def names(self, record: CheckpointRecord) -> list[str]:
        """The channels of a checkpoint."""
        return list(plain_values.CHANNELS) if self.is_talk else [*record.slots, *self.rebuilt(record)]

    def slots(self, record: CheckpointRecord, name: str) -> list[Slot]:
        """How the value of a channel is held: what must be at hand to tell it."""
        stored = plain_values.CHANNELS.get(name, name) if self.is_talk else name
        if stored in record.slots:
            return [record.slots[stored]]
        since = self._since(record, name)
        seeds = [one.slots[name] for one in since[:1] if name in one.slots]
        return seeds + [entry.slot for one in since for entry in self._entries(one, name)]

    def value(self, record: CheckpointRecord, name: str) -> Any:
        """What a channel holds, as plain data; None if the checkpoint has no such channel."""
        where = f"channel {name!r} of checkpoint {record.row.id!r} in {self.thread.head.where}"
        if self.is_talk:
            return plain_values.value(self.thread.head, record, name)
        if name in record.slots:
            return value_of(self.thread.head, record.slots[name], where)
        held = merged(None, (parts_of(self.thread.head, slot) for slot in self.slots(record, name)), delta=True)
        return plain(held.tag, held.data, what=where) if held is not None else None

    def _since(self, record: CheckpointRecord, name: str) -> list[CheckpointRecord]:
        """The ancestors that a delta channel is rebuilt from, oldest first: that with a stored value, if any, and those after it."""
        found: list[CheckpointRecord] = []
        ancestors = iter(lineage(self.thread, record))
        next(ancestors)
        for one in ancestors:
            found.append(one)
            if name in one.slots:
                break
        return found[::-1]

    def _entries(self, record: CheckpointRecord, name: str) -> list[WriteEntry]:
        return [entry for _, _, entry in in_order(self.tasks(record)) if entry.channel == name]

    def is_unchanged(self, one: CheckpointRecord, other: CheckpointRecord, name: str) -> bool:
        """Whether two checkpoints hold a channel in the same items. False does not say that the values differ."""
        stored = plain_values.CHANNELS.get(name, name) if self.is_talk else name
        mine, theirs = one.slots.get(stored), other.slots.get(stored)
        if mine is None or theirs is None:
            return mine is theirs and not (self._is_delta(one, name) or self._is_delta(other, name))
        return mine[:6] == theirs[:6]

    def _is_delta(self, record: CheckpointRecord, name: str) -> bool:
        return name in self.deltas.get((record.row.ns, record.row.id), ())

    def sends(self, record: CheckpointRecord) -> list[Any]:
        """The pending sends of a checkpoint."""
        place = (record.row.ns, record.row.id)
        if place not in self._sends:
            found = self.value(record, TASKS) if TASKS in record.slots else []
            self._sends[place] = found if isinstance(found, list) else []
        return self._sends[place]

    def node(self, record: CheckpointRecord, path: str) -> str | None:
        """The node of a task that wrote on a checkpoint."""
        return node_of(path, self.sends(record) if _PUSH in path else ())

    def step(self, record: CheckpointRecord) -> CheckpointInfo:
        """A checkpoint for people; needs the items of `sends_of`."""
        row, tasks = record.row, self.tasks(record)
        said = jsonable(metadata_of(self.thread.head, record))
        nodes = (self.node(record, task.row.path) for task in sorted(tasks, key=lambda task: task.row.path))
        return CheckpointInfo(
            thread=self.key.id, kind=self.key.kind, ns=row.ns, id=row.id, parent=row.parent, step=row.step,
            source=row.source, time=moment(row.time), run=row.run, metadata=said,
            writes=sum(len(task.entries) for task in tasks),
            nodes=tuple(dict.fromkeys(node for node in nodes if node is not None)),
            updated=tuple(self._updated(record)), bytes=row.size,
            forked_from=said["forked_from"] if isinstance(said.get("forked_from"), str) else None,
        )  # fmt: skip

    def _updated(self, record: CheckpointRecord) -> Iterator[str]:
        parent = self.parent(record)
        if parent is None:
            yield from (name for name in self.names(record) if not self.is_talk or self.slots(record, name))
            return
        for name in dict.fromkeys((*self.names(record), *self.names(parent))):
            if self._is_delta(record, name) and name not in record.slots:
                if record.versions.get(name) != parent.versions.get(name):
                    yield name
            elif not self.is_unchanged(record, parent, name):
                yield name

    def written(self, record: CheckpointRecord) -> list[WriteInfo]:
        """The writes on a checkpoint in LangGraph's order; needs the items of `write_slots`."""
        return [self.one_written(record, task, idx, entry) for task, idx, entry in in_order(self.tasks(record))]

    def one_written(self, record: CheckpointRecord, task: TaskWrites, idx: int, entry: WriteEntry) -> WriteInfo:
        """One write on a checkpoint."""
        path, run, time = entry.origin
        value = value_of(self.thread.head, entry.slot, f"a write of task {task.row.task!r} in {self.thread.head.where}")
        node = self.node(record, path)
        return WriteInfo(task.row.task, node, path, idx, entry.channel, value, moment(time), run)


def in_order(tasks: Iterable[TaskWrites]) -> list[tuple[TaskWrites, int, WriteEntry]]:
    """The writes of tasks in LangGraph's order: path, task, idx."""
    every = [(task, idx, entry) for task in tasks for idx, entry in task.entries.items()]
    return sorted(every, key=lambda one: (one[2].origin[0], one[0].row.task, one[1]))


def write_slots(tasks: Iterable[TaskWrites]) -> list[Slot]:
    """How the writes of tasks are held."""
    return [entry.slot for task in tasks for entry in task.entries.values()]


def sends_of(reading: ThreadReader, records: Iterable[CheckpointRecord]) -> list[Slot]:
    """How the pending sends are held that name the nodes of tasks on these checkpoints."""
    return [
        record.slots[TASKS]
        for record in records
        if TASKS in record.slots and any(_PUSH in task.row.path for task in reading.tasks(record))
    ]


async def read(heads: Heads, key: ThreadKey, use: Callable[[ThreadReader], Awaitable[T]]) -> T:
    """Survey a thread and use it; again, if it is pruned meanwhile. Missing if there is no such thread."""

    async def once() -> T:
        return await use(ThreadReader(await load_thread_rows(heads, key)))

    return await read_consistently(key, once)


async def fetch(heads: Heads, reading: ThreadReader, slots: Iterable[Slot]) -> None:
    """Have what these slots refer to at hand. One round trip; none if all is."""
    await with_items(heads, reading.thread, slots)
