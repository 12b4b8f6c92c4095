"""langgraph-checkpoint-mysql: PyMySQLSaver, AIOMySQLSaver, AsyncMySaver, shallow savers, stores; every migration.

The tables of a saver are those of `langgraph_blobs.py`, with

    checkpoint_ns_hash  the MD5 of a namespace, in bytes or in hexadecimal digits; not in the first releases. It is in
                        the primary keys. Tables other than `checkpoints` may have it instead of the namespace
    blob                or blob_data, in tables that others made of these

A store has one table, `store`, without times to live and without vectors.

MySQL compares text without regard to case and trailing spaces, unless its column says otherwise. A thread is imported
with the rows that have exactly its id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import md5
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.transfer.sources.langgraph_blobs import (
    Blob,
    BlobSaverThreads,
    SavedCheckpoint,
    SavedWrite,
    has_checkpoints,
)
from threadkeep.transfer.sources.langgraph_store import StoreTableMemories
from threadkeep.transfer.sources.mysql_server import MySqlRows
from threadkeep.transfer.sources.source import CheckpointPlace, WriteCount

KIND = "langgraph-mysql"
_BLOBS = {"thread_id", "channel", "type"}
_STORE = {"prefix", "key", "value", "created_at", "updated_at"}
_NS, _HASH = "checkpoint_ns", "checkpoint_ns_hash"
_PAGE = 500
_SAMPLES = 20
_THREAD = "thread_id = %(thread)s AND CAST(CONVERT(thread_id USING utf8mb4) AS BINARY) = CAST(%(thread)s AS BINARY)"


def has_threads(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a saver."""
    return has_checkpoints(tables) and tables.get("checkpoint_blobs", set()) >= _BLOBS


