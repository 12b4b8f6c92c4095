"""Thread keys and ids: checking the ids that callers pass, and converting ids to stored bytes and back.

Ids are stored as UTF-8 with surrogates passed through. So every character is allowed, and bytes sort as Python sorts
strings. Ids that the database never sorts (tasks, parents, runs) are packed: a UUID takes 17 bytes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args
from uuid import UUID

Kind: TypeAlias = Literal["graph", "cube"]
GRAPH: Final = "graph"
CUBE: Final = "cube"
KINDS: tuple[Kind, ...] = get_args(Kind)
UNFINISHED = "\0moving\0"
"""Prefix of the tenant of threads that are built only to be merged into others, or to replace them. No Keep has such a
tenant."""
SEALING = "\0sealing\0"
"""The same for threads whose encrypted rows are stored piece by piece, before they are copied to their place."""
CACHE = "\0cache\0"
"""Prefix of the tenant that has the entries of another tenant's cache, as memories. No Keep has such a tenant."""
RESERVED_TENANTS = (UNFINISHED, SEALING, CACHE)

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{32}")


class ThreadKey(NamedTuple):
    """Identifies a thread. The same id under another tenant or kind is another thread."""

    tenant: str
    kind: Kind
    id: str


def as_id(value: Any, what: str) -> str:
    """Return an id as a str. An int or UUID is converted; TypeError for anything else. `what` names it there."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        return str(value)
    raise TypeError(f"{what} must be a str (int and UUID are accepted), not {type(value).__name__}")


def as_tenant(value: Any, what: str) -> str:
    """Return the name of a tenant; ValueError if it is one of those that no Keep has."""
    name = as_id(value, what)
    if name.startswith(RESERVED_TENANTS):
        raise ValueError(f"{what} starts with {name[: name.index(chr(0), 1) + 1]!r}, which is reserved")
    return name


def as_optional_id(value: Any, what: str) -> str | None:
    """Return an id as a str, or None for None."""
    return None if value is None else as_id(value, what)


def as_kind(value: Any) -> Kind | None:
    """Return a kind of thread, or None, which means both kinds. ValueError for anything else."""
    if value not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH!r} or {CUBE!r}, not {value!r}")
    kind: Kind | None = value
    return kind


def as_ids(values: Any, what: str) -> list[str]:
    """Return a list of ids. A single str is a TypeError, because each of its characters would count as an id."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{what} must be a sequence of ids, not a single {type(values).__name__}")
    return [as_id(value, what) for value in values]


def as_count(value: Any, what: str) -> int:
    """Return a non-negative int. TypeError or ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{what} must not be negative: {value}")
    return value


def to_bytes(text: str) -> bytes:
    """Return an id as bytes that sort as the ids do."""
    return text.encode("utf-8", "surrogatepass")


def from_bytes(data: bytes) -> str:
    """Reverse `to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def decode_lossy(data: Any) -> str | None:
    """Decode bytes as text, with invalid UTF-8 escaped; None if `data` is not bytes."""
    return bytes(data).decode("utf-8", "backslashreplace") if isinstance(data, (bytes, memoryview, bytearray)) else None


@lru_cache(maxsize=1024)
def pack_id(text: str) -> bytes:
    """Return an id as few bytes, which do not sort as the ids do.

    A UUID becomes `u` and its 16 bytes, a UUID without dashes `h` and 16 bytes, any other id `s` and its UTF-8.
    """
    if len(text) == 36 and _UUID.fullmatch(text):
        return b"u" + bytes.fromhex(text.replace("-", ""))
    if len(text) == 32 and _HEX.fullmatch(text):
        return b"h" + bytes.fromhex(text)
    return b"s" + to_bytes(text)


def unpack_id(data: bytes) -> str:
    """Reverse `pack_id`."""
    if data[:1] == b"u":
        if len(data) != 17:
            return str(UUID(bytes=data[1:]))  # raises
        text = data.hex()
        return f"{text[2:10]}-{text[10:14]}-{text[14:18]}-{text[18:22]}-{text[22:]}"
    if data[:1] == b"h":
        return data[1:].hex()
    return data[1:].decode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def pack_path(text: str) -> bytes:
    """Return the path of a task as few bytes: of those that LangGraph makes, only the node's name is stored.

    It is byte 1 and the name. Any other path is its UTF-8, after a byte 0 if it starts with byte 0 or 1 itself.
    """
    if text.startswith(_PULL):
        return b"\x01" + to_bytes(text[len(_PULL) :])
    data = to_bytes(text)
    return b"\x00" + data if data[:1] in _MARKS else data


@lru_cache(maxsize=1024)
def unpack_path(data: bytes) -> str:
    """Reverse `pack_path`."""
    if data[:1] == b"\x01":
        return _PULL + from_bytes(data[1:])
    return from_bytes(data[1:] if data[:1] == b"\x00" else data)


_PULL = "~__pregel_pull, "
"""What LangGraph puts before the node's name in the path of a task that a channel started."""
_MARKS = frozenset((b"\x00", b"\x01"))
