"""Encrypted storages with one of everything, whose tables a test changes behind threadkeep's back.

`SealedStorage.changed` executes statements on a copy (SQLite) or undoes them afterwards (PostgreSQL), so each change is
tried on the same intact storage. `plain` is a storage with the same content and no encryption.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg
from cubeloop.checkpointer.exceptions import ThreadNotFoundError
from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import TextContent, UserMessage
from redis.cluster import ClusterNode, RedisCluster

import postgres_servers
import threadkeep
import valkey_servers
from bit_flips import Answer, Read, one, rows
from checkpoint_chains import config
from checkpoint_trees import Put, PutWrites, put, put_steps
from shared_pool import SharedTransport
from threadkeep.backends.postgres.dialect import PostgresDialect
from threadkeep.backends.sql.backend import SqlBackend
from threadkeep.backends.sql.rows import thread_row
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.encryption.memory_rows import MALFORMED
from threadkeep.engine.identity import CUBE, GRAPH
from threadkeep.engine.log.records import thread_checksum
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.errors import Corrupt
from threadkeep.keep import Keep
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport

KEYS = threadkeep.Keys({"k1": b"\x01" * 32}, primary="k1")
INDEX: Any = {
    "dims": 4,
    "embed": lambda texts: [[len(t) % 7, len(t) % 5, t.count("o"), 1.0] for t in texts],
    "fields": ["text", "more"],
    "search": "hybrid",
}
THREADS = ("t1", "t2", "many")
"""The threads of kind `graph`."""
OTHER_TENANT = "acme"
Row = dict[str, Any]
Statement = tuple[str, Mapping[str, Any]]
_SAVED = "intact"
_CHECKED = ("tk_threads", "tk_memories", "tk_vectors")
"""Tables that have checksums."""
_AS_TEXT = {"json": "json", "tsvector": "tsvector"}
"""Types of PostgreSQL that are read and written as text."""


# --- the content


def fill_tenants(open_keep: Callable[[], threadkeep.Keep]) -> None:
    """Store the same content for two tenants."""
    with open_keep() as keep:
        fill(keep)
        fill(keep.tenant(OTHER_TENANT))


def fill(keep: threadkeep.Keep) -> None:
    """Store threads with namespaces, writes, tags, runs and range lists; a cube thread; memories. Ids are fixed."""
    saver = keep.checkpointer
    said = [{"id": f"m{n}", "text": f"{n} blue moon"} for n in range(30)]
    long = [{"id": f"m{n}", "text": f"{n} " * 200} for n in range(120)]
    for id in THREADS[:2]:
        steps = [
            Put("c1", None, {"messages": said[:3], "a": {"n": id}}, run="run-1"),
            PutWrites("c1", "task1", (("messages", said[3:5]), ("a", {"n": 2})), "~__pregel_pull, reply", "run-1"),
            PutWrites("c1", "task2", (("b", "x" * 50),), "~__pregel_pull, other", "run-1"),
            Put("c2", "c1", {"messages": said[:5], "a": {"n": 2}, "b": "x" * 50}, run="run-2"),
            Put("c3", "c2", {"messages": said[:6], "a": {"n": 2}, "b": "x" * 50}, run="run-2"),
            PutWrites("c3", "task3", (("__interrupt__", ["really?"]),), "~__pregel_pull, ask", "run-2"),
        ]
        put_steps(saver, id, steps)
        for ns in ("sub:1", "sub:2"):
            put_steps(
                saver, id, [Put("s1", None, {"a": ns}), PutWrites("s1", "task1", (("a", ns),), "", "run-1")], ns=ns
            )
        put(saver, {"messages": said[:6], "a": {"n": id}}, thread=id, id="c4", customer=f"ana {id}", run_id="run-3")
    for n in range(6):  # many ranges, which go into range lists
        put_steps(saver, "many", [Put(f"c{n}", f"c{n - 1}" if n else None, {"a": long[n :: 2 + n % 3]})])
    asyncio.run(_fill_cube(keep.cube))
    _fill_store(keep.store)


async def _fill_cube(cube: Any) -> None:
    for id in ("talk", "other"):
        await cube.claim_run(id, "run-é")
        await cube.append(id, [UserMessage(content=[TextContent(text=f"{id} Kilimanjaro")], run_id="run-é", id="m1")])
        await cube.mark_run_complete(id, "run-é")
        await cube.save_extra(id, {"customer": id})
        await cube.save_hitl_answer(id, "q0", {"colour": id}, run_id="run-é")
    await cube.claim_run("talk", "run-2")
    ask = HitlRequest(
        question_id="q1",
        thread_id="talk",
        payload=ConfirmRequest(prompt="blue moon?", details={"n": 1}),
        created_at=1_700_000_000.5,
        timeout_seconds=None,
    )
    await cube.save_pending_request("talk", ask, run_id="run-2")


def _fill_store(store: Any) -> None:
    for first, text in (("users", "blue moon"), ("notes", "red sun and moon")):
        for n in range(3):
            value = {"text": f"{text} {n}", "more": "o" * n, "n": n}
            store.put((first, "u1"), f"k{n}", value, ttl=600 if n == 1 else None)
    store.put(("users", "u2"), "k0", {"text": "another moon"}, index=False)


# --- reads


def reads() -> dict[str, Read]:
    """Return calls of every verb that reads what `fill` stored."""
    calls: dict[str, Read] = {}
    for id in THREADS:
        calls |= _reads_of_graph(id)
    for id in ("talk", "other"):
        calls |= _reads_of_cube(id)
    for order in ("updated", "id"):
        calls[f"threads by {order}"] = rows(lambda keep, order=order: keep.threads(order=order), _thread_id)
    tagged = {"customer": "ana t1"}
    calls["threads of a user"] = rows(lambda keep: keep.threads(metadata=tagged), _thread_id)
    calls["list everything"] = rows(lambda keep: keep.checkpointer.list(None), _checkpoint_id)
    calls["list by metadata"] = rows(lambda keep: keep.checkpointer.list(None, filter=tagged), _checkpoint_id)
    calls["list by step"] = rows(lambda keep: keep.checkpointer.list(None, filter={"step": 4}), _checkpoint_id)
    return calls | _reads_of_store()


def _reads_of_graph(id: str) -> dict[str, Read]:
    calls = {
        "latest": one(lambda keep: keep.checkpointer.get_tuple(config(id))),
        "list": rows(lambda keep: keep.checkpointer.list(config(id)), _checkpoint_id),
        "thread": one(lambda keep: keep.thread(id, kind=GRAPH)),
        "log": rows(lambda keep: keep.log(id, kind=GRAPH), lambda info: (info.ns, info.id)),
    }
    for ns, at in [("", "c1"), ("", "c3"), ("sub:1", "s1"), ("sub:2", "s1")] if id != "many" else [("", "c4")]:
        calls[f"get {ns} {at}"] = one(lambda keep, ns=ns, at=at: keep.checkpointer.get_tuple(config(id, at, ns=ns)))
    return {f"{GRAPH} {id}: {name}": call for name, call in calls.items()}


def _reads_of_cube(id: str) -> dict[str, Read]:
    calls = {
        "thread": one(lambda keep: keep.thread(id, kind=CUBE)),
        "load": one(lambda keep: asyncio.run(keep.cube.load(id))),
        "pending": one(lambda keep: asyncio.run(keep.cube.load_pending(id))),
        "answer": one(lambda keep: asyncio.run(keep.cube.load_hitl_answer(id, "q0", run_id="run-é"))),
        "snapshot": one(lambda keep: _snapshot(keep, id)),
    }
    return {f"{CUBE} {id}: {name}": call for name, call in calls.items()}


def _snapshot(keep: threadkeep.Keep, id: str) -> Any:
    try:
        return asyncio.run(keep.cube.snapshot(id, after_run_id="run-é"))
    except ThreadNotFoundError:
        return None


def _reads_of_store() -> dict[str, Read]:
    calls: dict[str, Read] = {}
    for first in ("users", "notes"):
        for key in ("k0", "k1"):
            calls[f"memory {first} {key}"] = one(
                lambda keep, first=first, key=key: keep.store.get((first, "u1"), key, refresh_ttl=False)
            )
    for name, prefix, query, filter in (
        ("memories", (), None, None), ("memories of users", ("users",), None, None),
        ("memories by filter", (), None, {"n": {"$gte": 1}}), ("memories like moon", (), "moon", None),
        ("memories of users like blue", ("users",), "blue", None),
    ):  # fmt: skip
        calls[name] = rows(
            lambda keep, prefix=prefix, query=query, filter=filter: keep.store.search(
                prefix, query=query, filter=filter, limit=100, refresh_ttl=False
            ),
            lambda item: (item.namespace, item.key),
        )
    calls["namespaces"] = rows(lambda keep: keep.store.list_namespaces(limit=100), lambda namespace: namespace)
    return calls


def _thread_id(info: Any) -> tuple[str, str]:
    return info.kind, info.id


def _checkpoint_id(found: Any) -> tuple[str, ...]:
    named = found.config["configurable"]
    return named["thread_id"], named["checkpoint_ns"], named["checkpoint_id"]


def answers(keep: threadkeep.Keep, calls: Mapping[str, Read]) -> dict[str, Answer]:
    """Return the answers of an intact storage."""
    return {name: call(keep) for name, call in calls.items()}


# --- the storages


class Table(NamedTuple):
    """A table: the type of each column, and the columns that identify a row."""

    columns: dict[str, str]
    key: tuple[str, ...]


class SealedStorage:
    """What the storages have in common. `execute` takes a statement with :names and returns rows."""

    execute: Callable[[str, Mapping[str, Any]], list[Any]]
    _dialect: SqlBackend

    @cached_property
    def tables(self) -> dict[str, Table]:
        """All tables of threadkeep's, from the catalogue of the database."""
        raise NotImplementedError

    def changed(
        self, statements: Iterable[Statement], *, forges: bool = False
    ) -> AbstractContextManager[Callable[[], threadkeep.Keep]]:
        """Execute statements. Yield a function that opens a new Keep. At the end, all is as it was before.

        `forges`: as whoever knows threadkeep would, make all checksums fit, or remove them.
        """
        raise NotImplementedError

    def _forge(self, execute: Callable[[str, Mapping[str, Any]], list[Any]]) -> None:
        columns = self._dialect.sql["thread-columns"]
        for (number,) in execute("SELECT thread FROM tk_threads", {}):
            at = {"number": number}
            with suppress(Corrupt, *MALFORMED):  # a row that cannot be read has no checksum that fits
                (found,) = execute(f"SELECT {columns} FROM tk_threads t WHERE t.thread = :number", at)
                fitting = at | {"checksum": thread_checksum(thread_row(found))}
                execute(
                    "UPDATE tk_threads SET checksum = :checksum, bytes_check = bytes WHERE thread = :number", fitting
                )
        execute("UPDATE tk_memories SET checksum = NULL, times = NULL", {})
        execute("UPDATE tk_vectors SET checksum = NULL", {})

    def open(self) -> threadkeep.Keep:
        """Open the intact storage."""
        raise NotImplementedError

    def rows(self, table: str, tenant: str | None = "") -> list[Row]:
        """Return the rows of a table in order of their keys; only those of a tenant, or of all."""
        columns, key = self.tables[table]
        read = ", ".join(f"{name}::text" if columns[name] in _AS_TEXT else name for name in columns)
        found = self.execute(f"SELECT {read} FROM {table} ORDER BY {', '.join(key)}", {})
        all_rows = [dict(zip(columns, row, strict=True)) for row in found]
        return all_rows if tenant is None else self._of_tenant(all_rows, tenant)

    def _of_tenant(self, rows: list[Row], tenant: str) -> list[Row]:
        if not rows or "tenant" in rows[0]:
            return [row for row in rows if bytes(row["tenant"]) == tenant.encode()]
        for name, table in (("thread", "tk_threads"), ("memory", "tk_memories")):
            if name in rows[0]:
                owned = self.execute(f"SELECT {name} FROM {table} WHERE tenant = :tenant", {"tenant": tenant.encode()})
                return [row for row in rows if (row[name],) in owned]
        return rows

    def update(self, table: str, row: Row, new: Row) -> Statement:
        """Return a statement that changes columns of a row."""
        types, (where, values) = self.tables[table].columns, self.where(table, row)
        sets = ", ".join(f"{name} = {self._cast(f':new_{name}', types[name])}" for name in new)
        return f"UPDATE {table} SET {sets} WHERE {where}", values | {f"new_{name}": each for name, each in new.items()}

    def insert(self, table: str, row: Row) -> Statement:
        """Return a statement that inserts a row."""
        types = self.tables[table].columns
        values = ", ".join(self._cast(f":new_{name}", types[name]) for name in row)
        return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})", {f"new_{n}": v for n, v in row.items()}

    def delete(self, table: str, row: Row) -> Statement:
        """Return a statement that deletes a row."""
        where, values = self.where(table, row)
        return f"DELETE FROM {table} WHERE {where}", values

    def close(self) -> None:
        """Close what is open."""
        raise NotImplementedError

    def where(self, table: str, row: Row) -> Statement:
        """Return the condition that finds a row."""
        names = [name for name in self.tables[table].key if row[name] is not None]
        return " AND ".join(f"{name} = :old_{name}" for name in names), {f"old_{name}": row[name] for name in names}

    def _cast(self, value: str, type: str) -> str:
        return f"CAST({value} AS {type})" if type in {*_AS_TEXT, "real[]"} else value


