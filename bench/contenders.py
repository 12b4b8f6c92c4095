"""What is measured: threadkeep and LangGraph's official savers and stores, opened at a URL with the same durability.

The official ones are set up as their documentation advises. A sync PostgresSaver or PostgresStore has one connection: a
pool costs CPU and gains nothing, since calls hold a lock. The async saver has a pool as large as threadkeep's.
SqliteStore does not set a journal mode; it gets the write-ahead log that SqliteSaver and threadkeep turn on, which
costs fewer syncs than SQLite's default.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, Literal

import aiosqlite
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.base import BaseStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from psycopg import AsyncConnection, Connection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from workload import Saver

Durability = Literal["strict", "relaxed"]
Index = Any  # each store has its own type
POOL = 8

# threadkeep's durability levels as settings of the official savers' databases.
SYNCHRONOUS: dict[Durability, str] = {"strict": "FULL", "relaxed": "NORMAL"}
SYNCHRONOUS_COMMIT: dict[Durability, str] = {"strict": "on", "relaxed": "off"}


@dataclass(frozen=True, slots=True)
class Contender:
    """A saver to measure, and how to open it at a URL."""

    name: str
    open: Callable[[str, Durability], AbstractContextManager[Saver]]
    aopen: Callable[[str, Durability], AbstractAsyncContextManager[Saver]]


@contextmanager
def open_threadkeep(url: str, durability: Durability) -> Iterator[Saver]:
    import threadkeep

    with threadkeep.open(url, durability=durability) as keep:
        _ = keep.setup()  # as for the others: creating tables is not measured
        yield keep.checkpointer


@asynccontextmanager
async def aopen_threadkeep(url: str, durability: Durability) -> AsyncIterator[Saver]:
    import threadkeep

    async with threadkeep.open(url, durability=durability) as keep:
        await keep.setup()
        yield keep.checkpointer


@contextmanager
def open_sqlite(url: str, durability: Durability) -> Iterator[Saver]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[durability]}")
        yield saver


@asynccontextmanager
async def aopen_sqlite(url: str, durability: Durability) -> AsyncIterator[Saver]:
    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        await connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[durability]}")
        yield saver


def postgres_options(durability: Durability) -> dict[str, Any]:
    return {
        "autocommit": True,
        "prepare_threshold": 0,
        "row_factory": dict_row,
        "options": f"-c synchronous_commit={SYNCHRONOUS_COMMIT[durability]}",
    }


@contextmanager
def open_postgres(url: str, durability: Durability) -> Iterator[Saver]:
    with closing(Connection[DictRow].connect(url, **postgres_options(durability))) as connection:
        saver = PostgresSaver(connection)
        saver.setup()
        yield saver


@asynccontextmanager
async def aopen_postgres(url: str, durability: Durability) -> AsyncIterator[Saver]:
    async with AsyncConnectionPool(
        url,
        connection_class=AsyncConnection[DictRow],
        kwargs=postgres_options(durability),
        min_size=1,
        max_size=POOL,
        open=False,
    ) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


THREADKEEP = Contender("threadkeep", open_threadkeep, aopen_threadkeep)
SQLITE_SAVER = Contender("SqliteSaver", open_sqlite, aopen_sqlite)
POSTGRES_SAVER = Contender("PostgresSaver", open_postgres, aopen_postgres)


@dataclass(frozen=True, slots=True)
class StoreContender:
    """A store to measure, and how to open it at a URL. `saver` is the saver of the same package and driver."""

    name: str
    saver: Contender
    open: Callable[[str, Durability, Index], AbstractContextManager[BaseStore]]
    lacks_vectors: str = ""
    """Why it cannot store vectors here; empty if it can."""


@contextmanager
def open_threadkeep_store(url: str, durability: Durability, index: Index) -> Iterator[BaseStore]:
    import threadkeep

    with threadkeep.open(url, durability=durability, index=index) as keep:
        _ = keep.setup()
        yield keep.store


@contextmanager
def open_sqlite_store(url: str, durability: Durability, index: Index) -> Iterator[BaseStore]:
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, check_same_thread=False, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[durability]}")
        store = SqliteStore(connection, index=index)
        store.setup()
        yield store


@contextmanager
def open_postgres_store(url: str, durability: Durability, index: Index) -> Iterator[BaseStore]:
    with closing(Connection[DictRow].connect(url, **postgres_options(durability))) as connection:
        store = PostgresStore(connection, index=index)
        store.setup()
        yield store


THREADKEEP_STORE = StoreContender("threadkeep", THREADKEEP, open_threadkeep_store)
SQLITE_STORE = StoreContender(
    "SqliteStore",
    SQLITE_SAVER,
    open_sqlite_store,
    "" if hasattr(sqlite3.Connection, "enable_load_extension") else "this Python's sqlite3 cannot load sqlite-vec",
)
POSTGRES_STORE = StoreContender("PostgresStore", POSTGRES_SAVER, open_postgres_store)
