"""Background threads: periodic work, and work that nobody waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Self

from threadkeep.errors import Closed, ReadOnly

_log = logging.getLogger(__name__)
_DEFAULT_MINUTES = 5.0


class PeriodicRun(Future[None]):
    """A future that is done when periodic work has ended; cancelling it ends the work. Awaiting it returns itself."""

    def __await__(self) -> Generator[Any, None, Self]:
        """Return at once: callers of LangGraph's async stores await the start of the sweeper."""
        yield from ()
        return self


class Periodic:
    """Repeats some work every few minutes, in a daemon thread, until it is stopped or the work raises Closed."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._run = PeriodicRun()

    def start(self, work: Callable[[], object], minutes: float | None) -> PeriodicRun:
        """Start, unless it is running already. The work is first done after `minutes` (default 5)."""
        if self._thread is None or not self._thread.is_alive():
            self._stop, self._run = threading.Event(), PeriodicRun()
            self._run.add_done_callback(lambda done: self._stop.set() if done.cancelled() else None)
            arguments = (work, minutes or _DEFAULT_MINUTES, self._stop, self._run)
            self._thread = threading.Thread(target=_repeat, args=arguments, name="threadkeep-sweeper", daemon=True)
            self._thread.start()
        return self._run

    def stop(self, timeout: float | None = None) -> bool:
        """Stop, and wait for the thread to end, at most `timeout` seconds. Return whether it has ended."""
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
        except Exception:  # noqa: BLE001 - it may work the next time
            _log.exception("sweeping failed")
    if not run.done():
        run.set_result(None)


def in_background(work: Callable[[], object]) -> None:
    """Do some work in a daemon thread. Log what it raises, except Closed and ReadOnly."""

    def work_and_log() -> None:
        try:
            work()
        except (Closed, ReadOnly):
            return
        except Exception:  # noqa: BLE001 - nobody waits for it; it is logged
            _log.exception("background work failed")

    threading.Thread(target=work_and_log, name="threadkeep-background", daemon=True).start()
