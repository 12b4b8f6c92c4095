"""The transport for PostgreSQL: execute requests, group commits, and retry when a connection is lost.

Every request takes a connection from the pool and gives it back as it was, so a pooler in front (PgBouncer in
transaction mode) may hand each transaction to another server process. A request that is one statement is one round
trip. While the server is away, a request raises TryLater, and is made again until `timeout` has passed. A commit whose
outcome is unknown raises Conflict, so the plan reads again before it continues.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from random import random
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.errors import ReadOnlySqlTransaction

from threadkeep import transports
from threadkeep.backends import postgres
from threadkeep.backends.postgres import setup as postgres_setup
from threadkeep.backends.postgres.dialect import PostgresDialect, Statement, fits_one_statement
from threadkeep.backends.postgres.parameters import Parameters, TypedSql
from threadkeep.backends.sql.commits import only_adds
from threadkeep.backends.sql.rows import Row
from threadkeep.backends.sql.setup import SetupStatement
from threadkeep.drivers import forks
from threadkeep.drivers.retries import TryLater
from threadkeep.engine import health, memories
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import Batch, Commit, DropThread, LoadedRows, LoadSeveral
from threadkeep.engine.schema_versions import SchemaUse, SchemaVersions
from threadkeep.engine.tenants.requests import LoadTenant
from threadkeep.errors import Closed, Conflict, ReadOnly, Unavailable, WrongKey
from threadkeep.plan import Failure, Outcome, Reply, Request, drive, try_execute
from threadkeep.transports.migration_log import log_migration
from threadkeep.transports.postgres_cursor import BEGIN_READ, BEGIN_WRITE, PostgresCursor
from threadkeep.transports.postgres_errors import (
    CONCURRENT_SETUP,
    NOT_SET_UP,
    TransientError,
    is_connection_loss,
    message_of,
    translated,
    translated_errors,
)
from threadkeep.transports.postgres_own_pool import OwnPool
from threadkeep.transports.postgres_pool import Connections, PostgresOptions

__all__ = ["PostgresOptions", "PostgresServer"]
if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult
    from psycopg_pool import ConnectionPool

    from threadkeep.engine.memories.requests import CreateVectorIndex, WriteMemories

T = TypeVar("T")
_log = logging.getLogger(__name__)
_WRITERS = 4
"""How many groups of commits may be under way at once; more would only make the groups smaller."""
_GROUP_BYTES = 16 * 1024 * 1024
_CONTACT_SECONDS = 1.5
"""How long to try an address that has never answered: it may be wrong."""
_SETUP_SECONDS = 10.0
"""How long to wait for a server that answers, but is still starting, or for another process that sets it up."""


_DONE = [(1,)]
"""What the statement of a change returns if there is no more to do."""


class _NotNow(TryLater):
    """The server answered that it cannot do this now, for instance because another node is away."""


class _LostReply(Conflict):
    """The connection was lost before the reply came: the change may have been made."""


_TRUE = b"\x01"
"""A true boolean in PostgreSQL's binary format."""


