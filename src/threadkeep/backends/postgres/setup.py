"""Sets up PostgreSQL: schema version, migrations, pgvector and synchronous commits, as plans of statements."""

from __future__ import annotations

from typing import NamedTuple

from threadkeep.backends.sql.setup import Blocks, SetupStatement
from threadkeep.engine import schema_versions
from threadkeep.engine.schema_versions import NO_SCHEMA, SchemaUse, SchemaVersions

DATABASE = "the database"


class StorageState(NamedTuple):
    """What a Keep must know of a database before it uses it."""

    versions: SchemaVersions
    pgvector: str | None = None
    """The schema that pgvector is installed in, or None."""
    synchronous_commit: str = ""
    """The server's setting."""


async def state(sql: Blocks) -> StorageState:
    """Return the state of a database; its versions are NO_SCHEMA if it does not have our tables. One statement."""
    rows = await SetupStatement(sql["storage-state"], missing_ok=True)
    if not rows:
        return StorageState(NO_SCHEMA)
    synchronous, pgvector, version, _, *others = rows[0]
    return StorageState(SchemaVersions.of_row(version, *others), pgvector, synchronous)


async def versions(sql: Blocks) -> SchemaVersions:
    """Return the schema versions that the last migration states, or NO_SCHEMA."""
    rows = await SetupStatement(sql["versions"], missing_ok=True)
    return SchemaVersions.of_row(rows[0][0], *rows[0][2:]) if rows else NO_SCHEMA


def needs_migration(found: SchemaVersions, use: SchemaUse) -> bool:
    """Return whether the schema must be created or migrated; see `engine.schema_versions`."""
    return schema_versions.needs_migration(found, use, database=DATABASE)


async def migrate(sql: Blocks, schema: str | None) -> int:
    """Create or migrate the schema, and return the version that it had. Run this in a transaction."""
    if schema is not None and not await SetupStatement(sql["schema-exists"], {"schema": schema}):
        await SetupStatement(sql["create-schema"])
    await SetupStatement(sql["schema-0"])
    await SetupStatement(sql["lock-schema"])
    found = (await versions(sql)).version
    schema_versions.check_released(found, DATABASE)
    for step in schema_versions.steps_after(found):
        await SetupStatement(sql["set-version"], {"version": step})
        for statement in sql[f"schema-{step}"].split(";"):
            if statement.strip():
                await SetupStatement(statement)
    return found


async def install_pgvector(sql: Blocks) -> str | None:
    """Try to install pgvector. Return the schema that it is installed in, or None."""
    await SetupStatement(sql["create-extension"], refusal_ok=True)
    found = await SetupStatement(sql["vector-schema"])
    return found[0][0] if found else None


def synchronous_commit(current: str, *, durability: str) -> str | None:
    """Return the synchronous_commit that our transactions must set, or None if the server's own setting is right."""
    if durability == "strict":
        return "on" if current == "off" else None
    return "off"
