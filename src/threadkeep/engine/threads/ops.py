"""Ops: the changes of a thread that callers ask for, `Put` and `PutWrites`.

An op is prepared when it is made, outside of any commit. If a value cannot be serialized, making the op fails and
nothing else is affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from threadkeep.engine.log.codec import Codec, Parts, joined_parts, pack
from threadkeep.engine.log.encoder import copy_containers
from threadkeep.engine.log.records import Slot
from threadkeep.engine.threads import metadata

CHECKPOINT_FIELDS = ("v", "ts", "updated_channels")
_MAX_IN_ROW = 512 * 1024
"""From this many bytes on, large values of metadata are stored outside of the rows."""
_STATE = ("channel_values", "channel_versions", "versions_seen", "id")


@dataclass(slots=True)
class Put:
    """Store a checkpoint.

    Values of channels in `new_versions` are encoded at once, others only if the parent's slot cannot be reused. `time`
    is in milliseconds; `nonce` is a random number, the epoch of a new thread. With `only_new`, a checkpoint that exists
    stays as it is. `stored_slots` are values that the thread already stores: then `channel_values` is ignored. With
    `inherits`, a channel without a value gets the parent's, if the parent has the same version.
    """

    codec: Codec
    ns: str
    parent: str | None
    checkpoint: Mapping[str, Any]
    given_metadata: Mapping[str, Any]
    new_versions: Mapping[str, Any]
    time: int
    nonce: int
    hidden: bool = False
    only_new: bool = False
    stored_slots: Mapping[str, Slot] | None = None
    inherits: bool = False
    id: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    rest: tuple[str, bytes] | None = None
    metadata: metadata.SplitMetadata = field(init=False)
    labels: bytes = b""
    encoded: dict[str, Parts | Slot] = field(default_factory=dict)
    """Values that were encoded, or that the thread already stores."""

    def __post_init__(self) -> None:
        given = self.checkpoint
        self.id = given["id"]
        self.values = given.get("channel_values") or {}
        self.versions = dict(given.get("channel_versions") or {})
        self.seen = {node: dict(inner) for node, inner in (given.get("versions_seen") or {}).items()}
        kept = set(CHECKPOINT_FIELDS) - _unusual_fields(given)
        self.fields = {name: given[name] for name in CHECKPOINT_FIELDS if name in given and name in kept}
        rest = {key: value for key, value in given.items() if key not in kept and key not in _STATE}
        self.rest = self.codec.dumps(rest) if rest else None
        self.metadata = metadata.split(copy_containers(dict(self.given_metadata)))
        self.labels, moved = pack(self.metadata.labels), dict[str, Any]()
        body = pack([self.metadata.own, self.fields, self.versions, self.seen])
        if len(self.labels) + len(body) > _MAX_IN_ROW:
            self.metadata, moved = metadata.move_large(self.metadata)
            self.labels = pack(self.metadata.labels)
        _check_names(
            (*self.values, *self.versions, *self.seen, *(name for inner in self.seen.values() for name in inner))
        )
        hash((*self.versions.values(), *(version for inner in self.seen.values() for version in inner.values())))
        self.encoded = {name: self.codec.encode(self.values[name]) for name in self.new_versions if name in self.values}
        if moved:
            self.values = {**self.values, metadata.LARGE_METADATA: None}
            self.encoded[metadata.LARGE_METADATA] = joined_parts(pack(moved))


@dataclass(slots=True)
class PutWrites:
    """Store writes (idx, channel, value) of a task on a checkpoint, which need not exist yet."""

    ns: str
    checkpoint: str
    task: str
    path: str
    run: str | None
    writes: Sequence[tuple[int, str, Parts]]
    time: int
    nonce: int
    only_new: bool = False

    def __post_init__(self) -> None:
        _check_names(channel for _, channel, _ in self.writes)


Op: TypeAlias = Put | PutWrites


def _unusual_fields(given: Mapping[str, Any]) -> set[str]:
    """Fields whose value does not have the form that a row's body can hold."""
    updated = given.get("updated_channels")
    plain = updated is None or (type(updated) is list and all(type(name) is str for name in updated))
    return set() if plain else {"updated_channels"}


def _check_names(names: Any) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names of channels and nodes must be str, not {type(name).__name__}: {name!r}")
