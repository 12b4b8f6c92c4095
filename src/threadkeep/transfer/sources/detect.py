"""Detecting what a path, a URL or an object is, and opening the sources for it.

A file is recognised by its first bytes, a database by its tables. A database may hold several things, such as threads
and memories of LangGraph and threads of CubeLoop; then each is a source.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from threadkeep.transfer.portable.files import is_portable
from threadkeep.transfer.result import OWN_DATABASE, OWN_EXPORT
from threadkeep.transfer.sources.source import Source

LANGGRAPH_SQLITE, LANGGRAPH_POSTGRES, LANGGRAPH_MYSQL = "langgraph-sqlite", "langgraph-postgres", "langgraph-mysql"
CUBELOOP_SQLITE, CUBELOOP_POSTGRES, MEMORY = "cubeloop-sqlite", "cubeloop-postgres", "memory"
KINDS = (LANGGRAPH_SQLITE, LANGGRAPH_POSTGRES, LANGGRAPH_MYSQL, CUBELOOP_SQLITE, CUBELOOP_POSTGRES, MEMORY)

_SQLITE_MAGIC, _ZSTD_MAGIC = b"SQLite format 3\0", b"\x28\xb5\x2f\xfd"
_POSTGRES, _MYSQL = ("postgresql://", "postgres://"), ("mysql://", "mariadb://")
_OWN_TABLES = {"tk_threads", "tk_items"}


_INSTEAD = {
    OWN_DATABASE: "database: use threadkeep.convert, or the command convert",
    OWN_EXPORT: "export: use Keep.import_portable, or the command import",
}


class OwnError(ValueError):
    """The source is threadkeep's own: a database or a portable file, as `kind` says."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(f"{name} is threadkeep's own {_INSTEAD[kind]}")
        self.kind = kind


def detect(given: Any, kind: str | None) -> list[Source]:
    """Open the sources of a path, URL or object: all of them, or those of one kind. The caller closes them.

    ValueError if it is not known, or not of that kind; FileNotFoundError if there is no such file; OwnError if it is
    threadkeep's own.
    """
    if kind is not None and kind not in (*KINDS, OWN_DATABASE, OWN_EXPORT):
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if isinstance(given, str) and given.startswith(_POSTGRES):
        return _of_postgres(given, kind)
    if isinstance(given, str) and given.startswith(_MYSQL):
        return _of_mysql(given, kind)
    if isinstance(given, (str, os.PathLike)):
        return _of_file(_path(given), kind)
    return _of_object(given, kind)


def _path(given: str | os.PathLike[str]) -> Path:
    """Return the path of a sqlite:/// URL, a file: URL, or a path."""
    text = os.fspath(given)
    if text.startswith("sqlite:///"):
        return Path(text.removeprefix("sqlite:///"))
    if text.startswith("file:"):
        return Path(unquote(text.removeprefix("file:").partition("?")[0]))
    if "://" in text:
        raise ValueError(
            f"cannot import from {text.partition('://')[0]}://: expected a file, postgresql:// or mysql://"
        )
    return Path(text)


def _of_object(given: Any, kind: str | None) -> list[Source]:
    from threadkeep.transfer.sources import langgraph_memory  # noqa: PLC0415 - it imports LangGraph's saver and store

    found = langgraph_memory.source_of(given)
    if found is None:
        raise TypeError(f"a source is a path, a URL, an InMemorySaver or an InMemoryStore, not {type(given).__name__}")
    if kind not in (None, MEMORY):
        raise ValueError(f"an {type(given).__name__} is of kind {MEMORY}, not {kind}")
    return [found]


def _of_file(path: Path, kind: str | None) -> list[Source]:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file")
    with path.open("rb") as file:
        magic = file.read(16)
    if kind == OWN_EXPORT or (kind is None and is_portable(path)):
        raise OwnError(str(path), OWN_EXPORT)
    if magic.startswith(_ZSTD_MAGIC):
        raise ValueError(
            f"{path} is compressed, but it is not an export of threadkeep, or is cut off in its first line"
        )
    if magic and not magic.startswith(_SQLITE_MAGIC):
        raise ValueError(f"{path} is neither an SQLite database nor an export of threadkeep")
    from threadkeep.transfer.sources import cubeloop_sqlite, langgraph_sqlite  # noqa: PLC0415 - they import the driver
    from threadkeep.transfer.sources.sqlite_file import SqliteRows  # noqa: PLC0415

    rows = SqliteRows(path)
    if langgraph_sqlite.is_too_old(rows.tables):
        rows.close()
        raise ValueError(f"{path} was written by LangGraph 0.1 or older, which is not supported")
    return _chosen(str(path), kind, rows, langgraph_sqlite, cubeloop_sqlite)


def _of_postgres(url: str, kind: str | None) -> list[Source]:
    from threadkeep.transfer.sources import cubeloop_postgres, langgraph_postgres  # noqa: PLC0415 - an extra
    from threadkeep.transfer.sources.postgres_server import PostgresRows  # noqa: PLC0415

    rows = PostgresRows(url)
    return _chosen(rows.named, kind, rows, langgraph_postgres, cubeloop_postgres)


def _of_mysql(url: str, kind: str | None) -> list[Source]:
    from threadkeep.transfer.sources import langgraph_mysql  # noqa: PLC0415 - an extra
    from threadkeep.transfer.sources.mysql_server import MySqlRows  # noqa: PLC0415

    rows = MySqlRows(url)
    return _chosen(rows.named, kind, rows, langgraph_mysql)


def _chosen(name: str, kind: str | None, rows: Any, langgraph: Any, cubeloop: Any = None) -> list[Source]:
    """Return the wanted sources of a database. The last one closes it; without any it is closed here."""
    saver, store = langgraph.has_threads(rows.tables), langgraph.has_memories(rows.tables)
    known = [langgraph.KIND] if saver or store else []
    if cubeloop is not None and cubeloop.has_threads(rows.tables):
        known.append(cubeloop.KIND)
    wanted = [each for each in known if kind in (None, each)]
    if not wanted:
        rows.close()
        if kind in (None, OWN_DATABASE) and rows.tables.keys() >= _OWN_TABLES:
            raise OwnError(name, OWN_DATABASE)
        raise ValueError(_unknown(name, kind, known))
    found = {
        langgraph.KIND: lambda close: Source(
            langgraph.KIND,
            graph=langgraph.saved_threads(rows) if saver else None,
            memories=langgraph.stored_memories(rows) if store else None,
            close=close,
        ),
    }
    if cubeloop is not None:
        found[cubeloop.KIND] = lambda close: Source(cubeloop.KIND, cube=cubeloop.saved_threads(rows), close=close)
    return [found[each](rows.close if each == wanted[-1] else _stays_open) for each in wanted]


def _stays_open() -> None:
    """Another source of the same database closes it."""


def _unknown(name: str, kind: str | None, known: list[str]) -> str:
    if kind is not None:
        has = f"it has {', '.join(known)}" if known else "it has no known tables"
        return f"{name} is not of kind {kind}: {has}"
    packages = "langgraph-checkpoint-sqlite, -postgres or -mysql"
    return f"{name} has no known tables, of {packages}, of CubeLoop, or of threadkeep"
