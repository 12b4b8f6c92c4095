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
from threadkeep.engine.schema_versions import SCHEMA_VERSION
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


@pytest.mark.parametrize("found", range(SCHEMA_VERSION))
def test_a_sqlite_file_is_migrated_step_by_step(found: int) -> None:
    file = Database(SQLITE, {"has-schema": [(1,)] if found else [], "versions": [(found,)]})
    file.run(sqlite_setup.migrate(SQLITE, database="x.db"))
    steps = [f"schema-{step}" for step in range(found + 1, SCHEMA_VERSION + 1)]
    executed = ["has-schema", "versions"] if found else ["has-schema", "schema-table"]
    assert file.executed == [*executed, *steps, "set-version"]
    assert file.values == [SCHEMA_VERSION]


def test_a_sqlite_file_that_others_have_migrated_is_left_alone() -> None:
    file = Database(SQLITE, {"has-schema": [(1,)], "versions": [(SCHEMA_VERSION,)]})
    file.run(sqlite_setup.migrate(SQLITE, database="x.db"))
    assert file.executed == ["has-schema", "versions"]


@pytest.mark.parametrize("tables", [[], [(1,)]], ids=["empty", "with tables"])
def test_only_an_empty_sqlite_file_gets_settings_of_a_new_one(tables: list[tuple[int]]) -> None:
    file = Database(SQLITE, {"has-tables": tables})
    file.run(sqlite_setup.settings(SQLITE))
    assert file.executed == ["has-tables", *([] if tables else ["new-file-settings"]), "journal-mode"]


@pytest.mark.parametrize(("schema", "there"), [(None, []), ("ours", []), ("ours", [(1,)])], ids=str)
def test_postgresql_gets_the_schema_that_is_named_if_it_is_missing(schema: str | None, there: list[Any]) -> None:
    server = Database(POSTGRES, {"schema-exists": there, "versions": [(SCHEMA_VERSION,)]})
    server.run(postgres_setup.migrate(POSTGRES, schema))
    assert ("create-schema" in server.executed) == (schema is not None and not there)


@pytest.mark.parametrize("found", range(SCHEMA_VERSION))
def test_postgresql_records_every_migration_before_it_is_made(found: int) -> None:
    server = Database(POSTGRES, {"versions": [(found,)]})
    server.run(postgres_setup.migrate(POSTGRES, None))
    assert server.values == list(range(found + 1, SCHEMA_VERSION + 1))
    assert server.executed[:3] == ["schema-0", "versions", "set-version"]


@pytest.mark.parametrize("wanted", [False, True])
def test_pgvector_is_installed_only_if_it_is_wanted_and_missing(wanted: bool) -> None:
    there = Database(POSTGRES, {"vector-schema": [("public",)]})
    assert there.run(postgres_setup.find_pgvector(POSTGRES, wanted=wanted)) == "public"
    assert there.executed == ["vector-schema"]
    missing = Database(POSTGRES, {"vector-schema": [[], [("public",)]]})
    found = missing.run(postgres_setup.find_pgvector(POSTGRES, wanted=wanted))
    assert found == ("public" if wanted else None)
    assert missing.executed == (["vector-schema", "create-extension", "vector-schema"] if wanted else ["vector-schema"])


@pytest.mark.parametrize(
    ("durability", "current", "ours"),
    [("strict", "off", "on"), ("strict", "on", None), ("strict", "local", None), ("relaxed", "on", "off")],
)
def test_strict_commits_wait_and_relaxed_ones_do_not(durability: str, current: str, ours: str | None) -> None:
    server = Database(POSTGRES, {"synchronous-commit": [(current,)]})
    assert server.run(postgres_setup.synchronous_commit(POSTGRES, durability=durability)) == ours
