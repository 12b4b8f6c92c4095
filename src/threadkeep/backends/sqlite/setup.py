"""Sets up a SQLite file: its settings, schema version and migrations, as plans of statements."""

from __future__ import annotations

from threadkeep.backends.sql import setup
from threadkeep.backends.sql.setup import Blocks, SetupStatement

READABLE = 5
"""The oldest schema version that can be read without a migration: version 5 added columns to threads."""


async def settings(sql: Blocks) -> None:
    """Change the settings that are stored in the file. Some take effect only while it is empty; WAL needs a lock."""
    if not await SetupStatement(sql["has-tables"]):
        await SetupStatement(sql["new-file-settings"])
    await SetupStatement(sql["journal-mode"])


async def version(sql: Blocks) -> int:
    """Return the schema version, or 0 if there is no schema."""
    if not await SetupStatement(sql["has-schema"]):
        return 0
    rows = await SetupStatement(sql["version"])
    return int(rows[0][0]) if rows else 0


async def needs_migration(sql: Blocks, *, read_only: bool, database: str) -> bool:
    """Return whether the schema must be created or migrated; see `backends.sql.setup.needs_migration`."""
    found = await version(sql)
    return setup.needs_migration(found, readable=READABLE, read_only=read_only, database=database)


async def migrate(sql: Blocks, *, database: str) -> None:
    """Create or migrate the schema, unless another process has done it. Run this in an exclusive transaction."""
    found = await version(sql)
    if not setup.needs_migration(found, readable=READABLE, read_only=False, database=database):
        return
    if found == 0:
        await SetupStatement(sql["schema-table"])
    for step in range(found + 1, setup.SCHEMA_VERSION + 1):
        await SetupStatement(sql[f"schema-{step}"])
    await SetupStatement(sql["set-version"], {"version": setup.SCHEMA_VERSION})
