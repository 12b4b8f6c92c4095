"""What a source gives: checkpoints with their values as bytes, writes, talks, memories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from threadkeep.engine.codec import Parts
from threadkeep.engine.memories import MemoryRow

_GREGORIAN = 0x01B21DD213814000
"""The start of 1970 as UUIDs count, in steps of 100 ns."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnreadableError(Exception):
    """A row that cannot be carried over; what is said is why. The rest of the source is not concerned."""


class Place(NamedTuple):
    """A checkpoint of a thread, by namespace and id."""

    ns: str
    id: str

    def __str__(self) -> str:
        return f"checkpoint {self.id!r}" + (f" of namespace {self.ns!r}" if self.ns else "")


class Checkpoint(NamedTuple):
    """A checkpoint, its values encoded. `fields` are what else it has that needs no decoding; `rest` is the remainder."""

    parent: str | None
    fields: Mapping[str, Any]
    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    values: dict[str, Parts]
    rest: tuple[str, bytes] | None
    metadata: dict[str, Any]


class Write(NamedTuple):
    """What a task gave to a channel."""

    task: str
    path: str
    idx: int
    channel: str
    value: Parts


class Found(NamedTuple):
    """What a source has at a place. `trouble` is why something of it cannot be read; `fresh` how many bytes are new."""

    place: Place
    checkpoint: Checkpoint | None
    writes: Sequence[Write]
    trouble: str | None = None
    fresh: int = 0


class Counted(NamedTuple):
    """How many writes there are at a place, and whether there are special ones, which may change."""

    writes: int
    special: bool


class Graphs(Protocol):
    """LangGraph's threads in a source."""

    def count(self, thread: str | None) -> int:
        """How many checkpoints there are, in all or in a thread."""

    def threads(self) -> Sequence[str]:
        """All threads, in order."""

    def places(self, thread: str) -> dict[Place, bool]:
        """Where a thread has a checkpoint (True), or writes only (False)."""

    def counted(self, thread: str) -> dict[Place, Counted]:
        """The writes at each place that has any."""

    def read(self, thread: str, places: Sequence[Place]) -> Iterator[Found]:
        """What is at these places, in this order."""


class Message(NamedTuple):
    """A message in its plain form, its run, and its time in milliseconds."""

    plain: dict[str, Any]
    run: str | None
    time: int


class Run(NamedTuple):
    """A run of an agent; times are milliseconds, `completed` and `order` are None while it is under way."""

    id: str
    claimed: int
    completed: int | None
    order: int | None


class Talk(NamedTuple):
    """What a CubeLoop thread has besides its messages; `extra` is None if there is no row for it."""

    runs: Sequence[Run]
    extra: dict[str, Any] | None
    parent: str | None
    pending: tuple[dict[str, Any], str | None] | None
    answers: Mapping[tuple[str, str], Any]


class Talks(Protocol):
    """CubeLoop's threads in a source."""

    def count(self, thread: str | None) -> int:
        """How many messages there are, in all or in a thread."""

    def threads(self) -> Sequence[str]:
        """All threads, parents before their forks."""

    def talk(self, thread: str) -> Talk:
        """All of a thread but its messages."""

    def messages(self, thread: str, start: int) -> Iterator[Message]:
        """Its messages in order, from the `start`th on."""


class Remembered(NamedTuple):
    """A memory, and its vectors (float32, little-endian) if the source has any."""

    row: MemoryRow
    vectors: tuple[bytes, ...] = ()


class Memories(Protocol):
    """LangGraph's memories in a source."""

    def count(self) -> int:
        """How many there are."""

    def has_vectors(self) -> bool:
        """Whether the source has embedded any of them."""

    def rows(self) -> Iterator[Remembered | UnreadableError]:
        """All of them; one that cannot be read is said to be so."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source, opened: what it is called, and what it has."""

    kind: str
    graphs: Graphs | None = None
    talks: Talks | None = None
    memories: Memories | None = None
    close: Callable[[], None] = lambda: None


def milliseconds(time: datetime | None) -> int | None:
    """A time as milliseconds since 1970; one without a zone counts as UTC."""
    return microseconds(time) // 1000 if time is not None else None


def microseconds(time: datetime) -> int:
    """A time as microseconds since 1970, likewise."""
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(text: Any) -> datetime | None:
    """A time from its ISO 8601 text; None if it is none."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def time_of(place: Place, checkpoint: Checkpoint | None) -> int | None:
    """When a checkpoint was made: as it says itself, or as its id says."""
    said = milliseconds(moment(checkpoint.fields.get("ts"))) if checkpoint is not None else None
    if said is not None and said >= 0:
        return said
    try:
        id = UUID(place.id)
    except ValueError:
        return None
    if id.version == 6:
        ticks = (id.time_low << 28) | (id.time_mid << 12) | (id.time_hi_version & 0x0FFF)
    elif id.version == 1:
        ticks = id.time
    else:
        return None
    return max((ticks - _GREGORIAN) // 10_000, 0)
