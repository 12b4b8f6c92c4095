"""The cursor for connections of a pool that the caller lends.

psycopg's own cursor runs the statements there: the caller uses the connection too, so psycopg must know what is
prepared on it and under which name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.backends.postgres.parameters import TYPES, UNKNOWN, Parameters, TypedSql
from threadkeep.transports.postgres_cursor import PostgresCursor


class _Packed(bytes):
    """A parameter in the binary form of its type."""

    __slots__ = ()


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


_PACKED = {each: type(f"Packed{each}", (_Packed,), {"__slots__": ()}) for each in TYPES}
_DUMPERS = {each: type(f"Packed{each}Dumper", (_PackedDumper,), {"oid": each}) for each in TYPES}
"""psycopg chooses a dumper by the class of the value, so each type has a class."""


class LentCursor(PostgresCursor):
    """Runs SQL on a lent connection. It makes its own psycopg cursors, so the pool's cursor class does not matter."""

    def __init__(self, connection: psycopg.Connection[Any], backend: PostgresDialect, *, prepares: bool) -> None:
        super().__init__(connection, backend)
        self._settings = connection.autocommit, connection.prepare_threshold
        if not connection.autocommit:
            connection.autocommit = True
        if not prepares:
            connection.prepare_threshold = None

    def restore_settings(self) -> None:
        """Give the connection the settings that it had."""
        autocommit, self.connection.prepare_threshold = self._settings
        if not autocommit and self.connection.pgconn.transaction_status == TransactionStatus.IDLE:
            self.connection.autocommit = False

    def execute(self, sql: TypedSql, parameters: Parameters) -> PGresult:
        """Execute a statement."""
        return self._result(self._start(sql, parameters))

    def _execute_all(self, statements: Sequence[tuple[TypedSql, Parameters]]) -> list[PGresult]:
        """Execute statements in a pipeline. Nothing is prepared there: after errors psycopg takes it for done."""
        with self.connection.pipeline():
            cursors = [self._start(*each, prepare=False) for each in statements]
        return [self._result(cursor) for cursor in cursors]

    def _start(self, sql: TypedSql, parameters: Parameters, *, prepare: bool | None = None) -> psycopg.RawCursor[Any]:
        cursor = psycopg.RawCursor(self.connection, row_factory=tuple_row)
        for each in set(sql.types) - {UNKNOWN}:
            cursor.adapters.register_dumper(_PACKED[each], _DUMPERS[each])
        values = [_value(*each) for each in zip(sql.types, parameters, strict=True)]
        return cursor.execute(sql.text, values, prepare=prepare, binary=True)

    def _result(self, cursor: psycopg.RawCursor[Any]) -> PGresult:
        result = cursor.pgresult
        assert result is not None
        return result


def _value(type: int, parameter: bytes | None) -> Any:
    """Return a parameter as a value that psycopg sends as it is."""
    if parameter is None:
        return None
    return parameter.decode() if type == UNKNOWN else _PACKED[type](parameter)
