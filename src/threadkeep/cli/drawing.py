"""The tree of a thread as lines of text, as `git log --graph` has it: newest on top, a lane for each branch.

A subgraph has lanes of its own, which begin at the checkpoint that called it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from threadkeep.cli.output import line, moment
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.show import Tree, short_ids

_Place = tuple[str, str]
_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
_SPACE = "  "


class Glyphs(NamedTuple):
    """What a tree is drawn with."""

    checkpoint: str
    down: str
    joined: str
    across: str
    turn: str
    also: str
    arrow: str


UNICODE = Glyphs("●", "│", "├", "─", "╯", "┴", "→")
ASCII = Glyphs("*", "|", "|", "-", "'", "'", "->")


class TreeLine(NamedTuple):
    """A line of the tree: what each lane shows, and the checkpoint that stands there, if any."""

    cells: tuple[str, ...]
    step: CheckpointInfo | None = None


def glyphs() -> Glyphs:
    """Lines where the terminal can show them."""
    return UNICODE if "utf" in (sys.stdout.encoding or "").lower() else ASCII


def rows(tree: Tree, drawn: Glyphs) -> Iterator[TreeLine]:
    """The lines of a tree."""
    above = _above(tree)
    lanes: list[_Place | None] = []
    ended = -1
    for step in tree.checkpoints:
        place = (step.ns, step.id)
        waiting = [at for at, expected in enumerate(lanes) if expected == place]
        if len(waiting) > 1:
            yield TreeLine(_joining(lanes, waiting, drawn))
            for at in waiting[1:]:
                lanes[at] = None
        at = waiting[0] if waiting else _free(lanes)
        if not waiting and at == ended:
            yield TreeLine(_passing(lanes, drawn))  # what ended above is not what begins here
        lanes[at] = place
        cells = _passing(lanes, drawn)
        yield TreeLine((*cells[:at], f"{drawn.checkpoint} ", *cells[at + 1 :]), step)
        lanes[at] = above.get(place)
        ended = at if lanes[at] is None else -1


def _above(tree: Tree) -> dict[_Place, _Place]:
    """What each checkpoint hangs on, if that is drawn below it."""
    order = {(step.ns, step.id): n for n, step in enumerate(tree.checkpoints)}
    found = {}
    for step in tree.checkpoints:
        before = tree.before(step)
        above = (step.ns, before) if before is not None else _caller(step)
        if above is not None and order.get(above, -1) > order[(step.ns, step.id)]:
            found[(step.ns, step.id)] = above
    return found


def _caller(step: CheckpointInfo) -> _Place | None:
    """The checkpoint that a subgraph was called from."""
    parents = step.metadata.get("parents")
    if not (step.ns and isinstance(parents, Mapping)):
        return None
    known = [(ns, id) for ns, id in parents.items() if isinstance(id, str) and ns != step.ns and step.ns.startswith(ns)]
    return max(known, key=lambda place: len(place[0]), default=None)


def _free(lanes: list[_Place | None]) -> int:
    if None not in lanes:
        lanes.append(None)
    return lanes.index(None)


def _passing(lanes: Sequence[_Place | None], drawn: Glyphs) -> tuple[str, ...]:
    return tuple(_SPACE if expected is None else f"{drawn.down} " for expected in lanes)


def _joining(lanes: Sequence[_Place | None], waiting: list[int], drawn: Glyphs) -> tuple[str, ...]:
    """Lanes that come together in the first of them; others are crossed."""
    cells = list(_passing(lanes, drawn))
    for n in range(waiting[0], waiting[-1]):
        cells[n] = (drawn.across if cells[n] == _SPACE else drawn.down) + drawn.across
    for n in waiting:
        cells[n] = drawn.also + drawn.across
    cells[waiting[0]], cells[waiting[-1]] = drawn.joined + drawn.across, f"{drawn.turn} "
    return tuple(cells)


def lines(tree: Tree) -> Iterator[Text]:
    """The tree for a terminal."""
    drawn = glyphs()
    short = short_ids(step.id for step in tree.checkpoints)
    every = list(rows(tree, drawn))
    width = min(max((len(row.cells) for row in every), default=0), 8)
    for row in every:
        text = _graph(row, width)
        if row.step is not None:
            text.append_text(told(row.step, short))
        text.rstrip()
        yield text


def _graph(row: TreeLine, width: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for n, cell in enumerate(row.cells):
        text.append(cell, _STYLES[n % len(_STYLES)])
    return text.append(_SPACE * (width - len(row.cells)))


def told(step: CheckpointInfo, short: Mapping[str, str]) -> Text:
    """A checkpoint in a line."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(line(short[step.id]), "yellow")
    text.append(f" {'' if step.step is None else step.step:>3} {line(step.source or '-'):<6}")
    text.append(f"  {moment(step.time)}", "dim")
    if step.ns:
        text.append(f"  {space(step.ns)}", "magenta")
    if step.nodes:
        text.append(f"  {glyphs().arrow} {line(', '.join(step.nodes))}", "green")
    if step.forked_from is not None:
        text.append(f"  (from {line(short.get(step.forked_from, step.forked_from))})", "dim")
    return text


def space(ns: str) -> str:
    """A namespace, short: of the id of each call its first characters."""
    calls = (call.partition(":") for call in ns.split("|"))
    return line("|".join(f"{name}{colon}{id[:8]}" for name, colon, id in calls))
