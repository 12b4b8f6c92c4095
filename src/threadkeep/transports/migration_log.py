"""The log line of a migration, under the name `threadkeep.schema`."""

from __future__ import annotations

import logging

from threadkeep.engine.schema_versions import SCHEMA_VERSION

_log = logging.getLogger("threadkeep.schema")


def log_migration(database: str, found: int) -> None:
    """Log that a storage was migrated from version `found`. Creating an empty one is not worth a line."""
    if 0 < found < SCHEMA_VERSION:
        _log.info("migrated %s from schema version %d to %d", database, found, SCHEMA_VERSION)
