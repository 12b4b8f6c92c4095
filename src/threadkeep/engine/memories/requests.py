"""Memories: their rows, and what the engine asks of a backend about them. Guarantees as in `backend`.

    read     Recall, RecallNumbered, Browse, Spaces, Count, Matching, Expired, Worded, VectorChanges, Nearest
    write    Remember, Refresh, Sweep, IndexVectors

Times are microseconds since 1970. `now` hides what has expired: a read never shows it, whether or not it was swept.
A request that has a filter may leave out only what does not match; the asker checks again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from threadkeep.engine.memories.filters import EVERYTHING, FilterNode
from threadkeep.engine.memories.namespaces import MemoryKey, Space
from threadkeep.plan import IDEMPOTENT_WRITE, READ, READ_ONE_STATEMENT, Access, Request


class MemoryRow(NamedTuple):
    """A memory. `value` is JSON text, `ttl` minutes after which it expires if nobody reads or writes it."""

    namespace: Space
    key: str
    value: str
    created: int
    updated: int
    expires: int | None
    ttl: float | None

    @property
    def memory_key(self) -> MemoryKey:
        """Where it is."""
        return MemoryKey(self.namespace, self.key)


class NewMemory(NamedTuple):
    """A memory to be stored: its row, a vector (float32, little-endian) for each embedded text, and its words."""

    row: MemoryRow
    vectors: tuple[bytes, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True)
class WriteMemories(Request[None]):
    """Store and remove memories, all or nothing. A memory that is there and has not expired keeps its `created`."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    tenant: str
    puts: tuple[NewMemory, ...]
    deletes: tuple[MemoryKey, ...]
    now: int
    expired: bool = False
    """Whether to remove only what has expired."""


@dataclass(frozen=True, slots=True)
class RefreshMemories(Request[None]):
    """Let memories that have a ttl live that long from now on."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    tenant: str
    keys: tuple[MemoryKey, ...]
    now: int


@dataclass(frozen=True, slots=True)
class SweepMemories(Request[int]):
    """Remove at most `limit` memories that have expired, of all tenants; how many it were."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    now: int
    limit: int


@dataclass(frozen=True, slots=True)
class GetMemories(Request[tuple[MemoryRow | None, ...]]):
    """Memories by place; None for one that is not there."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    keys: tuple[MemoryKey, ...]
    now: int


@dataclass(frozen=True, slots=True)
class GetMemoriesByNumber(Request[dict[int, MemoryRow]]):
    """Memories by number, all of them below a prefix; those that are gone are missing."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    numbers: tuple[int, ...]
    now: int


Position: TypeAlias = tuple[int, Space, str]
"""Of a memory in the order of `ListMemories`: when it was updated, and where it is."""


@dataclass(frozen=True, slots=True)
class ListMemories(Request[tuple[MemoryRow, ...]]):
    """Memories below a prefix: the last updated first, then by namespace and key. At most `limit`, after `after`."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int
    limit: int
    offset: int = 0
    after: Position | None = None
    filter: FilterNode = EVERYTHING


@dataclass(frozen=True, slots=True)
class ListNamespaces(Request[tuple[Space, ...]]):
    """Namespaces below a prefix that have memories, in order, at most `limit`, after `after`."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int
    limit: int
    after: Space | None = None


@dataclass(frozen=True, slots=True)
class CountMemories(Request[int]):
    """How many memories a tenant has."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    now: int


@dataclass(frozen=True, slots=True)
class FindMatching(Request[frozenset[int]]):
    """The numbers of the memories below a prefix that may match a filter."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int
    filter: FilterNode


@dataclass(frozen=True, slots=True)
class FindExpired(Request[frozenset[int]]):
    """The numbers of the memories below a prefix that have expired and are still stored."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int


Scored: TypeAlias = tuple[int, float]
"""A memory's number and how well it fits, more is better."""


@dataclass(frozen=True, slots=True)
class SearchFullText(Request[tuple[Scored, ...]]):
    """The memories below a prefix that have one of these words, best first, at most `limit`."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int
    words: tuple[str, ...]
    limit: int


class VectorRow(NamedTuple):
    """A stored vector: of which memory, of which of its texts, in which namespace."""

    memory: int
    field: int
    namespace: Space
    vector: bytes


@dataclass(frozen=True, slots=True)
class PartitionChanges:
    """What changed in a partition: vectors that were stored since, and, if some were removed, those that are there.

    One that is `large` is not told: the storage can rank it itself, by `SearchVectors`, and should be asked to.
    """

    first: str
    at: tuple[int, int]
    changed: tuple[VectorRow, ...] = ()
    present: frozenset[tuple[int, int]] | None = None
    large: bool = False


@dataclass(frozen=True, slots=True)
class LoadVectorChanges(Request[tuple[PartitionChanges, ...]]):
    """The partitions (one, or all if `first` is None) whose vectors are not as they were `since`.

    The asker does not want to hold more than `most` vectors, if that can be helped, and may be `full` already.
    """

    access: ClassVar[Access] = READ
    tenant: str
    first: str | None
    since: dict[str, tuple[int, int]] = field(default_factory=dict)
    most: int = 1 << 62
    full: bool = False
    dims: int = 0


class NearestMemories(NamedTuple):
    """Memories by their nearest vector, best first, and whether there are no more."""

    scored: tuple[Scored, ...]
    is_all: bool


@dataclass(frozen=True, slots=True)
class SearchVectors(Request[NearestMemories]):
    """The memories below a prefix whose vectors are nearest, at most `limit`. Only where there is something large.

    `metric` is cosine, inner_product or l2. Exact if few match, else as good as the storage's index is. Not fewer than
    `needed` if there are so many.
    """

    access: ClassVar[Access] = READ
    tenant: str
    prefix: Space
    now: int
    vector: bytes
    metric: str
    limit: int
    needed: int
    filter: FilterNode = EVERYTHING


@dataclass(frozen=True, slots=True)
class CreateVectorIndex(Request[None]):
    """Have an index for vectors of so many dimensions, where the storage has such a thing."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    dims: int
    metric: str
