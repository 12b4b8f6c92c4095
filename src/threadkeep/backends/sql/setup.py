"""Setting up an SQL database: which schema versions this code can use, and the statement that set-up plans await.

The plans are in `sqlite_setup` and `postgres_setup`. They decide; a transport executes their statements one by one and
puts the transaction around a migration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from threadkeep.backends.sql.rows import Row, Values
from threadkeep.errors import SchemaTooNew, Unavailable
from threadkeep.plan import WRITE, Access, Request

SCHEMA_VERSION = 4
"""The schema that this code makes. A block `schema-<n>` leads from the version before to version n."""

Blocks = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetupStatement(Request[list[Row]]):
    """One statement; its reply is its rows.

    With `missing_ok` there are no rows if a table or a schema is missing. With `refusal_ok` there are none if the
    database refuses; a connection that is lost is an error all the same.
    """

    access: ClassVar[Access] = WRITE
    sql: str
    values: Values = field(default_factory=dict)
    missing_ok: bool = False
    refusal_ok: bool = False


def needs_migration(found: int, *, readable: int, read_only: bool, database: str) -> bool:
    """Whether a database whose schema is `found` (0 if it has none) has to be migrated before it is used.

    SchemaTooNew if it comes from a later threadkeep. Unavailable if it is `read_only` and older than `readable`, the
    oldest schema that can be read as it is.
    """
    if found > SCHEMA_VERSION:
        raise SchemaTooNew(f"{database} has schema {found}, this threadkeep knows {SCHEMA_VERSION}; upgrade threadkeep")
    if read_only and found < readable:
        tables = "old" if found else "no"
        raise Unavailable(f"{database} has {tables} tables of threadkeep; open it once without read_only to make them")
    return found < SCHEMA_VERSION and not read_only
