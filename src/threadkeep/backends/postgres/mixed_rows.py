"""Reads the rows of `load-checkpoints` and `load-thread-rows`: one result with rows of several kinds.

All kinds have the same columns, and the first column says which kind a row is. `split_by_kind` reads each row by itself
and says what is wrong with it. `read_checkpoints` is the same for rows that are as we write them, in few steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from json import JSONDecoder
from operator import itemgetter
from typing import Any, NamedTuple

from threadkeep.backends.sql.backend import SqlBackend
from threadkeep.backends.sql.rows import Row, thread_row
from threadkeep.engine.identity import ThreadKey, unpack_id, unpack_path
from threadkeep.engine.log.itemlog import RANGE_LISTS, ItemId, ItemRange, read_varints
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow

_THREAD, _CHECKPOINT, _WRITES, _ITEMS = range(4)
"""Kinds of row. Any other kind is a range of stored items."""

# The columns of each kind, in the order of the blocks `thread-columns`, `checkpoint-columns` and `write-columns`.
_thread_columns = itemgetter(1, 11, 18, 12, 2, 3, 13, 4, 5, 6, 7, 8, 14, 15, 9, 19, 20, 10, 16, 21, 17)
_checkpoint_columns = itemgetter(11, 12, 13, 14, 9, 18, 10, 8, 7, 19, 15)
_write_columns = itemgetter(11, 12, 13, 14, 15, 8, 18, 19, 16)
_parse_json: Any = JSONDecoder().scan_once  # type: ignore[attr-defined]  # in C; `decode` makes three calls more
_new: Any = tuple.__new__
"""Makes a NamedTuple of a tuple, without a Python call."""
_INTS = {int}
_LANE, _N, _LENGTH, _PAYLOAD, _LENGTHS, _FACTS, _SEALED, _DESCRIPTION = 10, 1, 9, 11, 22, 23, 24, 25


class RowsByKind:
    """Rows by kind. A checkpoint or write comes with the position of the request's entry that it answers."""

    def __init__(self) -> None:
        self.thread: ThreadRow | None = None
        self.checkpoints: list[tuple[int, CheckpointRow]] = []
        self.writes: list[tuple[int, WriteRow]] = []
        self.items: dict[ItemId, bytes] = {}
        self.stored: list[ItemRange] = []


def split_by_kind(dialect: SqlBackend, rows: Iterable[Row]) -> RowsByKind:
    """Read rows of several kinds."""
    found = RowsByKind()
    for row in rows:
        kind = row[0]
        if kind == _ITEMS:
            found.items.update(_split_items(row[_LANE], row[_LENGTHS], row[_PAYLOAD]))
        elif kind == _THREAD:
            found.thread = thread_row((*_thread_columns(row), *row[_FACTS], row[_SEALED], row[_DESCRIPTION]))
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


class FlatRows(NamedTuple):
    """The rows of `load-checkpoints`: for each wanted checkpoint its row, if it exists, and its writes.

    `lists` has the numbers of the range lists that those with items refer to.
    """

    thread: ThreadRow | None
    checkpoints: list[CheckpointRow | None]
    writes: list[list[WriteRow]]
    items: dict[ItemId, bytes]
    lists: set[int]


