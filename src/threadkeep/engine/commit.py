"""Optimistic commits: read a thread, decide, commit; after a Conflict, read and decide again.

No transaction spans two round trips. A change names the (epoch, rev) that it was decided on and is made only if the
thread is still there. Otherwise it is a Conflict, and nothing happened. One's own change can cause a Conflict too: it
was made, but the answer was lost. So a verb looks for what its earlier tries made before it decides again.

    retry              run a plan until it raises no Conflict
    read_consistently  read in several round trips; start over if the thread was pruned in between
    commit             read, decide, commit: every verb except put and put_writes
    commit_ops         put and put_writes (and a cube's ops): decided on the remembered head, no read if that is current
    next_batch         the thread's next row and the new items, as a batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, ThreadRow
from threadkeep.engine.requests import Batch, Commit, CopyThread, ForkThread, Pause
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.errors import Conflict
from threadkeep.plan import Outcome, Plan

S = TypeVar("S")
T = TypeVar("T")
TRIES = 40
_STRIDE = 1 << 32
"""A commit increases the revision by a random number up to this."""


# --- trying again


async def retry(once: Callable[[int], Plan[T]], what: str, *, tries: int = TRIES) -> T:
    """Run a plan, given the number of the try, until it raises no Conflict.

    Conflict after the last try; `what` begins its message: "thread 't' was changed by others".
    """
    attempt = 0
    while True:
        try:
            return await once(attempt)
        except Conflict:
            await pause(attempt, what, tries=tries)
        attempt += 1


async def pause(attempt: int, what: str, *, tries: int = TRIES) -> None:
    """Wait before the next try: not at all before the second, then longer each time. Conflict if this was the last."""
    if attempt + 1 >= tries:
        raise Conflict(f"{what} at each of {tries} tries")
    if attempt:
        await Pause(attempt)


async def read_consistently(key: ThreadKey, read: Callable[[], Plan[T]], *, tries: int = TRIES) -> T:
    """Run a plan that reads a thread in several round trips; start over if it raises Conflict: the thread was pruned."""
    return await retry(lambda _: read(), f"thread {key.id!r} was pruned by others", tries=tries)


@contextmanager
def forgetting(heads: Heads, key: ThreadKey) -> Iterator[None]:
    """Drop the remembered head before a change, and what others remembered while it was under way."""
    heads.forget(key)
    try:
        yield
    finally:
        heads.forget(key)


# --- a verb


@dataclass(frozen=True, slots=True)
class Seen(Generic[S]):
    """What a verb decides on, with the row and the checkpoints of the thread that it changes.

    `row` is None if there is no such thread. `records` may be empty for a verb that draws an epoch.
    """

    state: S
    row: ThreadRow | None
    records: Mapping[tuple[str, str], CheckpointRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """The result of a verb, and the request that makes its change; None if there is nothing to do."""

    result: T
    request: Commit | ForkThread | CopyThread | None = None


async def commit(
    heads: Heads,
    key: ThreadKey,
    read: Callable[[], Plan[Seen[S]]],
    decide: Callable[[Seen[S], int], Decision[T]],
    *,
    source: ThreadKey | None = None,
    tries: int = TRIES,
) -> T:
    """Change a thread: read, decide, send one request; after a Conflict all of it again. The round trips of `read` and one.

    `decide` is pure. It is given what was read and the number of the try, which it adds to the epoch that it draws, so
    that no two tries draw the same. If an earlier try was made although it raised Conflict, its result is returned and
    nothing is decided. `source` is the other thread of a fork or copy, for the error message.
    """
    tried: list[Decision[T]] = []

    async def once(attempt: int) -> T:
        seen = await read()
        for earlier in tried:
            if is_made(_batch(earlier), seen.row, seen.records):
                return earlier.result
        decision = decide(seen, attempt)
        if decision.request is not None:
            tried.append(decision)
            with forgetting(heads, key):
                await decision.request
        return decision.result

    named = " or ".join(repr(each.id) for each in (source, key) if each is not None)
    return await retry(once, f"thread {named} was changed by others", tries=tries)


def _batch(decision: Decision[Any]) -> Batch:
    request = decision.request
    assert request is not None
    return Batch(None, request.thread) if isinstance(request, CopyThread) else request.batch


def is_made(batch: Batch, row: ThreadRow | None, records: Mapping[tuple[str, str], CheckpointRecord]) -> bool:
    """Whether a thread shows that this batch was committed, even if others have changed the thread since.

    It has the epoch that the batch drew, or its new checkpoints; or it is gone, if the batch ends it. A batch that has
    none of these must be harmless to repeat.
    """
    if row is None:
        return batch.drops_thread
    if (row.epoch, row.rev) == (batch.thread.epoch, batch.thread.rev):
        return True
    if batch.expect is None or batch.expect[0] != batch.thread.epoch:
        return row.epoch == batch.thread.epoch
    found = (records.get((new.ns, new.id)) for new in batch.new_checkpoints)
    pairs = list(zip(found, batch.new_checkpoints, strict=True))
    return bool(pairs) and all(there is not None and there.row == new for there, new in pairs)


# --- ops


class Staged(Protocol):
    """What ops make of a thread, one after the other."""

    head: Head

    def take(self, op: Any) -> Outcome:
        """Stage one op."""

    def batch(self) -> Batch | None:
        """The change as a whole, or None if there is none."""

    def next_head(self, batch: Batch) -> Head:
        """The head that the batch made."""


async def commit_ops(
    heads: Heads, key: ThreadKey, ops: Sequence[Any], stage: Callable[[Head | None], Plan[Staged]]
) -> list[Outcome]:
    """Stage ops on the remembered head and commit them; after a Conflict, on the thread as it is then.

    One outcome for each op. Ops must recognise their own work: the first commit may have been made and its answer lost.
    """
    head = heads.get(key)

    async def once(_: int) -> list[Outcome]:
        nonlocal head
        remembered, head = head, None
        try:
            staging = await stage(remembered)
            outcomes = [staging.take(op) for op in ops]
            batch = staging.batch()
            if batch is None and remembered is not None:  # no commit checks that the head is current, so read it
                heads.forget(key)
                staging = await stage(None)
                outcomes = [staging.take(op) for op in ops]
                batch = staging.batch()
            if batch is not None:
                await Commit(batch)
        except BaseException:
            heads.forget(key)  # the outcome is unknown: read before the next write
            raise
        heads.remember(staging.next_head(batch) if batch is not None else staging.head)
        return outcomes

    return await retry(once, f"thread {key.id!r} was changed by others")


# --- rows


def new_row(key: ThreadKey, time: int, nonce: int) -> ThreadRow:
    """The row of a thread that does not exist yet. Its first commit has a revision of 0 or more."""
    return ThreadRow(key, nonce, -1, (), time, time)


def copied_row(row: ThreadRow, key: ThreadKey, *, time: int, epoch: int, size: int) -> ThreadRow:
    """The row of a new thread that takes over this one's content."""
    return row._replace(key=key, epoch=epoch, rev=0, created=time, updated=time, bytes=size, lease=None)


