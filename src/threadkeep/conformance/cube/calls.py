"""Calls a CubeLoop checkpointer's async verbs from a sync test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from cubeloop.checkpointer.base import CheckpointData
from cubeloop.providers.base import Message

from threadkeep.conformance.sync_async import LoopThread


@runtime_checkable
class Checkpointer(Protocol):
    """The three verbs that every checkpointer has had since CubeLoop's first release."""

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Return a thread, or None."""

    async def append(self, thread_id: str, messages: list[Message]) -> None:
        """Append messages."""

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        """Merge entries into extra."""


class Cube:
    """A checkpointer whose verbs are called from the test's thread and run on an event loop."""

    def __init__(self, loop: LoopThread) -> None:
        self.target, self._loop = loop.target, loop

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._loop.wait(getattr(self.target, verb)(*args, **kwargs))

    def call_concurrently(self, verb: str, calls: Iterable[Sequence[Any]], **shared: Any) -> list[Any]:
        """Call a verb once for each tuple of arguments, as concurrent tasks. All get the `shared` arguments."""
        return self._gather(verb, calls, shared, errors=False)

    def try_concurrently(self, verb: str, calls: Iterable[Sequence[Any]], **shared: Any) -> list[Any]:
        """Do the same, and return errors among the results."""
        return self._gather(verb, calls, shared, errors=True)

    def _gather(self, verb: str, calls: Iterable[Sequence[Any]], shared: dict[str, Any], *, errors: bool) -> list[Any]:
        method = getattr(self.target, verb)

        async def gather() -> list[Any]:
            return await asyncio.gather(*(method(*args, **shared) for args in calls), return_exceptions=errors)

        results: list[Any] = self._loop.wait(gather())
        return results

    def run_on_target(self, function: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await a function with the checkpointer itself, on its loop."""

        async def run() -> Any:
            return await function(self.target)

        return self._loop.wait(run())


def run_both(one: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
    """Call two functions at once, in two threads, and return both results."""
    with ThreadPoolExecutor(2) as threads:
        return [future.result() for future in [threads.submit(one), threads.submit(other)]]
