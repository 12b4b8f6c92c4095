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
from threadkeep.engine.itemlog import ItemId, Run
from threadkeep.engine.pool import Pool
from threadkeep.engine.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.plan import IDEMPOTENT_WRITE, NO_ACCESS, READ, READ_ONE_STATEMENT, WRITE, Access, Request


@dataclass(frozen=True, slots=True)
class Have:
    """What the asker holds already, of this epoch: names below `names`, and these items. It need not be sent again."""

    epoch: int
    names: int
    items: Pool


@dataclass(frozen=True, slots=True)
class Want:
    """A checkpoint: by id, or the latest visible one of the namespace. With its items and those of its writes, or not."""

    ns: str
    id: str | None
    items: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint's row, if it is there, and the rows of its writes, which may be there without it."""

    row: CheckpointRow | None
    writes: tuple[WriteRow, ...]


def refs_of(found: Found) -> list[Run]:
    """All runs that a checkpoint and its writes refer to."""
    own = found.row.refs if found.row else ()
    return [*own, *(run for row in found.writes for run in row.refs)]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rows of one moment. `items` has stored bytes by id: names, run lists and labels of the rows among them.

    `thread` is None, and nothing is found, if there is no such thread.
    """

    thread: ThreadRow | None
    found: tuple[Found, ...] = ()
    items: dict[ItemId, bytes] = field(default_factory=dict)
    stored: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Load(Request[Loaded]):
    """Some checkpoints of a thread; `found` is in the order of `wanted`."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    wanted: tuple[Want, ...]
    have: Have | None = None


@dataclass(frozen=True, slots=True)
class Items(Request[Loaded]):
    """The thread's row and these items; those that are gone are missing from the reply."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    runs: tuple[Run, ...]
    have: Have | None = None


class Measured(NamedTuple):
    """The thread's row, and of each item: lane, n, its stored length and how it begins (`itemlog.BEGINNING` bytes)."""

    thread: ThreadRow | None
    items: tuple[tuple[int, int, int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Measure(Request[Measured]):
    """How long these items are, without sending them; those that are gone are missing from the reply."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Ancestors(Request[Loaded]):
    """A checkpoint, then its parents, nearest first, at most `limit` rows. A cycle ends the list; no items of state."""

    access: ClassVar[Access] = READ
    key: ThreadKey
    ns: str
    id: str
    limit: int


@dataclass(frozen=True, slots=True)
class Survey(Request[Loaded]):
    """Every checkpoint of a thread, hidden ones and writes without a checkpoint included; no items of state.

    `stored` tells which items there are.
    """

    access: ClassVar[Access] = READ
    key: ThreadKey


@dataclass(frozen=True, slots=True)
class Hit:
    """A checkpoint that a scan met; `labels` are the stored bytes of its labels, None if they are gone."""

    key: ThreadKey
    row: CheckpointRow
    labels: bytes | None


@dataclass(frozen=True, slots=True)
class Scan(Request[tuple[Hit, ...]]):
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
class Listed:
    """A thread of the catalogue; `labels` are the stored bytes of its top checkpoint's labels."""

    row: ThreadRow
    labels: bytes | None


@dataclass(frozen=True, slots=True)
class Catalogue(Request[tuple[Listed, ...]]):
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
class RunThreads(Request[tuple[ThreadKey, ...]]):
    """The threads in which one of these runs left a checkpoint or a write."""

    access: ClassVar[Access] = READ
    tenant: str
    kind: str
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Storage:
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
class Footprint(Request[Storage | None]):
    """What the storage takes; None if it is this process's memory."""

    access: ClassVar[Access] = READ_ONE_STATEMENT


@dataclass(frozen=True, slots=True)
class Label:
    """A set of labels that is new in its thread, with its index entries."""

    n: int
    tags: tuple[bytes, ...]


class Batch(NamedTuple):
    """A change of one thread.

    It is made only if the thread is at `expect` = (epoch, rev), or is not there if that is None, and if no row of
    `new_checkpoints` and `new_writes` exists; else Conflict, and nothing happened. `thread.bytes` is what the batch
    adds to the thread's bytes; the bytes of `gone_items` are subtracted by the backend. If it `ends` the thread,
    nothing of that is left.
    """

    expect: tuple[int, int] | None
    thread: ThreadRow
    items: tuple[tuple[ItemId, bytes], ...] = ()
    new_checkpoints: tuple[CheckpointRow, ...] = ()
    changed_checkpoints: tuple[CheckpointRow, ...] = ()
    new_writes: tuple[WriteRow, ...] = ()
    changed_writes: tuple[WriteRow, ...] = ()
    labels: tuple[Label, ...] = ()
    runs: tuple[str, ...] = ()
    gone_checkpoints: tuple[tuple[str, str], ...] = ()
    gone_writes: tuple[tuple[str, str, str], ...] = ()
    gone_items: tuple[Run, ...] = ()
    gone_runs: tuple[str, ...] = ()
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Commit(Request[None]):
    """Make a batch, durably. A repeated commit whose first try was made is a Conflict: read again and see."""

    access: ClassVar[Access] = WRITE
    batch: Batch


@dataclass(frozen=True, slots=True)
class Duplicate(Request[None]):
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
class Fork(Request[None]):
    """Make a new thread of a batch and of items of another thread, which are copied inside the database, ids and all.

    Conflict if the source is not at `expect` or the thread exists. `batch.thread.bytes` does not count what is copied.
    """

    access: ClassVar[Access] = WRITE
    source: ThreadKey
    expect: tuple[int, int]
    runs: tuple[Run, ...]
    batch: Batch


@dataclass(frozen=True, slots=True)
class Drop(Request[None]):
    """Remove a thread and all that it holds; nothing happens if it is not there."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    key: ThreadKey


@dataclass(frozen=True, slots=True)
class Pause(Request[None]):
    """Wait a moment before another try; longer at each."""

    access: ClassVar[Access] = NO_ACCESS
    attempt: int
