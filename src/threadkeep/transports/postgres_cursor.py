"""A PostgreSQL connection with timeouts, and the cursor that runs the dialect's SQL on it.

The cursor calls libpq itself, through `psycopg.pq`: psycopg's own cursor makes fifty Python calls for a statement, and
inspects every value to find its type, which we know. Values are sent in binary form, except texts whose type the server
infers. `postgres_lent_cursor` is for the connections of a pool that the caller lends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors, generators, waiting
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from threadkeep.backends.postgres.dialect import PostgresDialect, Statement
from threadkeep.backends.postgres.parameters import Parameters, TypedSql
from threadkeep.backends.sql.rows import Row, Values

T = TypeVar("T")
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_WRITE = "BEGIN"
_KEEP_PLANS = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', false) WHERE pg_backend_pid() = :pid
"""
_GENERIC_PLANS = "SET LOCAL plan_cache_mode = force_generic_plan"
_INTERVAL = 0.1
"""Seconds between two looks for a signal, such as Ctrl-C, while waiting for the server."""
_CANCEL_SECONDS = 2.0
_PREPARE_AT = 2
"""A statement is prepared when a connection executes it for this time."""
_MAX_PREPARED = 200
"""How many statements a connection counts and prepares; others are planned at each use."""
_FATAL = ExecStatus.FATAL_ERROR
_BINARY = Format.BINARY
_IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class TimedConnection(psycopg.Connection[Row]):
    """A connection that waits at most `default_timeout` seconds for the server, even if that has silently stopped."""

    default_timeout: float | None = None
    prepares = True
    """Whether statements may be prepared on it."""

    def wait(self, gen: Any, interval: float = _INTERVAL, timeout: float | None = None) -> Any:
        """Wait for the server. psycopg calls this for everything that it sends."""
        return super().wait(gen, interval, self.default_timeout if timeout is None else timeout)


