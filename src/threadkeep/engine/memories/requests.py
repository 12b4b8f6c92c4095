"""The rows of memories, and the requests about them that a backend serves. Guarantees as in `engine.requests`.

    read     GetMemories, GetMemoriesByNumber, ListMemories, ListNamespaces, CountMemories, FindMatching, FindExpired,
             SearchFullText, LoadVectorChanges, SearchVectors
    write    WriteMemories, ChangeMemories, ReplaceMemories, RefreshMemories, SweepMemories, CreateVectorIndex

Times are microseconds since 1970. A read never returns a memory that is expired at `now`, whether or not it was swept.
A backend may return memories that do not match a filter, but must not omit one that does: the caller filters again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

from threadkeep.engine.memories.filters import EVERYTHING, FilterNode
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, memory_number
from threadkeep.errors import Conflict
from threadkeep.plan import IDEMPOTENT_WRITE, READ, READ_ONE_STATEMENT, Access, Request
from threadkeep.value import Value, field

_READ = READ._replace(subject="memories")
_READ_ONE_STATEMENT = READ_ONE_STATEMENT._replace(subject="memories")
_IDEMPOTENT_WRITE = IDEMPOTENT_WRITE._replace(subject="memories")


class MemoryRow(NamedTuple):
    """A stored memory. `value` is JSON text; `ttl` is the minutes it lives after it was last written or refreshed."""

    namespace: Namespace
    key: str
    value: str
    created: int
    updated: int
    expires: int | None
    ttl: float | None

    @property
    def memory_key(self) -> MemoryKey:
        """The memory's namespace and key."""
        return MemoryKey(self.namespace, self.key)

    def number(self, tenant: str) -> int:
        """Return the number under which this memory of a tenant is stored."""
        return memory_number(tenant, (self.namespace, self.key))


def is_sealed(value: str) -> bool:
    """Whether the value of a stored memory is encrypted, and so a JSON string: a plain one is a JSON object."""
    return value[:1] == '"'


class NewMemory(NamedTuple):
    """A memory to store: its row, one vector (float32, little-endian) per embedded text, and its marked words."""

    row: MemoryRow
    vectors: tuple[bytes, ...] = ()
    words: str = ""


class WriteMemories(Request[None]):
    """Store and delete memories in one transaction. An existing memory keeps its `created` unless it expired."""

    access: ClassVar[Access] = _IDEMPOTENT_WRITE
    is_refused: ClassVar[bool] = True
    tenant: str
    puts: tuple[NewMemory, ...]
    deletes: tuple[MemoryKey, ...]
    now: int
    expired: bool = False
    """Whether to delete a memory of `deletes` only if it has expired."""
    sealed: bool = False
    """Whether the memories of `puts` are encrypted, and the caller knows that the tenant is; if not, WrongKey if so."""


class ChangeMemories(Request[None]):
    """Make a `WriteMemories` if memories are as expected; Conflict, and nothing happens, if one is not.

    `expected` has the keys of memories that are stored or deleted, each with the time of its last update, or None if
    there must be none, or only one that has expired. All keys have the same first segment. If the reply was lost and
    the change is made again, it is a Conflict: then read what is stored.
    """

    access: ClassVar[Access] = _IDEMPOTENT_WRITE
    is_refused: ClassVar[bool] = True
    write: WriteMemories
    expected: tuple[tuple[MemoryKey, int | None], ...]

    @property
    def tenant(self) -> str:
        """The tenant of the memories."""
        return self.write.tenant

    def check(self, stored: Sequence[MemoryRow | None]) -> None:
        """Raise Conflict unless these rows, which are stored under the expected keys, are as expected."""
        for (key, expected), row in zip(self.expected, stored, strict=True):
            is_there = row is not None and (row.expires is None or row.expires > self.write.now)
            if (row.updated if is_there and row is not None else None) != expected:
                raise changed_memory(key)


def changed_memory(key: MemoryKey) -> Conflict:
    """Return the error for a memory that is not as expected."""
    return Conflict(f"memory {key.key!r} in {'/'.join(key.namespace)} was changed by others: read it again")


