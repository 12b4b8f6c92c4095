"""Calling a checkpointer from a test; and what talks are made of, short to write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from cubeloop.checkpointer.base import CheckpointData
from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import AssistantMessage, Message, TextContent, UserMessage

from threadkeep.conformance.colours import Host


@runtime_checkable
class Checkpointer(Protocol):
    """The three verbs that every checkpointer has, from the first release of the framework on."""

    async def load(self, thread_id: str) -> CheckpointData | None:
        """A thread, or None."""

    async def append(self, thread_id: str, messages: list[Message]) -> None:
        """Add messages."""

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        """Merge into extra."""


class Cube:
    """A checkpointer whose verbs are called in the thread of the test and run on the loop of its host."""

    def __init__(self, host: Host) -> None:
        self.target, self._host = host.target, host

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._host.wait(getattr(self.target, verb)(*args, **kwargs))

    def together(self, verb: str, calls: Iterable[Sequence[Any]], **same: Any) -> list[Any]:
        """Call a verb once for each of these arguments, as tasks at once; `same` is given to all."""
        return self._gathered(verb, calls, same, errors=False)

    def attempts(self, verb: str, calls: Iterable[Sequence[Any]], **same: Any) -> list[Any]:
        """The same, with errors among the answers."""
        return self._gathered(verb, calls, same, errors=True)

    def _gathered(self, verb: str, calls: Iterable[Sequence[Any]], same: dict[str, Any], *, errors: bool) -> list[Any]:
        method = getattr(self.target, verb)

        async def gathered() -> list[Any]:
            return await asyncio.gather(*(method(*args, **same) for args in calls), return_exceptions=errors)

        answers: list[Any] = self._host.wait(gathered())
        return answers

    def play(self, story: Callable[[Any], Awaitable[Any]]) -> Any:
        """Let a story happen to the checkpointer itself, on its loop."""

        async def played() -> Any:
            return await story(self.target)

        return self._host.wait(played())


def both(one: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
    """Do two things at once, in two threads; what they give."""
    with ThreadPoolExecutor(2) as threads:
        return [doing.result() for doing in [threads.submit(one), threads.submit(other)]]


def said(text: str, run: str | None = None, **more: Any) -> UserMessage:
    """A message of a user."""
    return UserMessage(content=[TextContent(text=text)], run_id=run, **more)


def replied(text: str, run: str | None = None, **more: Any) -> AssistantMessage:
    """A message of a model."""
    return AssistantMessage(content=[TextContent(text=text)], run_id=run, **more)


def loaded(cube: Cube, thread: str = "t") -> CheckpointData:
    """A thread that must be there."""
    found = cube.load(thread)
    assert isinstance(found, CheckpointData), f"no thread {thread!r}"
    return found


def texts(messages: Iterable[Message]) -> list[str]:
    """What messages say, in their order."""
    return [content.text for message in messages for content in message.content if isinstance(content, TextContent)]


def told(cube: Cube, thread: str = "t") -> list[str]:
    """What the messages of a thread say."""
    return texts(loaded(cube, thread).messages)


def run(cube: Cube, name: str, *words: str, thread: str = "t") -> None:
    """A whole run: claimed, with messages, completed."""
    cube.claim_run(thread, name)
    if words:
        cube.append(thread, [said(word, name) for word in words])
    cube.mark_run_complete(thread, name)


def question(name: str = "q", prompt: str = "Shall I?") -> HitlRequest:
    """A question to a person."""
    return HitlRequest(question_id=name, thread_id="t", payload=ConfirmRequest(prompt=prompt), created_at=1.5)


def everything(cube: Cube, thread: str = "t") -> dict[str, Any]:
    """All of a thread that can be compared."""
    found = loaded(cube, thread)
    messages = [message.model_dump() for message in found.messages]
    return {"messages": messages, "extra": found.extra, "parent": found.parent_thread_id}
