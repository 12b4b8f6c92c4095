"""The requests that plans make about threads. Every backend answers them; this file states the guarantees.

A request is one round trip and sees, or makes, one consistent state. A backend answers with rows: it decides nothing
and decodes no values. It stores each thread's row with its checksum. Where it reads one for a thread, it raises Corrupt
if the row does not match its checksum or is that of another thread (`records.checked_thread`), except in ListThreads
and in the requests of `verify`. If the storage cannot be reached, the request raises; it never returns an empty reply
instead.

    read     LoadCheckpoints, LoadSeveral, LoadItems, LoadSeveralItems, MeasureItems, LoadAncestors,
             LoadThreadRows, ScanCheckpoints, ListThreads, FindThreadsOfRuns, ReadClock
    write    Commit, CopyThread, ForkThread, DropThread: each is atomic
    wait     Pause
    caller   CallersLease

`engine.memories.requests` and `engine.health.requests` have those about memories and damaged rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.errors import Corrupt
from threadkeep.plan import IDEMPOTENT_WRITE, NO_ACCESS, READ, READ_ONE_STATEMENT, WRITE, Access, Request
from threadkeep.value import Value, field

MALFORMED_ROW_ERRORS = (IndexError, ValueError, KeyError, TypeError, AttributeError, OverflowError, Corrupt)
"""What decoding a malformed row may raise."""


def is_hidden(thread: ThreadRow | None) -> bool:
    """Whether a thread is not there, or encrypted, so that a caller without keys can read nothing of it."""
    return thread is None or thread.sealed is not None


class CachedItems(Value):
    """What the caller has cached, and a reply may leave out: these items of this epoch, the first `names` names."""

    epoch: int
    names: int
    items: ItemCache


class CheckpointRef(Value):
    """Names a checkpoint: the one of this id, or the latest visible one of the namespace if `id` is None.

    `items` says whether to load its items and those of its writes, too.
    """

    ns: str
    id: str | None
    items: bool = True


class CheckpointRows(Value):
    """The row of a checkpoint, None if it does not exist, and the rows of its writes, which may exist without it."""

    row: CheckpointRow | None
    writes: tuple[WriteRow, ...]


def ranges_of(found: CheckpointRows, nexts: Sequence[int]) -> list[ItemRange]:
    """Return all item ranges that a checkpoint and its writes refer to, as far as the thread has had such items.

    A damaged row may name billions of items. It is refused when its checksum is compared, which a backend does not do.
    """
    ranges: list[ItemRange] = []
    lanes = len(nexts)
    for row in (found.row, *found.writes):
        if row is not None:
            for ref in row.refs:
                lane, start, length = ref
                if 0 <= lane < lanes and start >= 0 and 0 <= length <= nexts[lane] - start:
                    ranges.append(ref)
    return ranges


class LoadedRows(Value):
    """Rows of one consistent state. `items` has stored bytes by id, among them the rows' names, range lists and labels.

    If the thread does not exist, `thread` is None and everything else is empty.
    """

    thread: ThreadRow | None
    checkpoints: tuple[CheckpointRows, ...] = ()
    items: dict[ItemId, bytes] = field(default_factory=dict)
    stored: tuple[ItemRange, ...] = ()


class LoadCheckpoints(Request[LoadedRows]):
    """Load checkpoints of a thread. The reply's `checkpoints` are in the order of `wanted`."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    wanted: tuple[CheckpointRef, ...]
    cached: CachedItems | None = None


class LoadSeveral(Request[tuple[LoadedRows, ...]]):
    """Load checkpoints of several threads: one reply for each of `loads`, in order.

    Each thread is in one consistent state, but not all of them in the same. The threads must differ. Corrupt if one of
    them is damaged.
    """

    access: ClassVar[Access] = READ
    loads: tuple[LoadCheckpoints, ...]

    def says_nothing(self, reply: tuple[LoadedRows, ...]) -> bool:
        """Whether one of the threads is not there, or encrypted."""
        return any(is_hidden(each.thread) for each in reply)


class LoadItems(Request[LoadedRows]):
    """Load a thread's row and these items. Items that do not exist are missing from the reply.

    With `unchecked`, a damaged row is not refused: the caller has reported it.
    """

    access: ClassVar[Access] = READ
    key: ThreadKey
    ranges: tuple[ItemRange, ...]
    cached: CachedItems | None = None
    unchecked: bool = False


class ItemsOf(NamedTuple):
    """Names items of a thread, whose row was read before."""

    thread: ThreadRow
    ranges: tuple[ItemRange, ...]


