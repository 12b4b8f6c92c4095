"""Outages of PostgreSQL: calls wait for the server and go on when it is back, and calls that need not wait do not."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import psycopg_pool
import pytest
from cubeloop.providers.base import TextContent, UserMessage

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config, values_of
from outages import SOON, Callers, Proxy
from test_concurrency import in_threads
from test_postgres import as_role, execute, new_role, schema_of
from threadkeep import errors
from threadkeep.cli import app as cli

AWAY = 3.0
"""Seconds; a pool of psycopg_pool waits longer after each failed connection."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy(postgres_servers.free_port(), postgres_servers.shared().port)
    made.open()
    yield made
    made.close()


def url_of(proxy: Proxy) -> str:
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema=t_{uuid.uuid4().hex}"


@pytest.fixture
def url() -> str:
    return postgres_servers.fresh_schema(postgres_servers.shared())


# --- a server that is away


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_callers_go_on_soon_after_an_outage(proxy: Proxy, is_async: bool) -> None:
    with threadkeep.open(url_of(proxy)) as keep:
        callers = Callers(keep, 8)
        assert callers.outlive(proxy.close, proxy.open, seconds=AWAY, is_async=is_async) < SOON
        assert callers.errors == []


def test_callers_with_a_pool_of_their_own_go_on_soon_after_an_outage(proxy: Proxy) -> None:
    url, _, query = url_of(proxy).partition("?")
    with (
        psycopg_pool.ConnectionPool(url, min_size=1, max_size=4, open=True) as pool,
        threadkeep.open(pool, schema=query.removeprefix("schema=")) as keep,
    ):
        callers = Callers(keep, 8)
        assert callers.outlive(proxy.close, proxy.open, seconds=AWAY, is_async=False) < SOON
        assert callers.errors == []


def test_a_long_retry_is_logged_once_per_call(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    with threadkeep.open(url_of(proxy)) as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"n": 0})
        with caplog.at_level(logging.WARNING):
            proxy.close()
            calls = [
                threading.Thread(target=call)
                for call in (lambda: chain.put({"n": 1}), lambda: keep.checkpointer.get_tuple(config("t")))
            ]
            for call in calls:
                call.start()
            time.sleep(2)
            proxy.open()
            for call in calls:
                call.join()
        assert [record.name for record in caplog.records] == ["threadkeep.retry"] * 2
        assert all("refused" in record.getMessage() for record in caplog.records)
        assert values_of(keep.checkpointer) == {"n": 1}


