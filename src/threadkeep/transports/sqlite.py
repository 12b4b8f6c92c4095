"""Connections to a SQLite file through apsw: one for writing, some for reading beside it (WAL).

Reading and writing each happen in one transaction a request; changes of several callers share one. Set-up is lazy and
safe when many processes start at once: the schema and its version are made in one exclusive transaction. What apsw
raises is translated here, in one place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import apsw

from threadkeep.backends.sql.rows import Row
from threadkeep.backends.sql.setup import SetupStatement
from threadkeep.backends.sqlite import setup as sqlite_setup
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.drivers import forks
from threadkeep.drivers.loops import in_event_loop
from threadkeep.engine.health.requests import CompactStorage, IntegrityCheck, IntegrityProblem, LoadStorageFacts
from threadkeep.engine.requests import Commit, DropThread, MeasureStorage, StorageSize
from threadkeep.errors import Closed, Conflict, Corrupt, ReadOnly, ThreadkeepError, Unavailable
from threadkeep.plan import Failure, Outcome, Reply, Request, attempt, drive, result
from threadkeep.transports import sqlite_health

T = TypeVar("T")
_IDLE_READERS = 8
_PAGES_GIVEN_BACK, _WORTH_SHRINKING = 4096, 8  # at least an eighth of the file must be free
_CACHE = 8192
"""Kilobytes of the file that a connection may have at hand. With SQLite's 2,000 a search that looks at the values of ten
thousand memories (4 MB) takes twice as long, because it reads all of their pages again."""
_SYNCHRONOUS = {"strict": "FULL", "relaxed": "NORMAL"}
_CORRUPT = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)


class _SqliteCursor:
    """Runs SQL on a connection, for one thread at a time."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._execute = connection.cursor().execute

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        return self._execute(sql, values).fetchall()

    def many(self, sql: str, values: Sequence[Mapping[str, Any]]) -> int:
        before = self.connection.total_changes()
        self.connection.executemany(sql, values)
        return self.connection.total_changes() - before


