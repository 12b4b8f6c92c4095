"""Connections to PostgreSQL through psycopg's pool.

Every request takes a connection and gives it back; nothing is left on it, so a pooler in front (PgBouncer, in
transaction mode) may hand each transaction to another server process. What is one statement is one round trip. A
connection that is lost, a server that restarts, a primary that changes: the request is made again, on another
connection, until `timeout` has passed. A commit whose outcome got lost is a Conflict, which makes the plan read again
before it goes on. What psycopg raises is translated here, in one place.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Any, TypeVar

import psycopg
from psycopg import errors as sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from threadkeep.backends.postgres import setup as postgres_setup
from threadkeep.backends.postgres.dialect import PostgresDialect, Statement, fits_one_statement
from threadkeep.backends.postgres.pgvector import can_index
from threadkeep.backends.sql.commits import only_adds
from threadkeep.backends.sql.rows import Row, Values
from threadkeep.backends.sql.setup import SetupStatement
from threadkeep.drivers import forks
from threadkeep.engine.health.requests import CompactStorage, IntegrityCheck, LoadStorageFacts
from threadkeep.engine.memories.requests import CreateVectorIndex, WriteMemories
from threadkeep.engine.requests import Commit, LoadCheckpoints, LoadThreadRows
from threadkeep.errors import Closed, Conflict, Corrupt, ReadOnly, ThreadkeepError, Unavailable
from threadkeep.plan import Failure, Outcome, Reply, Request, answer, drive
from threadkeep.transports import postgres_arrays, postgres_health

T = TypeVar("T")
_log = logging.getLogger(__name__)
_READING, _WRITING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "BEGIN"
_WRITERS = 4
"""So many groups of commits are under way at once; more would only make the groups smaller."""
_GROUP_BYTES = 16 * 1024 * 1024
_FIRST_PATIENCE = 10.0
"""Seconds that a server which never answered yet is waited for: the address may be wrong."""
_RECONNECT = 2.0

_HOPELESS = (
    sql.InvalidPassword, sql.InvalidAuthorizationSpecification, sql.InvalidCatalogName, sql.QueryCanceled, sql.DiskFull,
    sql.ProgramLimitExceeded,
)  # fmt: skip
_TRANSIENT = (psycopg.OperationalError, psycopg.InterfaceError, sql.ReadOnlySqlTransaction, sql.SerializationFailure)
_SET_UP_BY_OTHERS = (
    sql.UniqueViolation, sql.DuplicateTable, sql.DuplicateSchema, sql.DuplicateObject, sql.InternalError_,
    sql.SerializationFailure, sql.DeadlockDetected,
)  # fmt: skip
_NOT_SET_UP = (sql.UndefinedTable, sql.InvalidSchemaName)


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


class _Connection(psycopg.Connection[Row]):
    """A connection on which nothing takes for ever, even if the server has stopped without saying so."""

    patience: float | None = None
    kept_cursor: _PostgresCursor | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


class _PostgresCursor:
    """Runs SQL on a connection, by a psycopg cursor of our own, whatever cursors a pool that was lent would make."""

    def __init__(self, connection: psycopg.Connection[Any], backend: PostgresDialect) -> None:
        self._connection = connection
        self._spelled = backend.spelled
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._cursor.format = Format.BINARY
        self._cursor.adapters.register_dumper(int, Int8BinaryDumper)  # one type for all of them, one plan
        postgres_arrays.register(self._cursor.adapters)

    @property
    def pid(self) -> int:
        """The process on the server, as it was told."""
        return self._connection.info.backend_pid

    def rows(self, sql: str, values: Values | None = None) -> list[Row]:
        text, names = self._spelled(sql)
        self._cursor.execute(text, _in_order(names, values or {}))
        return self._cursor.fetchall() if self._cursor.pgresult and self._cursor.pgresult.nfields else []

    def many(self, sql: str, values: Sequence[Values]) -> int:
        text, names = self._spelled(sql)
        self._cursor.executemany(text, [_in_order(names, row) for row in values])
        return self._cursor.rowcount

    def ask(self, statement: Statement) -> Any:
        """What a statement answers."""
        return statement.read(self.rows(statement.sql, statement.values))

    def at_once(self, statements: Sequence[tuple[str, Values]]) -> None:
        """Some statements in a transaction, sent together: one round trip."""
        try:
            with self._connection.pipeline():
                self._cursor.execute(_WRITING)
                self._cursor.execute(
                    "SET LOCAL plan_cache_mode = force_generic_plan"
                )  # they are not worth planning anew
                for sql, values in statements:
                    text, names = self._spelled(sql)
                    self._cursor.execute(text, _in_order(names, values))
                self._cursor.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def be_patient(self) -> None:
        """Wait as long as it takes."""
        if isinstance(self._connection, _Connection):
            self._connection.patience = None

    def transaction(self, begin: str, work: Callable[[], T]) -> T:
        """Do some work in a transaction."""
        self.rows(begin)
        try:
            done = work()
            self.rows("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return done

    def _roll_back(self) -> None:
        if self._connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            self.rows("ROLLBACK")


def _in_order(names: Iterable[tuple[str, str | None]], values: Values) -> list[Any]:
    return [postgres_arrays.array(kind, values[name]) if kind else values[name] for name, kind in names]


class PostgresServer:
    """A PostgreSQL server, or several of which one is the primary, that many threads and processes use at once."""

    writers = _WRITERS
    has_words = True

    def __init__(
        self,
        where: str | ConnectionPool[Any],
        backend: PostgresDialect,
        options: PostgresOptions,
        *,
        on_loss: Callable[[], None],
    ) -> None:
        self._lent = where if isinstance(where, ConnectionPool) else None
        self._conninfo = "" if self._lent is not None else _conninfo(str(where), options)
        self._backend = backend
        self._options = options
        self._on_loss = on_loss
        self.read_only = options.read_only
        self._closed = False
        self._forked = False
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Any] | None = None
        self._synchronous: str | None = None

    def setup(self) -> None:
        """Make or migrate the schema now instead of at first use."""
        self._ready()

    def read(self, request: Request[Any]) -> Any:
        """Execute a request: in one statement, or in a transaction that sees one moment."""
        return self._persist(lambda cursor: self._answer(cursor, request))

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes; those that only add go out together, in one statement. Durable when this returns (strict)."""
        if self._options.read_only:
            raise ReadOnly
        outcomes: dict[int, Outcome] = {}
        for group in _groups(requests, by_thread=self._options.by_thread):
            if len(group) == 1:
                outcomes[group[0]] = self._change(requests[group[0]])
            else:
                outcomes |= zip(group, self._together([requests[n] for n in group]), strict=True)
        return [outcomes[n] for n in range(len(requests))]

    def close(self) -> None:
        """Close the pool, unless it was lent."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None and self._lent is None:
            pool.close(timeout=self._options.timeout)

    def before_fork(self) -> None:
        """Nothing to wait for: the child never touches the parent's connections."""

    def after_fork(self, *, child: bool) -> None:
        """The child makes its own pool when it needs one."""
        if child:
            self._inherited = self._pool  # not collected: that would end threads that are not here
            self._forked = True
            self._start()

    def _answer(self, cursor: _PostgresCursor, request: Request[Any]) -> Any:
        if isinstance(request, LoadStorageFacts):
            return postgres_health.facts(cursor, self._backend, self._pool_facts(), synchronous=self._synchronous)
        if isinstance(request, LoadCheckpoints) and not self._options.by_thread:
            loaded = cursor.ask(self._backend.load(request))
            if loaded is not None:
                return loaded
        if isinstance(request, LoadThreadRows) and not self._options.by_thread:
            return cursor.ask(self._backend.survey(request))
        if request.access.one_statement:
            return self._backend.answer(cursor, request)
        answered = cursor.transaction(_READING, lambda: self._backend.answer(cursor, request))
        return (
            (*postgres_health.unsound(cursor, self._backend), *answered)
            if isinstance(request, IntegrityCheck)
            else answered
        )

    def _pool_facts(self) -> dict[str, Any]:
        pool, options = self._lent or self._pool, self._options
        sizes = (pool.min_size, pool.max_size) if pool is not None else (options.min_size, options.max_size)
        return {
            "pool": sizes,
            "prepare": options.prepare,
            "group": "thread" if options.by_thread else "all",
            "durability": options.durability,
            "read_only": options.read_only,
        }

    def _compacted(self) -> tuple[int, int]:
        with self._translated(), self._patient_connection() as cursor:
            return postgres_health.compact(cursor)

    def _together(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Commit all at once. If one is in the way of the others, each goes alone."""
        batches = [request.batch for request in requests if isinstance(request, Commit)]
        statement = self._backend.commit(batches, self._synchronous_now())
        try:
            made = self._persist(lambda cursor: cursor.ask(statement), again=False)
        except (Conflict, ValueError):
            return [self._change(request) for request in requests]
        return [_outcome(self._backend.number(batch.thread.key) in made) for batch in batches]

    def _change(self, request: Request[Any]) -> Outcome:
        return answer(self._changed, request)

    def _changed(self, request: Request[Any]) -> Any:
        if isinstance(request, Commit) and not self._options.by_thread and fits_one_statement(request):
            statement = self._backend.commit([request.batch], self._synchronous_now())
            if not self._persist(lambda cursor: cursor.ask(statement), again=False):
                raise Conflict
            return None
        if isinstance(request, WriteMemories):
            return self._remembered(request)
        if isinstance(request, CreateVectorIndex):
            return self._index_vectors(request)
        if isinstance(request, CompactStorage):
            return self._compacted()
        return self._persist(
            lambda cursor: cursor.transaction(_WRITING, lambda: self._backend_answer(cursor, request)),
            again=request.access.repeatable,
        )

    def _remembered(self, request: WriteMemories) -> None:
        """Memories in one transaction, and one round trip. Made twice, it is the same."""
        statements = self._backend.remember(request, self._synchronous_now())
        self._persist(lambda cursor: cursor.at_once(statements))

    def _index_vectors(self, request: CreateVectorIndex) -> None:
        """Have an index, if that is possible; without one vectors are compared by the clients, or one by one.

        Behind a pooler a lock would stay on a connection that is not ours: there the index is the administrator's.
        """
        self._ready()
        possible = self._backend.pgvector is not None and can_index(request.dims, request.metric)
        if possible and self._options.prepare:
            with self._translated(), self._patient_connection() as cursor:
                self._make_index(cursor, request)

    def _make_index(self, cursor: _PostgresCursor, request: CreateVectorIndex) -> None:
        """Make an index, unless it is there or others are at it. One that was not finished is removed."""
        blocks, backend = self._backend.sql, self._backend
        name, drop, make = backend.index_blocks(request)
        lock = {"table": backend.named("tk_vectors"), "dims": request.dims}
        if not cursor.rows(blocks["lock-index"], lock)[0][0]:
            return
        try:
            valid = cursor.rows(blocks["index-is-valid"], {"name": name})
            if valid and valid[0][0]:
                return
            cursor.rows(drop)
            cursor.rows(make)
        except psycopg.Error as error:
            _log.warning("no index for vectors: %s", _said(error))
            cursor.rows(drop)
        finally:
            cursor.rows(blocks["unlock-index"], lock)

    @contextmanager
    def _patient_connection(self) -> Iterator[_PostgresCursor]:
        """A connection for what takes long."""
        self._ready()
        with self._first_connection(time.monotonic() + self._options.timeout) as cursor:
            cursor.be_patient()
            yield cursor

    def _backend_answer(self, cursor: _PostgresCursor, request: Request[Any]) -> Any:
        if self._synchronous is not None:
            cursor.rows(f"SET LOCAL synchronous_commit = {self._synchronous}")
        return self._backend.answer(cursor, request)

    def _synchronous_now(self) -> str | None:
        self._ready()
        return self._synchronous

    def _persist(self, work: Callable[[_PostgresCursor], T], *, again: bool = True) -> T:
        """Do some work on a connection, again and again while that may help. What it raises is translated.

        If the connection is lost on the way, everything that was remembered is forgotten: the next one may lead to a
        server that never had it. What must not be done `again` then is a Conflict: the plan reads before it goes on.
        """
        pool = self._ready()
        end, attempt = time.monotonic() + self._options.timeout, 0
        while True:
            try:
                with self._translated(), self._lend(pool, end) as cursor:
                    return work(cursor)
            except _TransientError as passing:
                attempt += 1
                pause = min(0.01 * 2**attempt, 0.25) * (0.5 + random())  # noqa: S311 - no secret
                if time.monotonic() + pause > end:
                    raise Unavailable(f"PostgreSQL: {passing}") from passing.__cause__
                if passing.lost_connection:
                    self._renew(pool)
                    self._on_loss()
                    if not again:
                        raise Conflict(f"PostgreSQL: {passing}") from passing.__cause__
                if attempt > 1:  # one connection that was lost says nothing of the server
                    time.sleep(pause)

    def _renew(self, pool: ConnectionPool[Any]) -> None:
        """When a connection was lost, those that wait in the pool may be dead too."""
        try:
            pool.check() if pool is self._lent else pool.drain()
        except psycopg.Error:
            return  # the next try will tell

    def _ready(self) -> ConnectionPool[Any]:
        """The pool, opened, of a database that has our schema."""
        pool = self._pool
        if pool is not None:
            return pool
        with self._lock:
            if self._closed:
                raise Closed
            if self._pool is None:
                pool = self._lent or self._open_pool()  # it connects while we look at the schema
                try:
                    self._set_up()
                except BaseException:
                    if pool is not self._lent:
                        pool.close(timeout=0)
                    raise
                self._pool = pool
            return self._pool

    def _open_pool(self) -> ConnectionPool[Any]:
        options = self._options

        def configure(connection: _Connection) -> None:
            connection.patience = options.timeout

        return ConnectionPool(
            self._conninfo, connection_class=_Connection, min_size=options.min_size, max_size=options.max_size,
            kwargs={"autocommit": True, "prepare_threshold": 5 if options.prepare else None}, configure=configure,
            name="threadkeep", open=True, reconnect_timeout=_RECONNECT,
        )  # fmt: skip

    def _set_up(self) -> None:
        """Look at the schema, and make it if it is not there; with patience for a server that is just starting."""
        if self._lent is not None and self._forked:
            raise Unavailable("a ConnectionPool does not survive os.fork; open another Keep in the child")
        end, attempt = time.monotonic() + min(self._options.timeout, _FIRST_PATIENCE), 0
        while True:
            try:
                with self._translated(), self._first_connection(end) as cursor:
                    return self._prepare_schema(cursor)
            except _TransientError as passing:
                attempt += 1
                if time.monotonic() > end:
                    raise Unavailable(f"PostgreSQL: {passing}") from passing.__cause__
                time.sleep(min(0.02 * 2**attempt, 0.5) * (0.5 + random()))  # noqa: S311 - no secret

    @contextmanager
    def _first_connection(self, end: float) -> Iterator[_PostgresCursor]:
        """A connection of its own, which says at once what is wrong with the address; of a pool that was lent, one of its."""
        if self._lent is not None:
            with self._lend(self._lent, end) as cursor:
                yield cursor
            return
        with _Connection.connect(self._conninfo, autocommit=True) as connection:
            connection.patience = self._options.timeout
            yield _PostgresCursor(connection, self._backend)

    @contextmanager
    def _lend(self, pool: ConnectionPool[Any], end: float) -> Iterator[_PostgresCursor]:
        """A connection of the pool; it goes back as it came."""
        connection = pool.getconn(timeout=max(end - time.monotonic(), 0.001))
        try:
            autocommit, threshold = connection.autocommit, connection.prepare_threshold
            if not autocommit:
                connection.autocommit = True
            if not self._options.prepare:
                connection.prepare_threshold = None
            try:
                yield self._cursor_of(connection)
            finally:
                connection.prepare_threshold = threshold
                if not autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE:
                    connection.autocommit = False
        finally:
            pool.putconn(connection)

    def _cursor_of(self, connection: psycopg.Connection[Any]) -> _PostgresCursor:
        """A connection of ours keeps its cursor."""
        if not isinstance(connection, _Connection):
            return _PostgresCursor(connection, self._backend)
        if connection.kept_cursor is None:
            connection.kept_cursor = _PostgresCursor(connection, self._backend)
        return connection.kept_cursor

    def _prepare_schema(self, cursor: _PostgresCursor) -> None:
        blocks, options, execute = self._backend.sql, self._options, partial(_set_up, cursor)
        if drive(postgres_setup.needs_migration(blocks, read_only=options.read_only), execute):
            migrate = partial(postgres_setup.migrate, blocks, self._backend.schema)
            try:
                cursor.transaction(_WRITING, lambda: drive(migrate(), execute))
            except _SET_UP_BY_OTHERS as error:
                raise _TransientError("others were setting it up at the same time") from error
        wanted = options.wants_vectors and not options.read_only
        self._backend.pgvector = drive(postgres_setup.find_pgvector(blocks, wanted=wanted), execute)
        synchronous = postgres_setup.synchronous_commit(blocks, durability=options.durability)
        self._synchronous = drive(synchronous, execute)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sql.ProgramLimitExceeded as error:
            raise ValueError(
                f"PostgreSQL cannot hold this, an id may be too long for an index: {_said(error)}"
            ) from error
        except (sql.UniqueViolation, sql.DivisionByZero) as error:
            raise Conflict from error
        except (sql.DataCorrupted, sql.IndexCorrupted) as error:
            raise Corrupt(f"PostgreSQL: {_said(error)}") from error
        except _HOPELESS as error:
            raise Unavailable(f"PostgreSQL: {_said(error)}") from error
        except _TRANSIENT as error:
            if self._closed:
                raise Closed from error
            if _is_hopeless(error):
                raise Unavailable(f"PostgreSQL: {_said(error)}") from error
            raise _TransientError(_said(error), lost_connection=_is_loss(error)) from error
        except psycopg.Error as error:
            raise Unavailable(f"PostgreSQL: {_said(error)}") from error


def _set_up(cursor: _PostgresCursor, request: Request[Any]) -> list[Row]:
    """Execute a statement of a set-up plan."""
    assert isinstance(request, SetupStatement)
    try:
        return cursor.rows(request.sql, request.values)
    except psycopg.Error as error:
        if request.missing_ok and isinstance(error, _NOT_SET_UP):
            return []
        if request.refusal_ok and not _is_loss(error):
            _log.info("PostgreSQL refused %s: %s", request.sql, _said(error))
            return []
        raise


class _TransientError(ThreadkeepError):
    """Something that may be over soon."""

    def __init__(self, message: str, *, lost_connection: bool = False) -> None:
        super().__init__(message)
        self.lost_connection = lost_connection


def _is_loss(error: psycopg.Error) -> bool:
    """Whether a connection that worked does not any more, or leads to a server that is no primary any more."""
    if isinstance(error, (PoolTimeout, TooManyRequests)):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P")) or error.sqlstate == "25006"


def _groups(requests: Sequence[Request[Any]], *, by_thread: bool) -> Iterator[list[int]]:
    """Which requests go out in one statement, by their places."""
    group: list[int] = []
    size = 0
    for n, request in enumerate(requests):
        alone = not (isinstance(request, Commit) and fits_one_statement(request) and only_adds(request.batch))
        if by_thread or alone or not isinstance(request, Commit):
            yield [n]
            continue
        group.append(n)
        size += sum(len(stored) for _, stored in request.batch.items)
        if size > _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _outcome(made: bool) -> Outcome:  # noqa: FBT001
    return Reply() if made else Failure(Conflict())


def _conninfo(url: str, options: PostgresOptions) -> str:
    """The URL with defaults for what it does not say."""
    name = options.application_name
    try:
        given = conninfo_to_dict(url)
        if name is not None and given.get("application_name") not in (None, name):
            raise ValueError(f"application_name is {given['application_name']!r} in the URL and {name!r} beside it")
        patience = max(int(options.timeout), 2)
        defaults: dict[str, str | int] = {
            "fallback_application_name": "threadkeep",
            "connect_timeout": min(patience, 10),
            "keepalives_idle": 60,
            "tcp_user_timeout": patience * 1000,
        }
        said = {key: value for key, value in defaults.items() if key not in given}
        return make_conninfo(url, **said, **({"application_name": name} if name is not None else {}))
    except psycopg.ProgrammingError as error:
        told = _said(error).replace(url, "the URL")
        secret = _PASSWORD.search(url)
        told = told.replace(secret[1], "…") if secret and secret[1] else told
        raise ValueError(f"not a URL that PostgreSQL accepts: {told}") from None


_PASSWORD = re.compile(r"//[^/?#]*?:([^/?#]*)@")
_FOR_GOOD = (
    "password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry", "invalid ",
    "does not support SSL", "definition of service",
)  # fmt: skip


def _is_hopeless(error: BaseException) -> bool:
    """Whether a connection was refused for good. libpq gives no code for that, only words."""
    if isinstance(error, PoolClosed):
        return True
    unnamed = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return unnamed and any(said in str(error) for said in _FOR_GOOD)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
