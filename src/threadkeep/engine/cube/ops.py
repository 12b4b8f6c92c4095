"""The changes that callers request on a cube thread, and the reasons why one can be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.cube.channels import pack_json


class Refused(Exception):
    """A cube thread is not in the state that a verb needs. `reason` is one of the constants below."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


CLAIMED_ALREADY, COMPLETED_ALREADY, NOT_CLAIMED = "claimed already", "completed already", "not claimed"
NOT_COMPLETED, NO_THREAD, THREAD_EXISTS = "not completed", "no thread", "thread exists"


class EncodedMessage(NamedTuple):
    """An encoded message. `is_user` says whether it is the user's; one without a run starts a new checkpoint."""

    data: bytes
    id: str
    run: str | None
    is_user: bool


@dataclass(slots=True, kw_only=True)
class CubeOp:
    """A change to a cube thread. `time` is in milliseconds; `nonce` is a random number that identifies the call.

    `lease` is that of the caller.
    """

    time: int
    nonce: int
    lease: bytes | None = None


@dataclass(slots=True)
class AppendMessages(CubeOp):
    """Add messages, except those whose id the thread already has.

    With `keep_duplicates`, add every message, as an import from another checkpointer needs.
    """

    messages: Sequence[EncodedMessage]
    keep_duplicates: bool = False


@dataclass(slots=True)
class SetParent(CubeOp):
    """Record the thread that this one was forked from. Does nothing if this one already has a checkpoint."""

    parent: str


@dataclass(slots=True)
class MergeExtra(CubeOp):
    """Merge entries into the thread's extra."""

    extra: dict[str, Any]


@dataclass(slots=True)
class SetPendingRequest(CubeOp):
    """Set the pending request and its run, replacing any other; None removes it."""

    pending: tuple[dict[str, Any], str | None] | None


@dataclass(slots=True)
class ClearPendingRequest(CubeOp):
    """Remove the pending request if it has this question id and run. The reply says whether it had."""

    question: str
    run: str


@dataclass(slots=True)
class SaveAnswer(CubeOp):
    """Store the answer to a question of a run."""

    run: str
    question: str
    answer: Any


@dataclass(slots=True)
class ClearAnswers(CubeOp):
    """Remove a run's answers: those to these questions, or all."""

    run: str
    questions: Sequence[str] | None


@dataclass(slots=True)
class ClaimRun(CubeOp):
    """Start a run. An open run can be claimed again after `timeout_ms` milliseconds without activity."""

    run: str
    timeout_ms: float | None = None


@dataclass(slots=True)
class CompleteRun(CubeOp):
    """Complete a run."""

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


def encode_message(dumped: Mapping[str, Any]) -> EncodedMessage:
    """Encode a message that was dumped to plain data."""
    return EncodedMessage(pack_json(dumped), dumped.get("id") or "", dumped.get("run_id"), dumped.get("role") == "user")
