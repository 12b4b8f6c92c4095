"""Rows of encrypted storages that were changed, swapped or replaced: every answer is right, or an error, or declared to
be damaged; and if something is missing, `verify` reports it.

Every column of every table is changed, as the database's catalogue lists them, so a new column is tried too. Whoever
changes a row can also make its checksum fit, which needs no key: `forges` does that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import psycopg
import pytest

import threadkeep
from bit_flips import Answer, Judgement, Read, judge_keep
from checkpoint_chains import config
from checkpoint_trees import Put, PutWrites, put_steps
from damage import StoredRows, flip_byte, rows_opener
from damaged_memories import sql_executor
from sealed_storages import (
    INDEX,
    KEYS,
    Row,
    SealedFile,
    SealedPrefix,
    SealedSchema,
    SealedStorage,
    Statement,
    answers,
    reads,
)
from threadkeep.encryption.tenant_key import SEALED, TenantKey, TenantState
from threadkeep.engine.log.records import CheckpointRow, ThreadRow
from threadkeep.errors import Corrupt, WrongKey

MEMORY_TABLES = ("tk_memories", "tk_vectors", "tk_parts", "tk_words")
THREAD_TABLES = ("tk_threads", "tk_items", "tk_checkpoints", "tk_writes", "tk_tags", "tk_runs")
UNBOUND = {
    ("tk_memories", "created"): "a replaced memory keeps it: the database copies it",
    ("tk_memories", "expires"): "a refresh moves it: the database computes it",
    ("tk_threads", "bytes"): "the database adds to it",
    ("tk_threads", "tenant"): "the thread is gone, as if it had been deleted",
}
"""Columns that no key protects. With a checksum that fits, another value is accepted."""
_ROWS = 6
_SAMPLE = 24
_Change = TypeVar("_Change")
_DATABASE_ERRORS = (apsw.Error, psycopg.Error)


class Change(NamedTuple):
    """Statements that change an intact storage, the table that they change, and what they do."""

    table: str
    what: str
    statements: list[Statement]


# --- what is changed


def columns_changed(storage: SealedStorage) -> Iterator[Change]:
    """Yield changes of every column of every table, in some of its rows."""
    for table, (columns, _) in storage.tables.items():
        found = storage.rows(table) if table != "tk_schema" else []  # versions, which no key protects
        for row in found[:: max(1, len(found) // _ROWS)]:
            for column in columns:
                for what, value in other_values(row[column]).items():
                    if value != row[column]:
                        yield Change(table, f"{column}: {what}", [storage.update(table, row, {column: value})])


def other_values(old: Any) -> dict[str, Any]:
    """Return other values for a column."""
    if isinstance(old, (bytes, memoryview)):
        data = bytes(old)
        found = {f"bit at {n}": data[:n] + bytes([data[n] ^ 1 << n % 8]) + data[n + 1 :] for n in _places(data)}
        return found | {"cut": data[: len(data) // 2], "cut by one": data[:-1], "empty": b"", "longer": data + b"\0"}
    if isinstance(old, str):
        found = {f"bit at {n}": old[:n] + chr(ord(old[n]) ^ 1) + old[n + 1 :] for n in _places(old)}
        return found | {"cut": old[: len(old) // 2], "cut by one": old[:-1], "empty": "", "longer": f"{old}A"}
    if isinstance(old, list):
        return {"bit": [*old[:-1], -old[-1]], "first": [old[0] + 1, *old[1:]], "cut": old[:-1], "empty": []}
    if old is None:
        return {"a number": 1, "bytes": b"x", "a text": "x"}
    return {"one more": old + 1, "all bits": -1 - old, "zero": 0, "none": None}


def _places(data: Any) -> list[int]:
    return sorted({0, 1, 5, len(data) // 2, len(data) - 1} & set(range(len(data))))


def rows_swapped(storage: SealedStorage) -> Iterator[Change]:
    """Yield swaps of what rows contain, as a whole and column by column: all neighbours, and others far away.

    So rows are swapped between checkpoints, namespaces, tasks, threads and tenants; items between ids; memories and
    data keys between partitions.
    """
    for table, (columns, key) in storage.tables.items():
        names = [name for name in columns if name not in key] or list(columns)
        for one, other in _pairs(storage.rows(table, tenant=None)):
            for some in (names, *([name] for name in names)):
                if any(one[name] != other[name] for name in some):
                    new, old = ({name: row[name] for name in some} for row in (other, one))
                    statements = [storage.update(table, one, new), storage.update(table, other, old)]
                    yield Change(table, f"{some} of {_short(one)} and {_short(other)} swapped", statements)


def _pairs(rows: list[Row]) -> Iterator[tuple[Row, Row]]:
    yield from zip(rows, rows[1:], strict=False)
    yield from zip(rows, rows[len(rows) // 2 :], strict=False)


def _short(row: Row) -> str:
    return " ".join(str(value)[:30] for value in list(row.values())[:4])


NATURAL_KEYS = {
    "tk_threads": ("kind", "id"),
    "tk_items": ("thread", "lane", "n"),
    "tk_checkpoints": ("thread", "id"),
    "tk_writes": ("thread", "checkpoint", "task"),
    "tk_memories": ("space", "key"),
    "tk_vectors": ("memory", "field"),
}
"""Columns that are the same in an encrypted storage and in a plain one with the same content."""


def rows_made_plain(storage: SealedStorage, plain: SealedStorage) -> Iterator[Change]:
    """Yield replacements of rows, and of their columns, by those of a plain storage with the same content."""
    for table, key in NATURAL_KEYS.items():
        own = {tuple(row[name] for name in key): row for row in storage.rows(table)}
        for row in plain.rows(table):
            sealed = own[tuple(row[name] for name in key)]
            names = [name for name in row if row[name] != sealed[name] and name not in ("epoch", "rev", "thread")]
            for some in (names, *([name] for name in names)):
                new = {name: row[name] for name in some}
                yield Change(table, f"{some} of {_short(sealed)} made plain", [storage.update(table, sealed, new)])


# --- the storages


class Intact(NamedTuple):
    """An encrypted storage, the calls that read it, and their answers."""

    storage: SealedStorage
    calls: dict[str, Read]
    expected: dict[str, Answer]


def _make(kind: str, folder: Path, options: dict[str, Any]) -> SealedStorage:
    return SealedFile(folder, options) if kind == "sqlite" else SealedSchema(options)


@pytest.fixture(scope="module")
def storages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Intact]]:
    """Return intact storages by kind, each made once: `plain`, or encrypted, with or without hidden ids."""
    made: list[SealedStorage] = []

    @cache
    def storage(kind: str, *, hide_ids: bool = False, plain: bool = False) -> Intact:
        options: dict[str, Any] = {} if plain else {"keys": KEYS, "hide_ids": hide_ids}
        made.append(_make(kind, tmp_path_factory.mktemp("sealed"), options))
        calls = reads()
        with made[-1].changed([]) as open_keep, open_keep() as keep:
            assert keep.verify().problems == []
            return Intact(made[-1], calls, answers(keep, calls))

    yield storage
    for each in made:
        each.close()


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of storage with tables."""
    name: str = request.param
    return name


