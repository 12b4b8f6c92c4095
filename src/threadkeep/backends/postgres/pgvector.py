"""Vector search by pgvector: an index ranks the vectors of a partition that is too large for a client to hold.

Vectors are stored as arrays of numbers either way; the index is on their cast to pgvector's type. All of pgvector's
names are written with their schema, so nothing depends on the search path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep.backends.sql.memories import load_vector_changes as load_all_changes
from threadkeep.backends.sql.memories import memory_conditions
from threadkeep.backends.sql.rows import Row
from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.memories.filters import EVERYTHING
from threadkeep.engine.memories.namespaces import partition_number
from threadkeep.engine.memories.requests import (
    CreateVectorIndex,
    ListMemories,
    LoadVectorChanges,
    NearestMemories,
    PartitionChanges,
    Scored,
    SearchVectors,
)

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext

_FEW = 10_000
"""Up to so many memories are compared one by one."""
_FIELDS_PER_MEMORY, _MAX_CANDIDATES = 4, 20_000
"""A query to the index asks for so many vectors per memory that is wanted, and for at most so many vectors."""
_MIN_EF_SEARCH, _MAX_EF_SEARCH = 200, 1_000
"""Bounds of pgvector's setting hnsw.ef_search."""
_MAX_INDEXED_DIMS, _MAX_HALF_DIMS, _MAX_DIMS = 2_000, 4_000, 16_000
"""Dimensions of an indexed vector, of one indexed at half precision, and of any vector."""
_QUERY = ":query::real[]"


class _Metric(NamedTuple):
    operator: str
    operator_class: str
    score_is_one_minus_distance: bool


_METRICS = {
    "cosine": _Metric("<=>", "cosine_ops", score_is_one_minus_distance=True),
    "inner_product": _Metric("<#>", "ip_ops", score_is_one_minus_distance=False),
    "l2": _Metric("<->", "l2_ops", score_is_one_minus_distance=False),
}


def can_index(dims: int, metric: str) -> bool:
    """Return whether such vectors can be indexed.

    Longer ones are indexed at half precision, which works for cosine only: they are normalized to length 1 first.
    """
    return dims <= _MAX_INDEXED_DIMS or (dims <= _MAX_HALF_DIMS and metric == "cosine")


def index_parts(request: CreateVectorIndex, schema: str) -> dict[str, str]:
    """Return the parts of the block `index-vectors`."""
    kind = "vector" if request.dims <= _MAX_INDEXED_DIMS else "halfvec"
    return {
        "name": index_name(request),
        "vector": _as_indexed("vector", request.dims, schema),
        "operators": f"{kind}_{_METRICS[request.metric].operator_class}",
        "pgvector": schema,
        "dims": str(request.dims),
    }


def index_name(request: CreateVectorIndex) -> str:
    """Return the name of an index."""
    return f"tk_vectors_{request.metric}_{request.dims}"


def _as_vector(numbers: str, dims: int, schema: str) -> str:
    return f"({numbers}::{schema}.vector({dims}))"


def _as_indexed(numbers: str, dims: int, schema: str) -> str:
    """Return a vector as the expression that the index is on."""
    if dims <= _MAX_INDEXED_DIMS:
        return _as_vector(numbers, dims, schema)
    return f"({schema}.l2_normalize({numbers}::{schema}.vector({dims}))::{schema}.halfvec({dims}))"


