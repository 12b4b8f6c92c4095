"""Citus: distribute our tables over its nodes, each by the column that its statements compare with a value.

    by `thread`     threads and what they have, side by side
    by `part`       memories, vectors and partitions, side by side
    by `tenant`     data keys
    a copy on each  the schema version and the rows of tenants, which almost every change reads

The search index is not distributed: it needs foreign keys between its tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.errors import Unavailable
from threadkeep.transports.postgres_cursor import PostgresCursor

_ALONE = "none"
"""What Citus takes for a table that is beside no other."""


class TablePlace(NamedTuple):
    """Where the rows of a table go: to the node of a value, with those of another table; or to all nodes."""

    column: str | None = None
    beside: str = _ALONE

    @property
    def shown(self) -> str:
        """The column, or `reference`, as Citus calls a table of which each node has a copy."""
        return self.column or "reference"


_OF_THREAD, _OF_PART = TablePlace("thread", "tk_threads"), TablePlace("part", "tk_memories")
PLACES: Mapping[str, TablePlace] = {
    "tk_schema": TablePlace(),
    "tk_tenants": TablePlace(),
    "tk_threads": TablePlace("thread"),
    "tk_items": _OF_THREAD,
    "tk_checkpoints": _OF_THREAD,
    "tk_writes": _OF_THREAD,
    "tk_tags": _OF_THREAD,
    "tk_runs": _OF_THREAD,
    "tk_memories": TablePlace("part"),
    "tk_vectors": _OF_PART,
    "tk_parts": _OF_PART,
    "tk_keys": TablePlace("tenant"),
}


def is_installed(cursor: PostgresCursor, backend: PostgresDialect) -> bool:
    """Return whether this is a database of Citus."""
    return bool(cursor.rows(backend.sql["has-citus"]))


def refuse_worker(cursor: PostgresCursor, backend: PostgresDialect) -> None:
    """Raise Unavailable if this node of Citus is a worker: tables that it creates would be its own."""
    if cursor.rows(backend.sql["node-group"]) != [(0,)]:
        raise Unavailable("PostgreSQL: this server is a worker of Citus; connect to the coordinator to create tables")


def distribute(cursor: PostgresCursor, backend: PostgresDialect, *, dry_run: bool) -> list[str]:
    """Distribute the tables that are not distributed yet, and return their names. Each is a transaction of its own."""
    if not is_installed(cursor, backend):
        raise Unavailable("PostgreSQL: this database has no Citus: run CREATE EXTENSION citus on each of its nodes")
    refuse_worker(cursor, backend)
    if cursor.rows(backend.sql["has-search"]):
        raise Unavailable("PostgreSQL: the search index cannot be distributed: drop it with drop_search_index() first")
    found: dict[str, str | None] = dict(
        cursor.rows(backend.sql["distribution"], {"table": backend.qualified_name("tk_threads")})
    )
    for table in PLACES.keys() & found.keys():
        if found[table] != PLACES[table].column:
            is_by = f"by {found[table]}" if found[table] else "as a reference table"
            raise Unavailable(f"PostgreSQL: {table} is distributed {is_by}, not as {PLACES[table].shown}")
    missing = [table for table in PLACES if table not in found]
    for table in () if dry_run else missing:
        _place(cursor, backend, table, PLACES[table])
    return missing


def _place(cursor: PostgresCursor, backend: PostgresDialect, table: str, place: TablePlace) -> None:
    name = backend.qualified_name(table)
    if place.column is None:
        cursor.rows(backend.sql["copy-table"], {"table": name})
    else:
        beside = backend.qualified_name(place.beside) if place.beside != _ALONE else _ALONE
        cursor.rows(backend.sql["distribute-table"], {"table": name, "column": place.column, "beside": beside})
