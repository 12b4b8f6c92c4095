"""Runs one test body sync and async: `store.put(...)` calls `put`, or awaits `aput` on an event loop.

The object under test is opened, used and closed while one event loop runs, in a thread of its own. So a store that is
bound to its loop can be tested both ways, and a test project needs no asyncio plugin.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any

Function = Callable[[Any], Any]

CALL_TIMEOUT = 60.0
"""Seconds after which an async call counts as hanging."""

DEADLOCK_TIMEOUT = 10.0
"""Seconds after which a call that might deadlock counts as hanging."""

THREADS = 16
"""Number of threads in `SyncCaller.call_concurrently`."""


class LoopThread:
    """An event loop in a thread. Its first task opens what the fixture returned, waits, and closes it again."""

    def __init__(self, source: Any, kind: type, *, enter: bool = False) -> None:
        self._opening: Future[Any] = Future()
        self._closing: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        threading.Thread(target=self._run, args=(source, kind, enter), daemon=True).start()
        self.target = _result_within(self._opening, CALL_TIMEOUT)

    def _run(self, source: Any, kind: type, enter: bool) -> None:  # noqa: FBT001 - threads call it with a tuple
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._open_and_wait(source, kind, enter=enter))
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            (self._closing if self._opening.done() else self._opening).set_exception(error)
        else:
            self._closing.set_result(None)

    async def _open_and_wait(self, source: Any, kind: type, *, enter: bool) -> None:
        async with AsyncExitStack() as stack:
            self._opening.set_result(await _open(source, kind, stack, enter=enter))
            await self._over.wait()

    def wait(self, call: Coroutine[Any, Any, Any], timeout: float = CALL_TIMEOUT) -> Any:
        """Run a coroutine on the loop and return its result. It is cancelled after the timeout."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return _result_within(future, timeout)
        finally:
            future.cancel()

    def close(self) -> None:
        """Close what was opened, and end the loop."""
        self._loop.call_soon_threadsafe(self._over.set)
        _result_within(self._closing, CALL_TIMEOUT)


def _result_within(future: Future[Any], timeout: float) -> Any:
    """Return a future's result, or raise TimeoutError."""
    if not wait([future], timeout).done:
        raise TimeoutError(f"the call did not return within {timeout:g} seconds")
    return future.result()


def _set_outcome(future: Future[Any], call: Callable[[], Any]) -> None:
    """Set a future to what a call returns or raises."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
        future.set_exception(error)


async def _await_call(method: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of an async method. An async iterator is read to its end."""
    call = method(*args, **kwargs)
    return [item async for item in call] if isinstance(call, AsyncIterator) else await call


async def _open(source: Any, kind: type, stack: AsyncExitStack, *, enter: bool = False) -> Any:
    """Return the object under test, from what a fixture returned: itself, a context manager, or a function.

    With `enter`, an object that is its own context manager is entered, unless another one returned it.
    """
    if inspect.isawaitable(source):
        return await _open(await source, kind, stack, enter=enter)
    if _is_instance(source, kind) and not (enter and hasattr(type(source), "__aenter__")):
        return source
    if hasattr(type(source), "__aenter__"):
        return await _open(await stack.enter_async_context(source), kind, stack)
    if hasattr(type(source), "__enter__"):
        return await _open(stack.enter_context(source), kind, stack)
    if callable(source):
        return await _open(source(), kind, stack, enter=enter)
    name = kind.__name__
    raise TypeError(
        f"the fixture returned {source!r}: return a {name}, a context manager of one, or a function without arguments"
    )


def _is_instance(source: Any, kind: type) -> bool:
    """Return whether this is an instance. A class is none, even if the kind is a protocol whose methods it has."""
    return not isinstance(source, type) and isinstance(source, kind)


class SyncCaller:
    """Calls the sync verbs of a store, saver or graph, in the test's thread."""

    is_async = False

    def __init__(self, target: Any, loop: LoopThread) -> None:
        self.target, self._loop = target, loop

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: _as_list(getattr(self.target, verb)(*args, **kwargs))

    def call_concurrently(self, verb: str, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call a verb once for each tuple of arguments, from many threads at once."""
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(lambda args: getattr(self, verb)(*args), calls))

    def run_on_target(self, function: Function, async_function: Function) -> Any:  # noqa: ARG002 - one for each caller
        """Call the first function with the target, in a thread that is left behind if it hangs."""
        future: Future[Any] = Future()
        threading.Thread(target=_set_outcome, args=(future, lambda: function(self.target)), daemon=True).start()
        return _result_within(future, DEADLOCK_TIMEOUT)

    def wrap(self, other: Any) -> SyncCaller:
        """Return a caller of another object."""
        return SyncCaller(other, self._loop)


def _as_list(result: Any) -> Any:
    return list(result) if isinstance(result, Iterator) else result


class AsyncCaller:
    """Calls the async verbs of a store, saver or graph, on its event loop."""

    is_async = True

    def __init__(self, target: Any, loop: LoopThread) -> None:
        self.target, self._loop = target, loop

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._loop.wait(_await_call(getattr(self.target, f"a{verb}"), args, kwargs))

    def call_concurrently(self, verb: str, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call a verb once for each tuple of arguments, as concurrent tasks."""
        method = getattr(self.target, f"a{verb}")

        async def gather() -> list[Any]:
            return await asyncio.gather(*(_await_call(method, args, {}) for args in calls))

        results: list[Any] = self._loop.wait(gather())
        return results

    def run_on_target(self, function: Function, async_function: Function) -> Any:  # noqa: ARG002 - one for each caller
        """Await the second function with the target."""
        return self._loop.wait(async_function(self.target), DEADLOCK_TIMEOUT)

    def wrap(self, other: Any) -> AsyncCaller:
        """Return a caller of another object."""
        return AsyncCaller(other, self._loop)


Caller = SyncCaller | AsyncCaller
CALLERS: dict[str, type[Caller]] = {"sync": SyncCaller, "async": AsyncCaller}


@contextmanager
def open_on_loop(source: Any, kind: type, *, enter: bool = False) -> Iterator[LoopThread]:
    """Open what a fixture returned, on an event loop. A sync context manager is entered in the test's thread."""
    with ExitStack() as stack:
        if _is_sync_manager(source, kind):
            source = stack.enter_context(source)
        loop = LoopThread(source, kind, enter=enter)
        stack.callback(loop.close)
        yield loop


@contextmanager
def open_caller(source: Any, kind: type, sync_or_async: str) -> Iterator[Caller]:
    """Open what a fixture returned, to be called sync or async."""
    with open_on_loop(source, kind) as loop:
        yield CALLERS[sync_or_async](loop.target, loop)


def _is_sync_manager(source: Any, kind: type) -> bool:
    cls = type(source)
    return not _is_instance(source, kind) and hasattr(cls, "__enter__") and not hasattr(cls, "__aenter__")
