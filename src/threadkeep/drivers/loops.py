"""Call blocking code from event loops, and coroutines from blocking code.

run_in_thread      async; blocking work in a pool thread; a cancelled caller returns at once, the work continues
finish_in_thread   async; the same, but a cancelled caller waits until the work has ended
run_in_own_loop    blocking; a coroutine in a new thread with an event loop of its own
call_or_task       blocking work outside an event loop, a task inside one
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


async def run_in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a thread of the loop's pool. If the caller is cancelled, the work continues without it."""
    return await asyncio.to_thread(work)


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a thread of the loop's pool.

    A cancelled caller waits for the work to end, so it does not close what the work still uses.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def run_in_own_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end in a new thread and event loop, and wait for it."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(asyncio.run(make()))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)

    threading.Thread(target=work, name="threadkeep-own-loop").start()
    return done.result()


def call_or_task(call: Callable[[], T], make: Callable[[], Coroutine[Any, Any, T]]) -> T | asyncio.Future[T]:
    """Outside an event loop, return what `call` returns. Inside one, return a task of the coroutine from `make`."""
    return asyncio.ensure_future(make()) if in_event_loop() else call()


def in_event_loop() -> bool:
    """Return whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Done:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()
