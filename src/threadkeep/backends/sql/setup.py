"""Schema versions: which ones this code can use, and `SetupStatement`, which the set-up plans await.

The plans are in `sqlite/setup.py` and `postgres/setup.py`. They decide. A transport executes their statements one by
one, and puts a migration into a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from threadkeep.backends.sql.rows import Row, Values
from threadkeep.errors import SchemaTooNew, Unavailable
from threadkeep.plan import WRITE, Access, Request

SCHEMA_VERSION = 5
"""The schema version that this code creates. The block `schema-<n>` migrates from version n - 1 to version n."""

Blocks = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetupStatement(Request[list[Row]]):
    """Execute one statement; the reply is its rows.

    With `missing_ok`, a missing table or schema gives no rows. With `refusal_ok`, a refusal by the database gives no
    rows; a lost connection is an error all the same.
    """

    access: ClassVar[Access] = WRITE
    sql: str
    values: Values = field(default_factory=dict)
    missing_ok: bool = False
    refusal_ok: bool = False


def needs_migration(found: int, *, readable: int, read_only: bool, database: str) -> bool:
    """Return whether a database with schema version `found` (0 if it has none) must be migrated before use.

    Raise SchemaTooNew if a later threadkeep made it. Raise Unavailable if it is `read_only` and older than `readable`,
    the oldest version that can be read without a migration.
    """
    if found > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{database} has schema version {found}, but this threadkeep supports versions up to {SCHEMA_VERSION}: "
            "upgrade threadkeep"
        )
    if read_only and found < readable:
        problem = f"has the old schema version {found}" if found else "has no threadkeep tables"
        remedy = "migrate it" if found else "create them"
        raise Unavailable(f"{database} {problem}: open it once without read_only to {remedy}")
    return found < SCHEMA_VERSION and not read_only
