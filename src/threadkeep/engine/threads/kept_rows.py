"""Rows of threads that were read lately, for a caller who reads the same thread again and again, as the inspector does.

All rows of a thread of 10,000 checkpoints take 300 ms to read; its own row, which shows whether anything changed, one.
"""

from __future__ import annotations

from collections import OrderedDict

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import LoadItems
from threadkeep.engine.threads.damaged_rows import load_thread_rows
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import ThreadRows

_MOST_THREADS = 4
_MOST_BYTES = 64 << 20
"""Of the items of a thread: with more of them, its rows are read again."""


class KeptRows:
    """The rows of the last few threads. Damaged ones are not kept: somebody may be repairing them."""

    def __init__(self) -> None:
        self._found: OrderedDict[ThreadKey, ThreadRows] = OrderedDict()

    async def load(self, heads: Heads, key: ThreadKey) -> ThreadRows:
        """Return all rows of a thread, as `load_thread_rows` does. One round trip, of one row if nothing changed."""
        known = self._found.get(key)
        if known is None or not await _is_still_so(heads, known):
            self._found.pop(key, None)
            known = await load_thread_rows(heads, key)
            if known.is_damaged or known.incomplete is not None:
                return known
        self._found[key] = known
        self._found.move_to_end(key)
        while len(self._found) > _MOST_THREADS:
            self._found.popitem(last=False)
        return known


async def load_rows_to_show(heads: Heads, key: ThreadKey) -> ThreadRows:
    """Return all rows of a thread, for a verb that only shows them: the kept ones, if this Keep keeps any."""
    return await (load_thread_rows(heads, key) if heads.kept_rows is None else heads.kept_rows.load(heads, key))


async def _is_still_so(heads: Heads, known: ThreadRows) -> bool:
    row = known.head.row
    if row is None or known.head.cache.size > _MOST_BYTES or not heads.is_current(known.head):
        return False
    now = (await LoadItems(known.key, (), known.head.cached_items())).thread
    return now is not None and (now.epoch, now.rev) == (row.epoch, row.rev)
