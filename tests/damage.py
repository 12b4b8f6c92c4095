"""Changes stored rows behind threadkeep's back, on every backend: flips bytes, deletes rows, swaps items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg
from redis.cluster import ClusterNode, RedisCluster

import threadkeep
from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.backends.sql.backend import SqlBackend
from threadkeep.backends.sql.rows import thread_row
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.backends.valkey import rows as valkey_rows
from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.engine.identity import GRAPH, ThreadKey
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow, thread_checksum


def flip_byte(data: bytes, at: float = 0.5) -> bytes:
    """Return the bytes with one bit flipped, at this fraction of their length."""
    n = min(int(len(data) * at), len(data) - 1)
    return data[:n] + bytes([data[n] ^ 0x10]) + data[n + 1 :]


class StoredRows(ABC):
    """The stored rows of one thread, which a test may change."""

    @abstractmethod
    def items(self) -> dict[ItemId, bytes]: ...

    @abstractmethod
    def set_item(self, at: ItemId, stored: bytes | None) -> None: ...

    @abstractmethod
    def checkpoints(self) -> list[CheckpointRow]: ...

    @abstractmethod
    def set_checkpoint(self, row: CheckpointRow, changed: CheckpointRow | None) -> None: ...

    @abstractmethod
    def writes(self) -> list[WriteRow]: ...

    @abstractmethod
    def set_writes(self, row: WriteRow, changed: WriteRow | None) -> None: ...

    @abstractmethod
    def thread(self) -> ThreadRow: ...

    @abstractmethod
    def set_thread(self, changed: ThreadRow) -> None: ...

    @abstractmethod
    def spoil_thread(self, **columns: Any) -> None:
        """Change columns of the thread's row, and leave its checksum."""

    @abstractmethod
    def lose_thread(self) -> None:
        """Delete the thread's row, and leave everything else."""

    @abstractmethod
    def show_instead_of(self, other: StoredRows) -> None:
        """Let whoever looks for the other thread find this one's row."""

    @abstractmethod
    def delete_index_entries(self) -> None:
        """Delete the index entries of filters, runs or listings."""

    def root(self) -> list[CheckpointRow]:
        """Return the root checkpoints, oldest first."""
        return sorted((row for row in self.checkpoints() if row.ns == ""), key=lambda row: row.id)


class MemoryRows(StoredRows):
    """Rows of the memory backend."""

    def __init__(self, keep: threadkeep.Keep, id: str, kind: str = GRAPH) -> None:
        transport: Any = keep._session.transport
        self._threads, self._key = transport._backend._threads, ThreadKey("", kind, id)
        self._held = self._threads[self._key]

    def items(self) -> dict[ItemId, bytes]:
        return dict(self._held.items)

    def set_item(self, at: ItemId, stored: bytes | None) -> None:
        self._held.items.pop(at)
        if stored is not None:
            self._held.items[at] = stored

    def checkpoints(self) -> list[CheckpointRow]:
        return list(self._held.checkpoints.values())

    def set_checkpoint(self, row: CheckpointRow, changed: CheckpointRow | None) -> None:
        del self._held.checkpoints[(row.ns, row.id)]
        if changed is not None:
            self._held.checkpoints[(changed.ns, changed.id)] = changed

    def writes(self) -> list[WriteRow]:
        return [row for rows in self._held.writes.values() for row in rows.values()]

    def set_writes(self, row: WriteRow, changed: WriteRow | None) -> None:
        held = self._held.writes[(row.ns, row.checkpoint)]
        del held[row.task]
        if changed is not None:
            held[changed.task] = changed

    def thread(self) -> ThreadRow:
        return self._held.row

    def set_thread(self, changed: ThreadRow) -> None:
        self._held.row = changed._replace(bytes_check=changed.bytes, checksum=thread_checksum(changed))

    def spoil_thread(self, **columns: Any) -> None:
        if "id" in columns:
            columns["key"] = self._held.row.key._replace(id=columns.pop("id"))
        self._held.row = self._held.row._replace(**columns)

    def lose_thread(self) -> None:
        raise NotImplementedError("a thread without a row has nothing")

    def show_instead_of(self, other: StoredRows) -> None:
        assert isinstance(other, MemoryRows)
        self._threads[other._key] = self._held

    def delete_index_entries(self) -> None:
        self._held.tags.clear()
        self._held.runs.clear()


