"""Somebody else's SQLite file, opened so that nothing in it can change, also while others write to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
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
    """A read-only connection. A file in WAL mode is read as it was at the first parse_time.

    One in another mode is not held: as long as it is read, nobody could write to it. There each query has its parse_time.
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
        except apsw.SQLError:  # a virtual table of an extension that is not here
            return []

    def all(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""
        with self._translated():
            return list(self._connection.execute(query, values))

    def each(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """The rows of a query, one after the other, while the file may be held."""
        with self._translated():
            yield from self._connection.execute(query, values)

    def paged(self, query: str, key: Callable[[Any], Sequence[Any]], start: Sequence[Any]) -> Iterator[Any]:
        """The rows of a query that takes the key of the last row of the page before; nothing is held in between."""
        while page := self.all(query, start):
            yield from page
            start = key(page[-1])

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGED as error:
            raise Corrupt(f"{self.path} cannot be read: {error}") from error
        except UnicodeDecodeError as error:
            raise Corrupt(f"{self.path} has a text that is no UTF-8: {error}") from error
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
        # In WAL mode a reader makes two files beside it; where it may not, nobody else is writing either.
        connection = apsw.Connection(f"{where}?immutable=1", flags=flags)
    return connection


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
