"""Draw the data flow of a thread: as text, and as a Mermaid flowchart.

Names of threads, nodes and channels come from users. In Mermaid, labels are quoted, and every character of a name that
could mean something there is written as an entity: `#34;` for a quotation mark. In text, control characters are
escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from threadkeep.plural import plural

if TYPE_CHECKING:
    from threadkeep.engine.history.flow import Flow, FlowEdge, FlowNode

_SHAPES = {"input": "([{}])", "update": "[/{}/]", "caller": "[/{}/]", "tool": "[[{}]]"}
"""How nodes are drawn in Mermaid; others as a box."""
_ARROWS = {"write": "-->", "trigger": "-.->", "next": "==>", "send": "==>", "call": "==>"}
_VERBS = {"write": "writes", "trigger": "triggers", "next": "next", "send": "sends to", "call": "calls"}
_NOUNS = {"write": "write", "send": "send", "call": "call"}
_MAX_NAME = 80
_PLAIN = re.compile(r"[^\W_]| |(?<=[^\W_])_(?=[^\W_])|[,/]|(?<=[^\W_])[.-](?=[^\W_])")
"""Characters that mean nothing in a Mermaid label. At the edge of a word, `_`, `.` and `-` are Markdown."""


# --- text


def text(flow: Flow) -> str:
    """Return a flow as text."""
    return "\n".join(_text_lines(flow))


def _text_lines(flow: Flow) -> Iterator[str]:
    written = sum(each.writes for each in flow.channels)
    yield (
        f"{_one_line(flow.thread)} ({flow.kind}): {plural(len(flow.nodes), 'node')}, "
        f"{plural(len(flow.channels), 'channel')}, {plural(written, 'write')} in "
        f"{plural(flow.checkpoints, 'checkpoint')}"
    )
    for ns in _namespaces(flow):
        yield ""
        if ns:
            yield f"subgraph {_one_line(ns)}"
        for n, node in enumerate(flow.nodes):
            if node.ns == ns:
                yield _node_line(node)
                yield from _edge_lines(flow, [each for each in flow.edges if _is_from_node(each) and each.source == n])
        for n, channel in enumerate(flow.channels):
            triggered = [each for each in flow.edges if each.kind == "trigger" and each.source == n]
            if channel.ns == ns and triggered:
                yield f"channel {_one_line(channel.name)}"
                yield from _edge_lines(flow, triggered)
    yield from (f"damaged: {_one_line(each)}" for each in flow.damaged)


def _node_line(node: FlowNode) -> str:
    kind = f" ({node.kind})" if node.kind != "node" else ""
    when = _when(node.first_step, node.last_step)
    times = f"  {_times(node)}" if node.first is not None else ""
    return f"{_one_line(node.name)}{kind}: {plural(node.tasks, 'task')}{when}{times}"


def _edge_lines(flow: Flow, edges: list[FlowEdge]) -> Iterator[str]:
    for edge in edges:
        name = flow.channels[edge.target].name if edge.kind == "write" else flow.nodes[edge.target].name
        size = f", {edge.bytes:,} B" if edge.kind == "write" else ""
        when = _when(edge.first_step, edge.last_step)
        yield f"  {_VERBS[edge.kind]} {_one_line(name)}  {edge.count:,}x{size}{when}"


def _is_from_node(edge: FlowEdge) -> bool:
    return edge.kind != "trigger"


def _times(node: FlowNode) -> str:
    first, last = (f"{each:%Y-%m-%d %H:%M:%S}" if each is not None else "" for each in (node.first, node.last))
    return first if first == last else f"{first} to {last}"


def _when(first: int | None, last: int | None) -> str:
    if first is None:
        return ""
    return f", step {first}" if first == last else f", steps {first} to {last}"


def _one_line(text: str) -> str:
    """Escape what is not printable, so that a name cannot break a line or act on a terminal."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


# --- Mermaid


