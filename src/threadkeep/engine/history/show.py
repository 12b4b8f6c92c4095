"""List, show and find the checkpoints of a thread: the verbs log, show, tree and find.

Requests: log and tree send LoadThreadRows, and LoadItems if tasks came from sends; show sends LoadThreadRows and
LoadItems; find sends one LoadItems or ScanCheckpoints for each way to read the text, then does what log does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.cube import channels
from threadkeep.engine.history.checkpoint_info import (
    CheckpointInfo,
    ThreadReader,
    WriteInfo,
    ordered_writes,
    read_thread,
)
from threadkeep.engine.identity import KINDS, Kind, ThreadKey
from threadkeep.engine.log.records import CheckpointRecord, Slot
from threadkeep.engine.requests import ScanCheckpoints
from threadkeep.engine.threads import status
from threadkeep.engine.threads.catalogue import find_key
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.status import is_internal
from threadkeep.engine.threads.thread_rows import CheckpointKey, matches_short_id, resolve_ref
from threadkeep.errors import Corrupt, Missing
from threadkeep.short_repr import short_repr

DAMAGED = "damaged"
"""The status of a checkpoint that cannot be read."""
_SHORTEST_ID, _LONGEST_UNSHORTENED = 8, 12
_SCAN_LIMIT = 3
_AT, _BACK, _START, _JOIN = "@", "~", "__start__", "join:"


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint with everything it holds, as plain data.

    `values` has all channels, `state` only the application's. The channels in `delta` are not stored in the checkpoint;
    they are rebuilt with the default merge: lists are concatenated, messages matched by id, dicts merged. `next` has
    the nodes that would run, as far as stored data shows; tasks that already finished are left out if the checkpoint
    has no child.

    `damaged` has the channels that cannot be read, with the reason; they are not in `values`. If the checkpoint's own
    row is damaged (`checkpoint.damaged`), there are no values, and the status is `damaged`.
    """

    checkpoint: CheckpointInfo
    status: str
    next: tuple[str, ...]
    values: dict[str, Any]
    delta: tuple[str, ...]
    writes: tuple[WriteInfo, ...]
    damaged: dict[str, str] = field(default_factory=dict)

    __repr__ = short_repr

    @property
    def state(self) -> dict[str, Any]:
        """The values without LangGraph's own channels."""
        return {name: value for name, value in self.values.items() if not is_internal(name)}


@dataclass(frozen=True, slots=True)
class Tree:
    """The checkpoints of a thread, newest first, and their tree: ids by namespace, oldest first.

    If the parent of a checkpoint is not stored, the checkpoint it was forked from takes its place. If that is not
    stored either, the checkpoint is a root.
    """

    thread: str
    kind: Kind
    checkpoints: tuple[CheckpointInfo, ...]
    roots: dict[str, tuple[str, ...]]
    children: dict[str, dict[str, tuple[str, ...]]]

    __repr__ = short_repr

    def _repr_html_(self) -> str:
        from threadkeep.engine.history.notebook import tree_html  # noqa: PLC0415 - on use

        return tree_html(self)

    def before(self, step: CheckpointInfo) -> str | None:
        """Return the id of the checkpoint before one in this tree; None for a root."""
        children = self.children.get(step.ns, {})
        return next((id for id in (step.parent, step.forked_from) if id and step.id in children.get(id, ())), None)


# --- log


async def log(heads: Heads, key: ThreadKey, ns: str | None, limit: int | None) -> list[CheckpointInfo]:
    """Return the checkpoints of a namespace or of all, newest first. One round trip; two if tasks came from sends."""

    async def list_infos(reader: ThreadReader) -> list[CheckpointInfo]:
        return await _infos(reader, reader.rows.visible_keys(ns)[::-1][:limit])

    return await read_thread(heads, key, list_infos)


async def _infos(reader: ThreadReader, keys: list[CheckpointKey]) -> list[CheckpointInfo]:
    records = reader.rows.records
    await reader.fetch(reader.send_slots(records[key] for key in keys if key in records))
    return [reader.info_at(key) for key in keys]


# --- show


