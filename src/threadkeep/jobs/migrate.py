"""Migrate the storage to the schema version of this threadkeep, or report what a migration would do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from threadkeep.engine.schema_versions import SCHEMA_VERSION, SchemaUse, SchemaVersions, needs_migration
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import Work, read


@dataclass(frozen=True, slots=True)
class MigrateResult:
    """The schema version of the storage, 0 if it had no tables, and the version of this threadkeep.

    `needed` says whether the storage has an older version than this threadkeep creates. `migrated` says whether it was
    migrated now.
    """

    found: int
    current: int
    needed: bool
    migrated: bool

    __repr__ = short_repr


def migrate(session: Session, *, dry_run: bool = False) -> Work[MigrateResult]:
    """Create or migrate the tables of the storage now, also if the Keep was opened with `migrate=False`.

    A migration is one transaction: it is made completely or not at all. With `dry_run`, only report the versions. Raise
    SchemaTooNew if a later threadkeep wrote the storage, ReadOnly if the Keep is read-only.
    """
    found = yield from read(partial(_load_versions, session))
    needed = needs_migration(found, SchemaUse(), database="the storage")
    if needed and not dry_run:
        yield from read(partial(_migrate, session))
    return MigrateResult(found.version, SCHEMA_VERSION, needed, needed and not dry_run)


async def _load_versions(session: Session) -> SchemaVersions:
    return session.transport.schema()


async def _migrate(session: Session) -> None:
    session.transport.migrate()
