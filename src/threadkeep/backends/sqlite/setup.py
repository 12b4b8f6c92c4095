"""Sets up a SQLite file: its settings, schema version and migrations, as plans of statements."""

from __future__ import annotations

from threadkeep.backends.sql.setup import Blocks, SetupStatement
from threadkeep.engine import schema_versions
from threadkeep.engine.schema_versions import NO_SCHEMA, SchemaUse, SchemaVersions


async def settings(sql: Blocks, found: SchemaVersions) -> None:
    """Change the settings that are stored in the file. Some take effect only while it is empty; WAL needs a lock."""
    if found == NO_SCHEMA and not await SetupStatement(sql["has-tables"]):
        await SetupStatement(sql["new-file-settings"])
    await SetupStatement(sql["journal-mode"])


async def versions(sql: Blocks) -> SchemaVersions:
    """Return the schema versions that the file states, or NO_SCHEMA if it does not have our tables. One statement."""
    rows = await SetupStatement(sql["versions"], missing_ok=True)
    return SchemaVersions.of_row(*rows[0]) if rows else NO_SCHEMA


async def migrate(sql: Blocks, *, database: str) -> int:
    """Create or migrate the schema, unless another process has done it. Return the version that it had.

    Run this in an exclusive transaction.
    """
    found = await versions(sql)
    if not schema_versions.needs_migration(found, SchemaUse(), database=database):
        return schema_versions.SCHEMA_VERSION
    if found == NO_SCHEMA:
        await SetupStatement(sql["schema-table"])
    for step in schema_versions.steps_after(found.version):
        await SetupStatement(sql[f"schema-{step}"])
    await SetupStatement(sql["set-version"], {"version": schema_versions.SCHEMA_VERSION})
    return found.version
