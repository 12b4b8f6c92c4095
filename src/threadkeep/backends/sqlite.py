"""The SQLite dialect: the database numbers the threads, and references are packed bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from threadkeep.backends import prefilters
from threadkeep.backends.sql import SqlBackend, with_names
from threadkeep.engine import itemlog
from threadkeep.engine.filters import Node
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.itemlog import Run


class Sqlite(SqlBackend):
    """SQLite, statement by statement: its statements cost microseconds."""

    files = ("common.sql", "memories.sql", "health.sql", "sqlite.sql", "sqlite_views.sql")

    def number(self, key: ThreadKey) -> None:
        """Not known before the thread is made."""

    def pack_refs(self, runs: Iterable[Run]) -> bytes:
        """Runs as varints."""
        return itemlog.pack_runs(tuple(runs))

    def prefilter(self, filter: Node) -> tuple[str, dict[str, Any]]:
        """SQLite's JSON functions on the stored text."""
        condition, given = prefilters.sqlite(filter, "m.value")
        return with_names(condition, "?", given)

    def unpack_refs(self, stored: bytes) -> tuple[Run, ...]:
        """Varints as runs."""
        return itemlog.unpack_runs(stored)
