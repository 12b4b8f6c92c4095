"""Encode PostgreSQL arrays of a known type in the binary format.

psycopg inspects every list to guess its type, which takes ten microseconds. A commit has forty lists, and our SQL names
the type of each. The format: number of dimensions, whether there are NULLs, the element type, the length, the lower
bound 1, then each value after its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.postgres import types
from psycopg.pq import Format

from threadkeep.engine import memories

_HEADER = struct.Struct("!iiIii")
_INT = struct.Struct("!iq")
_SIZE = struct.Struct("!i")
_NULL = _SIZE.pack(-1)


class _Array(bytes):
    """An encoded array."""

    __slots__ = ()


class _Bigints(_Array):
    __slots__ = ()


class _Byteas(_Array):
    __slots__ = ()


class _Texts(_Array):
    __slots__ = ()


class _Booleans(_Array):
    __slots__ = ()


class _Reals(_Array):
    __slots__ = ()


def _with_size(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


_KINDS: dict[str, tuple[type[_Array], str, Callable[[Any], bytes]]] = {
    "bigint": (_Bigints, "int8", lambda number: _INT.pack(8, number)),
    "integer": (_Bigints, "int8", lambda number: _INT.pack(8, number)),
    "bytea": (_Byteas, "bytea", _with_size),
    "text": (_Texts, "text", lambda text: _with_size(text.encode())),
    "boolean": (_Booleans, "bool", lambda value: _with_size(b"\1" if value else b"\0")),
}
_OIDS = {kind: types[element].oid for kind, (_, element, _) in _KINDS.items()}


def array(kind: str, values: Sequence[Any]) -> _Array:
    """Encode values as an array of that type. For `real`, `values` is packed float32 numbers."""
    if kind == "real":
        return _reals(bytes(values))
    array_type, _, pack = _KINDS[kind]
    packed = [_NULL if value is None else pack(value) for value in values]
    return array_type(_HEADER.pack(1, None in values, _OIDS[kind], len(values), 1) + b"".join(packed))


def _reals(data: bytes) -> _Array:
    """Encode packed float32 numbers as an array."""
    if not data:
        return _Reals(_HEADER.pack(1, 0, _REAL, 0, 1))
    np = memories.vectors.import_numpy()
    numbers = np.frombuffer(data, "<f4")
    packed = np.empty(len(numbers), [("size", ">i4"), ("number", ">f4")])
    packed["size"], packed["number"] = 4, numbers
    return _Reals(_HEADER.pack(1, 0, _REAL, len(numbers), 1) + packed.tobytes())


_REAL = types["float4"].oid


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


def register(adapters: AdaptersMap) -> None:
    """Register the arrays with psycopg's adapters."""
    elements: dict[type[_Array], str] = {kind: element for kind, element, _ in _KINDS.values()}
    for kind, element in (elements | {_Reals: "float4"}).items():
        dumper = type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": types[element].array_oid})
        adapters.register_dumper(kind, dumper)
