"""Connections to a PostgreSQL server: a pool of our own, or one that the caller lends."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import ConnectionTimeout, ReadOnlySqlTransaction

from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.errors import Unavailable
from threadkeep.transports.postgres_cursor import PostgresCursor, TimedConnection
from threadkeep.transports.postgres_errors import message_of
from threadkeep.transports.postgres_lent_cursor import LentCursor
from threadkeep.transports.postgres_own_pool import OwnPool
from threadkeep.value import Value

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_LENT_SECONDS = 1.0
_CONNECT_SECONDS, _FIRST_CONNECT_SECONDS = 5, 2
"""`connect_timeout`, unless the URL has one. At the first contact, the address may be wrong."""
_PROBE_SECONDS = 0.5
AnyPool: TypeAlias = "ConnectionPool[Any] | OwnPool"
_PASSWORD = re.compile(r"//[^/?#]*?:([^/?#]*)@")


class PostgresOptions(Value):
    """How to use a server."""

    min_size: int
    max_size: int
    prepare: bool
    by_thread: bool
    timeout: float
    read_only: bool
    durability: str
    wants_vectors: bool
    """Whether vectors will be stored, so that pgvector is worth having."""
    application_name: str | None = None
    migrate: bool = True


class Connections:
    """Lends cursors on connections to a server. A pool that was lent to us is used, but never opened or closed."""

    def __init__(self, target: str | ConnectionPool[Any], backend: PostgresDialect, options: PostgresOptions) -> None:
        self._lent = target if not isinstance(target, str) else None
        self._conninfo = self._first_conninfo = ""
        if self._lent is None:
            self._conninfo = _conninfo(str(target), options, _CONNECT_SECONDS)
            self._first_conninfo = _conninfo(str(target), options, _FIRST_CONNECT_SECONDS)
        self._has_connected = False
        self._backend = backend
        self._options = options
        self.pool: AnyPool = self._lent or self._new_pool()
        self._forked = False

    def _new_pool(self) -> OwnPool:
        return OwnPool(self._new_cursor, min_size=self._options.min_size, max_size=self._options.max_size)

    def _new_cursor(self) -> PostgresCursor:
        return PostgresCursor(self._connect(), self._backend)

    def _connect(self) -> TimedConnection:
        options = self._options
        conninfo = self._conninfo if self._has_connected else self._first_conninfo
        try:
            connection = TimedConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        except ConnectionTimeout as error:
            hosts = " and ".join(f"{host or 'the socket'}:{port}" for host, port in self._addresses())
            raise ConnectionTimeout(f"no answer from {hosts}: {error}") from error
        connection.default_timeout = options.timeout
        connection.prepares = options.prepare
        self._has_connected = True
        return connection

    def is_reachable(self) -> bool:
        """Return whether a host accepts connections, even if no server answers on them. Unix sockets do."""
        return any(_accepts(host, port) for host, port in self._addresses())

    def _addresses(self) -> list[tuple[str, str]]:
        """Return the hosts and ports of the URL. The host of a Unix socket is its folder, or empty."""
        given = conninfo_to_dict(self._conninfo)
        hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
        ports = str(given.get("port") or 5432).split(",")
        return list(zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=False))

    def close(self, timeout: float) -> None:
        """Close our own pool. Wait for its thread at most `timeout` seconds, if it has one."""
        if isinstance(self.pool, OwnPool):
            self.pool.close(timeout)

    def after_fork_in_child(self) -> bool:
        """Leave the parent's connections alone. Return whether others can be made: not by a lent pool."""
        self._inherited = self.pool  # keep a reference: collecting it could close what is the parent's
        self._forked = True
        if self._lent is None:
            self.pool = self._new_pool()
        return self._lent is None

    def check_usable(self) -> None:
        """Raise Unavailable if this is a forked child and the pool was lent to the parent."""
        if self._lent is not None and self._forked:
            raise Unavailable("a ConnectionPool does not survive os.fork; open another Keep in the child")

    def sizes(self) -> tuple[int, int]:
        """Return the smallest and the greatest number of connections."""
        return self.pool.min_size, self.pool.max_size

    def waits(self) -> tuple[int, float]:
        """Return how many callers have waited while all connections were in use, and how many seconds."""
        if isinstance(self.pool, OwnPool):
            return self.pool.waits, self.pool.wait_seconds
        stats = self.pool.get_stats()
        return stats.get("requests_queued", 0), stats.get("requests_wait_ms", 0) / 1000

    @contextmanager
    def cursor(self, timeout: float) -> Iterator[PostgresCursor]:
        """Lend a cursor on a pooled connection."""
        pool = self.pool
        cursor = self.lend(pool, timeout)
        try:
            yield cursor
        except ReadOnlySqlTransaction:
            cursor.connection.close()  # it leads to a server that is not the primary any more
            raise
        finally:
            self.take_back(pool, cursor)

    def lend(self, pool: AnyPool, timeout: float) -> PostgresCursor:
        """Lend a cursor on a connection of `pool`, until `take_back`. A fork replaces `self.pool`, but not this one.

        A lent pool is asked for `_LENT_SECONDS` at most: it may have given up reconnecting, and tries anew only when
        somebody asks again.
        """
        if isinstance(pool, OwnPool):
            return pool.getconn(timeout)
        lent = pool.getconn(min(timeout, _LENT_SECONDS))
        try:
            return LentCursor(lent, self._backend, prepares=self._options.prepare)
        except BaseException:
            pool.putconn(lent)
            raise

    def take_back(self, pool: AnyPool, cursor: PostgresCursor) -> None:
        """Take a cursor back. A lent connection goes back to its pool with the settings that it had."""
        if isinstance(pool, OwnPool):
            pool.putconn(cursor)
            return
        assert isinstance(cursor, LentCursor)
        try:
            cursor.restore_settings()
        finally:
            pool.putconn(cursor.connection)
            if cursor.connection.closed:
                self._check_lent()

    def _check_lent(self) -> None:
        """Let a lent pool look for other connections that are dead."""
        assert self._lent is not None
        with suppress(psycopg.Error):  # the next use reports it
            self._lent.check()

    @contextmanager
    def dedicated_cursor(self, timeout: float) -> Iterator[PostgresCursor]:
        """Lend a cursor on a new connection. A lent pool lends one of its own."""
        if self._lent is not None:
            with self.cursor(timeout) as cursor:
                yield cursor
            return
        with self._connect() as connection:
            yield PostgresCursor(connection, self._backend)


