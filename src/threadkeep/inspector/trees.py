"""Trees of threads that were shown lately, so that scrolling and sliding in a long thread does not draw it again."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from threadkeep import Keep
from threadkeep.engine.history.lanes import LaneStep, lane_steps
from threadkeep.engine.history.show import Tree, short_ids
from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.threads.kept_rows import load_rows_to_show
from threadkeep.engine.threads.thread_rows import ThreadRows
from threadkeep.errors import Missing

_MOST = 4


class DrawnTree(NamedTuple):
    """The tree of a thread, its lanes, and the short ids of its checkpoints, made of these rows."""

    rows: ThreadRows
    tree: Tree
    steps: tuple[LaneStep, ...]
    short: dict[str, str]


class Trees:
    """Reads trees of a Keep that keeps rows, and keeps the last few."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._found: OrderedDict[ThreadKey, DrawnTree] = OrderedDict()

    async def read(self, thread: str, kind: Kind | None) -> DrawnTree:
        """Return the tree of a thread. Missing if it does not exist.

        One round trip, for the thread's own row; three more if the thread has changed, or was not read yet.
        """
        session = self._keep._session  # noqa: SLF001 - the same package
        if kind is None:
            raise Missing(f"thread {thread!r} not found")
        key = session.key(kind, thread)
        rows = await session.runner.arun(lambda: load_rows_to_show(session.heads, key))
        known = self._found.get(key)
        if known is None or known.rows is not rows:
            tree = await self._keep.atree(thread, kind=kind)
            short = short_ids(checkpoint.id for checkpoint in tree.checkpoints)
            known = DrawnTree(rows, tree, tuple(lane_steps(tree)), short)
            self._found[key] = known
        self._found.move_to_end(key)
        while len(self._found) > _MOST:
            self._found.popitem(last=False)
        return known