def mermaid(flow: Flow) -> str:
    """Return a flow as a Mermaid flowchart. LangGraph's own channels are left out, except interrupts and errors."""
    return "\n".join(_mermaid_lines(flow)) + "\n"


def _mermaid_lines(flow: Flow) -> Iterator[str]:
    yield "flowchart LR"
    yield from (f"  %% damaged, {_quoted(each)}" for each in flow.damaged)
    yield from _box_lines(flow, "", _namespaces(flow), "  ")
    for edge in flow.edges:
        source, target = _ends(flow, edge)
        if source and target:
            yield f"  {source} {_ARROWS[edge.kind]}|{_edge_label(edge)}| {target}"
    yield from (f"  n{caller} -.- n{start}" for caller, start in _calls_of_subgraphs(flow))


def _box_lines(flow: Flow, ns: str, boxes: list[str], indent: str) -> Iterator[str]:
    """Yield the nodes and channels of a namespace, and the boxes of the subgraphs in it."""
    for n, node in enumerate(flow.nodes):
        if node.ns == ns:
            yield f"{indent}n{n}{_SHAPES.get(node.kind, '[{}]').format(_quoted(node.name))}"
    for n, channel in enumerate(flow.channels):
        if channel.ns == ns and _is_drawn(flow, n):
            yield f"{indent}c{n}[({_quoted(channel.name)})]"
    for n, box in enumerate(boxes):
        if box and _outer(box, boxes) == ns:
            yield f"{indent}subgraph s{n}[{_quoted(box.removeprefix(ns).removeprefix('|') or box)}]"
            yield from _box_lines(flow, box, boxes, indent + "  ")
            yield f"{indent}end"


def _outer(ns: str, boxes: Iterable[str]) -> str:
    """The nearest namespace that contains another one."""
    return max((each for each in boxes if each and each != ns and ns.startswith(f"{each}|")), key=len, default="")


def _calls_of_subgraphs(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield each node that is a subgraph, with the input of that subgraph."""
    inputs = {node.ns: n for n, node in enumerate(flow.nodes) if node.kind == "input"}
    for n, node in enumerate(flow.nodes):
        inside = f"{node.ns}|{node.name}" if node.ns else node.name
        if node.kind == "node" and inside in inputs:
            yield n, inputs[inside]


def _ends(flow: Flow, edge: FlowEdge) -> tuple[str, str]:
    """The ids of an edge's ends; an empty one for a channel that is not drawn."""
    if edge.kind == "write":
        return f"n{edge.source}", f"c{edge.target}" if _is_drawn(flow, edge.target) else ""
    if edge.kind == "trigger":
        return f"c{edge.source}" if _is_drawn(flow, edge.source) else "", f"n{edge.target}"
    return f"n{edge.source}", f"n{edge.target}"


def _is_drawn(flow: Flow, channel: int) -> bool:
    found = flow.channels[channel]
    return not found.is_internal or found.name in ("__interrupt__", "__error__")


def _edge_label(edge: FlowEdge) -> str:
    noun = _NOUNS.get(edge.kind)
    count = plural(edge.count, noun) if noun is not None else f"{edge.count:,} times" if edge.count != 1 else "once"
    size = f", {edge.bytes:,} B" if edge.kind == "write" else ""
    return f'"{count}{size}{_when(edge.first_step, edge.last_step)}"'


def _quoted(name: str) -> str:
    """Return a name as a quoted label."""
    shown = _one_line(name) or '""'
    shown = shown if len(shown) <= _MAX_NAME else shown[: _MAX_NAME - 1] + "…"
    plain = {match.start() for match in _PLAIN.finditer(shown)}
    return '"' + "".join(each if n in plain else f"#{ord(each)};" for n, each in enumerate(shown)) + '"'


def _namespaces(flow: Flow) -> list[str]:
    """The namespaces of nodes and channels, the root first."""
    found = {each.ns for each in flow.nodes} | {each.ns for each in flow.channels}
    return ["", *sorted(found - {""})]
