"""Draw the tree of a thread as text, like `git log --graph`: newest first, a lane for each branch.

A subgraph has its own lanes, which start at the checkpoint that called it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.chat import marks
from threadkeep.cli.output import STATUS_STYLES, Hanging, format_time, id_names, one_line, plural
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.show import Tree

_Key = tuple[str, str]
"""A checkpoint's namespace and id."""
_LANE_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
_EMPTY = "  "
_NO_LANES = Text()
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
    cells_below: tuple[str, ...] = ()
    """The lanes below it, if its text takes several lines."""


def terminal_glyphs() -> Glyphs:
    """Return line-drawing characters if the output can encode them, ASCII otherwise."""
    return UNICODE if "utf" in (sys.stdout.encoding or "").lower() else ASCII


def tree_rows(tree: Tree, glyphs: Glyphs) -> Iterator[TreeRow]:
    """Yield the rows of a tree from top to bottom. Each lane waits for the checkpoint that it leads to."""
    below = _drawn_parents(tree)
    lanes: list[_Key | None] = []
    ended = -1
    for checkpoint in tree.checkpoints:
        key = (checkpoint.ns, checkpoint.id)
        waiting = [n for n, expected in enumerate(lanes) if expected == key]
        if len(waiting) > 1:
            yield TreeRow(_join_cells(lanes, waiting, glyphs))
            for n in waiting[1:]:
                lanes[n] = None
        lane = waiting[0] if waiting else _free_lane(lanes)
        if not waiting and lane == ended:
            yield TreeRow(_lane_cells(lanes, glyphs))  # separates this root from the one that ended above it
        lanes[lane] = key
        cells = _lane_cells(lanes, glyphs)
        lanes[lane] = below.get(key)
        with_checkpoint = (*cells[:lane], f"{glyphs.checkpoint} ", *cells[lane + 1 :])
        yield TreeRow(with_checkpoint, checkpoint, _lane_cells(lanes, glyphs))
        ended = lane if lanes[lane] is None else -1


def _drawn_parents(tree: Tree) -> dict[_Key, _Key]:
    """Return the parent of each checkpoint, or the caller of a subgraph, if that is drawn below it."""
    order = {(each.ns, each.id): n for n, each in enumerate(tree.checkpoints)}
    found = {}
    for checkpoint in tree.checkpoints:
        key = (checkpoint.ns, checkpoint.id)
        parent_id = tree.before(checkpoint)
        parent = (checkpoint.ns, parent_id) if parent_id is not None else _caller(checkpoint)
        if parent is not None and order.get(parent, -1) > order[key]:
            found[key] = parent
    return found


def _caller(checkpoint: CheckpointInfo) -> _Key | None:
    """Return the checkpoint that called this subgraph: of its `parents`, the one in the innermost namespace."""
    ns, parents = checkpoint.ns, checkpoint.metadata.get("parents")
    if not (ns and isinstance(parents, Mapping)):
        return None
    callers = [(outer, id) for outer, id in parents.items() if isinstance(id, str) and outer != ns]
    return max((key for key in callers if ns.startswith(key[0])), key=lambda key: len(key[0]), default=None)


def _free_lane(lanes: list[_Key | None]) -> int:
    if None not in lanes:
        lanes.append(None)
    return lanes.index(None)


def _lane_cells(lanes: Sequence[_Key | None], glyphs: Glyphs) -> tuple[str, ...]:
    return tuple(_EMPTY if expected is None else f"{glyphs.down} " for expected in lanes)


def _join_cells(lanes: Sequence[_Key | None], waiting: list[int], glyphs: Glyphs) -> tuple[str, ...]:
    """Return the row on which lanes join into the first of them. The lanes between are crossed."""
    cells = list(_lane_cells(lanes, glyphs))
    for n in range(waiting[0], waiting[-1]):
        cells[n] = (glyphs.across if cells[n] == _EMPTY else glyphs.down) + glyphs.across
    for n in waiting:
        cells[n] = glyphs.merge + glyphs.across
    cells[waiting[0]], cells[waiting[-1]] = glyphs.branch + glyphs.across, f"{glyphs.corner} "
    return tuple(cells)