def has_memories(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a store."""
    return tables.get("store", set()) >= _STORE


def saved_threads(rows: MySqlRows) -> MySqlSaverThreads:
    """Return the threads of a database that has them."""
    return MySqlSaverThreads(rows)


def stored_memories(rows: MySqlRows) -> StoreTableMemories:
    """The memories of a PyMySQLStore."""
    return StoreTableMemories(
        rows,
        query="SELECT prefix, `key`, value, created_at, updated_at, {ttl} FROM store"
        f" WHERE prefix > %s OR (prefix = %s AND `key` > %s) ORDER BY prefix, `key` LIMIT {_PAGE}",
        after=lambda prefix, key: (prefix, prefix, key),
    )


class _Namespaces(NamedTuple):
    """The column by which a table finds the rows of a namespace."""

    column: str
    as_text: bool

    def key(self, ns: str) -> str | bytes:
        """Return what the column has for a namespace."""
        if self.column == _NS:
            return ns
        digest = md5(ns.encode(), usedforsecurity=False)
        return digest.hexdigest() if self.as_text else digest.digest()

    def keys(self, names: Iterable[str]) -> dict[str | bytes, str]:
        """Return namespaces by what the column has for them."""
        return {self.key(ns): ns for ns in names}


class MySqlSaverThreads(BlobSaverThreads):
    """The threads of a PyMySQLSaver, AIOMySQLSaver or AsyncMySaver, or of a shallow one."""

    def __init__(self, rows: MySqlRows) -> None:
        self._rows = rows
        self.shallow = "checkpoint_id" not in rows.tables["checkpoints"]
        columns = rows.tables.get("checkpoint_writes", set())
        self._has_writes = bool(columns)
        self._path = "task_path" if "task_path" in columns else "''"
        self._id = "json_unquote(json_extract(checkpoint, '$.id'))" if self.shallow else "checkpoint_id"
        self._parent = "NULL" if self.shallow else "parent_checkpoint_id"
        self._version = "''" if self.shallow else "version"

    def _namespaces(self, table: str) -> _Namespaces:
        column = _HASH if _HASH in self._rows.tables[table] else _NS
        return _Namespaces(column, as_text="char" in self._rows.types[table, column])

    def _data(self, table: str) -> str:
        return "`blob`" if "blob" in self._rows.tables[table] else "blob_data"

    def _all(self, query: str, thread: str, **values: Any) -> list[Any]:
        return self._rows.all(query, {"thread": thread, **values})

    def encrypted_values(self) -> Iterator[tuple[str, bytes]]:
        """Read some encrypted values with their tags, in any order."""
        for table in ("checkpoint_blobs", "checkpoint_writes") if self._has_writes else ("checkpoint_blobs",):
            data = self._data(table)
            query = f"SELECT type, {data} FROM {table} WHERE locate('+', type) > 0 AND {data} IS NOT NULL"
            yield from self._rows.all(f"{query} LIMIT {_SAMPLES}")

    def count(self, thread: str | None) -> int:
        """Return the number of checkpoints, of one thread or of all."""
        query = "SELECT count(*) FROM checkpoints"
        rows = self._rows.all(query) if thread is None else self._all(f"{query} WHERE {_THREAD}", thread)
        return int(rows[0][0])

    def threads(self) -> list[str]:
        """Return the ids of all threads, in order; also of those that have only writes."""
        tables = ("checkpoints", "checkpoint_writes") if self._has_writes else ("checkpoints",)
        query = "SELECT min(thread_id) FROM {} GROUP BY thread_id, CAST(CONVERT(thread_id USING utf8mb4) AS BINARY)"
        return sorted({thread for table in tables for (thread,) in self._rows.all(query.format(table))})

    def checkpoints(self, thread: str) -> list[CheckpointPlace]:
        """Return where a thread has checkpoints."""
        query = f"SELECT {_NS}, {self._id} FROM checkpoints WHERE {_THREAD}"
        return [CheckpointPlace(*row) for row in self._all(query, thread)]

    def write_counts(self, thread: str) -> dict[CheckpointPlace, WriteCount]:
        """Count the writes at each place that has any."""
        if not self._has_writes:
            return {}
        namespaces = self._namespaces("checkpoint_writes")
        query = (
            f"SELECT {namespaces.column}, {{}}, checkpoint_id, count(*), min(idx) FROM checkpoint_writes"
            f" WHERE {_THREAD} GROUP BY {namespaces.column}, checkpoint_id"
        )
        if _NS in self._rows.tables["checkpoint_writes"]:
            rows = self._all(query.format(f"min({_NS})"), thread)
        else:
            names = namespaces.keys({"", *(place.ns for place in self.checkpoints(thread))})
            rows = [(key, names.get(key), *row) for key, _, *row in self._all(query.format("NULL"), thread)]
        return {
            CheckpointPlace(ns, id): WriteCount(count, least < 0) for _, ns, id, count, least in rows if ns is not None
        }

    def checkpoint_rows(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[SavedCheckpoint]:
        """Read the checkpoints at these places."""
        namespaces = self._namespaces("checkpoints")
        query = (
            f"SELECT {_NS}, {self._id}, {self._parent}, checkpoint, metadata FROM checkpoints"
            f" WHERE {_THREAD} AND ({namespaces.column}, {self._id}) IN %(places)s"
        )
        wanted = [(namespaces.key(place.ns), place.id) for place in places]
        for ns, id, parent, checkpoint, about in self._all(query, thread, places=wanted) if wanted else ():
            yield SavedCheckpoint(CheckpointPlace(ns, id), parent, json.loads(checkpoint), json.loads(about))

    def blob_sizes(self, thread: str, blobs: set[Blob]) -> dict[Blob, int]:
        """Return the sizes of those of these values that exist."""
        return dict(self._blobs(thread, blobs, f"coalesce(octet_length({self._data('checkpoint_blobs')}), 0)"))

    def blob_rows(self, thread: str, blobs: set[Blob]) -> Iterator[tuple[Blob, str, bytes | None]]:
        """Read these values: the tag and the bytes of each."""
        return self._blobs(thread, blobs, f"type, {self._data('checkpoint_blobs')}")

    def _blobs(self, thread: str, blobs: set[Blob], columns: str) -> Iterator[Any]:
        namespaces = self._namespaces("checkpoint_blobs")
        query = (
            f"SELECT {namespaces.column}, channel, {self._version}, {columns} FROM checkpoint_blobs"
            f" WHERE {_THREAD} AND ({namespaces.column}, channel, {self._version}) IN %(blobs)s ORDER BY 1, 2, 3"
        )
        names = namespaces.keys(blob.ns for blob in blobs)
        wanted = [(namespaces.key(blob.ns), blob.channel, blob.version) for blob in blobs]
        for key, channel, version, *rest in self._all(query, thread, blobs=wanted) if wanted else ():
            if key in names:
                yield Blob(names[key], channel, str(version)), *rest

    def write_rows(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[SavedWrite]:
        """Read the writes at these places, those of a task in order."""
        if not self._has_writes or not places:
            return
        namespaces = self._namespaces("checkpoint_writes")
        query = (
            f"SELECT {namespaces.column}, checkpoint_id, task_id, {self._path}, idx, channel, type,"
            f" {self._data('checkpoint_writes')} FROM checkpoint_writes"
            f" WHERE {_THREAD} AND ({namespaces.column}, checkpoint_id) IN %(places)s ORDER BY 1, 2, 3, 5"
        )
        names = namespaces.keys(place.ns for place in places)
        wanted = [(namespaces.key(place.ns), place.id) for place in places]
        for key, id, *write in self._all(query, thread, places=wanted):
            if key in names:
                yield SavedWrite(CheckpointPlace(names[key], id), *write)

    def sends(self, thread: str, ns: str | None, checkpoint: str | None) -> Sequence[tuple[str, bytes]]:
        """Read the sends on a checkpoint, in any namespace as the saver reads them; or all those in a namespace."""
        if not self._has_writes:
            return []
        namespaces = self._namespaces("checkpoint_writes")
        where = "checkpoint_id" if ns is None else namespaces.column
        query = (
            f"SELECT {self._path}, task_id, idx, type, {self._data('checkpoint_writes')} FROM checkpoint_writes"
            f" WHERE {_THREAD} AND {where} = %(of)s AND channel = %(channel)s"
        )
        of = checkpoint if ns is None else namespaces.key(ns)
        return [row[3:] for row in sorted(self._all(query, thread, of=of, channel=TASKS), key=lambda row: row[:3])]
