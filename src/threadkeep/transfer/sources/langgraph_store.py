"""Memories as LangGraph's SQL stores have them, whose tables are the same: read into rows of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from threadkeep.engine import values
from threadkeep.engine.memories import MemoryRow
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
    """A memory from its columns; why not, if it is none."""
    try:
        text = values.dump(json.loads(value) if isinstance(value, (str, bytes)) else value)
        row = MemoryRow(
            tuple(prefix.split(".")), key, text, _time(created), _time(updated),
            _time(expires) if expires is not None else None, float(ttl) if ttl is not None else None,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        return UnreadableError(f"memory {key!r} of {prefix!r}: {error}")
    if not all(row.space):
        return UnreadableError(f"memory {key!r} of {prefix!r}: a segment of its namespace is empty")
    return ForeignMemory(row, vectors)


def _time(given: Any) -> int:
    time = given if isinstance(given, datetime) else parse_time(given)
    if time is None:
        raise ValueError(f"{given!r} is no time")
    return microseconds(time)


class Rows(Protocol):
    """Tables of another database, read page by page."""

    tables: dict[str, set[str]]

    def all(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""

    def paged(self, query: str, key: Callable[[Any], Sequence[Any]], start: Sequence[Any]) -> Iterator[Any]:
        """The rows of a query that takes the key of the last row of the page before."""


class StoredMemories:
    """The memories of a SqliteStore or a PostgresStore, whose tables are the same.

    `query` asks for a page of them, `{ttl}` being where times to live stand or would stand; `vectors` for those of one,
    which `as_vector` packs.
    """

    def __init__(self, rows: Rows, *, query: str, vectors: str, as_vector: Callable[[Any], bytes]) -> None:
        has_ttl = {"expires_at", "ttl_minutes"} <= rows.tables["store"]
        self._rows = rows
        self._query = query.format(ttl="expires_at, ttl_minutes" if has_ttl else "NULL, NULL")
        self._has_vectors = {"prefix", "key", "embedding"} <= rows.tables.get("store_vectors", set())
        self._vectors, self._as_vector = vectors, as_vector

    def count(self) -> int:
        """How many there are."""
        return int(self._rows.all("SELECT count(*) FROM store")[0][0])

    def has_vectors(self) -> bool:
        """Whether any was embedded."""
        return self._has_vectors and bool(self._rows.all("SELECT 1 FROM store_vectors LIMIT 1"))

    def rows(self) -> Iterator[ForeignMemory | UnreadableError]:
        """All of them."""
        for row in self._rows.paged(self._query, lambda last: last[:2], ("", "")):
            yield foreign_memory(*row, vectors=self._embedded(row[0], row[1]))

    def _embedded(self, prefix: str, key: str) -> tuple[bytes, ...]:
        if not self._has_vectors:
            return ()
        found = self._rows.all(self._vectors, (prefix, key))
        return tuple(self._as_vector(vector) for (vector,) in found if vector is not None)
