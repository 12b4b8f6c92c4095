"""The SQL backends: how values become columns and come back, alike in every dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadkeep.engine.identity import ThreadKey, from_bytes, pack_id, to_bytes, unpack_id
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.records import ThreadRow

Row = tuple[Any, ...]
Values = Mapping[str, Any]


def maybe_bytes(text: str | None) -> bytes | None:
    """An id as sortable bytes, if there is one."""
    return to_bytes(text) if text is not None else None


def maybe_pack(text: str | None) -> bytes | None:
    """An id as few bytes, if there is one."""
    return pack_id(text) if text is not None else None


def _text(data: bytes | None) -> str | None:
    return from_bytes(data) if data is not None else None


def maybe_unpack(data: bytes | None) -> str | None:
    """The id that `maybe_pack` was given."""
    return unpack_id(data) if data else None


def thread_row(row: Row) -> ThreadRow:
    """A row of {thread-columns}."""
    _, tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, size, *told = row[:21]
    top, run, step, source, status, labels, early, early_status, lease = told
    return ThreadRow(
        key=ThreadKey(from_bytes(tenant), kind, from_bytes(id)), epoch=epoch, rev=rev,
        nexts=tuple(itemlog.read_varints(nexts)), created=created, updated=updated, checkpoints=checkpoints,
        writes=writes, bytes=size, top=_text(top), run=maybe_unpack(run), step=step, source=source, status=status,
        labels=labels, early=_text(early), early_status=early_status, lease=lease,
    )  # fmt: skip