class SqlRows(StoredRows):
    """Rows in a SQL database. `execute` takes a statement with :names and returns rows."""

    def __init__(
        self, execute: Callable[[str, Mapping[str, Any]], list[Any]], dialect: SqlBackend, id: str, kind: str = GRAPH
    ) -> None:
        self.execute = execute
        self._dialect = dialect
        found = execute(
            "SELECT thread FROM tk_threads WHERE id = :id AND kind = :kind", {"id": id.encode(), "kind": kind}
        )
        self.number = found[0][0]

    def _rows(self, sql: str) -> list[Any]:
        return self.execute(sql, {"number": self.number})

    def items(self) -> dict[ItemId, bytes]:
        rows = self._rows("SELECT lane, n, payload FROM tk_items WHERE thread = :number")
        return {ItemId(lane, n): bytes(payload) for lane, n, payload in rows}

    def set_item(self, at: ItemId, stored: bytes | None) -> None:
        where = "WHERE thread = :number AND lane = :lane AND n = :n"
        values = {"number": self.number, "lane": at.lane, "n": at.n, "payload": stored}
        self.execute(
            f"UPDATE tk_items SET payload = :payload {where}"
            if stored is not None
            else f"DELETE FROM tk_items {where}",
            values,
        )

    def checkpoints(self) -> list[CheckpointRow]:
        rows = self._rows(
            "SELECT ns, id, parent, run, step, source, labels, time, hidden, "
            "refs, body FROM tk_checkpoints WHERE thread = :number"
        )
        return [self._dialect.checkpoint_row(row) for row in rows]

    def set_checkpoint(self, row: CheckpointRow, changed: CheckpointRow | None) -> None:
        self._replace(
            "tk_checkpoints",
            ("ns", "id"),
            self._dialect.checkpoint_values(self.number, [row]),
            self._dialect.checkpoint_values(self.number, [changed] if changed else []),
        )

    def writes(self) -> list[WriteRow]:
        rows = self._rows(
            "SELECT ns, checkpoint, task, path, run, time, entries, refs, body FROM tk_writes WHERE thread = :number"
        )
        return [self._dialect.write_row(row) for row in rows]

    def set_writes(self, row: WriteRow, changed: WriteRow | None) -> None:
        self._replace(
            "tk_writes",
            ("ns", "checkpoint", "task"),
            self._dialect.write_values(self.number, [row]),
            self._dialect.write_values(self.number, [changed] if changed else []),
        )

    def _replace(self, table: str, keys: tuple[str, ...], old: Any, new: Any) -> None:
        before, after = next(iter(old)), next(iter(new), None)
        where = " AND ".join(f"{key} = :old_{key}" for key in keys)
        values = {"number": self.number} | {f"old_{key}": before[key] for key in keys}
        if after is None:
            self.execute(f"DELETE FROM {table} WHERE thread = :number AND {where}", values)
            return
        columns = ", ".join(f"{name} = :{name}" for name in after if name != "thread")
        self.execute(f"UPDATE {table} SET {columns} WHERE thread = :number AND {where}", values | after)

    def thread(self) -> ThreadRow:
        columns = self._dialect.sql["thread-columns"]
        return thread_row(self._rows(f"SELECT {columns} FROM tk_threads t WHERE t.thread = :number")[0])

    def set_thread(self, changed: ThreadRow) -> None:
        values = {
            name: value
            for name, value in self._dialect.thread_values(changed).items()
            if name not in ("number", "thread_id")
        }
        columns = ", ".join(f"{name} = :{name}" for name in values)
        self.execute(f"UPDATE tk_threads SET {columns} WHERE thread = :number", values | {"number": self.number})

    def spoil_thread(self, **columns: Any) -> None:
        row = self.thread()
        key = row.key._replace(id=columns.pop("id")) if "id" in columns else row.key
        values = self._dialect.thread_values(row._replace(key=key, **columns))
        changed = {name: values[name] for name in columns} | {"id": values["thread_id"]}
        self.execute(
            f"UPDATE tk_threads SET {', '.join(f'{name} = :{name}' for name in changed)} WHERE thread = :number",
            changed | {"number": self.number},
        )

    def lose_thread(self) -> None:
        self._rows("DELETE FROM tk_threads WHERE thread = :number")

    def show_instead_of(self, other: StoredRows) -> None:
        """Give this row the key of the other thread. SQLite needs no other row for this: see `mislead_index`."""
        assert isinstance(other, SqlRows)
        key = other.thread().key
        other.lose_thread()
        values = {"id": key.id.encode(), "other": other.number, "number": self.number}
        self.execute("UPDATE tk_threads SET id = :id, thread = :other WHERE thread = :number", values)

    def delete_index_entries(self) -> None:
        self._rows("DELETE FROM tk_tags WHERE thread = :number")
        self._rows("DELETE FROM tk_runs WHERE thread = :number")


