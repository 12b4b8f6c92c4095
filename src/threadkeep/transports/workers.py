"""A few threads that do what event loops and interruptible callers must not do themselves.

They start when there is work and end when there has been none for a while, so a forgotten Keep leaves nothing behind.
They are daemons, because Python joins other threads before it would let these be told to end; at exit they finish
what is queued.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable

_PATIENCE = 5.0
"""Seconds without work after which a worker ends."""


class Workers:
    """At most `most` threads. Jobs must not raise."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._stopping = False

    def submit(self, job: Callable[[], None]) -> None:
        """Have a job done soon."""
        with self._changed:
            self._jobs.append(job)
            if self._idle >= len(self._jobs) or len(self._threads) >= self._most:
                self._changed.notify()
                return
            worker = threading.Thread(target=self._work, name="threadkeep", daemon=True)
            if not self._threads:
                atexit.register(self.stop)
            self._threads.add(worker)
        worker.start()

    def stop(self) -> None:
        """Finish what is queued and end all threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            workers = [worker for worker in self._threads if worker is not threading.current_thread()]
        for worker in workers:
            worker.join()
        with self._changed:
            self._stopping = False

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # what it holds may be forgotten while we wait

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._stopping, timeout=_PATIENCE)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads.discard(threading.current_thread())
            if not self._threads:
                atexit.unregister(self.stop)
            return None
