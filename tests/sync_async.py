"""The two colours of a call. Savers and graphs spell every verb twice, `put` and `aput`: one test body serves both."""

from __future__ import annotations

import asyncio
from typing import Any


class Sync:
    """Calls the sync spelling, in a worker thread: it may block there."""

    async def __call__(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(target, verb), *args, **kwargs)

    async def every(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        return await asyncio.to_thread(lambda: list(getattr(target, verb)(*args, **kwargs)))


class Async:
    """Calls the async spelling, `a` and the verb, on the test's own loop."""

    async def __call__(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        return await getattr(target, f"a{verb}")(*args, **kwargs)

    async def every(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        return [found async for found in getattr(target, f"a{verb}")(*args, **kwargs)]


Colour = Sync | Async
