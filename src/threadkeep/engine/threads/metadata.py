"""Checkpoint metadata: where each part of it is stored, and how filters match it.

    source, step, run_id              columns, if they have their usual type
    parents, delta counters, writes   `own`: in the body of the checkpoint's row
    everything else                   labels: stored once per thread, indexed once per distinct set
    what is too large for a row       in the log, like the value of a channel; a `LargeValue` stands for it

Filters compare key by key, literally, and by JSON type: 1 equals 1.0, True is not 1, None matches null and missing,
and a dict means equality. The index entries (tags) follow the same rule, so the index never hides a match.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from threadkeep.engine.identity import to_bytes
from threadkeep.engine.log.codec import pack
from threadkeep.engine.log.encoder import LargeValue
from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.log.records import CheckpointRow, ThreadRow

OWN = ("parents", "counters_since_delta_snapshot", "delta_writes_versioned", "writes")
UNTAGGED = ("source", "step", "run_id", *OWN)
"""Keys that may be stored outside the labels, so the index does not cover them."""
OWN_OF_CUBE = ("tag", "branch_name", "forked_from")
"""Keys that a cube thread stores in the checkpoint's row, so the index does not cover them there."""
CREDENTIALS, REQUEST_ID = "langgraph_auth_", "langgraph_request_id"
"""How the keys begin that LangGraph's server uses for credentials; its key for the id of a request."""
Match: TypeAlias = Literal["any", "latest"]
ANY: Final = "any"
LATEST: Final = "latest"
"""Which checkpoints of a thread a filter is compared with: any of them, or the newest root checkpoint."""
LARGE_METADATA = "\0metadata"
"""The slot of a checkpoint that holds the large values of its metadata. It is not a channel."""
_LARGEST = 256 * 1024
"""So many bytes of metadata stay in the rows if there is more than fits there."""
_STAND_IN = 31
"""Bytes that a `LargeValue` takes."""
_MISSING = b"N"


class SplitMetadata(NamedTuple):
    """Metadata, split by where its parts are stored."""

    source: str | None
    step: int | None
    run: str | None
    labels: dict[str, Any]
    own: dict[str, Any]


def split(metadata: Mapping[str, Any]) -> SplitMetadata:
    """Split metadata by where its parts are stored. `join` is the inverse."""
    labels = dict(metadata)
    source, step, run = labels.get("source"), labels.get("step"), labels.get("run_id")
    if type(source) is str and source.isascii() and "\0" not in source:
        del labels["source"]
    else:
        source = None
    if type(step) is int and -(1 << 63) <= step < 1 << 63:
        del labels["step"]
    else:
        step = None
    if type(run) is str:
        del labels["run_id"]
    else:
        run = None
    own = {}
    for key in OWN:
        if labels.get(key):
            own[key] = labels.pop(key)
    return new_tuple(SplitMetadata, (source, step, run, labels, own))


def move_large(parts: SplitMetadata) -> tuple[SplitMetadata, dict[str, Any]]:
    """Take the largest values out, if there is too much for a row; return what is left, and these values."""
    values = {key: value for key, value in (parts.own | parts.labels).items() if key not in OWN[:-1]}
    sizes = {key: len(pack(value)) for key, value in values.items()}
    left, moved = sum(sizes.values()), dict[str, Any]()
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if left <= _LARGEST or sizes[key] <= _STAND_IN:
            break
        if type(values[key]) is not LargeValue:
            moved[key] = values[key]
            left -= sizes[key] - _STAND_IN
    stand_ins = {key: LargeValue(tag(key, value), _digest(value), sizes[key]) for key, value in moved.items()}
    labels = {key: stand_ins.get(key, value) for key, value in parts.labels.items()}
    return parts._replace(
        labels=labels, own={key: stand_ins.get(key, value) for key, value in parts.own.items()}
    ), moved


