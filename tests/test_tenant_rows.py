"""The rows of tenants, their data keys, and what a sealed tenant refuses, on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow, thread_checksum, thread_problem
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.engine.memories.requests import ChangeMemories, GetMemories, MemoryRow, NewMemory, WriteMemories
from threadkeep.engine.requests import (
    Batch,
    CheckpointRef,
    Commit,
    CopyThread,
    DropThread,
    ForkThread,
    ListThreads,
    LoadAncestors,
    LoadCheckpoints,
    LoadItems,
    LoadSeveral,
    LoadThreadRows,
    MeasureItems,
    ScanCheckpoints,
)
from threadkeep.engine.tenants.requests import (
    DeleteDataKeys,
    DeleteTenant,
    ListDataKeys,
    ListTenants,
    LoadDataKeys,
    LoadTenant,
    StoreDataKey,
    StoreTenant,
    TenantRow,
)
from threadkeep.errors import Conflict, WrongKey
from threadkeep.plan import Request, result

TENANT = "a\0cme ✓"
KEY = ThreadKey(TENANT, "graph", "t")
SEALED = bytes(range(256)) * 2 + b"\n,"
ROW = TenantRow(TENANT, 1, sealed=True, key=b"key\0", quota=None)
WHERE = MemoryKey(("users", "u1"), "name")


def send(keep: threadkeep.Keep, request: Request[Any]) -> Any:
    transport = keep._session.transport.inner
    return result(transport.write([request])[0]) if request.access.writes else transport.read(request)


def thread_row(key: ThreadKey, rev: int = 1, sealed: bytes | None = SEALED) -> ThreadRow:
    return ThreadRow(key, 7, rev, (0, 0, 1), 5, 6, 1, family=9, labels=0, top="1", sealed=sealed)


def batch(row: ThreadRow, expect: tuple[int, int] | None = None, id: str = "1") -> Batch:
    """Return a change of one checkpoint, its labels and the writes of a task."""
    checkpoint = CheckpointRow("", id, None, None, None, None, 0, 1, hidden=False, refs=(), body=b"x")
    write = WriteRow("", id, f"task{id}", "", None, 1, (0, 0, 1), (), b"y")
    items = ((ItemId(2, 0), b"labels"),) if expect is None else ()
    return Batch(expect, row, items, (checkpoint,), (), (write,))


def put(tenant: str, *, sealed: bool, key: MemoryKey = WHERE, vectors: tuple[bytes, ...] = ()) -> WriteMemories:
    row = MemoryRow(key.namespace, key.key, '{"a":1}', 1, 1, None, None)
    return WriteMemories(tenant, (NewMemory(row, vectors),), (), 1, sealed=sealed)


@pytest.fixture
def keep(url: str) -> Iterator[threadkeep.Keep]:
    """Return a Keep in a storage of its own, where there are no other tenants."""
    with threadkeep.open(url) as opened:
        yield opened


# --- what a thread keeps sealed


def replies(keep: threadkeep.Keep, key: ThreadKey) -> Iterator[tuple[str, ThreadRow | None]]:
    """Yield the row of a thread as each request returns it."""
    wanted = (CheckpointRef("", None), CheckpointRef("", "1"))
    for request in (
        LoadCheckpoints(key, wanted),
        LoadItems(key, (ItemRange(2, 0, 1),)),
        LoadAncestors(key, "", "1", 10),
        LoadThreadRows(key),
        MeasureItems(key, (ItemRange(2, 0, 1),)),
    ):
        yield type(request).__name__, send(keep, request).thread
    yield "LoadSeveral", send(keep, LoadSeveral((LoadCheckpoints(key, wanted),)))[0].thread
    listed = send(keep, ListThreads(key.tenant, "updated", 10))
    yield "ListThreads", next(each.row for each in listed if each.row.key == key)
    yield "InspectThread", send(keep, InspectThread(key)).thread


@pytest.mark.parametrize("sealed", [SEALED, b"", None])
def test_every_reply_with_a_thread_has_what_it_keeps_sealed(keep: threadkeep.Keep, sealed: bytes | None) -> None:
    send(keep, Commit(batch(thread_row(KEY, sealed=sealed))))
    for name, row in replies(keep, KEY):
        assert row is not None, name
        assert row.sealed == sealed, name
        assert (row.family, row.bytes_check) == (9, 0), name
    assert send(keep, InspectThread(KEY)).sealed == sealed
    for thread in (None, "t"):
        (found,) = send(keep, ScanCheckpoints(TENANT, "graph", 10, thread=thread))
        assert (found.sealed, found.family, found.damaged) == (sealed, 9, None)
        assert found.thread is None or found.thread.sealed == sealed


@pytest.mark.parametrize(("before", "after"), [(None, SEALED), (SEALED, b"other"), (SEALED, None)])
def test_a_commit_replaces_what_a_thread_keeps_sealed(keep: threadkeep.Keep, before: Any, after: Any) -> None:
    send(keep, Commit(batch(thread_row(KEY, sealed=before))))
    send(keep, Commit(batch(thread_row(KEY, 2, after), (7, 1), "2")))
    assert {row.sealed if row else "none" for _, row in replies(keep, KEY)} == {after}
    removing = Batch((7, 2), thread_row(KEY, 3, before), removed_checkpoints=(("", "2"),), removed_items=())
    send(keep, Commit(removing))
    assert {row.sealed if row else "none" for _, row in replies(keep, KEY)} == {before}


def test_commits_of_one_group_keep_their_own(keep: threadkeep.Keep) -> None:
    keys = [ThreadKey(TENANT, "graph", str(n)) for n in range(4)]
    sealed = [b"0", None, b"", b"3" * 3000]
    for rev in (1, 2):
        requests = [
            Commit(batch(thread_row(key, rev, own), (7, rev - 1) if rev > 1 else None, str(rev)))
            for key, own in zip(keys, sealed, strict=True)
        ]
        assert [result(each) for each in keep._session.transport.inner.write(requests)] == [None] * 4
        assert [send(keep, LoadThreadRows(key)).thread.sealed for key in keys] == sealed


def test_copies_and_forks_have_their_own(keep: threadkeep.Keep) -> None:
    send(keep, Commit(batch(thread_row(KEY))))
    copy, fork = KEY._replace(id="copy"), KEY._replace(id="fork")
    send(keep, CopyThread(KEY, (7, 1), thread_row(copy, sealed=b"copy")))
    send(
        keep, ForkThread(KEY, (7, 1), (ItemRange(2, 0, 1),), batch(thread_row(fork, sealed=b"fork"))._replace(items=()))
    )
    for key, sealed in ((copy, b"copy"), (fork, b"fork"), (KEY, SEALED)):
        assert {row.sealed if row else "none" for _, row in replies(keep, key)} == {sealed}


def test_a_changed_sealed_column_does_not_match_the_checksum(keep: threadkeep.Keep) -> None:
    send(keep, Commit(batch(thread_row(KEY))))
    row = send(keep, LoadThreadRows(KEY)).thread
    assert row.checksum == thread_checksum(row)
    assert thread_problem(row._replace(sealed=SEALED + b"."), KEY) == "does not match its checksum"
    assert thread_problem(row._replace(sealed=None), KEY) == "does not match its checksum"


# --- rows of tenants


def test_the_row_of_a_tenant_is_stored_and_deleted_at_its_version(keep: threadkeep.Keep) -> None:
    assert send(keep, LoadTenant(TENANT)) is None
    for wrong in (StoreTenant(ROW, 1), DeleteTenant(TENANT, 1)):
        with pytest.raises(Conflict):
            send(keep, wrong)
    send(keep, StoreTenant(ROW, None))
    assert send(keep, LoadTenant(TENANT)) == ROW
    second = ROW._replace(version=2**40, sealed=False, key=None, quota=b"")
    for wrong in (StoreTenant(second, None), StoreTenant(second, 2), DeleteTenant(TENANT, 2)):
        with pytest.raises(Conflict):
            send(keep, wrong)
    assert send(keep, LoadTenant(TENANT)) == ROW
    send(keep, StoreTenant(second, 1))
    assert send(keep, LoadTenant(TENANT)) == second
    send(keep, DeleteTenant(TENANT, 2**40))
    assert send(keep, LoadTenant(TENANT)) is None
    assert send(keep, ListTenants(10)) == ()


def test_tenants_are_listed_by_name_if_they_have_a_row_a_thread_or_a_memory(keep: threadkeep.Keep) -> None:
    send(keep, StoreTenant(TenantRow("row", 1, sealed=False, key=None, quota=None), None))
    for tenant in ("", "both", "thread", "é"):
        for n in range(3):
            send(keep, Commit(batch(thread_row(ThreadKey(tenant, "graph", f"t{n}")))))
    for tenant in ("both", "memory", "a"):
        for n in range(3):
            send(keep, put(tenant, sealed=False, key=MemoryKey((f"p{n}",), "k")))
    names = ("", "a", "both", "memory", "row", "thread", "é")
    assert send(keep, ListTenants(100)) == names
    for limit in (1, 2, 3, 7):
        found: list[str] = []
        while page := send(keep, ListTenants(limit, found[-1] if found else None)):
            assert len(page) <= limit
            found += page
        assert tuple(found) == names
    for n in range(3):
        send(keep, DropThread(ThreadKey("thread", "graph", f"t{n}")))
        send(keep, WriteMemories("memory", (), (MemoryKey((f"p{n}",), "k"),), 2))
    send(keep, DeleteTenant("row", 1))
    assert send(keep, ListTenants(100)) == ("", "a", "both", "é")
    assert send(keep, ListTenants(2)) == ("", "a")


def test_a_keep_without_anything_has_no_tenants(keep: threadkeep.Keep) -> None:
    assert send(keep, ListTenants(5)) == ()


# --- data keys


def test_the_first_data_key_stays_unless_it_is_the_one_to_replace(keep: threadkeep.Keep) -> None:
    assert send(keep, LoadDataKeys(TENANT, (b"p",))) == {}
    assert send(keep, StoreDataKey(TENANT, b"p", b"one", None)) == b"one"
    assert send(keep, StoreDataKey(TENANT, b"p", b"two", None)) == b"one"
    assert send(keep, StoreDataKey(TENANT, b"p", b"two", b"other")) == b"one"
    assert send(keep, StoreDataKey(TENANT, b"p", b"two", b"one")) == b"two"
    assert send(keep, StoreDataKey(TENANT, b"p", b"two", b"one")) == b"two"
    assert send(keep, StoreDataKey(TENANT, b"new", b"three", b"gone")) == b"three"
    assert send(keep, LoadDataKeys(TENANT, (b"p", b"new", b"none", b"p"))) == {b"p": b"two", b"new": b"three"}
    assert send(keep, LoadDataKeys("other", (b"p",))) == {}
    assert send(keep, LoadDataKeys(TENANT, ())) == {}


def test_data_keys_are_listed_by_name_and_deleted(keep: threadkeep.Keep) -> None:
    names = sorted([b"", b"\0", b"a", b"a\0", b"b", b"\xff\xff"])
    for tenant in (TENANT, "other"):
        for name in reversed(names):
            send(keep, StoreDataKey(tenant, name, b"key " + name, None))
    every = tuple((name, b"key " + name) for name in names)
    for limit in (1, 2, 5, 100):
        found: list[tuple[bytes, bytes]] = []
        while page := send(keep, ListDataKeys(TENANT, found[-1][0] if found else None, limit)):
            assert len(page) <= limit
            found += page
        assert tuple(found) == every
    send(keep, DeleteDataKeys(TENANT, (b"a", b"none", b"")))
    send(keep, DeleteDataKeys(TENANT, ()))
    left = tuple(each for each in every if each[0] not in (b"a", b""))
    assert send(keep, ListDataKeys(TENANT, None, 100)) == left
    assert send(keep, ListDataKeys("other", None, 100)) == every


# --- what a sealed tenant refuses


def plain_changes() -> list[Request[Any]]:
    """Return every change that stores something which is not encrypted, or deletes without knowing that others are.

    They are on a thread that is at (7, 1).
    """
    row = thread_row(KEY, 2, None)
    target = KEY._replace(id="target")
    return [
        Commit(batch(row, (7, 1), "2")),
        Commit(batch(thread_row(target, sealed=None))),
        Commit(Batch((7, 1), row, removed_checkpoints=(("", "1"),))),
        Commit(Batch((7, 1), row, drops_thread=True)),
        CopyThread(KEY, (7, 1), thread_row(target, sealed=None)),
        ForkThread(KEY, (7, 1), (), batch(thread_row(target, sealed=None))),
        put(TENANT, sealed=False),
        put(TENANT, sealed=False, vectors=(b"\0\0\x80\x3f" * 2,)),
        put(TENANT, sealed=False)._replace(deletes=(MemoryKey(("users", "u1"), "other"),)),
        WriteMemories(TENANT, (*put(TENANT, sealed=False).puts, *put(TENANT, sealed=False, key=OTHER).puts), (), 1),
        DropThread(KEY),
        DropThread(KEY, leased=True),
        DropThread(KEY._replace(id="no such thread")),
        WriteMemories(TENANT, (), (MemoryKey(("users", "u1"), "other"),), 1),
        WriteMemories(TENANT, (), (MemoryKey(("users", "u1"), "other"), OTHER), 1),
        ChangeMemories(WriteMemories(TENANT, (), (OTHER,), 1), ((OTHER, None),)),
        ChangeMemories(WriteMemories(TENANT, (), (OTHER,), 1), ((OTHER, 7),)),
    ]


OTHER = MemoryKey(("users", "u2"), "name")


def state(keep: threadkeep.Keep) -> Any:
    threads = [each.row for each in send(keep, ListThreads(TENANT, "id", 10))]
    keys = (WHERE, OTHER, MemoryKey(("users", "u1"), "other"))
    return threads, send(keep, InspectThread(KEY)), send(keep, GetMemories(TENANT, keys, 1))


def check_refusals(sealing: threadkeep.Keep, stale: threadkeep.Keep) -> None:
    send(stale, Commit(batch(thread_row(KEY, sealed=None))))
    send(stale, put(TENANT, sealed=False, key=MemoryKey(("users", "u1"), "other")))
    send(stale, put("other", sealed=False))
    send(sealing, StoreTenant(ROW, None))
    before = state(sealing)
    for change in plain_changes():
        with pytest.raises(WrongKey):
            send(stale, change)
        assert state(sealing) == before, change
    outcomes = stale._session.transport.inner.write([each for each in plain_changes() if isinstance(each, Commit)][:2])
    for outcome in outcomes:
        with pytest.raises(WrongKey):
            result(outcome)
    assert state(sealing) == before
    for drop in (lambda: stale._session.transport.inner.try_drop(KEY), lambda: stale.tenant(TENANT).delete("t")):
        with suppress(WrongKey):  # or it returns False, and a request raises
            assert not drop()
        assert state(sealing) == before
    # Other tenants, and those who know that the tenant is encrypted, are not affected.
    send(stale, Commit(batch(thread_row(KEY._replace(tenant="other"), sealed=None))))
    send(stale, put("other", sealed=False))
    send(sealing, Commit(batch(thread_row(KEY, 2), (7, 1), "2")))
    send(sealing, Commit(batch(thread_row(KEY._replace(id="new")))))
    send(sealing, put(TENANT, sealed=True))
    send(sealing, put(TENANT, sealed=True)._replace(deletes=(MemoryKey(("users", "u1"), "other"),)))
    send(stale, WriteMemories(TENANT, (), (WHERE,), 2, sealed=True))
    send(stale, DropThread(KEY, sealed=True))
    with pytest.raises(Conflict):
        send(sealing, Commit(batch(thread_row(KEY, 3), (7, 1), "3")))
    # What is not sealed any more takes everything.
    send(sealing, StoreTenant(ROW._replace(version=2, sealed=False), 1))
    send(stale, Commit(batch(thread_row(KEY, sealed=None))))
    send(stale, put(TENANT, sealed=False))


def test_a_sealed_tenant_refuses_what_is_not_encrypted(keep: threadkeep.Keep) -> None:
    check_refusals(keep, keep)


def test_a_keep_that_was_open_before_is_refused_too(lasting_url: str) -> None:
    with closing(threadkeep.open(lasting_url)) as stale, closing(threadkeep.open(lasting_url)) as sealing:
        check_refusals(sealing, stale)


def test_a_database_that_distributes_threads_refuses_too(tables_url: str) -> None:
    options: Any = {"group": "thread"} if tables_url.startswith("postgres") else {}
    with threadkeep.open(tables_url, **options) as keep:
        check_refusals(keep, keep)


def test_a_keep_with_a_lent_pool_refuses_too() -> None:
    server = postgres_servers.shared()
    schema = postgres_servers.fresh_schema(server).rpartition("=")[2]
    with ConnectionPool(server.url(), open=True) as pool, threadkeep.open(pool, schema=schema) as keep:
        check_refusals(keep, keep)


def test_the_verbs_of_a_keep_that_was_open_before_raise_wrong_key(lasting_url: str) -> None:
    with closing(threadkeep.open(lasting_url)) as stale, closing(threadkeep.open(lasting_url)) as sealing:
        chain = Chain(stale.checkpointer)
        chain.put({"log": ["a"]})
        stale.store.put(("users",), "name", {"text": "Ada"})
        send(sealing, StoreTenant(ROW._replace(tenant=""), None))
        for change in (
            lambda: chain.put({"log": ["b"]}),
            lambda: Chain(stale.checkpointer, "new").put({"log": ["b"]}),
            lambda: stale.checkpointer.put_writes(config("t", "00000000"), [("log", 1)], "task"),
            lambda: stale.store.put(("users",), "name", {"text": "Bob"}),
            lambda: stale.store.put(("users",), "new", {"text": "Bob"}, index=False),
            lambda: stale.checkpointer.copy_thread("t", "copy"),
            lambda: stale.checkpointer.delete_thread("t"),
            lambda: stale.store.delete(("users",), "name"),
        ):
            with pytest.raises(WrongKey):
                change()
        assert [info.id for info in stale.threads()] == ["t"]
        found = stale.store.get(("users",), "name")
        assert found is not None
        assert found.value == {"text": "Ada"}
