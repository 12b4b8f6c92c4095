"""Reads the rows of `load-checkpoints` and `load-thread-rows`: one result with rows of several kinds.

All kinds have the same columns, and the first column says which kind a row is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from threadkeep.backends.sql.backend import SqlBackend
from threadkeep.backends.sql.rows import Row, thread_row
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow

_THREAD, _CHECKPOINT, _WRITES, _ITEMS = range(4)
"""Kinds of row. Any other kind is a range of stored items."""

# The columns of each kind, in the order of the blocks `thread-columns`, `checkpoint-columns` and `write-columns`.
_thread_columns = itemgetter(1, 11, 18, 12, 2, 3, 13, 4, 5, 6, 7, 8, 14, 15, 9, 19, 20, 10, 16, 21, 17)
_checkpoint_columns = itemgetter(11, 12, 13, 14, 9, 18, 10, 8, 7, 19, 15)
_write_columns = itemgetter(11, 12, 13, 14, 15, 8, 18, 19, 16)
_LANE, _N, _LENGTH, _PAYLOAD, _LENGTHS, _FACTS = 10, 1, 9, 11, 22, 23


@dataclass(slots=True)
class RowsByKind:
    """Rows by kind. A checkpoint or write comes with the position of the request's entry that it answers."""

    thread: ThreadRow | None = None
    checkpoints: list[tuple[int, CheckpointRow]] = field(default_factory=list)
    writes: list[tuple[int, WriteRow]] = field(default_factory=list)
    items: dict[ItemId, bytes] = field(default_factory=dict)
    stored: list[ItemRange] = field(default_factory=list)


def split_by_kind(dialect: SqlBackend, rows: Iterable[Row]) -> RowsByKind:
    """Read rows of several kinds."""
    found = RowsByKind()
    for row in rows:
        kind = row[0]
        if kind == _ITEMS:
            found.items.update(_split_items(row[_LANE], row[_LENGTHS], row[_PAYLOAD]))
        elif kind == _THREAD:
            found.thread = thread_row((*_thread_columns(row), *row[_FACTS]))
        elif kind == _CHECKPOINT:
            found.checkpoints.append((row[1], dialect.checkpoint_row(_checkpoint_columns(row))))
        elif kind == _WRITES:
            found.writes.append((row[1], dialect.write_row(_write_columns(row))))
        else:
            found.stored.append(ItemRange(row[_LANE], row[_N], row[_LENGTH]))
    return found


def _split_items(lane: int, lengths: Sequence[int], payload: bytes) -> Iterator[tuple[ItemId, bytes]]:
    """Yield the items of one row. `lengths` has their numbers first, then the length of each payload."""
    count, start = len(lengths) // 2, 0
    for n, length in zip(lengths[:count], lengths[count:], strict=True):
        yield ItemId(lane, n), payload[start : start + length]
        start += length
