"""The default merge of a channel's value with writes, on stored bytes: no graph and no class of the application is needed.

    a list        writes that are lists are added at its end, one that is not is one more element. A message whose id is
                  there takes its place; a RemoveMessage removes the one it names, or all before it
    a dict        writes that are dicts are merged by key
    Overwrite     what it holds becomes the value
    else          the last write is the value

So reducers that add, extend, merge or replace, and LangGraph's `add_messages`, come out as they did; but a message that
was written without an id keeps none. What a reducer of one's own does differently, only the graph can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ormsgpack

from threadkeep.engine.codec import MSGPACK, Parts
from threadkeep.engine.plain import TYPE, plain, type_of
from threadkeep.engine.wire import LIST, MAP, WHOLE, header, split_parts
from threadkeep.errors import Corrupt

_REMOVE_ALL = "__remove_all__"
_OVERWRITE = "langgraph.types.Overwrite"
_OVERWRITE_KEY = b"\xad__overwrite__"


def merged(base: Parts | None, writes: Iterable[Parts]) -> Parts | None:
    """A value after some writes; None if there was none and nothing was written."""
    value = opened(base) if base is not None else None
    for write in writes:
        value = _after(value, write)
    return value


def _after(value: Parts | None, write: Parts) -> Parts:
    whole = _overwriting(write)
    if whole is not None:
        return opened(whole)
    new = opened(write)
    if value is None or new.tag != MSGPACK or value.tag != MSGPACK:
        return new
    if value.kind == LIST:
        return value._replace(parts=_list_after(value.parts, new.parts if new.kind == LIST else [_bytes(new)]))
    if value.kind == MAP and new.kind == MAP:
        return value._replace(parts=list({_key(entry): entry for entry in (*value.parts, *new.parts)}.values()))
    return new


def opened(value: Parts) -> Parts:
    """A list or dict that is held whole, by its elements or entries."""
    if value.kind != WHOLE or value.tag != MSGPACK or len(value.parts) != 1:
        return value
    data = value.parts[0]
    kind, count, start = _container(data)
    if kind == WHOLE:
        return value
    return value._replace(kind=kind, parts=list(split_parts(data[start:], count)) if count else [])


def _container(data: bytes) -> tuple[int, int, int]:
    """Of msgpack: whether it is an array or a map, of how many, and where the first begins."""
    first = data[0] if data else 0xC0
    if 0x80 <= first < 0xA0:
        return (MAP if first < 0x90 else LIST), first & 0x0F, 1
    if 0xDC <= first <= 0xDF:
        width = 2 if first in (0xDC, 0xDE) else 4
        return (LIST if first <= 0xDD else MAP), int.from_bytes(data[1 : 1 + width]), 1 + width
    return WHOLE, 0, 0


def _bytes(value: Parts) -> bytes:
    """The msgpack of a value."""
    joined = b"".join(value.parts)
    return joined if value.kind == WHOLE else header(value.kind, len(value.parts)) + joined


def _list_after(held: Sequence[bytes], added: Sequence[bytes]) -> list[bytes]:
    """A list with elements added; messages by their ids."""
    elements: list[bytes | None] = list(held)
    new = [(data, *_message(data)) for data in added]
    places: dict[str, int] = {}
    if any(id is not None for _, _, id in new):
        places = {id: n for n, data in enumerate(held) if (id := _message(data)[1]) is not None}
    for data, kind, id in new:
        if kind == "RemoveMessage" and id == _REMOVE_ALL:
            elements, places = [], {}
        elif kind == "RemoveMessage":
            if id in places:
                elements[places.pop(id)] = None
        elif id is not None and id in places:
            elements[places[id]] = data
        else:
            if id is not None:
                places[id] = len(elements)
            elements.append(data)
    return [data for data in elements if data is not None]


def _message(data: bytes) -> tuple[str, str | None]:
    """Of an element that is a message: its class and its id."""
    value = _plain(data) if data[:1] >= b"\xc7" else None
    kind = type_of(value)
    if not kind.endswith(("Message", "MessageChunk")) or not isinstance(value, dict):
        return "", None
    id = value.get("id")
    return kind, id if isinstance(id, str) else None


def _plain(data: bytes) -> Any:
    try:
        return plain(MSGPACK, data)
    except Corrupt:
        return None


def _overwriting(write: Parts) -> Parts | None:
    """What LangGraph's Overwrite holds, if a write is one."""
    if write.tag != MSGPACK:
        return None
    if write.kind == WHOLE and len(write.parts) == 1 and write.parts[0][:1] in _EXTENSIONS:
        value = _plain(write.parts[0])
        if isinstance(value, dict) and value.get(TYPE) == _OVERWRITE:
            return Parts(WHOLE, MSGPACK, [_held(write.parts[0])])
    entries = opened(write)
    if entries.kind == MAP and len(entries.parts) == 1 and entries.parts[0].startswith(_OVERWRITE_KEY):
        return Parts(WHOLE, MSGPACK, [entries.parts[0][len(_OVERWRITE_KEY) :]])
    return None


def _held(data: bytes) -> bytes:
    """The bytes of the only field of an object; those of other objects in it stay as they are."""
    stored: bytes = ormsgpack.unpackb(data, ext_hook=lambda _, inner: inner)
    fields = ormsgpack.unpackb(stored, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)[2]
    value = next(iter(fields.values())) if isinstance(fields, dict) else fields[0]
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def _key(entry: bytes) -> bytes:
    return next(iter(split_parts(entry, 2)))


_EXTENSIONS = frozenset(bytes([first]) for first in (*range(0xC7, 0xCA), *range(0xD4, 0xD9)))
"""How objects begin in msgpack."""
