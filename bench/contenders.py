"""Who is measured: threadkeep and the official SQLite savers, opened the same way at the same durability."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiosqlite
import apsw
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from workload import Saver

Durability = Literal["strict", "relaxed"]

# What threadkeep's words mean in the official savers' SQLite.
SYNCHRONOUS: dict[Durability, str] = {"strict": "FULL", "relaxed": "NORMAL"}


@contextmanager
def open_official(path: Path, durability: Durability) -> Iterator[Saver]:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[durability]}")
        yield saver
    finally:
        connection.close()


@asynccontextmanager
async def aopen_official(path: Path, durability: Durability) -> AsyncIterator[Saver]:
    async with aiosqlite.connect(path) as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        await connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[durability]}")
        yield saver


@contextmanager
def open_threadkeep(path: Path, durability: Durability) -> Iterator[Saver]:
    import threadkeep

    keep = threadkeep.open(f"sqlite:///{path}", durability=durability)
    try:
        yield keep.checkpointer
    finally:
        keep.close()


@asynccontextmanager
async def aopen_threadkeep(path: Path, durability: Durability) -> AsyncIterator[Saver]:
    with open_threadkeep(path, durability) as saver:
        yield saver


@dataclass(frozen=True, slots=True)
class Contender:
    """A saver to measure.

    `connect` is the SQLite that the saver itself uses: two SQLite libraries in one process break each other's locks.
    """

    name: str
    open: Callable[[Path, Durability], AbstractContextManager[Saver]]
    aopen: Callable[[Path, Durability], AbstractAsyncContextManager[Saver]]
    connect: Callable[[str], Any]


OFFICIAL = Contender("SqliteSaver", open_official, aopen_official, sqlite3.connect)
THREADKEEP = Contender("threadkeep", open_threadkeep, aopen_threadkeep, apsw.Connection)
CONTENDERS = {"official": OFFICIAL, "threadkeep": THREADKEEP}
