"""Who is who: thread keys, and how ids become bytes and come back.

Ids are stored as UTF-8 with surrogates passed through, so the order of bytes is Python's order of strings and any
character is allowed. Ids that are never sorted by the database (tasks, parents, runs) are packed: a UUID is 17 bytes.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from uuid import UUID

GRAPH = "graph"
CUBE = "cube"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{32}")


class ThreadKey(NamedTuple):
    """A thread: the same id under another tenant or kind is another thread."""

    tenant: str
    kind: str
    id: str


def as_id(value: Any, what: str) -> str:
    """An id as a str: int and UUID are turned into one, anything else but str is a TypeError."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        return str(value)
    raise TypeError(f"{what} must be a str (int and UUID are accepted), not {type(value).__name__}")


def as_optional_id(value: Any, what: str) -> str | None:
    """The same, but None stays None."""
    return None if value is None else as_id(value, what)


def as_kind(value: Any) -> str | None:
    """A kind of thread, or None for both; ValueError for anything else."""
    if value not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {value!r}")
    kind: str | None = value
    return kind


def as_ids(values: Any, what: str) -> list[str]:
    """A list of ids; a lone str is a TypeError, because each of its characters would count as an id."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{what} must be a sequence of ids, not a lone {type(values).__name__}")
    return [as_id(value, what) for value in values]


def as_count(value: Any, what: str) -> int:
    """A number of things: an int that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{what} must not be negative: {value}")
    return value


def to_bytes(text: str) -> bytes:
    """An id as sortable bytes."""
    return text.encode("utf-8", "surrogatepass")


def from_bytes(data: bytes) -> str:
    """The id that `to_bytes` was given."""
    return data.decode("utf-8", "surrogatepass")


def pack_id(text: str) -> bytes:
    """An id as few bytes, unsortable: `u` or `h` and 16 bytes for a UUID with dashes or without, else `s` and UTF-8."""
    if len(text) == 36 and _UUID.fullmatch(text):
        return b"u" + bytes.fromhex(text.replace("-", ""))
    if len(text) == 32 and _HEX.fullmatch(text):
        return b"h" + bytes.fromhex(text)
    return b"s" + to_bytes(text)


def unpack_id(data: bytes) -> str:
    """The id that `pack_id` was given."""
    if data[:1] == b"u":
        return str(UUID(bytes=data[1:]))
    if data[:1] == b"h":
        return data[1:].hex()
    return from_bytes(data[1:])