async def show(heads: Heads, key: ThreadKey, ref: str | None, ns: str) -> CheckpointView:
    """Return a checkpoint with everything it holds. Two round trips."""

    async def view(reader: ThreadReader) -> CheckpointView:
        at = resolve_ref(reader.rows, ref, ns)
        record = reader.rows.records.get(at)
        writes = ordered_writes(reader.rows.tasks.get(at, ()))
        slots = _channel_slots(reader, record) if record is not None else []
        await reader.fetch(slots + [entry.slot for _, _, entry in writes])
        written = (*reader.write_infos(at, writes), *reader.damaged_write_infos(at))
        if record is None:
            return CheckpointView(reader.info_at(at), DAMAGED, (), {}, (), written)
        values, damaged = _values(reader, record)
        nodes = next_nodes(reader, record)
        return CheckpointView(
            checkpoint=reader.info(record),
            status=status_with(reader, record, nodes),
            next=nodes,
            values=values,
            delta=tuple(reader.rebuilt_channels(record)),
            writes=written,
            damaged=damaged,
        )

    return await read_thread(heads, key, view)


def _values(reader: ThreadReader, record: CheckpointRecord) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of all channels, and those that cannot be read, with the reason."""
    values: dict[str, Any] = {}
    damaged: dict[str, str] = {}
    for name in reader.channels(record):
        try:
            values[name] = reader.value(record, name)
        except Corrupt as error:
            damaged[name] = str(error)
    return values, damaged


def _channel_slots(reader: ThreadReader, record: CheckpointRecord) -> list[Slot]:
    return [slot for name in reader.channels(record) for slot in reader.slots(record, name)]


def status_slots(reader: ThreadReader, record: CheckpointRecord) -> list[Slot]:
    """Return the slots that `next_nodes` and `status_with` read; `fetch` them first."""
    names = (channels.EVENTS, channels.PENDING) if reader.is_cube else (TASKS, *record.slots)
    wanted = [name for name in dict.fromkeys(names) if reader.is_cube or name == TASKS or name.startswith(_JOIN)]
    return [record.slots[name] for name in wanted if name in record.slots]


def status_with(reader: ThreadReader, record: CheckpointRecord, nodes: tuple[str, ...]) -> str:
    """Return the status that the thread has, or would have, with this checkpoint as the newest.

    `nodes` are its `next_nodes`.
    """
    if reader.is_cube:
        try:
            return channels.status_at(reader.rows.head, record)
        except Corrupt:
            return DAMAGED
    found = "pending" if nodes else status.status_of_checkpoint(record)
    for task in reader.tasks(record):
        found = status.worse_status(found, status.status_of_writes(entry.channel for entry in task.entries.values()))
    return found


def next_nodes(reader: ThreadReader, record: CheckpointRecord) -> tuple[str, ...]:
    """Return the nodes to run; without those that finished, if the checkpoint has no child yet."""
    if reader.is_cube:
        return ()
    done = Counter[str | None]()
    if not _has_child(reader, record):
        finished = (task for task in reader.tasks(record) if any(idx >= 0 for idx in task.entries))
        done.update(reader.node(record, task.row.path) for task in finished)
    waiting = []
    for node in _triggered_nodes(reader, record):
        if done[node]:
            done[node] -= 1
        else:
            waiting.append(node)
    return tuple(waiting)


def _has_child(reader: ThreadReader, record: CheckpointRecord) -> bool:
    checkpoint = (record.row.ns, record.row.id)
    return any((one.row.ns, one.row.parent) == checkpoint for one in reader.rows.records.values())


def _triggered_nodes(reader: ThreadReader, record: CheckpointRecord) -> list[str]:
    """The nodes that a checkpoint triggers, in LangGraph's order: targets of sends first, then the others by name."""
    triggers = status.triggered_channels(record)
    sends = reader.sends(record) if TASKS in triggers else []
    nodes = {_input_node(reader, record) if name == _START else status.triggered_node(name) for name in triggers} - {
        TASKS
    }
    joins = [name for name in record.slots if name.startswith(_JOIN)]
    nodes |= {node for name in joins if (node := _joined_node(reader, record, name)) is not None}
    return [str(send["node"]) for send in sends if isinstance(send, Mapping) and "node" in send] + sorted(nodes)


def _input_node(reader: ThreadReader, record: CheckpointRecord) -> str:
    """The node that takes the input. In the functional API it has its own name, which later checkpoints contain."""
    others = (one.seen for one in reader.rows.records.values() if one.row.ns == record.row.ns)
    return next((node for seen in others for node, versions in seen.items() if _START in versions), _START)


