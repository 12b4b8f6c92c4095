"""The transport of the memory backend: a lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from threadkeep.drivers import forks
from threadkeep.engine.health.requests import LoadStorageFacts
from threadkeep.errors import ReadOnly
from threadkeep.plan import Outcome, Request, answer


class Answering(Protocol):
    """A backend that needs nothing but the request."""

    def answer(self, request: Request[Any]) -> Any:
        """Execute one request."""


class Direct:
    """Executes requests one at a time, in the caller's thread. A forked child goes on with its own copy of the rows."""

    writers = 1
    has_words = True

    def __init__(self, backend: Answering, *, read_only: bool = False) -> None:
        self._backend = backend
        self.read_only = read_only
        self._lock = threading.Lock()
        forks.watch(self)

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""
        if isinstance(request, LoadStorageFacts):
            return {"backend": "memory", "durability": "nothing lasts"}
        with self._lock:
            return self._backend.answer(request)

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes one after the other; each is atomic in itself."""
        if self.read_only:
            raise ReadOnly
        with self._lock:
            return [answer(self._backend.answer, request) for request in requests]

    def setup(self) -> None:
        """Nothing has to be set up."""

    def close(self) -> None:
        """Nothing is held."""

    def before_fork(self) -> None:
        """No fork in the middle of a change."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002 - the same on both sides
        """Go on."""
        self._lock.release()
