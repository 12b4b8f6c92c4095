"""Changes stored memories and vectors behind threadkeep's back, one column at a time, on every backend.

A `Damage` is a context manager: the change is undone at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import apsw
from redis.cluster import ClusterNode, RedisCluster

import threadkeep
from damage import executor, flip_byte
from threadkeep.backends.valkey.memories import ValkeyMemories, namespace_start, number_text
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories.namespaces import MemoryKey, memory_number
from threadkeep.engine.memories.requests import GetMemories

Damage = Callable[[], AbstractContextManager[None]]
Execute = Callable[[str, Mapping[str, Any]], list[Any]]


def damages(keep: threadkeep.Keep, url: str, key: MemoryKey) -> dict[str, Damage]:
    """Return ways to damage a memory with vectors and a ttl, by name."""
    if url.startswith("memory"):
        return _in_memory(keep, key)
    if url.startswith("valkey"):
        return _on_valkey(url, key)
    return _in_sql(sql_executor(url), key, is_postgres=url.startswith("postgres"))


def sql_executor(url: str) -> Execute:
    """Return a function that executes statements in a SQL database."""
    if url.startswith("postgres"):
        return executor(url.partition("?")[0], parse_qs(urlsplit(url).query)["schema"][0])
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(10_000)
    return lambda sql, values: connection.execute(sql, dict(values)).fetchall()


def flipped(value: Any) -> list[Any]:
    """Return a column's value with one bit flipped, at two places."""
    if isinstance(value, (bytes, memoryview)):
        return [flip_byte(bytes(value), at) for at in (0.0, 0.9)] if value else [b"x"]
    if isinstance(value, str):
        return [value[:n] + chr(ord(value[n]) ^ 1) + value[n + 1 :] for n in (len(value) // 2,)]
    if isinstance(value, float):
        return [value + 1, -value]
    if isinstance(value, list):
        return [[*value[:-1], value[-1] + 1.0]]
    return [value ^ 2, value ^ (1 << 40)]


def _in_sql(execute: Execute, key: MemoryKey, *, is_postgres: bool) -> dict[str, Damage]:
    number = memory_number("", key)
    own = "dims", "space", "tenant"
    columns = {
        "tk_memories": [
            "memory",
            "part",
            "tenant",
            "space",
            "key",
            "created",
            "updated",
            "expires",
            "ttl",
            "value",
            "vectors",
            "checksum",
            "times",
        ],
        "tk_vectors": [*["memory", "field", "part", "seq", "vector", "checksum"], *(own if is_postgres else ())],
        "tk_parts": ["part", "tenant", "first", "seq"],
    }
    part = execute("SELECT part FROM tk_memories WHERE memory = :memory", {"memory": number})[0][0]
    found: dict[str, Damage] = {}
    for table, names in columns.items():
        one = {"part": part} if table == "tk_parts" else {"memory": number}
        one |= {"field": 1} if table == "tk_vectors" else {}
        for name in names:
            found |= _column_damages(execute, table, name, one, is_postgres=is_postgres)
        found[f"{table} row"] = lambda table=table, one=one: _without_row(execute, table, one)
    return found


def _column_damages(
    execute: Execute, table: str, column: str, one: Mapping[str, Any], *, is_postgres: bool
) -> dict[str, Damage]:
    where = " AND ".join(f"{name} = :old_{name}" for name in one)
    read = f"{column}::text" if is_postgres and column == "value" else column
    values = {f"old_{name}": each for name, each in one.items()}
    ((old,),) = execute(f"SELECT {read} FROM {table} WHERE {where}", values)
    cast = {"value": "::json", "vector": "::real[]"}.get(column, "") if is_postgres else ""
    small = column in (
        "vectors",
        "field",
        "dims",
    )  # 32 bits in PostgreSQL; a greater `seq` harms nothing, so it is made less

    @contextmanager
    def change(new: Any) -> Iterator[None]:
        sql = f"UPDATE {table} SET {column} = :new{cast} WHERE {where}"
        execute(sql, {"new": new} | values)
        yield
        now = {**one, column: new} if column in one else one
        execute(sql, {"new": old} | {f"old_{name}": each for name, each in now.items()})

    changes = [old ^ 1 << old.bit_length() - 1] if column == "seq" else flipped(old)[: 1 if small else None]
    return {f"{table}.{column} {n}": lambda new=new: change(new) for n, new in enumerate(changes)}


@contextmanager
def _without_row(execute: Execute, table: str, one: Mapping[str, Any]) -> Iterator[None]:
    where = " AND ".join(f"{name} = :{name}" for name in one)
    execute(f"CREATE TABLE tk_saved AS SELECT * FROM {table} WHERE {where}", one)
    execute(f"DELETE FROM {table} WHERE {where}", one)
    yield
    execute(f"INSERT INTO {table} SELECT * FROM tk_saved", {})
    execute("DROP TABLE tk_saved", {})


def _in_memory(keep: threadkeep.Keep, key: MemoryKey) -> dict[str, Damage]:
    transport: Any = keep._session.transport
    held: Any = transport._backend._handlers[GetMemories].__self__._tenants[""]
    memory, checksums = held.rows[key], held.checksums[key]

    @contextmanager
    def replace(holder: dict[Any, Any], at: Any, new: Any) -> Iterator[None]:
        old = holder[at]
        holder[at] = new
        yield
        holder[at] = old

    @contextmanager
    def remove(holder: dict[Any, Any], at: Any) -> Iterator[None]:
        old = holder.pop(at)
        yield
        holder[at] = old

    def of_row(name: str, new: Any) -> Damage:
        return lambda: replace(held.rows, key, memory._replace(row=memory.row._replace(**{name: new})))

    found = {
        f"row.{name} {n}": of_row(name, new)
        for name in ("key", "value", "created", "updated", "expires", "ttl")
        for n, new in enumerate(flipped(getattr(memory.row, name)))
    }
    vectors = (memory.vectors[0], flip_byte(memory.vectors[1]))
    return found | {
        "row.namespace": of_row("namespace", (*key.namespace[:-1], "other")),
        "vector": lambda: replace(held.rows, key, memory._replace(vectors=vectors)),
        "vectors": lambda: replace(held.rows, key, memory._replace(vectors=memory.vectors[:1])),
        "checksum": lambda: replace(held.checksums, key, checksums._replace(row=checksums.row ^ 1)),
        "number": lambda: remove(held.numbers, memory_number("", key)),
        "row": lambda: remove(held.rows, key),
    }


def _on_valkey(url: str, key: MemoryKey) -> dict[str, Damage]:
    hosts, _, query = url.partition("://")[2].partition("/?")
    host, _, port = hosts.split(",")[0].partition(":")
    client: Any = RedisCluster(startup_nodes=[ClusterNode(host, int(port))])
    stored = ValkeyMemories(to_bytes(parse_qs(query)["prefix"][0]))
    memories, expiry, namespaces, times, vectors, changes, *_ = stored._part("", key.namespace[0]).keys
    number = number_text(memory_number("", key))

    @contextmanager
    def set_field(hash: bytes, field: bytes, new: bytes | None) -> Iterator[None]:
        old = client.hget(hash, field)
        client.hset(hash, field, new) if new is not None else client.hdel(hash, field)
        yield
        client.hset(hash, field, old)

    @contextmanager
    def set_score(key: bytes, member: bytes, new: float | None) -> Iterator[None]:
        old = client.zscore(key, member)
        client.zadd(key, {member: new}) if new is not None else client.zrem(key, member)
        yield
        client.zadd(key, {member: old})

    def flips(what: str, hash: bytes, field: bytes) -> dict[str, Damage]:
        data = client.hget(hash, field)
        flipped_at = {n: flip_byte(data, n / len(data)) for n in range(0, len(data), 1 + len(data) // 5)}
        return {f"{what} byte {n}": lambda new=new: set_field(hash, field, new) for n, new in flipped_at.items()}

    return {
        **flips("memory", memories, number),
        **flips("vector", vectors, number + b":1"),
        "memory value": lambda: set_field(memories, number, flip_byte(client.hget(memories, number), 0.8)),
        "memory created": lambda: set_field(memories, number, flip_byte(client.hget(memories, number), 0)),
        "memory": lambda: set_field(memories, number, None),
        "vector": lambda: set_field(vectors, number + b":1", None),
        "time": lambda: set_score(times, number, 1.0),
        "no time": lambda: set_score(times, number, None),
        "expiry": lambda: set_score(expiry, number, 1.0),
        "no namespace": lambda: set_score(namespaces, namespace_start(key.namespace) + number, None),
        "no change": lambda: set_score(changes, number + b":1", None),
    }