def with_large(values: Mapping[str, Any], moved: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with the values that were moved out of its row."""
    return {key: moved[key] if type(value) is LargeValue and key in moved else value for key, value in values.items()}


def join(parts: SplitMetadata) -> dict[str, Any]:
    """Return the metadata that `split` was given."""
    columns = {"source": parts.source, "step": parts.step, "run_id": parts.run}
    return {key: value for key, value in columns.items() if value is not None} | parts.own | parts.labels


def of_row(row: CheckpointRow | ThreadRow, labels: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a checkpoint row, or of the newest checkpoint that a thread row describes."""
    found: dict[str, Any] = {}
    if row.source is not None:
        found["source"] = row.source
    if row.step is not None:
        found["step"] = row.step
    if row.run is not None:
        found["run_id"] = row.run
    found.update(own)
    found.update(labels)
    return found


def without_private(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without credentials and request ids: nobody stores these."""
    return {key: value for key, value in metadata.items() if not key.startswith(CREDENTIALS) and key != REQUEST_ID}


def root_checkpoint(own: Mapping[str, Any]) -> str | None:
    """Return the root checkpoint that a subgraph's checkpoint belongs to; None if its metadata names none."""
    parents = own.get("parents")
    root = parents.get("") if isinstance(parents, Mapping) else None
    return root if isinstance(root, str) else None


def as_filter(metadata: Any) -> dict[str, Any]:
    """Return a metadata filter as a dict; None is the empty filter. TypeError unless it is a mapping with str keys."""
    if metadata is None:
        return {}
    if not (isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)):
        raise TypeError(f"metadata must be a dict with str keys, not {type(metadata).__name__}")
    return dict(metadata)


def as_match(match: Any) -> Match:
    """Return a checked `match`. ValueError unless it is `any` or `latest`."""
    if match not in (ANY, LATEST):
        raise ValueError(f"match must be {ANY} or {LATEST}, not {match!r}")
    return cast("Match", match)


class MetadataFilter:
    """A filter that is compared with many metadata: what it wants is put in canonical form only once."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._given: list[tuple[str, type, Any]] = []
        self._wanted: list[tuple[str, bytes]] = []
        self._others: list[str] = []
        for key, value in wanted.items():
            if type(value) in _PLAIN:
                self._given.append((key, type(value), value))
            else:
                self._wanted.append((key, _canonical_or_refused(key, value)))
            if key not in _COLUMNS:
                self._others.append(key)

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Return whether metadata has all these keys with these values. No call for texts and numbers of one type."""
        for key, kind, given in self._given:
            found = metadata.get(key)
            if found != given if type(found) is kind else not _is_equal(found, canonical(given)):
                return False
        return not self._wanted or all(_is_equal(metadata.get(key), wanted) for key, wanted in self._wanted)

    def needs_own(self, labels: Mapping[str, Any]) -> bool:
        """Return whether a key may be in the row's own metadata: it is in no column, nor in the labels."""
        return any(key not in labels for key in self._others)


def _is_equal(found: Any, wanted: bytes) -> bool:
    """Return whether a value has this canonical form."""
    return found.digest == _digest_of(wanted) if type(found) is LargeValue else canonical(found) == wanted


_PLAIN = (str, int, bool)
"""Values of one of these types are equal exactly if their canonical forms are."""
_COLUMNS = ("source", "step", "run_id")


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether metadata has all these keys with these values."""
    return MetadataFilter(wanted).matches(metadata)


def _digest(value: Any) -> bytes:
    return _digest_of(canonical(value))


def _digest_of(canonical_form: bytes) -> bytes:
    return blake2b(canonical_form, digest_size=16).digest()


def tag(key: str, value: Any) -> bytes:
    """Return a short digest of one label. Equal labels have equal tags."""
    name = to_bytes(key)
    try:
        return blake2b(b"%d:" % len(name) + name + canonical(value), digest_size=8).digest()
    except RecursionError:
        raise _too_deep(key) from None


def tags(labels: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the index entries of a set of labels."""
    return tuple(
        value.tag if type(value) is LargeValue else tag(key, value)
        for key, value in labels.items()
        if value is not None and key not in UNTAGGED
    )


def canonical(value: Any) -> bytes:
    """Return bytes that are equal exactly if two values match each other."""
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
        return b"l" + _join_framed(list(map(canonical, value)))  # a generator would take more of Python's stack
    if isinstance(value, Mapping):
        names, entries = map(canonical, value), map(canonical, value.values())
        return b"d" + _join_framed(sorted(map(_join_framed, list(zip(names, entries, strict=True)))))
    if isinstance(value, (bytes, bytearray)):
        return b"b" + bytes(value)
    return b"o" + pack(value)


def _canonical_or_refused(key: str, value: Any) -> bytes:
    try:
        return canonical(value)
    except RecursionError:
        raise _too_deep(key) from None


def _too_deep(key: str) -> ValueError:
    return ValueError(f"the value of {key!r} is nested too deeply for metadata")


def _join_framed(pieces: Any) -> bytes:
    """Join pieces, each with its length, so that no two lists of pieces give the same bytes."""
    return b"".join(b"%d:" % len(piece) + piece for piece in pieces)
