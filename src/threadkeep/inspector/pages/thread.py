"""A thread: its checkpoints as a tree in lanes, in three zoom levels, a slice at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.lanes import LaneStep
from threadkeep.engine.history.show import Tree
from threadkeep.engine.threads.retention import TAGS
from threadkeep.errors import Missing
from threadkeep.inspector import time_axis
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters
from threadkeep.inspector.trees import DrawnTree

VIEWS = ("compact", "timeline", "full")
SLICE = 100
"""How many checkpoints are sent at a time."""
_MOST_LANES = 12
"""More lanes than this are drawn on top of each other, at the right."""


class Row(NamedTuple):
    """A checkpoint in the picture: its outcome, its tags, the lanes, and in the timeline its bar."""

    info: CheckpointInfo
    short: str
    outcome: str
    tags: tuple[str, ...]
    is_latest: bool
    lanes: Lanes
    bar: time_axis.Bar | None = None


class Lanes(NamedTuple):
    """What is drawn left of a checkpoint: where lines pass, end, join, and go on."""

    lane: int
    through: tuple[int, ...]
    joins: tuple[int, ...]
    from_above: bool
    to_below: bool


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show a slice of the tree: from a number on, or around a checkpoint. Up to eight round trips; no state is read."""
    place = await shown.place(query)
    info = await shown.keep.athread(place.thread, kind=place.kind)
    if info is None:
        raise Missing(f"thread {place.thread!r} not found")
    drawn = await shown.trees.read(place.thread, place.kind)
    tree, steps = drawn.tree, drawn.steps
    view = query.text("view", VIEWS[0])
    if view not in VIEWS:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, not {view!r}")
    first = _first_row(tree, query, place.ns, place.id)
    chosen = steps[first : first + SLICE]
    rows = _rows(drawn, chosen, info.status)
    if view == "timeline":
        rows = [row._replace(bar=bar) for row, bar in zip(rows, time_axis.bars(tree, rows), strict=True)]
    end = first + len(chosen)
    return {
        "place": place,
        "thread": info,
        "rows": rows,
        "view": view,
        "views": VIEWS,
        "lanes": min(max((step.width for step in steps), default=1), _MOST_LANES),
        "first": first,
        "slice": SLICE,
        "newer": max(first - SLICE, 0) if first else None,
        "older": end if end < len(steps) else None,
        "total": len(steps),
        "namespaces": len(tree.roots),
        "snippet": shown.snippet("tree", place.thread, kind=place.kind),
    }


def _first_row(tree: Tree, query: QueryParameters, ns: str, id: str | None) -> int:
    """The number of the first row to show: the start of the slice that a number or a checkpoint is in."""
    if id is None or query.optional("from") is not None:
        return query.number("from") // SLICE * SLICE
    at = next((n for n, each in enumerate(tree.checkpoints) if (each.ns, each.id) == (ns, id)), 0)
    return at // SLICE * SLICE


def _rows(drawn: DrawnTree, steps: Sequence[LaneStep], status: str) -> list[Row]:
    tree = drawn.tree
    latest = next((each.id for each in tree.checkpoints if not each.ns), None)
    found = []
    for step in steps:
        info = step.checkpoint
        is_latest = not info.ns and info.id == latest
        found.append(
            Row(
                info,
                drawn.short[info.id],
                status if is_latest else _outcome(tree, info),
                tuple(str(info.metadata[name]) for name in TAGS if info.metadata.get(name)),
                is_latest,
                _lanes(step),
            )
        )
    return found


def _outcome(tree: Tree, info: CheckpointInfo) -> str:
    """What became of a checkpoint. One that has writes but no child is in the middle of its step."""
    if info.damaged is not None:
        return "damaged"
    if info.failed or info.interrupted:
        return "error" if info.failed else "interrupted"
    has_child = info.id in tree.children.get(info.ns, {})
    return "pending" if info.writes and not has_child else "idle"


def _lanes(step: LaneStep) -> Lanes:
    drawn = {lane: min(lane, _MOST_LANES - 1) for lane in (step.lane, *step.above, *step.below)}
    through = {drawn[lane] for lane in step.above & step.below if lane != step.lane and lane not in step.joins}
    return Lanes(
        lane=drawn[step.lane],
        through=tuple(sorted(through)),
        joins=tuple(drawn[lane] for lane in step.joins),
        from_above=step.lane in step.above,
        to_below=step.lane in step.below,
    )
