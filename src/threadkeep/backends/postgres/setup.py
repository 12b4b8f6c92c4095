"""Sets up PostgreSQL: schema version, migrations, pgvector and synchronous commits, as plans of statements."""

from __future__ import annotations

from threadkeep.backends.sql import setup
from threadkeep.backends.sql.setup import Blocks, SetupStatement

READABLE = 5
"""The oldest schema version that can be read without a migration: version 5 added columns to threads."""


async def needs_migration(sql: Blocks, *, read_only: bool) -> bool:
    """Return whether the schema must be created or migrated; see `backends.sql.setup.needs_migration`."""
    rows = await SetupStatement(sql["version"], missing_ok=True)
    found = rows[0][0] if rows else 0
    return setup.needs_migration(found, readable=READABLE, read_only=read_only, database="the database")


async def migrate(sql: Blocks, schema: str | None) -> None:
    """Create or migrate the schema. Run this in a transaction; inserting a version's row is the lock."""
    if schema is not None and not await SetupStatement(sql["schema-exists"], {"schema": schema}):
        await SetupStatement(sql["create-schema"])
    await SetupStatement(sql["schema-0"])
    found = (await SetupStatement(sql["version"]))[0][0]
    for step in range(found + 1, setup.SCHEMA_VERSION + 1):
        await SetupStatement(sql["set-version"], {"version": step})
        for statement in sql[f"schema-{step}"].split(";"):
            if statement.strip():
                await SetupStatement(statement)


async def find_pgvector(sql: Blocks, *, wanted: bool) -> str | None:
    """Return the schema that pgvector is installed in, or None. If it is `wanted` and missing, try to install it."""
    found = await SetupStatement(sql["vector-schema"])
    if not found and wanted:
        await SetupStatement(sql["create-extension"], refusal_ok=True)
        found = await SetupStatement(sql["vector-schema"])
    return found[0][0] if found else None


async def synchronous_commit(sql: Blocks, *, durability: str) -> str | None:
    """Return the synchronous_commit that our transactions must set, or None if the server's own setting is right."""
    current = (await SetupStatement(sql["synchronous-commit"]))[0][0]
    if durability == "strict":
        return "on" if current == "off" else None
    return "off"
