"""How ids and thread rows become SQL columns and back, the same in every dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from threadkeep.engine.identity import ThreadKey, decode_lossy, pack_id, to_bytes, unpack_id
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import ItemRange, new_tuple
from threadkeep.engine.log.records import ThreadRow
from threadkeep.errors import Corrupt, reason

Row = tuple[Any, ...]
Values = Mapping[str, Any]
_UTF8 = ("utf-8", "surrogatepass")
"""How `identity.from_bytes` decodes. Here it is written out, because each call of a read is counted."""
_scan_json: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]
"""Reads the JSON value at a position and returns it and where it ends. json.loads makes three calls around it."""
_INT = {int}
THREAD_COLUMNS, FAMILY, SEALED = 28, 21, 26
"""How many columns the block `thread-columns` has, and where the family and `sealed` are."""


def maybe_bytes(text: str | None) -> bytes | None:
    """Return an id as sortable bytes; None stays None."""
    return to_bytes(text) if text is not None else None


def maybe_pack(text: str | None) -> bytes | None:
    """Return an id in its shortest form; None stays None."""
    return pack_id(text) if text is not None else None


def maybe_unpack(data: bytes | None) -> str | None:
    """Return the id that `maybe_pack` was given. Empty bytes mean None: PostgreSQL stores them in place of NULL."""
    return unpack_id(data) if data else None


def pack_index(index: tuple[int, ...]) -> str:
    """Return the index of some writes as text: (channel, size) of each, or a JSON list of (idx, channel, size).

    The first if they are numbered from 0 on, as those of most tasks. json.dumps would take three times as long.
    """
    numbers = list(index)
    if numbers and numbers[::3] == list(range(len(numbers) // 3)):
        del numbers[::3]
        return str(numbers)[1:-1].replace(" ", "")
    return str(numbers).replace(" ", "")


def unpack_index(entries: str) -> tuple[int, ...]:
    """Reverse `pack_index`. ValueError if it is not a list of integers."""
    is_list = type(entries) is not str or not "0" <= entries[:1] <= "9"
    text = entries if is_list else f"[{entries}]"
    try:
        numbers, end = _scan_json(text, 0)
    except (StopIteration, TypeError, ValueError):
        numbers, end = None, -1
    if end < 0 or end != len(text):  # spaces around it, or damaged
        numbers = json.loads(text)
    if type(numbers) is not list or not set(map(type, numbers)) <= _INT or len(numbers) % (3 if is_list else 2):
        raise ValueError("the index of writes is damaged")
    if is_list:
        return tuple(numbers)
    index = [0] * (len(numbers) // 2 * 3)
    index[::3], index[1::3], index[2::3] = range(len(numbers) // 2), numbers[::2], numbers[1::2]
    return tuple(index)


def range_values(items: ItemRange) -> dict[str, int]:
    """Return an item range as values."""
    return {"lane": items.lane, "start": items.start, "end": items.start + items.length}


def sealed_of(row: Row) -> bytes | None:
    """Return `sealed` of a row of the block `thread-columns`; None if it is none, or damaged."""
    return row[SEALED] if type(row[SEALED]) is bytes else None


def thread_row(row: Row) -> ThreadRow:
    """Read a row of the block `thread-columns`. Corrupt if a column has no such value."""
    try:
        (
            _, tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, size, top, run, step, source,
            status, labels, early, early_status, lease, family, top_writes, early_writes, bytes_check, checksum,
            sealed, description,
        ) = row[:THREAD_COLUMNS]  # fmt: skip
        return new_tuple(ThreadRow, (
            new_tuple(ThreadKey, (tenant.decode(*_UTF8), kind, id.decode(*_UTF8))), epoch, rev,
            tuple(nexts) if type(nexts) is bytes and nexts.isascii() else tuple(itemlog.read_varints(nexts)), created,
            updated, checkpoints, writes, size, top.decode(*_UTF8) if top is not None else None,
            unpack_id(run) if run else None, step, source, status, labels,
            early.decode(*_UTF8) if early is not None else None, early_status, lease, family, top_writes, early_writes,
            bytes_check, checksum, sealed, description,
        ))  # fmt: skip
    except Exception as error:
        raise Corrupt(
            f"the row of thread {decode_lossy(row[3]) or row[3]!r} cannot be read: {reason(error)}"
        ) from error
