"""Stores on PostgreSQL whose vectors are known, so that numpy can compute the exact nearest neighbours.

The text of a document is the number of a row in a matrix of vectors; so is a query. Rows are clustered, as vectors of
real texts are.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from langgraph.store.base import PutOp
from numpy.typing import NDArray

import postgres_servers
import threadkeep
from threadkeep.transports.postgres_cursor import PostgresCursor

TIMEOUT = 30
"""Seconds to wait for an index."""


class Document(NamedTuple):
    """A memory and the rows that are its vectors."""

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
    """Return rows that are close together."""
    draw = np.random.default_rng(seed)
    return (np.asarray(middle) + 0.01 * draw.normal(size=(count, len(middle)))).astype(np.float32)


@dataclass
class VectorStore:
    """A database schema, the vectors that texts stand for, and their distance type."""

    rows: NDArray[np.float32]
    distance: str = "cosine"
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
        """Open a Keep that caches up to this many vectors, here or at another URL."""
        index: Any = {
            "dims": self.dims, "embed": self.embed, "fields": ["rows[*]"], "distance_type": self.distance,
        }  # fmt: skip
        return threadkeep.open(url or self.url, index=index, cache_bytes=8 * self.dims * most, **options)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.rows[[int(text) for text in texts]].tolist()

    def scores(self, query: int) -> NDArray[np.float64]:
        """Return the exact scores of all rows."""
        rows, wanted = self.rows.astype(np.float64), self.rows[query].astype(np.float64)
        if self.distance == "l2":
            return -np.linalg.norm(rows - wanted, axis=1)
        if self.distance == "cosine":
            rows, wanted = rows / np.linalg.norm(rows, axis=1, keepdims=True), wanted / np.linalg.norm(wanted)
        return rows @ wanted

    def nearest(self, query: int, books: Iterable[Document], limit: int = 10) -> dict[str, float]:
        """Return keys and scores of the nearest documents."""
        near = self.scores(query)
        scored = {book.key: float(near[list(book.rows)].max()) for book in books}
        return dict(sorted(scored.items(), key=lambda pair: -pair[1])[:limit])

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a statement as the server's owner. `{schema}` stands for this schema."""
        import psycopg

        with psycopg.connect(self.server.url(self.database), autocommit=True) as connection:
            cursor = connection.execute(sql.replace("{schema}", self.schema).encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def index(self) -> str:
        return f"tk_vectors_{self.distance}_{self.dims}"

    def indexes(self) -> list[bool]:
        """Return for each vector index whether it is valid."""
        return [
            row[0]
            for row in self.execute(
                "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
                " JOIN pg_am a ON a.oid = c.relam"
                " WHERE a.amname = 'hnsw' AND i.indrelid = '{schema}.tk_vectors'::regclass"
            )
        ]

    def wait_for_index(self) -> None:
        assert postgres_servers.wait_until(lambda: self.indexes() == [True], TIMEOUT), self.indexes()

    def fresh_database(self) -> None:
        """Move to a new database without pgvector."""
        self.database = f"d_{uuid.uuid4().hex}"
        self.server.execute(f"CREATE DATABASE {self.database}")

    def ordinary_role(self) -> None:
        """Switch to a role that may create schemas but no extensions."""
        self.role = f"r_{uuid.uuid4().hex}"
        self.server.execute(f"CREATE ROLE {self.role} LOGIN")
        self.server.execute(f"GRANT CREATE ON DATABASE {self.database} TO {self.role}")


def put_documents(keep: threadkeep.Keep, books: Sequence[Document]) -> None:
    for start in range(0, len(books), 500):
        keep.store.batch([book.put for book in books[start : start + 500]])


def search(keep: threadkeep.Keep, prefix: tuple[str, ...], query: int, **options: Any) -> dict[str, float]:
    """Return keys and scores, in result order."""
    items = keep.store.search(prefix, query=str(query), **options)
    scores = {item.key: item.score for item in items}
    assert len(scores) == len(items), "an item occurs twice"
    return scores


class QueryPlans:
    """Records the query plan of each statement that compares vectors."""

    def __init__(self, monkeypatch: Any) -> None:
        self.plans: list[str] = []
        rows = PostgresCursor.rows

        def watched(cursor: PostgresCursor, sql: str, values: Any = None) -> list[Any]:
            if "OPERATOR(" in sql and sql.lstrip().startswith("SELECT"):
                self.plans.append("\n".join(row[0] for row in rows(cursor, "EXPLAIN " + sql, values)))
            return rows(cursor, sql, values)

        monkeypatch.setattr(PostgresCursor, "rows", watched)

    def by_index(self, name: str) -> bool:
        """Return whether all statements since the last call used this index."""
        plans, self.plans = self.plans, []
        return bool(plans) and all(f"Index Scan using {name}" in plan for plan in plans)
