"""langgraph-checkpoint-sqlite: SqliteSaver, AsyncSqliteSaver and their stores; every released schema.

    checkpoints     one row each, the whole checkpoint in a blob: msgpack, or JSON in the first releases
    writes          without task_path in the first releases
    store           without expires_at and ttl_minutes in the first releases
    store_vectors   float32, little-endian, as sqlite-vec stores them

Otherwise the releases do not differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.splitter import Splitter
from threadkeep.transfer.sources.checkpoint_bytes import metadata, versions
from threadkeep.transfer.sources.langgraph_store import StoreTableMemories
from threadkeep.transfer.sources.source import (
    CheckpointPlace,
    EncodedCheckpoint,
    EncodedWrite,
    ForeignCheckpoint,
    UnreadableError,
    WriteCount,
)
from threadkeep.transfer.sources.sqlite_file import SqliteRows
from threadkeep.transfer.sources.value_cipher import ValueCipher, split_whole, splitter_of

KIND = "langgraph-sqlite"
_CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"}
_WRITES = {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"}
_STORE = {"prefix", "key", "value", "created_at", "updated_at"}
_PAGE = 500


def has_threads(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a saver."""
    return tables.get("checkpoints", set()) >= _CHECKPOINTS


def has_memories(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a store."""
    return tables.get("store", set()) >= _STORE


def is_too_old(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of LangGraph 0.1 and before, which no released saver package reads."""
    return {"thread_id", "thread_ts", "checkpoint"} <= tables.get("checkpoints", set())


def saved_threads(rows: SqliteRows) -> SqliteSaverThreads:
    """Return the threads of a database that has them."""
    return SqliteSaverThreads(rows)


class SqliteSaverThreads:
    """The threads of a SqliteSaver."""

    def __init__(self, rows: SqliteRows) -> None:
        self._rows = rows
        columns = rows.tables.get("writes", set())
        self._has_writes = columns >= _WRITES
        self._path = "task_path" if "task_path" in columns else "''"
        self.cipher: ValueCipher | None = None
        """Opens checkpoints that were encrypted as a whole."""

    def encrypted_values(self) -> Iterator[tuple[str, bytes]]:
        """Read encrypted values with their tags, in any order."""
        yield from self._rows.each("SELECT type, checkpoint FROM checkpoints WHERE type LIKE '%+%'")
        if self._has_writes:
            yield from self._rows.each("SELECT type, value FROM writes WHERE type LIKE '%+%'")

    def count(self, thread: str | None) -> int:
        """Return the number of checkpoints, of one thread or of all."""
        where, values = ("", ()) if thread is None else ("WHERE thread_id = ?", (thread,))
        return int(self._rows.all(f"SELECT count(*) FROM checkpoints {where}", values)[0][0])

    def threads(self) -> list[str]:
        """Return the ids of all threads, in order; also of those that have only writes."""
        query = "SELECT DISTINCT thread_id FROM checkpoints"
        if self._has_writes:
            query += " UNION SELECT DISTINCT thread_id FROM writes"
        return sorted(str(thread) for (thread,) in self._rows.all(query))

    def checkpoints(self, thread: str) -> list[CheckpointPlace]:
        """Return where a thread has checkpoints."""
        query = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?"
        return [CheckpointPlace(*row) for row in self._rows.each(query, (thread,))]

    def write_counts(self, thread: str) -> dict[CheckpointPlace, WriteCount]:
        """Count the writes at each place that has any."""
        query = (
            "SELECT checkpoint_ns, checkpoint_id, count(*), min(idx) FROM writes WHERE thread_id = ?"
            " GROUP BY checkpoint_ns, checkpoint_id"
        )
        rows = self._rows.each(query, (thread,)) if self._has_writes else iter(())
        return {CheckpointPlace(ns, id): WriteCount(count, least < 0) for ns, id, count, least in rows}

    def read(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[ForeignCheckpoint]:
        """Read what is at these places, in this order."""
        splitter = splitter_of(self.cipher)
        for place in places:
            before = splitter.fresh
            found = self._found(splitter, thread, place)
            yield found._replace(fresh=splitter.fresh - before)

    def _found(self, splitter: Splitter, thread: str, place: CheckpointPlace) -> ForeignCheckpoint:
        writes = list(self._writes(splitter, thread, place))
        query = (
            "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )
        rows = self._rows.all(query, (thread, *place))
        if not rows:
            return ForeignCheckpoint(place, None, writes)
        try:
            return ForeignCheckpoint(place, self._checkpoint(splitter, place, *rows[0]), writes)
        except UnreadableError as error:
            return ForeignCheckpoint(place, None, writes, str(error))

    def _checkpoint(
        self, splitter: Splitter, place: CheckpointPlace, parent: str | None, tag: str | None, data: Any, about: Any
    ) -> EncodedCheckpoint:
        stored = data.encode() if isinstance(data, str) else data
        found = split_whole(self.cipher, splitter, place.ns, tag, stored)
        held, seen = versions(found.plain)
        return EncodedCheckpoint(parent or None, found.plain, held, seen, found.values, found.rest, metadata(about))

    def _writes(self, splitter: Splitter, thread: str, place: CheckpointPlace) -> Iterator[EncodedWrite]:
        if not self._has_writes:
            return
        query = (
            f"SELECT task_id, {self._path}, idx, channel, type, value FROM writes"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_id, idx"
        )
        for task, path, idx, channel, tag, value in self._rows.all(query, (thread, *place)):
            yield EncodedWrite(task, path, idx, channel, encoded(splitter, tag, value))


def encoded(splitter: Splitter, tag: str | None, value: Any, place: Any = None) -> Parts:
    """A stored value as parts. Bytes that do not match their tag stay whole; reading them raises."""
    data = value.encode() if isinstance(value, str) else bytes(value or b"")
    if tag is None:
        return Parts(WHOLE, "null", [b""])
    try:
        return splitter.split(place, tag, data)
    except ValueError:
        return Parts(WHOLE, tag, [data])


def stored_memories(rows: SqliteRows) -> StoreTableMemories:
    """The memories of a SqliteStore."""
    return StoreTableMemories(
        rows,
        query="SELECT prefix, key, value, created_at, updated_at, {ttl} FROM store"
        f" WHERE (prefix, key) > (?, ?) ORDER BY prefix, key LIMIT {_PAGE}",
        vectors="SELECT embedding FROM store_vectors WHERE prefix = ? AND key = ? ORDER BY field_name",
        as_vector=bytes,
    )
