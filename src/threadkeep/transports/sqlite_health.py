"""SQLite health: run SQLite's integrity check, report the file's settings and state, and vacuum."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from threadkeep.engine.health.requests import (
    DATABASE,
    CleanFiles,
    CompactStorage,
    FilesState,
    IntegrityCheck,
    IntegrityProblem,
    LoadStorageFacts,
    MeasureStorage,
    StorageSize,
)
from threadkeep.engine.schema_versions import SCHEMA_VERSION
from threadkeep.plan import Request

_MAX_PROBLEMS = 100
_PAGES_PER_STEP = 1000
_TABLES = (
    "tk_threads",
    "tk_items",
    "tk_checkpoints",
    "tk_writes",
    "tk_tags",
    "tk_runs",
    "tk_memories",
    "tk_vectors",
    "tk_parts",
    "tk_words",
)
_SYNCHRONOUS = ("off", "normal", "full", "extra")
_MOUNTS = Path("/proc/mounts")


def answer(
    connection: apsw.Connection, request: Request[Any], path: Path, durability: str, check_integrity: Callable[[], Any]
) -> Any:
    """Answer a read about the storage as a whole. `check_integrity` answers an IntegrityCheck."""
    if isinstance(request, MeasureStorage):
        return storage_size(connection, path)
    if isinstance(request, LoadStorageFacts):
        return facts(connection, path, durability)
    assert isinstance(request, IntegrityCheck)
    return check_integrity()


def change(
    connection: apsw.Connection,
    request: Request[Any],
    path: Path,
    answer_in_transaction: Callable[[apsw.Connection, Request[Any]], Any],
) -> Any:
    """Execute a change of the storage as a whole. The backend answers its part, a CleanFiles, in a transaction."""
    delete_empty_partitions = partial(answer_in_transaction, connection, CleanFiles())
    if isinstance(request, CompactStorage):
        return compact(connection, path, delete_empty_partitions)
    assert isinstance(request, CleanFiles)
    return clean_files(connection, delete_empty_partitions)


def integrity_problems(
    connection: apsw.Connection, find_orphans: Callable[[], tuple[IntegrityProblem, ...]]
) -> tuple[IntegrityProblem, ...]:
    """Return what SQLite's own check finds, missing tables, and, if none is missing, what `find_orphans` finds."""
    problems = [IntegrityProblem(DATABASE, f"SQLite: {message}") for message in _integrity_check(connection)]
    present = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema").fetchall()}
    missing = [name for name in _TABLES if name not in present]
    problems += [IntegrityProblem(DATABASE, f"table {name} is missing") for name in missing]
    try:
        return (*problems, *(() if missing else find_orphans()))
    except apsw.Error as error:
        return (*problems, IntegrityProblem(DATABASE, f"SQLite: {error}"))


def _integrity_check(connection: apsw.Connection) -> list[str]:
    """Check pages, tables, indexes against their tables, and the full-text indexes.

    SQLite checks these as far as the connection has cached their structure, which others may have changed since. A
    query reads it again.
    """
    names = "SELECT name FROM sqlite_schema WHERE name IN ('tk_words', 'tk_search_words')"
    try:
        for (name,) in connection.execute(names).fetchall():
            connection.execute(f"SELECT rowid FROM {name} ('x') LIMIT 1").fetchall()  # noqa: S608 - one of these two
        found = connection.execute(f"PRAGMA integrity_check({_MAX_PROBLEMS})").fetchall()
    except apsw.Error as error:
        return [str(error)]
    return [str(message) for (message,) in found if message != "ok"]


def facts(connection: apsw.Connection, path: Path, durability: str) -> Mapping[str, Any]:
    """Report the file's settings and state."""
    return {
        "backend": "sqlite",
        "driver": f"apsw {apsw.apsw_version()}",
        "server": f"SQLite {apsw.sqlite_lib_version()}",
        "schema": query_number(connection, "SELECT version FROM tk_schema"),
        "schema_known": SCHEMA_VERSION,
        "durability": durability,
        "path": str(path),
        "journal_mode": _journal_mode(connection, path),
        "synchronous": _SYNCHRONOUS[query_number(connection, "PRAGMA synchronous")],
        "page_size": query_number(connection, "PRAGMA page_size"),
        "pages": query_number(connection, "PRAGMA page_count"),
        "free_pages": query_number(connection, "PRAGMA freelist_count"),
        "auto_vacuum": query_number(connection, "PRAGMA auto_vacuum"),
        "wal_bytes": _file_sizes(path)["wal"],
        "mode": path.stat().st_mode & 0o777,
        "writable": os.access(path, os.W_OK) and os.access(path.parent, os.W_OK),
        "disk_free": shutil.disk_usage(path.parent).free,
        "file_system": _file_system(path),
        **_counts(connection),
    }


