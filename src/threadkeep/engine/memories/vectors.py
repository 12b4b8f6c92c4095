"""Vectors of a partition as arrays in memory, kept current with the storage, and exact search over them.

A `PartitionVectors` is immutable. Changes make a new one that shares arrays with the old one. Small arrays are merged
when they become many, so the cost of a stored memory depends on its own size, not on the size of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep.engine.memories.namespaces import Namespace
from threadkeep.engine.memories.requests import PartitionChanges, Scored, VectorRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COSINE, INNER_PRODUCT, L2 = METRICS = ("cosine", "inner_product", "l2")
_NEEDS_NUMPY = 'vector search needs numpy: pip install "threadkeep[vectors]"'
_FIRST_BATCH = 128
"""The number of best rows that are sorted first. Most callers need no more."""
_SCORE_TOLERANCE = 1e-4
"""More than the difference between fast and exact scores can be, relative to the best score."""


def check_numpy() -> None:
    """Raise ImportError with the `pip install` line if numpy is missing. It is not imported, which takes 100 ms."""
    if find_spec("numpy") is None:
        raise ImportError(_NEEDS_NUMPY)


def import_numpy() -> Any:
    """Return numpy; ImportError with the `pip install` line if it is missing."""
    try:
        import numpy as np  # noqa: PLC0415 - only vector search needs it
    except ModuleNotFoundError as error:
        raise ImportError(_NEEDS_NUMPY) from error
    return np


def pack_vector(vector: Sequence[float], dims: int) -> bytes:
    """Return a vector as bytes; ValueError if it does not have `dims` dimensions or is not finite."""
    np = import_numpy()
    row = np.asarray(vector, dtype="<f4").reshape(-1)
    if len(row) != dims:
        raise ValueError(f"the embedding has {len(row)} dimensions, but the index is configured for {dims}")
    if not np.isfinite(row).all():
        raise ValueError("the embedding contains a number that is not finite")
    data: bytes = row.tobytes()
    return data


class _VectorBlock(NamedTuple):
    """Vectors, one per row, with the memory number, the text index and the namespace index of each."""

    rows: NDArray[np.float32]
    memories: NDArray[np.int64]
    fields: NDArray[np.int32]
    namespaces: NDArray[np.int32]

    def select(self, mask: NDArray[np.bool_]) -> _VectorBlock:
        if mask.all():
            return self
        return _VectorBlock(self.rows[mask], self.memories[mask], self.fields[mask], self.namespaces[mask])


class PartitionVectors(NamedTuple):
    """The vectors of a partition at one version, prepared for one metric."""

    version: tuple[int, int]
    namespaces: tuple[Namespace, ...] = ()
    blocks: tuple[_VectorBlock, ...] = ()

    @property
    def size(self) -> int:
        """The approximate number of bytes."""
        return sum(block.rows.nbytes for block in self.blocks)

    def with_changes(self, changes: PartitionChanges, dims: int, metric: str) -> PartitionVectors:
        """Return the partition after these changes. Vectors with other dimensions are ignored."""
        rows = [row for row in changes.changed if len(row.vector) == 4 * dims]
        numbers = {namespace: n for n, namespace in enumerate(self.namespaces)}
        for row in rows:
            numbers.setdefault(row.namespace, len(numbers))
        kept = [block.select(~_rows_in(block, rows)) for block in self.blocks] if rows else list(self.blocks)
        if changes.present is not None:
            kept = [block.select(_rows_present(block, changes.present)) for block in kept]
        if rows:
            kept.append(_make_block(rows, numbers, metric))
        blocks = _merge_blocks([block for block in kept if len(block.rows)])
        return PartitionVectors(changes.version, tuple(numbers), tuple(blocks))

    def rows(self, prefix: Namespace) -> Iterator[tuple[Any, Any]]:
        """Yield arrays of memory numbers below a prefix, each with an array of their vectors."""
        np = import_numpy()
        is_below = (namespace[: len(prefix)] == prefix for namespace in self.namespaces)
        below = np.fromiter(is_below, bool, len(self.namespaces))
        for block in self.blocks:
            if below.all():
                yield block.memories, block.rows
            elif below.any():
                mask = below[block.namespaces]
                yield block.memories[mask], block.rows[mask]


def _make_block(rows: Sequence[VectorRow], numbers: dict[Namespace, int], metric: str) -> _VectorBlock:
    np = import_numpy()
    matrix = np.frombuffer(b"".join(row.vector for row in rows), "<f4").reshape(len(rows), -1)
    if metric == COSINE:
        matrix = _normalize(matrix)
    return _VectorBlock(
        matrix.astype(np.float32, copy=False),
        np.fromiter((row.memory for row in rows), np.int64, len(rows)),
        np.fromiter((row.field for row in rows), np.int32, len(rows)),
        np.fromiter((numbers[row.namespace] for row in rows), np.int32, len(rows)),
    )


def _normalize(matrix: Any) -> Any:
    """Scale vectors to length 1. Computes in double precision: squares may overflow single precision."""
    np = import_numpy()
    wide = matrix.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _rows_in(block: _VectorBlock, rows: Iterable[VectorRow]) -> Any:
    """Return a mask of the block's vectors that belong to the same memory and text as one of these rows."""
    np = import_numpy()
    given = {(row.memory, row.field) for row in rows}
    mask = np.isin(block.memories, np.fromiter((memory for memory, _ in given), np.int64, len(given)))
    for index in np.flatnonzero(mask):
        mask[index] = (int(block.memories[index]), int(block.fields[index])) in given
    return mask


