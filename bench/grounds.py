"""Where savers are measured: SQLite files in a temporary folder, or databases of a PostgreSQL server started for the run.

The server has PostgreSQL's own defaults, fsync included, and its files on a disk. Each contender has a database of its own.
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


class Ground(ABC):
    """A place is a URL with one contender's data behind it."""

    official: ClassVar[Contender]
    size_limit: ClassVar[int]
    """The most bytes that threadkeep may need for 200 turns."""

    def contenders(self, only: str | None = None) -> list[Contender]:
        chosen = dict(zip(ROLES, (self.official, THREADKEEP), strict=True))
        return [chosen[only]] if only else list(chosen.values())

    @abstractmethod
    def place(self, name: str) -> str:
        """A new, empty place."""

    @abstractmethod
    def copy(self, place: str) -> AbstractContextManager[str]:
        """Another place with the same data, for a while. Nobody may have the first one open."""

    @abstractmethod
    def size(self, contender: Contender, place: str) -> int:
        """Bytes in the place as a reader sees it now."""

    @abstractmethod
    def parts(self, contender: Contender, place: str) -> dict[str, int]:
        """Bytes on disk when all is written there: of each file, or of each table with its indexes."""

    @abstractmethod
    def vacuumed(self, place: str) -> int | None:
        """Bytes on disk after the housekeeping that the database does by itself sooner or later, if there is one."""


class Files(Ground):
    official = SQLITE_SAVER
    size_limit = 1_200_000
    # The SQLite that the saver itself uses: two SQLite libraries in one process break each other's locks.
    connect: ClassVar[Mapping[Contender, Callable[[str], Any]]] = {
        SQLITE_SAVER: sqlite3.connect,
        THREADKEEP: apsw.Connection,
    }

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def place(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"

    @contextmanager
    def copy(self, place: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            for file in _files(place):
                shutil.copy(file, folder)
            yield f"sqlite:///{folder}/{_path(place).name}"

    def size(self, contender: Contender, place: str) -> int:
        with closing(self.connect[contender](str(_path(place)))) as connection:
            (count,), (size,) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
            )
        return int(count) * int(size)

    def parts(self, contender: Contender, place: str) -> dict[str, int]:
        with closing(self.connect[contender](str(_path(place)))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return {file.name: file.stat().st_size for file in _files(place)}

    def vacuumed(self, place: str) -> None:
        """SQLite has none: its VACUUM writes the whole file anew."""


class Databases(Ground):
    official = POSTGRES_SAVER
    size_limit = 1_700_000

    def __init__(self, server: Any) -> None:
        self._server = server

    def place(self, name: str) -> str:
        self._execute("CREATE DATABASE {}", name)
        return self._url(name)

    @contextmanager
    def copy(self, place: str) -> Iterator[str]:
        name = place.rpartition("/")[2]
        self._execute("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", f"{name}-copy", name)
        try:
            yield self._url(f"{name}-copy")
        finally:
            self._execute("DROP DATABASE {}", f"{name}-copy")

    def size(self, contender: Contender, place: str) -> int:  # noqa: ARG002
        return sum(_tables(place).values())

    def parts(self, contender: Contender, place: str) -> dict[str, int]:  # noqa: ARG002
        self._execute("CHECKPOINT")
        return _tables(place)

    def vacuumed(self, place: str) -> int:
        """After a plain VACUUM, which frees space inside the files, with statistics for the planner."""
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
        return sum(_tables(place).values())

    def _url(self, name: str) -> str:
        url: str = self._server.url(name)
        return url

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _path(place: str) -> Path:
    return Path(place.removeprefix("sqlite:///"))


def _files(place: str) -> list[Path]:
    path = _path(place)
    return sorted(path.parent.glob(path.name + "*"))


def _tables(place: str) -> dict[str, int]:
    """Bytes of each table with its indexes and its TOAST."""
    with psycopg.connect(place) as connection:
        found = connection.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 2 DESC"
        )
        return {str(name): int(size) for name, size in found}


@contextmanager
def on_sqlite() -> Iterator[Ground]:
    with tempfile.TemporaryDirectory() as folder:
        yield Files(folder)


@contextmanager
def on_postgres() -> Iterator[Ground]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    servers = importlib.import_module("postgres")
    with servers.fresh_server(servers.DURABLE) as server:
        if _file_system(server.folder) in IN_MEMORY:
            sys.exit(f"{server.folder} is in memory, where nothing is durable; set TMPDIR to a folder on a disk")
        yield Databases(server)


def ground(*, postgres: bool) -> AbstractContextManager[Ground]:
    return on_postgres() if postgres else on_sqlite()


def _file_system(folder: Path) -> str:
    """The kind of the file system that a folder is on."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    _, kind = max((len(point), kind) for _, point, kind, *_ in mounts if folder.is_relative_to(point))
    return kind
