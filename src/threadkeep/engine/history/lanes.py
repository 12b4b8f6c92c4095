"""Lay out the tree of a thread in lanes, as `git log --graph` does: newest first, a lane for each branch.

A subgraph has its own lanes, which start at the checkpoint that called it. What draws a tree, as text or as a picture,
draws these steps from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.show import Tree

_Key: TypeAlias = tuple[str, str]
"""A checkpoint's namespace and id."""


class LaneStep(NamedTuple):
    """A checkpoint and its `lane`, between the lanes in use `above` and `below` it.

    The lanes in `joins` end here: they come from above and lead to this checkpoint, besides its own. `apart` means that
    a tree which ended in this lane is right above it.
    """

    checkpoint: CheckpointInfo
    lane: int
    above: frozenset[int]
    below: frozenset[int]
    joins: tuple[int, ...] = ()
    apart: bool = False

    @property
    def width(self) -> int:
        """The number of lanes that this step needs."""
        return max((self.lane, *self.above, *self.below)) + 1


def lane_steps(tree: Tree) -> Iterator[LaneStep]:
    """Yield a step for each checkpoint of a tree. Each lane waits for the checkpoint that it leads to."""
    parents = _drawn_parents(tree)
    lanes: list[_Key | None] = []
    ended = -1
    for checkpoint in tree.checkpoints:
        key = (checkpoint.ns, checkpoint.id)
        above = _used(lanes)
        waiting = [n for n, expected in enumerate(lanes) if expected == key]
        for n in waiting[1:]:
            lanes[n] = None
        lane = waiting[0] if waiting else _free_lane(lanes)
        apart = not waiting and lane == ended
        lanes[lane] = parents.get(key)
        ended = lane if lanes[lane] is None else -1
        yield LaneStep(checkpoint, lane, above, _used(lanes), tuple(waiting[1:]), apart)


def _used(lanes: list[_Key | None]) -> frozenset[int]:
    return frozenset(n for n, expected in enumerate(lanes) if expected is not None)


def _free_lane(lanes: list[_Key | None]) -> int:
    if None not in lanes:
        lanes.append(None)
    return lanes.index(None)


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
