"""The transport for the in-memory backend: it executes requests under a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from threadkeep.drivers import forks
from threadkeep.engine.health.requests import LoadStorageFacts
from threadkeep.engine.requests import Batch, Commit
from threadkeep.engine.schema_versions import SCHEMA_VERSION, SchemaVersions
from threadkeep.errors import ReadOnly
from threadkeep.plan import Outcome, Request, try_execute


class DirectBackend(Protocol):
    """A backend that answers a request by itself, without a database."""

    def answer(self, request: Request[Any]) -> Any:
        """Execute one request."""


class Direct:
    """Executes requests one at a time, in the caller's thread. A forked child has its own copy of the rows."""

    writers = 1

    def __init__(self, backend: DirectBackend, *, read_only: bool = False) -> None:
        self._backend = backend
        self.read_only = read_only
        self._lock = threading.Lock()
        forks.watch(self)

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""
        if isinstance(request, LoadStorageFacts):
            return {"backend": "memory", "durability": "none"}
        with self._lock:
            return self._backend.answer(request)

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes one after the other; each is atomic."""
        if self.read_only:
            raise ReadOnly
        with self._lock:
            return [try_execute(self._backend.answer, request) for request in requests]

    def try_commit(self, batch: Batch) -> bool:
        """Commit a batch in the calling thread. False if others use the rows, or if Ctrl-C could interrupt this."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main or self.read_only or not self._lock.acquire(blocking=False):
            return False
        try:
            self._backend.answer(Commit(batch))
        finally:
            self._lock.release()
        return True

    def setup(self) -> None:
        """Do nothing."""

    def schema(self) -> SchemaVersions:
        """Return the current version: there is nothing older in memory."""
        return SchemaVersions.of_row(SCHEMA_VERSION)

    def migrate(self) -> None:
        """Do nothing."""

    def copy_to_file(self, path: Path, on_progress: Callable[[int, int], object]) -> bool:  # noqa: ARG002
        """Return False: a portable file can hold what is in memory."""
        return False

    def close(self) -> None:
        """Do nothing."""

    def before_fork(self) -> None:
        """Let no fork happen in the middle of a change."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002 - the same on both sides
        """Release the lock."""
        self._lock.release()
