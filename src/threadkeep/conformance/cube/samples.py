"""Sample messages, runs and questions for CubeLoop threads, and functions that read threads back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cubeloop.checkpointer.base import CheckpointData
from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import AssistantMessage, Message, TextContent, UserMessage

from threadkeep.conformance.cube.calls import Cube


def user(text: str, run: str | None = None, **fields: Any) -> UserMessage:
    """Return a user's message."""
    return UserMessage(content=[TextContent(text=text)], run_id=run, **fields)


def assistant(text: str, run: str | None = None, **fields: Any) -> AssistantMessage:
    """Return a model's message."""
    return AssistantMessage(content=[TextContent(text=text)], run_id=run, **fields)


def question(name: str = "q", prompt: str = "Shall I?") -> HitlRequest:
    """Return a question to a person."""
    return HitlRequest(question_id=name, thread_id="t", payload=ConfirmRequest(prompt=prompt), created_at=1.5)


def do_run(cube: Cube, name: str, *texts: str, thread: str = "t") -> None:
    """Claim a run, append its messages, and complete it."""
    cube.claim_run(thread, name)
    if texts:
        cube.append(thread, [user(text, name) for text in texts])
    cube.mark_run_complete(thread, name)


def load(cube: Cube, thread: str = "t") -> CheckpointData:
    """Load a thread that must exist."""
    data = cube.load(thread)
    assert isinstance(data, CheckpointData), f"no thread {thread!r}"
    return data


def texts_of(messages: Iterable[Message]) -> list[str]:
    """Return the texts of messages, in order."""
    return [content.text for message in messages for content in message.content if isinstance(content, TextContent)]


def load_texts(cube: Cube, thread: str = "t") -> list[str]:
    """Load a thread that must exist, and return the texts of its messages."""
    return texts_of(load(cube, thread).messages)


def dump_thread(cube: Cube, thread: str = "t") -> dict[str, Any]:
    """Load a thread that must exist, and return all of it in a form that can be compared."""
    data = load(cube, thread)
    messages = [message.model_dump() for message in data.messages]
    return {"messages": messages, "extra": data.extra, "parent": data.parent_thread_id}
