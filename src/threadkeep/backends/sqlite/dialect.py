"""The SQLite dialect: the database assigns thread numbers, and item ranges are stored as packed bytes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.backends import sql, sqlite
from threadkeep.backends.sql.backend import SqlBackend, SqlContext
from threadkeep.backends.sql.rows import Row
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import ItemRange

if TYPE_CHECKING:
    from threadkeep.engine.memories.filters import FilterNode

_TERMS = 64
"""So many terms are looked for at once."""
_TERM_ROWS = 50_000
"""So many entries of the index of terms are checked at once."""


class SqliteDialect(SqlBackend):
    """SQLite. It uses the shared statements one by one, since each costs only microseconds."""

    files = (
        "sql/common.sql",
        "sql/memories.sql",
        "sql/health.sql",
        "sql/tenants.sql",
        "sql/search.sql",
        "sqlite/blocks.sql",
        "sqlite/memories.sql",
        "sqlite/tenants.sql",
        "sqlite/search.sql",
        "sqlite/views.sql",
    )

    def thread_number(self, key: ThreadKey) -> None:
        """Return None: the database assigns the number when the thread is created."""

    def pack_refs(self, ranges: Iterable[ItemRange]) -> bytes:
        """Return item ranges as varints."""
        return itemlog.pack_ranges(tuple(ranges))

    def unpack_refs(self, stored: bytes) -> tuple[ItemRange, ...]:
        """Read item ranges from varints."""
        return itemlog.unpack_ranges(stored)

    def fetch_checkpoint(self, db: SqlContext, number: int, ns: bytes, id: bytes | None) -> Row | None:
        """Return a checkpoint in one statement, also the latest: the table is its own index."""
        values = {"thread": number, "ns": ns, "id": id}
        rows = db.cursor.rows(self.sql["checkpoint" if id is not None else "latest-row"], values)
        return rows[0] if rows else None

    def check_plain(self, db: SqlContext, tenant: str) -> None:
        """Do nothing: triggers refuse what is not encrypted."""

    def refuse_plain(self, db: SqlContext) -> None:
        """Create the triggers, unless they exist."""
        db.rows("refuse-plain")

    def run_script(self, db: SqlContext, block: str, **values: Any) -> None:
        """Run the statements of a block in one call: those of triggers cannot be told apart by their semicolons."""
        db.cursor.rows(self.sql[block], values)

    def match_values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return expressions of FTS5: all words; and one of them repeated, too. No word has quotation marks."""
        match = " AND ".join(f'"{word}"' for word in words)
        repeated = " OR ".join(f'"{word}{sql.search.REPEATED}"' for word in words)
        return {"match": match, "match_repeated": f"{match} AND ({repeated})"}

    def leads_to_document(self, db: SqlContext, terms: Collection[str], evidence: Any) -> bool:
        """Return whether all these terms lead to the document with this number. Others are found by `term_rows`."""
        listed = sorted(terms)
        matches = (" AND ".join(map('"{}"'.format, listed[n : n + _TERMS])) for n in range(0, len(listed), _TERMS))
        return all(db.rows("has-terms", match=match, doc=evidence) for match in matches)

    def term_rows(self, db: SqlContext, term: str, skip: int) -> list[Row]:
        """Return terms of the index, in their order."""
        return db.rows("search-terms", term=term, skip=skip, limit=_TERM_ROWS)

    def list_value(self, texts: Sequence[str]) -> str:
        """Return a list as JSON."""
        return json.dumps(texts)

    def prefilter(self, filter: FilterNode) -> tuple[str, dict[str, Any]]:
        """Use SQLite's JSON functions on the stored text."""
        condition, operands = sqlite.filters.condition(filter, "m.value")
        return sql.filters.name_parameters(condition, "?", operands)
