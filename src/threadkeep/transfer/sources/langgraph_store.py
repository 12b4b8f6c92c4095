"""Memories of LangGraph's SQL stores, SqliteStore, PostgresStore and the MySQL stores, whose tables are the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from threadkeep.engine.memories import json_text
from threadkeep.engine.memories.requests import MemoryRow
from threadkeep.transfer.sources.rows import Rows, paged
from threadkeep.transfer.sources.source import ForeignMemory, UnreadableError, microseconds, parse_time


def foreign_memory(
    prefix: str,
    key: str,
    value: Any,
    created: Any,
    updated: Any,
    expires: Any,
    ttl: Any,
    *,
    vectors: tuple[bytes, ...] = (),
) -> ForeignMemory | UnreadableError:
    """Return a memory from its columns, or the error why it cannot be read."""
    try:
        text = json_text.dump(json.loads(value) if isinstance(value, (str, bytes)) else value)
        row = MemoryRow(
            tuple(prefix.split(".")), key, text, _time(created), _time(updated),
            _time(expires) if expires is not None else None, float(ttl) if ttl is not None else None,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        return UnreadableError(f"memory {key!r} of {prefix!r}: {error}")
    if not all(row.namespace):
        return UnreadableError(f"memory {key!r} of {prefix!r}: a segment of its namespace is empty")
    return ForeignMemory(row, vectors)


def _time(given: Any) -> int:
    time = given if isinstance(given, datetime) else parse_time(given)
    if time is None:
        raise ValueError(f"{given!r} is not a time")
    return microseconds(time)


class StoreTableMemories:
    """The memories of a SQL store.

    `query` reads a page of them after a prefix and a key, or after the values that `after` makes of these; `{ttl}`
    stands for the columns of times to live, which old tables lack. `vectors` reads the vectors of one memory, which
    `as_vector` packs.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        query: str,
        vectors: str = "",
        as_vector: Callable[[Any], bytes] = bytes,
        after: Callable[[str, str], Sequence[Any]] = lambda prefix, key: (prefix, key),
    ) -> None:
        has_ttl = {"expires_at", "ttl_minutes"} <= rows.tables["store"]
        self._rows = rows
        self._query = query.format(ttl="expires_at, ttl_minutes" if has_ttl else "NULL, NULL")
        self._has_vectors = {"prefix", "key", "embedding"} <= rows.tables.get("store_vectors", set())
        self._vectors, self._as_vector, self._after = vectors, as_vector, after

    def count(self) -> int:
        """Return the number of memories."""
        return int(self._rows.all("SELECT count(*) FROM store")[0][0])

    def has_vectors(self) -> bool:
        """Whether the source has vectors for any of them."""
        return self._has_vectors and bool(self._rows.all("SELECT 1 FROM store_vectors LIMIT 1"))

    def rows(self) -> Iterator[ForeignMemory | UnreadableError]:
        """Read all memories. One that cannot be read comes as its error."""
        for row in paged(self._rows, self._query, lambda last: self._after(last[0], last[1]), self._after("", "")):
            yield foreign_memory(*row, vectors=self._embedded(row[0], row[1]))

    def _embedded(self, prefix: str, key: str) -> tuple[bytes, ...]:
        if not self._has_vectors:
            return ()
        found = self._rows.all(self._vectors, (prefix, key))
        return tuple(self._as_vector(vector) for (vector,) in found if vector is not None)
