"""The transport for SQLite: one connection for writing and some for reading, through apsw, in WAL mode.

Each read request has a transaction of its own; changes of several callers share one. The first use creates the schema
and its version in one exclusive transaction, so many processes may start at once. apsw's errors are translated here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote

import apsw

from threadkeep import transports
from threadkeep.backends import sqlite
from threadkeep.backends.sql.rows import Row
from threadkeep.backends.sql.setup import SetupStatement
from threadkeep.backends.sqlite import setup as sqlite_setup
from threadkeep.backends.sqlite.commits import commit_script, drop_script
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.drivers import forks
from threadkeep.drivers.loops import in_event_loop
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import Batch, Commit, DropThread, ReadClock
from threadkeep.engine.schema_versions import NO_SCHEMA, SchemaUse, SchemaVersions, needs_migration
from threadkeep.errors import Closed, Conflict, Corrupt, ReadOnly, ThreadkeepError, Unavailable, WrongKey
from threadkeep.plan import Failure, Outcome, Reply, Request, drive, result, try_call
from threadkeep.transports.migration_log import log_migration
from threadkeep.transports.sqlite_file_in_use import FileInUse

if TYPE_CHECKING:
    from threadkeep.engine.memories.requests import WriteMemories

T = TypeVar("T")
_IDLE_READERS = 8
_PAGES_PER_SHRINK = 4096
_SHRINK_IF_FREE = 8
"""The file shrinks if at least one page of so many is free."""
_DROPS_PER_SHRINK = 64
_CACHE_KB = 8192
"""The page cache of a connection. With SQLite's default of 2,000 kB, a search over the values of ten thousand memories
(4 MB) takes twice as long, because it reads all their pages again."""
_SYNCHRONOUS = {"strict": "FULL", "relaxed": "NORMAL"}
_Stamp: TypeAlias = tuple[int, ...]
_Script: TypeAlias = tuple[str, Sequence[Any]]
_MADE = Reply()
_CORRUPT = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)


class _SqliteCursor:
    """Runs SQL on a connection, for one thread at a time.

    `stamp` is set if the file was opened as immutable: then the connection is of no use when the file has changed.
    """

    def __init__(self, connection: apsw.Connection, stamp: _Stamp | None = None) -> None:
        self.connection = connection
        self.stamp = stamp
        self.marks: dict[str, Any] = {}
        self._execute = connection.cursor().execute

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        try:
            return self._execute(sql, values).fetchall()
        except apsw.SQLError as error:
            if "malformed JSON" in str(error):
                raise Corrupt(f"the value of a memory is damaged: {error}") from error
            raise

    def many(self, sql: str, values: Sequence[Any]) -> int:
        # Not `total_changes`: that also counts what FTS5 writes, which a trigger on the table makes it do in between.
        execute, changes, count = self.connection.execute, self.connection.changes, 0
        for each in values:
            execute(sql, each)
            count += changes()
        return count


class SqliteFile:
    """A SQLite file. Many threads and processes may use it at once."""

    writers = 1
    commits_at_once = True

    def __init__(
        self,
        path: Path,
        backend: SqliteDialect,
        *,
        durability: str,
        timeout: float,
        read_only: bool = False,
        migrate: bool = True,
    ) -> None:
        self._path = _absolute(path)
        self._backend = backend
        self._durability = durability
        self._timeout = timeout
        self.read_only = read_only
        self._schema_use = SchemaUse(read_only, migrate)
        self._closed = False
        self._file = FileInUse()
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        self._is_set_up = False
        self._writer: apsw.Connection | None = None
        self._at_once: apsw.Cursor | None = None
        self._drops = 0
        self._readers: list[_SqliteCursor] = []
        self._lock = threading.RLock()  # a signal handler may come while this thread holds it
        self._changed = threading.Condition(self._lock)
        self._active: list[int] = []
        """The threads that execute requests, once for each."""
        self._paused = False

    def setup(self) -> None:
        """Create or migrate the schema now instead of at first use. The next read uses the same connection."""
        with self._busy():
            if self._is_set_up:
                return
            stamp = _stamp(self._path)
            reader = self._new_reader() if self.read_only else _reader(self._prepared(), stamp)
            self._is_set_up = True
            with self._lock:
                self._readers.append(reader)

    def schema(self) -> SchemaVersions:
        """Return the schema versions that the file states. Change nothing."""
        with self._busy():
            if not _exists(self._path):
                return NO_SCHEMA
            connection = self._connect_read_only()
            try:
                return self._versions(connection)
            finally:
                connection.close()

    def migrate(self) -> None:
        """Create or migrate the schema, even if this Keep was opened with migrate=False."""
        if self.read_only:
            raise ReadOnly
        self._schema_use = SchemaUse()
        self._is_set_up = False
        self.setup()

    def copy_to_file(self, path: Path, on_progress: Callable[[int, int], object]) -> bool:
        """Copy the whole file as of one moment, with SQLite's online backup. Others may read and write meanwhile."""
        with self._busy():
            source = self._connect_read_only()
            try:
                transports.sqlite_health.copy_database(source, path, on_progress)
            finally:
                source.close()
        return True

    def read(self, request: Request[Any]) -> Any:
        """Execute a request in a read transaction of its own."""
        with self._lock:
            if self._paused or self._closed:
                self._wait_until_open()
            self._active.append(get_ident())
            reader = self._readers.pop() if self._readers else None
        try:
            if reader is not None and reader.stamp is not None and reader.stamp != _stamp(self._path):
                reader.connection.close()
                reader = None
            if reader is None or reader.stamp is None:
                self._file.check()
            if reader is None:
                reader = self._new_reader()
            if request.access.subject == "storage":
                return self._read_about_storage(reader, request)
            if not request.access.one_statement:
                return self._read_in_transaction(reader, request)
            return self._backend.answer(reader, request)
        except apsw.Error as error:
            raise self._translate(error) from error
        finally:
            self._end(reader)

    def _read_in_transaction(self, reader: _SqliteCursor, request: Request[Any]) -> Any:
        connection = reader.connection
        try:
            if connection.in_transaction:  # Ctrl-C came while another read was ending it
                connection.execute("ROLLBACK")
            connection.execute("BEGIN")
            reply = self._backend.answer(reader, request)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return reply

    def _read_about_storage(self, reader: _SqliteCursor, request: Request[Any]) -> Any:
        if isinstance(request, ReadClock):
            from threadkeep.drivers.uptime import machine_clock  # noqa: PLC0415 - on use

            return machine_clock()
        check_integrity = partial(self._check_integrity, request)
        return transports.sqlite_health.answer(
            reader.connection, request, self._path, self._durability, check_integrity
        )

    def _check_integrity(self, request: Request[Any]) -> Any:
        """Check the file through a connection of its own.

        The check of a full-text index (SQLite 3.54) trusts what its connection has read of the index before, and calls
        it damaged if segments were merged since.
        """
        reader = self._new_reader()
        try:
            find_orphans = partial(self._backend.answer, reader, request)
            return transports.sqlite_health.integrity_problems(reader.connection, find_orphans)
        finally:
            reader.connection.close()

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes in one transaction; with strict durability they are durable when this returns.

        A change that fails undoes only itself.
        """
        if self.read_only:
            raise ReadOnly
        if any(request.access.subject == "storage" for request in requests):
            return [try_call(partial(self._write_separately, request)) for request in requests]
        with self._busy():
            connection = self._open_writer()
            scripts = _commit_scripts(requests)
            if scripts is not None and (outcomes := _execute_scripts(connection, scripts)) is not None:
                return outcomes
            if len(requests) == 1:
                outcomes = [self._change_one(connection, requests[0])]
            else:
                outcomes = _in_transaction(
                    connection,
                    "BEGIN IMMEDIATE",
                    lambda: [self._change_in_savepoint(connection, request) for request in requests],
                )
            if any(map(_frees_pages, requests)):
                _shrink(connection, self._timeout)
            return outcomes

    def try_commit(self, batch: Batch) -> bool:
        """Commit a batch of few ops in the calling thread. False if that cannot be done at once, see `try_write`."""
        script = commit_script(batch, alone=True)
        return script is not None and self.try_write(*script)

    def write_at_once(self, request: WriteMemories) -> bool:
        """Change memories in the calling thread. False if that cannot be done at once, see `try_write`."""
        script = sqlite.memories.write_script(self._backend.sql, request)
        try:
            return script is not None and self.try_write(*script)
        except Conflict:
            return False

    def try_drop(self, key: ThreadKey, *, sealed: bool = False) -> bool:
        """Delete a thread in the calling thread. False if that cannot be done at once.

        Now and then it returns False although it could: a request also returns free pages to the system.
        """
        self._drops += 1
        return self._drops % _DROPS_PER_SHRINK != 0 and self.try_write(*drop_script(key, sealed=sealed))

    def try_write(self, sql: str, values: Sequence[Any]) -> bool:
        """Execute a script of statements, which begins and commits a transaction, as one call of the driver.

        It must not return rows. False, and nothing happened, if the file is not set up or was removed, others are using
        it or the connection, or it fails: the caller then sends a request, which waits, or raises the error. Conflict
        if the script rolled itself back because of a constraint, WrongKey if a trigger refused what is not encrypted.

        No lock is held, so this may be called anywhere, even where a signal handler interrupted another call of it. The
        connection is used for nothing else, and its cursor refuses a second call while one is running. Nothing can come
        between the statements of a script. The connection is closed when a running one has ended.
        """
        cursor = self._at_once or self._open_at_once()
        if cursor is None or not self._file.is_there():
            return False
        try:
            cursor.execute(sql, values)
        except apsw.ConstraintError as error:
            if _is_refusal(error):
                _end_transaction(cursor)
                raise WrongKey from error
            raise Conflict from error
        except apsw.ThreadingViolationError:
            return False
        except apsw.Error:
            _end_transaction(cursor)
            return False
        except BaseException:
            _end_transaction(cursor)
            raise
        return True

    def _open_at_once(self) -> apsw.Cursor | None:
        """Open the connection for `try_write`, once the file has been set up. It does not wait for locks."""
        with self._lock:
            if not self._is_set_up or self.read_only or self._closed or self._paused or self._at_once is not None:
                return self._at_once
            connection = self._connect()
            connection.set_busy_timeout(0)
            connection.execute("PRAGMA temp_store = MEMORY")  # else a script with 20 rows makes a temporary file
            other: apsw.Cursor | None = vars(self)["_at_once"]
            if other is not None:  # a signal handler was faster
                connection.close()
                return other
            self._at_once = connection.cursor()
            return self._at_once

    def _write_separately(self, request: Request[Any]) -> Any:
        """Execute one change by itself: the file cannot be rewritten inside a transaction."""
        if request.access.subject != "storage":
            return result(self.write([request])[0])
        with self._busy():
            connection = self._open_writer()
            return transports.sqlite_health.change(connection, request, self._path, self._answer_in_transaction)

    def close(self) -> None:
        """Wait for what is under way, at most `timeout` seconds, then close all connections.

        The last connection to close empties the write-ahead log.
        """
        with self._lock:
            self._closed = True
            self._changed.wait_for(self._is_idle, timeout=self._timeout)
            try:
                self._close_all()
            except apsw.Error as error:
                raise self._translate(error) from error

    def before_fork(self) -> None:
        """Wait for what is under way, then close all connections: none may exist in the child."""
        with self._lock:
            self._paused = True
            self._changed.wait_for(self._is_idle, timeout=self._timeout)
            self._close_all()

    def after_fork(self, *, child: bool) -> None:
        """Let requests continue. Connections are opened again when they are needed."""
        if child:
            self._start()
            return
        with self._lock:
            self._paused = False
            self._changed.notify_all()

    def _close_all(self) -> None:
        connections = [*(reader.connection for reader in self._readers), *([self._writer] if self._writer else [])]
        at_once, self._at_once = self._at_once, None
        if at_once is not None:
            _close_when_idle(at_once.connection)
        self._readers, self._writer = [], None
        for connection in connections:
            connection.close()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Count a request as active, and translate what it raises."""
        with self._lock:
            self._enter()
        try:
            self._file.check()
            yield
        except apsw.Error as error:
            raise self._translate(error) from error
        finally:
            self._end()

    def _enter(self) -> None:
        if self._paused or self._closed:
            self._wait_until_open()
        self._active.append(get_ident())

    def _is_idle(self) -> bool:
        """Whether no other thread executes a request. This one does not, even if Ctrl-C kept it from counting one."""
        return self._active.count(get_ident()) == len(self._active)

    def _wait_until_open(self) -> None:
        """Wait until a fork is over, under the lock. Closed if it is closed."""
        if self._paused:
            self._changed.wait_for(lambda: not self._paused)
        if self._closed:
            raise Closed

    def _end(self, reader: _SqliteCursor | None = None) -> None:
        """Count a request as done. Keep its reader for the next one, unless there are enough."""
        if reader is not None and len(self._readers) >= _IDLE_READERS:
            reader.connection.close()
            reader = None
        with self._lock:
            self._active.remove(get_ident())
            if reader is not None:
                self._readers.append(reader)
            if self._paused or self._closed:
                self._changed.notify_all()

    def _answer(self, connection: apsw.Connection, request: Request[Any]) -> Any:
        return self._backend.answer(_SqliteCursor(connection), request)

    def _answer_in_transaction(self, connection: apsw.Connection, request: Request[Any]) -> Any:
        return _in_transaction(connection, "BEGIN IMMEDIATE", lambda: self._answer(connection, request))

    def _change_one(self, connection: apsw.Connection, request: Request[Any]) -> Outcome:
        """Execute one change in a transaction. Without a savepoint, which would write each page once more."""
        try:
            return Reply(self._answer_in_transaction(connection, request))
        except ThreadkeepError as error:
            return Failure(error)
        except apsw.ConstraintError as error:
            return Failure(_constraint_error(error))

    def _change_in_savepoint(self, connection: apsw.Connection, request: Request[Any]) -> Outcome:
        connection.execute("SAVEPOINT one")
        try:
            reply = self._answer(connection, request)
        except (ThreadkeepError, apsw.ConstraintError) as error:
            connection.execute("ROLLBACK TO one; RELEASE one")
            return Failure(error if isinstance(error, ThreadkeepError) else _constraint_error(error))
        connection.execute("RELEASE one")
        return Reply(reply)

    def _new_reader(self) -> _SqliteCursor:
        """Return a connection to a file that has our schema; if it is missing, opening the writer creates it."""
        if not self.read_only and not _exists(self._path):
            self._open_writer()
        stamp = _stamp(self._path)
        connection = self._connect()
        try:
            if self._needs_migration(self._versions(connection)):
                self._open_writer()
        except BaseException:
            connection.close()
            raise
        return _reader(connection, stamp)

    def _needs_migration(self, found: SchemaVersions) -> bool:
        return needs_migration(found, self._schema_use, database=str(self._path))

    def _versions(self, connection: apsw.Connection) -> SchemaVersions:
        return drive(sqlite_setup.versions(self._backend.sql), partial(_execute_setup, connection))

    def _open_writer(self) -> apsw.Connection:
        with self._lock:
            if self._writer is None:
                self._writer = self._prepared()
            return self._writer

    def _prepared(self) -> apsw.Connection:
        """Return a new connection to the file, which has our settings and schema from now on."""
        with self._lock:
            connection = self._connect()
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._is_set_up = True
            return connection

    def _connect(self) -> apsw.Connection:
        self._path = self._path.absolute()
        reads_only = self.read_only or (_exists(self._path) and not os.access(self._path, os.W_OK))
        connection = self._connect_read_only() if reads_only else apsw.Connection(str(self._path))
        connection.set_busy_timeout(int(self._timeout * 1000))
        # Otherwise SQLite prepares a join again whenever its values change, in case they allow for a better plan. Ours
        # have one good plan, and preparing took four times as long as executing.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}; PRAGMA cache_size = -{_CACHE_KB}")
        if not _is_immutable(connection):
            self._file.remember(self._path)
        return connection

    def _connect_read_only(self) -> apsw.Connection:
        """Return a connection that cannot write.

        SQLite would make the files -wal and -shm, with the rights of the file, and a reader cannot remove them. If the
        file may not be written, they would keep it from being written later on. So without a write-ahead log, or if
        that cannot be opened, nobody can be writing: the file is opened as immutable.
        """
        if _is_write_protected(self._path) and not _size(f"{self._path}-wal"):
            return _open_immutable(self._path)
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        except (apsw.ReadOnlyError, apsw.CantOpenError):
            connection.close()
            connection = _open_immutable(self._path)
        return connection

    def _prepare(self, connection: apsw.Connection) -> None:
        """Apply our settings to the file, and create or migrate the schema."""
        execute = partial(_execute_setup, connection)
        found = self._versions(connection)
        drive(
            sqlite_setup.settings(self._backend.sql, found),
            lambda statement: self._retry_while_busy(lambda: execute(statement)),
        )
        if self._needs_migration(found):
            migrate = partial(sqlite_setup.migrate, self._backend.sql, database=str(self._path))
            before = _in_transaction(connection, "BEGIN IMMEDIATE", lambda: drive(migrate(), execute))
            log_migration(str(self._path), before)

    def _retry_while_busy(self, work: Callable[[], T]) -> T:
        """Retry for `timeout` seconds: turning WAL on does not wait for locks by itself."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return work()
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _translate(self, error: apsw.Error) -> ThreadkeepError:
        """Return our error for one of apsw's."""
        if isinstance(error, _CORRUPT):
            return Corrupt(f"{self._path}: {error}")
        if isinstance(error, apsw.BusyError):
            return Unavailable(f"{self._path} was locked by others for {self._timeout} s; try again, or raise timeout")
        return Unavailable(f"{self._path}: {_why_not_opened(self._path, error)}")


