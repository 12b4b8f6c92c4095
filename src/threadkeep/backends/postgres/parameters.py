"""Parameters of PostgreSQL statements as bytes, in the binary form of their types.

A driver that guesses the type of each value takes longer for that than for all the rest; our SQL names the types of
arrays, and the type of a single value follows from its Python type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from threadkeep.engine import memories

UNKNOWN, BOOLEAN, BYTEA, BIGINT, TEXT, DOUBLE = 0, 16, 17, 20, 25, 701
"""Numbers of types in PostgreSQL. The server infers an unknown one."""
BOOLEANS, BYTEAS, TEXTS, BIGINTS = 1000, 1001, 1009, 1016
"""Arrays of these types."""
_ARRAYS = {"bigint": BIGINTS, "integer": BIGINTS, "bytea": BYTEAS, "text": TEXTS, "boolean": BOOLEANS, "real": 1021}
_REAL = 700
TYPES = frozenset({BOOLEAN, BYTEA, BIGINT, TEXT, DOUBLE, *_ARRAYS.values()})
"""All types of parameters in binary form."""

Parameters: TypeAlias = Sequence[bytes | None]

_HEADER = struct.Struct("!iiIii").pack
_SIZED_INT = struct.Struct("!iq").pack
_SIZE = struct.Struct("!i").pack
_NULL = _SIZE(-1)
_SIZE_OF_INT = _SIZE(8)
pack_int = struct.Struct("!q").pack
"""Return an int as a BIGINT."""
pack_float = struct.Struct("!d").pack
"""Return a float as a DOUBLE."""


class TypedSql:
    """A statement with $1, $2, …, and the types of these; it is equal to itself only.

    `keeps_plan` says whether a plan for all values is as good as one for these values. `formats` has 1 for a parameter
    in binary form, 0 for text, which may be of an unknown type.
    """

    __slots__ = ("formats", "keeps_plan", "text", "types")

    def __init__(self, text: bytes, types: tuple[int, ...], *, keeps_plan: bool = False) -> None:
        self.text, self.types, self.keeps_plan = text, types, keeps_plan
        self.formats = tuple(int(type != UNKNOWN) for type in types)


def array_type(kind: str) -> int:
    """Return the type of an array of a kind of elements: bigint, integer, bytea, text, boolean or real."""
    return _ARRAYS[kind]


_ARRAYS_OF = {BIGINT: BIGINTS, BYTEA: BYTEAS, TEXT: TEXTS}


def array_type_of(type: int) -> int:
    """Return the type of an array of BIGINT, BYTEA or TEXT."""
    return _ARRAYS_OF[type]


def array_of(type: int, values: Sequence[bytes | None]) -> bytes:
    """Return an array of values that are packed already. One Python call; for ints without NULL, three in C."""
    has_null = None in values
    if type == BIGINT and not has_null:
        return _SIZE_OF_INT.join((_HEADER(1, 0, type, len(values), 1), *values))  # type: ignore[arg-type]
    parts = [_HEADER(1, has_null, type, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(_SIZE(len(value)))
            parts.append(value)
    return b"".join(parts)


def _sized(data: bytes) -> bytes:
    return _SIZE(len(data)) + data


def ints(values: Sequence[int | None]) -> bytes:
    """Return an array of BIGINT."""
    packed = [_NULL if value is None else _SIZED_INT(8, value) for value in values]
    return _HEADER(1, None in values, BIGINT, len(values), 1) + b"".join(packed)


def byteas(values: Sequence[bytes | None]) -> bytes:
    """Return an array of BYTEA."""
    packed = [_NULL if value is None else _SIZE(len(value)) + value for value in values]
    return _HEADER(1, None in values, BYTEA, len(values), 1) + b"".join(packed)


def _texts(values: Sequence[str | None]) -> bytes:
    packed = [_NULL if value is None else _sized(value.encode()) for value in values]
    return _HEADER(1, None in values, TEXT, len(values), 1) + b"".join(packed)


def booleans(values: Sequence[bool]) -> bytes:
    """Return an array of BOOLEAN."""
    return _HEADER(1, 0, BOOLEAN, len(values), 1) + b"".join(_sized(b"\1" if value else b"\0") for value in values)


def _reals(data: bytes) -> bytes:
    """Return packed float32 numbers as an array."""
    if not data:
        return _HEADER(1, 0, _REAL, 0, 1)
    np = memories.vectors.import_numpy()
    numbers = np.frombuffer(bytes(data), "<f4")
    packed = np.empty(len(numbers), [("size", ">i4"), ("number", ">f4")])
    packed["size"], packed["number"] = 4, numbers
    encoded: bytes = packed.tobytes()
    return _HEADER(1, 0, _REAL, len(numbers), 1) + encoded


_PACKERS: dict[str, Callable[[Any], bytes]] = {
    "bigint": ints,
    "integer": ints,
    "bytea": byteas,
    "text": _texts,
    "boolean": booleans,
    "real": _reals,
}


def pack_array(kind: str, values: Any) -> bytes:
    """Return an array of a kind of elements. For `real`, `values` is packed float32 numbers."""
    return _PACKERS[kind](values)


def pack_value(value: Any) -> tuple[int, bytes | None]:
    """Return the type and the bytes of a single value. ValueError for a text that PostgreSQL cannot store."""
    match value:
        case None:
            return UNKNOWN, None
        case bool():
            return BOOLEAN, b"\1" if value else b"\0"
        case int():
            return BIGINT, pack_int(value)
        case str():
            if "\0" in value:
                raise ValueError("PostgreSQL cannot store the character NUL in a text")
            return UNKNOWN, value.encode()
        case float():
            return DOUBLE, pack_float(value)
        case bytes() | bytearray() | memoryview():
            return BYTEA, bytes(value)
    raise TypeError(f"cannot send a {type(value).__name__} to PostgreSQL")
