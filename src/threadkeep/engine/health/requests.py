"""Requests to check, inspect, measure and compact a storage. Their guarantees are those of `engine.requests`.

They return data as it is stored. A row that cannot be read does not hide the others: it becomes an `UnreadableRow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import MALFORMED_ROW_ERRORS
from threadkeep.plan import IDEMPOTENT_WRITE, READ, READ_ONE_STATEMENT, Access, Request
from threadkeep.short_repr import short_repr
from threadkeep.value import Value, field

if TYPE_CHECKING:
    from threadkeep.engine.memories.namespaces import MemoryKey
    from threadkeep.engine.memories.requests import MemoryRow

T = TypeVar("T")
CATALOGUE, DATABASE, MEMORY, INDEX = "catalogue", "database", "memory", "index"
WRONG_WORDS = "its words in the index are not those that it was stored with"


class UnreadableRow(NamedTuple):
    """A row that cannot be read: what is wrong, and which row it is, as far as that is known."""

    message: str
    ns: str | None = None
    checkpoint: str | None = None
    task: str | None = None


class ThreadEntry(NamedTuple):
    """A stored thread. `cursor` is the cursor after it.

    `unreadable` says why the thread cannot be requested; None if it can.
    """

    kind: Kind
    id: str
    cursor: Any
    unreadable: str | None = None


class ListStoredThreads(Request[tuple[ThreadEntry, ...]]):
    """List about `limit` stored threads by id, after the cursor of the last page. An empty page is the end."""

    access: ClassVar[Access] = READ
    tenant: str
    limit: int
    after: Any = None
    prefix: str = ""
    kind: Kind | None = None


class FixedColumns(NamedTuple):
    """Columns of a thread's row as they are stored: what a commit compares, adds to, or leaves as it is."""

    epoch: int
    rev: int
    created: int
    bytes: int


def fixed_columns(*stored: Any) -> FixedColumns | None:
    """Return these columns; None if one of them is not a number."""
    return FixedColumns(*stored) if all(type(each) is int for each in stored) else None


class InspectedThread(Value):
    """A consistent snapshot of a thread without its state. `thread` is None if its row is missing or unreadable.

    `exists` is whether the thread has a row. That may be damaged, or be the row of another thread: see
    `records.thread_problem`. `family`, `sealed`, and in `fixed` those columns that a commit does not replace, may be
    read even if the rest of the row cannot. `items` has the items of the engine's lanes; `item_sizes` lists all items
    as (lane, number, size). `tags` (labels and tag) and `runs` are None if the storage has no such index;
    `index_errors` has the errors in its other indexes.
    """

    exists: bool = False
    thread: ThreadRow | None = None
    family: int = 0
    checkpoints: tuple[CheckpointRow, ...] = ()
    writes: tuple[WriteRow, ...] = ()
    items: Mapping[ItemId, bytes] = field(default_factory=dict)
    item_sizes: tuple[tuple[int, int, int], ...] = ()
    tags: frozenset[tuple[int, bytes]] | None = None
    runs: frozenset[str] | None = None
    unreadable: tuple[UnreadableRow, ...] = ()
    index_errors: tuple[str, ...] = ()
    fixed: FixedColumns | None = None
    sealed: bytes | None = None


class InspectThread(Request[InspectedThread]):
    """Read all rows of a thread as they are stored, without its state."""

    access: ClassVar[Access] = READ
    key: ThreadKey

    def says_nothing(self, reply: InspectedThread) -> bool:
        """Whether the thread is not there, or encrypted."""
        return not reply.exists or reply.sealed is not None


class InspectedMemory(NamedTuple):
    """A memory as it is stored: its key, its row, and its vectors by field.

    `key` is None if the key cannot be read, `row` if anything in the row is damaged. `vector_count` is the number
    of vectors that it should have; None if that is not known. `problems` lists what the storage found wrong with it.
    `words` are its marked words in the index, and `words_check` is the checksum of those that it was stored with; None
    if not known.
    """

    number: int
    key: MemoryKey | None
    row: MemoryRow | None
    vectors: Mapping[int, bytes] = {}
    vector_count: int | None = None
    problems: tuple[str, ...] = ()
    words_check: int | None = None
    words: str | None = None


