"""Lets today's code write into a database of an older schema, so that a test can migrate it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg
import pytest

from threadkeep.backends.sql.blocks import read_blocks
from threadkeep.engine.identity import to_bytes

_TICKS = 3
"""The schema version in which PostgreSQL's column `tick` replaced `hour`."""
_MEMORIES = 2
"""The schema version in which there came to be memories."""
_REST = 8
"""The schema version of 0.2.0: paths of tasks are shorter, refs are text in PostgreSQL, there are tenants with keys."""


def use_version(patch: pytest.MonkeyPatch, version: int) -> None:
    """Let Keeps create and accept databases of an older schema version, in which no tenant has keys."""
    patch.setattr("threadkeep.engine.schema_versions.SCHEMA_VERSION", version)
    patch.setattr("threadkeep.tenants.transport.TenantTransport._load_row", lambda *_: None)


@contextmanager
def todays_columns(url: str, version: int) -> Iterator[None]:
    """Give a database the columns and tables that came after a schema version, and take them away again.

    Threads that are created meanwhile have no family, as before there were families.
    """
    is_postgres = url.startswith("postgres")
    folder = "postgres" if is_postgres else "sqlite"
    blocks = read_blocks(f"{folder}/blocks.sql", f"{folder}/views.sql")
    later = {name: sql for name, sql in blocks.items() if re.fullmatch(r"schema-\d+", name) and int(name[7:]) > version}
    added = re.findall(r"ALTER TABLE tk_threads ADD COLUMN (?!tick)(\w+) ([^;]+);", "\n".join(later.values()))
    renamed = [("hour", "tick")] if is_postgres and version < _TICKS else []
    for column, rest in added:
        _execute(url, f"ALTER TABLE tk_threads ADD COLUMN {column} {rest}")
    for old, new in renamed:
        _execute(url, f"ALTER TABLE tk_threads RENAME COLUMN {old} TO {new}")
    if version < _REST and is_postgres:
        _execute(url, read_blocks("postgres/tenants.sql")["tenant-tables"])
    elif _MEMORIES <= version < _REST:
        _execute(url, "ALTER TABLE tk_memories ADD COLUMN sealed INTEGER")
    retyped = ["tk_checkpoints", "tk_writes"] if is_postgres and version < _REST else []
    for table in retyped:
        _execute(url, f"ALTER TABLE {table} ALTER COLUMN refs TYPE text USING array_to_string(refs, ',')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threadkeep.engine.commit.new_family", lambda _: 0)
        for module in ("sql.backend", "sqlite.commits", "postgres.commits") if version < _REST else ():
            patch.setattr(f"threadkeep.backends.{module}.pack_path", to_bytes)
        yield
    if version < _REST and is_postgres:
        _execute(url, "DROP TABLE tk_tenants; DROP TABLE tk_keys")
    elif _MEMORIES <= version < _REST:
        _execute(url, "ALTER TABLE tk_memories DROP COLUMN sealed")
    for table in retyped:
        _execute(
            url, f"ALTER TABLE {table} ALTER COLUMN refs TYPE integer[] USING string_to_array(refs, ',')::integer[]"
        )
    for old, new in renamed:
        _execute(url, f"ALTER TABLE tk_threads RENAME COLUMN {new} TO {old}")
    for column, _ in added:
        _execute(url, f"ALTER TABLE tk_threads DROP COLUMN {column}")


def set_version(url: str, version: int) -> None:
    """Let a database say that it has another schema version."""
    last = " WHERE version = (SELECT max(version) FROM tk_schema)" if url.startswith("postgres") else ""
    _execute(url, f"UPDATE tk_schema SET version = {version}{last}")


def _execute(url: str, sql: str) -> None:
    if url.startswith("sqlite"):
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
            file.set_busy_timeout(10_000)
            file.execute(sql)
        return
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    with psycopg.connect(url.partition("?")[0], autocommit=True, options=f"-csearch_path={schema}") as connection:
        connection.execute(sql)
