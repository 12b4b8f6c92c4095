"""langgraph-checkpoint-postgres: PostgresSaver, AsyncPostgresSaver, the shallow savers, the stores; every migration.

    checkpoints         one JSON row each, later with small values; a shallow saver has one row per namespace
    checkpoint_blobs    the other values, by channel and version; in a shallow saver by channel
    checkpoint_writes   without task_path in the first releases
    store               without expires_at and ttl_minutes in the first releases
    store_vectors       of pgvector

The sends of a checkpoint before version 4 are in the writes of its parent. They are read as the saver reads them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, header
from threadkeep.engine.log.splitter import Splitter
from threadkeep.engine.memories.vectors import pack_vector as packed_vector
from threadkeep.transfer.sources.checkpoint_bytes import JSON, metadata, packed, plain_value, versions
from threadkeep.transfer.sources.langgraph_sqlite import encoded
from threadkeep.transfer.sources.langgraph_store import StoreTableMemories
from threadkeep.transfer.sources.postgres_server import PostgresRows
from threadkeep.transfer.sources.source import (
    CheckpointPlace,
    EncodedCheckpoint,
    EncodedWrite,
    ForeignCheckpoint,
    UnreadableError,
    WriteCount,
)
from threadkeep.transfer.sources.value_cipher import OpeningCipher, ValueCipher, splitter_of

KIND = "langgraph-postgres"
_CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint", "metadata"}
_BLOBS = {"thread_id", "checkpoint_ns", "channel", "type", "blob"}
_STORE = {"prefix", "key", "value", "created_at", "updated_at"}
_KNOWN = ("v", "ts", "id", "channel_versions", "versions_seen", "updated_channels", "channel_values")
_AT_ONCE, _PAGE = 64, 500
_BYTES_AT_ONCE = 8 * 1024 * 1024
_SENDS_SINCE = 4
_PENDING = "pending_sends"


def has_threads(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a saver."""
    return tables.get("checkpoints", set()) >= _CHECKPOINTS and tables.get("checkpoint_blobs", set()) >= _BLOBS


