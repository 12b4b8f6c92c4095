"""Draw the tree of a thread as rows of characters, one cell for each lane: for terminals and for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.lanes import LaneStep, lane_steps
from threadkeep.engine.history.show import Tree

EMPTY = "  "
"""The cell of a lane that is not in use."""


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
    cells_below: tuple[str, ...] = ()
    """The lanes below it, if its text takes several lines."""


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
        with_checkpoint = (*cells[: step.lane], f"{glyphs.checkpoint} ", *cells[step.lane + 1 :])
        yield TreeRow(with_checkpoint, step.checkpoint, _lane_cells(step.below, width, glyphs))


def _lane_cells(lanes: frozenset[int], width: int, glyphs: Glyphs) -> tuple[str, ...]:
    return tuple(f"{glyphs.down} " if n in lanes else EMPTY for n in range(width))


def _join_cells(step: LaneStep, width: int, glyphs: Glyphs) -> tuple[str, ...]:
    """Return the row on which lanes join into the first of them. The lanes between are crossed."""
    cells, last = list(_lane_cells(step.above, width, glyphs)), step.joins[-1]
    for n in range(step.lane, last):
        cells[n] = (glyphs.across if cells[n] == EMPTY else glyphs.down) + glyphs.across
    for n in step.joins:
        cells[n] = glyphs.merge + glyphs.across
    cells[step.lane], cells[last] = glyphs.branch + glyphs.across, f"{glyphs.corner} "
    return tuple(cells)
