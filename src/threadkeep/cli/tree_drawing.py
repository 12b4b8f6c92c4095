"""Draw the tree of a thread as text, like `git log --graph`: newest first, a lane for each branch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.chat import marks
from threadkeep.cli.output import STATUS_STYLES, Hanging, format_time, id_names, one_line
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.show import Tree
from threadkeep.engine.history.tree_rows import ASCII, EMPTY, UNICODE, Glyphs, TreeRow, tree_rows
from threadkeep.plural import plural

_LANE_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
_NO_LANES = Text()
_MOST_PADDING = 8
"""Text after the lanes is aligned up to this number of lanes."""


def terminal_glyphs() -> Glyphs:
    """Return line-drawing characters if the output can encode them, ASCII otherwise."""
    return UNICODE if "utf" in (sys.stdout.encoding or "").lower() else ASCII


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
    if not tree.checkpoints:
        yield "no checkpoints"
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
    return text.append(EMPTY * (width - len(cells)))


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
