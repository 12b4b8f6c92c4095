"""pgvector, where it is installed: an index for nearness takes over when a partition has more vectors than a client should hold.

Vectors are stored as arrays of numbers either way; the index is on what they are as pgvector's type. All of its names are
written with their schema, so nothing depends on the search path.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep.backends.sql_memories import changes, conditions_of
from threadkeep.engine.filters import EVERYTHING
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories import Browse, IndexVectors, Nearest, PartChanges, Scored, VectorChanges
from threadkeep.engine.spaces import part_number

if TYPE_CHECKING:
    from threadkeep.backends.sql import Row, Work

_FEW = 10_000
"""So many memories are compared one by one."""
_MOST_FIELDS, _WIDEST = 4, 20_000
"""So many vectors of a memory are reckoned with when the index is asked; and at most it is asked for that many."""
_LEAST_LOOKED_AT, _MOST_LOOKED_AT = 200, 1_000
"""What pgvector calls ef_search."""
_LONGEST_VECTOR = 2_000
"""Dimensions of an indexed `vector`; longer ones are indexed at half precision."""


class _Measure(NamedTuple):
    operator: str
    operators: str
    one_minus: bool


_MEASURES = {
    "cosine": _Measure("<=>", "cosine_ops", one_minus=True),
    "inner_product": _Measure("<#>", "ip_ops", one_minus=False),
    "l2": _Measure("<->", "l2_ops", one_minus=False),
}


def index_parts(request: IndexVectors, schema: str) -> dict[str, str]:
    """What `index-vectors` leaves open."""
    kind = _kind(request.dims)
    return {
        "name": index_name(request),
        "vector": f"vector::{schema}.{kind}({request.dims})",
        "operators": f"{kind}_{_MEASURES[request.measure].operators}",
        "pgvector": schema,
        "dims": str(request.dims),
    }


def index_name(request: IndexVectors) -> str:
    """The name of an index."""
    return f"tk_vectors_{request.measure}_{request.dims}"


def _kind(dims: int) -> str:
    return "vector" if dims <= _LONGEST_VECTOR else "halfvec"


def told_changes(work: Work, request: VectorChanges) -> tuple[PartChanges, ...]:
    """Changes, but for what has more vectors than the asker wants."""
    part = part_number(request.tenant, request.first) if request.first is not None else None
    if request.first not in request.since and _has_many(work, request, part):
        return (PartChanges(request.first or "", (0, 0), large=True),)
    return changes(work, request)


def _has_many(work: Work, request: VectorChanges, part: int | None) -> bool:
    condition = "v.part = :part" if part is not None else "v.tenant = :tenant"
    sql = work.dialect.sql["has-many-vectors"].replace("{conditions}", condition)
    values = {"part": part, "tenant": to_bytes(request.tenant), "most": request.most + 1}
    return bool(work.session.rows(sql, values)[0][0] > request.most)


def nearest(work: Work, request: Nearest, schema: str) -> tuple[Scored, ...]:
    """The nearest memories: one by one if few are asked for, else by the index.

    Nothing is joined: without statistics, which a table that was just filled has not, the planner joins badly.
    """
    asked = _Asked(work, request, schema)
    if request.filter != EVERYTHING:
        matching = asked.numbers("some-matching", most=_FEW + 1)
        if len(matching) <= _FEW:
            return asked.best("nearest-of", numbers=matching)
    elif asked.count("has-many-vectors", most=_FEW + 1) <= _FEW:
        return asked.best("nearest-exactly")
    wide = asked.wide
    while True:
        work.rows("search-settings", ef=str(min(max(wide, _LEAST_LOOKED_AT), _MOST_LOOKED_AT)))
        found = asked.best("nearest", wide=wide)
        if request.filter != EVERYTHING:
            matching = asked.numbers("matching-of", numbers=[number for number, _ in found])
            kept = set(matching)
            found = tuple(scored for scored in found if scored[0] in kept)
        if len(found) >= request.needed or wide >= _WIDEST:
            return found[: request.limit]
        wide = min(wide * 8, _WIDEST)


class _Asked:
    """A question in the words of pgvector."""

    def __init__(self, work: Work, request: Nearest, schema: str) -> None:
        self._work = work
        self._measure = _MEASURES[request.measure]
        self._limit = request.limit
        dims = len(request.vector) // 4
        browse = Browse(request.tenant, request.prefix, request.now, 0, filter=request.filter)
        self._matching, values = conditions_of(work, browse)
        self._parts = {"distance": _distance(self._measure, dims, schema), "dims": str(dims)}
        self.wide = max(min(request.limit * _MOST_FIELDS, _WIDEST), request.limit)
        self._values = values | {"query": request.vector, "wide": self.wide}

    def _rows(self, block: str, conditions: str, given: dict[str, Any]) -> list[Row]:
        sql = self._work.dialect.sql[block].replace("{conditions}", conditions)
        for part, text in self._parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        return self._work.session.rows(sql, self._values | given)

    def numbers(self, block: str, **given: Any) -> list[int]:
        """The numbers of memories that match."""
        return [row[0] for row in self._rows(block, self._matching, given)]

    def count(self, block: str, **given: Any) -> int:
        """How many vectors there are, up to a number of them."""
        return int(self._rows(block, self._work.dialect.sql["is-near-below"], given)[0][0])

    def best(self, block: str, **given: Any) -> tuple[Scored, ...]:
        """Memories by their best vector."""
        found = _scored(self._rows(block, "", given), self._measure)
        return tuple(sorted(found.items(), key=lambda scored: (-scored[1], scored[0])))


def _scored(rows: Iterable[Row], measure: _Measure) -> dict[int, float]:
    """The best score of each memory. A vector of no length is as far as one at a right angle."""
    best: dict[int, float] = {}
    for memory, distance in rows:
        score = 0.0 if isnan(distance) else 1 - distance if measure.one_minus else -distance
        best[memory] = max(score, best.get(memory, score))
    return best


def _distance(measure: _Measure, dims: int, schema: str) -> str:
    kind = f"{schema}.{_kind(dims)}({dims})"
    return f"(v.vector::{kind}) OPERATOR({schema}.{measure.operator}) (:query::real[]::{kind})"
