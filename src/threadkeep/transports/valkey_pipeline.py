"""Calls to one Valkey or Redis server, sent together on one connection, and WAIT for its replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from typing import Any, NamedTuple

from redis import Redis
from redis import exceptions as errors

from threadkeep.backends.valkey.calls import Call, script
from threadkeep.errors import Unavailable
from threadkeep.transports.valkey_nodes import LOST, Node, client_name


class _Script(NamedTuple):
    sha: str
    text: str


@cache
def _script(name: str) -> _Script:
    text = script(name)
    return _Script(sha1(text.encode()).hexdigest(), text)  # noqa: S324 - servers name scripts by their SHA-1


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call, and its reply: a value or an error."""

    call: Call
    importing_node: Node | None = None
    """Where to send it after an ASK reply; otherwise the slot of its first key decides."""
    as_text: bool = False
    """Whether the script is sent as text, because the server does not have it."""
    reply: Any = None
    unresponsive: str | None = None
    """The name of the server that did not reply."""

    def commands(self) -> list[tuple[Any, ...]]:
        """Return the commands to send; only the reply to the last one counts."""
        name, keys, args = self.call
        if name.islower():
            known = _script(name)
            start = ("EVAL", known.text) if self.as_text else ("EVALSHA", known.sha)
            command: tuple[Any, ...] = (*start, len(keys), *keys, *args)
        else:
            command = (name, *keys, *args)
        return [("ASKING",), command] if self.importing_node is not None else [command]


class Pipeline:
    """Calls to one server. After they are executed, wait until `replicas` replicas have their changes.

    WAIT must go out on the connection of the changes: it refers to them. With `replicas` None, the server is asked with
    the calls whether it has a replica; if it has, WAIT for one takes a second round trip, and `has_replica` is True.
    """

    def __init__(self, client: Redis, replicas: int | None, wait_ms: int) -> None:
        self.pending: list[PendingCall] = []
        self.has_replica: bool | None = None
        self._client = client
        self._replicas = replicas
        self._wait_ms = wait_ms
        self._connection: Any = None

    def send(self) -> None:
        """Send all commands. An error becomes the reply to each call."""
        commands = [command for call in self.pending for command in call.commands()]
        if self._replicas is None:
            commands.append(("INFO", "replication"))
        elif self._replicas:
            commands.append(self._wait_command(self._replicas))
        try:
            self._connection = self._client.connection_pool.get_connection()
            self._send(commands)
        except LOST as error:
            self._fail(error, self.pending)

    def receive(self) -> None:
        """Read all replies. If the connection is lost, each call without a reply fails; in WAIT, all of them."""
        if self._connection is None:
            return
        left = list(self.pending)
        try:
            for call in self.pending:
                for _ in range(1 if call.importing_node is None else 2):  # ASKING has a reply too
                    call.reply = self._read()
                left.remove(call)
            self._wait()
        except LOST as error:
            self._fail(error, left or self.pending)
        finally:
            if self._connection is not None:
                self._client.connection_pool.release(self._connection)

    def _wait(self) -> None:
        """Read the reply to WAIT; without one, find out whether there is a replica to wait for."""
        if self._replicas:
            self._check_acknowledged(self._read(), self._replicas)
        elif self._replicas is None:
            info = self._read()
            if isinstance(info, Exception):
                self._refuse(f"the server does not report its replicas ({info})")
                return
            self.has_replica = "state=online" in (info.decode() if isinstance(info, bytes) else str(info))
            if self.has_replica:
                self._send([self._wait_command(1)])
                self._check_acknowledged(self._read(), 1)

    def _wait_command(self, replicas: int) -> tuple[Any, ...]:
        return ("WAIT", replicas, self._wait_ms)

    def _send(self, commands: list[tuple[Any, ...]]) -> None:
        self._connection.send_packed_command(self._connection.pack_commands(commands))

    def _read(self) -> Any:
        try:
            return self._connection.read_response()
        except errors.ResponseError as error:
            return error

    def _check_acknowledged(self, acknowledged: Any, wanted: int) -> None:
        if not (isinstance(acknowledged, int) and acknowledged >= wanted):
            self._refuse(f"{acknowledged} of {wanted} replicas have acknowledged it")

    def _refuse(self, reason: str) -> None:
        """Make each call that succeeded fail: its change is not as durable as it has to be."""
        for call in self.pending:
            if not isinstance(call.reply, Exception):
                call.reply = Unavailable(f"written, but {reason}: it may be lost")

    def _fail(self, error: Exception, calls: Iterable[PendingCall]) -> None:
        for call in calls:
            call.reply, call.unresponsive = error, client_name(self._client)
        if self._connection is not None:
            self._connection.disconnect()
