"""Find the classes that stored values name, without building or importing them."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.engine.log.encoder import decode_extension
from threadkeep.engine.log.msgpack import ENTRIES, JSON, NUMPY, OPAQUE, SNAPSHOT, WHOLE, header, hook_inside

_BYTES = ("null", "bytes", "bytearray")


class StoredClass(NamedTuple):
    """A class as stored values name it, and the extension code that says how its objects are stored."""

    module: str
    name: str
    code: int

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.module else self.name


def classes_in(kind: int, tag: str, elements: int, data: bytes) -> Counter[StoredClass] | None:
    """Count the objects of each class in a value that is stored in joined parts; None if it cannot be decoded."""
    found: Counter[StoredClass] = Counter()
    try:
        if tag == "msgpack":
            _unpack(data if kind == WHOLE else header(kind, elements) + data, partial(_count, found))
        elif tag == "json":
            json.loads(data, object_hook=partial(_count_json, found))
        elif tag not in _BYTES:
            found[StoredClass("", tag, OPAQUE)] += 1
    except (ValueError, RecursionError, IndexError, TypeError):
        return None
    return found


def _unpack(data: bytes, hook: Any) -> Any:
    return ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)


def _count(found: Counter[StoredClass], code: int, data: bytes, *, depth: int = 1024) -> None:
    """Count an extension object and those in it. Nothing stands for it in what is decoded."""
    unpack = partial(_unpack, hook=hook_inside(data, partial(_count, found), depth))
    if code > SNAPSHOT:
        if code == ENTRIES:
            decode_extension(code, data, unpack)
        return
    value = unpack(data)
    if code == NUMPY:
        found[StoredClass("numpy", "ndarray", code)] += 1
    elif code != SNAPSHOT and isinstance(value, list) and len(value) > 2:
        found[StoredClass(str(value[0]), str(value[1]), code)] += 1


def _count_json(found: Counter[StoredClass], value: dict[str, Any]) -> None:
    path = value.get("id")
    if value.get("lc") in (1, 2) and isinstance(path, list) and len(path) > 1:
        found[StoredClass(".".join(map(str, path[:-1])), str(path[-1]), JSON)] += 1