def _why_not_opened(path: Path, error: apsw.Error) -> str:
    """Return what is wrong with a path that SQLite cannot open; what SQLite says if it is not known."""
    if isinstance(error, apsw.CantOpenError):
        with suppress(OSError):  # looking is not permitted
            if not path.parent.exists():
                return f"the folder {path.parent} does not exist"
            if not path.parent.is_dir():
                return f"{path.parent} is not a folder"
            if path.is_dir():
                return "this is a folder, not a file"
    return str(error)


def _open_immutable(path: Path) -> apsw.Connection:
    uri = f"file:{quote(str(path))}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _is_write_protected(path: Path) -> bool:
    """Whether nobody may write a file, or this process may not. Root may write any file."""
    return _exists(path) and (not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK))


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0  # noqa: PTH110, PTH116 - twice as fast


def _stamp(path: Path) -> _Stamp:
    """Return something that changes whenever somebody writes the file."""
    found = path.stat() if _exists(path) else None
    return (found.st_mtime_ns, found.st_size, found.st_ino, _size(f"{path}-wal")) if found else ()


def _reader(connection: apsw.Connection, stamp: _Stamp | None) -> _SqliteCursor:
    """Return a cursor for reads. A file that was opened as immutable is opened again when its stamp changes."""
    return _SqliteCursor(connection, stamp if _is_immutable(connection) else None)


