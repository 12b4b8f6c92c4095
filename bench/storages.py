"""The storages that benchmarks use: SQLite files in a temporary folder, or databases of a new PostgreSQL server.

The server has PostgreSQL's default settings, including fsync. All files must be on a disk. Each contender has its own
database.
"""

from __future__ import annotations

import importlib
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

IN_MEMORY = ("tmpfs", "ramfs")


class Storage(ABC):
    """Creates, drops and measures databases, each with a URL and one contender's data."""

    official: ClassVar[Contender]
    official_prunes: ClassVar[bool]
    """Whether the official saver can prune."""
    size_limit: ClassVar[int]
    """The maximum bytes that threadkeep may need for 200 turns."""

    @property
    def contenders(self) -> tuple[Contender, Contender]:
        return self.official, THREADKEEP

    @abstractmethod
    def new_url(self, name: str) -> str:
        """Create an empty database and return its URL."""

    @abstractmethod
    def drop(self, url: str) -> None:
        """Delete a database, which nobody may have open."""

    @abstractmethod
    def written(self) -> float:
        """Return the bytes written so far: by this process, or into the server's write-ahead log."""

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
    official_prunes = False
    size_limit = 1_100_000
    # The SQLite that the saver itself uses: two SQLite libraries in one process break each other's locks.
    connect: ClassVar[Mapping[Contender, Callable[[str], Any]]] = {
        SQLITE_SAVER: sqlite3.connect,
        THREADKEEP: apsw.Connection,
    }

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def new_url(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"

    def drop(self, url: str) -> None:
        for file in _files(url):
            file.unlink()

    def written(self) -> float:
        """Return what the process has passed to write(); the -shm file is memory, and does not count."""
        lines = Path("/proc/self/io").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("wchar")))

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
    official_prunes = True
    size_limit = 1_650_000

    def __init__(self, server: Any) -> None:
        self._server = server
        self._watching: psycopg.Connection[Any] | None = None

    def new_url(self, name: str) -> str:
        self._execute("CREATE DATABASE {}", name)
        return self._url(name)

    def drop(self, url: str) -> None:
        self._execute("DROP DATABASE {} WITH (FORCE)", url.rpartition("/")[2])

    def written(self) -> float:
        """Return the position in the write-ahead log, which gets everything first."""
        if self._watching is None:
            self._watching = psycopg.connect(self._url("postgres"), autocommit=True)
        position = self._watching.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert position is not None
        return float(position[0])

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
        _refuse_memory(Path(folder))
        yield SqliteFiles(folder)


@contextmanager
def postgres_storage() -> Iterator[Storage]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    servers = importlib.import_module("postgres_servers")
    with servers.fresh_server(servers.DURABLE) as server:
        _refuse_memory(server.folder)
        yield PostgresDatabases(server)


def open_storage(*, postgres: bool) -> AbstractContextManager[Storage]:
    return postgres_storage() if postgres else sqlite_storage()


def _refuse_memory(folder: Path) -> None:
    if _file_system(folder) in IN_MEMORY:
        sys.exit(f"{folder} is in memory, where nothing is durable; set TMPDIR to a folder on a disk")


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    _, kind = max((len(point), kind) for _, point, kind, *_ in mounts if folder.is_relative_to(point))
    return kind
