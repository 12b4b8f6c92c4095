"""Threads that nobody waits for: work that is repeated, and work that is done once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Self

from threadkeep.errors import Closed, ReadOnly

_log = logging.getLogger(__name__)
_MINUTES = 5.0


class PeriodicRun(Future[None]):
    """Done when the repeating has ended. Cancelling it ends it. Awaiting it returns the run itself, at once."""

    def __await__(self) -> Generator[Any, None, Self]:
        """LangGraph's async stores have their sweeper's start awaited."""
        yield from ()
        return self


class Periodic:
    """Repeats some work every few minutes, in a daemon thread of its own, until it is stopped or raises Closed."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._run = PeriodicRun()

    def start(self, work: Callable[[], object], minutes: float | None) -> PeriodicRun:
        """Start, unless it is running already. The first time is after `minutes`, by default 5."""
        if self._thread is None or not self._thread.is_alive():
            self._stop, self._run = threading.Event(), PeriodicRun()
            self._run.add_done_callback(lambda done: self._stop.set() if done.cancelled() else None)
            arguments = (work, minutes or _MINUTES, self._stop, self._run)
            self._thread = threading.Thread(target=_repeat, args=arguments, name="threadkeep-sweeper", daemon=True)
            self._thread.start()
        return self._run

    def stop(self, timeout: float | None = None) -> bool:
        """Stop, and wait until the thread has ended. Return whether it has."""
        self._stop.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()


def _repeat(work: Callable[[], object], minutes: float, stop: threading.Event, run: PeriodicRun) -> None:
    while not stop.wait(minutes * 60):
        try:
            work()
        except Closed:
            break
        except Exception:  # noqa: BLE001 - the next time it may work again
            _log.exception("sweeping failed")
    if not run.done():
        run.set_result(None)


def in_background(work: Callable[[], object]) -> None:
    """Do some work in a daemon thread. What it raises is logged, unless the Keep was closed or is read-only."""

    def logged() -> None:
        try:
            work()
        except (Closed, ReadOnly):
            return
        except Exception:  # noqa: BLE001 - nobody waits, but somebody may read it
            _log.exception("work in the background failed")

    threading.Thread(target=logged, name="threadkeep-background", daemon=True).start()
