"""Threads of savers that keep values apart from checkpoints: PostgresSaver, the MySQL savers, their shallow kinds.

    checkpoints         one JSON row each, later with small values; a shallow saver has one row per namespace
    checkpoint_blobs    the other values, by channel and version; in a shallow saver by channel
    checkpoint_writes   without task_path in the first releases

The sends of a checkpoint before version 4 are in the writes of its parent. They are read as the saver reads them.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, header
from threadkeep.engine.log.splitter import Splitter
from threadkeep.transfer.sources.checkpoint_bytes import JSON, metadata, packed, plain_value, versions
from threadkeep.transfer.sources.langgraph_sqlite import encoded
from threadkeep.transfer.sources.source import (
    CheckpointPlace,
    EncodedCheckpoint,
    EncodedWrite,
    ForeignCheckpoint,
    UnreadableError,
    WriteCount,
)
from threadkeep.transfer.sources.value_cipher import OpeningCipher, ValueCipher, splitter_of

_CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint", "metadata"}
_KNOWN = ("v", "ts", "id", "channel_versions", "versions_seen", "updated_channels", "channel_values")
_AT_ONCE = 64
_BYTES_AT_ONCE = 8 * 1024 * 1024
_SENDS_SINCE = 4
_PENDING = "pending_sends"


def has_checkpoints(tables: Mapping[str, set[str]]) -> bool:
    """Whether a database has the checkpoints of such a saver."""
    return tables.get("checkpoints", set()) >= _CHECKPOINTS


class SavedCheckpoint(NamedTuple):
    """A row of `checkpoints`."""

    place: CheckpointPlace
    parent: str | None
    checkpoint: Any
    metadata: Any


class Blob(NamedTuple):
    """The key of a value. A shallow saver has no versions."""

    ns: str
    channel: str
    version: str


class SavedWrite(NamedTuple):
    """A row of `checkpoint_writes`."""

    place: CheckpointPlace
    task: str
    path: str
    idx: int
    channel: str
    tag: str
    data: bytes


class BlobSaverThreads(ABC):
    """The threads of such a saver. A subclass reads the rows of its database."""

    shallow: bool
    """Whether there is one checkpoint per namespace, without its parent."""
    cipher: ValueCipher | None = None
    """Opens values that were encrypted one by one."""

    @abstractmethod
    def encrypted_values(self) -> Iterator[tuple[str, bytes]]:
        """Read some encrypted values with their tags, in any order."""

    @abstractmethod
    def count(self, thread: str | None) -> int:
        """Return the number of checkpoints, of one thread or of all."""

    @abstractmethod
    def threads(self) -> list[str]:
        """Return the ids of all threads, in order; also of those that have only writes."""

    @abstractmethod
    def checkpoints(self, thread: str) -> list[CheckpointPlace]:
        """Return where a thread has checkpoints."""

    @abstractmethod
    def write_counts(self, thread: str) -> dict[CheckpointPlace, WriteCount]:
        """Count the writes at each place that has any."""

    @abstractmethod
    def checkpoint_rows(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterable[SavedCheckpoint]:
        """Read the checkpoints at these places."""

    @abstractmethod
    def blob_sizes(self, thread: str, blobs: set[Blob]) -> dict[Blob, int]:
        """Return the sizes of those of these values that exist."""

    @abstractmethod
    def blob_rows(self, thread: str, blobs: set[Blob]) -> Iterable[tuple[Blob, str, bytes | None]]:
        """Read these values: the tag and the bytes of each."""

    @abstractmethod
    def write_rows(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterable[SavedWrite]:
        """Read the writes at these places, those of a task in order."""

    @abstractmethod
    def sends(self, thread: str, ns: str | None, checkpoint: str | None) -> Sequence[tuple[str, bytes]]:
        """Read the sends on a checkpoint, in any namespace as the saver reads them; or all those in a namespace."""

    def read(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[ForeignCheckpoint]:
        """Read what is at these places, in this order: some rows at a time, and values up to a number of bytes."""
        splitter, blobs = splitter_of(self.cipher), dict[Blob, Parts | None]()
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            rows = {row.place: row for row in self.checkpoint_rows(thread, some)}
            wanted = {place: _blobs(row, shallow=self.shallow) for place, row in rows.items()}
            lacking = {blob for each in wanted.values() for blob in each if blob not in blobs}
            sizes = self.blob_sizes(thread, lacking) if lacking else {}
            blobs = {blob: parts for blob, parts in blobs.items() if any(blob in each for each in wanted.values())}
            for group in _groups(some, wanted, sizes):
                before = splitter.fresh
                fresh = {blob for place in group for blob in wanted.get(place, ()) if blob in sizes} - blobs.keys()
                self._fetch(splitter, thread, fresh, blobs)
                writes = self._writes(splitter, thread, group)
                for place in group:
                    found = self._found(splitter, thread, place, rows.get(place), blobs)
                    yield found._replace(writes=writes.get(place, ()), fresh=splitter.fresh - before)
                    before = splitter.fresh

    def _fetch(self, splitter: Splitter, thread: str, blobs: set[Blob], into: dict[Blob, Parts | None]) -> None:
        """Read these values. None for one that is marked as empty."""
        for at, tag, data in self.blob_rows(thread, blobs) if blobs else ():
            into[at] = None if tag == "empty" else encoded(splitter, tag, data, (at.ns, at.channel))

    def _found(
        self,
        splitter: Splitter,
        thread: str,
        place: CheckpointPlace,
        row: SavedCheckpoint | None,
        blobs: Mapping[Blob, Parts | None],
    ) -> ForeignCheckpoint:
        if row is None:
            return ForeignCheckpoint(place, None, ())
        try:
            checkpoint = _checkpoint(splitter, row, blobs, shallow=self.shallow)
            return ForeignCheckpoint(place, self._with_sends(thread, row, checkpoint), ())
        except UnreadableError as error:
            return ForeignCheckpoint(place, None, (), str(error))

    def _with_sends(self, thread: str, row: SavedCheckpoint, checkpoint: EncodedCheckpoint) -> EncodedCheckpoint:
        """Add what the saver adds when it reads: the sends of old checkpoints."""
        if self.shallow:
            pending = self._sends(thread, row.place.ns, None)
            return checkpoint._replace(rest=_with_pending(row.checkpoint, pending))
        version = checkpoint.fields.get("v")
        if not isinstance(version, int) or version >= _SENDS_SINCE or not row.parent:
            return checkpoint
        sends = self._sends(thread, None, row.parent)
        if sends is None:
            return checkpoint
        held = checkpoint.versions
        latest = max(held.values()) if held else f"{1:032}.{0:016}"
        return checkpoint._replace(versions=held | {TASKS: latest}, values=checkpoint.values | {TASKS: sends})

    def _sends(self, thread: str, ns: str | None, checkpoint: str | None) -> Parts | None:
        """Read sends as one list, decrypted if they are stored so."""
        rows, cipher = self.sends(thread, ns, checkpoint), self.cipher
        if isinstance(cipher, OpeningCipher):
            rows = [cipher.opened(tag, bytes(data)) for tag, data in rows]
        return _as_list(rows)

    def _writes(
        self, splitter: Splitter, thread: str, places: Sequence[CheckpointPlace]
    ) -> dict[CheckpointPlace, list[EncodedWrite]]:
        found: dict[CheckpointPlace, list[EncodedWrite]] = {}
        for place, task, path, idx, channel, tag, data in self.write_rows(thread, places):
            write = EncodedWrite(task, path, idx, channel, encoded(splitter, tag, data))
            found.setdefault(place, []).append(write)
        return found


def _blobs(row: SavedCheckpoint, *, shallow: bool) -> set[Blob]:
    held = row.checkpoint.get("channel_versions")
    if not isinstance(held, dict):
        return set()
    return {Blob(row.place.ns, channel, "" if shallow else str(version)) for channel, version in held.items()}


def _groups(
    places: Sequence[CheckpointPlace], wanted: Mapping[CheckpointPlace, set[Blob]], sizes: Mapping[Blob, int]
) -> Iterator[list[CheckpointPlace]]:
    """The places in order, in groups whose values are not too large together."""
    group, size, counted = list[CheckpointPlace](), 0, set[Blob]()
    for place in places:
        more = wanted.get(place, set()) - counted
        added = sum(sizes.get(blob, 0) for blob in more)
        if group and size + added > _BYTES_AT_ONCE:
            yield group
            group, size, counted = [], 0, set()
        group.append(place)
        size += added
        counted |= more
    yield group


def _checkpoint(
    splitter: Splitter, row: SavedCheckpoint, blobs: Mapping[Blob, Parts | None], *, shallow: bool
) -> EncodedCheckpoint:
    given, ns = row.checkpoint, row.place.ns
    if not isinstance(given, dict):
        raise UnreadableError("it is not a JSON object")
    held, seen = versions(given)
    inline = {} if shallow else given.get("channel_values") or {}
    values = {name: plain_value(splitter, (ns, name), value) for name, value in inline.items()}
    for name, version in held.items():
        parts = blobs.get(Blob(ns, name, "" if shallow else str(version)))
        if parts is not None:
            values[name] = parts
    return EncodedCheckpoint(
        row.parent or None, {key: given[key] for key in _KNOWN[:-1] if key in given}, held, seen, values,
        _rest(given), metadata(row.metadata),
    )  # fmt: skip


def _as_list(rows: Sequence[tuple[str, bytes]]) -> Parts | None:
    """Values that were stored one by one as one list."""
    tags, elements = {tag for tag, _ in rows}, [bytes(data) for _, data in rows]
    if not rows:
        return None
    if tags == {MSGPACK}:
        return Parts(LIST, MSGPACK, elements)
    if tags == {JSON}:
        return Parts(WHOLE, JSON, [b"[" + b",".join(elements) + b"]"])
    raise UnreadableError(f"its sends are stored as {', '.join(sorted(tags))}")


def _rest(given: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """The keys of a checkpoint that are not known. The first releases stored sends there, as a tag and base64."""
    pending = given.get(_PENDING)
    if isinstance(pending, list) and len(pending) == 2 and pending[0] in (MSGPACK, JSON):
        tag, text = pending
        try:
            return _with_pending(given, Parts(WHOLE, tag, [base64.b64decode(text, validate=True)]))
        except (ValueError, TypeError) as error:
            raise UnreadableError(f"its sends cannot be read: {error}") from error
    rest = {key: value for key, value in given.items() if key not in _KNOWN}
    return (MSGPACK, packed(rest)) if rest else None


def _with_pending(given: Mapping[str, Any], sends: Parts | None) -> tuple[str, bytes]:
    """The keys of a checkpoint that are not known, and its sends, as a shallow saver returns them."""
    others = {key: value for key, value in given.items() if key not in _KNOWN and key != _PENDING}
    if sends is not None and sends.tag == JSON:
        return JSON, json.dumps(others | {_PENDING: json.loads(sends.parts[0])}).encode()
    entries = [packed(key) + packed(value) for key, value in others.items()]
    entries.append(packed(_PENDING) + (sends.data if sends is not None else header(LIST, 0)))
    return MSGPACK, header(MAP, len(entries)) + b"".join(entries)
