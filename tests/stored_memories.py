"""Reads memories directly from SQLite, PostgreSQL or Valkey, and finds leftovers of deleted ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg

import valkey_servers
from threadkeep.backends.valkey.memories import NUMBER_OFFSET, memory_row, vector_row
from threadkeep.engine.identity import from_bytes
from threadkeep.engine.memories.namespaces import MemoryKey, decode

Query = Callable[[str], list[tuple[Any, ...]]]


class StoredMemories(NamedTuple):
    """Keys of memories by number, the vectors of their fields, and which of them are in the word index."""

    memory_keys: dict[int, MemoryKey]
    vectors: dict[int, dict[int, list[float]]]
    words: set[int]

    def of(self, key: MemoryKey) -> list[list[float]]:
        """Return the vectors of a memory."""
        number = next((number for number, stored in self.memory_keys.items() if stored == key), 0)
        return list(self.vectors.get(number, {}).values())


def read_memories(where: Path | str, tenant: str = "") -> StoredMemories:
    """Read all memories of a tenant, expired ones too."""
    if isinstance(where, Path):
        return _of_file(where, tenant)
    return _of_prefix(where, tenant) if where.startswith("valkey:") else _of_schema(where, tenant)


def find_leftovers(where: Path | str, tenant: str = "") -> list[str]:
    """Return vectors and words of memories that do not exist, and vectors that are not numbered from 0."""
    return list(_leftovers(read_memories(where, tenant)))


def _leftovers(found: StoredMemories) -> Iterator[str]:
    for number, fields in ((number, list(vectors)) for number, vectors in found.vectors.items()):
        if number not in found.memory_keys:
            yield f"vectors {fields} of no memory ({number})"
        elif fields != list(range(len(fields))):
            yield f"{found.memory_keys[number]} has the vectors {fields}"
    for number in found.words - found.memory_keys.keys():
        yield f"words of no memory ({number})"


def _of_file(path: Path, tenant: str) -> StoredMemories:
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(10_000)
        with connection:
            ask: Query = lambda sql: connection.execute(sql).fetchall()
            whose = f"x'{_hex(tenant)}'"
            words = ask(
                "SELECT coalesce(m.memory, w.rowid) FROM tk_words w LEFT JOIN tk_memories m ON m.n = w.rowid "
                f"WHERE coalesce(m.tenant, {whose}) = {whose}"
            )
            return StoredMemories(*_rows(ask, "tk_", whose), {row[0] for row in words})


def _of_prefix(url: str, tenant: str) -> StoredMemories:
    """Read memories from Valkey, and check their index sets against their rows."""
    found = StoredMemories({}, {}, set())
    there = valkey_servers.read_all(url)
    for key, stored in there.items():
        if key[4:6] != b"m:" or decode(key[6:])[0] != tenant:
            continue
        rows = {number: memory_row(tenant, number, each) for number, each in stored.items()}
        sets: Any = {what: there.get(key[:4] + what + key[5:], {}) for what in (b"e", b"s", b"d", b"w", b"v")}
        assert {name[-16:] for name in sets[b"s"]} == set(rows) and len(sets[b"s"]) == len(rows), key
        assert sets[b"d"] == {number: row.updated for number, row in rows.items()}, key
        assert sets[b"e"] == {number: row.expires for number, row in rows.items() if row.expires is not None}, key
        assert key[6:] in there[key[:4] + b"p:"], key
        found.memory_keys.update({int(number, 16) - NUMBER_OFFSET: row.memory_key for number, row in rows.items()})
    for key, stored in there.items():
        if key[4:6] == b"x:" and decode(key[6:])[0] == tenant:
            found.words.update(int(number, 16) - NUMBER_OFFSET for number in stored)
    for key, stored in there.items():
        if key[4:6] == b"v:" and decode(key[6:])[0] == tenant:
            fields = {field: value for field, value in stored.items() if b":" in field}
            assert set(there.get(key[:4] + b"w" + key[5:], {})) == set(fields), key
            for vector in sorted(vector_row(field, value) for field, value in fields.items()):
                found.vectors.setdefault(vector.memory, {})[vector.field] = _numbers(vector.vector)
    return found


def _of_schema(url: str, tenant: str) -> StoredMemories:
    prefix = f"{parse_qs(urlsplit(url).query)['schema'][0]}.tk_"
    with psycopg.connect(url.partition("?")[0]) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        ask: Query = lambda sql: connection.execute(sql.encode()).fetchall()
        whose = f"'\\x{_hex(tenant)}'::bytea"
        words = ask(f"SELECT memory FROM {prefix}memories WHERE tenant = {whose} AND words IS NOT NULL")
        return StoredMemories(*_rows(ask, prefix, whose), {row[0] for row in words})


def _rows(ask: Query, prefix: str, tenant: str) -> tuple[dict[int, MemoryKey], dict[int, dict[int, list[float]]]]:
    places = ask(f"SELECT memory, space, key FROM {prefix}memories WHERE tenant = {tenant}")
    ours = f"part IN (SELECT part FROM {prefix}parts WHERE tenant = {tenant})"
    vectors: dict[int, dict[int, list[float]]] = {}
    for number, field, vector in ask(f"SELECT memory, field, vector FROM {prefix}vectors WHERE {ours} ORDER BY 1, 2"):
        vectors.setdefault(number, {})[field] = _numbers(vector)
    return {number: MemoryKey(decode(space), from_bytes(key)) for number, space, key in places}, vectors


def _numbers(vector: bytes | list[float]) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector)) if isinstance(vector, bytes) else vector


def _hex(tenant: str) -> str:
    return tenant.encode().hex()
