"""Sets up PostgreSQL: schema version, migrations, pgvector and synchronous commits, as plans of statements."""

from __future__ import annotations

from threadkeep.backends.sql.setup import Blocks, SetupStatement
from threadkeep.engine import schema_versions
from threadkeep.engine.schema_versions import NO_SCHEMA, SchemaUse, SchemaVersions

DATABASE = "the database"


async def versions(sql: Blocks) -> SchemaVersions:
    """Return the schema versions that the last migration states, or NO_SCHEMA."""
    rows = await SetupStatement(sql["versions"], missing_ok=True)
    return SchemaVersions.of_row(rows[0][0], *rows[0][2:]) if rows else NO_SCHEMA


async def first_look(sql: Blocks, use: SchemaUse) -> tuple[bool, str | None]:
    """Return whether the schema must be created or migrated, and the server's synchronous_commit if it has the schema.

    See `engine.schema_versions`. One statement.
    """
    rows = await SetupStatement(sql["first-look"], missing_ok=True)
    found = SchemaVersions.of_row(rows[0][1], *rows[0][3:]) if rows else NO_SCHEMA
    current = rows[0][0] if rows else None
    return schema_versions.needs_migration(found, use, database=DATABASE), current


async def migrate(sql: Blocks, schema: str | None) -> int:
    """Create or migrate the schema, and return the version that it had.

    Run this in a transaction; inserting a version's row is the lock.
    """
    if schema is not None and not await SetupStatement(sql["schema-exists"], {"schema": schema}):
        await SetupStatement(sql["create-schema"])
    await SetupStatement(sql["schema-0"])
    found = (await versions(sql)).version
    for step in range(found + 1, schema_versions.SCHEMA_VERSION + 1):
        await SetupStatement(sql["set-version"], {"version": step})
        for statement in sql[f"schema-{step}"].split(";"):
            if statement.strip():
                await SetupStatement(statement)
    return found


async def find_pgvector(sql: Blocks, *, wanted: bool) -> str | None:
    """Return the schema that pgvector is installed in, or None. If it is `wanted` and missing, try to install it."""
    found = await SetupStatement(sql["vector-schema"])
    if not found and wanted:
        await SetupStatement(sql["create-extension"], refusal_ok=True)
        found = await SetupStatement(sql["vector-schema"])
    return found[0][0] if found else None


async def synchronous_commit(sql: Blocks, *, durability: str, current: str | None) -> str | None:
    """Return the synchronous_commit that our transactions must set, or None if the server's own setting is right.

    `current` is the server's setting; if it is None, one statement asks for it.
    """
    if current is None:
        current = (await SetupStatement(sql["synchronous-commit"]))[0][0]
    if durability == "strict":
        return "on" if current == "off" else None
    return "off"
