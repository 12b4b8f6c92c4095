"""Decode stored values to plain JSON data, for people. No class of the application is imported or called.

Values that JSON does not have become a dict with a special key:

    an object            {"$type": "module.Class", …its fields}; {"$type": …, "value": …} if it has no fields
    bytes                {"$bytes": base64}
    a dict whose keys    {"$entries": [[key, value], …]}
      are not all str
    nan, inf             {"$float": "nan"}
    not readable         {"$opaque": tag, "$size": bytes}: pickle, and the values of other serializers

Datetimes, UUIDs and similar values become their text; sets and tuples inside objects become lists.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import ormsgpack

from threadkeep.engine.log.codec import MSGPACK, why_not_decoded
from threadkeep.engine.log.encoder import decode_extension
from threadkeep.engine.log.msgpack import (
    ENTRIES,
    INTEGER,
    KEYWORDS,
    LARGE,
    METHOD,
    NUMPY,
    POSITIONAL,
    PYDANTIC_1,
    PYDANTIC_2,
    SINGLE,
    SNAPSHOT,
    TEXT,
    WHOLE,
    header,
    hook_inside,
)
from threadkeep.errors import Corrupt

TYPE = "$type"
_LISTS = frozenset({("builtins", "set"), ("builtins", "frozenset"), ("collections", "deque"), ("builtins", "tuple")})
_TEXTS = frozenset(
    {
        ("uuid", "UUID"),
        ("decimal", "Decimal"),
        ("pathlib", "Path"),
        ("pathlib", "PosixPath"),
        ("zoneinfo", "ZoneInfo"),
    }
)
_POSITIONS = {
    ("langgraph.types", "Send"): ("node", "arg"),
    ("langgraph.types", "Interrupt"): ("value", "id"),
}
"""The names of the fields of objects that are stored by position."""


def plain(tag: str, data: bytes, *, what: str = "a value") -> Any:
    """Return a stored value as plain data. `what` names it if it is Corrupt."""
    if tag == "null":
        return None
    if tag == MSGPACK:
        try:
            return _jsonable(_unpack(data, _object))
        except (ValueError, RecursionError) as error:
            raise Corrupt(f"{what} cannot be decoded: {why_not_decoded(error)}") from error
    if tag == "json":
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Corrupt(f"{what} cannot be decoded: {why_not_decoded(error)}") from error
    if tag in ("bytes", "bytearray"):
        return _bytes(data)
    return {"$opaque": tag, "$size": len(data)}


def plain_parts(kind: int, tag: str, elements: int, data: bytes, *, what: str = "a value") -> Any:
    """Return a value that is stored in parts as plain data. `data` are the joined parts."""
    return plain(tag, data if kind == WHOLE else header(kind, elements) + data, what=what)


def jsonable(value: Any) -> Any:
    """Return any decoded value (metadata, a memory, what a caller made) as plain data."""
    return _jsonable(value)


def type_of(value: Any) -> str:
    """Return the name of the class that a plain value was stored as, without its module; empty if it has none."""
    return str(value[TYPE]).rpartition(".")[2] if isinstance(value, Mapping) and TYPE in value else ""


def _unpack(data: bytes, hook: Callable[[int, bytes], Any]) -> Any:
    return ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)


def _object(code: int, data: bytes, *, depth: int = 1024) -> Any:
    """Decode an extension value: an object becomes its stored fields and the name of its class."""
    hook = hook_inside(data, _object, depth)
    if code in (TEXT, ENTRIES, INTEGER, LARGE):
        return decode_extension(code, data, partial(_unpack, hook=hook))
    value = ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
    if code == SNAPSHOT:
        return value
    if code == NUMPY:
        return {TYPE: "numpy.ndarray", "value": _dtype_and_shape(value)}
    if not (isinstance(value, list) and len(value) > 2):
        return {"$opaque": f"extension {code}", "$size": len(data)}
    name, stored = (str(value[0]), str(value[1])), value[2]
    if code == METHOD or (code == SINGLE and name in _TEXTS):
        return stored
    if code in (SINGLE, POSITIONAL) and name in _LISTS and isinstance(stored, list):
        return list(_only_argument(stored) if code == POSITIONAL else stored)
    return {TYPE: ".".join(name), **_fields(code, name, stored)}


def _fields(code: int, name: tuple[str, str], stored: Any) -> dict[str, Any]:
    if code in (KEYWORDS, PYDANTIC_1, PYDANTIC_2) and isinstance(stored, dict):
        return {str(key): value for key, value in stored.items()}
    if code == POSITIONAL and isinstance(stored, list) and name in _POSITIONS:
        return dict(zip(_POSITIONS[name], stored, strict=False))
    return {"value": stored}


def _only_argument(stored: Any) -> Iterable[Any]:
    return stored[0] if isinstance(stored, list) and stored and isinstance(stored[0], list) else []


def _dtype_and_shape(value: Any) -> Any:
    """A numpy array without its numbers, which people seldom want to see."""
    is_array = isinstance(value, list) and len(value) > 1 and isinstance(value[1], list)
    return [str(value[0]), value[1]] if is_array else None


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {_jsonable(key): _jsonable(inner) for key, inner in value.items()}
        return {"$entries": [[_jsonable(key), _jsonable(inner)] for key, inner in value.items()]}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes(bytes(value))
    return str(value)


def _bytes(data: bytes) -> dict[str, str]:
    return {"$bytes": b64encode(data).decode()}


def is_message(value: Any) -> bool:
    """Whether a plain value is a message: one of LangChain's, or a dict with a role and content."""
    if not isinstance(value, Mapping):
        return False
    return type_of(value).endswith(("Message", "MessageChunk")) or ("role" in value and "content" in value)


def message_id(value: Any) -> str | None:
    """The id of a message; None if it does not have one, or is not a message."""
    found = value.get("id") if is_message(value) else None
    return found if isinstance(found, str) and found else None


def message_role(message: Mapping[str, Any]) -> str:
    """Return the role of a message: its `role` or `type`, or what its class name says."""
    for key in ("role", "type"):
        if isinstance(message.get(key), str) and message[key]:
            return str(message[key])
    return type_of(message).removesuffix("Chunk").removesuffix("Message").lower() or "?"
