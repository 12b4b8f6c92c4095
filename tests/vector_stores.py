"""Shelves: stores on PostgreSQL, full of memories whose vectors are known, so that what is nearest can be told by numpy.

The text of a memory is the number of a row; so is a query. Rows lie in clusters, as those of real texts do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from langgraph.store.base import PutOp
from numpy.typing import NDArray

import postgres_servers
import threadkeep
from threadkeep.transports.postgres_cursor import PostgresCursor

PATIENCE = 30
"""Seconds after which an index counts as never made."""


class Book(NamedTuple):
    """A memory, and the rows that are its vectors."""

    namespace: tuple[str, ...]
    key: str
    rows: tuple[int, ...]
    kind: int = 0
    ttl: float | None = None

    @property
    def value(self) -> dict[str, Any]:
        return {
            "rows": [str(row) for row in self.rows],
            "kind": self.kind,
            "deep": {"b": {"c": {"d": {"e": self.kind}}}},
        }

    @property
    def put(self) -> PutOp:
        return PutOp(self.namespace, self.key, self.value, ttl=self.ttl)


def clustered(count: int, dims: int = 32, *, clusters: int = 40, seed: int = 5) -> NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    middles = draw.normal(size=(clusters, dims))
    return (middles[draw.integers(clusters, size=count)] + 0.7 * draw.normal(size=(count, dims))).astype(np.float32)


def around(middle: Sequence[float], count: int, *, seed: int = 5) -> NDArray[np.float32]:
    """Rows that are close together."""
    draw = np.random.default_rng(seed)
    return (np.asarray(middle) + 0.01 * draw.normal(size=(count, len(middle)))).astype(np.float32)


@dataclass
class Shelf:
    """A schema of a database, the rows that texts mean, and the measure by which they are compared."""

    rows: NDArray[np.float32]
    measure: str = "cosine"
    database: str = "postgres"
    role: str = "postgres"
    options: dict[str, str] = field(default_factory=dict)
    schema: str = field(default_factory=lambda: f"t_{uuid.uuid4().hex}")
    server: postgres_servers.Server = field(default_factory=postgres_servers.shared)

    @property
    def dims(self) -> int:
        return self.rows.shape[1]

    @property
    def url(self) -> str:
        return self.server.url(self.database, schema=self.schema, **self.options).replace("postgres@", f"{self.role}@")

    def open(self, most: int, *, url: str | None = None, **options: Any) -> threadkeep.Keep:
        """A Keep that holds so many vectors itself, here or at another URL."""
        index: Any = {
            "dims": self.dims, "embed": self.embed, "fields": ["rows[*]"], "distance_type": self.measure,
        }  # fmt: skip
        return threadkeep.open(url or self.url, index=index, cache_bytes=8 * self.dims * most, **options)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.rows[[int(text) for text in texts]].tolist()

    def nearness(self, query: int) -> NDArray[np.float64]:
        """Scores of all rows, exactly."""
        rows, asked = self.rows.astype(np.float64), self.rows[query].astype(np.float64)
        if self.measure == "l2":
            return -np.linalg.norm(rows - asked, axis=1)
        if self.measure == "cosine":
            rows, asked = rows / np.linalg.norm(rows, axis=1, keepdims=True), asked / np.linalg.norm(asked)
        return rows @ asked

    def nearest(self, query: int, books: Iterable[Book], limit: int = 10) -> dict[str, float]:
        """The keys and scores of the books that are nearest."""
        near = self.nearness(query)
        scored = {book.key: float(near[list(book.rows)].max()) for book in books}
        return dict(sorted(scored.items(), key=lambda pair: -pair[1])[:limit])

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """By the owner of the server; {schema} is the shelf's."""
        import psycopg

        with psycopg.connect(self.server.url(self.database), autocommit=True) as connection:
            cursor = connection.execute(sql.replace("{schema}", self.schema).encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def index(self) -> str:
        return f"tk_vectors_{self.measure}_{self.dims}"

    def indexes(self) -> list[bool]:
        """Of all indexes of vectors, whether they are whole."""
        return [
            row[0]
            for row in self.execute(
                "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam"
                " WHERE a.amname = 'hnsw' AND i.indrelid = '{schema}.tk_vectors'::regclass"
            )
        ]

    def await_index(self) -> None:
        assert until(lambda: self.indexes() == [True]), self.indexes()

    def fresh_database(self) -> None:
        """Be in another database, without pgvector."""
        self.database = f"d_{uuid.uuid4().hex}"
        self.server.execute(f"CREATE DATABASE {self.database}")

    def ordinary_role(self) -> None:
        """Be somebody who may make schemas, but no extensions."""
        self.role = f"r_{uuid.uuid4().hex}"
        self.server.execute(f"CREATE ROLE {self.role} LOGIN")
        self.server.execute(f"GRANT CREATE ON DATABASE {self.database} TO {self.role}")


def fill(keep: threadkeep.Keep, books: Sequence[Book]) -> None:
    for start in range(0, len(books), 500):
        keep.store.batch([book.put for book in books[start : start + 500]])


def found(keep: threadkeep.Keep, prefix: tuple[str, ...], query: int, **options: Any) -> dict[str, float]:
    """Keys and scores, in the order in which they come."""
    items = keep.store.search(prefix, query=str(query), **options)
    scores = {item.key: item.score for item in items}
    assert len(scores) == len(items), "an item comes twice"
    return scores


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not (done := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return done


class Watched:
    """How the database goes about each statement that compares vectors."""

    def __init__(self, monkeypatch: Any) -> None:
        self.plans: list[str] = []
        rows = PostgresCursor.rows

        def watched(cursor: PostgresCursor, sql: str, values: Any = None) -> list[Any]:
            if "OPERATOR(" in sql and sql.lstrip().startswith("SELECT"):
                self.plans.append("\n".join(row[0] for row in rows(cursor, "EXPLAIN " + sql, values)))
            return rows(cursor, sql, values)

        monkeypatch.setattr(PostgresCursor, "rows", watched)

    def by_index(self, name: str) -> bool:
        """Whether all statements since the last time used this index."""
        plans, self.plans = self.plans, []
        return bool(plans) and all(f"Index Scan using {name}" in plan for plan in plans)
