"""Vectors at hand: those of a partition packed into arrays, kept current with what others store, and searched exactly.

A `PartitionVectors` never changes; what was stored since makes another one, which shares the arrays of the old one. Small arrays
are joined when there are many of them, so a memory that is stored costs what it is, not what is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep.engine.memories.namespaces import Space
from threadkeep.engine.memories.requests import PartitionChanges, Scored, VectorRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COSINE, INNER_PRODUCT, L2 = METRICS = ("cosine", "inner_product", "l2")
_FIRST_BATCH = 128
"""So many of the best are put in order first; mostly nobody asks for more."""
_SCORE_TOLERANCE = 1e-4
"""Relative to the best: how far apart two ways of reckoning a score may be, and more."""


def numpy() -> Any:
    """numpy, or how to get it."""
    try:
        import numpy as np  # noqa: PLC0415 - only vector search needs it
    except ImportError as error:
        raise ImportError("vector search needs numpy: pip install numpy") from error
    return np


def packed(vector: Sequence[float], dims: int) -> bytes:
    """A vector as bytes; ValueError if it has not the dimensions that were agreed, or is not finite."""
    np = numpy()
    row = np.asarray(vector, dtype="<f4").reshape(-1)
    if len(row) != dims:
        raise ValueError(f"the embedding has {len(row)} dimensions, the index was configured for {dims}")
    if not np.isfinite(row).all():
        raise ValueError("the embedding has a number that is not finite")
    data: bytes = row.tobytes()
    return data


class _VectorBlock(NamedTuple):
    """Some vectors, one a row; of which memory, which of its texts, and in which namespace each is."""

    rows: NDArray[np.float32]
    memories: NDArray[np.int64]
    fields: NDArray[np.int32]
    spaces: NDArray[np.int32]

    def only(self, kept: NDArray[np.bool_]) -> _VectorBlock:
        return (
            self
            if kept.all()
            else _VectorBlock(self.rows[kept], self.memories[kept], self.fields[kept], self.spaces[kept])
        )


class PartitionVectors(NamedTuple):
    """The vectors of a partition at one moment, for one measure."""

    at: tuple[int, int]
    spaces: tuple[Space, ...] = ()
    blocks: tuple[_VectorBlock, ...] = ()

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return sum(block.rows.nbytes for block in self.blocks)

    def changed(self, changes: PartitionChanges, dims: int, measure: str) -> PartitionVectors:
        """The partition after these changes. Vectors of other dimensions are not ours to compare."""
        rows = [row for row in changes.changed if len(row.vector) == 4 * dims]
        numbers = {space: n for n, space in enumerate(self.spaces)}
        for row in rows:
            numbers.setdefault(row.namespace, len(numbers))
        kept = [block.only(~_rows_in(block, rows)) for block in self.blocks] if rows else list(self.blocks)
        if changes.present is not None:
            kept = [block.only(_rows_present(block, changes.present)) for block in kept]
        if rows:
            kept.append(_make_block(rows, numbers, measure))
        return PartitionVectors(
            changes.at, tuple(numbers), tuple(_merge_blocks([block for block in kept if len(block.rows)]))
        )

    def rows(self, prefix: Space) -> Iterator[tuple[Any, Any]]:
        """The numbers of the memories below a prefix, and their vectors."""
        np = numpy()
        fits = np.fromiter((space[: len(prefix)] == prefix for space in self.spaces), bool, len(self.spaces))
        for block in self.blocks:
            if fits.all():
                yield block.memories, block.rows
            elif fits.any():
                here = fits[block.spaces]
                yield block.memories[here], block.rows[here]


def _make_block(rows: Sequence[VectorRow], numbers: dict[Space, int], measure: str) -> _VectorBlock:
    np = numpy()
    matrix = np.frombuffer(b"".join(row.vector for row in rows), "<f4").reshape(len(rows), -1)
    if measure == COSINE:
        matrix = _normalize(matrix)
    return _VectorBlock(
        matrix.astype(np.float32, copy=False),
        np.fromiter((row.memory for row in rows), np.int64, len(rows)),
        np.fromiter((row.field for row in rows), np.int32, len(rows)),
        np.fromiter((numbers[row.namespace] for row in rows), np.int32, len(rows)),
    )


def _normalize(matrix: Any) -> Any:
    """Vectors of length 1; in double precision, for their squares may not fit into single."""
    np = numpy()
    wide = matrix.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _rows_in(block: _VectorBlock, rows: Iterable[VectorRow]) -> Any:
    """Which vectors of a block are of the same memories and texts as these rows."""
    np = numpy()
    given = {(row.memory, row.field) for row in rows}
    among = np.isin(block.memories, np.fromiter((memory for memory, _ in given), np.int64, len(given)))
    for at in np.flatnonzero(among):
        among[at] = (int(block.memories[at]), int(block.fields[at])) in given
    return among


def _rows_present(block: _VectorBlock, present: frozenset[tuple[int, int]]) -> Any:
    np = numpy()
    pairs = zip(block.memories.tolist(), block.fields.tolist(), strict=True)
    return np.fromiter((pair in present for pair in pairs), bool, len(block.memories))


def _merge_blocks(blocks: list[_VectorBlock]) -> list[_VectorBlock]:
    """Blocks of which each is at least twice as large as the next."""
    np = numpy()
    while len(blocks) > 1 and len(blocks[-2].rows) < 2 * len(blocks[-1].rows):
        *blocks, one, other = blocks
        blocks.append(_VectorBlock(*(np.concatenate(pair) for pair in zip(one, other, strict=True))))
    return blocks


def _dot(rows: Any, query: Any) -> Any:
    """Products, on one core: BLAS would have all cores spin for a moment, which takes longer when they have other work."""
    np = numpy()
    return np.vecdot(rows, query) if hasattr(np, "vecdot") else np.einsum("ij,j->i", rows, query)


_FAST_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    COSINE: _dot,  # both are of length 1
    INNER_PRODUCT: _dot,
    L2: lambda rows, query: -numpy().linalg.norm(rows - query, axis=1),
}
_EXACT_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    COSINE: lambda rows, query: (rows * query).sum(axis=1),
    INNER_PRODUCT: lambda rows, query: (rows * query).sum(axis=1),
    L2: lambda rows, query: -numpy().sqrt(((rows - query) ** 2).sum(axis=1)),
}
"""The same for few rows, in double precision and one number after the other: equal vectors are equally near."""


def nearest(parts: Iterable[PartitionVectors], query: bytes, prefix: Space, measure: str) -> Iterator[Scored]:
    """Memories by their nearest vector, best first; of equal ones the lower number first."""
    np = numpy()
    wanted = np.frombuffer(query, "<f4").astype(np.float32)
    if measure == COSINE:
        wanted = _normalize(wanted)
    found = [each for part in parts for each in part.rows(prefix)]
    if not found:
        return
    near = [_FAST_SCORES[measure](rows, wanted) for _, rows in found]
    seen: set[int] = set()
    for chosen in _best_first(np, np.concatenate(near)):
        numbers, scores = _exact_scores(np, found, chosen, wanted, measure)
        for at in np.lexsort((numbers, -scores)).tolist():
            number = int(numbers[at])
            if number not in seen:
                seen.add(number)
                yield number, float(scores[at])


def _best_first(np: Any, near: Any) -> Iterator[Any]:
    """Which rows are best, then the others: these are only looked at if somebody comes to the end of the best."""
    if len(near) <= 2 * _FIRST_BATCH:
        yield np.arange(len(near))
        return
    worst = np.partition(near, len(near) - _FIRST_BATCH)[len(near) - _FIRST_BATCH]
    margin = _SCORE_TOLERANCE * max(abs(float(near.max())), abs(float(worst)), 1e-9)
    yield np.flatnonzero(near >= worst - margin)
    yield np.flatnonzero(near < worst - margin)


def _exact_scores(np: Any, found: Sequence[tuple[Any, Any]], chosen: Any, wanted: Any, measure: str) -> tuple[Any, Any]:
    """The numbers and exact scores of chosen rows, which are counted through all that was found."""
    numbers, scores, start = [], [], 0
    for memories, rows in found:
        own = chosen[(chosen >= start) & (chosen < start + len(rows))] - start
        numbers.append(memories[own])
        scores.append(_EXACT_SCORES[measure](rows[own].astype(np.float64), wanted.astype(np.float64)))
        start += len(rows)
    return np.concatenate(numbers), np.concatenate(scores)