def _counts(connection: apsw.Connection) -> dict[str, int]:
    return {
        name: query_number(connection, f"SELECT count(*) FROM tk_{name}")  # noqa: S608 - our own names
        for name in ("threads", "memories")
    }


def _file_system(path: Path) -> str | None:
    """Return the type of the file system that a file is on, or None if the operating system does not say."""
    if not _MOUNTS.exists():
        return None
    mounts = [line.split(" ")[1:3] for line in _MOUNTS.read_text("utf-8", "replace").splitlines()]
    above = [(folder, kind) for folder, kind in mounts if path.is_relative_to(folder.replace("\\040", " "))]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else None


def compact(connection: apsw.Connection, path: Path, delete_empty_partitions: Callable[[], None]) -> tuple[int, int]:
    """Merge the full-text index, rewrite the file without free pages, and empty its log. Return bytes before and after.

    VACUUM is one transaction. It waits for other readers and writers; if they take too long, nothing has changed.
    """
    before = sum(_file_sizes(path).values())
    delete_empty_partitions()
    _merge_words(connection)
    connection.execute("PRAGMA optimize").fetchall()
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return before, sum(_file_sizes(path).values())


def clean_files(connection: apsw.Connection, delete_empty_partitions: Callable[[], None]) -> FilesState:
    """Rewrite the file without a byte of what was deleted, and empty its log. Report the step that others prevented.

    Planner statistics may contain samples of keys, so they are collected again.
    """
    try:
        delete_empty_partitions()
        _merge_words(connection)
        if query_number(connection, "SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_stat4'"):
            connection.execute("DELETE FROM sqlite_stat4")
        connection.execute("VACUUM")
    except apsw.BusyError as error:
        return FilesState(clean=False, remains=(_BLOCKED.format(step="VACUUM", error=error),))
    ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if is_busy:
        return FilesState(clean=False, remains=(_BLOCKED.format(step="emptying the write-ahead log", error="busy"),))
    return FilesState(clean=True, remains=("backups and copies of the file: delete them, or erase them too",))


_BLOCKED = "{step} was prevented by another connection ({error}): close it, then run `threadkeep compact`"


def _merge_words(connection: apsw.Connection) -> None:
    """Merge the full-text index, so that words of deleted memories leave it.

    FTS5 leaves an index of one segment alone, even if it has deleted entries. So add a segment first.
    """
    connection.execute("INSERT OR REPLACE INTO tk_words (rowid, words) VALUES (0, 'threadkeep')")
    connection.execute("INSERT INTO tk_words (tk_words) VALUES ('optimize')")
    connection.execute("DELETE FROM tk_words WHERE rowid = 0")


def copy_database(source: apsw.Connection, path: Path, on_progress: Callable[[int, int], object]) -> None:
    """Copy a database into a new file, as of one moment.

    An open read transaction keeps others' changes out of the copy: without it, each change would start the copy anew.
    """
    source.execute("BEGIN")
    query_number(source, "SELECT count(*) FROM sqlite_schema")
    target = apsw.Connection(str(path))
    try:
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_PER_STEP)
                on_progress(backup.page_count - backup.remaining, backup.page_count)
        target.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, which needs no log to be read
    finally:
        target.close()
        source.execute("ROLLBACK")


def storage_size(connection: apsw.Connection, path: Path) -> StorageSize:
    """Return the sizes of the file and of its write-ahead log; `free` is what the file's free pages take."""
    parts = _file_sizes(path)
    free = query_number(connection, "PRAGMA freelist_count") * query_number(connection, "PRAGMA page_size")
    return StorageSize("sqlite", sum(parts.values()), parts, free=free)


def _file_sizes(path: Path) -> dict[str, int]:
    files = {"file": path, "wal": Path(f"{path}-wal")}
    return {name: file.stat().st_size if file.exists() else 0 for name, file in files.items()}


def query_number(connection: apsw.Connection, sql: str) -> int:
    """Return the number that a query gives; 0 if it has no row."""
    rows = connection.execute(sql).fetchall()
    return int(str(rows[0][0])) if rows else 0


def _journal_mode(connection: apsw.Connection, path: Path) -> str:
    """Return the journal mode in the file's header.

    A file beside which no log can be created is opened as immutable, and SQLite then reports `delete`.
    """
    with path.open("rb") as file:
        is_wal = file.read(20)[18:] == b"\x02\x02"
    return "wal" if is_wal else str(connection.execute("PRAGMA journal_mode").fetchall()[0][0])
