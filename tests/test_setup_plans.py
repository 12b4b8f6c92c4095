"""Set-up and migration of SQL databases are plans: what they decide, tested without a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from threadkeep.backends.postgres import setup as postgres_setup
from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.backends.sql.setup import SetupStatement
from threadkeep.backends.sqlite import setup as sqlite_setup
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.engine.schema_versions import NO_SCHEMA, SCHEMA_VERSION, STEPS, SchemaVersions, steps_after
from threadkeep.plan import Plan, Request, drive

POSTGRES, SQLITE = PostgresDialect().sql, SqliteDialect().sql


class Database:
    """Answers statements by the names of their blocks, and records them."""

    def __init__(self, blocks: Mapping[str, str], rows: Mapping[str, Any]) -> None:
        self._names = {sql: name for name, sql in blocks.items()}
        self._rows = rows
        self.executed: list[str] = []
        self.values: list[Any] = []

    def run(self, plan: Plan[Any]) -> Any:
        return drive(plan, self._execute)

    def _execute(self, request: Request[Any]) -> Any:
        assert isinstance(request, SetupStatement)
        name = self._names.get(request.sql, "part of a block")
        self.executed.append(name)
        self.values += request.values.values()
        rows = self._rows.get(name, [])
        return rows.pop(0) if rows and isinstance(rows[0], list) else rows


@pytest.mark.parametrize("found", [0, *STEPS[:-1]])
def test_a_sqlite_file_is_migrated_step_by_step(found: int) -> None:
    file = Database(SQLITE, {"versions": [(found,)] if found else []})
    file.run(sqlite_setup.migrate(SQLITE, database="x.db"))
    steps = [f"schema-{step}" for step in steps_after(found)]
    executed = ["versions"] if found else ["versions", "schema-table"]
    assert file.executed == [*executed, *steps, "set-version"]
    assert file.values == [SCHEMA_VERSION]


def test_a_sqlite_file_that_others_have_migrated_is_left_alone() -> None:
    file = Database(SQLITE, {"versions": [(SCHEMA_VERSION,)]})
    file.run(sqlite_setup.migrate(SQLITE, database="x.db"))
    assert file.executed == ["versions"]


@pytest.mark.parametrize("tables", [[], [(1,)]], ids=["empty", "with tables"])
def test_only_an_empty_sqlite_file_gets_settings_of_a_new_one(tables: list[tuple[int]]) -> None:
    file = Database(SQLITE, {"has-tables": tables})
    file.run(sqlite_setup.settings(SQLITE, NO_SCHEMA))
    assert file.executed == ["has-tables", *([] if tables else ["new-file-settings"]), "journal-mode"]


def test_a_sqlite_file_with_our_tables_only_gets_the_journal_mode() -> None:
    file = Database(SQLITE, {})
    file.run(sqlite_setup.settings(SQLITE, SchemaVersions(1, 1, 1)))
    assert file.executed == ["journal-mode"]


@pytest.mark.parametrize(("schema", "there"), [(None, []), ("ours", []), ("ours", [(1,)])], ids=str)
def test_postgresql_gets_the_schema_that_is_named_if_it_is_missing(schema: str | None, there: list[Any]) -> None:
    server = Database(POSTGRES, {"schema-exists": there, "versions": [(SCHEMA_VERSION,)]})
    server.run(postgres_setup.migrate(POSTGRES, schema))
    assert ("create-schema" in server.executed) == (schema is not None and not there)


@pytest.mark.parametrize("found", [0, *STEPS[:-1]])
def test_postgresql_records_every_migration_before_it_is_made(found: int) -> None:
    server = Database(POSTGRES, {"versions": [(found,)]})
    server.run(postgres_setup.migrate(POSTGRES, None))
    assert server.values == list(steps_after(found))
    assert server.executed[:3] == ["schema-0", "lock-schema", "versions"]


@pytest.mark.parametrize("pgvector", ["public", None])
def test_the_state_of_a_postgresql_database_takes_one_statement(pgvector: str | None) -> None:
    server = Database(POSTGRES, {"storage-state": [("on", pgvector, 7, "2026-01-01", 5, 6)]})
    state = postgres_setup.StorageState(SchemaVersions(7, 5, 6), pgvector, "on")
    assert server.run(postgres_setup.state(POSTGRES)) == state
    assert server.executed == ["storage-state"]


def test_a_row_of_an_old_postgresql_migration_is_read() -> None:
    server = Database(POSTGRES, {"storage-state": [("on", None, 4, "2026-01-01")]})
    assert server.run(postgres_setup.state(POSTGRES)).versions == SchemaVersions(4, 4, 4)


def test_a_postgresql_database_without_our_tables_has_no_schema() -> None:
    assert Database(POSTGRES, {}).run(postgres_setup.state(POSTGRES)).versions == NO_SCHEMA


@pytest.mark.parametrize("found", [[], [("public",)]], ids=["refused", "installed"])
def test_pgvector_is_installed_if_that_is_allowed(found: list[Any]) -> None:
    server = Database(POSTGRES, {"vector-schema": [found]})
    assert server.run(postgres_setup.install_pgvector(POSTGRES)) == ("public" if found else None)
    assert server.executed == ["create-extension", "vector-schema"]


@pytest.mark.parametrize(
    ("durability", "current", "ours"),
    [("strict", "off", "on"), ("strict", "on", None), ("strict", "local", None), ("relaxed", "on", "off")],
)
def test_strict_commits_wait_and_relaxed_ones_do_not(durability: str, current: str, ours: str | None) -> None:
    assert postgres_setup.synchronous_commit(current, durability=durability) == ours
