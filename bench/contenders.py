"""Who is measured: threadkeep and LangGraph's official savers, opened at a URL and at the same durability.

The official savers get what their own documentation advises. A sync PostgresSaver has one connection: a pool costs it
some CPU and brings nothing, since it takes turns at a lock. The async one has a pool as large as threadkeep's own.
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
from psycopg import AsyncConnection, Connection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from workload import Saver

Durability = Literal["strict", "relaxed"]
POOL = 8

# What threadkeep's words mean in the official savers' databases.
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
        yield keep.checkpointer


@asynccontextmanager
async def aopen_threadkeep(url: str, durability: Durability) -> AsyncIterator[Saver]:
    with open_threadkeep(url, durability) as saver:
        yield saver


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