def _is_immutable(connection: apsw.Connection) -> bool:
    return bool(connection.open_flags & apsw.SQLITE_OPEN_URI)


def _in_transaction(connection: apsw.Connection, begin: str, work: Callable[[], T]) -> T:
    connection.execute(begin)
    try:
        value = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return value


def _close_when_idle(connection: apsw.Connection) -> None:
    """Close a connection on which another thread may be executing a script, when that has ended."""
    while True:
        try:
            connection.close()
        except apsw.ThreadingViolationError:
            time.sleep(0.0005)
        else:
            return


def _end_transaction(cursor: apsw.Cursor) -> None:
    """Roll back what a script left open when it failed. Do nothing if another thread is using the cursor by now."""
    with suppress(apsw.Error):
        if cursor.connection.in_transaction:
            cursor.execute("ROLLBACK")


def _commit_scripts(requests: Sequence[Request[Any]]) -> list[_Script] | None:
    """Return a script for each request; None if one of them is not a usual commit."""
    scripts: list[_Script] = []
    for request in requests:
        script = commit_script(request.batch, alone=False) if isinstance(request, Commit) else None
        if script is None:
            return None
        scripts.append(script)
    return scripts


def _execute_scripts(connection: apsw.Connection, scripts: Sequence[_Script]) -> list[Outcome] | None:
    """Execute scripts of commits in one transaction. One that fails at its first statement is a Conflict.

    None, and nothing happened, if one fails later: then the caller makes each change in a savepoint.
    """
    cursor, outcomes = connection.cursor(), list[Outcome]()
    execute, total_changes = cursor.execute, connection.total_changes
    execute("BEGIN IMMEDIATE")
    try:
        for sql, values in scripts:
            before = total_changes()
            try:
                execute(sql, values)
            except apsw.ConstraintError as error:
                if total_changes() != before:
                    execute("ROLLBACK")
                    return None
                outcomes.append(Failure(_constraint_error(error)))
            else:
                outcomes.append(_MADE)
        execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return outcomes


