"""Calls verbs sync or async, so that one test body tests both `put` and `aput`."""

from __future__ import annotations

import asyncio
from typing import Any


class SyncCaller:
    """Calls the sync verb in a worker thread, where it may block."""

    async def __call__(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(target, verb), *args, **kwargs)

    async def every(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        return await asyncio.to_thread(lambda: list(getattr(target, verb)(*args, **kwargs)))


class AsyncCaller:
    """Awaits the async verb on the test's event loop."""

    async def __call__(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        return await getattr(target, f"a{verb}")(*args, **kwargs)

    async def every(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        return [found async for found in getattr(target, f"a{verb}")(*args, **kwargs)]


Caller = SyncCaller | AsyncCaller


class Ask:
    """Calls sync or async verbs from a sync test, which may block: `ask(keep, "branches", "t")`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __call__(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self._caller(target, verb, *args, **kwargs))

    def every(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        return asyncio.run(self._caller.every(target, verb, *args, **kwargs))
