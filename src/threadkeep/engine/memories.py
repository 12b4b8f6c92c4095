"""Memories: their rows, and what the engine asks of a backend about them. Guarantees as in `backend`.

    read     Recall, RecallNumbered, Browse, Spaces, Count, Matching, Expired, Worded, VectorChanges, Nearest
    write    Remember, Refresh, Sweep, IndexVectors

Times are microseconds since 1970. `now` hides what has expired: a read never shows it, whether or not it was swept.
A request that has a filter may leave out only what does not match; the asker checks again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from threadkeep.engine.filters import EVERYTHING, Node
from threadkeep.engine.spaces import Place, Space
from threadkeep.plan import IDEMPOTENT_WRITE, READ, READ_ONE_STATEMENT, Access, Request


class MemoryRow(NamedTuple):
    """A memory. `value` is JSON text, `ttl` minutes after which it expires if nobody reads or writes it."""

    space: Space
    key: str
    value: str
    created: int
    updated: int
    expires: int | None
    ttl: float | None

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.space, self.key)


class Memory(NamedTuple):
    """A memory to be stored: its row, a vector (float32, little-endian) for each embedded text, and its words."""

    row: MemoryRow
    vectors: tuple[bytes, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True)
class Remember(Request[None]):
    """Store and remove memories, all or nothing. A memory that is there and has not expired keeps its `created`."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    tenant: str
    puts: tuple[Memory, ...]
    gone: tuple[Place, ...]
    now: int
    expired: bool = False
    """Whether to remove only what has expired."""


@dataclass(frozen=True, slots=True)
class Refresh(Request[None]):
    """Let memories that have a ttl live that long from now on."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    tenant: str
    places: tuple[Place, ...]
    now: int


@dataclass(frozen=True, slots=True)
class Sweep(Request[int]):
    """Remove at most `limit` memories that have expired, of all tenants; how many it were."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    now: int
    limit: int


@dataclass(frozen=True, slots=True)
class Recall(Request[tuple[MemoryRow | None, ...]]):
    """Memories by place; None for one that is not there."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    places: tuple[Place, ...]
    now: int


@dataclass(frozen=True, slots=True)
class RecallNumbered(Request[dict[int, MemoryRow]]):
    """Memories by number, all of them below a prefix; those that are gone are missing."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    numbers: tuple[int, ...]
    now: int


Position: TypeAlias = tuple[int, Space, str]
"""Of a memory in the order of `Browse`: when it was updated, and where it is."""


@dataclass(frozen=True, slots=True)
class Browse(Request[tuple[MemoryRow, ...]]):
    """Memories below a prefix: the last updated first, then by namespace and key. At most `limit`, after `after`."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int
    limit: int
    offset: int = 0
    after: Position | None = None
    filter: Node = EVERYTHING


@dataclass(frozen=True, slots=True)
class Spaces(Request[tuple[Space, ...]]):
    """Namespaces below a prefix that have memories, in order, at most `limit`, after `after`."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int
    limit: int
    after: Space | None = None


@dataclass(frozen=True, slots=True)
class Count(Request[int]):
    """How many memories a tenant has."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    now: int


@dataclass(frozen=True, slots=True)
class Matching(Request[frozenset[int]]):
    """The numbers of the memories below a prefix that may match a filter."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int
    filter: Node


@dataclass(frozen=True, slots=True)
class Expired(Request[frozenset[int]]):
    """The numbers of the memories below a prefix that have expired and are still stored."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    prefix: Space
    now: int


Scored: TypeAlias = tuple[int, float]
"""A memory's number and how well it fits, more is better."""


@dataclass(frozen=True, slots=True)
class Worded(Request[tuple[Scored, ...]]):
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
    space: Space
    vector: bytes


@dataclass(frozen=True, slots=True)
class PartChanges:
    """What changed in a partition: vectors that were stored since, and, if some were removed, those that are there.

    One that is `large` is not told: the storage can rank it itself, by `Nearest`, and should be asked to.
    """

    first: str
    at: tuple[int, int]
    changed: tuple[VectorRow, ...] = ()
    present: frozenset[tuple[int, int]] | None = None
    large: bool = False


@dataclass(frozen=True, slots=True)
class VectorChanges(Request[tuple[PartChanges, ...]]):
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


class Nearby(NamedTuple):
    """Memories by their nearest vector, best first, and whether there are no more."""

    scored: tuple[Scored, ...]
    is_all: bool


@dataclass(frozen=True, slots=True)
class Nearest(Request[Nearby]):
    """The memories below a prefix whose vectors are nearest, at most `limit`. Only where there is something large.

    `measure` is cosine, inner_product or l2. Exact if few match, else as good as the storage's index is. Not fewer than
    `needed` if there are so many.
    """

    access: ClassVar[Access] = READ
    tenant: str
    prefix: Space
    now: int
    vector: bytes
    measure: str
    limit: int
    needed: int
    filter: Node = EVERYTHING


@dataclass(frozen=True, slots=True)
class IndexVectors(Request[None]):
    """Have an index for vectors of so many dimensions, where the storage has such a thing."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    dims: int
    measure: str
