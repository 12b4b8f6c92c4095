"""The default merge of a channel's value with writes, for when the graph is not at hand: show, diff, blame and repair.

    a list        a write that is a list is added at the end, any other write is one more element. A message replaces
                  the one with its id; a RemoveMessage removes the one that it names, or all before it
    a dict        a write that is a dict is merged by key
    Overwrite     what it holds becomes the value, in every form that LangGraph's `_get_overwrite` accepts
    else          the last write is the value

It works on stored bytes, so it needs no class of the application. The result is that of reducers which add, extend,
merge or replace, and of LangGraph's `add_messages`, except that a message written without an id does not get one. What
any other reducer does, only the graph knows.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.engine.history.paths import is_message, message_id
from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, extension, opened, split_parts
from threadkeep.engine.log.plain import plain, type_of
from threadkeep.errors import Corrupt

_JSON = "json"
_REMOVE, _ALL = "RemoveMessage", "__remove_all__"
_OVERWRITE, _TYPE, _VALUE = map(ormsgpack.packb, ("__overwrite__", "type", "value"))
_OVERWRITE_CLASS = [ormsgpack.packb("langgraph.types"), ormsgpack.packb("Overwrite")]


def merged(base: Parts | None, writes: Iterable[Parts], *, delta: bool = False) -> Parts | None:
    """Return the value after these writes; None if there was none and nothing was written.

    A `delta` channel always has a reducer: a single message that is written to an empty one starts a list.
    """
    given = [*([base] if base is not None else []), *writes]
    held = _opened(_as_msgpack(base)) if base is not None else None
    for write in given[base is not None :]:
        held = _after(held, _as_msgpack(write), delta=delta)
    if held is None:
        return None
    value = Parts(held.kind, held.tag, list(held.parts.values()), held.snapshot)
    return _as_json(value) if value.tag == MSGPACK and any(each.tag == _JSON for each in given) else value


class _StoredValue(NamedTuple):
    """A value while it is merged: elements of a list by message id, entries of a dict by key, or one part."""

    kind: int
    tag: str
    parts: dict[Hashable, bytes]
    snapshot: bool = False


def _after(held: _StoredValue | None, write: Parts, *, delta: bool) -> _StoredValue:
    overwrite = _overwrite_value(write)
    if overwrite is not None:
        return _opened(Parts(WHOLE, MSGPACK, [overwrite]))
    new = _opened(write)
    if held is None and delta and is_message(_element(write.data)):
        held = _StoredValue(LIST, MSGPACK, {})
    if held is None or new.tag != MSGPACK or held.tag != MSGPACK:
        return new
    if held.kind == LIST:
        for element in new.parts.values() if new.kind == LIST else [write.data]:
            _add(held.parts, element)
        return held
    if held.kind == MAP and new.kind == MAP:
        held.parts.update(new.parts)
        return held
    return new


def _opened(value: Parts) -> _StoredValue:
    kind, parts = _split(value)
    if kind == MAP:
        return _StoredValue(kind, value.tag, {next(split_parts(entry, 2)): entry for entry in parts}, value.snapshot)
    held: dict[Hashable, bytes] = {}
    for part in parts:
        id = message_id(_element(part)) if kind == LIST else None
        held[object() if id is None or id in held else id] = part
    return _StoredValue(kind, value.tag, held, value.snapshot)


def _add(held: dict[Hashable, bytes], element: bytes) -> None:
    value = _element(element)
    id = message_id(value)
    if type_of(value) != _REMOVE:
        held[object() if id is None else id] = element
    elif id == _ALL:
        held.clear()
    else:
        held.pop(id, None)


def _element(data: bytes) -> Any:
    """The plain form of an element that may be a message: an object or a dict. None for others."""
    if extension(data, 0) is None and opened(data, 0)[0] != MAP:
        return None
    try:
        return plain(MSGPACK, data)
    except Corrupt:
        return None


def _split(value: Parts) -> tuple[int, Sequence[bytes]]:
    """The elements or entries of a value, also of a list or dict that is stored whole."""
    if value.kind != WHOLE or value.tag != MSGPACK:
        return value.kind, value.parts
    kind, count, start = opened(value.parts[0], 0)
    if kind == WHOLE:
        return kind, value.parts
    return kind, list(split_parts(value.parts[0][start:], count)) if count else []


def _overwrite_value(write: Parts) -> bytes | None:
    """The value of an Overwrite: of the object, of {"__overwrite__": …} or of {"value": …, "type": "__overwrite__"}."""
    if write.tag != MSGPACK:
        return None
    stored_class, (kind, entries) = _class_and_fields(write)
    if kind != MAP:
        return None
    pairs = [list(split_parts(entry, 2)) for entry in entries]
    fields = {pair[0]: pair[1] for pair in pairs}
    if not stored_class and fields.keys() == {_OVERWRITE}:
        return fields[_OVERWRITE]
    is_overwrite = stored_class == _OVERWRITE_CLASS or fields.get(_TYPE) == _OVERWRITE
    return fields.get(_VALUE) if is_overwrite else None


def _class_and_fields(write: Parts) -> tuple[Sequence[bytes], tuple[int, Sequence[bytes]]]:
    """Module and name of a stored object, and its fields; a value that is no object has itself as fields."""
    found = extension(write.parts[0], 0) if write.kind == WHOLE else None
    if found is None:
        return [], _split(write)
    kind, stored = _split(Parts(WHOLE, MSGPACK, [write.parts[0][found[1] :]]))
    if kind != LIST or len(stored) < 3:
        return [], (WHOLE, [])
    return stored[:2], _split(Parts(WHOLE, MSGPACK, [stored[2]]))


# --- values of serializers that write JSON


def _as_msgpack(value: Parts) -> Parts:
    """JSON as msgpack; as it is if msgpack has no room for it, and then nothing is merged with it."""
    if value.tag != _JSON:
        return value
    try:
        return Parts(WHOLE, MSGPACK, [ormsgpack.packb(json.loads(value.data))], value.snapshot)
    except (ValueError, TypeError):
        return value


def _as_json(value: Parts) -> Parts:
    return Parts(WHOLE, _JSON, [json.dumps(ormsgpack.unpackb(value.data)).encode()], value.snapshot)