def with_top(row: ThreadRow, top: CheckpointRow | None, status: str) -> ThreadRow:
    """The row when this checkpoint is the newest of the root namespace; None if there is none."""
    if top is None:
        return row._replace(top=None, run=None, step=None, source=None, labels=None, status=status)
    return row._replace(top=top.id, run=top.run, step=top.step, source=top.source, labels=top.labels, status=status)


def next_batch(draft: Draft, row: ThreadRow, *, nonce: int, grown: int) -> Batch:
    """The change from the draft's head to this row, with the draft's new items. The caller adds the other rows.

    `grown` is how many bytes those take more than before. The revision increases by a random number, so that
    (epoch, rev) never comes back, not even in a storage that lost its last commits.
    """
    before, items = draft.head.row, draft.sealed()
    size = grown + sum(len(stored) for _, stored in items)
    row = row._replace(rev=row.rev + 1 + nonce % _STRIDE, nexts=tuple(draft.nexts), bytes=size)
    return Batch((before.epoch, before.rev) if before else None, row, items=items)


def next_head(draft: Draft, batch: Batch, records: Iterable[CheckpointRecord]) -> Head:
    """The head after this batch was committed; it remembers these checkpoints."""
    head = draft.head
    for at, item in draft.new_items.items():
        head.cache.add(at, item)
    row = batch.thread._replace(bytes=(head.row.bytes if head.row else 0) + batch.thread.bytes)
    return Head(head.key, row, tuple(draft.names), head.with_recent(records), head.cache)
