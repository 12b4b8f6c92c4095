"""The data flow of a thread: nodes, channels, and who wrote, triggered or sent what, how often and when: the verb flow.

It is read from the rows of checkpoints and writes; of values, only pending sends and CubeLoop's messages are read.

LangGraph's control channels become edges between nodes: a write to `branch:to:b` or `join:a+b:c` is an edge `next` to
the node at its end, and a Send is an edge `send`. Application channels that trigger nodes themselves are found in
`versions_seen`. In a CubeLoop thread, the nodes are the roles of its messages, and the tools that they call.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import RESUME, TASKS

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.history import flow_drawing
from threadkeep.engine.history.audit import TracedWrite, read_messages, without_task_ids
from threadkeep.engine.history.checkpoint_info import ThreadReader, ordered_writes, utc_time
from threadkeep.engine.identity import CUBE, Kind, ThreadKey
from threadkeep.engine.log.plain import role_of, tool_calls
from threadkeep.engine.log.records import CheckpointRecord, WriteEntry
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.kept_rows import load_rows_to_show
from threadkeep.engine.threads.status import is_internal, triggered_node
from threadkeep.engine.threads.thread_rows import CheckpointKey
from threadkeep.short_repr import short_repr

NODE, INPUT, UPDATE, CALLER, ROLE, TOOL, UNKNOWN = "node", "input", "update", "caller", "role", "tool", "unknown"
WRITE, TRIGGER, NEXT, SEND, CALL = "write", "trigger", "next", "send", "call"
_START, _BRANCH, _JOIN = "__start__", "branch:to:", "join:"
_NAMES = {UPDATE: "update_state", CALLER: "resume", UNKNOWN: "unknown"}
"""Names for writers that the thread does not name."""


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A writer: a node of the graph or of a subgraph (`ns`), and the number of its tasks.

    `kind` is `node`, or `input` for a graph's input, `update` for update_state, `caller` for answers to interrupts, or
    `unknown`; in a CubeLoop thread `role` or `tool`, and `tasks` counts messages or calls. Steps are those that the
    tasks led to, as in the metadata of checkpoints.
    """

    ns: str
    name: str
    kind: str
    tasks: int
    first: datetime | None
    last: datetime | None
    first_step: int | None
    last_step: int | None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class FlowChannel:
    """A channel of the graph or of a subgraph, and what was written to it: the number of writes, and their bytes."""

    ns: str
    name: str
    writes: int
    bytes: int

    __repr__ = short_repr

    @property
    def is_internal(self) -> bool:
        """Whether it is one of LangGraph's own."""
        return is_internal(self.name)


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """What went from a source to a target, `count` times.

    `kind` is `write` (node to channel, with `bytes`), `trigger` (channel to node), `next` or `send` (node to node), or
    `call` (in CubeLoop threads, role to tool). `source` and `target` are positions in `Flow.nodes`, or in
    `Flow.channels` for the target of a write and the source of a trigger.
    """

    kind: str
    source: int
    target: int
    count: int
    bytes: int
    first: datetime
    last: datetime
    first_step: int | None
    last_step: int | None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Flow:
    """The data flow of a thread, over all its checkpoints and branches; in order of first appearance.

    `damaged` names checkpoints and writes that cannot be read, and are left out.
    """

    thread: str
    kind: Kind
    checkpoints: int
    nodes: tuple[FlowNode, ...]
    channels: tuple[FlowChannel, ...]
    edges: tuple[FlowEdge, ...]
    damaged: tuple[str, ...] = ()

    __repr__ = short_repr

    def text(self) -> str:
        """Return the flow as text: each node with what it wrote, and what came next."""
        return flow_drawing.text(self)

    def mermaid(self) -> str:
        """Return the flow as a Mermaid flowchart, with a box for each subgraph. Names cannot break out of it."""
        return flow_drawing.mermaid(self)


async def flow(heads: Heads, key: ThreadKey) -> Flow:
    """Return the data flow of a thread. Missing if it does not exist.

    One round trip; two if tasks came from sends. Three for a CubeLoop thread, whose messages are read.
    """
    return await read_consistently(key, lambda: _flow(heads, key))


