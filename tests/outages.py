"""Outages: a storage goes away while callers use it, and comes back."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from checkpoint_chains import Chain, values_of

SOON = 10.0
"""Seconds. Calls go on within 2 s of the server's return; a busy machine gets more."""


class Proxy:
    """Forwards connections to a port of this machine. While it is `closed`, its own port refuses them."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self._target = port, target
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def close(self) -> None:
        assert self._listener is not None
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for pump in (self.pump_requests, self.pump_replies):
                    threading.Thread(target=pump, args=[client, server], daemon=True).start()

    def pump_requests(self, client: socket.socket, server: socket.socket) -> None:
        """Forward what a client sends, until one of them closes the connection."""
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        cut(client, server)

    def pump_replies(self, client: socket.socket, server: socket.socket) -> None:
        """Forward what the server sends."""
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        cut(client, server)


def cut(*ends: socket.socket) -> None:
    """End a connection at both ends."""
    for each in ends:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class Callers:
    """Many callers, each of which puts a checkpoint into a thread of its own and reads it, when it is told to."""

    def __init__(self, keep: Any, count: int) -> None:
        self._saver = keep.checkpointer
        self._chains = [Chain(self._saver, f"caller {n}") for n in range(count)]
        self.errors: list[Exception] = []
        self._ends: list[float] = []

    def _end(self, error: Exception | None) -> None:
        self.errors += [error] if error else []
        self._ends.append(time.monotonic())

    def _call(self, chain: Chain) -> None:
        try:
            chain.put({"n": chain.number})
            assert values_of(self._saver, chain.thread) == {"n": chain.number - 1}
        except Exception as error:
            self._end(error)
        else:
            self._end(None)

    async def _acall(self, chain: Chain) -> None:
        try:
            await chain.aput({"n": chain.number})
            found = await self._saver.aget_tuple({"configurable": {"thread_id": chain.thread}})
            assert found.checkpoint["channel_values"] == {"n": chain.number - 1}
        except Exception as error:
            self._end(error)
        else:
            self._end(None)

    def call_all(self, *, is_async: bool) -> threading.Thread:
        """Let all call once, from threads or from one event loop, in the background."""

        async def acall_all() -> None:
            await asyncio.gather(*map(self._acall, self._chains))

        def call_in_threads() -> None:
            threads = [threading.Thread(target=self._call, args=[chain]) for chain in self._chains]
            for each in threads:
                each.start()
            for each in threads:
                each.join()

        work = (lambda: asyncio.run(acall_all())) if is_async else call_in_threads
        background = threading.Thread(target=work)
        background.start()
        return background

    def outlive(
        self, leave: Callable[[], Any], come_back: Callable[[], Any], *, seconds: float, is_async: bool
    ) -> float:
        """Call during an outage. Return how many seconds after the storage's return the last call ended."""
        self.call_all(is_async=is_async).join()  # they have connections and caches
        self._ends.clear()
        leave()
        calling = self.call_all(is_async=is_async)
        try:
            time.sleep(seconds)
            assert not self._ends, "a call ended while the storage was away"
        finally:
            come_back()
            back = time.monotonic()
            calling.join()
        return max(self._ends) - back
