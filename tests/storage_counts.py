"""Counts what reaches a storage: statements or commands, round trips, commits, rows and bytes.

Each probe sits at the outer edge of the process, in SQLite's file layer, between psycopg and the server, or at the
sockets of redis-py. So it counts what was really sent or written, whatever the code above does.

| | SQLite | PostgreSQL | Valkey |
|---|---|---|---|
| statements | that SQLite began to execute, without triggers | messages Query and Execute | commands |
| round_trips | - | messages Query, Sync and Flush, and start-up packets | sends on a socket that follow a receive |
| commits | that changed something | transactions that changed a row | - |
| rows | inserted, updated, deleted; also in FTS tables | the same in tables, as triggers see them | - |
| syncs | of all files | - | - |
| kb | written to all files, by SQLite's xWrite | sent by the client | sent by the client |
"""

from __future__ import annotations

import re
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import apsw
import psycopg
from psycopg import sql

import postgres_servers

Totals = dict[str, float]


class Probe(Protocol):
    """Counts everything since it was installed."""

    def prepare(self) -> None:
        """Do what needs the tables, after they were created."""

    def totals(self) -> Totals:
        """Return the counts so far."""


class NoProbe:
    """Memory: nothing leaves the process."""

    def prepare(self) -> None: ...

    def totals(self) -> Totals:
        return {}


# --- SQLite