async def _flow(heads: Heads, key: ThreadKey) -> Flow:
    rows = await load_rows_to_show(heads, key)
    drawn = _Drawn()
    damaged = [f"checkpoint {id!r}{_in(ns)}: {each.reason}" for (ns, id), each in rows.damaged.items()]
    damaged += [
        f"writes on checkpoint {id!r}{_in(ns)}: {each.reason}" for (ns, id, _), each in rows.damaged_writes.items()
    ]
    if key.kind == CUBE:
        newest = rows.visible("")[-1:]
        messages, problems = await read_messages(heads, rows, newest[0]) if newest else ([], [])
        for message in messages:
            drawn.add_message(message)
        damaged += problems
    else:
        reader = ThreadReader(heads, rows)
        await reader.fetch(record.slots[TASKS] for record in rows.records.values() if TASKS in record.slots)
        _draw_graph(reader, drawn)
    return drawn.flow(key, len(rows.visible_keys()), damaged)


def _in(ns: str) -> str:
    return f" of namespace {ns!r}" if ns else ""


# --- LangGraph threads


def _draw_graph(reader: ThreadReader, drawn: _Drawn) -> None:
    rows, children = reader.rows, _children(reader)
    for checkpoint in sorted({*rows.records, *rows.tasks}, key=lambda each: (each[1], each[0])):
        record = rows.records.get(checkpoint)
        _draw_writes(reader, drawn, checkpoint, children.get(checkpoint, []))
        if record is not None:
            _draw_triggers(reader, drawn, record)


def _children(reader: ThreadReader) -> dict[CheckpointKey, list[CheckpointRecord]]:
    found: dict[CheckpointKey, list[CheckpointRecord]] = {}
    for record in reader.rows.records.values():
        found.setdefault((record.row.ns, record.row.parent or ""), []).append(record)
    return found


def _draw_writes(
    reader: ThreadReader, drawn: _Drawn, checkpoint: CheckpointKey, children: list[CheckpointRecord]
) -> None:
    """Draw the writes on a checkpoint, which led to its children."""
    record, ns = reader.rows.records.get(checkpoint), without_task_ids(checkpoint[0])
    step = record.row.step + 1 if record is not None and record.row.step is not None else None
    updated = any(child.row.source == "update" for child in children)
    senders = list[tuple[_NodeId, _Moment]]()
    seen = set[tuple[_NodeId, str]]()
    for task, _, entry in ordered_writes(reader.rows.tasks.get(checkpoint, ())):
        moment = _Moment(utc_time(entry.origin[2]), step)
        name = reader.node(record, entry.origin[0]) if record is not None else None
        node = _NodeId(ns, *_writer(name, entry, updated=updated))
        if (node, task.row.task) not in seen:
            drawn.add_task(node, moment)
        seen.add((node, task.row.task))
        following = _following_node(entry.channel)
        if following is not None:
            drawn.add_edge(NEXT, node, _NodeId(ns, following, NODE), moment)
        elif entry.channel == TASKS:
            senders.append((node, moment))
        else:
            drawn.add_write(node, (ns, entry.channel), entry.size, moment)
    _draw_sends(reader, drawn, ns, senders, children)


def _writer(name: str | None, entry: WriteEntry, *, updated: bool) -> tuple[str, str]:
    """The name and the kind of who made a write."""
    if name is not None:
        return name, INPUT if name == _START else NODE
    kind = CALLER if entry.channel == RESUME else UPDATE if updated else UNKNOWN
    return _NAMES[kind], kind


def _following_node(channel: str) -> str | None:
    """The node that a write to a control channel makes run; None for other channels."""
    if channel.startswith(_BRANCH):
        return triggered_node(channel)
    return channel.rpartition(":")[2] if channel.startswith(_JOIN) else None


def _draw_sends(
    reader: ThreadReader,
    drawn: _Drawn,
    ns: str,
    senders: list[tuple[_NodeId, _Moment]],
    children: list[CheckpointRecord],
) -> None:
    """Draw an edge for each Send, from the writes of sends and the pending sends of a child, which have their order."""
    for child in children if senders else ():
        sends = reader.sends(child)
        if len(sends) == len(senders):
            for (node, moment), send in zip(senders, sends, strict=True):
                if isinstance(send, dict) and isinstance(send.get("node"), str):
                    drawn.add_edge(SEND, node, _NodeId(ns, send["node"], NODE), moment)
            return


def _draw_triggers(reader: ThreadReader, drawn: _Drawn, record: CheckpointRecord) -> None:
    """Draw an edge from each application channel to the nodes that its versions triggered in this step."""
    parent, ns = reader.parent(record), without_task_ids(record.row.ns)
    moment = _Moment(utc_time(record.row.time), record.row.step)
    for name, versions in record.seen.items():
        before = parent.seen.get(name, {}) if parent is not None else {}
        for channel, version in versions.items() if not name.startswith("__") else ():
            if not is_internal(channel) and before.get(channel) != version:
                drawn.add_trigger((ns, channel), _NodeId(ns, name, NODE), moment)