def load_vector_changes(db: SqlContext, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
    """Return the changes of vectors, or only that a partition is large if it has more than the client wants to hold."""
    part = partition_number(request.tenant, request.partition) if request.partition is not None else None
    is_new = request.partition not in request.since if part is not None else _has_new_partitions(db, request)
    if request.dims <= _MAX_DIMS and (request.cache_full or (is_new and _is_large(db, request, part))):
        return (PartitionChanges(request.partition or "", (0, 0), large=True),)
    return load_all_changes(db, request)


def _has_new_partitions(db: SqlContext, request: LoadVectorChanges) -> bool:
    """Return whether there are partitions that the client does not know."""
    rows = db.rows("partitions", tenant=to_bytes(request.tenant))
    return any(from_bytes(first) not in request.since for _, first, _, _ in rows)


def _is_large(db: SqlContext, request: LoadVectorChanges, part: int | None) -> bool:
    condition = "v.part = :part" if part is not None else "v.tenant = :tenant"
    sql = db.dialect.sql["count-vectors"].replace("{conditions}", condition)
    values = {"part": part, "tenant": to_bytes(request.tenant), "up_to": request.max_vectors + 1}
    return bool(db.cursor.rows(sql, values)[0][0] > request.max_vectors)


def search_vectors(db: SqlContext, request: SearchVectors, schema: str) -> NearestMemories:
    """Return the nearest memories.

    If few match, they are compared one by one. Otherwise the index ranks them; if it finds too few, all are compared.
    There are hardly any joins: a table that was just filled has no statistics, and the planner then joins badly.
    """
    query = _VectorQuery(db, request, schema)
    if request.filter != EVERYTHING or query.count_vectors(_FEW + 1) <= _FEW:
        matching = query.numbers("matching-limited", up_to=_FEW + 1)
        if len(matching) <= _FEW:
            return query.nearest_of_all("nearest-among", numbers=matching)
    if can_index(len(request.vector) // 4, request.metric):
        db.rows("index-settings", ef=str(min(max(query.candidates, _MIN_EF_SEARCH), _MAX_EF_SEARCH)))
        found = query.best("nearest")
        matches = set(query.numbers("matching-among", numbers=[number for number, _ in found]))
        kept = tuple(scored for scored in found if scored[0] in matches)
        if len(kept) >= request.needed:
            return NearestMemories(kept[: request.limit], is_all=False)
    db.rows("exact-settings")
    return query.nearest_of_all("nearest-exact")


class _VectorQuery:
    """A search in pgvector's SQL."""

    def __init__(self, db: SqlContext, request: SearchVectors, schema: str) -> None:
        self._db = db
        self._metric = _METRICS[request.metric]
        self._limit = request.limit
        self.candidates = max(min(request.limit * _FIELDS_PER_MEMORY, _MAX_CANDIDATES), request.limit)
        dims = len(request.vector) // 4
        listing = ListMemories(request.tenant, request.prefix, request.now, 0, filter=request.filter)
        conditions, values = memory_conditions(db, listing)
        operator = f"OPERATOR({schema}.{self._metric.operator})"
        distance = f"{_as_vector('v.vector', dims, schema)} {operator} {_as_vector(_QUERY, dims, schema)}"
        self._parts = {
            "conditions": " AND ".join(conditions),
            "row-conditions": " AND ".join(conditions[1:]),
            "distance": f"coalesce(nullif({distance}, 'NaN'), 1)",
            "nearness": f"{_as_indexed('v.vector', dims, schema)} {operator} {_as_indexed(_QUERY, dims, schema)}",
            "dims": str(dims),
        }
        self._values = values | {"query": request.vector, "candidates": self.candidates, "limit": request.limit}

    def _rows(self, block: str, values: dict[str, Any]) -> list[Row]:
        sql = self._db.dialect.sql[block]
        for part, text in self._parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        return self._db.cursor.rows(sql, self._values | values)

    def numbers(self, block: str, **values: Any) -> list[int]:
        """Return the numbers of memories that match."""
        return [row[0] for row in self._rows(block, values)]

    def count_vectors(self, up_to: int) -> int:
        """Return the number of vectors below the prefix, counted up to a limit. Most memories have one vector."""
        below = self._db.dialect.sql["vectors-below"].replace("{dims}", self._parts["dims"])
        sql = self._db.dialect.sql["count-vectors"].replace("{conditions}", below)
        return int(self._db.cursor.rows(sql, self._values | {"up_to": up_to})[0][0])

    def best(self, block: str, **values: Any) -> tuple[Scored, ...]:
        """Return memories by the score of their best vector."""
        found = _best_scores(self._rows(block, values), self._metric)
        return tuple(sorted(found.items(), key=lambda scored: (-scored[1], scored[0])))

    def nearest_of_all(self, block: str, **values: Any) -> NearestMemories:
        """Return the result of a block that compares every vector."""
        found = self.best(block, **values)
        return NearestMemories(found, is_all=len(found) < self._limit)


def _best_scores(rows: Iterable[Row], metric: _Metric) -> dict[int, float]:
    best: dict[int, float] = {}
    for memory, distance in rows:
        score = 1 - distance if metric.score_is_one_minus_distance else -distance
        best[memory] = max(score, best.get(memory, score))
    return best