def read_checkpoints(  # noqa: C901, PLR0912, PLR0915 - one loop without calls
    rows: Iterable[Row], with_items: Sequence[bool], first: int = 0
) -> FlatRows:
    """Read the rows of `load-checkpoints`. Any exception if one is not as we write it: then `split_by_kind` says why.

    `first` is the position of the first wanted checkpoint. No Python call for a checkpoint, a task's writes or an item;
    one for an id that is not a UUID.
    """
    thread: ThreadRow | None = None
    checkpoints: list[CheckpointRow | None] = [None] * len(with_items)
    writes: list[list[WriteRow]] = [[] for _ in with_items]
    items: dict[ItemId, bytes] = {}
    lists: set[int] = set()
    ids: dict[bytes, str | None] = {b"": None}
    for row in rows:
        kind, n = row[0], row[1] - first
        if kind == _ITEMS:
            lane, lengths, payload, at = row[10], row[22], row[11], 0
            count = len(lengths) // 2
            for k in range(count):
                end = at + lengths[count + k]
                items[_new(ItemId, (lane, lengths[k]))] = payload[at:end]
                at = end
            continue
        if kind == _THREAD:
            thread = _read_thread(row)
            continue
        for packed in row[13:16:2] if kind == _WRITES else row[13:15]:  # task and run, or parent and run
            if packed not in ids:
                text = packed.hex()
                is_uuid = len(packed) == 17 and packed[0] == 117  # b"u"
                dashed = f"{text[2:10]}-{text[10:14]}-{text[14:18]}-{text[18:22]}-{text[22:]}"
                ids[packed] = dashed if is_uuid else unpack_id(packed)
        numbers, ranges = list(map(int, row[19].split(","))) if row[19] else [], []
        if "-" in row[19]:
            raise ValueError("an item range is negative")
        for k in range(0, len(numbers), 3):
            lane, start, length = numbers[k : k + 3]
            ranges.append(_new(ItemRange, (lane, start, length)))
            if lane == RANGE_LISTS and with_items[n]:
                lists.update(range(start, start + min(length, _MOST_LISTS)))
        ns, id = row[11].decode("utf-8", "surrogatepass"), row[12].decode("utf-8", "surrogatepass")
        if kind == _CHECKPOINT:
            hidden = row[7]
            if hidden not in (0, 1) or row[15] is None:
                raise ValueError("a column of a checkpoint has no such value")
            checkpoints[n] = _new(
                CheckpointRow,
                (ns, id, ids[row[13]], ids[row[14]], row[9], row[18], row[10], row[8], hidden == 1, tuple(ranges),
                 row[15]),
            )  # fmt: skip
        elif kind == _WRITES:
            entries = row[18]
            index, end = _parse_json(entries if entries[:1] == "[" else f"[{entries}]", 0)
            if entries[:1] != "[":  # as in `unpack_index`
                channels, sizes, end = index[::2], index[1::2], end - 2
                index += channels
                index[::3], index[1::3], index[2::3] = range(len(sizes)), channels, sizes
            is_index = end == len(entries) and len(index) % 3 == 0 and set(map(type, index)) <= _INTS
            if not is_index or not index or not row[13] or row[16] is None:
                raise ValueError("a column of writes has no such value")
            path = unpack_path(row[14])
            task = _new(
                WriteRow, (ns, id, ids[row[13]], path, ids[row[15]], row[8], tuple(index), tuple(ranges), row[16])
            )
            writes[n].append(task)
        else:
            raise ValueError(f"there are no rows of kind {kind}")
    return FlatRows(thread, checkpoints, writes, items, lists)


_MOST_LISTS = 1000
"""No value has as many range lists; a damaged row may name billions."""


def split_by_thread(rows: Iterable[Row], numbers: Iterable[int], owners: Sequence[int]) -> dict[int, list[Row]]:
    """Return the rows of `load-several` by the number of their thread. `owners` has that of each wanted checkpoint."""
    split: dict[int, list[Row]] = {number: [] for number in numbers}
    for row in rows:
        split[owners[row[1]] if row[0] in (_CHECKPOINT, _WRITES) else row[1]].append(row)
    return split


def _read_thread(row: Row) -> ThreadRow:
    """Read a thread's row. One Python call if its counters are small and its run is a UUID."""
    (
        _, _, epoch, rev, created, updated, checkpoints, writes, size, step, labels, tenant, id, nexts, top, run, early,
        lease, kind, source, status, early_status, _, facts,
        sealed, description,
    ) = row  # fmt: skip
    key = _new(ThreadKey, (tenant.decode("utf-8", "surrogatepass"), kind, id.decode("utf-8", "surrogatepass")))
    thread: ThreadRow = _new(
        ThreadRow,
        (
            key,
            epoch,
            rev,
            tuple(nexts) if nexts.isascii() else tuple(read_varints(nexts)),
            created,
            updated,
            checkpoints,
            writes,
            size,
            None if top is None else top.decode("utf-8", "surrogatepass"),
            unpack_id(run) if run else None,
            step,
            source,
            status,
            labels,
            None if early is None else early.decode("utf-8", "surrogatepass"),
            early_status,
            lease,
            *facts,
            sealed,
            description,
        ),
    )
    if len(thread) != len(ThreadRow._fields):
        raise ValueError("a thread's row has other columns")
    return thread