def test_closing_during_an_outage_waits_for_the_calls_that_wait(proxy: Proxy) -> None:
    keep = threadkeep.open(url_of(proxy))
    chain = Chain(keep.checkpointer)
    chain.put({"n": 0})
    proxy.close()
    calling = threading.Thread(target=lambda: asyncio.run(chain.aput({"n": 1})))
    calling.start()
    assert postgres_servers.wait_until(lambda: bool(keep._session.runner._state.timer._jobs), 30)
    closing = threading.Thread(target=keep.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    proxy.open()
    for each in (calling, closing):
        each.join(30)
    with threadkeep.open(postgres_servers.shared().url(schema=keep_schema(keep))) as again:
        assert values_of(again.checkpointer) == {"n": 1}


def keep_schema(keep: threadkeep.Keep) -> str:
    schema: str = keep._session.transport._backend.schema  # type: ignore[attr-defined]
    return schema


def test_calls_end_with_unavailable_when_the_outage_is_longer_than_the_timeout(proxy: Proxy) -> None:
    with threadkeep.open(url_of(proxy), timeout=1) as keep:
        callers = Callers(keep, 30)
        callers.call_all(is_async=True).join()
        proxy.close()
        started = time.monotonic()
        callers.call_all(is_async=True).join()
        assert time.monotonic() - started < SOON
        assert {type(error) for error in callers.errors} == {errors.Unavailable}
        assert len(callers.errors) == 30
        proxy.open()
        callers.errors.clear()
        callers.call_all(is_async=False).join()
        assert callers.errors == []


# --- another node that is away


LOST = "raise 'connection to the remote node 10.0.0.7:5432 failed' using errcode = '08006'"
FAIL = """
create function {s}.check_node() returns trigger language plpgsql as $$
begin
    if to_jsonb(new) ->> '{column}' like '\\\\x64656164%' then
        {lost};
    end if;
    return new;
end $$;
create trigger check_node before insert or update on {s}.{table} for each row execute function {s}.check_node()
"""
REPAIR = "drop trigger check_node on {s}.{table}"
LOSSES = {
    "08006": LOST,
    "57P01": "raise 'terminating connection due to administrator command' using errcode = '57P01'",
    "could not commit": "raise 'could not commit transaction for shard 102013 on any active node' using errcode = 'XX000'",
    "essential": "raise 'failure on connection marked as essential: 10.0.0.7:5432' using errcode = 'XX000'",
}
"""What one node says when another one, which has some of the rows, is away or goes away."""
FAIL_READS = """
create function {s}.check_node(id bytea) returns boolean language plpgsql as $$
begin
    if id like 'dead%' then
        {lost};
    end if;
    return true;
end $$;
create policy check_node on {s}.tk_threads using ({s}.check_node(id));
alter table {s}.tk_threads enable row level security;
alter table {s}.tk_threads force row level security
"""
REPAIR_READS = "alter table {s}.tk_threads disable row level security"


def pids(name: str) -> set[int]:
    return {pid for (pid,) in execute(f"select pid from pg_stat_activity where application_name = '{name}'")}


@pytest.mark.parametrize("group", ["all", "thread"])
@pytest.mark.parametrize("broken", [(FAIL, REPAIR), (FAIL_READS, REPAIR_READS)], ids=["writes", "reads and writes"])
def test_threads_of_a_dead_node_delay_no_others_and_cost_no_connection(
    url: str, group: str, broken: tuple[str, str]
) -> None:
    schema = schema_of(url)
    url = as_role(new_role(f"create schema {schema} authorization {{role}}"), url)
    fail, repair = (sql.format(s=schema, table="tk_threads", column="id", lost=LOST) for sql in broken)
    url += "&options=-cenable_seqscan%3Doff"  # so that no statement looks at the rows of others
    with threadkeep.open(url, group=group, application_name=schema) as keep:
        saver = keep.checkpointer
        chains = {name: [Chain(saver, f"{name} {n}") for n in range(20)] for name in ("dead", "alive")}

        async def put(*names: str) -> None:
            await asyncio.gather(*(chain.aput({"n": 1}) for name in names for chain in chains[name]))

        async def read(name: str) -> None:
            for n in range(20):
                assert await saver.aget_tuple(config(f"{name} {n}")) is not None

        asyncio.run(put("dead", "alive"))
        execute(fail)
        before = pids(schema)

        async def use() -> None:
            dead = asyncio.ensure_future(put("dead"))
            reading = asyncio.ensure_future(read("dead"))
            for _ in range(5):
                await asyncio.gather(put("alive"), read("alive"))
            await asyncio.to_thread(lambda: in_threads(*(lambda c=c: c.put({"n": 2}) for c in chains["alive"])))  # type: ignore[misc]
            assert not dead.done()
            connected = await asyncio.to_thread(pids, schema)
            await asyncio.to_thread(execute, repair)
            await asyncio.gather(dead, reading)
            assert before <= connected

        asyncio.run(use())
        assert all(values_of(saver, f"dead {n}") == {"n": 1} for n in range(20))
        assert len(keep.log("dead 0")) == 2


CALLS: dict[str, tuple[str, str, Callable[[threadkeep.Keep, str], object]]] = {
    "thread": ("tk_threads", "id", lambda keep, name: Chain(keep.checkpointer, name).put({"n": 1})),
    "cube thread": (
        "tk_threads", "id", lambda keep, name: asyncio.run(keep.cube.append(name, [UserMessage(content=[TextContent(text="a")])])),
    ),
    "memory": ("tk_memories", "space", lambda keep, name: keep.store.put((name,), "key", {"n": 1})),
}  # fmt: skip


@pytest.mark.parametrize("group", ["all", "thread"])
@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_change_on_a_lost_node_is_made_when_the_node_is_back(url: str, what: str, loss: str, group: str) -> None:
    """Others do not wait for it meanwhile, and the server keeps its connection."""
    table, column, call = CALLS[what]
    names = {"s": schema_of(url), "table": table, "column": column, "lost": LOSSES[loss]}
    with threadkeep.open(url, group=group, application_name=names["s"], max_size=2) as keep:
        call(keep, "alive")
        execute(FAIL.format(**names))
        before = pids(names["s"])
        dead = [threading.Thread(target=call, args=(keep, f"dead {n}")) for n in range(3)]
        for each in dead:
            each.start()
        for n in range(5):
            call(keep, f"alive {n}")
        assert all(each.is_alive() for each in dead)
        assert before <= pids(names["s"])
        execute(REPAIR.format(**names))
        for each in dead:
            each.join(30)
        ids = {row.id for row in keep.threads()} | {segment for (segment,) in keep.store.list_namespaces()}
    assert ids == {"alive", *(f"alive {n}" for n in range(5)), *(f"dead {n}" for n in range(3))}


@pytest.mark.parametrize("group", ["all", "thread"])
def test_a_duplicate_key_that_another_node_reports_is_a_conflict(url: str, group: str) -> None:
    """The thread is read again, and the change is made."""
    raised = (
        """raise 'duplicate key value violates unique constraint "tk_threads_pkey_102008"' using errcode = 'XX000'"""
    )
    names = {"s": schema_of(url), "table": "tk_threads", "column": "id"}
    with threadkeep.open(url, group=group) as keep:
        keep.setup()
        execute("create sequence {s}.tries".format(**names))
        execute(FAIL.format(lost=f"if nextval('{names['s']}.tries') = 1 then {raised}; end if", **names))
        Chain(keep.checkpointer, "dead").put({"n": 1})
        assert values_of(keep.checkpointer, "dead") == {"n": 1}
        assert execute("select last_value > 1 from {s}.tries".format(**names)) == [(True,)]


# --- a first contact


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (lambda: f"127.0.0.1:{postgres_servers.free_port()}", "refused"),
        (lambda: "no-such-host.invalid", "no-such-host"),
    ],
    ids=["port", "host"],
)
def test_a_first_contact_with_a_wrong_address_fails_soon(where: Callable[[], str], says: str) -> None:
    with threadkeep.open(f"postgresql://postgres@{where()}/postgres") as keep:
        started, seen = time.monotonic(), list[str]()

        def use() -> None:
            with pytest.raises(errors.Unavailable, match=says) as raised:
                keep.checkpointer.get_tuple(config("t"))
            seen.append(str(raised.value))

        in_threads(*[use] * 20)
        assert time.monotonic() - started < SOON
        assert len(seen) == 20
        assert all(len(text.splitlines()) == 1 for text in seen)


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_command_line_waits_as_long_as_it_is_told(url: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put({"n": 0})
    words, timeout = ["threads", "--url", url], ["--timeout", "0.5"]
    with psycopg.connect(postgres_servers.shared().url()) as other:
        other.execute(f"lock table {schema_of(url)}.tk_threads in access exclusive mode")
        started = time.monotonic()
        assert cli.run([*timeout, *words] if place == "before" else [*words, *timeout]) == 3
        assert time.monotonic() - started < SOON
    assert "timeout" in capsys.readouterr().err
    assert cli.run(words) == 0