class PostgresCursor:
    """Runs SQL on a connection of our own pool."""

    def __init__(self, connection: psycopg.Connection[Any], backend: PostgresDialect) -> None:
        self.connection = connection
        self.made_at = self.lent_at = self.expires_at = 0.0
        """Times of the clock `time.monotonic`, for the pool. While it is idle, `lent_at` is when it was put back."""
        self.marks: dict[str, Any] = {}
        self._typed = backend.typed
        self._pgconn = connection.pgconn
        self._transformer = Transformer(connection)
        self.timeout = connection.default_timeout if isinstance(connection, TimedConnection) else None
        """How long to wait for the server, in seconds; as long as it takes if None."""
        self._generic_plans: bool | None = None
        """Whether the connection is set to make no plans for single values; None if that was not tried yet."""
        self._uses: dict[TypedSql, int | bytes] = {}
        """How often each statement was executed on this connection, or the name under which it is prepared."""

    @property
    def pid(self) -> int:
        """The id of the server process, as reported when the connection was made."""
        return self.connection.info.backend_pid

    @property
    def is_connected(self) -> bool:
        """Whether the connection can still be used."""
        return not self.connection.closed

    def rows(self, sql: str, values: Values | None = None) -> list[Row]:
        """Execute a statement and return its rows."""
        if self._generic_plans:
            self._leave_generic_plans()
        return self.fetch(*self._typed(sql, values or {}))

    def fetch(self, sql: TypedSql, parameters: Parameters) -> list[Row]:
        """Execute a statement and return its rows."""
        result = self.execute(sql, parameters)
        count = result.ntuples
        if not count:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, count, tuple)

    def execute(self, sql: TypedSql, parameters: Parameters) -> PGresult:
        """Execute a statement in one round trip, or in two when it is prepared for later. One Python call.

        If the wait is interrupted, by Ctrl-C for instance, the statement is cancelled and the connection closed.
        """
        pgconn, known = self._pgconn, self._uses.get(sql)
        name = known if type(known) is bytes else self._count_use(sql)
        if name is None:
            pgconn.send_query_params(sql.text, parameters, sql.types, sql.formats, _BINARY)
        else:
            pgconn.send_query_prepared(name, parameters, sql.formats, _BINARY)
        try:
            result: PGresult = waiting.wait(generators.execute(pgconn), pgconn.socket, _INTERVAL, self.timeout)[-1]
        except psycopg.Error:
            raise
        except BaseException:
            self._abandon()
            raise
        if result.status == _FATAL:
            raise errors.error_from_result(result)
        return result

    def _wait(self, steps: Callable[[Any], Any]) -> Any:
        """Wait for the server as `execute` does, and return its results."""
        try:
            results = waiting.wait(steps(self._pgconn), self._pgconn.socket, _INTERVAL, self.timeout)
        except psycopg.Error:
            raise
        except BaseException:
            self._abandon()
            raise
        for result in results or ():
            if result.status == _FATAL:
                raise errors.error_from_result(result)
        return results

    def _abandon(self) -> None:
        """Cancel what is under way, and close the connection: nobody knows its state."""
        with suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=_CANCEL_SECONDS)
        self.connection.close()

    def _count_use(self, sql: TypedSql) -> bytes | None:
        """Count another use of a statement. If that is enough to prepare it, do so and return its name."""
        uses = self._uses.get(sql, 0)
        if type(uses) is bytes:
            return uses
        assert isinstance(uses, int)
        may_prepare = sql.types and isinstance(self.connection, TimedConnection) and self.connection.prepares
        if not may_prepare or (not uses and len(self._uses) >= _MAX_PREPARED):
            return None
        self._uses[sql] = uses + 1
        if uses + 1 < _PREPARE_AT:
            return None
        if sql.keeps_plan and self._generic_plans is None:
            self._generic_plans = self._try_generic_plans()
        name = b"tk_%d" % list(self._uses).index(sql)
        self._pgconn.send_prepare(name, sql.text, sql.types)
        self._wait(generators.execute)
        self._uses[sql] = name
        return name

    def _try_generic_plans(self) -> bool:
        """Have the server keep one plan for all values from the beginning, not only after it has made five.

        Not if a pooler is in between: then the server process, and this setting, would soon be another client's.
        """
        sql, parameters = self._typed(_KEEP_PLANS, {"pid": self._pgconn.backend_pid})
        self._pgconn.send_query_params(sql.text, parameters, sql.types, sql.formats, _BINARY)
        return bool(self._wait(generators.execute)[-1].ntuples)

    def _leave_generic_plans(self) -> None:
        """Let the server decide again, for good: some statements, such as searches, need a plan for their values."""
        self._generic_plans = False
        self.fetch(*self._typed("SET plan_cache_mode TO DEFAULT", {}))

    def many(self, sql: str, values: Sequence[Values]) -> int:
        """Execute a statement once for each set of values, in one round trip. Return the number of rows affected."""
        results = self._execute_all([self._typed(sql, each) for each in values])
        return sum(result.command_tuples or 0 for result in results)

    def run(self, statement: Statement) -> Any:
        """Execute a statement of the dialect and return what it reads from its rows."""
        return statement.read(self.fetch(statement.sql, statement.parameters))

    def run_in_one_round_trip(self, statements: Sequence[tuple[str, Values]]) -> None:
        """Execute some statements in a transaction, in one round trip."""
        # Planning these for each set of values costs more than it gains.
        all_of_them = [(BEGIN_WRITE, {}), (_GENERIC_PLANS, {}), *statements, ("COMMIT", {})]
        try:
            self._execute_all([self._typed(*each) for each in all_of_them])
        except BaseException:
            self._roll_back()
            raise

    def _execute_all(self, statements: Sequence[tuple[TypedSql, Parameters]]) -> list[PGresult]:
        """Execute statements in libpq's pipeline mode. After one that fails, the others are not executed."""
        if self._generic_plans:
            self._leave_generic_plans()
        names = [self._count_use(sql) for sql, _ in statements]
        results: list[PGresult] = []
        self._pgconn.enter_pipeline_mode()
        try:
            for (sql, parameters), name in zip(statements, names, strict=True):
                if name is None:
                    self._pgconn.send_query_params(sql.text, parameters, sql.types, sql.formats, _BINARY)
                else:
                    self._pgconn.send_query_prepared(name, parameters, sql.formats, _BINARY)
            self._pgconn.pipeline_sync()
            self._wait(generators.send)
            error = None
            for _ in statements:
                try:
                    results += self._wait(generators.fetch_many)
                except psycopg.Error as found:
                    if self.connection.closed:
                        raise
                    error = error or found
            self._wait(generators.fetch_many)  # the end of the pipeline
        finally:
            if not self.connection.closed:
                self._pgconn.exit_pipeline_mode()
        if error is not None:
            raise error
        return results

    def disable_timeout(self) -> None:
        """Wait for the server as long as it takes."""
        self.timeout = None

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
        if self.connection.pgconn.transaction_status in _IN_TRANSACTION:
            self.rows("ROLLBACK")
