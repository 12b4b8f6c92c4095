"""What the engine asks of a backend: its verbs, as requests, with their guarantees.

Every request is one round trip and sees, or makes, one consistent state. A backend answers each of them with rows;
it decides nothing and decodes no state. A failure to reach the storage is raised, never answered as "empty".

    read     Load, Items, Measure, Scan, Ancestors, Survey, Catalogue, RunThreads, Footprint
    write    Commit, Duplicate, Fork, Drop  each atomic: all of it or nothing
    wait     Pause
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.plan import IDEMPOTENT_WRITE, NO_ACCESS, READ, READ_ONE_STATEMENT, WRITE, Access, Request


@dataclass(frozen=True, slots=True)
class CachedItems:
    """What the asker holds already, of this epoch: names below `names`, and these items. It need not be sent again."""

    epoch: int
    names: int
    items: ItemCache


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint: by id, or the latest visible one of the namespace. With its items and those of its writes, or not."""

    ns: str
    id: str | None
    items: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointRows:
    """A checkpoint's row, if it is there, and the rows of its writes, which may be there without it."""

    row: CheckpointRow | None
    writes: tuple[WriteRow, ...]


def ranges_of(found: CheckpointRows) -> list[ItemRange]:
    """All runs that a checkpoint and its writes refer to."""
    own = found.row.refs if found.row else ()
    return [*own, *(run for row in found.writes for run in row.refs)]


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Rows of one moment. `items` has stored bytes by id: names, run lists and labels of the rows among them.

    `thread` is None, and nothing is found, if there is no such thread.
    """

    thread: ThreadRow | None
    checkpoints: tuple[CheckpointRows, ...] = ()
    items: dict[ItemId, bytes] = field(default_factory=dict)
    stored: tuple[ItemRange, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadCheckpoints(Request[LoadedRows]):
    """Some checkpoints of a thread; `found` is in the order of `wanted`."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    wanted: tuple[CheckpointRef, ...]
    cached: CachedItems | None = None


@dataclass(frozen=True, slots=True)
class LoadItems(Request[LoadedRows]):
    """The thread's row and these items; those that are gone are missing from the reply."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    ranges: tuple[ItemRange, ...]
    cached: CachedItems | None = None


class ItemSizes(NamedTuple):
    """The thread's row, and of each item: lane, n, its stored length and how it begins (`itemlog.BEGINNING` bytes)."""

    thread: ThreadRow | None
    items: tuple[tuple[int, int, int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class MeasureItems(Request[ItemSizes]):
    """How long these items are, without sending them; those that are gone are missing from the reply."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    ranges: tuple[ItemRange, ...]


@dataclass(frozen=True, slots=True)
class LoadAncestors(Request[LoadedRows]):
    """A checkpoint, then its parents, nearest first, at most `limit` rows. A cycle ends the list; no items of state."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    ns: str
    id: str
    limit: int


@dataclass(frozen=True, slots=True)
class LoadThreadRows(Request[LoadedRows]):
    """Every checkpoint of a thread, hidden ones and writes without a checkpoint included; no items of state.

    `stored` tells which items there are.
    """

    access: ClassVar[Access] = READ
    key: ThreadKey


@dataclass(frozen=True, slots=True)
class ScannedCheckpoint:
    """A checkpoint that a scan met; `labels` are the stored bytes of its labels, None if they are gone."""

    key: ThreadKey
    row: CheckpointRow
    labels: bytes | None


@dataclass(frozen=True, slots=True)
class ScanCheckpoints(Request[tuple[ScannedCheckpoint, ...]]):
    """Visible checkpoints by id, descending, then by thread and namespace; at most `limit`.

    `after` is the last hit of the slice before. `source`, `step`, `run` and `tags` may only leave out rows that do not
    match; the asker checks again.
    """

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    kind: str
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


@dataclass(frozen=True, slots=True)
class ListedThread:
    """A thread of the catalogue; `labels` are the stored bytes of its top checkpoint's labels."""

    row: ThreadRow
    labels: bytes | None


@dataclass(frozen=True, slots=True)
class ListThreads(Request[tuple[ListedThread, ...]]):
    """Thread rows in the order of `order`: updated, created and bytes descend, id ascends; ties by kind and id.

    `after` is (value of the order's column, kind, id) of the last one of the slice before. `tags` may only leave out
    rows that do not match. Costs what the slice costs, however many checkpoints the threads have.
    """

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    order: str
    limit: int
    after: tuple[int | str, str, str] | None = None
    prefix: str = ""
    kind: str | None = None
    status: str | None = None
    tags: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class FindThreadsOfRuns(Request[tuple[ThreadKey, ...]]):
    """The threads in which one of these runs left a checkpoint or a write."""

    access: ClassVar[Access] = READ
    tenant: str
    kind: str
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StorageSize:
    """What the storage itself takes, its own overhead and that of others in it included.

    `parts` are the bytes by file (SQLite), table with its indexes (PostgreSQL) or server (Valkey); `free` is what of
    them is free for use, `keys` how many keys the servers have, both None where nobody can say.
    """

    kind: str
    bytes: int
    parts: dict[str, int]
    free: int | None = None
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class MeasureStorage(Request[StorageSize | None]):
    """What the storage takes; None if it is this process's memory."""

    access: ClassVar[Access] = READ_ONE_STATEMENT


@dataclass(frozen=True, slots=True)
class NewLabels:
    """A set of labels that is new in its thread, with its index entries."""

    n: int
    tags: tuple[bytes, ...]


class Batch(NamedTuple):
    """A change of one thread.

    It is made only if the thread is at `expect` = (epoch, rev), or is not there if that is None, and if no row of
    `new_checkpoints` and `new_writes` exists; else Conflict, and nothing happened. `thread.bytes` is what the batch
    adds to the thread's bytes; the bytes of `removed_items` are subtracted by the backend. If it `drops_thread` the thread,
    nothing of that is left.
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


@dataclass(frozen=True, slots=True)
class Commit(Request[None]):
    """Make a batch, durably. A repeated commit whose first try was made is a Conflict: read again and see."""

    access: ClassVar[Access] = WRITE
    batch: Batch


@dataclass(frozen=True, slots=True)
class CopyThread(Request[None]):
    """Copy all rows of a thread to a new one, inside the database; ids stay as they are.

    Conflict if the source is not at `expect` or the target exists. Stored `labels` replace those of the source, with
    their index entries.
    """

    access: ClassVar[Access] = WRITE
    source: ThreadKey
    expect: tuple[int, int]
    thread: ThreadRow
    labels: tuple[tuple[ItemId, bytes, tuple[bytes, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ForkThread(Request[None]):
    """Make a new thread of a batch and of items of another thread, which are copied inside the database, ids and all.

    Conflict if the source is not at `expect` or the thread exists. `batch.thread.bytes` does not count what is copied.
    """

    access: ClassVar[Access] = WRITE
    source: ThreadKey
    expect: tuple[int, int]
    ranges: tuple[ItemRange, ...]
    batch: Batch


@dataclass(frozen=True, slots=True)
class DropThread(Request[None]):
    """Remove a thread and all that it holds; nothing happens if it is not there."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    key: ThreadKey


@dataclass(frozen=True, slots=True)
class Pause(Request[None]):
    """Wait a moment before another try; longer at each."""

    access: ClassVar[Access] = NO_ACCESS
    attempt: int
