"""Requests that PostgreSQL answers with one statement: the same reply as statement by statement, and what may race."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg_pool
import pytest

import postgres_servers
import threadkeep
from checkpoint_chains import Chain
from rich_threads import write_cube_thread, write_thread
from row_invariants import find_problems
from test_postgres_try_commit import batch, rev_of, server_at
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.requests import (
    CachedItems,
    CheckpointRef,
    DropThread,
    ListThreads,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadSeveral,
    LoadThreadRows,
    ScanCheckpoints,
)
from threadkeep.engine.tenants.requests import LoadTenant
from threadkeep.engine.threads import metadata
from threadkeep.plan import Failure
from threadkeep.transports.postgres import PostgresServer
from threadkeep.transports.postgres_own_pool import OwnPool

Servers = tuple[PostgresServer, PostgresServer]
KEYS = [ThreadKey("", "graph", id) for id in ("rich", "long", "pieces", "none")] + [ThreadKey("", "cube", "cube")]


@pytest.fixture(scope="module")
def url() -> str:
    url = postgres_servers.fresh_schema(postgres_servers.shared())
    with threadkeep.open(url) as keep:
        write_thread(keep, "rich", user="ann")
        write_cube_thread(keep, "cube")
        chain = Chain(keep.checkpointer, "long")
        for n in range(90):
            chain.put({"n": n, "texts": [f"text {k} " * 30 for k in range(n % 40)]})
        chain = Chain(keep.checkpointer, "pieces")
        messages = [{"id": f"m{n}", "text": f"{n} " * 200} for n in range(120)]
        for n in range(6):  # many ranges, which go into range lists
            chain.put({"list": messages[n :: 2 + n % 3]})
    return url


@pytest.fixture(scope="module")
def servers(url: str) -> Iterator[Servers]:
    """A server that answers with one statement, and one that does so statement by statement."""
    one, several = server_at(url), server_at(url, group="thread")
    yield one, several
    one.close()
    several.close()


def rows_of(server: PostgresServer, key: ThreadKey) -> LoadedRows:
    loaded = server.read(LoadThreadRows(key))
    assert isinstance(loaded, LoadedRows)
    return loaded


def cached(loaded: LoadedRows, count: int) -> CachedItems:
    """Return a cache with the names and the first items of each lane."""
    assert loaded.thread is not None
    cache = ItemCache()
    stored = {at: data for at, data in loaded.items.items() if at.n < count}
    cache.fill(stored, "the thread", loaded.thread.family)
    return CachedItems(loaded.thread.epoch, min(count, loaded.thread.nexts[0]), cache)


def refs_of(loaded: LoadedRows) -> list[CheckpointRef]:
    found = [CheckpointRef(each.row.ns, each.row.id) for each in loaded.checkpoints if each.row]
    return [*found[-12:], CheckpointRef("", None), CheckpointRef("", "nowhere"), CheckpointRef("", None, items=False)]


def same(servers: Servers, request: Any) -> LoadedRows:
    one, several = (server.read(request) for server in servers)
    assert comparable(one, request) == comparable(several, request)
    assert isinstance(one, LoadedRows)
    return one


def comparable(loaded: LoadedRows, request: Any) -> Any:
    """Return a reply with the writes of each checkpoint sorted, and without what is cached: it may have some of that."""
    known = request.cached.items.has if getattr(request, "cached", None) else lambda _: False
    items = {at: data for at, data in loaded.items.items() if not known(at)}
    return loaded.thread, [(each.row, sorted(each.writes)) for each in loaded.checkpoints], items, loaded.stored


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_a_load_is_the_same_in_one_statement(servers: Servers, key: ThreadKey) -> None:
    loaded = rows_of(servers[0], key)
    for ref in refs_of(loaded):
        same(servers, LoadCheckpoints(key, (ref,)))
    everything = same(servers, LoadCheckpoints(key, tuple(refs_of(loaded))))
    if loaded.thread is not None:
        known = cached(everything, 5)
        same(servers, LoadCheckpoints(key, tuple(refs_of(loaded)), known))
        other_epoch = CachedItems(known.epoch + 1, known.names, known.items)
        assert same(servers, LoadCheckpoints(key, tuple(refs_of(loaded)), other_epoch)) == everything


def test_range_lists_are_followed(servers: Servers) -> None:
    loaded = rows_of(servers[0], KEYS[2])
    assert any(ref.lane == 1 for each in loaded.checkpoints if each.row for ref in each.row.refs)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_items_and_ancestors_are_the_same_in_one_statement(servers: Servers, key: ThreadKey) -> None:
    loaded = rows_of(servers[0], key)
    ranges = (*loaded.stored, ItemRange(3, 1_000_000, 5), ItemRange(77, 0, 1))
    everything = same(servers, LoadItems(key, ranges))
    if loaded.thread is not None:
        known = cached(everything, 4)
        same(servers, LoadItems(key, ranges, known))
        same(servers, LoadItems(key, ranges, CachedItems(known.epoch + 1, known.names, known.items)))
    for each in [each.row for each in loaded.checkpoints if each.row][-8:]:
        for limit in (1, 3, 1000):
            same_ancestors(servers, LoadAncestors(key, each.ns, each.id, limit))
    same_ancestors(servers, LoadAncestors(key, "", "nowhere", 5))


def same_ancestors(servers: Servers, request: LoadAncestors) -> None:
    """One statement also loads labels of checkpoints in between."""
    one, several = (comparable(server.read(request), request) for server in servers)
    assert one[:2] == several[:2]
    assert one[2].items() >= several[2].items()


@pytest.mark.parametrize("tags", [(), metadata.tags({"user": "ann"}), metadata.tags({"user": "nobody"})], ids=str)
@pytest.mark.parametrize("thread", [None, "rich", "long"])
def test_a_scan_is_the_same_in_one_statement(servers: Servers, thread: str | None, tags: tuple[bytes, ...]) -> None:
    scan = ScanCheckpoints("", "graph", 40, thread=thread, tags=tags)
    one, several = (server.read(scan) for server in servers)
    assert one == several
    if one:
        last = one[len(one) // 2]
        after = (last.row.id, last.key.id, last.row.ns)
        next = ScanCheckpoints("", "graph", 40, thread=thread, tags=tags, after=after, source="loop", step=3)
        assert servers[0].read(next) == servers[1].read(next)


def test_several_threads_are_loaded_as_each_by_itself(servers: Servers) -> None:
    loads = []
    for key in KEYS:
        loaded = rows_of(servers[0], key)
        known = cached(servers[0].read(LoadItems(key, loaded.stored)), 6) if loaded.thread else None
        loads.append(LoadCheckpoints(key, tuple(refs_of(loaded)), known))
    several = [server.read(LoadSeveral(tuple(loads))) for server in servers]
    for load, *replies in zip(loads, *several, strict=True):
        expected = comparable(servers[0].read(load), load)
        assert [comparable(reply, load) for reply in replies] == [expected, expected]


def plan_mode(server: PostgresServer) -> Any:
    """Return how the next connection of the pool plans statements."""
    pool = server._connections.pool  # noqa: SLF001
    assert isinstance(pool, OwnPool)
    cursor = pool.getconn(5)
    try:
        return cursor.connection.execute("SHOW plan_cache_mode").fetchone()
    finally:
        pool.putconn(cursor)


def test_a_connection_keeps_plans_until_it_runs_another_statement(url: str) -> None:
    server = server_at(url, max_size=1)
    load = LoadCheckpoints(KEYS[0], (CheckpointRef("", None),))
    for _ in range(3):
        server.read(load)
    assert plan_mode(server) == ("force_generic_plan",)
    assert server.read(LoadTenant("")) is None, "which a Keep without keys asks when a thread is not there"
    assert plan_mode(server) == ("force_generic_plan",)
    server.read(ListThreads("", "updated", 5))
    assert plan_mode(server) == ("auto",)
    for _ in range(3):
        server.read(load)
    assert plan_mode(server) == ("auto",)
    server.close()


def test_a_lent_connection_plans_as_it_did(url: str) -> None:
    with psycopg_pool.ConnectionPool(url.partition("?")[0], min_size=1, max_size=1) as pool:
        server = server_at(pool, schema=url.rpartition("=")[2])
        for _ in range(7):
            server.read(LoadCheckpoints(KEYS[0], (CheckpointRef("", None),)))
        with pool.connection() as connection:
            assert connection.execute("SHOW plan_cache_mode").fetchone() == ("auto",)
        server.close()


def test_no_load_seems_so_expensive_that_a_server_would_compile_it(url: str, servers: Servers) -> None:
    """The default of jit_above_cost is 100,000; compiling takes longer than any of these statements."""
    backend, refs = servers[0]._backend, tuple(refs_of(rows_of(servers[0], KEYS[1])))  # noqa: SLF001
    loads = tuple(LoadCheckpoints(key, refs) for key in KEYS)
    requests = [loads[1], LoadItems(KEYS[1], (ItemRange(3, 0, 9),)), LoadAncestors(KEYS[1], "", "z", 50)]
    requests += [ScanCheckpoints("", "graph", 16, tags=(b"a",)), LoadThreadRows(KEYS[1])]
    statements = [backend.load_several(LoadSeveral(loads)), *map(backend.one_statement, requests)]
    with psycopg.connect(url.partition("?")[0]) as connection:
        for statement in statements:
            assert statement is not None
            sql = statement.sql
            result = connection.pgconn.exec_params(
                b"EXPLAIN " + sql.text, list(statement.parameters), sql.types, sql.formats
            )
            first = result.get_value(0, 0)
            assert first is not None
            cost = re.search(rb"cost=[\d.]+[.][.]([\d.]+)", first)
            assert cost is not None
            assert float(cost[1]) < 100_000, sql.text


def test_a_thread_is_deleted_whole_while_somebody_commits(url: str) -> None:
    server, key = server_at(url, application_name="dropping"), ThreadKey("", "graph", "dropped")
    for rev in range(5):
        assert server.try_commit(batch("dropped", rev))
    outcomes: list[Any] = []
    drop = threading.Thread(target=lambda: outcomes.extend(server.write([DropThread(key)])))
    schema, plain = url.rpartition("=")[2], url.partition("?")[0]
    number = server._backend.thread_number(key)  # noqa: SLF001
    with psycopg.connect(plain) as other:
        other.execute(f"SET search_path = {schema}")
        other.execute("UPDATE tk_threads SET rev = rev + 1 WHERE thread = %s", [number])
        other.execute("INSERT INTO tk_items VALUES (%s, 9, 9, 'late')", [number])
        drop.start()
        waits = "select 1 from pg_stat_activity where application_name = 'dropping' and wait_event_type = 'Lock'"
        assert postgres_servers.wait_until(lambda: bool(postgres_servers.shared().execute(waits)), 20)
    drop.join(20)
    assert not any(isinstance(outcome, Failure) for outcome in outcomes)
    assert rev_of(server, "dropped") is None
    left = f"select count(*) from {schema}.tk_items where thread = {number}"
    assert postgres_servers.shared().execute(left) == [(0,)]
    server.close()
    assert list(find_problems(url)) == []
