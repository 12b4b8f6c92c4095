"""Changes that wait for the reply of a server of a cluster, or for its replicas to confirm them.

A thread waits for their replies, so that changes on other servers do not. The runner asks for them again: they are not
sent a second time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from redis import exceptions as errors

from threadkeep.drivers.retries import TryLater
from threadkeep.plan import Request
from threadkeep.transports.valkey_pipeline import PendingCall, Pipeline

_MOST_PER_SERVER = 32
"""So many pipelines may be unfinished at a server before other changes to it have to wait."""


class UnfinishedChanges:
    """The unfinished changes of a Keep. One that nobody has asked for in `timeout` seconds is forgotten."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[float, Request[Any], list[PendingCall]]] = {}
        self._pipelines: dict[str, list[Pipeline]] = {}

    def __bool__(self) -> bool:
        return bool(self._kept or self._pipelines)

    def wait_for(self, name: str, pipeline: Pipeline, on_end: Callable[[], None]) -> None:
        """Read the replies to a pipeline in a thread, and then call `on_end`."""
        for call in pipeline.pending:
            call.pipeline = pipeline
        with self._lock:
            self._pipelines.setdefault(name, []).append(pipeline)
        arguments = (name, pipeline, on_end)
        threading.Thread(target=self._receive, args=arguments, name="threadkeep-valkey", daemon=True).start()

    def _receive(self, name: str, pipeline: Pipeline, on_end: Callable[[], None]) -> None:
        try:
            pipeline.receive()
            on_end()
        finally:
            with self._lock:
                self._pipelines[name].remove(pipeline)
                if not self._pipelines[name]:
                    del self._pipelines[name]

    def servers(self) -> list[str]:
        """Return the servers that have not replied yet."""
        return list(self._pipelines)

    def are_too_many(self, name: str) -> bool:
        """Return whether other changes to a server have to wait."""
        return len(self._pipelines.get(name, ())) >= _MOST_PER_SERVER

    def keep(self, request: Request[Any], calls: list[PendingCall]) -> None:
        """Keep the calls of a change until the same request is made again."""
        now = time.monotonic()
        with self._lock:
            forgotten = [key for key, (kept_at, *_) in self._kept.items() if now - kept_at > self._timeout]
            for key in forgotten:
                del self._kept[key]
            self._kept[id(request)] = (now, request, calls)

    def take(self, request: Request[Any]) -> list[PendingCall] | None:
        """Return the calls of a change that was sent before; None if they have to be sent again."""
        with self._lock:
            _, kept, calls = self._kept.pop(id(request), (0.0, None, []))
        if kept is not request:
            return None
        for call in calls:
            if call.pipeline is not None and call.pipeline.is_finished:
                call.pipeline = None
        done = all(call.pipeline is None for call in calls)
        again = done and any(isinstance(call.reply, (errors.RedisError, OSError, TryLater)) for call in calls)
        return None if again else calls
