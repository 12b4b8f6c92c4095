"""Setting up a SQLite file: its settings, its schema version and its migrations, as plans of statements."""

from __future__ import annotations

from threadkeep.backends.sql import setup
from threadkeep.backends.sql.setup import Blocks, SetupStatement

READABLE = 2
"""The oldest schema that can be read as it is: later ones only added views."""


async def settings(sql: Blocks) -> None:
    """Settings that are stored in the file: some only while it is empty. Turning WAL on may meet a lock."""
    if not await SetupStatement(sql["has-tables"]):
        await SetupStatement(sql["new-file-settings"])
    await SetupStatement(sql["journal-mode"])


async def version(sql: Blocks) -> int:
    """The version of the schema; 0 if there is none."""
    if not await SetupStatement(sql["has-schema"]):
        return 0
    rows = await SetupStatement(sql["version"])
    return int(rows[0][0]) if rows else 0


async def needs_migration(sql: Blocks, *, read_only: bool, database: str) -> bool:
    """Whether the schema has to be made or migrated; see `setup.needs_migration`."""
    found = await version(sql)
    return setup.needs_migration(found, readable=READABLE, read_only=read_only, database=database)


async def migrate(sql: Blocks, *, database: str) -> None:
    """Make the schema, or bring it up to date, unless others have done so. Inside an exclusive transaction."""
    found = await version(sql)
    if not setup.needs_migration(found, readable=READABLE, read_only=False, database=database):
        return
    if found == 0:
        await SetupStatement(sql["schema-table"])
    for step in range(found + 1, setup.SCHEMA_VERSION + 1):
        await SetupStatement(sql[f"schema-{step}"])
    await SetupStatement(sql["migrated"], {"version": setup.SCHEMA_VERSION})
