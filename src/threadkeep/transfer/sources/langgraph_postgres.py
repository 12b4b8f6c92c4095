"""langgraph-checkpoint-postgres: PostgresSaver, AsyncPostgresSaver, the shallow savers, the stores; every migration.

The tables of a saver are those of `langgraph_blobs.py`. Those of a store:

    store               without expires_at and ttl_minutes in the first releases
    store_vectors       of pgvector
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.memories.vectors import pack_vector as packed_vector
from threadkeep.transfer.sources.langgraph_blobs import (
    Blob,
    BlobSaverThreads,
    SavedCheckpoint,
    SavedWrite,
    has_checkpoints,
)
from threadkeep.transfer.sources.langgraph_store import StoreTableMemories
from threadkeep.transfer.sources.postgres_server import PostgresRows
from threadkeep.transfer.sources.source import CheckpointPlace, WriteCount

KIND = "langgraph-postgres"
_BLOBS = {"thread_id", "checkpoint_ns", "channel", "type", "blob"}
_STORE = {"prefix", "key", "value", "created_at", "updated_at"}
_PAGE = 500
_SAMPLES = 20


def has_threads(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a saver."""
    return has_checkpoints(tables) and tables.get("checkpoint_blobs", set()) >= _BLOBS


def has_memories(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a store."""
    return tables.get("store", set()) >= _STORE


def saved_threads(rows: PostgresRows) -> PostgresSaverThreads:
    """Return the threads of a database that has them."""
    return PostgresSaverThreads(rows)


class PostgresSaverThreads(BlobSaverThreads):
    """The threads of a PostgresSaver, or of a shallow one."""

    def __init__(self, rows: PostgresRows) -> None:
        self._rows = rows
        self.shallow = "checkpoint_id" not in rows.tables["checkpoints"]
        columns = rows.tables.get("checkpoint_writes", set())
        self._has_writes = bool(columns)
        self._path = "task_path" if "task_path" in columns else "''::text"
        self._id = "checkpoint ->> 'id'" if self.shallow else "checkpoint_id"
        self._parent = "NULL::text" if self.shallow else "parent_checkpoint_id"
        self._version = "''::text" if self.shallow else "version"

    def encrypted_values(self) -> Iterator[tuple[str, bytes]]:
        """Read some encrypted values with their tags, in any order."""
        for table in ("checkpoint_blobs", "checkpoint_writes") if self._has_writes else ("checkpoint_blobs",):
            query = f"SELECT type, blob FROM {table} WHERE strpos(type, '+') > 0 AND blob IS NOT NULL LIMIT {_SAMPLES}"
            yield from self._rows.all(query)

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

    def checkpoint_rows(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[SavedCheckpoint]:
        """Read the checkpoints at these places."""
        query = (
            f"SELECT checkpoint_ns, {self._id}, {self._parent}, checkpoint, metadata FROM checkpoints"
            f" WHERE thread_id = %s AND (checkpoint_ns, {self._id}) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        )
        for ns, id, parent, checkpoint, about in self._rows.all(query, (thread, *_columns(places, 2))):
            yield SavedCheckpoint(CheckpointPlace(ns, id), parent, checkpoint, about)

    def blob_sizes(self, thread: str, blobs: set[Blob]) -> dict[Blob, int]:
        """Return the sizes of those of these values that exist."""
        return dict(self._blobs(thread, blobs, "coalesce(octet_length(blob), 0)"))

    def blob_rows(self, thread: str, blobs: set[Blob]) -> Iterator[tuple[Blob, str, bytes | None]]:
        """Read these values: the tag and the bytes of each."""
        return self._blobs(thread, blobs, "type, blob")

    def _blobs(self, thread: str, blobs: set[Blob], columns: str) -> Iterator[Any]:
        query = (
            f"SELECT checkpoint_ns, channel, {self._version}, {columns} FROM checkpoint_blobs"
            f" WHERE thread_id = %s AND (checkpoint_ns, channel, {self._version}) IN"
            " (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])) ORDER BY 1, 2, 3"
        )
        return ((Blob(*row[:3]), *row[3:]) for row in self._rows.all(query, (thread, *_columns(blobs, 3))))

    def write_rows(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[SavedWrite]:
        """Read the writes at these places, those of a task in order."""
        query = (
            f"SELECT checkpoint_ns, checkpoint_id, task_id, {self._path}, idx, channel, type, blob"
            " FROM checkpoint_writes WHERE thread_id = %s AND (checkpoint_ns, checkpoint_id) IN"
            " (SELECT * FROM unnest(%s::text[], %s::text[])) ORDER BY 1, 2, 3, 5"
        )
        rows = self._rows.all(query, (thread, *_columns(places, 2))) if self._has_writes else []
        return (SavedWrite(CheckpointPlace(ns, id), *write) for ns, id, *write in rows)

    def sends(self, thread: str, ns: str | None, checkpoint: str | None) -> Sequence[tuple[str, bytes]]:
        """Read the sends on a checkpoint, in any namespace as the saver reads them; or all those in a namespace."""
        where, value = ("checkpoint_id", checkpoint) if ns is None else ("checkpoint_ns", ns)
        query = (
            f"SELECT type, blob FROM checkpoint_writes WHERE thread_id = %s AND {where} = %s AND channel = %s"
            f" ORDER BY {self._path}, task_id, idx"
        )
        return self._rows.all(query, (thread, value, TASKS)) if self._has_writes else []


def _columns(rows: Any, width: int) -> tuple[list[Any], ...]:
    return tuple([row[n] for row in rows] for n in range(width))


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