class SealedFile(SealedStorage):
    """A SQLite file. Changes are made on a copy."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._folder, self._options, self._copies = folder, options, 0
        self._dialect = SqliteDialect()
        self.path = folder / "intact.db"
        fill_tenants(self.open)
        self.execute = partial(self._execute_at, self.path)

    def open(self, path: Path | None = None) -> threadkeep.Keep:
        """Open the file, or a copy."""
        return threadkeep.open(f"sqlite:///{path or self.path}", index=INDEX, **self._options)

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    @staticmethod
    def _execute_at(path: Path, sql: str, values: Mapping[str, Any]) -> list[Any]:
        with closing(apsw.Connection(str(path))) as connection:
            return connection.execute(sql, dict(values)).fetchall()

    @cached_property
    def tables(self) -> dict[str, Table]:
        """All tables, those in which SQLite keeps the index of words too."""
        found = {}
        for name, sql in self.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'", {}):
            if "VIRTUAL" not in sql and name.startswith("tk_"):
                columns = self.execute(f"PRAGMA table_info({name})", {})
                key = tuple(each[1] for each in columns if each[5]) or tuple(each[1] for each in columns)
                found[name] = Table({each[1]: each[2].lower() for each in columns}, key)
        return found

    @contextmanager
    def changed(
        self, statements: Iterable[Statement], *, forges: bool = False
    ) -> Iterator[Callable[[], threadkeep.Keep]]:
        self._copies += 1
        copy = self._folder / f"copy{self._copies}.db"
        copyfile(self.path, copy)
        with closing(apsw.Connection(str(copy))) as connection:
            for (trigger,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {trigger}")  # whoever writes the file can do that
            with connection:
                for sql, values in statements:
                    connection.execute(sql, dict(values))
                if forges:
                    self._forge(lambda sql, values: connection.execute(sql, dict(values)).fetchall())
        yield partial(self.open, copy)
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{copy}{end}").unlink()


class SealedSchema(SealedStorage):
    """A schema of PostgreSQL. After a change, the tables are filled again from copies."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.url = postgres_servers.fresh_schema(postgres_servers.shared())
        self._schema = parse_qs(urlsplit(self.url).query)["schema"][0]
        self._dialect = PostgresDialect(self._schema)
        self._options = options
        self._owner = threadkeep.open(self.url, index=INDEX)
        self._owner.setup()
        fill_tenants(self.open)
        self._connection = psycopg.connect(self.url.partition("?")[0], autocommit=True)
        self._connection.execute(f'SET search_path = "{self._schema}"')
        for table in self.tables:
            self._connection.execute(f"CREATE TABLE {_SAVED}_{table} AS SELECT * FROM {table}")

    def open(self) -> threadkeep.Keep:
        """Open a Keep that has read nothing yet. It shares connections only."""
        return _open_shared(self._owner, self._options)

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()
        self._owner.close()

    def execute(self, sql: str, values: Mapping[str, Any]) -> list[Any]:
        """Execute a statement."""
        for name in sorted(values, key=len, reverse=True):
            sql = sql.replace(f":{name}", f"%({name})s")
        cursor = self._connection.execute(sql, dict(values))
        return cursor.fetchall() if cursor.description else []

    @cached_property
    def tables(self) -> dict[str, Table]:
        """All tables."""
        columns = """SELECT c.table_name, c.column_name, CASE c.udt_name WHEN '_float4' THEN 'real[]' ELSE c.data_type END
            FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
            WHERE c.table_schema = :schema AND t.table_type = 'BASE TABLE' AND c.table_name LIKE 'tk_%%'
            ORDER BY c.ordinal_position"""
        keys = """SELECT k.table_name, k.column_name FROM information_schema.key_column_usage k
            JOIN information_schema.table_constraints t USING (constraint_schema, constraint_name)
            WHERE k.table_schema = :schema AND t.constraint_type = 'PRIMARY KEY'"""
        found: dict[str, Table] = {}
        for table, column, type in self.execute(columns, {"schema": self._schema}):
            found.setdefault(table, Table({}, ())).columns[column] = type
        for table, column in self.execute(keys, {"schema": self._schema}):
            found[table] = found[table]._replace(key=(*found[table].key, column))
        return found

    @contextmanager
    def changed(
        self, statements: Iterable[Statement], *, forges: bool = False
    ) -> Iterator[Callable[[], threadkeep.Keep]]:
        statements = list(statements)
        with self._connection.transaction():
            for sql, values in statements:
                self.execute(sql, values)
            if forges:
                self._forge(self.execute)
        changed = {table for table in self.tables if any(f" {table} " in sql for sql, _ in statements)}
        try:
            yield self.open
        finally:
            with self._connection.transaction():
                for table in changed | (set(_CHECKED) if forges else set()):
                    self._connection.execute(f"DELETE FROM {table}")
                    self._connection.execute(f"INSERT INTO {table} SELECT * FROM {_SAVED}_{table}")


