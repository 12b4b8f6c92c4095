"""Draw the tree of a thread as text, like `git log --graph`: newest first, a lane for each branch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rich.text import Text

from threadkeep.cli.output import format_time, one_line
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.lanes import LaneStep, lane_steps
from threadkeep.engine.history.show import Tree, short_ids

_LANE_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
_EMPTY = "  "
_MOST_PADDING = 8
"""Text after the lanes is aligned up to this number of lanes."""


class Glyphs(NamedTuple):
    """The characters of a drawing."""

    checkpoint: str
    down: str
    branch: str
    across: str
    corner: str
    merge: str
    arrow: str


UNICODE = Glyphs("●", "│", "├", "─", "╯", "┴", "→")
ASCII = Glyphs("*", "|", "|", "-", "'", "'", "->")


class TreeRow(NamedTuple):
    """A row of the drawing: a cell for each lane, and the checkpoint on this row, if there is one."""

    cells: tuple[str, ...]
    checkpoint: CheckpointInfo | None = None


def terminal_glyphs() -> Glyphs:
    """Return line-drawing characters if the output can encode them, ASCII otherwise."""
    return UNICODE if "utf" in (sys.stdout.encoding or "").lower() else ASCII


def tree_rows(tree: Tree, glyphs: Glyphs) -> Iterator[TreeRow]:
    """Yield the rows of a tree from top to bottom."""
    width = 0
    for step in lane_steps(tree):
        width = max(width, *(lane + 1 for lane in step.above | {0}))
        if step.joins:
            yield TreeRow(_join_cells(step, width, glyphs))
        if step.apart:
            yield TreeRow(_lane_cells(step.above, width, glyphs))  # separates this root from the one that ended above
        width = max(width, step.lane + 1)
        cells = _lane_cells(step.above.difference(step.joins), width, glyphs)
        yield TreeRow((*cells[: step.lane], f"{glyphs.checkpoint} ", *cells[step.lane + 1 :]), step.checkpoint)


def _lane_cells(lanes: frozenset[int], width: int, glyphs: Glyphs) -> tuple[str, ...]:
    return tuple(f"{glyphs.down} " if n in lanes else _EMPTY for n in range(width))


def _join_cells(step: LaneStep, width: int, glyphs: Glyphs) -> tuple[str, ...]:
    """Return the row on which lanes join into the first of them. The lanes between are crossed."""
    cells, last = list(_lane_cells(step.above, width, glyphs)), step.joins[-1]
    for n in range(step.lane, last):
        cells[n] = (glyphs.across if cells[n] == _EMPTY else glyphs.down) + glyphs.across
    for n in step.joins:
        cells[n] = glyphs.merge + glyphs.across
    cells[step.lane], cells[last] = glyphs.branch + glyphs.across, f"{glyphs.corner} "
    return tuple(cells)


def tree_lines(tree: Tree) -> Iterator[Text]:
    """Render a tree for the terminal."""
    short = short_ids(checkpoint.id for checkpoint in tree.checkpoints)
    rows = list(tree_rows(tree, terminal_glyphs()))
    width = min(max((len(row.cells) for row in rows), default=0), _MOST_PADDING)
    for row in rows:
        text = _lanes_text(row, width)
        if row.checkpoint is not None:
            text.append_text(checkpoint_line(row.checkpoint, short))
        text.rstrip()
        yield text


def _lanes_text(row: TreeRow, width: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for n, cell in enumerate(row.cells):
        text.append(cell, _LANE_STYLES[n % len(_LANE_STYLES)])
    return text.append(_EMPTY * (width - len(row.cells)))


def checkpoint_line(checkpoint: CheckpointInfo, short: Mapping[str, str]) -> Text:
    """Render a checkpoint on one line; `short` maps ids to short ids."""
    text = Text(no_wrap=True, overflow="ellipsis")
    step = "" if checkpoint.step is None else checkpoint.step
    text.append(one_line(short[checkpoint.id]), "yellow")
    text.append(f" {step:>3} {one_line(checkpoint.source or '-'):<6}")
    text.append(f"  {format_time(checkpoint.time)}", "dim")
    if checkpoint.ns:
        text.append(f"  {_short_namespace(checkpoint.ns)}", "magenta")
    if checkpoint.nodes:
        text.append(f"  {terminal_glyphs().arrow} {one_line(', '.join(checkpoint.nodes))}", "green")
    if checkpoint.damaged is not None:
        text.append("  damaged", "bold red")
    if checkpoint.forked_from is not None:
        text.append(f"  (from {one_line(short.get(checkpoint.forked_from, checkpoint.forked_from))})", "dim")
    return text


def _short_namespace(ns: str) -> str:
    """Return a namespace with its task ids cut to eight characters."""
    calls = (call.partition(":") for call in ns.split("|"))
    return one_line("|".join(f"{name}{colon}{id[:8]}" for name, colon, id in calls))
