"""Checkpoint metadata: what of it is a column, what is shared, what is the checkpoint's own; and how filters match.

    source, step, run_id              columns, where they have their usual type
    parents, delta counters, writes   the checkpoint's own, in its body
    everything else                   labels: interned per thread, indexed once per distinct set

Filters compare by key, literally, and by JSON type: 1 equals 1.0, True is not 1, None matches null or missing, and a
dict means equality. The same rule makes the tags of the index, so the index never hides a match.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from threadkeep.engine.identity import to_bytes
from threadkeep.engine.log.codec import pack

OWN = ("parents", "counters_since_delta_snapshot", "delta_writes_versioned", "writes")
UNTAGGED = ("source", "step", "run_id", *OWN)
"""Keys that may stand elsewhere than in the labels: the index cannot speak for them."""
_MISSING = b"N"


class SplitMetadata(NamedTuple):
    """Metadata taken apart."""

    source: str | None
    step: int | None
    run: str | None
    labels: dict[str, Any]
    own: dict[str, Any]


def split(metadata: Mapping[str, Any]) -> SplitMetadata:
    """Take metadata apart; `join` puts it together again."""
    labels = dict(metadata)
    source = labels.pop("source") if _is_column_text(labels.get("source")) else None
    step = labels.pop("step") if _is_column_int(labels.get("step")) else None
    run = labels.pop("run_id") if type(labels.get("run_id")) is str else None
    own = {key: labels.pop(key) for key in OWN if labels.get(key)}
    return SplitMetadata(source, step, run, labels, own)


def join(parts: SplitMetadata) -> dict[str, Any]:
    """The metadata that was taken apart."""
    columns = {"source": parts.source, "step": parts.step, "run_id": parts.run}
    return {key: value for key, value in columns.items() if value is not None} | parts.own | parts.labels


def delta_channels(own: Mapping[str, Any]) -> frozenset[str]:
    """The delta channels that a checkpoint's own metadata counts."""
    counted = (own.get(key) or () for key in ("counters_since_delta_snapshot", "delta_writes_versioned"))
    return frozenset(name for names in counted for name in names)


def _is_column_text(value: Any) -> bool:
    return type(value) is str and value.isascii() and "\0" not in value


def _is_column_int(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def as_filter(metadata: Any) -> dict[str, Any]:
    """A filter by metadata; None is the empty one. TypeError unless it is a mapping with str keys."""
    if metadata is None:
        return {}
    if not (isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)):
        raise TypeError(f"metadata must be a dict with str keys, not {metadata!r}")
    return dict(metadata)


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether metadata has all these keys with these values."""
    return all(_same(metadata.get(key), value) for key, value in wanted.items())


def _same(stored: Any, wanted: Any) -> bool:
    return canonical(stored) == canonical(wanted)


def tag(key: str, value: Any) -> bytes:
    """A short digest of one label: equal labels have equal tags."""
    name = to_bytes(key)
    return blake2b(b"%d:" % len(name) + name + canonical(value), digest_size=8).digest()


def tags(labels: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The index entries of a set of labels."""
    return tuple(tag(key, value) for key, value in labels.items() if value is not None and key not in UNTAGGED)


def canonical(value: Any) -> bytes:
    """Bytes that are equal exactly when two values count as equal."""
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return b"T" if value else b"F"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, (int, float)):
        return b"n" + repr(value).encode()
    if isinstance(value, str):
        return b"s" + to_bytes(value)
    if isinstance(value, (list, tuple)):
        return b"l" + _framed(canonical(element) for element in value)
    if isinstance(value, Mapping):
        entries = sorted(_framed((canonical(key), canonical(entry))) for key, entry in value.items())
        return b"d" + _framed(entries)
    if isinstance(value, (bytes, bytearray)):
        return b"b" + bytes(value)
    return b"o" + pack(value)


def _framed(pieces: Any) -> bytes:
    return b"".join(b"%d:" % len(piece) + piece for piece in pieces)
