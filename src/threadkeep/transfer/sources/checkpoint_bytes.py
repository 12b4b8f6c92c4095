"""Splitting a stored checkpoint into its values as bytes. No class that a row names is imported or called.

SqliteSaver stores a checkpoint as one msgpack map, or as JSON in its first releases. PostgresSaver and InMemorySaver
store the values separately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.msgpack import MAP, header, object_end, read_header
from threadkeep.engine.log.splitter import Splitter
from threadkeep.engine.threads.metadata import without_private
from threadkeep.transfer.sources.source import UnreadableError

JSON = "json"
_PLAIN = ("v", "ts", "id", "channel_versions", "versions_seen", "updated_channels")
_VALUES = "channel_values"
_TAGS = (MSGPACK, JSON)


class SplitCheckpoint(NamedTuple):
    """A checkpoint: `plain` keys are decoded, `values` are the channels, `rest` holds all other keys, encoded."""

    plain: dict[str, Any]
    values: dict[str, Parts]
    rest: tuple[str, bytes] | None


def unpacked(data: bytes) -> Any:
    """Decode msgpack. Objects of classes stay extensions."""
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)


def packed(value: Any) -> bytes:
    """Encode as msgpack what `unpacked` returned."""
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def split_checkpoint(splitter: Splitter, ns: str, tag: str | None, data: bytes | None) -> SplitCheckpoint:
    """Split a checkpoint. UnreadableError if it is none, or cannot be read without running code."""
    if tag not in _TAGS or data is None:
        raise UnreadableError(_why_not(tag))
    try:
        return _from_json(splitter, ns, data) if tag == JSON else _from_msgpack(splitter, ns, data)
    except (IndexError, RecursionError, ValueError, TypeError, AttributeError) as error:
        raise UnreadableError(f"its bytes are not a checkpoint ({error})") from error


def _why_not(tag: str | None) -> str:
    if tag == "pickle":
        return "it is stored as a pickle, which cannot be read without running code"
    if tag is not None and "+" in tag:
        return f"it is encrypted ({tag})"
    return f"it is stored as {tag!r}, which is not known"


def _from_msgpack(splitter: Splitter, ns: str, data: bytes) -> SplitCheckpoint:
    kind, count, at = read_header(data, 0)
    if kind != MAP:
        raise ValueError("it is not a map")
    plain: dict[str, Any] = {}
    values: dict[str, Parts] = {}
    rest: list[bytes] = []
    for _ in range(count):
        start, at = at, object_end(data, at)
        key = ormsgpack.unpackb(data[start:at])
        if key == _VALUES and read_header(data, at)[0] == MAP:
            values, at = _values(splitter, ns, data, at)
            continue
        value_at, at = at, object_end(data, at)
        if key in _PLAIN:
            plain[key] = unpacked(data[value_at:at])
        else:
            rest.append(data[start:at])
    if at != len(data):
        raise ValueError("it is cut short, or too long")
    return SplitCheckpoint(plain, values, (MSGPACK, header(MAP, len(rest)) + b"".join(rest)) if rest else None)


def _values(splitter: Splitter, ns: str, data: bytes, at: int) -> tuple[dict[str, Parts], int]:
    _, count, at = read_header(data, at)
    values: dict[str, Parts] = {}
    for _ in range(count):
        start, at = at, object_end(data, at)
        name = ormsgpack.unpackb(data[start:at])
        values[name], at = splitter.take((ns, name), data, at)
    return values, at


def _from_json(splitter: Splitter, ns: str, data: bytes) -> SplitCheckpoint:
    whole = json.loads(data)
    given = whole.pop(_VALUES, None) or {}
    plain = {key: whole.pop(key) for key in _PLAIN if key in whole}
    values = {name: _json_value(splitter, (ns, name), value) for name, value in given.items()}
    return SplitCheckpoint(plain, values, _json(whole) if whole else None)


def _json_value(splitter: Splitter, place: tuple[str, str], value: Any) -> Parts:
    return splitter.split(place, *_json(value))


def _json(value: Any) -> tuple[str, bytes]:
    """Encode a value of a JSON checkpoint: as msgpack, or as JSON if it has objects of classes."""
    if not _names_a_class(value):
        try:
            return MSGPACK, packed(value)
        except ormsgpack.MsgpackEncodeError:
            pass
    return JSON, json.dumps(value).encode()


def _names_a_class(value: Any) -> bool:
    if isinstance(value, dict):
        return "lc" in value or any(map(_names_a_class, value.values()))
    return isinstance(value, list) and any(map(_names_a_class, value))


def plain_value(splitter: Splitter, place: Any, value: Any) -> Parts:
    """Encode a JSON value as the serializer would."""
    return splitter.split(place, *_json(value))


def metadata(stored: Any) -> dict[str, Any]:
    """Return the metadata of a column, which may be JSON as text or bytes, msgpack, a dict, or nothing.

    Without the credentials that old savers stored with it.
    """
    if stored is None or stored == b"":
        return {}
    found = stored
    if isinstance(stored, (str, bytes)):
        try:
            found = json.loads(stored) if stored[:1] in ("{", b"{") else unpacked(_as_bytes(stored))
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"its metadata cannot be read ({type(error).__name__})") from error
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise UnreadableError("its metadata is not a dict")
    return without_private(found)


def _as_bytes(stored: str | bytes) -> bytes:
    return stored.encode() if isinstance(stored, str) else stored


def versions(plain: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a checkpoint's channel_versions and versions_seen. UnreadableError if they are not dicts."""
    held, seen = plain.get("channel_versions") or {}, plain.get("versions_seen") or {}
    if not isinstance(held, dict) or not isinstance(seen, dict) or not all(isinstance(n, dict) for n in seen.values()):
        raise UnreadableError("its versions are not dicts")
    return held, seen
