"""A few threads that do what event loops and interruptible callers must not do themselves.

They start when there is work and end when there has been none for a while, so a forgotten Keep leaves nothing behind.
They are daemons, because Python joins other threads before it would let these be told to end; at exit they finish
what is queued.

A caller may be interrupted (Ctrl-C) at any point of `submit`: the queue is C code and takes a job or does not, and all
counting is done by the workers themselves.
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
_PATIENCE = 5.0
"""Seconds without work after which a worker ends."""


class Workers:
    """About `most` threads at most. After each job its worker also does `after`. Neither may raise."""

    def __init__(self, most: int, after: Job) -> None:
        self._most = most
        self._after = after
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._visitors = 0
        self._stopped = False
        self._process = os.getpid()

    def submit(self, job: Job) -> None:
        """Have a job done soon. One that comes after `stop` is done at once, in the caller's thread."""
        self._jobs.put(job)
        if self._stopped:
            self._finish_queue()
        elif self._jobs.qsize() >= self._idle and len(self._threads) < self._most:
            threading.Thread(target=self._work, name="threadkeep", daemon=True).start()

    def have_more(self) -> bool:
        """Whether jobs are waiting, so that `after` will come again soon."""
        return not self._stopped and not self._jobs.empty()

    @contextmanager
    def visited(self) -> Iterator[None]:
        """While a caller does a worker's work in its own thread: `stop` waits for that too."""
        with self._lock:
            self._visitors += 1
        try:
            yield
        finally:
            with self._lock:
                self._visitors -= 1

    def stop(self) -> None:
        """Finish what is queued and end all threads; but a forked child leaves the parent's alone."""
        if self._process != os.getpid():
            return
        self._stopped = True
        with self._lock:
            workers = [worker for worker in self._threads if worker is not threading.current_thread()]
        while any(worker.is_alive() for worker in workers):
            for _ in workers:
                self._jobs.put(None)
            for worker in workers:  # callers that come now finish the queue too, and may take what ends a worker
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
                self._after()

    def _work(self) -> None:
        self._join_in()
        while (job := self._next()) is not None:
            job()
            self._after()
            del job  # what it holds may be forgotten while we wait

    def _join_in(self) -> None:
        with self._lock:
            if not self._threads:
                atexit.register(self.stop)
            self._threads.add(threading.current_thread())

    def _next(self) -> Job | None:
        """The next job; None when it is time to end."""
        while True:
            try:
                job = self._waiting()
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
            self._join_in()  # a job came while we left

    def _waiting(self) -> Job | None:
        with self._lock:
            self._idle += 1
        try:
            return self._jobs.get(timeout=_PATIENCE)
        finally:
            with self._lock:
                self._idle -= 1