def tree_lines(tree: Tree, *, last: int | None = None, full_ids: bool = False) -> Iterator[RenderableType]:
    """Render a tree for the terminal: its last checkpoints, or all."""
    names = id_names((checkpoint.id for checkpoint in tree.checkpoints), full_ids=full_ids)
    latest = latest_of(tree.checkpoints)
    count = len(tree.checkpoints) if last is None else min(last, len(tree.checkpoints))
    rows = list(_first_rows(tree, count))
    width = min(max((len(row.cells) for row in rows), default=0), _MOST_PADDING)
    for row in rows:
        lanes = _lanes_text(row.cells, width)
        if row.checkpoint is None:
            lanes.rstrip()
            yield lanes
        else:
            yield checkpoint_line(
                row.checkpoint, names, latest, lanes=lanes, lanes_below=_lanes_text(row.cells_below, width)
            )
    if count < len(tree.checkpoints):
        yield hidden_line(len(tree.checkpoints) - count, len(tree.checkpoints))


def _first_rows(tree: Tree, count: int) -> Iterator[TreeRow]:
    """Yield the rows of the newest checkpoints."""
    for row in tree_rows(tree, terminal_glyphs()):
        count -= row.checkpoint is not None
        if count < 0:
            return
        yield row


def hidden_line(hidden: int, count: int) -> Text:
    """Return the line that says how many checkpoints are not printed, and how to print them."""
    return Text(f"… {plural(hidden, 'earlier checkpoint')}: --last {count} prints all", "dim")


def _lanes_text(cells: Sequence[str], width: int) -> Text:
    text = Text()
    for n, cell in enumerate(cells):
        text.append(cell, _LANE_STYLES[n % len(_LANE_STYLES)])
    return text.append(_EMPTY * (width - len(cells)))


def latest_of(checkpoints: Sequence[CheckpointInfo]) -> CheckpointInfo | None:
    """Return the latest checkpoint of a thread, of these that are sorted from the newest on."""
    root = (checkpoint for checkpoint in checkpoints if not checkpoint.ns)
    return next(root, checkpoints[0] if checkpoints else None)


def checkpoint_line(
    checkpoint: CheckpointInfo,
    names: Mapping[str, str],
    latest: CheckpointInfo | None,
    *,
    lanes: Text = _NO_LANES,
    lanes_below: Text = _NO_LANES,
    more: Text = _NO_LANES,
) -> Hanging:
    """Render a checkpoint on one line, or on more lines that keep its column; `names` has the ids to print."""
    step = "" if checkpoint.step is None else checkpoint.step
    fixed = Text.assemble(lanes, (one_line(names[checkpoint.id]), "yellow"))
    fixed.append(f" {step:>3} {one_line(checkpoint.source or '-'):<6}")
    fixed.append(f"  {format_time(checkpoint.time)}", "dim")
    text = marks(checkpoint, is_latest=checkpoint == latest)
    if checkpoint.interrupted:
        text.append("  interrupt", STATUS_STYLES["interrupted"])
    if checkpoint.failed:
        text.append("  error", STATUS_STYLES["error"])
    if checkpoint.damaged is not None:
        text.append("  damaged", "bold red")
    if checkpoint.ns:
        text.append(f"  {_short_namespace(checkpoint.ns)}", "magenta")
    if checkpoint.nodes:
        text.append(f"  {terminal_glyphs().arrow} {one_line(', '.join(checkpoint.nodes))}", "green")
    if checkpoint.forked_from is not None:
        text.append(f"  (from {one_line(names.get(checkpoint.forked_from, checkpoint.forked_from))})", "dim")
    text.append_text(more)
    if text:
        fixed.append("  ")
    below = lanes_below.copy().append(" " * (fixed.cell_len - lanes_below.cell_len))
    return Hanging(fixed, text[2:], below)


def _short_namespace(ns: str) -> str:
    """Return a namespace with its task ids cut to eight characters."""
    calls = (call.partition(":") for call in ns.split("|"))
    return one_line("|".join(f"{name}{colon}{id[:8]}" for name, colon, id in calls))
