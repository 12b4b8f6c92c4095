"""The rows of another database, whole or page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol


class Rows(Protocol):
    """The tables of another database."""

    tables: dict[str, set[str]]

    def all(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""


def paged(rows: Rows, query: str, key: Callable[[Any], Sequence[Any]], start: Sequence[Any]) -> Iterator[Any]:
    """Read the rows of a query page by page. It takes the key of the last row of the page before."""
    while page := rows.all(query, start):
        yield from page
        start = key(page[-1])
