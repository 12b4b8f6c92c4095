"""Optimistic commits: read a thread, decide, commit; after a Conflict, read and decide again.

No transaction spans two round trips. A change names the (epoch, rev) of the thread that it was decided on, and the
storage makes it only if the thread is still at these. Otherwise it raises Conflict, and nothing happened. A Conflict
can also mean that the change was made and its reply was lost. So before a verb decides again, it looks for what its
earlier tries made.

    retry              run a plan until it raises no Conflict, other than those of leases (`engine.lease`)
    load_items         read items of a thread that was read before; Conflict if it was pruned since
    read_consistently  read in several round trips; start over if the thread was pruned in between
    commit             read, decide, commit: every verb except put and put_writes
    commit_once        send one change that was decided before
    commit_ops         put and put_writes (and a cube's ops): decided on the cached head, no read if that is current
    next_batch         the thread's next row and the new items, as a batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.lease import LEASE_ERRORS, admit, with_lease
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import ItemId, ItemRange, new_tuple
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, ThreadRow
from threadkeep.engine.requests import (
    Batch,
    CachedItems,
    CallersLease,
    Commit,
    CopyThread,
    ForkThread,
    LoadedRows,
    LoadItems,
    Pause,
)
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.errors import Conflict, Corrupt, Unavailable
from threadkeep.plan import Failure, Outcome, Plan
from threadkeep.value import Value, field

S = TypeVar("S")
T = TypeVar("T")
ChangeRequest: TypeAlias = Commit | ForkThread | CopyThread
TRIES = 40
_STRIDE = 1 << 32
"""A commit increases the revision by a random number up to this."""


# --- trying again


class _ConnectionLost(Conflict):
    """The connection was lost while a thread was read, so what was read may be of another server."""


async def retry(once: Callable[[int], Plan[T]], what: str, *, tries: int = TRIES) -> T:
    """Run a plan until it raises no Conflict. `once` is called with the number of the try.

    Conflict after the last try; `what` starts its message: "thread 't' was changed by others". Unavailable if the last
    try lost its connection.
    """
    attempt = 0
    while True:
        try:
            return await once(attempt)
        except LEASE_ERRORS:
            raise
        except Conflict as error:
            if attempt + 1 >= tries and isinstance(error, _ConnectionLost):
                raise Unavailable(f"{error}; this was the last of {tries} tries") from error
            await pause(attempt, what, tries=tries)
        attempt += 1


async def pause(attempt: int, what: str, *, tries: int = TRIES) -> None:
    """Wait before the next try: not at all before the second, then longer each time. Conflict if this was the last."""
    if attempt + 1 >= tries:
        raise Conflict(f"{what} at each of {tries} tries")
    if attempt:
        await Pause(attempt)


# --- reading in several round trips


async def read_consistently(key: ThreadKey, read: Callable[[], Plan[T]], *, tries: int = TRIES) -> T:
    """Run a plan that reads a thread in several round trips; start over if the thread was pruned in between."""
    return await retry(lambda _: read(), f"thread {key.id!r} was pruned by others", tries=tries)


async def load_items(
    row: ThreadRow, ranges: Iterable[ItemRange], cached: CachedItems | None = None, *, unchecked: bool = False
) -> LoadedRows:
    """Read items of the thread that this row was read of. One round trip. Conflict if the thread was pruned since.

    With `unchecked`, the thread's row may be damaged.
    """
    loaded = await LoadItems(row.key, tuple(ranges), cached, unchecked=unchecked)
    check_epoch(row, loaded.thread)
    return loaded


async def fill_cache(heads: Heads, head: Head, ranges: Iterable[ItemRange]) -> None:
    """Read the items that the head's cache lacks. One round trip, or none. Conflict as for `load_items`."""
    head.cache.fill(await _load_lacking(heads, head, ranges), head.where, head.family)


async def fill_intact(heads: Heads, head: Head, ranges: Iterable[ItemRange]) -> dict[ItemId, str]:
    """Read the items that the head's cache lacks, as `fill_cache` does, but leave out damaged ones.

    Return these, with what is wrong with each.
    """
    return head.cache.fill_intact(await _load_lacking(heads, head, ranges), head.where, head.family)


async def _load_lacking(heads: Heads, head: Head, ranges: Iterable[ItemRange]) -> Mapping[ItemId, bytes]:
    lacking = head.cache.lacking(itemlog.union(ranges))
    if not lacking:
        return {}
    assert head.row is not None
    loaded = await load_items(head.row, lacking)
    if not heads.is_current(head):
        raise _ConnectionLost(f"the connection was lost while {head.where} was read")
    return loaded.items


def check_epoch(row: ThreadRow | None, now: ThreadRow | None) -> None:
    """Raise Conflict if the thread was pruned or removed since this row was read: its item ids may be gone."""
    if row is None or now is None or now.epoch != row.epoch:
        named = f"thread {row.key.id!r}" if row is not None else "a thread"
        raise Conflict(f"{named} was pruned while it was read")


