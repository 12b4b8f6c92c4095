"""What a source yields: checkpoints with their values as bytes, writes, CubeLoop threads, memories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from threadkeep.engine.log.codec import Parts
from threadkeep.engine.memories.requests import MemoryRow

_GREGORIAN = 0x01B21DD213814000
"""1970-01-01 in the ticks of UUIDs, which are 100 ns."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnreadableError(Exception):
    """A row that cannot be transferred. The message says why. The rest of the source is not affected."""


class CheckpointPlace(NamedTuple):
    """A checkpoint of a thread, by namespace and id."""

    ns: str
    id: str

    def __str__(self) -> str:
        return f"checkpoint {self.id!r}" + (f" of namespace {self.ns!r}" if self.ns else "")


class EncodedCheckpoint(NamedTuple):
    """A checkpoint with encoded values. `fields` are its plain keys, `rest` holds all other keys, encoded."""

    parent: str | None
    fields: Mapping[str, Any]
    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    values: dict[str, Parts]
    rest: tuple[str, bytes] | None
    metadata: dict[str, Any]


class EncodedWrite(NamedTuple):
    """What a task wrote to a channel."""

    task: str
    path: str
    idx: int
    channel: str
    value: Parts


class ForeignCheckpoint(NamedTuple):
    """What a source has at a place. `problem` is why the checkpoint cannot be read, `fresh` the number of new bytes."""

    place: CheckpointPlace
    checkpoint: EncodedCheckpoint | None
    writes: Sequence[EncodedWrite]
    problem: str | None = None
    fresh: int = 0


class WriteCount(NamedTuple):
    """The number of writes at a place, and whether some are special (interrupts, errors, resumes), which may change."""

    writes: int
    special: bool


class ForeignGraphThreads(Protocol):
    """The LangGraph threads of a source."""

    def count(self, thread: str | None) -> int:
        """Return the number of checkpoints, of one thread or of all."""

    def threads(self) -> Sequence[str]:
        """Return the ids of all threads, in order."""

    def checkpoints(self, thread: str) -> list[CheckpointPlace]:
        """Return where a thread has checkpoints."""

    def write_counts(self, thread: str) -> dict[CheckpointPlace, WriteCount]:
        """Count the writes at each place that has any."""

    def read(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[ForeignCheckpoint]:
        """Read what is at these places, in this order."""


class CubeMessage(NamedTuple):
    """A message as plain data, its run, and its time in milliseconds."""

    plain: dict[str, Any]
    run: str | None
    time: int


class ForeignCubeRun(NamedTuple):
    """A run of an agent. Times are milliseconds. `completed`, and `order` of completion, are None until then."""

    id: str
    claimed: int
    completed: int | None
    order: int | None


class CubeDetails(NamedTuple):
    """What a CubeLoop thread has besides its messages. `extra` is None if there is no row for it."""

    runs: Sequence[ForeignCubeRun]
    extra: dict[str, Any] | None
    parent: str | None
    pending: tuple[dict[str, Any], str | None] | None
    answers: Mapping[tuple[str, str], Any]


class ForeignCubeThreads(Protocol):
    """The CubeLoop threads of a source."""

    def count(self, thread: str | None) -> int:
        """Return the number of messages, of one thread or of all."""

    def threads(self) -> Sequence[str]:
        """Return the ids of all threads, in order."""

    def details(self, thread: str) -> CubeDetails:
        """Read all of a thread except its messages."""

    def messages(self, thread: str, start: int) -> Iterator[CubeMessage]:
        """Read its messages in order, from number `start` on."""


class ForeignMemory(NamedTuple):
    """A memory, and its vectors (float32, little-endian) if the source has any."""

    row: MemoryRow
    vectors: tuple[bytes, ...] = ()


class ForeignMemories(Protocol):
    """The memories of a source, from a LangGraph store."""

    def count(self) -> int:
        """Return the number of memories."""

    def has_vectors(self) -> bool:
        """Whether the source has vectors for any of them."""

    def rows(self) -> Iterator[ForeignMemory | UnreadableError]:
        """Read all memories. One that cannot be read comes as its error."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open source: its kind, and what it has."""

    kind: str
    graph: ForeignGraphThreads | None = None
    cube: ForeignCubeThreads | None = None
    memories: ForeignMemories | None = None
    close: Callable[[], None] = lambda: None


def milliseconds(time: datetime | None) -> int | None:
    """Return a time in milliseconds since 1970. A time without a zone is UTC."""
    return microseconds(time) // 1000 if time is not None else None


def microseconds(time: datetime) -> int:
    """Return a time in microseconds since 1970, likewise."""
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def parse_time(text: Any) -> datetime | None:
    """Parse an ISO 8601 time; None if it is none."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def time_of(place: CheckpointPlace, checkpoint: EncodedCheckpoint | None) -> int | None:
    """Return when a checkpoint was created, by its own field or by its id; None if neither tells."""
    own = milliseconds(parse_time(checkpoint.fields.get("ts"))) if checkpoint is not None else None
    if own is not None and own >= 0:
        return own
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
