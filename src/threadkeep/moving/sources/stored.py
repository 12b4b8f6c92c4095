"""The columns of a stored memory, as LangGraph's SQL stores have them, read into a row of ours."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from threadkeep.engine import values
from threadkeep.engine.memories import MemoryRow
from threadkeep.moving.foreign import Remembered, UnreadableError, microseconds, moment


def remembered(
    prefix: str,
    key: str,
    value: Any,
    created: Any,
    updated: Any,
    expires: Any,
    ttl: Any,
    *,
    vectors: tuple[bytes, ...] = (),
) -> Remembered | UnreadableError:
    """A memory from its columns; why not, if it is none."""
    try:
        text = values.dump(json.loads(value) if isinstance(value, (str, bytes)) else value)
        row = MemoryRow(
            tuple(prefix.split(".")), key, text, _time(created), _time(updated),
            _time(expires) if expires is not None else None, float(ttl) if ttl is not None else None,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        return UnreadableError(f"memory {key!r} of {prefix!r}: {error}")
    if not all(row.space):
        return UnreadableError(f"memory {key!r} of {prefix!r}: a segment of its namespace is empty")
    return Remembered(row, vectors)


def _time(given: Any) -> int:
    time = given if isinstance(given, datetime) else moment(given)
    if time is None:
        raise ValueError(f"{given!r} is no time")
    return microseconds(time)