def judge(intact: Intact, changes: Iterable[Change], *, forges: bool, judgement: Judgement | None = None) -> Judgement:
    """Make each change to the intact storage, read everything that it may concern, and judge the answers."""
    judgement = judgement or Judgement()
    for table, what, statements in changes:
        calls = {name: call for name, call in intact.calls.items() if _concerns(table, name)}
        # A database refuses some of them: two rows with one key, a NULL, a number that is too large.
        with suppress(*_DATABASE_ERRORS), intact.storage.changed(statements, forges=forges) as open_keep:
            judgement.counts["made"] += 1
            with open_keep() as keep:
                judge_keep(keep, f"{table} {what}", calls, intact.expected, judgement)
        if judgement.errors.pop("WrongKey", 0) and table != "tk_tenants":
            judgement.failures.append(f"{table} {what}: WrongKey instead of Corrupt")
    return judgement


def _concerns(table: str, read: str) -> bool:
    is_of_store = read.startswith(("memor", "namespaces"))
    return table not in THREAD_TABLES if is_of_store else not table.startswith(MEMORY_TABLES)


def _some(changes: Iterable[_Change], part: slice) -> list[_Change]:
    """Return a part of the changes, in an order that mixes tables."""
    mixed = list(changes)
    random.Random(16).shuffle(mixed)  # noqa: S311 - not a secret
    return mixed[part]