class PostgresServer:
    """A PostgreSQL server, or several of which one is the primary. Many threads and processes may use it at once."""

    writers = _WRITERS
    commits_at_once = True

    def __init__(
        self,
        target: str | ConnectionPool[Any],
        backend: PostgresDialect,
        options: PostgresOptions,
        *,
        on_loss: Callable[[], None],
    ) -> None:
        self._connections = Connections(target, backend, options)
        self._backend = backend
        self._options = options
        self._on_loss = on_loss
        self.read_only = options.read_only
        self._closed = False
        self._lock = threading.Lock()
        self._is_ready = False
        self._synchronous: str | None = None
        self._setup_error: tuple[float, str] = (0.0, "")
        """When set-up failed, and why."""
        forks.watch(self)

    # --- the Transport protocol

    def setup(self) -> None:
        """Create or migrate the schema now instead of at first use."""
        self._ready()

    def schema(self) -> SchemaVersions:
        """Return the schema versions that the database states. Change nothing."""
        try:
            with self._translated(), self._connections.dedicated_cursor(self._options.timeout) as cursor:
                return drive(postgres_setup.versions(self._backend.sql), partial(_execute_setup, cursor))
        except TransientError as error:
            raise _unavailable(error, error.__cause__) from error.__cause__

    def migrate(self) -> None:
        """Create or migrate the schema, even if this Keep was opened with migrate=False."""
        if self.read_only:
            raise ReadOnly
        self._options = self._options._replace(migrate=True)
        self._ready()

    def distribute(self, *, dry_run: bool) -> tuple[dict[str, str], list[str]]:
        """Distribute our tables by Citus. Return how each is distributed, and which were not distributed before."""
        if self.read_only and not dry_run:
            raise ReadOnly
        if not self._options.by_thread:
            raise ValueError(
                'this needs group="thread", or ?group=thread in the URL, here and in all that use the tables'
            )
        with self._untimed_cursor() as cursor:
            missing = transports.postgres_citus.distribute(cursor, self._backend, dry_run=dry_run)
        self._backend.distributes = True
        return {table: place.shown for table, place in transports.postgres_citus.PLACES.items()}, missing

    def copy_to_file(self, path: Path, on_progress: Callable[[int, int], object]) -> bool:  # noqa: ARG002
        """Return False: a portable file can hold what a server stores."""
        return False

    def read(self, request: Request[Any]) -> Any:
        """Execute a request, in one statement or in a transaction with one snapshot."""
        return self._run(lambda cursor: self._answer(cursor, request))

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes; with strict durability they are durable when this returns.

        Commits that only add rows go out together, in one statement.
        """
        if self._options.read_only:
            raise ReadOnly
        outcomes: dict[int, Outcome] = {}
        for group in _groups(requests, by_thread=self._options.by_thread):
            if len(group) == 1:
                outcomes[group[0]] = self._change_one(requests[group[0]])
            else:
                outcomes |= zip(group, self._commit_group([requests[n] for n in group]), strict=True)
        return [outcomes[n] for n in range(len(requests))]

    def write_at_once(self, request: WriteMemories) -> bool:
        """Change memories in one statement, in the calling thread. False if it needs more, or must be sent again."""
        if self._options.read_only or self._options.by_thread:
            return False
        statement = self._backend.write_memories_at_once(request, self._synchronous_commit())
        if statement is None:
            return False
        try:
            return self._run(lambda cursor: cursor.rows(*statement)) == _DONE
        except (Conflict, TryLater):
            return False

    def try_commit(self, batch: Batch) -> bool:
        """Commit a batch at once, in this thread and on an idle connection. Return whether that was done.

        If not, either nothing happened or the outcome is not known: make a `Commit` of it, which raises what is wrong.
        Conflict if the thread is not as the batch expects.
        One round trip. It takes no lock that another thread holds for long, and none at all in the usual case. If it is
        interrupted, the connection is closed. About twenty Python calls; `tests/test_postgres_try_commit.py` counts.
        """
        if not self._is_ready or self._options.read_only or self._options.by_thread:
            return False
        try:
            statement = self._backend.small_commit(batch, self._synchronous)
            if (
                statement is None
                and len(batch.new_writes) > 1
                and only_adds(batch)
                and fits_one_statement(Commit(batch))
            ):
                several = self._backend.commit([batch], self._synchronous)  # of callers who waited for one another
                statement = several.sql, several.parameters
        except (ValueError, TypeError, struct.error):
            return False  # a value that cannot be stored
        reply = self._try_execute(*statement) if statement is not None else None
        if reply is not None and not reply.ntuples:
            raise Conflict
        return reply is not None

    def try_drop(self, key: ThreadKey, *, sealed: bool = False) -> bool:
        """Delete a thread at once, as `try_commit` commits. False if that was not done, or a commit came in between."""
        if not self._is_ready or self._options.read_only or self._options.by_thread:
            return False
        drop = self._backend.drop_thread(DropThread(key, sealed=sealed), self._synchronous_commit())
        reply = self._try_execute(drop.sql, drop.parameters)
        return reply is not None and (reply.ntuples == 0 or reply.get_value(0, 0) == _TRUE)

    def _try_execute(self, sql: TypedSql, parameters: Parameters) -> PGresult | None:
        """Execute a statement on an idle connection. None if there is no such, or it fails."""
        pool = self._connections.pool
        if not isinstance(pool, OwnPool):
            return None
        cursor, lent_at = None, 0.0
        try:
            cursor = pool.take_idle()
            if cursor is None:
                return None
            lent_at = cursor.lent_at
            reply = cursor.execute(sql, parameters)
            pool.putconn(cursor)
        except psycopg.Error as error:
            assert cursor is not None
            if isinstance(error, ReadOnlySqlTransaction):
                cursor.connection.close()  # it leads to a server that is not the primary any more
            if is_connection_loss(error):
                self._on_loss()
            pool.putconn(cursor)  # which closes it if it is broken
            return None
        except BaseException:
            if cursor is not None and lent_at in (0.0, cursor.lent_at):  # else it was put back
                pool.discard(cursor)
            raise
        return reply

    def pool_waits(self) -> tuple[int, float]:
        """Return how many callers have waited for a connection while all were in use, and how many seconds."""
        return self._connections.waits()

    def close(self) -> None:
        """Close the pool, unless it was lent."""
        with self._lock:
            self._closed, self._is_ready = True, False
        self._connections.close(self._options.timeout)

    def before_fork(self) -> None:
        """Do nothing: the child never touches the parent's connections."""

    def after_fork(self, *, child: bool) -> None:
        """In the child, use another pool. What is known of the server remains."""
        if child:
            self._lock = threading.Lock()
            self._is_ready = self._connections.after_fork_in_child() and self._is_ready

    # --- reads

    def _answer(self, cursor: PostgresCursor, request: Request[Any]) -> Any:
        if request.access.subject == "storage":
            return self._answer_about_storage(cursor, request)
        statement = None if self._options.by_thread else self._backend.one_statement(request)
        if statement is not None:
            reply = cursor.run(statement)
            while isinstance(reply, Statement):
                reply = cursor.run(reply)
            if reply is not None:
                return reply
        if isinstance(request, LoadSeveral):
            return self._load_several(cursor, request)
        if isinstance(request, LoadTenant) and not self._options.by_thread:
            return cursor.run(self._backend.load_tenant(request))
        if request.access.one_statement:
            return self._backend.answer(cursor, request)
        return cursor.transaction(BEGIN_READ, lambda: self._backend.answer(cursor, request))

    def _answer_about_storage(self, cursor: PostgresCursor, request: Request[Any]) -> Any:
        if isinstance(request, health.requests.LoadStorageFacts):
            own = self._own_facts()
            return transports.postgres_health.facts(cursor, self._backend, own, synchronous=self._synchronous)
        if request.access.one_statement:
            return self._backend.answer(cursor, request)
        problems = cursor.transaction(BEGIN_READ, lambda: self._backend.answer(cursor, request))
        return (*transports.postgres_health.invalid_indexes(cursor, self._backend), *problems)

    def _load_several(self, cursor: PostgresCursor, request: LoadSeveral) -> tuple[LoadedRows, ...]:
        """Load several threads in one statement. Each whose rows are not enough is loaded by itself."""
        if self._options.by_thread:
            return tuple(self._answer(cursor, load) for load in request.loads)
        replies = cursor.run(self._backend.load_several(request))
        return tuple(
            reply if isinstance(reply, LoadedRows) else self._answer(cursor, load)
            for load, reply in zip(request.loads, replies, strict=True)
        )

    def _own_facts(self) -> dict[str, Any]:
        options = self._options
        return {
            "pool": self._connections.sizes(),
            "prepare": options.prepare,
            "group": "thread" if options.by_thread else "all",
            "durability": options.durability,
            "read_only": options.read_only,
        }

    # --- changes

    def _commit_group(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Commit all in one statement. If one of them makes it fail, commit each alone: others must not wait for it."""
        batches = [request.batch for request in requests if isinstance(request, Commit)]
        statement = self._backend.commit(batches, self._synchronous_commit())
        try:
            committed = self._run(lambda cursor: cursor.run(statement), repeatable=False, checked=True)
        except (_LostReply, Unavailable) as error:
            return [Failure(error)] * len(requests)
        except (Conflict, ValueError, WrongKey, _NotNow):
            return [self._change_one(request) for request in requests]
        except TryLater as error:
            return [Failure(error)] * len(requests)
        numbers = [self._backend.thread_number(batch.thread.key) for batch in batches]
        return [Reply() if number in committed else Failure(Conflict()) for number in numbers]

    def _change_one(self, request: Request[Any]) -> Outcome:
        return try_execute(self._change, request)

    def _change(self, request: Request[Any]) -> Any:
        if isinstance(request, Commit) and not self._options.by_thread and fits_one_statement(request):
            statement = self._backend.commit([request.batch], self._synchronous_commit())
            if not self._run(lambda cursor: cursor.run(statement), repeatable=False, checked=True):
                raise Conflict
            return None
        if isinstance(request, DropThread) and not self._options.by_thread:
            drop = self._backend.drop_thread(request, self._synchronous_commit())
            if self._run(lambda cursor: cursor.run(drop)):
                return None
        if request.access.subject == "memories":
            return self._change_memories(request)
        if request.access.subject == "storage":
            return self._change_storage(request)
        return self._change_in_transaction(request)

    def _change_memories(self, request: Request[Any]) -> Any:
        if isinstance(request, memories.requests.WriteMemories):
            return self._write_memories(request)
        if isinstance(request, memories.requests.CreateVectorIndex):
            return self._create_vector_index(request)
        return self._change_in_transaction(request)

    def _change_storage(self, request: Request[Any]) -> Any:
        if isinstance(request, health.requests.CompactStorage):
            return self._compact()
        self._change_in_transaction(request)
        return health.requests.FilesState(clean=None, remains=transports.postgres_health.REMAINS)

    def _change_in_transaction(self, request: Request[Any]) -> Any:
        return self._run(
            lambda cursor: cursor.transaction(BEGIN_WRITE, lambda: self._answer_durably(cursor, request)),
            repeatable=request.access.repeatable,
            checked=isinstance(request, Commit),
        )

    def _answer_durably(self, cursor: PostgresCursor, request: Request[Any]) -> Any:
        if self._synchronous is not None:
            cursor.rows(self._backend.sql["set-synchronous"], {"synchronous": self._synchronous})
        return self._backend.answer(cursor, request)

    def _synchronous_commit(self) -> str | None:
        self._ready()  # which finds it out
        return self._synchronous

    def _write_memories(self, request: WriteMemories) -> None:
        """Write memories in one transaction, and in one round trip if possible. Writing them twice gives the same."""
        try:
            if self._options.by_thread:
                self._change_in_transaction(request)
            else:
                statements = self._backend.write_memories(request, self._synchronous_commit())
                self._run(lambda cursor: cursor.run_in_one_round_trip(statements))
        except Conflict:
            keys = tuple(memory.row.memory_key for memory in request.puts)
            self.read(
                memories.requests.GetMemories(request.tenant, keys, 0)
            )  # raises Corrupt if a damaged memory has one of the numbers
            raise

    def _create_vector_index(self, request: CreateVectorIndex) -> None:
        """Create an index, if possible. Without one, vectors are compared by the clients, or one by one.

        Not behind a pooler: the advisory lock would stay on a connection that is not ours. There the administrator
        creates the index.
        """
        self._ready()
        possible = self._backend.pgvector is not None and postgres.pgvector.can_index(request.dims, request.metric)
        if possible and self._options.prepare:
            with self._untimed_cursor() as cursor:
                self._create_index_locked(cursor, request)

    def _create_index_locked(self, cursor: PostgresCursor, request: CreateVectorIndex) -> None:
        """Create an index unless it exists or another process is creating it. Drop one that was not finished."""
        blocks, backend = self._backend.sql, self._backend
        name, drop, create = backend.index_statements(request)
        lock = {"table": backend.qualified_name("tk_vectors"), "dims": request.dims}
        if not cursor.rows(blocks["lock-index"], lock)[0][0]:
            return
        try:
            valid = cursor.rows(blocks["index-is-valid"], {"name": name})
            if valid and valid[0][0]:
                return
            cursor.rows(drop)
            cursor.rows(create)
        except psycopg.Error as error:
            _log.warning("could not create a vector index: %s", message_of(error))
            cursor.rows(drop)
        finally:
            cursor.rows(blocks["unlock-index"], lock)

    def _compact(self) -> tuple[int, int]:
        with self._untimed_cursor() as cursor:
            return transports.postgres_health.compact(cursor, self._backend)

    # --- connections, retries, set-up

    @contextmanager
    def _untimed_cursor(self) -> Iterator[PostgresCursor]:
        """Lend a cursor for statements that may take longer than `timeout`."""
        connections = self._ready()
        try:
            with self._translated(), connections.dedicated_cursor(self._options.timeout) as cursor:
                cursor.disable_timeout()
                yield cursor
        except TransientError as error:
            raise _unavailable(error, error.__cause__) from error.__cause__

    def _translated(self) -> AbstractContextManager[None]:
        return translated_errors(lambda: self._closed)

    def _run(self, work: Callable[[PostgresCursor], T], *, repeatable: bool = True, checked: bool = False) -> T:
        """Do some work on a connection. If that had died, do it once more on a new one. TryLater for what may pass.

        When a connection is lost, all caches are dropped: the next one may lead to a server that never had what they
        hold. Work that is not `repeatable` then raises Conflict, so that the plan reads before it continues. Work is
        `checked` if doing it twice is a Conflict: it is sent again if the server is there and reports another's loss.
        """
        connections, timeout = self._connections if self._is_ready else self._ready(), self._options.timeout
        started, may_repeat = time.monotonic(), True
        while True:
            cursor = None
            try:
                pool = connections.pool
                cursor = connections.lend(pool, timeout)
                try:
                    return work(cursor)
                except ReadOnlySqlTransaction:
                    cursor.connection.close()  # it leads to a server that is not the primary any more
                    raise
                finally:
                    connections.take_back(pool, cursor)
            except psycopg.Error as cause:
                error = translated(cause, closed=self._closed)
                if not isinstance(error, TransientError):
                    raise error from cause
                if error.lost_connection:
                    self._on_loss()
                was_sent = cursor is not None
                is_alive = cursor is not None and cursor.is_connected
                is_known = is_alive or error.is_refusal  # else the work may have been done
                is_over = time.monotonic() - started >= timeout
                if error.lost_connection and was_sent and not (is_over or repeatable or (checked and is_known)):
                    raise _LostReply(f"PostgreSQL: {error}") from cause
                # At once if only this connection or this transaction failed; not if a server or another node is away.
                may_repeat = may_repeat and was_sent and is_alive != error.lost_connection
                if not may_repeat or is_over:
                    kind = _NotNow if is_alive else TryLater
                    raise kind(_unavailable(error, cause), started=started, timeout=timeout) from cause
                may_repeat = False

    def _ready(self) -> Connections:
        """Return the connections to a server that has our schema. The first call sets up."""
        if self._is_ready:
            return self._connections
        asked = time.monotonic()
        with self._lock:
            if self._closed:
                raise Closed
            if not self._is_ready:
                failed, message = self._setup_error
                if failed > asked:  # while this call waited for the lock: it would only fail again
                    raise Unavailable(message)
                try:
                    self._set_up()
                except Unavailable as error:
                    self._setup_error = time.monotonic(), str(error)
                    raise
                self._is_ready = True
            return self._connections

    def _set_up(self) -> None:
        """Check the schema, and create or migrate it. Retry: the server may just be starting."""
        self._connections.check_usable()
        started, pause = time.monotonic(), 0.02
        while True:
            cursor = None
            try:
                with self._translated(), self._connections.cursor(self._options.timeout) as cursor:
                    return self._prepare_schema(cursor)
            except TransientError as error:
                answered = cursor is not None or error.is_answer
                if error.is_silence:
                    answered = self._connections.is_reachable()
                limit = min(self._options.timeout, _SETUP_SECONDS if answered else _CONTACT_SECONDS)
                if time.monotonic() + pause > started + limit:
                    raise _unavailable(error, error.__cause__) from error.__cause__
            time.sleep(pause * (0.5 + random()))  # noqa: S311 - no secret
            pause = min(2 * pause, 0.5)

    def _prepare_schema(self, cursor: PostgresCursor) -> None:
        blocks, options, execute = self._backend.sql, self._options, partial(_execute_setup, cursor)
        state = drive(postgres_setup.state(blocks), execute)
        if options.by_thread:
            self._backend.distributes = transports.postgres_citus.is_installed(cursor, self._backend)
        if postgres_setup.needs_migration(state.versions, SchemaUse(options.read_only, options.migrate)):
            if self._backend.distributes:
                transports.postgres_citus.refuse_worker(cursor, self._backend)
            migrate = partial(postgres_setup.migrate, blocks, self._backend.schema)
            try:
                found = cursor.transaction(BEGIN_WRITE, lambda: drive(migrate(), execute))
            except CONCURRENT_SETUP as error:
                raise TransientError("another process was setting up the schema at the same time") from error
            log_migration(postgres_setup.DATABASE, found)
            state = drive(postgres_setup.state(blocks), execute)
        self._backend.pgvector = state.pgvector
        if state.pgvector is None and options.wants_vectors and not options.read_only:
            self._backend.pgvector = drive(postgres_setup.install_pgvector(blocks), execute)
        self._synchronous = postgres_setup.synchronous_commit(state.synchronous_commit, durability=options.durability)


def _unavailable(error: TransientError, cause: BaseException | None) -> Unavailable:
    unavailable = Unavailable(f"PostgreSQL: {error}")
    unavailable.__cause__ = cause
    return unavailable


def _execute_setup(cursor: PostgresCursor, request: Request[Any]) -> list[Row]:
    """Execute a statement of a set-up plan."""
    assert isinstance(request, SetupStatement)
    try:
        return cursor.rows(request.sql, request.values)
    except psycopg.Error as error:
        if request.missing_ok and isinstance(error, NOT_SET_UP):
            return []
        if request.refusal_ok and not is_connection_loss(error):
            _log.info("PostgreSQL refused %s: %s", request.sql, message_of(error))
            return []
        raise


def _groups(requests: Sequence[Request[Any]], *, by_thread: bool) -> Iterator[list[int]]:
    """Yield the positions of the requests that go out in one statement."""
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
