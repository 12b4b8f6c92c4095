"""A proxy that cuts connections in the middle of requests and replies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import postgres_servers
from outages import Proxy, cut

PLACES = ("before the request", "within the request", "before the reply", "within the reply")
"""Where a connection can be cut. Before the reply, the server has executed the request."""


class CuttingProxy(Proxy):
    """Forwards connections, and cuts that on which the next `k`-th request is sent, at one of `PLACES`.

    A request is what a client sends at once; its reply is what comes next from the server on the same connection.
    """

    def __init__(self, target: int) -> None:
        super().__init__(postgres_servers.free_port(), target)
        self.cuts = 0
        self._lock = threading.Lock()
        self._place: str | None = None
        self._left = self._every = 0
        self._replies_to_cut: dict[socket.socket, str] = {}

    def cut_at(self, k: int, place: str, *, repeatedly: bool = False) -> None:
        """Cut at the k-th request from now on; `repeatedly` at each k-th."""
        with self._lock:
            self._place, self._left, self._every = place, k, k if repeatedly else 0

    def stop_cutting(self) -> None:
        with self._lock:
            self._place = None

    def _next_place(self) -> str | None:
        """Count a request. Return where to cut it, or None."""
        with self._lock:
            self._left -= 1
            if self._place is None or self._left:
                return None
            place, self._left = self._place, self._every
            if not self._every:
                self._place = None
            self.cuts += 1
            return place

    def pump_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                place = self._next_place()
                if place == PLACES[0]:
                    break
                if place == PLACES[1]:
                    server.sendall(data[: len(data) // 2])
                    break
                if place is not None:
                    self._replies_to_cut[server] = place
                server.sendall(data)
        cut(client, server)

    def pump_replies(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                place = self._replies_to_cut.pop(server, None)
                if place == PLACES[3]:
                    client.sendall(data[: len(data) // 2])
                if place is not None:
                    break
                client.sendall(data)
        cut(client, server)


@contextmanager
def cutting_proxy(target: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target)
    proxy.open()
    try:
        yield proxy
    finally:
        proxy.close()