class ValkeyRows(StoredRows):
    """Rows on a Valkey cluster."""

    def __init__(self, client: RedisCluster, prefix: str, id: str, kind: str = GRAPH) -> None:
        self.client = client
        self.names = ValkeyBackend(prefix).thread_keys(ThreadKey("", kind, id))
        self.hash, self.order = self.names.keys[:2]

    def _fields(self) -> dict[bytes, bytes]:
        held: Any = self.client.hgetall(self.hash)
        return held

    def items(self) -> dict[ItemId, bytes]:
        return {valkey_rows.item_id(field): value for field, value in self._fields().items() if field[:1] == b"i"}

    def _set(self, field: bytes, value: bytes | None) -> None:
        self.client.hset(self.hash, field, value) if value is not None else self.client.hdel(self.hash, field)

    def set_item(self, at: ItemId, stored: bytes | None) -> None:
        self._set(b"i%d:%d" % at, stored)

    def checkpoints(self) -> list[CheckpointRow]:
        return [valkey_rows.checkpoint_row(value) for field, value in self._fields().items() if field[:1] == b"c"]

    def set_checkpoint(self, row: CheckpointRow, changed: CheckpointRow | None) -> None:
        self._set(
            valkey_rows.checkpoint_field(row.ns, row.id),
            valkey_rows.pack_checkpoint(changed) if changed is not None else None,
        )
        if changed is None:
            self.client.zrem(self.order, valkey_rows.order_member(row))

    def writes(self) -> list[WriteRow]:
        return [valkey_rows.write_row(value) for field, value in self._fields().items() if field[:1] == b"w"]

    def set_writes(self, row: WriteRow, changed: WriteRow | None) -> None:
        place = valkey_rows.task_field(row.ns, row.checkpoint, row.task)
        self._set(place, valkey_rows.pack_write(changed) if changed is not None else None)
        if changed is None:
            self.client.zrem(self.order, place)

    def thread(self) -> ThreadRow:
        held = self._fields()
        return valkey_rows.thread_row(held[b"r"], held[b"b"])

    def set_thread(self, changed: ThreadRow) -> None:
        self._set(b"r", valkey_rows.pack_thread(changed))
        self._set(b"b", b"%d:%d" % (changed.bytes, changed.bytes))

    def spoil_thread(self, **columns: Any) -> None:
        row, (facts, _, _) = self.thread(), self._fields()[b"r"].partition(b"\n")
        key = row.key._replace(id=columns.pop("id")) if "id" in columns else row.key
        if "bytes" in columns:
            self._set(b"b", b"%d:%d" % (columns.pop("bytes"), row.bytes))
        spoiled = valkey_rows.pack_thread(row._replace(key=key, **columns))
        changed, _, packed = spoiled.partition(b"\n")
        checksum = facts.split(b",")[1]
        self._set(
            b"r",
            b",".join([checksum if n == 1 else each for n, each in enumerate(changed.split(b","))]) + b"\n" + packed,
        )

    def lose_thread(self) -> None:
        self.client.hdel(self.hash, "r", "v", "b")

    def show_instead_of(self, other: StoredRows) -> None:
        assert isinstance(other, ValkeyRows)
        self.client.delete(other.hash, other.order)
        self.client.hset(other.hash, mapping=self._fields())
        self.client.zadd(other.order, dict.fromkeys(self.client.zrange(self.order, 0, -1), 0))

    def delete_index_entries(self) -> None:
        for key in self.names.keys[2:5]:
            self.client.zrem(key, self.names.member)


def rows_opener(url: str) -> Callable[..., StoredRows]:
    """Return a function (keep, thread id, kind) that opens the rows of a thread at a URL."""
    if url.startswith("memory"):
        return MemoryRows
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(10_000)
        return lambda _, id, kind=GRAPH: SqlRows(
            lambda sql, values: connection.execute(sql, dict(values)).fetchall(), SqliteDialect(), id, kind
        )
    if url.startswith("valkey"):
        hosts, _, query = url.partition("://")[2].partition("/?")
        host, _, port = hosts.split(",")[0].partition(":")
        client = RedisCluster(startup_nodes=[ClusterNode(host, int(port))])
        prefix = parse_qs(query)["prefix"][0]
        return lambda _, id, kind=GRAPH: ValkeyRows(client, prefix, id, kind)
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    base = url.partition("?")[0]
    execute = executor(base, schema)
    return lambda _, id, kind=GRAPH: SqlRows(execute, PostgresDialect(schema), id, kind)


def executor(base: str, schema: str) -> Callable[[str, Mapping[str, Any]], list[Any]]:
    """Return a function that executes statements in a schema, on its own connection."""
    connection = psycopg.connect(base, autocommit=True)
    connection.execute(f'SET search_path = "{schema}"')

    def execute(sql: str, values: Mapping[str, Any]) -> list[Any]:
        for name in sorted(values, key=len, reverse=True):
            sql = sql.replace(f":{name}", f"%({name})s")
        cursor = connection.execute(sql, dict(values))
        return cursor.fetchall() if cursor.description else []

    return execute


def mislead_index(path: Path, id: str, other: str) -> None:
    """Change one byte of a SQLite file that is not open: the index entry of a thread gets the number of another one."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        sql = "SELECT thread FROM tk_threads WHERE id = ?"
        (number,), (wrong,) = (connection.execute(sql, [each.encode()]).fetchall()[0] for each in (id, other))
    data = path.read_bytes()
    entry = b"graph" + id.encode() + bytes([number])
    assert 1 < number < 128 and 1 < wrong < 128 and data.count(entry) == 1
    path.write_bytes(data.replace(entry, entry[:-1] + bytes([wrong])))