class _CountingFile(apsw.VFSFile):
    def __init__(self, probe: SqliteProbe, base: str, name: Any, flags: list[int]) -> None:
        self._probe = probe
        super().__init__(base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._probe.bytes += len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._probe.syncs += 1
        super().xSync(flags)


class _CountingFiles(apsw.VFS):
    def __init__(self, probe: SqliteProbe) -> None:
        self._probe, self._base = probe, apsw.vfs_names()[0]
        super().__init__("counting", self._base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _CountingFile:
        return _CountingFile(self._probe, self._base, name, flags)


class SqliteProbe:
    """Counts in all connections of this process, with a VFS that passes everything on to SQLite's own."""

    def __init__(self) -> None:
        self.bytes = self.syncs = 0
        self._statements = self._commits = 0
        self._rows: dict[apsw.Connection, int] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        files = _CountingFiles(self)
        apsw.connection_hooks.append(self._watch)
        try:
            yield
        finally:
            apsw.connection_hooks.remove(self._watch)
            files.unregister()

    def prepare(self) -> None: ...

    def totals(self) -> Totals:
        for connection in self._rows:
            with suppress(apsw.ConnectionClosedError):
                self._rows[connection] = connection.total_changes()
        return {
            "statements": self._statements,
            "commits": self._commits,
            "rows": sum(self._rows.values()),
            "syncs": self.syncs,
            "kb": self.bytes / 1024,
        }

    def _watch(self, connection: apsw.Connection) -> None:
        self._rows[connection] = 0
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._count_statement, id=self)
        connection.set_commit_hook(self._count_commit, id=self)

    def _count_statement(self, event: dict[str, Any]) -> None:
        if not event.get("trigger"):
            self._statements += 1

    def _count_commit(self) -> bool:
        self._commits += 1
        return False


# --- PostgreSQL

_HEAD = struct.Struct("!cI")
_STATEMENTS, _WAITS = b"QE", b"QSH"
_LOG_CHANGES = """
CREATE TABLE budget_log (transaction xid8);
CREATE FUNCTION budget_log() RETURNS trigger LANGUAGE plpgsql
    AS $$BEGIN INSERT INTO {}.budget_log VALUES (pg_current_xact_id()); RETURN NULL; END$$;
"""
_LOG_TABLE = (
    "CREATE TRIGGER budget_log AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION {}.budget_log()"
)


class PostgresProbe:
    """A proxy between client and server that reads the client's messages, and triggers that log changed rows."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._statements = self._round_trips = self._bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._streams: dict[socket.socket, bytearray | None] = {}
        """What was read of a client's next message; None for the server's side, which is not read."""
        self.url = re.sub(r":\d+/", f":{self._listener.getsockname()[1]}/", url, count=1)

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._selector.register(self._listener, selectors.EVENT_READ)
        proxy = threading.Thread(target=self._pass_on, daemon=True)
        proxy.start()  # before calls are counted: threads that exist already are not seen
        yield

    def prepare(self) -> None:
        schema = sql.Identifier(postgres_schema(self._url))
        with psycopg.connect(self._plain_url, autocommit=True) as connection:
            connection.execute(sql.SQL("SET search_path TO {}").format(schema))
            connection.execute(sql.SQL(_LOG_CHANGES).format(schema))
            tables = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
            for (table,) in connection.execute(tables, [postgres_schema(self._url)]).fetchall():
                if table.startswith("tk_"):
                    connection.execute(sql.SQL(_LOG_TABLE).format(sql.Identifier(table), schema))

    def totals(self) -> Totals:
        with psycopg.connect(self._plain_url) as connection:
            log = sql.SQL("SELECT count(*), count(DISTINCT transaction) FROM {}.budget_log")
            found = connection.execute(log.format(sql.Identifier(postgres_schema(self._url)))).fetchone()
        assert found is not None
        return {
            "statements": self._statements,
            "round_trips": self._round_trips,
            "commits": found[1],
            "rows": found[0],
            "kb": self._bytes / 1024,
        }

    @property
    def _plain_url(self) -> str:
        return self._url.partition("?")[0]

    def _pass_on(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj.fileno() >= 0:  # else the other side has just been closed
                    self._forward(key.fileobj, key.data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        port = int(re.search(r":(\d+)/", self._url)[1])
        server = socket.create_connection(("127.0.0.1", port))
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._streams[client], self._streams[server] = bytearray(), None
        self._selector.register(client, selectors.EVENT_READ, server)
        self._selector.register(server, selectors.EVENT_READ, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(1 << 16)
            if self._streams[source] is not None:
                self._read(self._streams[source], data)
            target.sendall(data)
        except OSError:
            data = b""
        if not data:
            for one in (source, target):
                self._selector.unregister(one)
                one.close()

    def _read(self, stream: bytearray, data: bytes) -> None:
        """Count the messages that are complete. Start-up packets have no type: they begin with a zero byte."""
        self._bytes += len(data)
        stream += data
        while len(stream) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(stream)
            if kind == b"\0":
                size = struct.unpack_from("!I", stream)[0] - 1
            if len(stream) < 1 + size:
                return
            del stream[: 1 + size]
            self._statements += kind in _STATEMENTS
            self._round_trips += kind in _WAITS or kind == b"\0"


def postgres_schema(url: str) -> str:
    return re.search(r"schema=(\w+)", url)[1]


# --- Valkey


class ValkeyProbe:
    """Wraps the methods of Python's sockets. They only note what was sent: what is counted later is not a verb's call."""

    def __init__(self) -> None:
        self._commands = self._round_trips = self._bytes = 0
        self._unread: dict[int, bytearray] = {}
        self._sent_last: set[int] = set()
        self._events: deque[tuple[int, bytes | None]] = deque()
        """For each call of a method: the socket, and what was sent; None if something was received."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        wrapped = {name: self._wrap(name) for name in ("send", "sendall", "recv", "recv_into")}
        for name, method in wrapped.items():
            setattr(socket.socket, name, method)
        try:
            yield
        finally:
            for name in wrapped:
                delattr(socket.socket, name)  # what it inherits appears again

    def prepare(self) -> None: ...

    def totals(self) -> Totals:
        while self._events:
            self._count(*self._events.popleft())
        return {"statements": self._commands, "round_trips": self._round_trips, "kb": self._bytes / 1024}

    def _wrap(self, name: str) -> Any:
        inherited, note = getattr(socket.socket, name), self._events.append
        is_send = name.startswith("send")

        def method(this: socket.socket, data: Any, *args: Any) -> Any:
            note((id(this), bytes(data) if is_send else None))
            return inherited(this, data, *args)

        return method

    def _count(self, sock: int, data: bytes | None) -> None:
        if data is None:
            self._sent_last.discard(sock)
            return
        self._bytes += len(data)
        if sock not in self._sent_last:
            self._sent_last.add(sock)
            self._round_trips += 1
        stream = self._unread.setdefault(sock, bytearray())
        stream += data
        while (size := _command_size(stream)) is not None:
            del stream[:size]
            self._commands += 1


_LENGTH = re.compile(rb"\$(\d+)\r\n")


def _command_size(stream: bytearray) -> int | None:
    """Return the length of the first command, an array of strings, or None if it is not complete."""
    head = re.match(rb"\*(\d+)\r\n", stream)
    if head is None:
        return None
    at = head.end()
    for _ in range(int(head[1])):
        length = _LENGTH.match(stream, at)
        if length is None:
            return None
        at = length.end() + int(length[1]) + 2
    return at if len(stream) >= at else None


def shared_postgres_url() -> str:
    return postgres_servers.fresh_schema(postgres_servers.shared())
