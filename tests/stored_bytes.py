"""All bytes that a storage holds: for tests that something is not, or no longer, stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from redis.cluster import RedisCluster

from damaged_memories import sql_executor


def everything_stored(url: str) -> bytes:
    """Return a file, or what the tables of a schema contain, or the keys below a prefix with what they contain."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))
    if url.startswith("postgres"):
        execute = sql_executor(url)
        tables = execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()", {})
        rows = [row for (table,) in tables for row in execute(f"SELECT * FROM {table}", {})]
        return b" ".join(as_bytes(value) for row in rows for value in row)
    hosts, _, query = url.partition("://")[2].partition("/?")
    host, _, port = hosts.split(",")[0].partition(":")
    server: Any = RedisCluster(host=host, port=int(port))
    prefix = parse_qs(query)["prefix"][0]
    read = {b"hash": server.hgetall, b"zset": lambda key: server.zrange(key, 0, -1), b"string": server.get}
    keys = list(server.scan_iter(f"{prefix}*", target_nodes=RedisCluster.PRIMARIES))
    return b" ".join(key + _plain(read[server.type(key)](key)) for key in keys)


def _plain(value: Any) -> bytes:
    if isinstance(value, dict):
        return b" ".join(each for pair in value.items() for each in pair)
    return b" ".join(value) if isinstance(value, list) else bytes(value)


def as_bytes(value: Any) -> bytes:
    """Return the value of a column as bytes."""
    return value if isinstance(value, bytes) else str(value).encode()
