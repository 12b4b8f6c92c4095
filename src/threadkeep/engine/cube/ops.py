"""What callers want done to a talk, and why it may be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.cube.channels import packed


class Refused(Exception):
    """A talk is not in the state that a verb needs. `reason` is one of the constants below."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


CLAIMED_ALREADY, COMPLETED_ALREADY, NOT_CLAIMED = "claimed already", "completed already", "not claimed"
NOT_COMPLETED, NO_THREAD, THREAD_EXISTS = "not completed", "no thread", "thread exists"


class EncodedMessage(NamedTuple):
    """A message, encoded; `is_user` says that it is the user's turn."""

    data: bytes
    id: str
    run: str | None
    is_user: bool


@dataclass(slots=True, kw_only=True)
class CubeOp:
    """What somebody wants done to a talk. `time` is milliseconds, `nonce` a random number."""

    time: int
    nonce: int


@dataclass(slots=True)
class AppendMessages(CubeOp):
    """Add messages, but for those whose id is there already; or `keep_duplicates` one, as another checkpointer had them."""

    messages: Sequence[EncodedMessage]
    keep_duplicates: bool = False


@dataclass(slots=True)
class SetParent(CubeOp):
    """Say what a talk was forked from, if it has not begun yet."""

    parent: str


@dataclass(slots=True)
class MergeExtra(CubeOp):
    """Put entries into extra."""

    extra: dict[str, Any]


@dataclass(slots=True)
class SetPendingRequest(CubeOp):
    """Let a question wait for its answer; None if none does."""

    pending: tuple[dict[str, Any], str | None] | None


@dataclass(slots=True)
class ClearPendingRequest(CubeOp):
    """Let no question wait, if it is this one; whether it was."""

    question: str
    run: str


@dataclass(slots=True)
class SaveAnswer(CubeOp):
    """Keep an answer."""

    run: str
    question: str
    answer: Any


@dataclass(slots=True)
class ClearAnswers(CubeOp):
    """Drop answers of a run: to these questions, or to all."""

    run: str
    questions: Sequence[str] | None


@dataclass(slots=True)
class ClaimRun(CubeOp):
    """Begin a run. One that is under way may be claimed again when it did nothing for `patience` milliseconds."""

    run: str
    patience: float | None = None


@dataclass(slots=True)
class CompleteRun(CubeOp):
    """End a run."""

    run: str


AnyOp: TypeAlias = (
    AppendMessages
    | SetParent
    | MergeExtra
    | SetPendingRequest
    | ClearPendingRequest
    | SaveAnswer
    | ClearAnswers
    | ClaimRun
    | CompleteRun
)


def message(dumped: Mapping[str, Any]) -> EncodedMessage:
    """A message from its plain form."""
    return EncodedMessage(packed(dumped), dumped.get("id") or "", dumped.get("run_id"), dumped.get("role") == "user")
