"""Valkey outages: which servers do not answer, and the threads that wait for them.

A call to a server that is down fails at once, without a connection: it holds nothing that calls to other servers need.
One thread per server asks it until it answers. Another one asks the other servers, as long as any is down, whether a
replica has taken its place. Nobody else does either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis import Redis
from redis import exceptions as errors

from threadkeep.transports.valkey_nodes import LOST, client_name

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.2
"""Seconds between two questions to a server that is down."""
_REFRESH_SECONDS = 0.25
_FORGET_SECONDS = 5.0
"""A server that no call has needed for so long is forgotten; the next call to it tries again."""


class ServerDown(errors.ConnectionError):
    """The server did not answer the last time, and it has not answered since."""


def reason_of(client: Redis, error: Exception) -> str:
    """Return what went wrong, with the server's name."""
    name, text = client_name(client), str(error)
    return text if name in text else f"{name}: {text}"


class Outages:
    """The servers that are down. `refresh` asks the other servers which of them has which slots."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self._refresh = refresh
        self._down: dict[str, _Outage] = {}
        self._slow: set[str] = set()
        self._lock = threading.Lock()
        self._is_refreshing = False
        self._closed = threading.Event()

    def __bool__(self) -> bool:
        return bool(self._down)

    def names(self) -> list[str]:
        """Return the servers that are down."""
        return list(self._down)

    def is_slow(self, name: str) -> bool:
        """Return whether a server was once taken as down, although it was only slow."""
        return name in self._slow

    def error(self, name: str) -> ServerDown | None:
        """Return why a server is down, or None."""
        outage = self._down.get(name)
        if outage is None:
            return None
        outage.last_asked = time.monotonic()
        return ServerDown(outage.reason)

    def begin(self, client: Redis, error: Exception) -> None:
        """Mark a server as down until it answers. Does nothing if it is down already."""
        name = client_name(client)
        with self._lock:
            if name in self._down or self._closed.is_set():
                return
            self._down[name] = outage = _Outage(client, error)
        _start(lambda: self._wait_for(name, outage))
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Ask the servers which of them has which slots, now and as long as any server is down. Do not wait for it."""
        with self._lock:
            if self._is_refreshing or self._closed.is_set():
                return
            self._is_refreshing = True
        _start(self._keep_refreshing)

    def close(self) -> None:
        """End all threads. One that waits for a reply ends when its connection is closed."""
        self._closed.set()

    def _wait_for(self, name: str, outage: _Outage) -> None:
        pause = _SHORTEST_PAUSE
        while not outage.is_over() and not self._closed.wait(pause):
            pause = min(2 * pause, _LONGEST_PAUSE)
        if outage.was_slow:
            self._slow.add(name)
        del self._down[name]

    def _keep_refreshing(self) -> None:
        try:
            while not self._closed.is_set():
                with suppress(*LOST):
                    self._refresh()
                if not self._down:
                    return
                self._closed.wait(_REFRESH_SECONDS)
        finally:
            self._is_refreshing = False


class _Outage:
    """A server that is down, and when a call last asked for it."""

    def __init__(self, client: Redis, error: Exception) -> None:
        self._client = client
        self.reason = reason_of(client, error)
        self.was_slow = isinstance(error, errors.TimeoutError)
        """Whether it replied too late, but has replied to all questions since."""
        self.last_asked = time.monotonic()

    def is_over(self) -> bool:
        """Return whether the server answers, or nobody needs it. An error reply counts, unless it is still loading."""
        try:
            self._client.ping()
        except LOST as error:
            self.reason, self.was_slow = reason_of(self._client, error), False
            return time.monotonic() - self.last_asked > _FORGET_SECONDS
        except errors.RedisError:
            return True
        return True


def _start(work: Callable[[], Any]) -> None:
    threading.Thread(target=work, name="threadkeep-valkey", daemon=True).start()