def _joined_node(reader: ThreadReader, record: CheckpointRecord, channel: str) -> str | None:
    """The node of the channel `join:one+other:node`, if all nodes that it waits for have arrived."""
    starts, colon, node = channel.removeprefix(_JOIN).rpartition(":")
    try:
        arrived = reader.value(record, channel)
    except Corrupt:
        return None
    if not (colon and isinstance(arrived, list)):
        return None
    return node if arrived and len("+".join(map(str, arrived))) == len(starts) else None


# --- tree


async def tree(heads: Heads, key: ThreadKey) -> Tree:
    """Return all checkpoints and how they branch. One round trip; two if tasks came from sends."""

    async def build(reader: ThreadReader) -> Tree:
        infos = await _infos(reader, reader.rows.visible_keys()[::-1])
        return Tree(key.id, key.kind, tuple(infos), *_branches(infos))

    return await read_thread(heads, key, build)


def _branches(infos: list[CheckpointInfo]) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, tuple[str, ...]]]]:
    """Roots and children by namespace, of checkpoints that are given newest first."""
    stored = {(info.ns, info.id) for info in infos}
    roots: dict[str, tuple[str, ...]] = {}
    children: dict[str, dict[str, tuple[str, ...]]] = {}
    for info in reversed(infos):
        siblings = children.setdefault(info.ns, {})
        above = [id for id in (info.parent, info.forked_from) if id != info.id and (info.ns, id) in stored]
        if above and above[0] is not None:
            siblings[above[0]] = (*siblings.get(above[0], ()), info.id)
        else:
            roots[info.ns] = (*roots.get(info.ns, ()), info.id)
    return roots, children


# --- find


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Shorten ids to their last characters, so that `find_checkpoint` still takes each for exactly one of them.

    All are cut to the same length, at least 8. Ids of 12 characters or less are not shortened.
    """
    every = set(ids)
    long = [id for id in every if len(id) > _LONGEST_UNSHORTENED]
    for length in range(_SHORTEST_ID, max(map(len, long), default=0)):
        ends, starts = Counter(id[-length:] for id in every), Counter(id[:length] for id in every)
        if all(ends[id[-length:]] == 1 and starts[id[-length:]] <= (id[:length] == id[-length:]) for id in long):
            return {id: id[-length:] if len(id) > _LONGEST_UNSHORTENED else id for id in every}
    return {id: id for id in every}


async def locate(heads: Heads, tenant: str, ref: str, kind: Kind | None) -> CheckpointInfo:
    """Return the checkpoint that a text names: THREAD (its latest), THREAD@CHECKPOINT, or an id in any thread.

    Missing if there is none, ValueError if several threads have it.
    """
    key, id, ns = await _resolve(tenant, ref, kind)

    async def describe(reader: ThreadReader) -> CheckpointInfo:
        space = (_namespace(reader, id) if id else "") if ns is None else ns
        return (await _infos(reader, [resolve_ref(reader.rows, id, space)]))[0]

    return await read_thread(heads, key, describe)


def _namespace(reader: ThreadReader, id: str) -> str:
    """The only namespace with a checkpoint whose id starts or ends with this; otherwise the root's."""
    short = id.partition(_BACK)[0]
    spaces = {ns for ns, stored in reader.rows.visible_keys() if matches_short_id(short, stored)}
    return spaces.pop() if len(spaces) == 1 else ""


async def _resolve(tenant: str, ref: str, kind: Kind | None) -> tuple[ThreadKey, str | None, str | None]:
    """The thread that a text names, the checkpoint (None for the latest), and its namespace (None if not known)."""
    key = await find_key(tenant, ref, kind)
    if key is not None:
        return key, None, ""
    thread, at, id = ref.rpartition(_AT)
    if at and (key := await find_key(tenant, thread, kind)) is not None:
        return key, id, None
    kinds = KINDS if kind is None else (kind,)
    hits = [hit for each in kinds for hit in await ScanCheckpoints(tenant, each, _SCAN_LIMIT, id=ref)]
    if len(hits) == 1:
        return hits[0].key, ref, hits[0].row.ns
    if hits:
        threads = ", ".join(sorted({repr(hit.key.id) for hit in hits}))
        raise ValueError(f"checkpoint {ref!r} exists in several threads, such as {threads}: pass THREAD@CHECKPOINT")
    raise Missing(f"thread or checkpoint {ref!r} not found")
