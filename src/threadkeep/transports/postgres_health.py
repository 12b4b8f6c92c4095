"""PostgreSQL health: report the server's settings and state, find invalid indexes, and vacuum."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import psycopg

from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.engine.health.requests import DATABASE, IntegrityProblem
from threadkeep.engine.schema_versions import SCHEMA_VERSION

_TABLES = (
    "tk_schema",
    "tk_threads",
    "tk_items",
    "tk_checkpoints",
    "tk_writes",
    "tk_tags",
    "tk_runs",
    "tk_memories",
    "tk_vectors",
    "tk_parts",
)
_SEARCH_TABLES = ("tk_search_tenants", "tk_search_threads", "tk_search", "tk_search_texts")
"""The tables of the search index, if there is one."""
_SETTINGS = (
    "server_version",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "max_connections",
    "autovacuum",
    "data_checksums",
    "transaction_read_only",
)

REMAINS = (
    "dead rows: they stay in the tables until a vacuum; run `threadkeep compact`, or VACUUM FULL to rewrite the files",
    "planner statistics: pg_statistic holds samples of values until the tables are analyzed; run `threadkeep compact`",
    "write-ahead log: segments hold the erased data until they are recycled; run CHECKPOINT, then pg_switch_wal()",
    "WAL archives and base backups: delete them, or erase again after a restore",
    "replicas: they delete it when they replay the change; their files need the same steps",
)
"""What an erase leaves on a server, and how to remove it."""


class HealthCursor(Protocol):
    """A cursor as far as this module needs it."""

    @property
    def pid(self) -> int:
        """The id of the server process, as reported when the connection was made."""

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""


def invalid_indexes(cursor: HealthCursor, backend: PostgresDialect) -> tuple[IntegrityProblem, ...]:
    """Return our indexes that are marked invalid: the server does not use them."""
    rows = cursor.rows(backend.sql["invalid-indexes"], {"schema": backend.schema})
    return tuple(IntegrityProblem(DATABASE, f"index {name} is not valid; run REINDEX INDEX {name}") for (name,) in rows)


def facts(
    cursor: HealthCursor, backend: PostgresDialect, own: Mapping[str, Any], *, synchronous: str | None
) -> Mapping[str, Any]:
    """Report the server's settings and state, and our `own`. `synchronous` is what we set over the server's setting."""
    settings = {name: _setting(cursor, name) for name in _SETTINGS}
    schema = backend.schema or cursor.rows("SELECT current_schema()::text")[0][0]
    before = time.time()
    clock = float(cursor.rows("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])
    round_trip = time.time() - before
    return {
        "backend": "postgres",
        "driver": f"psycopg {psycopg.__version__}, libpq {psycopg.pq.version()}",
        "server": f"PostgreSQL {settings['server_version']}",
        "schema": cursor.rows(backend.sql["versions"])[0][0],
        "schema_known": SCHEMA_VERSION,
        "schema_name": schema,
        "settings": settings | {"synchronous_in_force": synchronous or settings["synchronous_commit"]},
        "connections": cursor.rows("SELECT count(*) FROM pg_catalog.pg_stat_activity")[0][0],
        "standby": bool(cursor.rows("SELECT pg_catalog.pg_is_in_recovery()")[0][0]),
        "pgvector": backend.pgvector,
        "pooler": "PgBouncer or similar" if _server_pid(cursor) != cursor.pid else None,
        "round_trip": round_trip,
        "skew": clock - (before + round_trip / 2),
        "tables": _tables(cursor, backend, schema),
        "may_create": _may_create(cursor, backend.schema),
        "threads": cursor.rows("SELECT count(*) FROM tk_threads")[0][0],
        "memories": cursor.rows("SELECT count(*) FROM tk_memories")[0][0],
        **own,
    }


def _may_create(cursor: HealthCursor, schema: str | None) -> bool:
    if schema is None:
        rows = cursor.rows("SELECT has_schema_privilege(current_schema(), 'CREATE')")
    else:
        rows = cursor.rows("SELECT has_schema_privilege(:schema, 'CREATE')", {"schema": schema})
    return bool(rows[0][0])


def _server_pid(cursor: HealthCursor) -> int:
    """Return the process that executes statements; a pooler reports another one when it accepts a connection."""
    return int(cursor.rows("SELECT pg_catalog.pg_backend_pid()::bigint")[0][0])


def _setting(cursor: HealthCursor, name: str) -> str:
    rows = cursor.rows("SELECT pg_catalog.current_setting(:name, true)::text", {"name": name})
    return str(rows[0][0])


def _tables(cursor: HealthCursor, backend: PostgresDialect, schema: str) -> Sequence[tuple[Any, ...]]:
    """Return our tables: name, live and dead rows, bytes, and whether we may change them.

    The rows of a distributed table are in tables of other nodes: here they are not counted.
    """
    sizes = backend.distributed_sizes(cursor)
    rows = cursor.rows(
        "SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, pg_catalog.pg_total_relation_size(s.relid),"
        " has_table_privilege(s.relid, 'INSERT') AND has_table_privilege(s.relid, 'UPDATE')"
        " AND has_table_privilege(s.relid, 'DELETE')"
        " FROM pg_catalog.pg_stat_user_tables s"
        " WHERE s.schemaname = :schema AND s.relname LIKE 'tk\\_%' ORDER BY s.relname",
        {"schema": schema},
    )
    return [(name, live, dead, sizes.get(name, size), *others) for name, live, dead, size, *others in rows]


def compact(cursor: HealthCursor, backend: PostgresDialect) -> tuple[int, int]:
    """Vacuum our tables, outside any transaction; others may use them. Return their bytes before and after."""
    has_search = cursor.rows("SELECT to_regclass('tk_search') IS NOT NULL")[0][0]
    tables = (*_TABLES, *(_SEARCH_TABLES if has_search else ()))
    before = _size(cursor, backend, tables)
    for table in tables:
        cursor.rows(f"VACUUM (ANALYZE) {table}")
    return before, _size(cursor, backend, tables)


def _size(cursor: HealthCursor, backend: PostgresDialect, tables: Iterable[str]) -> int:
    sizes = backend.distributed_sizes(cursor)
    return sum(
        sizes.get(table) or int(cursor.rows(f"SELECT pg_catalog.pg_total_relation_size('{table}'::regclass)")[0][0])
        for table in tables
    )