def _parts(count: int) -> list[Any]:
    """Return a sample, and for `make prove-long` the parts that are everything together."""
    everything = [slice(n, None, count) for n in range(count)]
    sample = pytest.param(slice(_SAMPLE), id="sample")
    return [sample, *(pytest.param(each, id=f"part{each.start}", marks=pytest.mark.long) for each in everything)]


def _assert_refused(judgement: Judgement) -> None:
    """Assert that no changed row was accepted, that enough was tried, and that most changes were noticed."""
    assert judgement.failures == []
    assert judgement.counts["made"] > 0
    assert judgement.counts["raised"] + judgement.counts["missing"] > judgement.counts["made"] / 2
    assert judgement.errors.keys() <= {"Corrupt", "CheckpointCorruptionError", "declared", "Unavailable"}


# --- changed columns


@pytest.mark.parametrize("part", _parts(12))
def test_a_changed_column_is_never_accepted(part: slice, kind: str, storages: Callable[..., Intact]) -> None:
    intact = storages(kind)
    changes = [each for each in _some(columns_changed(intact.storage), part) if not _is_unbound(each)]
    _assert_refused(judge(intact, changes, forges=True))


@pytest.mark.parametrize("part", _parts(2))
def test_a_changed_column_is_never_accepted_with_hidden_ids(part: slice, storages: Callable[..., Intact]) -> None:
    intact = storages("sqlite", hide_ids=True)
    changes = [each for each in _some(columns_changed(intact.storage), part) if not _is_unbound(each)]
    _assert_refused(judge(intact, changes, forges=True))


@pytest.mark.long
def test_a_column_changed_without_its_checksum_is_never_accepted(kind: str, storages: Callable[..., Intact]) -> None:
    intact = storages(kind)
    _assert_refused(judge(intact, _some(columns_changed(intact.storage), slice(250)), forges=False))


def _is_unbound(change: Change) -> bool:
    return (change.table, change.what.partition(":")[0]) in UNBOUND


@pytest.mark.parametrize(("table", "column"), UNBOUND)
def test_what_is_said_not_to_be_protected_is_not(table: str, column: str, storages: Callable[..., Intact]) -> None:
    intact = storages("sqlite")
    judgement = Judgement()
    for change in columns_changed(intact.storage):
        if (change.table, change.what.partition(":")[0]) == (table, column) and not judgement.failures:
            judge(intact, [change], forges=True, judgement=judgement)
    assert judgement.failures


@pytest.mark.parametrize("part", [slice(10), pytest.param(slice(10, 500), marks=pytest.mark.long)], ids=repr)
@pytest.mark.parametrize("kind", ["valkey"])
def test_a_changed_entry_is_never_accepted(kind: str, part: slice) -> None:
    storage = SealedPrefix({"keys": KEYS})
    calls, judgement = reads(), Judgement()
    with storage.open() as keep:
        expected = answers(keep, calls)
    for key, field, what, new in _some(_entries_changed(storage), part):
        judgement.counts["made"] += 1
        with storage.changed(key, field, new) as open_keep, open_keep() as keep:
            judge_keep(keep, f"{key!r} {field!r} {what}", calls, expected, judgement)
        if judgement.errors.pop("WrongKey", 0) and not key.partition(b"}")[2].startswith(b":y:"):
            judgement.failures.append(f"{key!r} {field!r} {what}: WrongKey instead of Corrupt")
    storage.close()
    _assert_refused(judgement)