class InspectedMemoryPage(Value):
    """A page of memories. `cursor` is the cursor for the next page, None at the end."""

    memories: tuple[InspectedMemory, ...]
    cursor: Any = None
    problems: tuple[str, ...] = ()


class InspectMemories(Request[InspectedMemoryPage]):
    """Read about `limit` memories of a tenant as they are stored, expired ones included, after the cursor `after`.

    SQLite reads the words only if `with_words` is true: it reads the whole index for each page.
    """

    access: ClassVar[Access] = READ
    tenant: str
    limit: int
    after: Any = None
    with_words: bool = False

    def says_nothing(self, reply: InspectedMemoryPage) -> bool:  # noqa: ARG002
        """Return True: values are not decoded."""
        return True


class IntegrityProblem(NamedTuple):
    """A problem of the storage as a whole: its kind, and a sentence that describes it."""

    kind: str
    message: str


class IntegrityCheck(Request[tuple[IntegrityProblem, ...]]):
    """Run the storage's own integrity check, and find rows that belong to no thread and no memory of any tenant.

    Also find threads with damaged rows that are listed for other tenants than this one.
    """

    access: ClassVar[Access] = READ._replace(subject="storage")
    tenant: str = ""

    def says_nothing(self, reply: tuple[IntegrityProblem, ...]) -> bool:  # noqa: ARG002
        """Return True: nothing is decoded."""
        return True


class LoadStorageFacts(Request[Mapping[str, Any]]):
    """Read the settings and the state of the storage, its driver and the machine, for `threadkeep.jobs.doctor`."""

    access: ClassVar[Access] = READ._replace(subject="storage")


@dataclass(frozen=True, slots=True)
class StorageSize:
    """The size of the storage, including its overhead and everything else that is stored in it.

    `parts` are the bytes by file (SQLite), by table with its indexes (PostgreSQL) or by server (Valkey). `free` are the
    bytes of these that can be used again, `keys` is the number of keys on the servers; None if not known.
    """

    kind: str
    bytes: int
    parts: dict[str, int]
    free: int | None = None
    keys: int | None = None

    __repr__ = short_repr


class MeasureStorage(Request[StorageSize | None]):
    """Measure the storage; None if it is this process's memory."""

    access: ClassVar[Access] = READ_ONE_STATEMENT._replace(subject="storage")


class CompactStorage(Request[tuple[int, int]]):
    """Return unused space to the system. The reply is the size of the storage in bytes, before and after.

    Unavailable, and nothing is changed, if other connections prevent it.
    """

    access: ClassVar[Access] = IDEMPOTENT_WRITE._replace(subject="storage")
    tenant: str


class FilesState(NamedTuple):
    """What is left of erased data outside the tables. `clean` is None if the storage cannot tell.

    `remains` says where something may be left, and how to remove it.
    """

    clean: bool | None
    remains: tuple[str, ...] = ()


class CleanFiles(Request[FilesState]):
    """Remove what deleted rows left in the files of the storage, as far as the storage can do that."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE._replace(subject="storage")


def read_each_row(
    rows: Iterable[Any], read: Callable[[Any], T], describe: Callable[[Any], UnreadableRow]
) -> tuple[tuple[T, ...], tuple[UnreadableRow, ...]]:
    """Read rows one by one. Return those that can be read, and a description of each that cannot."""
    readable: list[T] = []
    unreadable: list[UnreadableRow] = []
    for row in rows:
        try:
            readable.append(read(row))
        except MALFORMED_ROW_ERRORS as error:
            unreadable.append(describe(row)._replace(message=f"it is malformed: {error!r}"))
    return tuple(readable), tuple(unreadable)