class ReplaceMemories(Request[int]):
    """Replace memories by encrypted ones, each if it was not changed. Return how many of `old` were replaced.

    `puts[n]` takes the place of `old[n]`, which must still have the same `updated` and `expires`. It may have another
    key; if there is a memory of that key already, that one stays and `old[n]` is deleted.
    """

    access: ClassVar[Access] = _IDEMPOTENT_WRITE
    tenant: str
    old: tuple[MemoryRow, ...]
    puts: tuple[NewMemory, ...]
    now: int

    def count(self, stored: Sequence[MemoryRow | None]) -> int:
        """Return how many of `stored`, what is stored in the place of `old`, were not changed."""
        return sum(1 for _ in self._unchanged(stored))

    def to_write(
        self, stored: Sequence[MemoryRow | None], exists: Callable[[MemoryKey], bool]
    ) -> tuple[tuple[NewMemory, ...], tuple[MemoryKey, ...]]:
        """Return what to store and what to delete."""
        puts: list[NewMemory] = []
        deletes: list[MemoryKey] = []
        for old, put in self._unchanged(stored):
            is_moved = put.row.memory_key != old.memory_key
            if is_moved:
                deletes.append(old.memory_key)
            if not is_moved or not exists(put.row.memory_key):
                puts.append(put)
        return tuple(puts), tuple(deletes)

    def _unchanged(self, stored: Sequence[MemoryRow | None]) -> Iterator[tuple[MemoryRow, NewMemory]]:
        for old, put, now in zip(self.old, self.puts, stored, strict=True):
            if now is not None and (now.updated, now.expires) == (old.updated, old.expires):
                yield old, put


class RefreshMemories(Request[None]):
    """Restart the ttl of memories that have one."""

    access: ClassVar[Access] = _IDEMPOTENT_WRITE
    is_refused: ClassVar[bool] = True
    tenant: str
    keys: tuple[MemoryKey, ...]
    now: int


class SweepMemories(Request[int]):
    """Delete at most `limit` expired memories of a tenant. Return the number deleted."""

    access: ClassVar[Access] = _IDEMPOTENT_WRITE
    tenant: str
    now: int
    limit: int


class GetMemories(Request[tuple[MemoryRow | None, ...]]):
    """Get memories by key; None for each that does not exist."""

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    keys: tuple[MemoryKey, ...]
    now: int

    def says_nothing(self, reply: tuple[MemoryRow | None, ...]) -> bool:
        """Whether none of the memories is there."""
        return not any(reply)


class GetMemoriesByNumber(Request[dict[int, MemoryRow]]):
    """Get memories by number, all below one prefix; those that no longer exist are missing from the result."""

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    prefix: Namespace
    numbers: tuple[int, ...]
    now: int


Position: TypeAlias = tuple[int, Namespace, str]
"""A position in the order of `ListMemories`: time of the last update, namespace, key."""


class ListMemories(Request[tuple[MemoryRow, ...]]):
    """List at most `limit` memories below a prefix, after `after`: last updated first, then by namespace and key."""

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    prefix: Namespace
    now: int
    limit: int
    offset: int = 0
    after: Position | None = None
    filter: FilterNode = EVERYTHING

    def says_nothing(self, reply: tuple[MemoryRow, ...]) -> bool:
        """Whether there are no such memories, or encrypted ones."""
        return not reply or is_sealed(reply[0].value)


class ListNamespaces(Request[tuple[Namespace, ...]]):
    """List at most `limit` namespaces below a prefix that have memories, in order, after `after`."""

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    prefix: Namespace
    now: int
    limit: int
    after: Namespace | None = None

    def says_nothing(self, reply: tuple[Namespace, ...]) -> bool:  # noqa: ARG002
        """Return True: namespaces are not decoded."""
        return True


class CountMemories(Request[int]):
    """Count the memories of a tenant."""

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    now: int

    def says_nothing(self, reply: int) -> bool:  # noqa: ARG002
        """Return True: nothing is decoded."""
        return True


class FindMatching(Request[frozenset[int]]):
    """Find the numbers of the memories below a prefix that may match a filter."""

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    prefix: Namespace
    now: int
    filter: FilterNode


class FindExpired(Request[frozenset[int]]):
    """Find the numbers of the memories below a prefix that have expired but are still stored."""

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    prefix: Namespace
    now: int

    def says_nothing(self, reply: frozenset[int]) -> bool:  # noqa: ARG002
        """Return False: it comes with other requests."""
        return False


Scored: TypeAlias = tuple[int, float]
"""A memory's number and its score; higher is better."""


