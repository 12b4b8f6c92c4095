"""A timer: submits jobs after a while, so that nobody sleeps in a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Job = Callable[[], None]


class Timer:
    """Submits each job when its time has come, from one thread that exists only while a job waits.

    The thread is not a daemon: at exit, Python waits for jobs that wait.
    """

    def __init__(self, submit: Callable[[Job], None]) -> None:
        self._submit = submit
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._jobs: list[tuple[float, int, Job]] = []
        self._numbers = count()
        self._is_running = False
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, job: Job) -> None:
        """Submit a job after so many seconds."""
        with self._lock:
            heappush(self._jobs, (time.monotonic() + seconds, next(self._numbers), job))
            self._changed.notify_all()
            if self._is_running:
                return
            self._is_running = True
        thread = threading.Thread(target=self._run, name="threadkeep-timer", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self._run()
        else:
            self._thread = thread

    def wait(self) -> None:
        """Wait until no job waits, and the thread has ended."""
        with self._lock:
            self._changed.wait_for(lambda: not self._is_running)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                pause = self._jobs[0][0] - time.monotonic()
                if pause > 0:
                    self._changed.wait(pause)
                    continue
                job = heappop(self._jobs)[2]
            self._submit(job)
            del job  # so that what it refers to can be collected while we wait
