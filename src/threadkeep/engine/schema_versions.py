"""Schema versions: which stored forms this code can use, and whether a storage must be migrated first.

The version of a storage is stored in it, with the oldest versions whose code can read and write it. So code that is
older than a storage can still use it, if the storage says so.
"""

from __future__ import annotations

from typing import NamedTuple

from threadkeep.errors import SchemaTooNew, SchemaTooOld

SCHEMA_VERSION = 8
"""The schema version that this code creates."""
STEPS = (1, 2, 3, 4, 8)
"""The versions that a new database goes through: the block `schema-<n>` leads to version n from the one before. One for
each release; 5 to 7 were in development only."""
RELEASED = {"0.1.0": 4, "0.2.0": 8}
"""The schema version of each release. From 0.2.0 on, a release reads and writes the tables of the one before without a
migration, so that `migrate=False` can be upgraded step by step: OLDEST_USABLE is not later than its version."""
OLDEST_USABLE = 8
"""The oldest schema version that this code can read and write without a migration: 8 added columns for encryption."""


class SchemaVersions(NamedTuple):
    """What the schema row states: its version, and the oldest schema versions whose code can read and write it."""

    version: int
    readable: int
    writable: int

    @classmethod
    def of_row(cls, version: int, readable: int | None = None, writable: int | None = None) -> SchemaVersions:
        """Return the versions of a row. Before version 8 the row had the version only."""
        return cls(version, readable or version, writable or version)


NO_SCHEMA = SchemaVersions(0, 0, 0)


class SchemaUse(NamedTuple):
    """How a Keep wants to use a database: read-only or not, and whether it may migrate it."""

    read_only: bool = False
    migrate: bool = True


def needs_migration(found: SchemaVersions, use: SchemaUse, *, database: str) -> bool:
    """Return whether a storage must be created or migrated before use. NO_SCHEMA if it has no tables.

    Raise SchemaTooNew or SchemaTooOld if it cannot be used.
    """
    if found.version > SCHEMA_VERSION:
        _check_later(found, use, database)
        return False
    if found.version == SCHEMA_VERSION:
        return False
    check_released(found.version, database)
    if use.migrate and not use.read_only:
        return True
    if found.version < OLDEST_USABLE:
        raise SchemaTooOld(f"{database} {_too_old(found.version)}")
    return False


def _check_later(found: SchemaVersions, use: SchemaUse, database: str) -> None:
    """SchemaTooNew if a later threadkeep made the storage, and the storage does not say that this one can use it."""
    if (found.readable if use.read_only else found.writable) <= SCHEMA_VERSION:
        return
    remedy = "upgrade threadkeep" + (", or open it with read_only=True" if found.readable <= SCHEMA_VERSION else "")
    raise SchemaTooNew(
        f"{database} has schema version {found.version}, but this threadkeep supports versions up to {SCHEMA_VERSION}: "
        f"{remedy}"
    )


def steps_after(version: int) -> tuple[int, ...]:
    """Return the versions through which a database is migrated."""
    return tuple(step for step in STEPS if version < step <= SCHEMA_VERSION)


def check_released(version: int, database: str) -> None:
    """Raise SchemaTooOld if a storage cannot be migrated, because it was written by a version in development."""
    if version not in (0, *STEPS):
        raise SchemaTooOld(
            f"{database} has schema version {version}, which no released threadkeep had: export it with the threadkeep "
            "that wrote it, and import the portable file"
        )


def _too_old(version: int) -> str:
    if not version:
        return "has no threadkeep tables: run `threadkeep migrate`, or open it without read_only, to create them"
    return f"has the old schema version {version}; this threadkeep uses {SCHEMA_VERSION}: run `threadkeep migrate`"