class WordMatch(NamedTuple):
    """A memory with words of a query: how many different ones, how often they occur in it, when it was updated.

    `is_checked` says whether the storage has a checksum of the memory's words: then these numbers must be right.
    """

    memory: int
    distinct: int
    frequency: int
    updated: int
    is_checked: bool = True


class WordMatches(NamedTuple):
    """Memories ranked by words, best first; `is_all` says that there are no others."""

    matches: tuple[WordMatch, ...]
    is_all: bool


class SearchFullText(Request[WordMatches]):
    """Find the memories below a prefix that contain at least one of these words: at least the `limit` best ones.

    Those with more different words come first, then those in which the words occur more often, then as in
    `ListMemories`.
    """

    access: ClassVar[Access] = _READ_ONE_STATEMENT
    tenant: str
    prefix: Namespace
    now: int
    words: tuple[str, ...]
    limit: int
    filter: FilterNode = EVERYTHING

    def says_nothing(self, reply: WordMatches) -> bool:
        """Whether no memory was found."""
        return not reply.matches


class VectorRow(NamedTuple):
    """A stored vector: the number of its memory, the index of the embedded text, and the namespace."""

    memory: int
    field: int
    namespace: Namespace
    vector: bytes


NO_VECTORS = (0, 0)
"""The version of a partition that has no vectors, or of which the caller has none."""


class PartitionChanges(Value):
    """What changed in a partition of vectors.

    `version` is its new version, two numbers: one grows when vectors are stored, the other when some are removed. Both
    start at the time in microseconds, so that a partition is not taken for an earlier one that was deleted. `changed`
    has the vectors stored since the given version. If some were removed, `present` has the (memory, field) pairs of all
    that exist; otherwise it is None. A partition that is `large` comes without changes: the storage ranks it itself,
    see `SearchVectors`.
    """

    partition: str
    version: tuple[int, int]
    changed: tuple[VectorRow, ...] = ()
    present: frozenset[tuple[int, int]] | None = None
    large: bool = False


class LoadVectorChanges(Request[tuple[PartitionChanges, ...]]):
    """Load what changed in partitions whose version differs from `since`: one partition, or all if `partition` is None.

    `partition` is the first segment of the partition's namespaces. `since` names only partitions with vectors: a caller
    without keys then knows that those which did not change are not encrypted. The caller prefers to cache at most
    `max_vectors` vectors. A storage with a vector index answers `large` if there are more, or if the cache is already
    full.
    """

    access: ClassVar[Access] = _READ
    tenant: str
    partition: str | None
    since: dict[str, tuple[int, int]] = field(default_factory=dict)
    max_vectors: int = 1 << 62
    cache_full: bool = False
    dims: int = 0

    def says_nothing(self, reply: tuple[PartitionChanges, ...]) -> bool:
        """Whether a partition has no vectors, or some of another size: encrypted ones are larger."""
        if not reply:
            return not self.since
        size = 4 * self.dims
        return any(
            not (each.changed or each.present or each.large) or any(len(row.vector) != size for row in each.changed)
            for each in reply
        )

    def deleted_partitions(self, existing: Collection[str]) -> list[PartitionChanges]:
        """Return changes for the partitions of `since` that no longer exist: all their vectors were removed."""
        return [
            PartitionChanges(first, NO_VECTORS, present=frozenset())
            for first, version in self.since.items()
            if self.partition in (None, first) and first not in existing and version != NO_VECTORS
        ]


class NearestMemories(NamedTuple):
    """Memories ranked by their nearest vector, best first; `is_all` says that there are no others."""

    scored: tuple[Scored, ...]
    is_all: bool


class SearchVectors(Request[NearestMemories]):
    """Find at most `limit` memories below a prefix whose vectors are nearest, in a storage that has large partitions.

    `metric` is cosine, inner_product or l2. The result is exact if few memories match, otherwise as good as the
    storage's index. It has at least `needed` memories if that many exist.
    """

    access: ClassVar[Access] = _READ
    tenant: str
    prefix: Namespace
    now: int
    vector: bytes
    metric: str
    limit: int
    needed: int
    filter: FilterNode = EVERYTHING

    def says_nothing(self, reply: NearestMemories) -> bool:
        """Whether no memory was found."""
        return not reply.scored


class CreateVectorIndex(Request[None]):
    """Create an index for vectors of `dims` dimensions, if the storage supports one."""

    access: ClassVar[Access] = _IDEMPOTENT_WRITE
    dims: int
    metric: str