def _entries_changed(storage: SealedPrefix) -> Iterator[tuple[bytes, bytes, str, Any]]:
    """Yield changes of fields and members under a prefix: its key, its name, what is done, and the new value."""
    for key, field, value in storage.entries():
        values = other_values(value) if isinstance(value, bytes) else {}
        for what, new in {"removed": None, **values}.items():
            yield key, field, what, new


# --- swapped rows


@pytest.mark.parametrize("part", _parts(6))
def test_swapped_rows_are_never_accepted(part: slice, kind: str, storages: Callable[..., Intact]) -> None:
    intact = storages(kind)
    changes = [each for each in _some(rows_swapped(intact.storage), part) if not _swaps_unbound(each)]
    judgement = judge(intact, changes, forges=True)
    assert judgement.failures == []
    assert judgement.counts["raised"] > judgement.counts["made"] / 8


def _swaps_unbound(change: Change) -> bool:
    return any(change.table == table and change.what.startswith(f"['{name}']") for table, name in UNBOUND)


@pytest.mark.parametrize("part", [slice(8), pytest.param(slice(8, 400), marks=pytest.mark.long)], ids=repr)
@pytest.mark.parametrize("kind", ["valkey"])
def test_swapped_entries_are_never_accepted(kind: str, part: slice) -> None:
    """All swaps of neighbours among the checkpoints of a thread, and some of fields of all threads and memories."""
    storage = SealedPrefix({"keys": KEYS})
    calls, judgement = reads(), Judgement()
    with storage.open() as keep:
        expected = answers(keep, calls)
    pairs = list(_entries_to_swap(storage))
    of_one = [(one, other) for one, other in pairs if one[0].endswith(b"t1") and one[1][:1] == other[1][:1] == b"c"]
    assert len(of_one) > 3
    for one, other in of_one[: 4 if part.start is None else None] + _some(pairs, part):
        judgement.counts["made"] += 1
        with storage.changed(*one[:2], other[2]), storage.changed(*other[:2], one[2]) as open_keep, open_keep() as keep:
            judge_keep(keep, f"{one[:2]} and {other[:2]} swapped", calls, expected, judgement)
        judgement.errors.pop("WrongKey", 0)
    storage.close()
    assert judgement.failures == []
    assert judgement.counts["raised"] > judgement.counts["made"] / 8


