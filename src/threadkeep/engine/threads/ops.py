"""Ops: the changes of a thread that callers ask for, `Put` and `PutWrites`.

An op is prepared when it is made, outside of any commit. If a value cannot be serialized, making the op fails and
nothing else is affected. Its `lease` is that of its caller (`engine.lease`), None if the caller has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from threadkeep.engine.log.codec import Codec, Parts, joined_parts, pack
from threadkeep.engine.log.encoder import copy_containers
from threadkeep.engine.log.records import Slot
from threadkeep.engine.threads import metadata

CHECKPOINT_FIELDS = ("v", "ts", "updated_channels")
_MAX_IN_ROW = 512 * 1024
"""From this many bytes on, large values of metadata are stored outside of the rows."""
_SURELY_SMALL = 64 * 1024
_FEW_VERSIONS = 200
_PARENTS = frozenset(("parents",))
_STR = frozenset((str,))
_STATE = ("channel_values", "channel_versions", "versions_seen", "id")


class Put:
    """Store a checkpoint.

    Values of channels in `new_versions` are encoded at once, others only if the parent's slot cannot be reused. `time`
    is in milliseconds; `nonce` is a random number, the epoch of a new thread. With `only_new`, a checkpoint that exists
    stays as it is. `stored_slots` are values that the thread already stores: then `channel_values` is ignored. With
    `inherits`, a channel without a value gets the parent's, if the parent has the same version.

    `encoded` has the values that were encoded, or that the thread already stores; `rest` the keys of the checkpoint
    that threadkeep does not know, as the serializer encoded them.
    """

    __slots__ = (
        "codec", "encoded", "fields", "hidden", "id", "inherits", "labels", "lease", "metadata", "new_versions",
        "nonce", "ns", "only_new", "parent", "rest", "seen", "stored_slots", "time", "values", "versions",
    )  # fmt: skip

    def __init__(
        self,
        codec: Codec,
        ns: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        given_metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
        time: int,
        nonce: int,
        *,
        hidden: bool = False,
        only_new: bool = False,
        stored_slots: Mapping[str, Slot] | None = None,
        inherits: bool = False,
    ) -> None:
        """Encode and check everything. Makes about 8 calls, and those of `Codec.encode` per new value."""
        self.codec, self.ns, self.parent, self.time, self.nonce = codec, ns, parent, time, nonce
        self.hidden, self.only_new, self.stored_slots, self.inherits = hidden, only_new, stored_slots, inherits
        self.new_versions = new_versions
        self.lease: bytes | None = None
        self.id: str = checkpoint["id"]
        values: Mapping[str, Any] = checkpoint.get("channel_values") or {}
        versions: dict[str, Any] = dict(checkpoint.get("channel_versions") or ())
        seen: dict[str, dict[str, Any]] = {}
        for node, inner in (checkpoint.get("versions_seen") or {}).items():
            seen[node] = dict(inner)
        self.values, self.versions, self.seen = values, versions, seen
        self.fields: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, value in checkpoint.items():
            if key in _STATE:
                continue
            if key not in CHECKPOINT_FIELDS:
                rest[key] = value
            elif key != "updated_channels" or value is None or (type(value) is list and set(map(type, value)) <= _STR):
                self.fields[key] = value
            else:  # not what a row's body can hold
                rest[key] = value
        self.rest: tuple[str, bytes] | None = codec.dumps(rest) if rest else None
        names = set(map(type, chain(values, versions, seen, chain.from_iterable(seen.values()))))
        if not names <= _STR:
            _check_names((*values, *versions, *seen, *chain.from_iterable(seen.values())))
        hash((*versions.values(), *chain.from_iterable(map(dict.values, seen.values()))))
        try:
            self.metadata = metadata.split(copy_containers(dict(given_metadata)))
        except RecursionError:
            raise ValueError("the metadata is nested too deeply") from None
        self.labels = pack(self.metadata.labels)
        moved = self._move_large_metadata() if self._may_be_large() else {}
        new = list(filter(values.__contains__, new_versions))
        encoded: dict[str, Parts | Slot] = dict(zip(new, codec.encode_all(map(values.__getitem__, new)), strict=True))
        if moved:
            self.values = {**values, metadata.LARGE_METADATA: None}
            encoded[metadata.LARGE_METADATA] = joined_parts(pack(moved))
        self.encoded = encoded

    def _may_be_large(self) -> bool:
        """Whether labels and body may be too large for their rows. `parents` cannot be moved, and is small."""
        return (
            len(self.labels) > _SURELY_SMALL
            or len(self.versions) + len(self.seen) > _FEW_VERSIONS
            or not self.metadata.own.keys() <= _PARENTS
        )

    def _move_large_metadata(self) -> dict[str, Any]:
        """Take the largest values out of the metadata, if it does not fit, and return them."""
        body = pack([self.metadata.own, self.fields, self.versions, self.seen])
        if len(self.labels) + len(body) <= _MAX_IN_ROW:
            return {}
        self.metadata, moved = metadata.move_large(self.metadata)
        self.labels = pack(self.metadata.labels)
        return moved


class PutWrites:
    """Store writes (idx, channel, value) of a task on a checkpoint, which need not exist yet."""

    __slots__ = ("checkpoint", "lease", "nonce", "ns", "only_new", "path", "run", "task", "time", "writes")

    def __init__(
        self,
        ns: str,
        checkpoint: str,
        task: str,
        path: str,
        run: str | None,
        writes: Sequence[tuple[int, str, Parts]],
        time: int,
        nonce: int,
        *,
        only_new: bool = False,
    ) -> None:
        self.ns, self.checkpoint, self.task, self.path, self.run = ns, checkpoint, task, path, run
        self.writes, self.time, self.nonce, self.only_new = writes, time, nonce, only_new
        self.lease: bytes | None = None
        for _, channel, _ in writes:
            if type(channel) is not str:
                _check_names((channel,))


Op: TypeAlias = Put | PutWrites


def _check_names(names: Any) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names of channels and nodes must be str, not {type(name).__name__}: {name!r}")