def _is_refusal(error: apsw.ConstraintError) -> bool:
    """Whether a trigger of `refuse-plain` refused a change."""
    code: int | None = getattr(error, "extendedresult", None)  # apsw does not declare it
    return code == apsw.SQLITE_CONSTRAINT_TRIGGER


def _constraint_error(error: apsw.ConstraintError) -> ThreadkeepError:
    return WrongKey() if _is_refusal(error) else Conflict()


def _frees_pages(request: Request[Any]) -> bool:
    return isinstance(request, DropThread) or (isinstance(request, Commit) and bool(request.batch.removed_items))


def _shrink(connection: apsw.Connection, timeout: float) -> None:
    """Shrink the file if much of it is free. Skip it if the file is busy: free pages are reused anyway."""
    connection.set_busy_timeout(0)
    try:
        free, pages = _pragma(connection, "freelist_count"), _pragma(connection, "page_count")
        if free * _SHRINK_IF_FREE < pages:
            return
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES_PER_SHRINK})").fetchall()
    except apsw.Error:
        return
    finally:
        connection.set_busy_timeout(int(timeout * 1000))


def _pragma(connection: apsw.Connection, name: str) -> int:
    return int(str(connection.execute(f"PRAGMA {name}").fetchall()[0][0]))


def _exists(path: Path) -> bool:
    """Return whether a file exists. If looking is not permitted, opening it will report that."""
    try:
        return path.exists()
    except OSError:
        return False


def _absolute(path: Path) -> Path:
    """Return the absolute path. On an event loop, leave that to first use: asking for the current folder blocks."""
    return path if in_event_loop() else path.absolute()


def is_foreign_database(path: str) -> bool:
    """Return whether a file is a SQLite database, or empty, without our tables. False if it cannot be read.

    The file is not changed.
    """
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            versions = sqlite_setup.versions(SqliteDialect().sql)
            return drive(versions, partial(_execute_setup, connection)) == NO_SCHEMA
        finally:
            connection.close()
    except apsw.Error:
        return False


def _execute_setup(connection: apsw.Connection, statement: Request[Any]) -> list[Row]:
    """Execute a statement of a set-up plan."""
    assert isinstance(statement, SetupStatement)
    try:
        return connection.execute(statement.sql, statement.values).fetchall()
    except apsw.SQLError as error:
        if statement.missing_ok and "no such table" in str(error):
            return []
        raise