class SealedPrefix:
    """What is stored under a prefix of a Valkey cluster: fields of hashes, and members of sorted sets."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.url = valkey_servers.shared().url()
        self._prefix = parse_qs(urlsplit(self.url).query)["prefix"][0].encode()
        self._options = options
        self._owner = threadkeep.open(self.url, index=INDEX)
        self._owner.setup()
        host, _, port = urlsplit(self.url).netloc.split(",")[0].partition(":")
        self._client: Any = RedisCluster(startup_nodes=[ClusterNode(host, int(port))])
        with self.open() as keep:
            fill(keep)

    def open(self) -> threadkeep.Keep:
        """Open a Keep that has read nothing yet. It shares connections only."""
        return _open_shared(self._owner, self._options)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._owner.close()

    def entries(self) -> list[tuple[bytes, bytes, bytes | float]]:
        """Return all fields of hashes with their values, and all members of sorted sets with their scores."""
        found = []
        for name, entries in sorted(valkey_servers.read_all(self.url).items()):
            partition, _, rest = name.partition(b":")
            key = b"%b{%b}:%b" % (self._prefix, partition, rest)
            found += [(key, field, value) for field, value in sorted(entries.items())]
        return found

    @contextmanager
    def changed(self, key: bytes, field: bytes, new: bytes | float | None) -> Iterator[Callable[[], threadkeep.Keep]]:
        """Replace or remove an entry. Yield a function that opens a new Keep. At the end, all is as it was before."""
        is_hash = self._client.type(key) == b"hash"
        old = self._client.hget(key, field) if is_hash else self._client.zscore(key, field)

        def store(value: Any) -> None:
            if value is None:
                self._client.hdel(key, field) if is_hash else self._client.zrem(key, field)
            else:
                self._client.hset(key, field, value) if is_hash else self._client.zadd(key, {field: value})

        store(new)
        try:
            yield self.open
        finally:
            store(old)


def _open_shared(owner: threadkeep.Keep, options: Mapping[str, Any]) -> threadkeep.Keep:
    given: dict[str, Any] = {"keys": None, "hide_ids": None} | dict(options)
    transport = TenantTransport(SharedTransport(owner._session.transport.inner), "", **given)
    return Keep(Session(transport, tenant="", caches=Caches(1 << 26)), KeepSerializer(allowed_types=()), index=INDEX)
