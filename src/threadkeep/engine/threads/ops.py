"""What callers want done to a thread: put a checkpoint, put writes.

An op is prepared where it is made, outside of any commit: what can fail, because a value cannot be serialized, fails
here and touches nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from threadkeep.engine.log.codec import Codec, Parts, pack
from threadkeep.engine.log.records import Slot
from threadkeep.engine.threads import metadata

FIELDS = ("v", "ts", "updated_channels")
_STATE = ("channel_values", "channel_versions", "versions_seen", "id")


@dataclass(slots=True)
class Put:
    """Store a checkpoint. Values are encoded when the parent's cannot be re-used, those in `new_versions` at once.

    `time` is milliseconds, `nonce` a random number for the epoch of a new thread; if it is `only_new`, what is there
    stays. What is `held` in the thread already is not given again: `channel_values` is not looked at then. If it
    `inherits`, a channel without a value has the parent's, where the parent holds the version that is given.
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
    held: Mapping[str, Slot] | None = None
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
    """Values that were encoded, or that the thread holds already."""

    def __post_init__(self) -> None:
        given = self.checkpoint
        self.id = given["id"]
        self.values = given.get("channel_values") or {}
        self.versions = dict(given.get("channel_versions") or {})
        self.seen = {node: dict(inner) for node, inner in (given.get("versions_seen") or {}).items()}
        kept = set(FIELDS) - _unusual(given)
        self.fields = {name: given[name] for name in FIELDS if name in given and name in kept}
        rest = {key: value for key, value in given.items() if key not in kept and key not in _STATE}
        self.rest = self.codec.dumps(rest) if rest else None
        self.metadata = metadata.split(self.given_metadata)
        self.labels = pack(self.metadata.labels)
        pack([self.metadata.own, self.fields, self.versions, self.seen])
        _all_names(
            (*self.values, *self.versions, *self.seen, *(name for inner in self.seen.values() for name in inner))
        )
        hash((*self.versions.values(), *(version for inner in self.seen.values() for version in inner.values())))
        self.encoded = {name: self.codec.encode(self.values[name]) for name in self.new_versions if name in self.values}


@dataclass(slots=True)
class PutWrites:
    """Store writes (idx, channel, value) of a task on a checkpoint, which may not be there yet."""

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
        _all_names(channel for _, channel, _ in self.writes)


Op: TypeAlias = Put | PutWrites


def _unusual(given: Mapping[str, Any]) -> set[str]:
    """Fields that have not the form which a body has room for."""
    updated = given.get("updated_channels")
    plain = updated is None or (type(updated) is list and all(type(name) is str for name in updated))
    return set() if plain else {"updated_channels"}


def _all_names(names: Any) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names of channels and nodes must be str, not {type(name).__name__}: {name!r}")
