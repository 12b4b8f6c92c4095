"""Worker threads: they do what event loops and interruptible callers must not do themselves.

Workers start when there is work and end after some seconds without any, so an unused Keep leaves no threads behind.
They are daemons: at exit Python joins other threads before atexit handlers could stop them. Our handler makes them
finish what is queued.

A caller may be interrupted (Ctrl-C) at any point of `submit`: the queue is C code and takes a job or does not, only the
workers themselves change the counts, and no job is queued before there is a worker.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

Job = Callable[[], None]
_IDLE_SECONDS = 5.0
"""A worker ends after so many seconds without work."""


class Workers:
    """Up to about `limit` threads. After each job, its worker also calls `after_job`. Neither may raise."""

    def __init__(self, limit: int, after_job: Job) -> None:
        self._limit = limit
        self._after_job = after_job
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._visitors = 0
        self._stopped = False
        self._process = os.getpid()

    def submit(self, job: Job) -> None:
        """Queue a job. After `stop`, or if there is no thread and none can be started, do it in the caller's thread."""
        is_first = not self._threads and not self._stopped
        has_none = is_first and not self._start()
        self._jobs.put(job)
        if self._stopped or has_none:
            self._finish_queue()
        elif not is_first and self._jobs.qsize() >= self._idle and len(self._threads) < self._limit:
            self._start()

    def _start(self) -> bool:
        """Start a thread, and return whether Python could: not at the system's limit, nor once the process ends."""
        try:
            threading.Thread(target=self._work, name="threadkeep", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def have_more(self) -> bool:
        """Return whether a worker is about to take a job, so that `after_job` will be called again soon."""
        return bool(self._threads) and not self._stopped and not self._jobs.empty()

    @contextmanager
    def visited(self) -> Iterator[None]:
        """Count a caller that does a worker's work in its own thread: `stop` waits for it too."""
        with self._lock:
            self._visitors += 1
        try:
            yield
        finally:
            with self._lock:
                self._visitors -= 1

    def stop(self) -> None:
        """Finish what is queued and end all threads. In a forked child, do nothing: the threads are the parent's."""
        if self._process != os.getpid():
            return
        self._stopped = True
        with self._lock:
            workers = [worker for worker in self._threads if worker is not threading.current_thread()]
        while any(worker.is_alive() for worker in workers):
            for _ in workers:
                self._jobs.put(None)
            for worker in workers:  # again and again: late callers also empty the queue, and may take a None
                worker.join(0.05)
        while self._visitors:
            time.sleep(0.001)
        self._finish_queue()

    def _finish_queue(self) -> None:
        while not self._jobs.empty():
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job()
                self._after_job()

    def _work(self) -> None:
        self._register()
        while (job := self._next()) is not None:
            job()
            self._after_job()
            del job  # so that what it refers to can be collected while we wait

    def _register(self) -> None:
        with self._lock:
            if not self._threads:
                atexit.register(self.stop)
            self._threads.add(threading.current_thread())

    def _next(self) -> Job | None:
        """Return the next job, or None when it is time to end."""
        while True:
            try:
                job = self._wait_for_job()
            except Empty:
                job = None
            if job is not None:
                return job
            with self._lock:
                self._threads.discard(threading.current_thread())
                if not self._threads:
                    atexit.unregister(self.stop)
            if self._stopped or self._jobs.empty():
                return None
            self._register()  # a job came meanwhile

    def _wait_for_job(self) -> Job | None:
        with self._lock:
            self._idle += 1
        try:
            return self._jobs.get(timeout=_IDLE_SECONDS)
        finally:
            with self._lock:
                self._idle -= 1
