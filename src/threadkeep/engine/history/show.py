"""Looking into a thread: its checkpoints as a list and as a tree, one of them with all that it holds, and finding one.

log, tree    Survey, and Items where nodes were sent to
show         Survey, Items
find         Items or Scan for each way to read what was said
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.cube import channels
from threadkeep.engine.history.checkpoint_info import (
    CheckpointInfo,
    ThreadReader,
    WriteInfo,
    fetch,
    is_internal,
    read,
    sends_of,
    write_slots,
)
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey
from threadkeep.engine.log.records import CheckpointRecord, Slot
from threadkeep.engine.requests import ScanCheckpoints
from threadkeep.engine.threads import status
from threadkeep.engine.threads.catalogue import key_of
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import find, matches_short_id
from threadkeep.errors import Missing

_SHORTEST, _WHOLE = 8, 12
_MENTIONED = 3
_AT, _BACK, _START, _JOIN = "@", "~", "__start__", "join:"


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint with all that it holds, as plain data.

    `values` are those of all channels, `state` of the application's own; those named in `delta` are not stored in the
    checkpoint but rebuilt: lists joined, messages by their ids, dicts merged. `next` are the nodes that would run,
    as far as the stored data alone tells it: without the tasks that are done if nothing came after it yet.
    """

    checkpoint: CheckpointInfo
    status: str
    next: tuple[str, ...]
    values: dict[str, Any]
    delta: tuple[str, ...]
    writes: tuple[WriteInfo, ...]

    @property
    def state(self) -> dict[str, Any]:
        """The values without LangGraph's own channels."""
        return {name: value for name, value in self.values.items() if not is_internal(name)}


@dataclass(frozen=True, slots=True)
class Tree:
    """The checkpoints of a thread, newest first, and how they hang together: ids by namespace, oldest first.

    A checkpoint whose parent is not there hangs on what it was forked from, if that is there; else it is a root.
    """

    thread: str
    kind: str
    checkpoints: tuple[CheckpointInfo, ...]
    roots: dict[str, tuple[str, ...]]
    children: dict[str, dict[str, tuple[str, ...]]]

    def before(self, step: CheckpointInfo) -> str | None:
        """The id of the checkpoint that a step hangs on; None for a root."""
        held = self.children.get(step.ns, {})
        return next((id for id in (step.parent, step.forked_from) if id and step.id in held.get(id, ())), None)


async def log(heads: Heads, key: ThreadKey, ns: str | None, limit: int | None) -> list[CheckpointInfo]:
    """The checkpoints, newest first. Two round trips; one where no node was sent to."""

    async def told(reading: ThreadReader) -> list[CheckpointInfo]:
        return await _steps(heads, reading, reading.thread.visible(ns)[::-1][:limit])

    return await read(heads, key, told)


async def _steps(heads: Heads, reading: ThreadReader, records: Iterable[CheckpointRecord]) -> list[CheckpointInfo]:
    wanted = list(records)
    await fetch(heads, reading, sends_of(reading, wanted))
    return [reading.step(record) for record in wanted]


async def show(heads: Heads, key: ThreadKey, ref: str | None, ns: str) -> CheckpointView:
    """A checkpoint with all that it holds. Two round trips."""

    async def told(reading: ThreadReader) -> CheckpointView:
        record = find(reading.thread, ref, ns)
        await fetch(heads, reading, _all_slots(reading, record))
        waiting = tuple(_next(reading, record))
        return CheckpointView(
            checkpoint=reading.step(record),
            status=_status(reading, record, waiting),
            next=waiting,
            values={name: reading.value(record, name) for name in reading.names(record)},
            delta=() if reading.is_talk else tuple(reading.rebuilt(record)),
            writes=tuple(reading.written(record)),
        )

    return await read(heads, key, told)


def _all_slots(reading: ThreadReader, record: CheckpointRecord) -> list[Slot]:
    held = [slot for name in reading.names(record) for slot in reading.slots(record, name)]
    return held + write_slots(reading.tasks(record))


def _status(reading: ThreadReader, record: CheckpointRecord, next: Iterable[str]) -> str:
    """What the thread's status is, or would be, with this checkpoint as the newest."""
    if reading.is_talk:
        return channels.status_at(reading.thread.head, record)
    found = "pending" if next else status.of_checkpoint(record)
    for task in reading.tasks(record):
        found = status.worse(found, status.of_writes(entry.channel for entry in task.entries.values()))
    return found


def _next(reading: ThreadReader, record: CheckpointRecord) -> list[str]:
    """The nodes to run, without those that are done if nothing came after this checkpoint yet."""
    if reading.is_talk:
        return []
    done = Counter[str | None]()
    if not _has_child(reading, record):
        finished = (task for task in reading.tasks(record) if any(idx >= 0 for idx in task.entries))
        done.update(reading.node(record, task.row.path) for task in finished)
    waiting = []
    for node in _triggered(reading, record):
        if done[node]:
            done[node] -= 1
        else:
            waiting.append(node)
    return waiting