def _entries_to_swap(storage: SealedPrefix) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of fields with different values: neighbours in a hash, and fields of the same name in two hashes."""
    found = [each for each in storage.entries() if isinstance(each[2], bytes)]
    by_name = sorted(found, key=lambda each: each[1])
    neighbours = [(one, other) for one, other in pairwise(found) if one[0] == other[0]]
    for one, other in neighbours + [(one, other) for one, other in pairwise(by_name) if one[1] == other[1]]:
        if one[2] != other[2] and one[1] != b"b":  # the bytes of a thread, which no key protects
            yield one, other


# --- plain rows


@pytest.mark.parametrize("part", _parts(6))
def test_a_plain_row_is_never_accepted(part: slice, kind: str, storages: Callable[..., Intact]) -> None:
    intact, plain = storages(kind), storages(kind, plain=True)
    changes = [each for each in _some(rows_made_plain(intact.storage, plain.storage), part) if not _swaps_unbound(each)]
    _assert_refused(judge(intact, changes, forges=True))


def test_a_thread_replaced_by_its_plain_form_is_corrupt(kind: str, storages: Callable[..., Intact]) -> None:
    intact, plain = storages(kind), storages(kind, plain=True)
    storage = intact.storage
    statements = [storage.delete(table, row) for table in THREAD_TABLES for row in _of_thread(storage, table, "t1")]
    statements += [
        storage.insert(table, row) for table in THREAD_TABLES for row in _of_thread(plain.storage, table, "t1")
    ]
    with storage.changed(statements) as open_keep, open_keep() as keep:
        with pytest.raises(Corrupt, match="the row of thread 't1' is not encrypted"):
            keep.checkpointer.get_tuple(config("t1"))
        with pytest.raises(Corrupt, match="the row of thread 't1' is not encrypted"):
            put_steps(keep.checkpointer, "t1", [Put("c9", "c4", {"a": 1})])
        assert {info.id: info.status for info in keep.threads()}["t1"] == "damaged"
        assert {problem.thread for problem in keep.verify().problems} == {"t1"}
        for name, call in intact.calls.items():
            if "t2" in name:
                assert call(keep) == intact.expected[name]


def _of_thread(storage: SealedStorage, table: str, id: str) -> list[Row]:
    number = next(row["thread"] for row in storage.rows("tk_threads") if bytes(row["id"]) == id.encode())
    return [row for row in storage.rows(table) if row["thread"] == number]


def test_a_memory_replaced_by_its_plain_form_is_corrupt(kind: str, storages: Callable[..., Intact]) -> None:
    intact, plain = storages(kind), storages(kind, plain=True)
    storage = intact.storage
    statements = [storage.delete("tk_memories", row) for row in storage.rows("tk_memories")]
    statements += [storage.insert("tk_memories", row) for row in plain.storage.rows("tk_memories")]
    with storage.changed(statements) as open_keep, open_keep() as keep:
        for read in (
            lambda: keep.store.get(("users", "u1"), "k0"),
            lambda: keep.store.search(("users", "u1")),
            lambda: keep.store.search((), query="blue"),
        ):
            with pytest.raises(Corrupt, match=r"memory 'k\d' in \w+/u1 is damaged: it is not encrypted"):
                read()
        assert len(keep.verify().problems) >= 7


def test_a_process_without_keys_cannot_add_plain_rows(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as running, threadkeep.open(lasting_url, keys=KEYS) as keep:
        assert running.threads() == []
        put_steps(keep.checkpointer, "t", [Put("c1", None, {"a": 1})])
        keep.store.put(("users",), "k", {"a": 1})
        with threadkeep.open(lasting_url) as later:
            for other in (running, later):
                for change in (
                    lambda other=other: put_steps(other.checkpointer, "t", [Put("c2", "c1", {"a": 2})]),
                    lambda other=other: put_steps(other.checkpointer, "new", [Put("c1", None, {"a": 2})]),
                    lambda other=other: put_steps(other.checkpointer, "t", [PutWrites("c1", "task", (("a", 1),))]),
                    lambda other=other: put_steps(other.checkpointer, "new", [PutWrites("c1", "task", (("a", 1),))]),
                    lambda other=other: other.store.put(("users",), "k", {"a": 2}),
                    lambda other=other: other.store.put(("new",), "k", {"a": 2}),
                    lambda other=other: asyncio.run(other.cube.claim_run("new", "run-1")),
                ):
                    with pytest.raises(WrongKey):
                        change()
        assert [info.id for info in keep.threads()] == ["t"]
        assert [(item.key, item.value) for item in keep.store.search(())] == [("k", {"a": 1})]
        assert keep.verify().problems == []


# --- older versions


def _write_two_versions(url: str, *, rereads_keys: bool) -> tuple[StoredRows, CheckpointRow, ThreadRow]:
    """Store a checkpoint, then another version of its row. Return the thread's rows, and what they were before."""
    with threadkeep.open(url, keys=KEYS) as keep:
        put_steps(keep.checkpointer, "t", [Put("c1", None, {"a": 1}), Put("c2", "c1", {"a": 2})])
        rows = rows_opener(url)(keep, "t")
        before, thread = rows.root()[-1], rows.thread()
        keep.tag("t", "latest", "kept")
        if rereads_keys:
            keep._session.transport.recheck("")
        put_steps(keep.checkpointer, "t", [PutWrites("c2", "task", (("a", 3),))])
        assert rows.root()[-1] != before
    return rows, before, thread


