"""Connections to a PostgreSQL server: a pool of our own, or one that the caller lends."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.errors import Unavailable
from threadkeep.transports.postgres_cursor import PostgresCursor, TimedConnection
from threadkeep.transports.postgres_errors import message_of

_RECONNECT_SECONDS = 2.0
_PREPARE_AFTER = 5
_PASSWORD = re.compile(r"//[^/?#]*?:([^/?#]*)@")


@dataclass(frozen=True, slots=True)
class PostgresOptions:
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
        self._lent = target if isinstance(target, ConnectionPool) else None
        self._conninfo = "" if self._lent is not None else _conninfo(str(target), options)
        self._backend = backend
        self._options = options
        self._pool = self._lent
        self._forked = False

    def open(self) -> None:
        """Open our own pool; it connects in the background. A lent pool stays as it is."""
        if self._lent is not None:
            return
        options = self._options

        def configure(connection: TimedConnection) -> None:
            connection.default_timeout = options.timeout

        self._pool = ConnectionPool(
            self._conninfo,
            connection_class=TimedConnection,
            min_size=options.min_size,
            max_size=options.max_size,
            kwargs={"autocommit": True, "prepare_threshold": _PREPARE_AFTER if options.prepare else None},
            configure=configure,
            name="threadkeep",
            open=True,
            reconnect_timeout=_RECONNECT_SECONDS,
        )

    def close(self, timeout: float) -> None:
        """Close our own pool. Wait for its threads at most `timeout` seconds."""
        if self._lent is None and self._pool is not None:
            self._pool.close(timeout=timeout)

    def after_fork_in_child(self) -> None:
        """Leave the parent's connections alone."""
        self._inherited = self._pool  # keep a reference: collecting it would join threads that do not exist here
        self._pool = self._lent
        self._forked = True

    def check_usable(self) -> None:
        """Raise Unavailable if this is a forked child and the pool was lent to the parent."""
        if self._lent is not None and self._forked:
            raise Unavailable("a ConnectionPool does not survive os.fork; open another Keep in the child")

    def sizes(self) -> tuple[int, int]:
        """Return the smallest and the greatest number of connections."""
        if self._pool is not None:
            return self._pool.min_size, self._pool.max_size
        return self._options.min_size, self._options.max_size

    def discard_broken(self) -> None:
        """Replace idle connections after one was lost, as they may be dead too; of a lent pool, only the dead ones."""
        assert self._pool is not None
        try:
            self._pool.check() if self._pool is self._lent else self._pool.drain()
        except psycopg.Error:
            return  # the next use reports it

    @contextmanager
    def cursor(self, deadline: float) -> Iterator[PostgresCursor]:
        """Lend a cursor on a pooled connection. The connection goes back with the settings that it had."""
        pool = self._pool
        assert pool is not None
        connection = pool.getconn(timeout=max(deadline - time.monotonic(), 0.001))
        try:
            autocommit, threshold = connection.autocommit, connection.prepare_threshold
            if not autocommit:
                connection.autocommit = True
            if not self._options.prepare:
                connection.prepare_threshold = None
            try:
                yield self._cursor_on(connection)
            finally:
                connection.prepare_threshold = threshold
                if not autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE:
                    connection.autocommit = False
        finally:
            pool.putconn(connection)

    @contextmanager
    def dedicated_cursor(self, deadline: float) -> Iterator[PostgresCursor]:
        """Lend a cursor on a new connection, which reports at once if the address is wrong. A lent pool lends one."""
        if self._lent is not None:
            with self.cursor(deadline) as cursor:
                yield cursor
            return
        with TimedConnection.connect(self._conninfo, autocommit=True) as connection:
            connection.default_timeout = self._options.timeout
            yield PostgresCursor(connection, self._backend)

    def _cursor_on(self, connection: psycopg.Connection[Any]) -> PostgresCursor:
        if not isinstance(connection, TimedConnection):
            return PostgresCursor(connection, self._backend)
        if connection.cached_cursor is None:
            connection.cached_cursor = PostgresCursor(connection, self._backend)
        return connection.cached_cursor


def _conninfo(url: str, options: PostgresOptions) -> str:
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
            "connect_timeout": min(seconds, 10),
            "keepalives_idle": 60,
            "tcp_user_timeout": seconds * 1000,
        }
        missing = {key: value for key, value in defaults.items() if key not in given}
        return make_conninfo(url, **missing, **({"application_name": name} if name is not None else {}))
    except psycopg.ProgrammingError as error:
        message = message_of(error).replace(url, "the URL")
        password = _PASSWORD.search(url)
        message = message.replace(password[1], "…") if password and password[1] else message
        raise ValueError(f"not a URL that PostgreSQL accepts: {message}") from None