class SqliteFile:
    """A SQLite file that several threads, and several processes, read and write."""

    writers = 1
    has_words = True

    def __init__(
        self, path: Path, backend: SqliteDialect, *, durability: str, timeout: float, read_only: bool = False
    ) -> None:
        self._path = _absolute(path)
        self._backend = backend
        self._durability = durability
        self._timeout = timeout
        self.read_only = read_only
        self._closed = False
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        self._writer: apsw.Connection | None = None
        self._readers: list[_SqliteCursor] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._active = 0
        self._resting = False

    def setup(self) -> None:
        """Make or migrate the schema now instead of at first use."""
        with self._busy():
            if not self.read_only:
                self._open_writer()
            elif not self._readers:
                self._readers.append(_SqliteCursor(self._new_reader()))

    def read(self, request: Request[Any]) -> Any:
        """Execute a request in a read transaction of its own."""
        reader = self._begin_reading()
        try:
            if reader is None:
                reader = _SqliteCursor(self._new_reader())
            if isinstance(request, MeasureStorage):
                return _footprint(self._path, reader.connection)
            if request.access.one_statement:
                return self._backend.answer(reader, request)
            if isinstance(request, LoadStorageFacts):
                return sqlite_health.facts(reader.connection, self._path, self._durability)
            if isinstance(request, IntegrityCheck):
                return self._sound(reader)
            return _in_transaction(reader.connection, "BEGIN", partial(self._backend.answer, reader, request))
        except apsw.Error as error:
            raise self._translated(error) from error
        finally:
            self._end(reader)

    def _sound(self, reader: _SqliteCursor) -> tuple[IntegrityProblem, ...]:
        loose = partial(self._backend.answer, reader, IntegrityCheck())
        return sqlite_health.sound(reader.connection, loose)

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes in one transaction; one that fails is undone alone. Durable when this returns (strict)."""
        if self.read_only:
            raise ReadOnly
        if any(isinstance(request, CompactStorage) for request in requests):
            return [attempt(partial(self._apart, request)) for request in requests]
        with self._busy():
            connection = self._open_writer()
            if len(requests) == 1:
                done = [self._alone(connection, requests[0])]
            else:
                done = _in_transaction(
                    connection, "BEGIN IMMEDIATE", lambda: [self._undoable(connection, request) for request in requests]
                )
            if any(map(_frees, requests)):
                _shrink(connection, self._timeout)
            return done

    def _apart(self, request: Request[Any]) -> Any:
        """One change, beside no other: what cannot be in a transaction is not."""
        if not isinstance(request, CompactStorage):
            return result(self.write([request])[0])
        with self._busy():
            return sqlite_health.compact(self._open_writer(), self._path)

    def close(self) -> None:
        """Close all connections; the last one to close tidies up the write-ahead log."""
        with self._lock:
            self._closed = True
            self._changed.wait_for(lambda: not self._active, timeout=self._timeout)
            try:
                self._close_all()
            except apsw.Error as error:
                raise self._translated(error) from error

    def before_fork(self) -> None:
        """Let what is under way finish, then close all connections: none may exist in the child."""
        with self._lock:
            self._resting = True
            self._changed.wait_for(lambda: not self._active, timeout=self._timeout)
            self._close_all()

    def after_fork(self, *, child: bool) -> None:
        """Connections are opened again when they are needed."""
        if child:
            self._start()
            return
        with self._lock:
            self._resting = False
            self._changed.notify_all()

    def _close_all(self) -> None:
        connections = [*(reader.connection for reader in self._readers), *([self._writer] if self._writer else [])]
        self._readers, self._writer = [], None
        for connection in connections:
            connection.close()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Something is under way; what it raises is translated."""
        self._begin()
        try:
            yield
        except apsw.Error as error:
            raise self._translated(error) from error
        finally:
            self._end()

    def _begin(self) -> None:
        with self._lock:
            self._count_in()

    def _begin_reading(self) -> _SqliteCursor | None:
        """Begin, with a connection for reading if one is at hand; the lock is taken once for both."""
        with self._lock:
            self._count_in()
            return self._readers.pop() if self._readers else None

    def _count_in(self) -> None:
        if self._resting:
            self._changed.wait_for(lambda: not self._resting)
        if self._closed:
            raise Closed
        self._active += 1

    def _end(self, reader: _SqliteCursor | None = None) -> None:
        """It is done. The connection that it read from is kept for the next, unless there are enough."""
        if reader is not None and len(self._readers) >= _IDLE_READERS:
            reader.connection.close()
            reader = None
        with self._lock:
            self._active -= 1
            if reader is not None:
                self._readers.append(reader)
            if self._resting or self._closed:
                self._changed.notify_all()

    def _answer(self, connection: apsw.Connection, request: Request[Any]) -> Any:
        return self._backend.answer(_SqliteCursor(connection), request)

    def _alone(self, connection: apsw.Connection, request: Request[Any]) -> Outcome:
        """One change, undone with its transaction: a savepoint would write each page once more."""
        try:
            return Reply(_in_transaction(connection, "BEGIN IMMEDIATE", lambda: self._answer(connection, request)))
        except ThreadkeepError as error:
            return Failure(error)
        except apsw.ConstraintError:
            return Failure(Conflict())

    def _undoable(self, connection: apsw.Connection, request: Request[Any]) -> Outcome:
        connection.execute("SAVEPOINT one")
        try:
            reply = self._answer(connection, request)
        except (ThreadkeepError, apsw.ConstraintError) as error:
            connection.execute("ROLLBACK TO one; RELEASE one")
            return Failure(error if isinstance(error, ThreadkeepError) else Conflict())
        connection.execute("RELEASE one")
        return Reply(reply)

    def _new_reader(self) -> apsw.Connection:
        """A connection to a file that has our schema; a writer makes it where it is missing."""
        if not self.read_only and not _exists(self._path):
            self._open_writer()
        connection = self._connect()
        try:
            if self._needs_migration(connection):
                self._open_writer()
        except BaseException:
            connection.close()
            raise
        return connection

    def _needs_migration(self, connection: apsw.Connection) -> bool:
        found = sqlite_setup.needs_migration(self._backend.sql, read_only=self.read_only, database=str(self._path))
        return drive(found, partial(_set_up, connection))

    def _open_writer(self) -> apsw.Connection:
        with self._lock:
            if self._writer is None:
                connection = self._connect()
                try:
                    self._prepare(connection)
                except BaseException:
                    connection.close()
                    raise
                self._writer = connection
            return self._writer

    def _connect(self) -> apsw.Connection:
        self._path = self._path.absolute()
        connection = self._connect_reading() if self.read_only else apsw.Connection(str(self._path))
        connection.set_busy_timeout(int(self._timeout * 1000))
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}; PRAGMA cache_size = -{_CACHE}")
        return connection

    def _connect_reading(self) -> apsw.Connection:
        """A connection that cannot write. Where the write-ahead log cannot be opened beside the file, nobody writes it."""
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        except (apsw.ReadOnlyError, apsw.CantOpenError):
            connection.close()
            uri = f"file:{quote(str(self._path))}?immutable=1"
            connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        return connection

    def _prepare(self, connection: apsw.Connection) -> None:
        """Give the file its settings, and bring it to our schema."""
        execute = partial(_set_up, connection)
        drive(sqlite_setup.settings(self._backend.sql), lambda statement: self._patiently(lambda: execute(statement)))
        if self._needs_migration(connection):
            migrate = partial(sqlite_setup.migrate, self._backend.sql, database=str(self._path))
            _in_transaction(connection, "BEGIN IMMEDIATE", lambda: drive(migrate(), execute))

    def _patiently(self, work: Callable[[], T]) -> T:
        """Turning WAL on does not wait for locks by itself."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return work()
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _translated(self, error: apsw.Error) -> ThreadkeepError:
        """What apsw raised, in our words."""
        if isinstance(error, _CORRUPT):
            return Corrupt(f"{self._path}: {error}")
        if isinstance(error, apsw.BusyError):
            return Unavailable(f"{self._path} was locked by others for {self._timeout} s")
        return Unavailable(f"{self._path}: {error}")


def _in_transaction(connection: apsw.Connection, begin: str, work: Callable[[], T]) -> T:
    connection.execute(begin)
    try:
        done = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return done


def _frees(request: Request[Any]) -> bool:
    return isinstance(request, DropThread) or (isinstance(request, Commit) and bool(request.batch.removed_items))


def _shrink(connection: apsw.Connection, timeout: float) -> None:
    """Shrink the file when much of it is free. Not now, if that is not possible: free pages are used again."""
    connection.set_busy_timeout(0)
    try:
        free, pages = _number(connection, "PRAGMA freelist_count"), _number(connection, "PRAGMA page_count")
        if free * _WORTH_SHRINKING < pages:
            return
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES_GIVEN_BACK})").fetchall()
    except apsw.Error:
        return
    finally:
        connection.set_busy_timeout(int(timeout * 1000))


def _footprint(path: Path, connection: apsw.Connection) -> StorageSize:
    """The sizes of the file and of its write-ahead log; pages of the file may be free."""
    files = {"file": path, "wal": path.with_name(path.name + "-wal")}
    parts = {name: each.stat().st_size if _exists(each) else 0 for name, each in files.items()}
    free = _number(connection, "PRAGMA freelist_count") * _number(connection, "PRAGMA page_size")
    return StorageSize("sqlite", sum(parts.values()), parts, free=free)


def _exists(path: Path) -> bool:
    """Whether there is a file; what forbids to look will forbid to open it too, and be told then."""
    try:
        return path.exists()
    except OSError:
        return False


def _absolute(path: Path) -> Path:
    """The path as it is meant now. On an event loop, where asking for the folder counts as blocking, at first use."""
    return path if in_event_loop() else path.absolute()


def is_of_others(path: str) -> bool:
    """Whether a file is a database, or empty, without tables of ours; it is not changed. False for what cannot be read."""
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return drive(sqlite_setup.version(SqliteDialect().sql), partial(_set_up, connection)) == 0
        finally:
            connection.close()
    except apsw.Error:
        return False


def _set_up(connection: apsw.Connection, statement: Request[Any]) -> list[Row]:
    """Execute a statement of a set-up plan."""
    assert isinstance(statement, SetupStatement)
    return connection.execute(statement.sql, statement.values).fetchall()


def _number(connection: apsw.Connection, sql: str) -> int:
    rows = connection.execute(sql).fetchall()
    return int(str(rows[0][0])) if rows else 0