def _accepts(host: str, port: str) -> bool:
    if not host or host.startswith(("/", "@")):
        return True
    try:
        socket.create_connection((host, int(port)), _PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def _conninfo(url: str, options: PostgresOptions, connect_seconds: int) -> str:
    """Return the URL with our defaults added. Raise ValueError, without the password, if libpq does not accept it."""
    name = options.application_name
    try:
        given = conninfo_to_dict(url)
        if name is not None and given.get("application_name") not in (None, name):
            raise ValueError(
                f"application_name is {given['application_name']!r} in the URL and {name!r} as an argument"
            )
        seconds = max(int(options.timeout), 2)
        defaults: dict[str, str | int] = {
            "fallback_application_name": "threadkeep",
            "connect_timeout": min(seconds, connect_seconds),
            "keepalives_idle": 60,
            "tcp_user_timeout": min(seconds, 5) * 1000,  # a call must outlive a host that vanished
        }
        missing = {key: value for key, value in defaults.items() if key not in given}
        return make_conninfo(url, **missing, **({"application_name": name} if name is not None else {}))
    except psycopg.ProgrammingError as error:
        message = message_of(error).replace(url, "the URL")
        password = _PASSWORD.search(url)
        message = message.replace(password[1], "…") if password and password[1] else message
        raise ValueError(f"not a URL that PostgreSQL accepts: {message}") from None