@pytest.mark.parametrize("rereads_keys", [False, True])
def test_an_older_version_of_the_newest_checkpoint_is_corrupt(lasting_url: str, *, rereads_keys: bool) -> None:
    rows, before, _ = _write_two_versions(lasting_url, rereads_keys=rereads_keys)
    rows.set_checkpoint(rows.root()[-1], before)
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        with pytest.raises(Corrupt, match="checkpoint 'c2' of namespace '' in thread 't'"):
            keep.checkpointer.get_tuple(config("t"))
        assert [problem.checkpoint for problem in keep.verify().problems if problem.checkpoint] == ["c2"]


def test_an_older_version_of_a_whole_thread_is_accepted_as_the_guide_says(lasting_url: str) -> None:
    rows, before, thread = _write_two_versions(lasting_url, rereads_keys=False)
    rows.set_checkpoint(rows.root()[-1], before)
    for row in rows.writes():
        rows.set_writes(row, None)
    rows.set_thread(thread._replace(bytes=rows.thread().bytes))
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        found = keep.checkpointer.get_tuple(config("t"))
        assert found is not None
        assert (found.checkpoint["id"], found.pending_writes) == ("c2", [])


# --- stored keys


def test_a_damaged_data_key_is_corrupt_and_other_threads_can_be_read(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        for id in ("t1", "t2"):
            put_steps(keep.checkpointer, id, [Put("c1", None, {"a": id})])
        rows = rows_opener(lasting_url)(keep, "t1")
    row = rows.thread()
    assert row.sealed is not None
    for sealed in (b"none" + row.sealed[4:], flip_byte(row.sealed[:60], 0.5) + row.sealed[60:], b""):
        rows.set_thread(row._replace(sealed=sealed))
        with threadkeep.open(lasting_url, keys=KEYS) as keep:
            with pytest.raises(Corrupt, match="the row of thread 't1' cannot be decrypted"):
                keep.checkpointer.get_tuple(config("t1"))
            with pytest.raises(Corrupt, match="the row of thread 't1' cannot be decrypted"):
                put_steps(keep.checkpointer, "t1", [Put("c2", "c1", {"a": 1})])
            assert {info.id: info.status for info in keep.threads()} == {"t1": "damaged", "t2": "idle"}
            assert [found.config["configurable"]["thread_id"] for found in keep.checkpointer.list(None)] == ["t2"]
            assert {problem.thread for problem in keep.verify().problems} == {"t1"}


def test_a_damaged_key_of_a_partition_is_corrupt_and_other_partitions_can_be_read(tables_url: str) -> None:
    with threadkeep.open(tables_url, keys=KEYS) as keep:
        for first in ("users", "notes"):
            keep.store.put((first,), "k", {"of": first})
    execute = sql_executor(tables_url)
    keys = {bytes(name): bytes(key) for name, key in execute("SELECT name, key FROM tk_keys", {})}
    refused = set()
    for name, key in keys.items():
        change = "UPDATE tk_keys SET key = :key WHERE name = :name"
        execute(change, {"name": name, "key": b"none" + key[4:]})
        with threadkeep.open(tables_url, keys=KEYS) as keep:
            for first in ("users", "notes"):
                try:
                    found = keep.store.get((first,), "k")
                    assert found is not None
                    assert found.value == {"of": first}
                except Corrupt:
                    refused.add((name, first))
                    for call in (keep.store.get, partial(keep.store.put, value={"of": first})):
                        with pytest.raises(Corrupt, match=f"memories under {first!r} cannot be decrypted"):
                            call((first,), "k")
            (problem,) = keep.verify().problems
            assert (problem.problem, "there is no data key of its partition" in problem.message) == ("memory", True)
        execute(change, {"name": name, "key": key})
    assert len(refused) == len({name for name, _ in refused}) == 2


def test_a_hidden_id_with_characters_that_decoding_skips_is_corrupt() -> None:
    key = TenantKey.new("", TenantState(SEALED, hides_ids=True))
    hidden = key.hide("thread", "t1")
    assert key.reveal("thread", hidden) == "t1"
    for changed in (f"{hidden}\0", f"{hidden}=", f" {hidden}", f"{hidden[:5]}\n{hidden[5:]}"):
        with pytest.raises(Corrupt):
            key.reveal("thread", changed)


def test_verify_misses_the_checksum_of_the_words(tables_url: str) -> None:
    with threadkeep.open(tables_url, keys=KEYS, index=INDEX) as keep:
        keep.store.put(("users",), "k", {"text": "blue moon", "more": ""})
        assert keep.verify().problems == []
        words = "DELETE FROM tk_words" if tables_url.startswith("sqlite") else "UPDATE tk_memories SET words = NULL"
        execute = sql_executor(tables_url)
        execute(words, {})
        execute("UPDATE tk_memories SET words_check = NULL", {})
        assert [problem.problem for problem in keep.verify().problems] == ["memory"]


def test_the_row_with_the_keys_is_bound_to_its_tenant(tables_url: str) -> None:
    with threadkeep.open(tables_url, keys=KEYS) as keep:
        for tenant in (keep, keep.tenant("acme")):
            put_steps(tenant.checkpointer, "t", [Put("c1", None, {"a": 1})])
    execute = sql_executor(tables_url)
    rows = {bytes(tenant): bytes(key) for tenant, key in execute("SELECT tenant, key FROM tk_tenants", {})}
    execute("UPDATE tk_tenants SET key = :key WHERE tenant = :tenant", {"key": rows[b"acme"], "tenant": b""})
    with threadkeep.open(tables_url, keys=KEYS) as keep:
        with pytest.raises(WrongKey):
            keep.threads()
        assert [info.id for info in keep.tenant("acme").threads()] == ["t"]


def test_only_the_row_of_an_unfinished_encrypt_lets_plain_data_in_as_the_guide_says(tables_url: str) -> None:
    execute = sql_executor(tables_url)
    with threadkeep.open(tables_url) as keep:
        put_steps(keep.checkpointer, "t", [Put("c1", None, {"a": 1})])
        plain = {table: execute(f"SELECT * FROM {table}", {}) for table in THREAD_TABLES}
    during: list[bytes] = []
    stored_key, own = "SELECT key FROM tk_tenants WHERE tenant = :tenant", {"tenant": b""}
    with threadkeep.open(tables_url, keys=KEYS) as keep:
        keep.encrypt(on_progress=lambda *_: during.append(execute(stored_key, own)[0][0]))
    after = execute(stored_key, own)[0][0]
    if tables_url.startswith("sqlite"):
        execute("DROP TRIGGER tk_threads_plain_insert", {})
    for table, rows in plain.items():
        execute(f"DELETE FROM {table}", {})
        for row in rows:
            names = [f"v{n}" for n in range(len(row))]
            values = ", ".join(f":{name}" for name in names)
            execute(f"INSERT INTO {table} VALUES ({values})", dict(zip(names, row, strict=True)))
    for key, is_accepted in ((after, False), (during[0], True)):
        execute("UPDATE tk_tenants SET key = :key WHERE tenant = :tenant", {"key": key, **own})
        with threadkeep.open(tables_url, keys=KEYS) as keep:
            if is_accepted:
                assert keep.checkpointer.get_tuple(config("t")) is not None
            else:
                with pytest.raises(Corrupt, match="is not encrypted"):
                    keep.checkpointer.get_tuple(config("t"))
