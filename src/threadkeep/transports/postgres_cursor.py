"""A PostgreSQL connection with timeouts, and the cursor that runs the dialect's SQL on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from threadkeep.backends.postgres.dialect import PostgresDialect, Statement
from threadkeep.backends.sql.rows import Row, Values
from threadkeep.transports import postgres_arrays

T = TypeVar("T")
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_WRITE = "BEGIN"


class TimedConnection(psycopg.Connection[Row]):
    """A connection that waits at most `default_timeout` seconds for the server, even if that has silently stopped."""

    default_timeout: float | None = None
    cached_cursor: PostgresCursor | None = None
    made_at = lent_at = expires_at = 0.0
    """Times of the clock `time.monotonic`. While the connection is idle, `lent_at` is when it was put back."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for the server. psycopg calls this for everything that it sends."""
        return super().wait(gen, interval, self.default_timeout if timeout is None else timeout)


class PostgresCursor:
    """Runs SQL on a connection. It makes its own psycopg cursor, so the cursor class of a lent pool does not matter."""

    def __init__(self, connection: psycopg.Connection[Any], backend: PostgresDialect) -> None:
        self._connection = connection
        self._spelled = backend.bind
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._cursor.format = Format.BINARY
        self._cursor.adapters.register_dumper(int, Int8BinaryDumper)  # one type for every int: one prepared plan
        postgres_arrays.register(self._cursor.adapters)

    @property
    def pid(self) -> int:
        """The id of the server process, as reported when the connection was made."""
        return self._connection.info.backend_pid

    @property
    def is_connected(self) -> bool:
        """Whether the connection can still be used."""
        return not self._connection.closed

    def rows(self, sql: str, values: Values | None = None) -> list[Row]:
        """Execute a statement and return its rows."""
        text, names = self._spelled(sql)
        self._cursor.execute(text, _parameters(names, values or {}))
        return self._cursor.fetchall() if self._cursor.pgresult and self._cursor.pgresult.nfields else []

    def many(self, sql: str, values: Sequence[Values]) -> int:
        """Execute a statement once for each set of values. Return the number of rows affected."""
        text, names = self._spelled(sql)
        self._cursor.executemany(text, [_parameters(names, row) for row in values])
        return self._cursor.rowcount

    def run(self, statement: Statement) -> Any:
        """Execute a statement of the dialect and return what it reads from its rows."""
        return statement.read(self.rows(statement.sql, statement.values))

    def run_in_one_round_trip(self, statements: Sequence[tuple[str, Values]]) -> None:
        """Execute some statements in a transaction, in pipeline mode: one round trip."""
        try:
            with self._connection.pipeline():
                self._cursor.execute(BEGIN_WRITE)
                # Planning these for each set of values costs more than it gains.
                self._cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
                for sql, values in statements:
                    text, names = self._spelled(sql)
                    self._cursor.execute(text, _parameters(names, values))
                self._cursor.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def disable_timeout(self) -> None:
        """Wait for the server as long as it takes, on a connection of ours."""
        if isinstance(self._connection, TimedConnection):
            self._connection.default_timeout = None

    def transaction(self, begin: str, work: Callable[[], T]) -> T:
        """Do some work in a transaction. Roll back if it raises anything."""
        self.rows(begin)
        try:
            value = work()
            self.rows("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return value

    def _roll_back(self) -> None:
        if self._connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            self.rows("ROLLBACK")


def _parameters(names: Iterable[tuple[str, str | None]], values: Values) -> list[Any]:
    return [postgres_arrays.array(kind, values[name]) if kind else values[name] for name, kind in names]