def _rows_present(block: _VectorBlock, present: frozenset[tuple[int, int]]) -> Any:
    np = import_numpy()
    pairs = zip(block.memories.tolist(), block.fields.tolist(), strict=True)
    return np.fromiter((pair in present for pair in pairs), bool, len(block.memories))


def _merge_blocks(blocks: list[_VectorBlock]) -> list[_VectorBlock]:
    """Merge blocks from the end until each is at least twice as large as the next."""
    np = import_numpy()
    while len(blocks) > 1 and len(blocks[-2].rows) < 2 * len(blocks[-1].rows):
        *blocks, first, second = blocks
        blocks.append(_VectorBlock(*(np.concatenate(pair) for pair in zip(first, second, strict=True))))
    return blocks


def _dot(rows: Any, query: Any) -> Any:
    """Return dot products, computed on one core. BLAS would use all cores, which is slower when they are busy."""
    np = import_numpy()
    return np.vecdot(rows, query) if hasattr(np, "vecdot") else np.einsum("ij,j->i", rows, query)


_FAST_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    COSINE: _dot,  # both have length 1
    INNER_PRODUCT: _dot,
    L2: lambda rows, query: -import_numpy().linalg.norm(rows - query, axis=1),
}
_EXACT_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    COSINE: lambda rows, query: (rows * query).sum(axis=1),
    INNER_PRODUCT: lambda rows, query: (rows * query).sum(axis=1),
    L2: lambda rows, query: -import_numpy().sqrt(((rows - query) ** 2).sum(axis=1)),
}
"""Scores for few rows, in double precision and summed in a fixed order: equal vectors get equal scores."""


def nearest(partitions: Iterable[PartitionVectors], query: bytes, prefix: Namespace, metric: str) -> Iterator[Scored]:
    """Yield memories ranked by their nearest vector, best first; of equal ones, the lower number first."""
    np = import_numpy()
    vector = np.frombuffer(query, "<f4").astype(np.float32)
    if metric == COSINE:
        vector = _normalize(vector)
    arrays = [each for partition in partitions for each in partition.rows(prefix)]
    if not arrays:
        return
    fast = [_FAST_SCORES[metric](rows, vector) for _, rows in arrays]
    seen: set[int] = set()
    for chosen in _best_first(np, np.concatenate(fast)):
        numbers, scores = _exact_scores(np, arrays, chosen, vector, metric)
        for index in np.lexsort((numbers, -scores)).tolist():
            number = int(numbers[index])
            if number not in seen:
                seen.add(number)
                yield number, float(scores[index])


def _best_first(np: Any, scores: Any) -> Iterator[Any]:
    """Yield the indexes of the best rows, then those of all others, which few callers need."""
    if len(scores) <= 2 * _FIRST_BATCH:
        yield np.arange(len(scores))
        return
    worst = np.partition(scores, len(scores) - _FIRST_BATCH)[len(scores) - _FIRST_BATCH]
    margin = _SCORE_TOLERANCE * max(abs(float(scores.max())), abs(float(worst)), 1e-9)
    yield np.flatnonzero(scores >= worst - margin)
    yield np.flatnonzero(scores < worst - margin)


def _exact_scores(np: Any, arrays: Sequence[tuple[Any, Any]], chosen: Any, vector: Any, metric: str) -> tuple[Any, Any]:
    """Return the memory numbers and exact scores of chosen rows. Their indexes count through all arrays."""
    numbers, scores, start = [], [], 0
    for memories, rows in arrays:
        own = chosen[(chosen >= start) & (chosen < start + len(rows))] - start
        numbers.append(memories[own])
        scores.append(_EXACT_SCORES[metric](rows[own].astype(np.float64), vector.astype(np.float64)))
        start += len(rows)
    return np.concatenate(numbers), np.concatenate(scores)