# --- collecting


class _NodeId(NamedTuple):
    ns: str
    name: str
    kind: str


class _Moment(NamedTuple):
    time: datetime
    step: int | None


class _Sums:
    """A count, a number of bytes, and the first and the last moment."""

    __slots__ = ("bytes", "count", "steps", "times")

    def __init__(self) -> None:
        self.count, self.bytes = 0, 0
        self.times: list[datetime] = []
        self.steps: list[int] = []

    def add(self, moment: _Moment, size: int = 0) -> None:
        self.count, self.bytes = self.count + 1, self.bytes + size
        self.times = _extremes(*self.times, moment.time)
        if moment.step is not None:
            self.steps = _extremes(*self.steps, moment.step)

    @property
    def span(self) -> tuple[Any, Any, Any, Any]:
        """First and last time, first and last step."""
        return (*(self.times or (None, None)), *(self.steps or (None, None)))


def _extremes(*values: Any) -> list[Any]:
    return [min(values), max(values)]


class _Drawn:
    """Nodes, channels and edges, each with its sums, in order of first appearance."""

    def __init__(self) -> None:
        self.nodes: dict[_NodeId, _Sums] = {}
        self.channels: dict[tuple[str, str], _Sums] = {}
        self.edges: dict[tuple[str, Any, Any], _Sums] = {}

    def add_task(self, node: _NodeId, moment: _Moment) -> None:
        self.nodes.setdefault(node, _Sums()).add(moment)

    def add_write(self, node: _NodeId, channel: tuple[str, str], size: int, moment: _Moment) -> None:
        self.channels.setdefault(channel, _Sums()).add(moment, size)
        self._add(WRITE, node, channel, moment, size)

    def add_trigger(self, channel: tuple[str, str], node: _NodeId, moment: _Moment) -> None:
        self.channels.setdefault(channel, _Sums())
        self.nodes.setdefault(node, _Sums())
        self._add(TRIGGER, channel, node, moment)

    def add_edge(self, kind: str, source: _NodeId, target: _NodeId, moment: _Moment) -> None:
        self.nodes.setdefault(target, _Sums())
        self._add(kind, source, target, moment)

    def _add(self, kind: str, source: Any, target: Any, moment: _Moment, size: int = 0) -> None:
        self.edges.setdefault((kind, source, target), _Sums()).add(moment, size)

    def add_message(self, write: TracedWrite) -> None:
        """Draw a message of a CubeLoop thread, and the tools that it calls."""
        message, moment = write.value if isinstance(write.value, dict) else {}, _Moment(write.time, write.idx)
        tool = message.get("tool_name")
        node = _NodeId("", tool, TOOL) if isinstance(tool, str) and tool else _NodeId("", role_of(message), ROLE)
        if node.kind == ROLE:
            self.add_task(node, moment)
        else:
            self.nodes.setdefault(node, _Sums())
        self.add_write(node, ("", write.channel), write.size, moment)
        for call in tool_calls(message):
            name = call.get("name") if isinstance(call, dict) else None
            called = _NodeId("", name if isinstance(name, str) and name else _NAMES[UNKNOWN], TOOL)
            self.add_task(called, moment)
            self.add_edge(CALL, node, called, moment)

    def flow(self, key: ThreadKey, checkpoints: int, damaged: list[str]) -> Flow:
        nodes = {node: n for n, node in enumerate(self.nodes)}
        channels = {channel: n for n, channel in enumerate(self.channels)}
        return Flow(
            thread=key.id,
            kind=key.kind,
            checkpoints=checkpoints,
            nodes=tuple(FlowNode(*node, sums.count, *sums.span) for node, sums in self.nodes.items()),
            channels=tuple(FlowChannel(*at, sums.count, sums.bytes) for at, sums in self.channels.items()),
            edges=tuple(
                FlowEdge(
                    kind,
                    _place(source, nodes, channels),
                    _place(target, nodes, channels),
                    sums.count,
                    sums.bytes,
                    *sums.span,
                )
                for (kind, source, target), sums in self.edges.items()
            ),
            damaged=tuple(damaged),
        )


def _place(end: Any, nodes: dict[_NodeId, int], channels: dict[tuple[str, str], int]) -> int:
    return nodes[end] if isinstance(end, _NodeId) else channels[end]
