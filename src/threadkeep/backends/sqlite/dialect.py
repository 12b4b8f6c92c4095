"""The SQLite dialect: the database numbers the threads, and references are packed bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from threadkeep.backends.sql import filters
from threadkeep.backends.sql.backend import SqlBackend, with_names
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.memories.filters import FilterNode


class SqliteDialect(SqlBackend):
    """SQLite, statement by statement: its statements cost microseconds."""

    files = ("sql/common.sql", "sql/memories.sql", "sql/health.sql", "sqlite/blocks.sql", "sqlite/views.sql")

    def number(self, key: ThreadKey) -> None:
        """Not known before the thread is made."""

    def pack_refs(self, runs: Iterable[ItemRange]) -> bytes:
        """Runs as varints."""
        return itemlog.pack_ranges(tuple(runs))

    def prefilter(self, filter: FilterNode) -> tuple[str, dict[str, Any]]:
        """SQLite's JSON functions on the stored text."""
        condition, given = filters.sqlite(filter, "m.value")
        return with_names(condition, "?", given)

    def unpack_refs(self, stored: bytes) -> tuple[ItemRange, ...]:
        """Varints as runs."""
        return itemlog.unpack_ranges(stored)
