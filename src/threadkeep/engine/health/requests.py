"""What is asked of a storage to check it, to know it and to tidy it up. Guarantees as in `backend`.

    read     Roster, Inspect, InspectMemories, IntegrityCheck, Facts
    write    Compact

What these bring is as it is stored: a row that cannot be read does not hide the others, it becomes an `UnreadableRow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.plan import IDEMPOTENT_WRITE, READ, Access, Request

T = TypeVar("T")
NONSENSE = (IndexError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading a row that makes no sense may raise."""
CATALOGUE, DATABASE, MEMORY, INDEX = "catalogue", "database", "memory", "index"


class UnreadableRow(NamedTuple):
    """A row that cannot be read: what is wrong, and where it is, as far as that can be told."""

    message: str
    ns: str | None = None
    checkpoint: str | None = None
    task: str | None = None


class ThreadEntry(NamedTuple):
    """A thread that is there. `unreadable` says what keeps it from being asked for; `at` is where the next page begins."""

    kind: str
    id: str
    at: Any
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class ListStoredThreads(Request[tuple[ThreadEntry, ...]]):
    """Which threads there are, by id, about `limit` after the last one of the page before. An empty page is the end."""

    access: ClassVar[Access] = READ
    tenant: str
    limit: int
    after: Any = None
    prefix: str = ""
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class InspectedThread:
    """All of a thread but its state, of one moment. `thread` is None if its row is gone (nothing `is_there`) or unreadable.

    `items` are those of the engine's lanes; `stored` tells of all items: lane, number and size. `tags` (labels and
    tag) and `runs` are None where the storage has no such index; `reported` is what its other indexes say wrongly.
    """

    is_there: bool = False
    thread: ThreadRow | None = None
    checkpoints: tuple[CheckpointRow, ...] = ()
    writes: tuple[WriteRow, ...] = ()
    items: Mapping[ItemId, bytes] = field(default_factory=dict)
    stored: tuple[tuple[int, int, int], ...] = ()
    tags: frozenset[tuple[int, bytes]] | None = None
    runs: frozenset[str] | None = None
    unreadable: tuple[UnreadableRow, ...] = ()
    reported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InspectThread(Request[InspectedThread]):
    """A thread as it is stored."""

    access: ClassVar[Access] = READ
    key: ThreadKey


class StoredMemory(NamedTuple):
    """A memory as it is stored: where it says that it is, its JSON text, and the bytes of each of its vectors by field.

    `problem` is what the storage finds wrong with it.
    """

    number: int
    place: MemoryKey | None
    value: str
    vectors: Mapping[int, int] = {}
    problem: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredMemoryPage:
    """Some memories; `last` is where to go on, None at the end."""

    memories: tuple[StoredMemory, ...]
    last: Any = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InspectMemories(Request[StoredMemoryPage]):
    """The memories of a tenant as they are stored, expired ones too, about `limit` after where the page before ended."""

    access: ClassVar[Access] = READ
    tenant: str
    limit: int
    after: Any = None


class IntegrityProblem(NamedTuple):
    """Something that is wrong with the storage as a whole: a kind of problem, and a sentence."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class IntegrityCheck(Request[tuple[IntegrityProblem, ...]]):
    """What the storage finds wrong with itself, and rows that belong to no thread and no memory of any tenant."""

    access: ClassVar[Access] = READ


@dataclass(frozen=True, slots=True)
class LoadStorageFacts(Request[Mapping[str, Any]]):
    """What the storage, its driver and the machine say of themselves; see `threadkeep.jobs.doctor`."""

    access: ClassVar[Access] = READ


@dataclass(frozen=True, slots=True)
class CompactStorage(Request[tuple[int, int]]):
    """Give space back that nothing uses: how many bytes the storage took before and takes after.

    Unavailable, and nothing is changed, if others are in the way.
    """

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    tenant: str


def each_read(
    rows: Iterable[Any], read: Callable[[Any], T], place: Callable[[Any], UnreadableRow]
) -> tuple[tuple[T, ...], tuple[UnreadableRow, ...]]:
    """Rows that can be read, and those that cannot."""
    good: list[T] = []
    odd: list[UnreadableRow] = []
    for row in rows:
        try:
            good.append(read(row))
        except NONSENSE as error:
            odd.append(place(row)._replace(message=f"it does not make sense: {error!r}"))
    return tuple(good), tuple(odd)


def loosely(data: Any) -> str | None:
    """Bytes as text, whatever they are."""
    return bytes(data).decode("utf-8", "backslashreplace") if isinstance(data, (bytes, memoryview, bytearray)) else None
