"""A thread that sweeps now and then, and one for a coroutine that a sync caller needs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from threadkeep.errors import Closed, ReadOnly

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Sweeping(Future[None]):
    """Done when sweeping has ended; cancelling it ends it. It may be awaited, which gives itself at once."""

    def __await__(self) -> Generator[Any, None, Self]:
        """LangGraph's async stores have their sweeper's start awaited."""
        yield from ()
        return self


class Sweeper:
    """Calls `sweep` every some minutes, in a thread of its own, once it is started."""

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sweeping = Sweeping()

    def start(self, minutes: float) -> Sweeping:
        """Start, unless it runs already."""
        if self._thread is None or not self._thread.is_alive():
            self._stop, self._sweeping = threading.Event(), Sweeping()
            self._sweeping.add_done_callback(lambda done: self._stop.set() if done.cancelled() else None)
            arguments = (minutes, self._stop, self._sweeping)
            self._thread = threading.Thread(target=self._work, args=arguments, name="threadkeep-sweeper", daemon=True)
            self._thread.start()
        return self._sweeping

    def stop(self, timeout: float | None = None) -> bool:
        """Stop; whether nothing runs any more."""
        self._stop.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _work(self, minutes: float, stop: threading.Event, sweeping: Sweeping) -> None:
        while not stop.wait(minutes * 60):
            try:
                self._sweep()
            except Closed:
                break
            except Exception:  # noqa: BLE001 - the next time it may work again
                _log.exception("sweeping failed")
        if not sweeping.done():
            sweeping.set_result(None)


def in_background(work: Callable[[], object]) -> None:
    """Do something that nobody waits for."""

    def tell() -> None:
        try:
            work()
        except (Closed, ReadOnly):
            return
        except Exception:  # noqa: BLE001 - nobody waits, but somebody may read it
            _log.exception("work in the background failed")

    threading.Thread(target=tell, name="threadkeep-background", daemon=True).start()


def run_apart(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end in a thread and a loop of its own."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(asyncio.run(make()))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)

    threading.Thread(target=work, name="threadkeep-apart").start()
    return done.result()