class LoadSeveralItems(Request[tuple[dict[ItemId, bytes], ...]]):
    """Load items of several threads: one reply for each of `loads`, in order. The threads must differ.

    Items that do not exist are missing from it. It is empty if the thread is not at the epoch of its row any more.
    """

    access: ClassVar[Access] = READ
    loads: tuple[ItemsOf, ...]

    def says_nothing(self, reply: tuple[dict[ItemId, bytes], ...]) -> bool:  # noqa: ARG002
        """Return False: it follows a request for the threads' rows."""
        return False


class ItemSizes(NamedTuple):
    """The thread's row, and (lane, n, stored length, first `itemlog.BEGINNING` stored bytes) of each item."""

    thread: ThreadRow | None
    items: tuple[tuple[int, int, int, bytes], ...] = ()


class MeasureItems(Request[ItemSizes]):
    """Measure these items without sending them. Items that do not exist are missing from the reply."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    ranges: tuple[ItemRange, ...]

    def says_nothing(self, reply: ItemSizes) -> bool:
        """Whether the thread is not there, or encrypted."""
        return is_hidden(reply.thread)


class LoadAncestors(Request[LoadedRows]):
    """Load a checkpoint and its ancestors, nearest first, at most `limit` rows. A cycle ends the list.

    Items of values are not loaded, and a backend may leave out what is cached.
    """

    access: ClassVar[Access] = READ
    key: ThreadKey
    ns: str
    id: str
    limit: int
    cached: CachedItems | None = None


class LoadThreadRows(Request[LoadedRows]):
    """Load every checkpoint of a thread, including hidden ones, and writes whose checkpoint does not exist.

    Items of values are not loaded; the reply's `stored` lists which items exist.
    """

    access: ClassVar[Access] = READ
    key: ThreadKey


class ScannedCheckpoint(NamedTuple):
    """A checkpoint that a scan found; `labels` are the stored bytes of its labels, None if they are missing.

    `family` is that of its thread. `damaged` says why its row cannot be read; None if it can. If not, only the
    namespace and id of `row` are known. `thread` is the row of its thread in the same state, and `has_writes` says
    whether there are writes on it; a backend may leave both out, and does if the thread's row is damaged. `sealed` is
    that of its thread, always.
    """

    key: ThreadKey
    row: CheckpointRow
    labels: bytes | None
    family: int = 0
    damaged: str | None = None
    thread: ThreadRow | None = None
    has_writes: bool = True
    sealed: bytes | None = None


def damaged_scan(
    key: ThreadKey, ns: str | None, id: str | None, reason: str, sealed: bytes | None = None
) -> ScannedCheckpoint:
    """Return a scanned checkpoint whose row cannot be read; `sealed` is that of its thread."""
    row = CheckpointRow(ns or "", id or "", None, None, None, None, 0, 0, hidden=False, refs=(), body=b"")
    return ScannedCheckpoint(key, row, None, damaged=reason, sealed=sealed)


class ScanCheckpoints(Request[tuple[ScannedCheckpoint, ...]]):
    """Find checkpoints, ordered by id, descending, then by thread and namespace; at most `limit`.

    Only visible ones, unless `hidden` asks for all.

    `after` is (id, thread, namespace) of the last checkpoint of the page before. `source`, `step`, `run` and `tags` are
    hints: a backend may return rows that do not match them, and the caller filters again.
    """

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    kind: Kind
    limit: int
    thread: str | None = None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    after: tuple[str, str, str] | None = None
    source: str | None = None
    step: int | None = None
    run: str | None = None
    tags: tuple[bytes, ...] = ()
    hidden: bool = False


class ListedThread(Value):
    """A listed thread; `labels` are the stored bytes of its newest checkpoint's labels.

    Its row is as it is stored, and may be damaged: see `records.thread_problem`. If it cannot be read at all,
    `unreadable` says why, `row` has only the key, and `cursor` is the `after` of the next page.
    """

    row: ThreadRow
    labels: bytes | None
    unreadable: str | None = None
    cursor: tuple[Any, Any, Any] | None = None


class ListThreads(Request[tuple[ListedThread, ...]]):
    """List thread rows by `order`: updated, created or bytes, descending, or id, ascending; ties by kind and id.

    `after` is (value of the order's column, kind, id) of the last thread of the page before. `tags` are a hint, as in
    ScanCheckpoints: on the labels of the newest root checkpoint, or with `any_checkpoint` on those of any checkpoint.
    `described` is a hint too: only threads that have a description. The cost depends on the page's length, not on how
    many checkpoints the threads have.
    """

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    order: str
    limit: int
    after: tuple[Any, Any, Any] | None = None
    prefix: str = ""
    kind: Kind | None = None
    status: str | None = None
    tags: tuple[bytes, ...] = ()
    any_checkpoint: bool = False
    described: bool = False

    def says_nothing(self, reply: tuple[ListedThread, ...]) -> bool:
        """Whether there are no such threads, or encrypted ones."""
        return not reply or any(each.row.sealed is not None for each in reply)


class FindThreadsOfRuns(Request[tuple[ThreadKey, ...]]):
    """Find the threads that have a checkpoint or a write of one of these runs."""

    access: ClassVar[Access] = READ
    tenant: str
    kind: Kind
    runs: tuple[str, ...]

    def says_nothing(self, reply: tuple[ThreadKey, ...]) -> bool:  # noqa: ARG002
        """Return True: under keys, runs are stored under other ids."""
        return True


class NewLabels(Value):
    """A set of labels that is new in its thread: its number in the shared lane, and its index entries."""

    n: int
    tags: tuple[bytes, ...]


class Batch(NamedTuple):
    """A change of one thread, made completely or not at all.

    Conflict, and nothing happens, if the thread is not at `expect` = (epoch, rev), or exists although `expect` is None,
    or if a row of `new_checkpoints` or `new_writes` exists already.

    `thread` is the thread's new row, except for `thread.bytes`: that is the number of bytes which the batch adds. The
    backend subtracts the bytes of `removed_items`. With `drops_thread` the thread and everything in it is removed.
    """

    expect: tuple[int, int] | None
    thread: ThreadRow
    items: tuple[tuple[ItemId, bytes], ...] = ()
    new_checkpoints: tuple[CheckpointRow, ...] = ()
    changed_checkpoints: tuple[CheckpointRow, ...] = ()
    new_writes: tuple[WriteRow, ...] = ()
    changed_writes: tuple[WriteRow, ...] = ()
    labels: tuple[NewLabels, ...] = ()
    runs: tuple[str, ...] = ()
    removed_checkpoints: tuple[tuple[str, str], ...] = ()
    removed_writes: tuple[tuple[str, str, str], ...] = ()
    removed_items: tuple[ItemRange, ...] = ()
    removed_runs: tuple[str, ...] = ()
    drops_thread: bool = False


class Commit(Request[None]):
    """Make a batch durable. If a commit was made and is repeated, that is a Conflict: read again to find out."""

    access: ClassVar[Access] = WRITE
    is_refused: ClassVar[bool] = True
    batch: Batch


class CopyThread(Request[None]):
    """Copy all rows of a thread to another, inside the database. Ids stay the same.

    `thread` is the target's row. The target must not exist; or it must be at `replaces` = (epoch, rev), and the copy
    takes its place. Conflict if not, or if the source is not at `expect`. The stored `labels` replace those of the
    source, with their index entries; `items` are new.
    """

    access: ClassVar[Access] = WRITE
    is_refused: ClassVar[bool] = True
    source: ThreadKey
    expect: tuple[int, int]
    thread: ThreadRow
    labels: tuple[tuple[ItemId, bytes, tuple[bytes, ...]], ...] = ()
    items: tuple[tuple[ItemId, bytes], ...] = ()
    replaces: tuple[int, int] | None = None


class ForkThread(Request[None]):
    """Create a thread from a batch and from items of another thread, which are copied inside the database.

    The items keep their ids. Conflict if the source is not at `expect` or the thread exists. `batch.thread.bytes` does
    not include the copied items.
    """

    access: ClassVar[Access] = WRITE
    is_refused: ClassVar[bool] = True
    source: ThreadKey
    expect: tuple[int, int]
    ranges: tuple[ItemRange, ...]
    batch: Batch


class DropThread(Request[None]):
    """Delete a thread and everything in it. Does nothing if it does not exist.

    Conflict if it has a lease and `leased` does not say that it may. WrongKey if the tenant is encrypted and `sealed`
    does not say that the caller knows.
    """

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    is_refused: ClassVar[bool] = True
    key: ThreadKey
    leased: bool = False
    sealed: bool = False


class StorageClock(NamedTuple):
    """A time in milliseconds by the clock of the storage. Times of two clocks of different names cannot be compared.

    A server's clock is its own. Without a server it is that of the machine since it was started, which nobody sets;
    `name` is then the id of that start, or NAMELESS_START if it has none.
    """

    now: int
    name: str


NAMELESS_START = "start"
SERVER_CLOCK = "server"


class ReadClock(Request[StorageClock]):
    """Read the clock of the storage: of a cluster, that of the server which has this thread."""

    access: ClassVar[Access] = Access(one_statement=True, subject="storage")
    key: ThreadKey


class CallersLease(Request[bytes | None]):
    """Ask for the lease of the caller whose change this plan makes; None if the caller has none. No round trip."""

    access: ClassVar[Access] = NO_ACCESS


class Pause(Request[None]):
    """Wait before another try; the higher `attempt`, the longer."""

    access: ClassVar[Access] = NO_ACCESS
    attempt: int