def _triggered(reading: ThreadReader, record: CheckpointRecord) -> list[str]:
    """The nodes that a checkpoint lets run: those that are sent to first, then by name, as LangGraph has it."""
    triggers = status.triggers(record)
    sent = reading.sends(record) if TASKS in triggers else []
    named = {_starter(reading, record) if name == _START else status.triggered(name) for name in triggers} - {TASKS}
    joins = [name for name in record.slots if name.startswith(_JOIN)]
    named |= {node for name in joins if (node := _joined(name, reading.value(record, name))) is not None}
    return [str(send["node"]) for send in sent if isinstance(send, Mapping) and "node" in send] + sorted(named)


def _starter(reading: ThreadReader, record: CheckpointRecord) -> str:
    """The node that takes the input; in the functional API it has a name of its own, which checkpoints after it tell."""
    others = (one.seen for one in reading.thread.records.values() if one.row.ns == record.row.ns)
    return next((node for seen in others for node, versions in seen.items() if _START in versions), _START)


def _joined(channel: str, came: Any) -> str | None:
    """The node that waits for several others, `join:one+other:node`, if all of them came."""
    starts, colon, node = channel.removeprefix(_JOIN).rpartition(":")
    if not (colon and isinstance(came, list)):
        return None
    return node if came and len("+".join(map(str, came))) == len(starts) else None


def _has_child(reading: ThreadReader, record: CheckpointRecord) -> bool:
    place = (record.row.ns, record.row.id)
    return any((one.row.ns, one.row.parent) == place for one in reading.thread.records.values())


async def tree(heads: Heads, key: ThreadKey) -> Tree:
    """The checkpoints and how they hang together. Two round trips; one where no node was sent to."""

    async def told(reading: ThreadReader) -> Tree:
        steps = await _steps(heads, reading, reading.thread.visible()[::-1])
        return Tree(key.id, key.kind, tuple(steps), *_hung(steps))

    return await read(heads, key, told)


def _hung(steps: list[CheckpointInfo]) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, tuple[str, ...]]]]:
    """Roots and children, by namespace."""
    there = {(step.ns, step.id) for step in steps}
    roots: dict[str, tuple[str, ...]] = {}
    children: dict[str, dict[str, tuple[str, ...]]] = {}
    for step in reversed(steps):
        held = children.setdefault(step.ns, {})
        above = [id for id in (step.parent, step.forked_from) if id not in (None, step.id) and (step.ns, id) in there]
        if above and above[0] is not None:
            held[above[0]] = (*held.get(above[0], ()), step.id)
        else:
            roots[step.ns] = (*roots.get(step.ns, ()), step.id)
    return roots, children


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Ids as short as `find` takes each for the only one: their last characters, equally many, at least 8.

    An id that is short anyway stands as it is.
    """
    every = set(ids)
    long = [id for id in every if len(id) > _WHOLE]
    for length in range(_SHORTEST, max(map(len, long), default=0)):
        ends, begins = Counter(id[-length:] for id in every), Counter(id[:length] for id in every)
        if all(ends[id[-length:]] == 1 and begins[id[-length:]] <= (id[:length] == id[-length:]) for id in long):
            return {id: id[-length:] if len(id) > _WHOLE else id for id in every}
    return {id: id for id in every}


async def locate(heads: Heads, tenant: str, ref: str, kind: str | None) -> CheckpointInfo:
    """The checkpoint that a text names: THREAD (its latest), THREAD@CHECKPOINT, or the id of one in any thread."""
    key, id, ns = await _place(tenant, ref, kind)

    async def told(reading: ThreadReader) -> CheckpointInfo:
        space = (_space(reading, id) if id else "") if ns is None else ns
        return (await _steps(heads, reading, [find(reading.thread, id, space)]))[0]

    return await read(heads, key, told)


def _space(reading: ThreadReader, id: str) -> str:
    """The only namespace with a checkpoint that begins or ends so; else the root's."""
    short = id.partition(_BACK)[0]
    spaces = {record.row.ns for record in reading.thread.visible() if matches_short_id(short, record.row.id)}
    return spaces.pop() if len(spaces) == 1 else ""


async def _place(tenant: str, ref: str, kind: str | None) -> tuple[ThreadKey, str | None, str | None]:
    """A thread, what names the checkpoint, and its namespace if that is known."""
    key = await key_of(tenant, ref, kind)
    if key is not None:
        return key, None, ""
    thread, at, id = ref.rpartition(_AT)
    if at and (key := await key_of(tenant, thread, kind)) is not None:
        return key, id, None
    kinds = [each for each in (GRAPH, CUBE) if kind in (None, each)]
    hits = [hit for each in kinds for hit in await ScanCheckpoints(tenant, each, _MENTIONED, id=ref)]
    if len(hits) == 1:
        return hits[0].key, ref, hits[0].row.ns
    if hits:
        threads = ", ".join(sorted({repr(hit.key.id) for hit in hits}))
        raise ValueError(f"several threads have a checkpoint {ref!r}, such as {threads}: say THREAD@CHECKPOINT")
    raise Missing(f"there is no thread or checkpoint {ref!r}")