def has_memories(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a store."""
    return tables.get("store", set()) >= _STORE


class _PostgresCheckpoint(NamedTuple):
    place: CheckpointPlace
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: Any


class _Blob(NamedTuple):
    """The key of a value. A shallow saver has no versions."""

    ns: str
    channel: str
    version: str


def saved_threads(rows: PostgresRows) -> PostgresSaverThreads:
    """Return the threads of a database that has them."""
    return PostgresSaverThreads(rows)


class PostgresSaverThreads:
    """The threads of a PostgresSaver, or of a shallow one."""

    def __init__(self, rows: PostgresRows) -> None:
        self._rows = rows
        self.cipher: ValueCipher | None = None
        """Opens values that were encrypted one by one."""
        self._shallow = "checkpoint_id" not in rows.tables["checkpoints"]
        columns = rows.tables.get("checkpoint_writes", set())
        self._has_writes = bool(columns)
        self._path = "task_path" if "task_path" in columns else "''::text"
        self._id = "checkpoint ->> 'id'" if self._shallow else "checkpoint_id"
        self._parent = "NULL::text" if self._shallow else "parent_checkpoint_id"
        self._version = "''::text" if self._shallow else "version"

    def encrypted_values(self) -> Iterator[tuple[str, bytes]]:
        """Read encrypted values with their tags, in any order."""
        tables = ("checkpoint_blobs", "checkpoint_writes") if self._has_writes else ("checkpoint_blobs",)
        for table in tables:
            query = f"SELECT type, blob FROM {table} WHERE strpos(type, '+') > 0 AND blob IS NOT NULL LIMIT %s"
            yield from self._rows.all(query, (_AT_ONCE,))

    def count(self, thread: str | None) -> int:
        """Return the number of checkpoints, of one thread or of all."""
        where, values = ("", ()) if thread is None else ("WHERE thread_id = %s", (thread,))
        return int(self._rows.all(f"SELECT count(*) FROM checkpoints {where}", values)[0][0])

    def threads(self) -> list[str]:
        """Return the ids of all threads, in order; also of those that have only writes."""
        query = "SELECT DISTINCT thread_id FROM checkpoints"
        if self._has_writes:
            query += " UNION SELECT DISTINCT thread_id FROM checkpoint_writes"
        return sorted(thread for (thread,) in self._rows.all(query))

    def checkpoints(self, thread: str) -> list[CheckpointPlace]:
        """Return where a thread has checkpoints."""
        query = f"SELECT checkpoint_ns, {self._id} FROM checkpoints WHERE thread_id = %s"
        return [CheckpointPlace(*row) for row in self._rows.all(query, (thread,))]

    def write_counts(self, thread: str) -> dict[CheckpointPlace, WriteCount]:
        """Count the writes at each place that has any."""
        query = (
            "SELECT checkpoint_ns, checkpoint_id, count(*), min(idx) FROM checkpoint_writes WHERE thread_id = %s"
            " GROUP BY checkpoint_ns, checkpoint_id"
        )
        rows = self._rows.all(query, (thread,)) if self._has_writes else []
        return {CheckpointPlace(ns, id): WriteCount(count, least < 0) for ns, id, count, least in rows}

    def read(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[ForeignCheckpoint]:
        """Read what is at these places, in this order: some rows at a time, and values up to a number of bytes."""
        splitter, blobs = splitter_of(self.cipher), dict[_Blob, Parts | None]()
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            rows = {row.place: row for row in self._checkpoints(thread, some)}
            wanted = {place: _blobs(row, shallow=self._shallow) for place, row in rows.items()}
            lacking = {blob for each in wanted.values() for blob in each if blob not in blobs}
            sizes = self._sizes(thread, lacking)
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

    def _checkpoints(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[_PostgresCheckpoint]:
        query = (
            f"SELECT checkpoint_ns, {self._id}, {self._parent}, checkpoint, metadata FROM checkpoints"
            f" WHERE thread_id = %s AND (checkpoint_ns, {self._id}) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        )
        for ns, id, parent, checkpoint, about in self._rows.all(query, (thread, *_columns(places, 2))):
            yield _PostgresCheckpoint(CheckpointPlace(ns, id), parent, checkpoint, about)

    def _sizes(self, thread: str, blobs: set[_Blob]) -> dict[_Blob, int]:
        query = (
            f"SELECT checkpoint_ns, channel, {self._version}, coalesce(octet_length(blob), 0) FROM checkpoint_blobs"
            f" WHERE thread_id = %s AND (checkpoint_ns, channel, {self._version}) IN"
            " (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]))"
        )
        rows = self._rows.all(query, (thread, *_columns(blobs, 3))) if blobs else []
        return {_Blob(*blob): size for *blob, size in rows}

    def _fetch(self, splitter: Splitter, thread: str, blobs: set[_Blob], into: dict[_Blob, Parts | None]) -> None:
        """Read these values. None for one that is marked as empty."""
        query = (
            f"SELECT checkpoint_ns, channel, {self._version}, type, blob FROM checkpoint_blobs"
            f" WHERE thread_id = %s AND (checkpoint_ns, channel, {self._version}) IN"
            " (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])) ORDER BY 1, 2, 3"
        )
        for *blob, tag, data in self._rows.all(query, (thread, *_columns(blobs, 3))) if blobs else []:
            at = _Blob(*blob)
            into[at] = None if tag == "empty" else encoded(splitter, tag, data, (at.ns, at.channel))

    def _found(
        self,
        splitter: Splitter,
        thread: str,
        place: CheckpointPlace,
        row: _PostgresCheckpoint | None,
        blobs: Mapping[_Blob, Parts | None],
    ) -> ForeignCheckpoint:
        if row is None:
            return ForeignCheckpoint(place, None, ())
        try:
            checkpoint = _checkpoint(splitter, row, blobs, shallow=self._shallow)
            return ForeignCheckpoint(place, self._with_sends(thread, row, checkpoint), ())
        except UnreadableError as error:
            return ForeignCheckpoint(place, None, (), str(error))

    def _with_sends(self, thread: str, row: _PostgresCheckpoint, checkpoint: EncodedCheckpoint) -> EncodedCheckpoint:
        """Add what the saver adds when it reads: the sends of old checkpoints."""
        if self._shallow:
            return checkpoint._replace(rest=_with_pending(row.checkpoint, self._sends(thread, row.place.ns, None)))
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
        """The sends that were written on a checkpoint, in any namespace as the saver reads them; or in a namespace."""
        if not self._has_writes:
            return None
        where, value = ("checkpoint_id", checkpoint) if ns is None else ("checkpoint_ns", ns)
        query = (
            f"SELECT type, blob FROM checkpoint_writes WHERE thread_id = %s AND {where} = %s AND channel = %s"
            f" ORDER BY {self._path}, task_id, idx"
        )
        rows, cipher = self._rows.all(query, (thread, value, TASKS)), self.cipher
        if isinstance(cipher, OpeningCipher):
            rows = [cipher.opened(tag, bytes(data)) for tag, data in rows]
        return _as_list(rows)

    def _writes(
        self, splitter: Splitter, thread: str, places: Sequence[CheckpointPlace]
    ) -> dict[CheckpointPlace, list[EncodedWrite]]:
        if not self._has_writes:
            return {}
        query = (
            f"SELECT checkpoint_ns, checkpoint_id, task_id, {self._path}, idx, channel, type, blob"
            " FROM checkpoint_writes WHERE thread_id = %s AND (checkpoint_ns, checkpoint_id) IN"
            " (SELECT * FROM unnest(%s::text[], %s::text[])) ORDER BY 1, 2, 3, 5"
        )
        found: dict[CheckpointPlace, list[EncodedWrite]] = {}
        for ns, id, task, path, idx, channel, tag, data in self._rows.all(query, (thread, *_columns(places, 2))):
            write = EncodedWrite(task, path, idx, channel, encoded(splitter, tag, data))
            found.setdefault(CheckpointPlace(ns, id), []).append(write)
        return found


def _columns(rows: Any, width: int) -> tuple[list[Any], ...]:
    return tuple([row[n] for row in rows] for n in range(width))


def _blobs(row: _PostgresCheckpoint, *, shallow: bool) -> set[_Blob]:
    held = row.checkpoint.get("channel_versions")
    if not isinstance(held, dict):
        return set()
    return {_Blob(row.place.ns, channel, "" if shallow else str(version)) for channel, version in held.items()}


def _groups(
    places: Sequence[CheckpointPlace], wanted: Mapping[CheckpointPlace, set[_Blob]], sizes: Mapping[_Blob, int]
) -> Iterator[list[CheckpointPlace]]:
    """The places in order, in groups whose values are not too large together."""
    group, size, counted = list[CheckpointPlace](), 0, set[_Blob]()
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
    splitter: Splitter, row: _PostgresCheckpoint, blobs: Mapping[_Blob, Parts | None], *, shallow: bool
) -> EncodedCheckpoint:
    given, ns = row.checkpoint, row.place.ns
    if not isinstance(given, dict):
        raise UnreadableError("it is not a JSON object")
    held, seen = versions(given)
    inline = {} if shallow else given.get("channel_values") or {}
    values = {name: plain_value(splitter, (ns, name), value) for name, value in inline.items()}
    for name, version in held.items():
        parts = blobs.get(_Blob(ns, name, "" if shallow else str(version)))
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


def stored_memories(rows: PostgresRows) -> StoreTableMemories:
    """The memories of a PostgresStore."""
    return StoreTableMemories(
        rows,
        query="SELECT prefix, key, value::text, created_at, updated_at, {ttl} FROM store"
        ' WHERE (prefix COLLATE "C", key COLLATE "C") > (%s, %s)'
        f' ORDER BY prefix COLLATE "C", key COLLATE "C" LIMIT {_PAGE}',
        vectors="SELECT embedding::text FROM store_vectors WHERE prefix = %s AND key = %s ORDER BY field_name",
        as_vector=_vector,
    )


def _vector(text: str) -> bytes:
    numbers = [float(number) for number in text.strip("[]").split(",")]
    return packed_vector(numbers, len(numbers))
