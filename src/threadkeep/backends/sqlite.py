"""The SQLite dialect: the database numbers the threads, and references are packed bytes."""

from __future__ import annotations

from collections.abc import Iterable

from threadkeep.backends.sql import SqlBackend
from threadkeep.engine import itemlog
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.itemlog import Run

SCHEMA_VERSION = 1


class Sqlite(SqlBackend):
    """SQLite, statement by statement: its statements cost microseconds."""

    files = ("common.sql", "sqlite.sql")

    def number(self, key: ThreadKey) -> None:
        """Not known before the thread is made."""

    def pack_refs(self, runs: Iterable[Run]) -> bytes:
        """Runs as varints."""
        return itemlog.pack_runs(runs)

    def unpack_refs(self, stored: bytes) -> tuple[Run, ...]:
        """Varints as runs."""
        return itemlog.unpack_runs(stored)
