"""Consistency checks on the rows of SQLite, PostgreSQL or Valkey: no dangling references, right counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg
from psycopg.rows import dict_row

import valkey_servers
from threadkeep.backends.sql.rows import pack_index, unpack_index
from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.backends.valkey.rows import checkpoint_row, item_id, order_member, thread_row, write_field, write_row
from threadkeep.engine.identity import ThreadKey, from_bytes, pack_id, to_bytes, unpack_id
from threadkeep.engine.log.itemlog import (
    NAMES,
    RANGE_LISTS,
    SHARED,
    ItemId,
    pack_ranges,
    read_varints,
    unpack_range_list,
    unpack_ranges,
    varint,
)
from threadkeep.engine.log.records import ThreadRow, thread_checksum
from threadkeep.engine.memories.namespaces import encode


class Rows(NamedTuple):
    """The rows of one thread."""

    thread: dict[str, Any]
    items: dict[ItemId, bytes]
    checkpoints: list[dict[str, Any]]
    writes: list[dict[str, Any]]


def find_problems(path: Path | str, tenant: str = "") -> list[str]:
    """Return every reference without a target and every wrong count; on a server, those of one tenant."""
    return [
        problem
        for rows in _threads(path, tenant)
        for find in (_dangling_references, _wrong_counts, _wrong_checksums)
        for problem in find(rows)
    ]


def unused_items(path: Path | str, thread: str, tenant: str = "") -> set[ItemId]:
    """Return the items that no row of a thread refers to. Names count as used."""
    rows = next((rows for rows in _threads(path, tenant) if rows.thread["id"] == thread.encode()), None)
    return {at for at in rows.items if at.lane != NAMES} - used_items(rows) if rows else set()


def _threads(path: Path | str, tenant: str = "") -> Iterator[Rows]:
    owned, threads = _of_file(path) if isinstance(path, Path) else _of_server(path, tenant)
    known = {thread["thread"] for thread in threads}
    assert all(set(rows) <= known for rows in owned.values()), "rows of a thread that does not exist"
    for thread in threads:
        items, checkpoints, writes = (owned[table].get(thread["thread"], []) for table in owned)
        yield Rows(thread, {ItemId(i["lane"], i["n"]): i["payload"] for i in items}, checkpoints, writes)


OWNED = ("items", "checkpoints", "writes")


def _of_server(url: str, tenant: str) -> tuple[dict[str, dict[int, list[dict[str, Any]]]], list[dict[str, Any]]]:
    return _of_prefix(url, tenant) if url.startswith("valkey:") else _of_schema(url, tenant)


def _of_prefix(url: str, tenant: str) -> tuple[dict[str, dict[int, list[dict[str, Any]]]], list[dict[str, Any]]]:
    """Number and read the threads on Valkey, and check their index sets against their rows."""
    there = {key: value for key, value in valkey_servers.read_all(url).items() if _tenant_of(key) == to_bytes(tenant)}
    owned: dict[str, dict[int, list[dict[str, Any]]]] = {table: {} for table in OWNED}
    threads = []
    for number, (key, fields) in enumerate([each for each in there.items() if each[0][4:6] == b"t:"]):
        row = thread_row(fields[b"r"], fields[b"b"])
        checkpoints = [checkpoint_row(value) for field, value in fields.items() if field[:1] == b"c"]
        writes = [write_row(value) for field, value in fields.items() if field[:1] == b"w"]
        order = set(there.pop(key.replace(b":t:", b":o:", 1), {}))
        _check_order(key, fields, order, [*map(order_member, checkpoints), *map(write_field, writes)])
        assert order >= {b"u" + encode((each.run,)) for each in (*checkpoints, *writes) if each.run is not None}, key
        _check_indexes(key, row, there, order, checkpoints)
        threads.append(
            row._asdict()
            | {
                "thread": number,
                "tenant": to_bytes(row.key.tenant),
                "kind": row.key.kind,
                "id": to_bytes(row.key.id),
                "nexts": b"".join(map(varint, row.nexts)),
                "top": to_bytes(row.top) if row.top is not None else None,
                "early": to_bytes(row.early) if row.early is not None else None,
                "run": pack_id(row.run) if row.run is not None else None,
            }
        )
        items = [(item_id(field), value) for field, value in fields.items() if field[:1] == b"i"]
        owned["items"][number] = [{"lane": at.lane, "n": at.n, "payload": value} for at, value in items]
        owned["checkpoints"][number] = [
            {
                "refs": pack_ranges(each.refs),
                "labels": each.labels,
                "body": each.body,
                "ns": to_bytes(each.ns),
                "id": to_bytes(each.id),
                "hidden": each.hidden,
            }
            for each in checkpoints
        ]
        owned["writes"][number] = [
            {
                "refs": pack_ranges(each.refs),
                "body": each.body,
                "ns": to_bytes(each.ns),
                "checkpoint": to_bytes(each.checkpoint),
                "task": b"s" + to_bytes(each.task),
                "entries": pack_index(each.index),
            }
            for each in writes
        ]
    left = {key: value for key, value in there.items() if key[4:6] not in (b"t:", _TENANTS, *_OF_MEMORIES) and value}
    assert not left, f"index entries of threads that do not exist: {left}"
    return owned, threads


_TENANTS = b"a:"
"""The key of a partition with the tenants that have threads there."""
_OF_MEMORIES = (b"m:", b"e:", b"s:", b"d:", b"v:", b"w:", b"p:")


def _tenant_of(key: bytes) -> bytes:
    """Return the tenant of a key."""
    what, name = key[4:5], key[6:]
    return name.split(b"\0\1")[0].replace(b"\0\xff", b"\0") if what in (b"t", b"o") else name


def _check_order(key: bytes, fields: Any, order: set[bytes], entries_of_rows: list[bytes]) -> None:
    """Check that the order set of a thread has an entry for each of its rows."""
    assert {entry for entry in order if entry[:1] != b"u"} == set(entries_of_rows), key
    rows = {b"c" + entry[1:] if entry[:1] == b"h" else entry for entry in entries_of_rows}
    assert {field for field in fields if field[:1] in (b"c", b"w")} == rows, key


def _check_indexes(key: bytes, row: Any, there: dict[bytes, Any], order: set[bytes], checkpoints: list[Any]) -> None:
    """Check that the partition's index sets agree with the thread's row, and remove the entries that were found."""
    names = ValkeyBackend("").thread_keys(row.key)
    sets = [there[key[:4] + what + b":" + to_bytes(row.key.tenant)] for what in (b"u", b"c", b"b", b"n")]
    entries = [each.pop(name, None) for each, name in zip(sets, (*[names.member] * 3, names.id), strict=True)]
    assert entries == [row.updated, row.created, row.bytes, 0], key
    for run in (entry[1:] for entry in order if entry[:1] == b"u"):
        assert there[key[:4] + b"r:" + to_bytes(row.key.tenant)].pop(run + names.last) == 0, key
    greatest = there.get(key[:4] + b"k:" + to_bytes(row.key.tenant), {}).pop(names.member, None)
    if checkpoints:
        assert greatest is not None and greatest >= max(encode((each.id,)) for each in checkpoints), key
    if greatest is not None:
        assert there[key[:4] + b"g:" + to_bytes(row.key.tenant)].pop(greatest + names.last) == 0, key


def _of_schema(url: str, tenant: str) -> tuple[dict[str, dict[int, list[dict[str, Any]]]], list[dict[str, Any]]]:
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    with psycopg.connect(url.partition("?")[0], row_factory=dict_row) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        cursor = connection.cursor()
        if not cursor.execute("SELECT to_regclass(%s) AS there", [f"{schema}.tk_threads"]).fetchone()["there"]:
            return {table: {} for table in OWNED}, []
        ours = f"IN (SELECT thread FROM {schema}.tk_threads WHERE tenant = %s)"
        rows = {
            table: cursor.execute(
                f"SELECT * FROM {schema}.tk_{table} WHERE thread {ours}", [tenant.encode()]
            ).fetchall()
            for table in (*OWNED, "threads")
        }
    for row in (*rows["checkpoints"], *rows["writes"]):
        row["refs"] = pack_ranges(zip(*[map(int, filter(None, row["refs"].split(",")))] * 3, strict=True))
    return {table: _group_by_thread(rows[table]) for table in OWNED}, rows["threads"]


def _of_file(path: Path) -> tuple[dict[str, dict[int, list[dict[str, Any]]]], list[dict[str, Any]]]:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.row_trace = lambda cursor, row: dict(
        zip((name for name, _ in cursor.get_description()), row, strict=True)
    )
    try:
        with connection:
            owned = {
                table: _group_by_thread(connection.execute(f"SELECT * FROM tk_{table}").fetchall()) for table in OWNED
            }
            return owned, connection.execute("SELECT * FROM tk_threads").fetchall()
    finally:
        connection.close()


def _group_by_thread(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    grouped: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["thread"], []).append(row)
    return grouped


def used_items(rows: Rows) -> set[ItemId]:
    """Return the items that the rows of a thread refer to."""
    used = {at for row in (*rows.checkpoints, *rows.writes) for run in unpack_ranges(row["refs"]) for at in run.ids()}
    lists = [at for at in used if at.lane == RANGE_LISTS and at in rows.items]
    family = rows.thread["family"]
    used |= {at for spill in lists for run in unpack_range_list(spill, rows.items[spill], family) for at in run.ids()}
    return used | {ItemId(SHARED, row["labels"]) for row in rows.checkpoints}


def _dangling_references(rows: Rows) -> Iterator[str]:
    nexts = list(read_varints(rows.thread["nexts"]))
    names = {ItemId(NAMES, n) for n in range(nexts[NAMES] if nexts else 0)}
    labels = {ItemId(SHARED, rows.thread["labels"])} if rows.thread["labels"] is not None else set()
    for at in sorted((used_items(rows) | names | labels) - rows.items.keys()):
        yield f"thread {rows.thread['id']!r} refers to {at}, which does not exist"
    for at in rows.items:
        if at.lane >= len(nexts) or at.n >= nexts[at.lane]:
            yield f"thread {rows.thread['id']!r} has {at}, which is beyond the lane's counter"


def _wrong_counts(rows: Rows) -> Iterator[str]:
    stored = sum(map(len, rows.items.values()))
    for row in (*rows.checkpoints, *rows.writes):
        stored += len(row["body"]) + len(row["refs"])
    stored += sum(len(row["id"]) for row in rows.checkpoints) + sum(len(_text(row["task"])) for row in rows.writes)
    counted = {
        "bytes": stored,
        "checkpoints": sum(not row["hidden"] for row in rows.checkpoints),
        "writes": sum(len(unpack_index(row["entries"])) // 3 for row in rows.writes),
    }
    columns = {"top_writes": rows.thread["top"], "early_writes": rows.thread["early"]}
    for column, id in columns.items():
        on_it = sum(row["ns"] == b"" and row["checkpoint"] == id for row in rows.writes)
        if id is not None or rows.thread[column]:
            counted[column] = on_it
    for column, count in counted.items():
        if rows.thread[column] != count:
            yield f"thread {rows.thread['id']!r} counts {rows.thread[column]} {column}, not {count}"


def _wrong_checksums(rows: Rows) -> Iterator[str]:
    """Compute the checksum of a thread's row from the columns, and compare the two columns of bytes."""
    columns = rows.thread
    row = ThreadRow(
        ThreadKey(from_bytes(columns["tenant"]), columns["kind"], from_bytes(columns["id"])),
        nexts=tuple(read_varints(columns["nexts"])),
        top=from_bytes(columns["top"]) if columns["top"] is not None else None,
        early=from_bytes(columns["early"]) if columns["early"] is not None else None,
        run=unpack_id(columns["run"]) if columns["run"] is not None else None,
        **{name: columns[name] for name in _PLAIN_COLUMNS},
    )
    if columns["checksum"] != thread_checksum(row) or columns["bytes_check"] != columns["bytes"]:
        yield f"thread {columns['id']!r} does not match its checksum"


_PLAIN_COLUMNS = (
    "epoch", "rev", "created", "updated", "checkpoints", "writes", "bytes", "step", "source", "status", "labels",
    "early_status", "family", "top_writes", "early_writes", "description",
)  # fmt: skip


def _text(packed: bytes) -> bytes:
    return packed[1:] if packed[:1] == b"s" else b"-" * 36
