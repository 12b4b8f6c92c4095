"""`SetupStatement`, which the set-up plans of `sqlite/setup.py` and `postgres/setup.py` await.

The plans decide. A transport executes their statements one by one, and puts a migration into a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from threadkeep.backends.sql.rows import Row, Values
from threadkeep.plan import WRITE, Access, Request
from threadkeep.value import field

Blocks = Mapping[str, str]


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
