"""Calls to one Valkey or Redis server, sent together on one connection, and WAIT for its replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from typing import Any, NamedTuple

from redis import Redis
from redis import exceptions as errors

try:
    from hiredis import pack_command
except ImportError:  # redis-py works without it, more slowly
    pack_command = None  # type: ignore[assignment]

from threadkeep.backends.valkey.calls import Call, script
from threadkeep.errors import Unavailable
from threadkeep.transports.valkey_nodes import LOST, Node

_INFO = ("INFO", "replication")
_ASKING = ("ASKING",)
_ONE_PIECE = 1 << 18
"""Commands with fewer bytes than this are sent with one call. The time limit of a connection is for each call."""


def numbers_as_text(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a command whose numbers are text.

    hiredis 3.5 crashes the process if Ctrl-C comes while it converts a number: it uses the text without a check.
    """
    return tuple([str(each) if type(each) is int or isinstance(each, float) else each for each in command])


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
    unresponsive: Redis | None = None
    """The server that did not reply."""
    was_lost: bool = False
    """Whether a connection was lost before the reply came, and the call was sent again."""
    pipeline: Pipeline | None = None
    """The pipeline in which a change waits for its reply, if that takes long."""

    def command(self) -> tuple[Any, ...]:
        """Return the command to send."""
        name, keys, args = self.call
        if not name.islower():
            return (name, *keys, *args)
        known = _script(name)
        if self.as_text:
            return ("EVAL", known.text, len(keys), *keys, *args)
        return ("EVALSHA", known.sha, len(keys), *keys, *args)


class Pipeline:
    """Calls to one server. After they are executed, wait until `replicas` replicas have their changes.

    WAIT must go out on the connection of the changes: it refers to them. With `replicas` None, the server is asked with
    the calls whether it has a replica; if it has, WAIT for one takes a second round trip, and `has_replica` is True.
    With `if_any`, a server that has lost its replicas meanwhile is enough; `has_replica` is then False.
    """

    def __init__(self, node: Node, replicas: int | None, wait_ms: int, *, if_any: bool = False) -> None:
        self.pending: list[PendingCall] = []
        self.has_replica: bool | None = None
        self.lacks_replicas = False
        """Whether fewer replicas than wanted have confirmed the changes."""
        self.name = node.name
        self._client = node.client
        self._connections = node.connections
        self._replicas = replicas
        self._received = 0
        self._wait_ms = wait_ms
        self._if_any = if_any
        self._connection: Any = None
        self.is_finished = False
        """Whether every call has its reply."""

    def send(self) -> None:
        """Send all commands. An error becomes the reply to each call."""
        commands: list[tuple[Any, ...]] = []
        for call in self.pending:
            if call.importing_node is not None:
                commands.append(_ASKING)
            commands.append(call.command())
        if self._replicas is None:
            commands.append(_INFO)
        elif self._replicas:
            commands.append(self._wait_command(self._replicas))
        try:
            self._connection = self._connections.lend()
            self._send(commands)
        except LOST as error:
            self._fail(error, self.pending)
        except BaseException:
            self._discard()
            raise

    def receive(self, patience: float | None = None) -> bool:
        """Read all replies. If the connection is lost, each call without a reply fails; in WAIT, all of them.

        Return False if the server has not replied after `patience` seconds: then call it again, or `give_up`.
        """
        if self._connection is None:
            return True
        finished = True
        try:
            finished = self._receive(patience)
        except LOST as error:
            self._fail(error, self.pending[self._received :] or self.pending)
        except BaseException:
            self._discard()
            raise
        if finished:
            self._release()
        return finished

    def reason(self) -> Exception:
        """Return what is to be waited for."""
        return errors.TimeoutError(f"{'the replicas of ' if self.is_waiting else ''}{self.name} did not reply yet")

    @property
    def is_waiting(self) -> bool:
        """Whether the server has executed the calls, and only replicas have not confirmed them yet."""
        return self._received == len(self.pending)

    def give_up(self) -> None:
        """Let each call without a reply fail."""
        self._fail(errors.TimeoutError(f"Timeout reading from {self.name}"), self.pending)

    def _receive(self, patience: float | None) -> bool:
        connection = self._connection
        for call in self.pending[self._received :]:
            if not self._received and not self._can_read(patience):
                return False
            if call.importing_node is not None:
                self._read()  # ASKING has a reply too
            try:
                call.reply = connection.read_response()
            except errors.ResponseError as error:
                call.reply = error
            self._received += 1
        if self._replicas is None:
            self._find_replica(self._read())
        if not self._replicas:
            return True
        if not self._can_read(patience):
            return False
        self._check_acknowledged(self._read(), self._replicas)
        return True

    def _find_replica(self, info: Any) -> None:
        """Read whether the server has a replica; if so, WAIT for one."""
        self._replicas = 0
        if self._has_replica(info):
            self._replicas = 1
            self._send([self._wait_command(1)])

    def _has_replica(self, info: Any) -> bool:
        if isinstance(info, Exception):
            self._refuse(f"{self.name} does not report its replicas ({info})")
            return False
        self.has_replica = "state=online" in (info.decode() if isinstance(info, bytes) else str(info))
        return self.has_replica

    def _can_read(self, patience: float | None) -> bool:
        return patience is None or bool(self._connection.can_read(timeout=patience))

    def _wait_command(self, replicas: int) -> tuple[Any, ...]:
        return ("WAIT", replicas, self._wait_ms)

    def _send(self, commands: list[tuple[Any, ...]]) -> None:
        """Send commands, in one piece unless it is large. redis-py's packing makes a Python call for each argument."""
        connection = self._connection
        try:
            packed = [pack_command(numbers_as_text(command)) for command in commands]
        except TypeError:  # there is no hiredis, or a value needs redis-py's conversion
            packed = connection.pack_commands([numbers_as_text(command) for command in commands])
        if sum(map(len, packed)) < _ONE_PIECE:
            packed = [b"".join(packed)]
        connection.send_packed_command(packed)

    def _read(self) -> Any:
        try:
            return self._connection.read_response()
        except errors.ResponseError as error:
            return error

    def _check_acknowledged(self, acknowledged: Any, wanted: int) -> None:
        if isinstance(acknowledged, int) and acknowledged >= wanted:
            return
        self.lacks_replicas = True
        if self._if_any:
            self._send([_INFO])
            if not self._has_replica(self._read()):
                return
        self._refuse(
            f"{acknowledged} of {wanted} replicas of {self.name} have acknowledged it, see INFO replication there"
        )

    def _refuse(self, reason: str) -> None:
        """Make each call that succeeded fail: its change is not as durable as it has to be."""
        for call in self.pending:
            if not isinstance(call.reply, Exception):
                call.reply = Unavailable(f"written, but {reason}: it may be lost")

    def _fail(self, error: Exception, calls: Iterable[PendingCall]) -> None:
        for call in calls:
            call.reply, call.unresponsive = error, self._client
        self._discard()

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.take_back(connection)
        self.is_finished = True

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.discard(connection)
        self.is_finished = True
