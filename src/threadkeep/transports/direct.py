"""The transport for the in-memory backend: it executes requests under a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from threadkeep.drivers import forks
from threadkeep.engine.health.requests import LoadStorageFacts
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import Batch, ReadClock
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
    commits_at_once = False

    def __init__(self, backend: DirectBackend, *, read_only: bool = False) -> None:
        self._backend = backend
        self.read_only = read_only
        self._lock = threading.RLock()  # a finalizer may come in the middle of a change
        forks.watch(self)

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""
        if isinstance(request, (LoadStorageFacts, ReadClock)):
            if isinstance(request, ReadClock):
                from threadkeep.drivers.uptime import machine_clock  # noqa: PLC0415 - on use

                return machine_clock()
            return {"backend": "memory", "durability": "none"}
        with self._lock:
            return self._backend.answer(request)

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes one after the other; each is atomic."""
        if self.read_only:
            raise ReadOnly
        with self._lock:
            return [try_execute(self._backend.answer, request) for request in requests]

    def try_commit(self, batch: Batch) -> bool:  # noqa: ARG002
        """Return False: Ctrl-C could interrupt a change of dicts, so a worker makes it."""
        return False

    def try_drop(self, key: ThreadKey, *, sealed: bool = False) -> bool:  # noqa: ARG002
        """Return False, as `try_commit` does."""
        return False

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
