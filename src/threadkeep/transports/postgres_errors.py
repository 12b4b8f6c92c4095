"""Translate psycopg's errors into ours, and decide which of them may pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import modules

import psycopg
from psycopg import errors as sql

from threadkeep.errors import Closed, Conflict, Corrupt, ThreadkeepError, Unavailable, WrongKey


class PoolTimeout(psycopg.OperationalError):
    """All connections of our pool were in use for too long."""


class PoolClosed(psycopg.OperationalError):
    """Our pool is closed."""


CONCURRENT_SETUP = (
    sql.UniqueViolation,
    sql.DuplicateTable,
    sql.DuplicateSchema,
    sql.DuplicateObject,
    sql.InternalError_,
    sql.SerializationFailure,
    sql.DeadlockDetected,
)
"""What a migration raises if another process runs it at the same time."""
NOT_SET_UP = (sql.UndefinedTable, sql.InvalidSchemaName)
_PERMANENT = (
    sql.InvalidPassword,
    sql.InvalidAuthorizationSpecification,
    sql.InvalidCatalogName,
    sql.QueryCanceled,
    sql.DiskFull,
    sql.ProgramLimitExceeded,
)
_TRANSIENT = (psycopg.OperationalError, psycopg.InterfaceError, sql.ReadOnlySqlTransaction, sql.SerializationFailure)
_PERMANENT_TEXTS = (
    "password authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "invalid ",
    "does not support SSL",
    "definition of service",
)
_DUPLICATE_KEY = "duplicate key value violates unique constraint"
"""What another node reported; the code of the error may then be XX000."""
_LOSSES_OF_NODES = (
    "could not commit transaction",
    "failure on connection marked as essential",
    "connection to the remote node",
    "could not establish any connections to the node",
)
"""What Citus says, with the code XX000 too, when it has lost another node."""
_NOT_YET = "the database system is "
"""It is starting up, shutting down, or in recovery."""


class TransientError(ThreadkeepError):
    """An error that may pass: try again."""

    def __init__(
        self,
        message: str,
        *,
        lost_connection: bool = False,
        is_refusal: bool = False,
        is_answer: bool = False,
        is_silence: bool = False,
    ) -> None:
        super().__init__(message)
        self.lost_connection = lost_connection
        self.is_refusal = is_refusal
        """Whether the server said that it takes no changes."""
        self.is_answer = is_answer
        """Whether somebody is there: a server that is starting, or a lent pool whose connections are in use."""
        self.is_silence = is_silence
        """Whether there was no answer to a new connection."""


@contextmanager
def translated_errors(is_closed: Callable[[], bool]) -> Iterator[None]:
    """Raise psycopg's errors as ours. After `is_closed`, a lost connection is Closed."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, closed=is_closed()) from error


def translated(error: psycopg.Error, *, closed: bool) -> Exception:
    """Return psycopg's error as ours. If the Keep is `closed`, a lost connection is Closed."""
    text = message_of(error)
    match error:
        case sql.ProgramLimitExceeded():
            return ValueError(f"PostgreSQL cannot store this; an id may be too long for an index: {text}")
        case sql.UniqueViolation() | sql.DivisionByZero():
            return Conflict()
        case sql.InternalError_() if _DUPLICATE_KEY in text:
            return Conflict()
        case sql.InvalidArgumentForLogarithm():  # see the block `commit-plain-tenant`
            return WrongKey()
        case sql.DataCorrupted() | sql.IndexCorrupted():
            return Corrupt(f"PostgreSQL: {text}")
    if isinstance(error, _PERMANENT) or not (isinstance(error, _TRANSIENT) or is_loss_of_node(error)):
        return Unavailable(f"PostgreSQL: {text}")
    if closed:
        return Closed()
    if _is_permanent(error):
        return Unavailable(f"PostgreSQL: {text}")
    return TransientError(
        text,
        lost_connection=is_connection_loss(error),
        is_refusal=isinstance(error, sql.ReadOnlySqlTransaction),
        is_answer=_is_pool_error(error, "PoolTimeout") or _NOT_YET in str(error),
        is_silence=isinstance(error, psycopg.errors.ConnectionTimeout),
    )


def is_connection_loss(error: psycopg.Error) -> bool:
    """Return whether a connection broke, or leads to a server that is not the primary any more.

    It may be a connection between two servers: the one that reports it is still there.
    """
    if _is_pool_error(error, "PoolTimeout", "TooManyRequests"):
        return False
    if is_loss_of_node(error):
        return True
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P")) or error.sqlstate == "25006"


def is_loss_of_node(error: psycopg.Error) -> bool:
    """Return whether a server says, with the code of an internal error, that it has lost another node."""
    return isinstance(error, sql.InternalError_) and any(part in str(error) for part in _LOSSES_OF_NODES)


def _is_permanent(error: BaseException) -> bool:
    """Return whether a connection was refused for good. libpq has no code for that, only a message."""
    if _is_pool_error(error, "PoolClosed"):
        return True
    without_code = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return without_code and any(text in str(error) for text in _PERMANENT_TEXTS)


def _is_pool_error(error: BaseException, *names: str) -> bool:
    """Return whether this is an error of our pool, or of psycopg_pool, with one of these names.

    psycopg_pool is imported only by programs that lend us a pool.
    """
    lent, ours = modules.get("psycopg_pool"), {"PoolTimeout": PoolTimeout, "PoolClosed": PoolClosed}
    kinds = [pool[name] for pool in (ours, vars(lent) if lent else {}) for name in names if name in pool]
    return isinstance(error, tuple(kinds))


def message_of(error: BaseException) -> str:
    """Return an error's message in one line."""
    return " ".join(str(error).split()) or type(error).__name__
