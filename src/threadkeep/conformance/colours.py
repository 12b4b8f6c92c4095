"""One test body for both colours: `put` is called as it is, or as `aput` on an event loop that runs meanwhile.

What a fixture gives is opened, used and closed while one loop runs, in a thread of its own. So a store that is bound to
its loop can be tested in either colour, and a test project needs no plugin for asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any

PATIENCE = 60.0
"""Seconds after which an async call counts as hanging."""

HANGING = 10.0
"""Seconds after which a story that may wait for itself counts as hanging."""

THREADS = 16
"""How many threads call at once in `Sync.together`."""


class Host:
    """An event loop in a thread. Its first task opens what was given, waits, and closes it again."""

    def __init__(self, given: Any, kind: type, *, enters: bool = False) -> None:
        self._opening: Future[Any] = Future()
        self._closing: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        threading.Thread(target=self._run, args=(given, kind, enters), daemon=True).start()
        self.target = _in_time(self._opening, PATIENCE)

    def _run(self, given: Any, kind: type, enters: bool) -> None:  # noqa: FBT001 - threads call it with a tuple
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._live(given, kind, enters=enters))
        except BaseException as problem:  # noqa: BLE001 - it is raised again, in the thread of the test
            (self._closing if self._opening.done() else self._opening).set_exception(problem)
        else:
            self._closing.set_result(None)

    async def _live(self, given: Any, kind: type, *, enters: bool) -> None:
        async with AsyncExitStack() as stack:
            self._opening.set_result(await _entered(given, kind, stack, enters=enters))
            await self._over.wait()

    def wait(self, asked: Coroutine[Any, Any, Any], limit: float = PATIENCE) -> Any:
        """What a coroutine gives, on the loop; one that takes too long is cancelled."""
        answer = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            return _in_time(answer, limit)
        finally:
            answer.cancel()

    def close(self) -> None:
        """Close what was opened, and end the loop."""
        self._loop.call_soon_threadsafe(self._over.set)
        _in_time(self._closing, PATIENCE)


def _in_time(answer: Future[Any], limit: float) -> Any:
    """The answer, or an error that says how long was waited for it."""
    if not wait([answer], limit).done:
        raise TimeoutError(f"there is no end to it after {limit:g} seconds")
    return answer.result()


def _answer(answer: Future[Any], ask: Callable[[], Any]) -> None:
    """Let a future have what a call gives or raises."""
    try:
        answer.set_result(ask())
    except BaseException as problem:  # noqa: BLE001 - it is raised again, in the thread of the test
        answer.set_exception(problem)


async def _outcome(method: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a call of an async method gives; an async iterator is read to its end."""
    asked = method(*args, **kwargs)
    return [found async for found in asked] if isinstance(asked, AsyncIterator) else await asked


async def _entered(given: Any, kind: type, stack: AsyncExitStack, *, enters: bool = False) -> Any:
    """The store or saver behind what a fixture gave: itself, a context manager of it, or a function that makes it.

    `enters` says that what is its own context manager is entered, unless it came out of another one.
    """
    if inspect.isawaitable(given):
        return await _entered(await given, kind, stack, enters=enters)
    if _is(given, kind) and not (enters and hasattr(type(given), "__aenter__")):
        return given
    if hasattr(type(given), "__aenter__"):
        return await _entered(await stack.enter_async_context(given), kind, stack)
    if hasattr(type(given), "__enter__"):
        return await _entered(stack.enter_context(given), kind, stack)
    if callable(given):
        return await _entered(given(), kind, stack, enters=enters)
    raise TypeError(
        f"the fixture gave {given!r}; give a {kind.__name__}, a context manager of one, or a function without arguments"
    )


def _is(given: Any, kind: type) -> bool:
    """Whether it is one of a kind; a class is none, also if the kind is a protocol and the class has all its methods."""
    return not isinstance(given, type) and isinstance(given, kind)


class Sync:
    """A store, saver or graph whose verbs are called in their sync spelling, in the thread of the test."""

    is_async = False

    def __init__(self, target: Any, host: Host) -> None:
        self.target, self._host = target, host

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: _listed(getattr(self.target, verb)(*args, **kwargs))

    def together(self, verb: str, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call a verb once for each of these arguments, from many threads at once."""
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(lambda args: getattr(self, verb)(*args), calls))

    def play(self, story: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:  # noqa: ARG002 - the other colour's
        """Let the first of two stories happen to the target itself: the sync one, in a thread that may be left behind."""
        ending: Future[Any] = Future()
        threading.Thread(target=_answer, args=(ending, lambda: story(self.target)), daemon=True).start()
        return _in_time(ending, HANGING)

    def beside(self, other: Any) -> Sync:
        """Another object, in the same colour."""
        return Sync(other, self._host)


def _listed(given: Any) -> Any:
    return list(given) if isinstance(given, Iterator) else given


class Async:
    """A store, saver or graph whose verbs are called in their async spelling, on the loop of its host."""

    is_async = True

    def __init__(self, target: Any, host: Host) -> None:
        self.target, self._host = target, host

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._host.wait(_outcome(getattr(self.target, f"a{verb}"), args, kwargs))

    def together(self, verb: str, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call a verb once for each of these arguments, as tasks at once."""
        method = getattr(self.target, f"a{verb}")

        async def gathered() -> list[Any]:
            return await asyncio.gather(*(_outcome(method, args, {}) for args in calls))

        answers: list[Any] = self._host.wait(gathered())
        return answers

    def play(self, other: Callable[[Any], Any], story: Callable[[Any], Any]) -> Any:  # noqa: ARG002 - the other colour's
        """Let the second of two stories happen to the target itself: the async one."""
        return self._host.wait(story(self.target), HANGING)

    def beside(self, other: Any) -> Async:
        """Another object, in the same colour."""
        return Async(other, self._host)


Colour = Sync | Async
COLOURS: dict[str, type[Colour]] = {"sync": Sync, "async": Async}


@contextmanager
def hosted(given: Any, kind: type, *, enters: bool = False) -> Iterator[Host]:
    """A loop with what a fixture gave, open. A sync context manager is entered in the thread of the test."""
    with ExitStack() as stack:
        if _is_sync_manager(given, kind):
            given = stack.enter_context(given)
        host = Host(given, kind, enters=enters)
        stack.callback(host.close)
        yield host


@contextmanager
def opened(given: Any, kind: type, colour: str) -> Iterator[Colour]:
    """What a fixture gave, open and in one colour."""
    with hosted(given, kind) as host:
        yield COLOURS[colour](host.target, host)


def _is_sync_manager(given: Any, kind: type) -> bool:
    made = type(given)
    return not _is(given, kind) and hasattr(made, "__enter__") and not hasattr(made, "__aenter__")
