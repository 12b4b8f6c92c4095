"""Trees of threads that were shown lately, so that scrolling and sliding in a long thread does not read it again."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from threadkeep import Keep, ThreadInfo
from threadkeep.engine.history.lanes import LaneStep, lane_steps
from threadkeep.engine.history.show import Tree, short_ids
from threadkeep.engine.identity import Kind
from threadkeep.errors import Missing

_MOST = 4
_FRESH_SECONDS = 10.0
"""A thread that did not change is read again after so long: a tag may be replaced by one of the same length."""


class DrawnTree(NamedTuple):
    """The tree of a thread, its lanes, and the short ids of its checkpoints, as of a state of the thread."""

    thread: ThreadInfo
    tree: Tree
    steps: tuple[LaneStep, ...]
    short: dict[str, str]
    read_at: float


class Trees:
    """Reads trees of a Keep, and keeps the last few."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._found: OrderedDict[tuple[str, str], DrawnTree] = OrderedDict()

    async def read(self, thread: str, kind: Kind | None) -> DrawnTree:
        """Return the tree of a thread. Missing if it does not exist. Three round trips more if it was not read yet."""
        info = await self._keep.athread(thread, kind=kind, titles=False)
        if info is None:
            raise Missing(f"thread {thread!r} not found")
        key = (info.id, info.kind)
        known = self._found.get(key)
        if known is None or known.thread != info or time.monotonic() - known.read_at > _FRESH_SECONDS:
            tree = await self._keep.atree(info.id, kind=info.kind)
            short = short_ids(checkpoint.id for checkpoint in tree.checkpoints)
            known = DrawnTree(info, tree, tuple(lane_steps(tree)), short, time.monotonic())
            self._found[key] = known
        self._found.move_to_end(key)
        while len(self._found) > _MOST:
            self._found.popitem(last=False)
        return known

    def forget(self) -> None:
        """Read everything again, after a change."""
        self._found.clear()