def check_complete(loaded: LoadedRows) -> None:
    """Raise Corrupt if all rows of a thread were loaded, and there are not as many as its own row counts."""
    missing = missing_rows(loaded)
    if missing is not None:
        raise Corrupt(missing)


def missing_rows(loaded: LoadedRows) -> str | None:
    """Compare the rows of a whole thread with the counters of its own row. Return what is wrong, or None."""
    row = loaded.thread
    if row is None:
        return None
    visible = sum(found.row is not None and not found.row.hidden for found in loaded.checkpoints)
    writes = sum(len(task.index) // 3 for found in loaded.checkpoints for task in found.writes)
    if (visible, writes) == (row.checkpoints, row.writes):
        return None
    return (
        f"thread {row.key.id!r} has {visible} checkpoints and {writes} writes, but its row counts {row.checkpoints} "
        f"and {row.writes}"
    )


# --- a verb


@contextmanager
def dropping_head(heads: Heads, key: ThreadKey) -> Iterator[None]:
    """Drop the cached head of a thread before a change, and again afterwards: a reader may have cached it meanwhile."""
    heads.drop(key)
    try:
        yield
    finally:
        heads.drop(key)


class Seen(Value, Generic[S]):
    """What a verb read: the state that it decides on, and the row and checkpoints of the thread that it changes.

    `row` is None if the thread does not exist. `records` may be empty if the verb sets a new epoch.
    """

    state: S
    row: ThreadRow | None
    records: Mapping[tuple[str, str], CheckpointRecord] = field(default_factory=dict)


class Decision(Value, Generic[T]):
    """The result of a verb, and the request that makes its change; None if there is nothing to do."""

    result: T
    request: ChangeRequest | None = None


async def commit(
    heads: Heads,
    key: ThreadKey,
    read: Callable[[], Plan[Seen[S]]],
    decide: Callable[[Seen[S], int], Decision[T]],
    *,
    source: ThreadKey | None = None,
    tries: int = TRIES,
) -> T:
    """Change a thread: read, decide, send one request; after a Conflict, do all of it again.

    `decide` is pure. It gets what was read and the number of the try, and adds that number to the epoch that it sets,
    so that no two tries set the same. If an earlier try was made although it raised Conflict, its result is returned
    and nothing is decided. `source` is the other thread of a fork or copy, for the error message.

    Makes the round trips of `read`, and one more.
    """
    tried: list[tuple[ChangeRequest, T]] = []

    async def once(attempt: int) -> T:
        seen = await read()
        for request, result in tried:
            if is_made(_batch(request), seen.row, seen.records):
                return result
        decision = decide(seen, attempt)
        if decision.request is not None:
            request = await _admitted(heads, key, seen.row, decision.request)
            tried.append((request, decision.result))
            with dropping_head(heads, key):
                await request
        return decision.result

    named = " or ".join(repr(each.id) for each in (source, key) if each is not None)
    return await retry(once, f"thread {named} was changed by others", tries=tries)


async def _admitted(heads: Heads, key: ThreadKey, row: ThreadRow | None, request: ChangeRequest) -> ChangeRequest:
    """Return a change with the lease that the thread has after it. Raise what `lease.admit` raises."""
    stored = row.lease if row is not None else None
    if stored is None and not heads.has_leases:
        return request
    return with_lease(request, await admit(key, stored, await CallersLease()))


async def commit_once(heads: Heads, request: ChangeRequest) -> None:
    """Send a change that was decided before. Conflict if the thread is no longer as it was then.

    One round trip; another one after a Conflict, to find out whether the change was made and its reply was lost.
    """
    key = _batch(request).thread.key
    request = await _admitted(heads, key, _batch(request).thread, request)
    batch = _batch(request)
    with dropping_head(heads, key):
        try:
            await request
        except Conflict:
            if not is_made(batch, (await LoadItems(key, ())).thread, {}):
                raise


def _batch(request: ChangeRequest) -> Batch:
    return Batch(None, request.thread) if isinstance(request, CopyThread) else request.batch


def is_made(batch: Batch, row: ThreadRow | None, records: Mapping[tuple[str, str], CheckpointRecord]) -> bool:
    """Whether a thread shows that this batch was committed, even if others have changed the thread since.

    It has the epoch that the batch set, or the batch's new checkpoints; or it does not exist, if the batch drops it.
    A batch that does none of these must be harmless to repeat.
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
    """The next state of a thread, to which ops are applied one after the other."""

    head: Head

    def take(self, op: Any) -> Outcome:
        """Apply one op."""

    def remove_lease(self) -> None:
        """Let the change remove the thread's lease."""

    def batch(self) -> Batch | None:
        """Return the change that all ops make together; None if they change nothing."""

    def next_head(self, batch: Batch) -> Head:
        """Return the head after the batch was committed."""


async def commit_ops(
    heads: Heads, key: ThreadKey, ops: Sequence[Any], stage: Callable[[Head | None], Plan[Staged]]
) -> list[Outcome]:
    """Apply ops to the cached head and commit them; after a Conflict, apply them to the thread as it is then.

    Returns one outcome per op. Ops must recognize what they made: the first commit may have been made although its
    reply was lost.
    """
    head = heads.get(key)

    async def once(_: int) -> list[Outcome]:
        nonlocal head
        cached, head = head, None
        try:
            staging = await stage(cached)
            outcomes, is_refused = await _take_all(heads, staging, ops)
            batch = staging.batch()
            if (batch is None or is_refused) and cached is not None:
                heads.drop(key)  # no commit checks that the head is current, so read it
                staging = await stage(None)
                outcomes, _ = await _take_all(heads, staging, ops)
                batch = staging.batch()
            if batch is not None:
                await Commit(batch)
        except BaseException:
            heads.drop(key)  # the outcome is unknown: read before the next write
            raise
        heads.store(staging.next_head(batch) if batch is not None else staging.head)
        return outcomes

    return await retry(once, f"thread {key.id!r} was changed by others")


async def _take_all(heads: Heads, staging: Staged, ops: Sequence[Any]) -> tuple[list[Outcome], bool]:
    """Stage ops. Return the outcome of each, and whether one was refused because of a lease.

    Each is judged by the lease of its own caller, and sees what those before it made of the thread's lease. Those that
    a plan made have the lease of the plan's caller.
    """
    row = staging.head.row
    stored = row.lease if row is not None else None
    if stored is None and not heads.has_leases:
        return [staging.take(op) for op in ops], False
    outcomes: list[Outcome] = []
    is_refused, of_plan = False, await CallersLease()
    for op in ops:
        try:
            left = await admit(staging.head.key, stored, op.lease or of_plan)
        except LEASE_ERRORS as error:
            is_refused = True
            outcomes.append(Failure(error))
            continue
        if left is not stored:
            stored = left
            staging.remove_lease()
        outcomes.append(staging.take(op))
    return outcomes, is_refused


# --- rows


def new_row(key: ThreadKey, time: int, nonce: int) -> ThreadRow:
    """Return the row of a thread that does not exist yet. Its first commit has a revision of 0 or more."""
    return ThreadRow(key, nonce, -1, (), time, time, family=new_family(nonce))


def new_family(nonce: int) -> int:
    """Return the family of a new thread: 32 bits, not 0."""
    return nonce & 0xFFFFFFFF or 1


def copied_row(row: ThreadRow, key: ThreadKey, *, time: int, epoch: int, size: int) -> ThreadRow:
    """Return the row of a new thread that has the content of this one."""
    return row._replace(key=key, epoch=epoch, rev=0, created=time, updated=time, bytes=size, lease=None)


def with_top(row: ThreadRow, top: CheckpointRow | None, status: str, writes: int | None = 0) -> ThreadRow:
    """Return the row with this checkpoint as the newest of the root namespace; None if there is none.

    `writes` is the number of rows of writes on it, None if it is not known.
    """
    if top is None:
        return row._replace(top=None, run=None, step=None, source=None, labels=None, status=status, top_writes=0)
    return row._replace(
        top=top.id, run=top.run, step=top.step, source=top.source, labels=top.labels, status=status, top_writes=writes
    )


def next_revision(row: ThreadRow, nonce: int) -> int:
    """Return the revision after that of a row. It increases by a random number, see `next_batch`."""
    return row.rev + 1 + nonce % _STRIDE


def next_batch(draft: Draft, row: ThreadRow, *, nonce: int, grown: int) -> Batch:
    """Return the batch that makes this the thread's row and stores the draft's new items. The caller adds other rows.

    `grown` is the number of bytes by which those other rows grow. The revision increases by a random number, so
    (epoch, rev) never repeats, not even in a storage that lost its last commits.
    """
    before, items, size = draft.head.row, draft.sealed_items(), grown
    for _, stored in items:
        size += len(stored)
    key, epoch, rev, _, created, updated, checkpoints, writes, _, *rest = row
    rev, nexts = rev + 1 + nonce % _STRIDE, tuple(draft.nexts)  # as `next_revision`
    row = new_tuple(ThreadRow, (key, epoch, rev, nexts, created, updated, checkpoints, writes, size, *rest))
    return Batch((before.epoch, before.rev) if before is not None else None, row, items)


def next_head(draft: Draft, batch: Batch, records: Iterable[CheckpointRecord]) -> Head:
    """Return the head after this batch was committed, with these checkpoints among its recent ones."""
    head, row = draft.head, batch.thread
    for at, item in draft.new_items.items():
        head.cache.add(at, item)
    if head.row is not None:
        row = new_tuple(ThreadRow, (*row[:8], head.row.bytes + row.bytes, *row[9:]))
    return Head(head.key, row, draft.names, head.with_recent(records), head.cache)
