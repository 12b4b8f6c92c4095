"""How ids and thread rows become SQL columns and back, the same in every dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadkeep.engine.identity import ThreadKey, decode_lossy, pack_id, to_bytes, unpack_id
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import ItemRange, new_tuple
from threadkeep.engine.log.records import ThreadRow
from threadkeep.errors import Corrupt

Row = tuple[Any, ...]
Values = Mapping[str, Any]
_UTF8 = ("utf-8", "surrogatepass")
"""How `identity.from_bytes` decodes. Here it is written out, because each call of a read is counted."""
THREAD_COLUMNS, FAMILY = 26, 21
"""How many columns the block `thread-columns` has, and where the family is."""


def maybe_bytes(text: str | None) -> bytes | None:
    """Return an id as sortable bytes; None stays None."""
    return to_bytes(text) if text is not None else None


def maybe_pack(text: str | None) -> bytes | None:
    """Return an id in its shortest form; None stays None."""
    return pack_id(text) if text is not None else None


def maybe_unpack(data: bytes | None) -> str | None:
    """Return the id that `maybe_pack` was given. Empty bytes mean None: PostgreSQL stores them in place of NULL."""
    return unpack_id(data) if data else None


def range_values(items: ItemRange) -> dict[str, int]:
    """Return an item range as values."""
    return {"lane": items.lane, "start": items.start, "end": items.start + items.length}


def thread_row(row: Row) -> ThreadRow:
    """Read a row of the block `thread-columns`. Corrupt if a column has no such value."""
    try:
        (
            _, tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, size, top, run, step, source,
            status, labels, early, early_status, lease, family, top_writes, early_writes, bytes_check, checksum,
        ) = row[:THREAD_COLUMNS]  # fmt: skip
        return new_tuple(ThreadRow, (
            new_tuple(ThreadKey, (tenant.decode(*_UTF8), kind, id.decode(*_UTF8))), epoch, rev,
            tuple(nexts) if type(nexts) is bytes and nexts.isascii() else tuple(itemlog.read_varints(nexts)), created,
            updated, checkpoints, writes, size, top.decode(*_UTF8) if top is not None else None,
            unpack_id(run) if run else None, step, source, status, labels,
            early.decode(*_UTF8) if early is not None else None, early_status, lease, family, top_writes, early_writes,
            bytes_check, checksum,
        ))  # fmt: skip
    except Exception as error:
        raise Corrupt(f"the row of thread {decode_lossy(row[3]) or row[3]!r} cannot be read: {error!r}") from error
