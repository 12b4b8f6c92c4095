"""A foreign SQLite file, opened read-only. Others may write to it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import apsw

from threadkeep.errors import Corrupt, Unavailable

T = TypeVar("T")
_BUSY_MS = 10_000
_DAMAGED = (apsw.CorruptError, apsw.NotADBError)


class SqliteRows:
    """A read-only connection. A file in WAL mode is read in one transaction, which sees one snapshot.

    In another mode a transaction would block writers, so there each query sees its own snapshot.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._translated():
            self._connection = _opened(path)
            self._connection.set_busy_timeout(_BUSY_MS)
            if self._connection.pragma("journal_mode") == "wal":
                self._connection.execute("BEGIN")
        self.tables = self._tables()

    def _tables(self) -> dict[str, set[str]]:
        names = self.all("SELECT name FROM sqlite_master WHERE type = 'table'")
        with self._translated():
            return {name: {row[1] for row in self._columns(name)} for (name,) in names}

    def _columns(self, table: str) -> list[Any]:
        try:
            return list(self._connection.execute("SELECT * FROM pragma_table_info(?)", (table,)))
        except apsw.SQLError:  # a virtual table of an extension that is not loaded
            return []

    def all(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        with self._translated():
            return list(self._connection.execute(query, values))

    def each(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Read the rows of a query one by one. Without WAL, writers are blocked meanwhile."""
        with self._translated():
            yield from self._connection.execute(query, values)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGED as error:
            raise Corrupt(f"{self.path} cannot be read: {error}") from error
        except UnicodeDecodeError as error:
            raise Corrupt(f"{self.path} has text that is not UTF-8: {error}") from error
        except apsw.Error as error:
            raise Unavailable(f"{self.path} cannot be read: {error}") from error


def _opened(path: Path) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    where = "file:" + quote(str(path.resolve()), safe="/")
    try:
        connection = apsw.Connection(f"{where}?mode=ro", flags=flags)
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    except apsw.CantOpenError:
        if _has_log(path) or os.access(path.parent, os.W_OK):
            raise
        # In WAL mode a reader creates two files beside it. If it may not, nobody else is writing either.
        connection = apsw.Connection(f"{where}?immutable=1", flags=flags)
    return connection


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
