"""Lay out the data flow of a thread as a picture: nodes at the left, channels at the right, and what went between.

Nodes are in order of first appearance, one below the other. What came next is an arc at their left; what was written is
a line to the channel, the wider the more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from threadkeep.engine.history.flow import Flow, FlowChannel, FlowEdge, FlowNode

WIDTH, ROW = 860, 44
_LEFT, _RIGHT, _BOX = 190, 640, 200
"""Where the boxes of nodes and of channels begin, and how wide they are."""
_NEXT = ("next", "send", "call")
_WIDEST = 6.0


class Box(NamedTuple):
    """A node or a channel, and where the middle of its left edge is."""

    what: FlowNode | FlowChannel
    x: int
    y: int


class DrawnEdge(NamedTuple):
    """Something that went from one box to another: its path, and how wide it is drawn."""

    edge: FlowEdge
    path: str
    width: float


class Picture(NamedTuple):
    """Everything that is drawn, in a space that is `WIDTH` wide."""

    nodes: tuple[Box, ...]
    channels: tuple[Box, ...]
    lines: tuple[DrawnEdge, ...]
    height: int


def picture(flow: Flow) -> Picture:
    """Return the picture of a flow, without LangGraph's own channels."""
    shown = [n for n, channel in enumerate(flow.channels) if not channel.is_internal]
    rows = max(len(flow.nodes), len(shown))
    nodes = _column(flow.nodes, _LEFT, rows)
    channels = dict(zip(shown, _column([flow.channels[n] for n in shown], _RIGHT, rows), strict=True))
    most = max((edge.count for edge in flow.edges), default=1)
    lines = []
    for edge in flow.edges:
        width = 1 + (_WIDEST - 1) * edge.count / most
        if edge.kind in _NEXT:
            lines.append(DrawnEdge(edge, _arc(nodes[edge.source], nodes[edge.target]), width))
        elif edge.kind == "write" and edge.target in channels:
            lines.append(DrawnEdge(edge, _curve(nodes[edge.source], channels[edge.target]), width))
    return Picture(nodes, tuple(channels.values()), tuple(lines), rows * ROW)


def _column(boxes: Sequence[FlowNode] | Sequence[FlowChannel], x: int, rows: int) -> tuple[Box, ...]:
    """Boxes below one another, spread over the height of the picture."""
    space = rows * ROW / len(boxes) if boxes else 0
    return tuple(Box(boxes[n], x, round((n + 0.5) * space)) for n in range(len(boxes)))


def _arc(source: Box, target: Box) -> str:
    """An arc at the left of the nodes; the further they are apart, the wider."""
    out = min(30 + abs(target.y - source.y) // 2, _LEFT - 10)
    start, end = source.y + 7, target.y - 7
    return f"M{source.x} {start} C{source.x - out} {start} {source.x - out} {end} {source.x} {end}"


def _curve(source: Box, target: Box) -> str:
    start, middle = source.x + _BOX, (source.x + _BOX + target.x) // 2
    return f"M{start} {source.y} C{middle} {source.y} {middle} {target.y} {target.x} {target.y}"
