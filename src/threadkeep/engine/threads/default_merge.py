"""The default merge: apply writes to a channel's value without the graph, for show, diff, blame and repair.

    list          a list is appended, any other write becomes one more element; a message replaces the one with its id,
                  a RemoveMessage removes the one that it names, or all before it
    dict          a dict is merged by key
    Overwrite     its value becomes the channel's value, in every form that LangGraph's `_get_overwrite` accepts
    other         the last write becomes the value

It works on stored bytes, so it needs no class of the application. The result is the same as with reducers that add,
extend, merge or replace, and as with LangGraph's `add_messages`, except that a message without an id does not get one.
Other reducers need the graph.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, read_extension, read_header, split_parts
from threadkeep.engine.log.plain import is_message, message_id, plain, type_of
from threadkeep.errors import Corrupt

_JSON = "json"
_REMOVE, _ALL = "RemoveMessage", "__remove_all__"
_OVERWRITE, _TYPE, _VALUE = map(ormsgpack.packb, ("__overwrite__", "type", "value"))
_OVERWRITE_CLASS = [ormsgpack.packb("langgraph.types"), ormsgpack.packb("Overwrite")]


def merge_writes(base: Parts | None, writes: Iterable[Parts], *, delta: bool = False) -> Parts | None:
    """Return the value after these writes; None if there was no value and nothing was written.

    A `delta` channel always has a reducer, so a single message that is written to an empty one starts a list.
    """
    given = [*([base] if base is not None else []), *writes]
    value = _split_value(_as_msgpack(base)) if base is not None else None
    for write in given[base is not None :]:
        value = _apply(value, _as_msgpack(write), delta=delta)
    if value is None:
        return None
    parts = Parts(value.kind, value.tag, list(value.parts.values()), value.snapshot)
    return _as_json(parts) if parts.tag == MSGPACK and any(each.tag == _JSON for each in given) else parts


class _SplitValue(NamedTuple):
    """A value while it is merged: elements of a list by message id, entries of a dict by key, or one part."""

    kind: int
    tag: str
    parts: dict[Hashable, bytes]
    snapshot: bool = False


def _apply(value: _SplitValue | None, write: Parts, *, delta: bool) -> _SplitValue:
    """Apply one write. The parts of `value` are changed in place."""
    overwrite = _overwrite_value(write)
    if overwrite is not None:
        return _split_value(Parts(WHOLE, MSGPACK, [overwrite]))
    new = _split_value(write)
    if value is None and delta and is_message(_plain_element(write.data)):
        value = _SplitValue(LIST, MSGPACK, {})
    if value is None or new.tag != MSGPACK or value.tag != MSGPACK:
        return new
    if value.kind == LIST:
        for element in new.parts.values() if new.kind == LIST else [write.data]:
            _add_element(value.parts, element)
        return value
    if value.kind == MAP and new.kind == MAP:
        value.parts.update(new.parts)
        return value
    return new


def _split_value(value: Parts) -> _SplitValue:
    kind, parts = _split(value)
    if kind == MAP:
        return _SplitValue(kind, value.tag, {next(split_parts(entry, 2)): entry for entry in parts}, value.snapshot)
    by_id: dict[Hashable, bytes] = {}
    for part in parts:
        id = message_id(_plain_element(part)) if kind == LIST else None
        by_id[object() if id is None or id in by_id else id] = part
    return _SplitValue(kind, value.tag, by_id, value.snapshot)


def _add_element(elements: dict[Hashable, bytes], element: bytes) -> None:
    value = _plain_element(element)
    id = message_id(value)
    if type_of(value) != _REMOVE:
        elements[object() if id is None else id] = element
    elif id == _ALL:
        elements.clear()
    else:
        elements.pop(id, None)


def _plain_element(data: bytes) -> Any:
    """An element that may be a message, an object or a dict, as plain data. None for other elements."""
    if read_extension(data, 0) is None and read_header(data, 0)[0] != MAP:
        return None
    try:
        return plain(MSGPACK, data)
    except Corrupt:
        return None


def _split(value: Parts) -> tuple[int, Sequence[bytes]]:
    """The kind of a value and its elements or entries, even if a list or dict is stored whole."""
    if (value.kind != WHOLE and not value.joined) or value.tag != MSGPACK:
        return value.kind, value.parts
    kind, count, start = read_header(value.parts[0], 0)
    if kind == WHOLE:
        return kind, value.parts
    return kind, list(split_parts(value.parts[0][start:], count)) if count else []


def _overwrite_value(write: Parts) -> bytes | None:
    """The value of an Overwrite object, {"__overwrite__": …} or {"value": …, "type": "__overwrite__"}. Else None."""
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
    """Module and name of a stored object, and its fields. A value that is not an object has no module and name."""
    found = read_extension(write.parts[0], 0) if write.kind == WHOLE else None
    if found is None:
        return [], _split(write)
    kind, stored = _split(Parts(WHOLE, MSGPACK, [write.parts[0][found[1] :]]))
    if kind != LIST or len(stored) < 3:
        return [], (WHOLE, [])
    return stored[:2], _split(Parts(WHOLE, MSGPACK, [stored[2]]))


# --- serializers that write JSON


def _as_msgpack(value: Parts) -> Parts:
    """JSON as msgpack. It stays JSON if msgpack cannot represent it; then nothing is merged with it."""
    if value.tag != _JSON:
        return value
    try:
        return Parts(WHOLE, MSGPACK, [ormsgpack.packb(json.loads(value.data))], value.snapshot)
    except (ValueError, TypeError):
        return value


def _as_json(value: Parts) -> Parts:
    return Parts(WHOLE, _JSON, [json.dumps(ormsgpack.unpackb(value.data)).encode()], value.snapshot)
