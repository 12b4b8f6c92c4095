"""pgvector, where it is installed: an index for nearness takes over when a partition has more vectors than a client should hold.

Vectors are stored as arrays of numbers either way; the index is on what they are as pgvector's type. All of its names are
written with their schema, so nothing depends on the search path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep.backends.sql.memories import changes, conditions_of
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
"""So many memories are compared one by one."""
_MOST_FIELDS, _WIDEST = 4, 20_000
"""So many vectors of a memory are reckoned with when the index is asked; and at most it is asked for that many."""
_LEAST_LOOKED_AT, _MOST_LOOKED_AT = 200, 1_000
"""What pgvector calls ef_search."""
_LONGEST_VECTOR, _LONGEST_HALF, _LONGEST = 2_000, 4_000, 16_000
"""Dimensions of an indexed vector, of one at half precision, and of any."""
_QUERY = ":query::real[]"


class _Metric(NamedTuple):
    operator: str
    operators: str
    one_minus: bool


_MEASURES = {
    "cosine": _Metric("<=>", "cosine_ops", one_minus=True),
    "inner_product": _Metric("<#>", "ip_ops", one_minus=False),
    "l2": _Metric("<->", "l2_ops", one_minus=False),
}


def can_index(dims: int, measure: str) -> bool:
    """Whether there is an index for such vectors: of half precision for the longer ones, which fit if they have length 1."""
    return dims <= _LONGEST_VECTOR or (dims <= _LONGEST_HALF and measure == "cosine")


def index_parts(request: CreateVectorIndex, schema: str) -> dict[str, str]:
    """What `index-vectors` leaves open."""
    kind = "vector" if request.dims <= _LONGEST_VECTOR else "halfvec"
    return {
        "name": index_name(request),
        "vector": _indexed("vector", request.dims, schema),
        "operators": f"{kind}_{_MEASURES[request.metric].operators}",
        "pgvector": schema,
        "dims": str(request.dims),
    }


def index_name(request: CreateVectorIndex) -> str:
    """The name of an index."""
    return f"tk_vectors_{request.metric}_{request.dims}"


def _exact(numbers: str, dims: int, schema: str) -> str:
    return f"({numbers}::{schema}.vector({dims}))"


def _indexed(numbers: str, dims: int, schema: str) -> str:
    """A vector as the index has it."""
    if dims <= _LONGEST_VECTOR:
        return _exact(numbers, dims, schema)
    return f"({schema}.l2_normalize({numbers}::{schema}.vector({dims}))::{schema}.halfvec({dims}))"


def told_changes(work: SqlContext, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
    """Changes, but for what has more vectors than the asker wants."""
    part = partition_number(request.tenant, request.first) if request.first is not None else None
    is_new = request.first not in request.since if part is not None else _are_new(work, request)
    if request.dims <= _LONGEST and (request.full or (is_new and _has_many(work, request, part))):
        return (PartitionChanges(request.first or "", (0, 0), large=True),)
    return changes(work, request)


def _are_new(work: SqlContext, request: LoadVectorChanges) -> bool:
    """Whether there are partitions that the asker does not know."""
    rows = work.rows("all-parts", tenant=to_bytes(request.tenant))
    return any(from_bytes(first) not in request.since for _, first, _, _ in rows)


def _has_many(work: SqlContext, request: LoadVectorChanges, part: int | None) -> bool:
    condition = "v.part = :part" if part is not None else "v.tenant = :tenant"
    sql = work.dialect.sql["has-many-vectors"].replace("{conditions}", condition)
    values = {"part": part, "tenant": to_bytes(request.tenant), "most": request.most + 1}
    return bool(work.cursor.rows(sql, values)[0][0] > request.most)


def nearest(work: SqlContext, request: SearchVectors, schema: str) -> NearestMemories:
    """The nearest memories: one by one if few are asked for, else by the index, or one by one if that finds too few.

    Hardly anything is joined: without statistics, which a table that was just filled has not, the planner joins badly.
    """
    asked = _VectorQuery(work, request, schema)
    if request.filter != EVERYTHING or asked.count_of_vectors(_FEW + 1) <= _FEW:
        matching = asked.numbers("some-matching", most=_FEW + 1)
        if len(matching) <= _FEW:
            return asked.nearby("nearest-of", numbers=matching)
    if can_index(len(request.vector) // 4, request.metric):
        work.rows("index-settings", ef=str(min(max(asked.wide, _LEAST_LOOKED_AT), _MOST_LOOKED_AT)))
        found = asked.best("nearest")
        alive = set(asked.numbers("matching-of", numbers=[number for number, _ in found]))
        kept = tuple(scored for scored in found if scored[0] in alive)
        if len(kept) >= request.needed:
            return NearestMemories(kept[: request.limit], is_all=False)
    work.rows("exact-settings")
    return asked.nearby("nearest-of-all")


class _VectorQuery:
    """A question in the words of pgvector."""

    def __init__(self, work: SqlContext, request: SearchVectors, schema: str) -> None:
        self._work = work
        self._measure = _MEASURES[request.metric]
        self._limit = request.limit
        self.wide = max(min(request.limit * _MOST_FIELDS, _WIDEST), request.limit)
        dims = len(request.vector) // 4
        browse = ListMemories(request.tenant, request.prefix, request.now, 0, filter=request.filter)
        conditions, values = conditions_of(work, browse)
        near = f"OPERATOR({schema}.{self._measure.operator})"
        distance = f"{_exact('v.vector', dims, schema)} {near} {_exact(_QUERY, dims, schema)}"
        self._parts = {
            "conditions": " AND ".join(conditions),
            "of-itself": " AND ".join(conditions[1:]),
            "distance": f"coalesce(nullif({distance}, 'NaN'), 1)",
            "nearness": f"{_indexed('v.vector', dims, schema)} {near} {_indexed(_QUERY, dims, schema)}",
            "dims": str(dims),
        }
        self._values = values | {"query": request.vector, "wide": self.wide, "limit": request.limit}

    def _rows(self, block: str, given: dict[str, Any]) -> list[Row]:
        sql = self._work.dialect.sql[block]
        for part, text in self._parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        return self._work.cursor.rows(sql, self._values | given)

    def numbers(self, block: str, **given: Any) -> list[int]:
        """The numbers of memories that match."""
        return [row[0] for row in self._rows(block, given)]

    def count_of_vectors(self, most: int) -> int:
        """How many vectors there are below the prefix, up to a number of them; most memories have one."""
        below = self._work.dialect.sql["is-near-below"].replace("{dims}", self._parts["dims"])
        sql = self._work.dialect.sql["has-many-vectors"].replace("{conditions}", below)
        return int(self._work.cursor.rows(sql, self._values | {"most": most})[0][0])

    def best(self, block: str, **given: Any) -> tuple[Scored, ...]:
        """Memories by their best vector."""
        found = _scored(self._rows(block, given), self._measure)
        return tuple(sorted(found.items(), key=lambda scored: (-scored[1], scored[0])))

    def nearby(self, block: str, **given: Any) -> NearestMemories:
        """The same where nothing was left out."""
        found = self.best(block, **given)
        return NearestMemories(found, is_all=len(found) < self._limit)


def _scored(rows: Iterable[Row], measure: _Metric) -> dict[int, float]:
    """The best score of each memory."""
    best: dict[int, float] = {}
    for memory, distance in rows:
        score = 1 - distance if measure.one_minus else -distance
        best[memory] = max(score, best.get(memory, score))
    return best
