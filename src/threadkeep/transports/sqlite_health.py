"""A SQLite file's health: what SQLite finds wrong with it, what is to know of it, and giving its free pages back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import apsw

from threadkeep.backends.sql.setup import SCHEMA_VERSION
from threadkeep.engine.health.requests import DATABASE, IntegrityProblem

_MOST = 100
_TABLES = (
    "tk_threads", "tk_items", "tk_checkpoints", "tk_writes", "tk_tags", "tk_runs", "tk_memories", "tk_vectors",
    "tk_parts", "tk_words",
)  # fmt: skip
_SYNCHRONOUS = ("off", "normal", "full", "extra")
_MOUNTS = Path("/proc/mounts")


def sound(
    connection: apsw.Connection, loose: Callable[[], tuple[IntegrityProblem, ...]]
) -> tuple[IntegrityProblem, ...]:
    """What SQLite's own check says, tables that are gone, and what `loose` finds if all are there."""
    found = [IntegrityProblem(DATABASE, f"SQLite: {said}") for said in _integrity(connection)]
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema").fetchall()}
    gone = [name for name in _TABLES if name not in there]
    found += [IntegrityProblem(DATABASE, f"the table {name} is not there") for name in gone]
    try:
        return (*found, *(() if gone else loose()))
    except apsw.Error as error:
        return (*found, IntegrityProblem(DATABASE, f"SQLite: {error}"))


def _integrity(connection: apsw.Connection) -> Iterator[str]:
    """The whole check: pages, tables, indexes against their tables, full text."""
    try:
        for (said,) in connection.execute(f"PRAGMA integrity_check({_MOST})").fetchall():
            if said != "ok":
                yield str(said)
    except apsw.Error as error:
        yield str(error)


def facts(connection: apsw.Connection, path: Path, durability: str) -> Mapping[str, Any]:
    """What is to know of the file."""
    log = Path(f"{path}-wal")
    return {
        "backend": "sqlite",
        "driver": f"apsw {apsw.apsw_version()}",
        "server": f"SQLite {apsw.sqlite_lib_version()}",
        "schema": _number(connection, "SELECT version FROM tk_schema"),
        "schema_known": SCHEMA_VERSION,
        "durability": durability,
        "path": str(path),
        "journal_mode": _journal_mode(connection, path),
        "synchronous": _SYNCHRONOUS[_number(connection, "PRAGMA synchronous")],
        "page_size": _number(connection, "PRAGMA page_size"),
        "pages": _number(connection, "PRAGMA page_count"),
        "free_pages": _number(connection, "PRAGMA freelist_count"),
        "auto_vacuum": _number(connection, "PRAGMA auto_vacuum"),
        "wal_bytes": log.stat().st_size if log.exists() else 0,
        "mode": path.stat().st_mode & 0o777,
        "writable": os.access(path, os.W_OK) and os.access(path.parent, os.W_OK),
        "disk_free": shutil.disk_usage(path.parent).free,
        "file_system": _file_system(path),
        **_counts(connection),
    }


def _counts(connection: apsw.Connection) -> dict[str, int]:
    return {
        name: _number(connection, f"SELECT count(*) FROM tk_{name}")  # noqa: S608 - our own names
        for name in ("threads", "memories")
    }


def _file_system(path: Path) -> str | None:
    """The kind of file system that a file is on, where the system tells."""
    if not _MOUNTS.exists():
        return None
    mounts = [line.split(" ")[1:3] for line in _MOUNTS.read_text("utf-8", "replace").splitlines()]
    held = [(where, kind) for where, kind in mounts if path.is_relative_to(where.replace("\\040", " "))]
    return max(held, key=lambda mount: len(mount[0]))[1] if held else None


def compact(connection: apsw.Connection, path: Path) -> tuple[int, int]:
    """Merge the full text's pieces, write the file anew without free pages, and empty its log; its bytes before and after.

    VACUUM is one transaction: others that read or write are waited for, and if they take too long nothing has changed.
    """
    before = _size(path)
    connection.execute("INSERT INTO tk_words (tk_words) VALUES ('optimize')")
    connection.execute("PRAGMA optimize").fetchall()
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return before, _size(path)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists())


def _number(connection: apsw.Connection, sql: str) -> int:
    rows = connection.execute(sql).fetchall()
    return int(str(rows[0][0])) if rows else 0


def _journal_mode(connection: apsw.Connection, path: Path) -> str:
    """As the file says it: where no log can be made beside it, it is read as if nobody writes, and SQLite says delete."""
    with path.open("rb") as file:
        is_wal = file.read(20)[18:] == b"\x02\x02"
    return "wal" if is_wal else str(connection.execute("PRAGMA journal_mode").fetchall()[0][0])
