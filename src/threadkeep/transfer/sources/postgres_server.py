"""A foreign PostgreSQL database, read in one read-only transaction that sees one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import unquote

from threadkeep.errors import Unavailable, without_passwords

_OURS = ("min_size", "max_size", "prepare", "group")
"""Options that threadkeep.open takes in a URL and libpq does not know. The same URL may be passed here."""


_PATIENT = ("statement_timeout", "idle_in_transaction_session_timeout")
"""Timeouts that are switched off, because they could end the transaction."""


class PostgresRows:
    """A connection in a REPEATABLE READ, READ ONLY transaction. The URL may have ?schema=NAME."""

    def __init__(self, url: str, *, timeout: float = 30.0) -> None:
        try:
            import psycopg  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError('postgresql:// needs psycopg: pip install "threadkeep[postgres]"') from error
        self._errors: Any = psycopg.Error
        self.named = without_passwords(url)
        address, schema = _without_schema(url)
        with self._translated():
            self._connection = psycopg.connect(address, connect_timeout=max(int(timeout), 2), prepare_threshold=None)
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
            for name in _PATIENT:
                self._connection.execute("SELECT set_config(%s, '0', true)", (name,))
            if schema is not None:
                self._connection.execute("SELECT set_config('search_path', %s, true)", (_quoted(schema),))
            self.tables = self._tables()

    def _tables(self) -> dict[str, set[str]]:
        query: LiteralString = (
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped"
            " AND pg_table_is_visible(c.oid) AND c.relnamespace <> 'pg_catalog'::regnamespace"
        )
        tables: dict[str, set[str]] = {}
        for table, column in self._connection.execute(query):
            tables.setdefault(table, set()).add(column)
        return tables

    def all(self, query: Any, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query, in binary."""
        with self._translated():
            return self._connection.execute(query, values, binary=True).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            shown = without_passwords(str(error))
            raise Unavailable(f"{self.named} cannot be read: {shown}") from (error if shown == str(error) else None)


def _without_schema(url: str) -> tuple[str, str | None]:
    """Return the URL for libpq, and the schema that its query names."""
    base, _, query = url.partition("?")
    pieces = [piece for piece in query.split("&") if piece]
    schemas = [unquote(piece.partition("=")[2]) for piece in pieces if piece.startswith("schema=")]
    theirs = [piece for piece in pieces if piece.partition("=")[0] not in ("schema", *_OURS)]
    return base + ("?" + "&".join(theirs) if theirs else ""), schemas[-1] if schemas else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
