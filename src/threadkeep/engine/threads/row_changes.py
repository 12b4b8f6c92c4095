"""Change columns of a thread's row that the agents' commits only carry along: its lease, its description.

Items and checkpoints that are cached stay so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from threadkeep.engine.commit import new_row, next_revision, retry
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.lease import is_empty
from threadkeep.engine.log.records import ThreadRow, refuse_encrypted
from threadkeep.engine.requests import Batch, Commit, LoadItems
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.plan import Plan

T = TypeVar("T")
Decide = Callable[[ThreadRow | None], Plan[tuple[Mapping[str, Any] | None, T]]]
"""Gets a thread's row, None if it does not exist. Returns the columns to change, None if none; and a result."""


async def change_row(heads: Heads, key: ThreadKey, decide: Decide[T], time: int, nonce: int) -> T:
    """Change a thread's row, and return the result of `decide`. After a Conflict, both are done again.

    A thread that does not exist is created, at `time`. One that then has nothing but its row is deleted. Nobody's lease
    matters. Two round trips, and those of `decide`.
    """

    async def once(attempt: int) -> T:
        before = (await LoadItems(key, ())).thread
        if before is not None:
            refuse_encrypted(before)  # without keys, the changed row could not be sealed
        columns, result = await decide(before)
        if columns is not None:
            row = before or new_row(key, time, nonce + attempt)
            after = row._replace(rev=next_revision(row, nonce + attempt), bytes=0, **columns)
            expect = (before.epoch, before.rev) if before is not None else None
            is_gone = after.lease is None and is_empty(after)
            try:
                await Commit(Batch(expect, after, drops_thread=is_gone))
            except BaseException:
                heads.drop(key)
                raise
            if is_gone:
                heads.drop(key)
            else:
                _keep_head(heads, row, after._replace(bytes=row.bytes))
        return result

    return await retry(once, f"thread {key.id!r} was changed by others")


def _keep_head(heads: Heads, before: ThreadRow, after: ThreadRow) -> None:
    """Let what is cached of a thread be that of its new row, if it was that of the row before."""
    head = heads.get(before.key)
    heads.drop(before.key)
    if head is not None and head.row is not None and (head.row.epoch, head.row.rev) == (before.epoch, before.rev):
        heads.store(Head(head.key, after, head.names, head.recent, head.cache))
