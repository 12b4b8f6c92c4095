"""What callers want done to a talk, and why it may be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.talks.form import packed


class Refused(Exception):
    """A talk is not in the state that a verb needs. `reason` is one of the constants below."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


CLAIMED_ALREADY, COMPLETED_ALREADY, NOT_CLAIMED = "claimed already", "completed already", "not claimed"
NOT_COMPLETED, NO_THREAD, THREAD_EXISTS = "not completed", "no thread", "thread exists"


class Message(NamedTuple):
    """A message, encoded; `begins` says that it is the user's turn."""

    data: bytes
    id: str
    run: str | None
    begins: bool


@dataclass(slots=True, kw_only=True)
class Op:
    """What somebody wants done to a talk. `time` is milliseconds, `draw` a random number."""

    time: int
    draw: int


@dataclass(slots=True)
class Append(Op):
    """Add messages, but for those whose id is there already; or `every` one, as another checkpointer had them."""

    messages: Sequence[Message]
    every: bool = False


@dataclass(slots=True)
class Adopt(Op):
    """Say what a talk was forked from, if it has not begun yet."""

    parent: str


@dataclass(slots=True)
class Merge(Op):
    """Put entries into extra."""

    extra: dict[str, Any]


@dataclass(slots=True)
class Ask(Op):
    """Let a question wait for its answer; None if none does."""

    pending: tuple[dict[str, Any], str | None] | None


@dataclass(slots=True)
class Settle(Op):
    """Let no question wait, if it is this one; whether it was."""

    question: str
    run: str


@dataclass(slots=True)
class Answer(Op):
    """Keep an answer."""

    run: str
    question: str
    answer: Any


@dataclass(slots=True)
class Forget(Op):
    """Drop answers of a run: to these questions, or to all."""

    run: str
    questions: Sequence[str] | None


@dataclass(slots=True)
class Claim(Op):
    """Begin a run. One that is under way may be claimed again when it did nothing for `patience` milliseconds."""

    run: str
    patience: float | None = None


@dataclass(slots=True)
class Complete(Op):
    """End a run."""

    run: str


AnyOp: TypeAlias = Append | Adopt | Merge | Ask | Settle | Answer | Forget | Claim | Complete


def message(dumped: Mapping[str, Any]) -> Message:
    """A message from its plain form."""
    return Message(packed(dumped), dumped.get("id") or "", dumped.get("run_id"), dumped.get("role") == "user")
