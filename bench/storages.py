"""The storages that benchmarks use: SQLite files in a temporary folder, or databases of a new PostgreSQL server.

The server has PostgreSQL's default settings, including fsync, and its files are on a disk. Each contender has its own
database.
"""

from __future__ import annotations

import importlib
import shutil
import sqlite3
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import apsw
import psycopg
from psycopg import sql

from contenders import POSTGRES_SAVER, SQLITE_SAVER, THREADKEEP, Contender

ROLES = ("official", "threadkeep")
IN_MEMORY = ("tmpfs", "ramfs")


class Storage(ABC):
    """Creates, copies and measures databases, each with a URL and one contender's data."""

    official: ClassVar[Contender]
    size_limit: ClassVar[int]
    """The maximum bytes that threadkeep may need for 200 turns."""

    def contenders(self, only: str | None = None) -> list[Contender]:
        chosen = dict(zip(ROLES, (self.official, THREADKEEP), strict=True))
        return [chosen[only]] if only else list(chosen.values())

    @abstractmethod
    def new_url(self, name: str) -> str:
        """Create an empty database and return its URL."""

    @abstractmethod
    def copy(self, url: str) -> AbstractContextManager[str]:
        """Copy a database, which nobody may have open, and delete the copy at the end."""

    @abstractmethod
    def size(self, contender: Contender, url: str) -> int:
        """Return the bytes of a database as a reader sees it now."""

    @abstractmethod
    def disk_usage(self, contender: Contender, url: str) -> dict[str, int]:
        """Return the bytes on disk after everything is written: of each file, or of each table with its indexes."""

    @abstractmethod
    def vacuum(self, url: str) -> int | None:
        """Do what autovacuum would do, if there is any, and return the bytes on disk."""


class SqliteFiles(Storage):
    official = SQLITE_SAVER
    size_limit = 1_200_000
    # The SQLite that the saver itself uses: two SQLite libraries in one process break each other's locks.
    connect: ClassVar[Mapping[Contender, Callable[[str], Any]]] = {
        SQLITE_SAVER: sqlite3.connect,
        THREADKEEP: apsw.Connection,
    }

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def new_url(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"

    @contextmanager
    def copy(self, url: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            for file in _files(url):
                shutil.copy(file, folder)
            yield f"sqlite:///{folder}/{_path(url).name}"

    def size(self, contender: Contender, url: str) -> int:
        with closing(self.connect[contender](str(_path(url)))) as connection:
            (count,), (size,) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
            )
        return int(count) * int(size)

    def disk_usage(self, contender: Contender, url: str) -> dict[str, int]:
        with closing(self.connect[contender](str(_path(url)))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return {file.name: file.stat().st_size for file in _files(url)}

    def vacuum(self, url: str) -> None:
        """Do nothing: SQLite has no autovacuum, and its VACUUM rewrites the whole file."""


class PostgresDatabases(Storage):
    official = POSTGRES_SAVER
    size_limit = 1_700_000

    def __init__(self, server: Any) -> None:
        self._server = server

    def new_url(self, name: str) -> str:
        self._execute("CREATE DATABASE {}", name)
        return self._url(name)

    @contextmanager
    def copy(self, url: str) -> Iterator[str]:
        name = url.rpartition("/")[2]
        self._execute("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", f"{name}-copy", name)
        try:
            yield self._url(f"{name}-copy")
        finally:
            self._execute("DROP DATABASE {}", f"{name}-copy")

    def size(self, contender: Contender, url: str) -> int:  # noqa: ARG002
        return sum(_tables(url).values())

    def disk_usage(self, contender: Contender, url: str) -> dict[str, int]:  # noqa: ARG002
        self._execute("CHECKPOINT")
        return _tables(url)

    def vacuum(self, url: str) -> int:
        """Run a plain VACUUM, which frees space inside the files, and collect statistics for the planner."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
        return sum(_tables(url).values())

    def _url(self, name: str) -> str:
        url: str = self._server.url(name)
        return url

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _files(url: str) -> list[Path]:
    path = _path(url)
    return sorted(path.parent.glob(path.name + "*"))


def _tables(url: str) -> dict[str, int]:
    """Return the bytes of each table with its indexes and its TOAST."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 2 DESC"
        )
        return {str(name): int(size) for name, size in found}


@contextmanager
def sqlite_storage() -> Iterator[Storage]:
    with tempfile.TemporaryDirectory() as folder:
        yield SqliteFiles(folder)


@contextmanager
def postgres_storage() -> Iterator[Storage]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    servers = importlib.import_module("postgres_servers")
    with servers.fresh_server(servers.DURABLE) as server:
        if _file_system(server.folder) in IN_MEMORY:
            sys.exit(f"{server.folder} is in memory, where nothing is durable; set TMPDIR to a folder on a disk")
        yield PostgresDatabases(server)


def open_storage(*, postgres: bool) -> AbstractContextManager[Storage]:
    return postgres_storage() if postgres else sqlite_storage()


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    _, kind = max((len(point), kind) for _, point, kind, *_ in mounts if folder.is_relative_to(point))
    return kind
