"""Faults of a PostgreSQL server and its connections: acknowledged changes are stored once, and calls continue."""

from __future__ import annotations

import asyncio
import operator
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from concurrent_writers import Writers
from graph_scenarios import SCENARIOS, assert_same, describe_thread
from processes import run_concurrently
from row_invariants import find_problems
from sync_async import AsyncCaller
from test_concurrency import in_threads
from test_conformance import assert_complete, report_on
from threadkeep import errors

HELLO = {"greeting": "hello " * 20}


@pytest.fixture(scope="module")
def server() -> Iterator[postgres_servers.Server]:
    """A server that tests may stop, crash and freeze; it runs again when a test ends."""
    with postgres_servers.fresh_server() as made:
        yield made


@pytest.fixture
def schema() -> str:
    return f"t_{uuid.uuid4().hex}"


def end_backends(server: postgres_servers.Server, schema: str) -> int:
    """Terminate all server processes of an application name. Return how many there were."""
    sql = f"select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{schema}'"
    return len(server.execute(sql))


@contextmanager
def again_and_again(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Call a function repeatedly in another thread, and collect its results."""
    stop, done = threading.Event(), list[Any]()

    def repeat() -> None:
        while not stop.wait(0.1):
            done.append(work())

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


# --- connections that end


@pytest.mark.parametrize("group", ["all", "thread"])
def test_connections_that_are_ended_all_the_time_fail_no_call(group: str, schema: str) -> None:
    server = postgres_servers.shared()
    url = server.url(schema=schema, application_name=schema)
    with threadkeep.open(url, group=group) as keep:
        keep.setup()
        with (
            again_and_again(lambda: end_backends(server, schema)) as ended,
            Writers(keep, threads=4, tasks=20) as writers,
        ):
            writers.wait_for(200)
            assert postgres_servers.wait_until(lambda: sum(ended) > 20, 30)
        writers.check(url)


@pytest.mark.parametrize("size", [1, 8])
def test_connections_that_ended_between_two_calls_are_not_noticed(schema: str, size: int) -> None:
    server = postgres_servers.shared()
    url = server.url(schema=schema, application_name=schema)
    with threadkeep.open(url, min_size=size, max_size=size, timeout=2) as keep:
        saver = keep.checkpointer
        chain = Chain(saver)
        chain.put({"n": 0})
        asks = [
            lambda: chain.put({"n": chain.number}),
            lambda: saver.put_writes(config("t", chain.last), [("n", 1)], f"task {chain.number}"),
            lambda: saver.get_tuple(config("t")),
            lambda: list(saver.list(config("t"))),
            keep.threads,
            lambda: saver.copy_thread("t", "u"),
            lambda: saver.prune(["u"]),
            lambda: saver.delete_thread("u"),
        ]
        for ask in asks:
            assert postgres_servers.wait_until(lambda: len(connections(server, schema)) == size, 30)
            assert end_backends(server, schema) == size
            ask()
        assert list_ids(saver) == ["00000001", "00000000"]


def connections(server: postgres_servers.Server, name: str) -> list[Any]:
    return server.execute(f"select pid from pg_stat_activity where application_name = '{name}'")


@pytest.fixture
def database() -> Iterator[Callable[[str], str]]:
    """Return a function that creates a database on the shared server with a setting."""
    name = f"d_{uuid.uuid4().hex}"

    def make(setting: str) -> str:
        postgres_servers.shared().execute(f"create database {name} template template0 strategy file_copy")
        postgres_servers.shared().execute(f"alter database {name} set {setting}")
        return postgres_servers.shared().url(name)

    yield make
    postgres_servers.shared().execute(f"drop database {name} with (force)")


def test_idle_connections_that_the_server_drops_are_not_noticed(database: Callable[[str], str]) -> None:
    name = uuid.uuid4().hex
    url = database("idle_session_timeout = '100ms'") + f"?application_name={name}&min_size=4"
    with threadkeep.open(url, timeout=5) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(4):
            chain.put({"n": n})
            assert values_of(keep.checkpointer) == {"n": n}
            threading.Event().wait(0.25)
        with Writers(keep, threads=2, tasks=4) as writers:
            writers.wait_for(20)
        writers.check(url)


def test_a_statement_that_is_cancelled_is_unavailable_and_the_next_works(schema: str) -> None:
    """As statement_timeout and lock_timeout do."""
    server = postgres_servers.shared()
    url = server.url(schema=schema, application_name=schema, options="-clock_timeout=100ms")
    with threadkeep.open(url, timeout=1) as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"n": 0})
        with psycopg.connect(server.url()) as other:
            other.execute(f"lock table {schema}.tk_threads in exclusive mode")
            with pytest.raises(errors.Unavailable, match="timeout"):
                chain.put({"n": 1})
            assert values_of(keep.checkpointer) == {"n": 0}
        Chain(keep.checkpointer, "u").put({"n": 2})
        assert values_of(keep.checkpointer, "u") == {"n": 2}


# --- a server that restarts, stops, crashes, freezes


class Count(TypedDict):
    steps: Annotated[list[int], operator.add]


def slow_graph(saver: Any, *, steps: int) -> Any:
    async def work(state: Count) -> Count:
        await asyncio.sleep(0.05)
        return {"steps": [len(state["steps"])]}

    builder = StateGraph(Count)
    names = [f"n{n}" for n in range(steps)]
    for name in names:
        builder.add_node(name, work)
    for before, after in zip([START, *names], names, strict=False):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_fifty_running_graphs_outlive_a_restart(server: postgres_servers.Server, schema: str, mode: str) -> None:
    url = server.url(schema=schema)
    async with threadkeep.open(url) as keep:
        graph = slow_graph(keep.checkpointer, steps=10)
        threads = [{"configurable": {"thread_id": f"g{n}"}} for n in range(50)]
        runs = [asyncio.ensure_future(graph.ainvoke({"steps": []}, thread, durability="sync")) for thread in threads]
        while len(await keep.athreads(limit=100)) < 50:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(server.restart, mode)
        assert not all(each.done() for each in runs)
        done = await asyncio.gather(*runs)
        assert [each["steps"] for each in done] == [list(range(10))] * 50
    async with threadkeep.open(url) as keep:
        graph = slow_graph(keep.checkpointer, steps=10)
        for thread in threads:
            history = [state async for state in graph.aget_state_history(thread)]
            assert [len(state.values.get("steps", [])) for state in history] == [*range(10, -1, -1), 0]
            assert history[0].next == ()
            assert all(task.error is None for state in history for task in state.tasks)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_writers_outlive_restarts(server: postgres_servers.Server, schema: str, mode: str) -> None:
    url = server.url(schema=schema)
    with threadkeep.open(url) as keep, Writers(keep, threads=4, tasks=20) as writers:
        for _ in range(2):
            writers.wait_for(60)
            server.restart(mode)
        writers.wait_for(60)
    writers.check(url)


def test_a_server_that_is_gone_is_unavailable_until_it_is_back(server: postgres_servers.Server, schema: str) -> None:
    with threadkeep.open(server.url(schema=schema), timeout=0.5) as keep:
        saver = keep.checkpointer
        chain = Chain(saver)
        chain.put(HELLO)
        fresh = threadkeep.open(server.url(schema=schema), timeout=0.5)
        server.stop()
        try:
            for ask in unanswered(keep):
                with pytest.raises(errors.Unavailable):
                    ask()
            with pytest.raises(errors.Unavailable):
                fresh.checkpointer.get_tuple(config("t"))
        finally:
            server.start()
        assert values_of(saver) == values_of(fresh.checkpointer) == HELLO
        fresh.close()
        Chain(saver).put({"x": 1}, id="1")
        assert values_of(saver) == {"x": 1}
        assert {info.id for info in keep.threads()} == {"t"}


def unanswered(keep: threadkeep.Keep) -> list[Callable[[], Any]]:
    """A failure must not be reported as "empty"."""
    saver = keep.checkpointer
    return [
        lambda: saver.get_tuple(config("t")),
        lambda: saver.get_tuple(config("nobody")),
        lambda: list(saver.list(None)),
        lambda: asyncio.run(saver.aget_tuple(config("t"))),
        keep.threads,
        lambda: saver.delete_thread("nobody"),
        lambda: Chain(saver, "new").put(HELLO),
    ]


def test_a_stop_that_is_shorter_than_the_timeout_is_only_waited_for(
    server: postgres_servers.Server, schema: str
) -> None:
    with threadkeep.open(server.url(schema=schema)) as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"n": 0})
        server.stop()
        waiting = threading.Thread(target=chain.put, args=[{"n": 1}])
        waiting.start()
        waiting.join(1)
        try:
            assert waiting.is_alive()
        finally:
            server.start()
        waiting.join(60)
        assert values_of(keep.checkpointer) == {"n": 1}


def test_a_keep_may_be_opened_before_its_server_is_started(server: postgres_servers.Server, schema: str) -> None:
    server.stop()
    try:
        keep = threadkeep.open(server.url(schema=schema))
        waiting = threading.Thread(target=Chain(keep.checkpointer).put, args=[HELLO])
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    finally:
        server.start()
    waiting.join(60)
    assert values_of(keep.checkpointer) == HELLO
    keep.close()


def test_what_was_acknowledged_outlives_a_crash_of_the_server(schema: str) -> None:
    with postgres_servers.fresh_server(postgres_servers.DURABLE) as durable:
        url = durable.url(schema=schema)
        with threadkeep.open(url) as keep, Writers(keep, threads=4, tasks=20) as writers:
            for _ in range(2):
                writers.wait_for(60)
                durable.kill()
                durable.start()
            writers.wait_for(60)
        writers.check(url)


def test_a_crash_that_callers_do_not_outlive_loses_nothing_either(schema: str) -> None:
    with postgres_servers.fresh_server(postgres_servers.DURABLE) as durable:
        url = durable.url(schema=schema)
        with threadkeep.open(url, timeout=0.2) as keep, Writers(keep, threads=4, tasks=20) as writers:
            writers.wait_for(60)
            durable.kill()
            assert postgres_servers.wait_until(lambda: len(writers.failed) == 24, 30)
        assert {type(error) for error in writers.failed} == {errors.Unavailable}
        durable.start()
        writers.check_nothing_is_lost(url)


def test_a_frozen_server_is_unavailable_until_it_answers(server: postgres_servers.Server, schema: str) -> None:
    with threadkeep.open(server.url(schema=schema), timeout=1) as keep:
        saver = keep.checkpointer
        Chain(saver).put(HELLO)
        server.pause()
        try:
            outcomes: list[Any] = []

            def collect(ask: Callable[[], Any]) -> Callable[[], None]:
                def work() -> None:
                    try:
                        outcomes.append(ask())
                    except errors.Unavailable as error:
                        outcomes.append(type(error))

                return work

            in_threads(*map(collect, unanswered(keep)))
            assert outcomes == [errors.Unavailable] * len(unanswered(keep))
        finally:
            server.resume()
        assert postgres_servers.wait_until(lambda: tried(lambda: values_of(saver)) == HELLO, 20)
        Chain(saver, "after").put({"x": 1})
        assert values_of(saver, "after") == {"x": 1}


def tried(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except errors.Unavailable as error:
        return error


def test_a_short_freeze_is_only_waited_for(server: postgres_servers.Server, schema: str) -> None:
    url = server.url(schema=schema)
    with threadkeep.open(url) as keep, Writers(keep, threads=4, tasks=20) as writers:
        for _ in range(3):
            writers.wait_for(60)
            server.pause()
            threading.Event().wait(0.3)
            server.resume()
    writers.check(url)


def test_a_primary_that_takes_no_changes_for_a_while_is_only_waited_for(
    server: postgres_servers.Server, schema: str
) -> None:
    """Like a server that was demoted, or whose disk is nearly full."""
    url = server.url(schema=schema)
    with threadkeep.open(url) as keep, Writers(keep, threads=4, tasks=20) as writers:
        writers.wait_for(60)
        server.execute("alter system set default_transaction_read_only = on")
        server.execute("select pg_reload_conf()")
        threading.Event().wait(0.5)
        server.execute("alter system reset default_transaction_read_only")
        server.execute("select pg_reload_conf()")
        writers.wait_for(60)
    writers.check(url)


# --- other servers, other settings


RIVAL = """
import asyncio, logging, sys
import threadkeep
from checkpoint_chains import Chain, config
logging.getLogger("threadkeep.retry").setLevel(logging.ERROR)  # it warns if a busy machine needs over a second
url, name = sys.argv[1:]
keep = threadkeep.open(url)
saver = keep.checkpointer
keep.setup()
wait_for_others()

async def use(n):
    own = Chain(saver, f"{name} {n}")
    for k in range(10):
        await own.aput({"log": list(range(k))})
        await Chain(saver, f"shared {n}").aput({"who": name}, id=f"{k:02} {name}")
        await saver.aput_writes(config(f"shared {n}", "early"), [("x", k)], f"{name} {k}")
    await saver.acopy_thread(f"{name} {n}", f"copy of {name} {n}")
    await saver.aprune([f"{name} {n}"])

async def main():
    await asyncio.gather(*(use(n) for n in range(8)))

asyncio.run(main())
"""


def check_rivals(url: str, names: list[str]) -> None:
    with threadkeep.open(url) as keep:
        for n in range(8):
            shared = [f"{k:02} {name}" for k in range(10) for name in names]
            assert sorted(list_ids(keep.checkpointer, f"shared {n}")) == sorted(shared)
            Chain(keep.checkpointer, f"shared {n}").put({}, id="early")
            found = keep.checkpointer.get_tuple(config(f"shared {n}", "early"))
            assert found is not None
            written = sorted((task, value) for task, _, value in found.pending_writes or [])
            assert written == sorted((f"{name} {k}", k) for name in names for k in range(10))
            for name in names:
                assert len(list_ids(keep.checkpointer, f"copy of {name} {n}")) == 10
                assert list_ids(keep.checkpointer, f"{name} {n}") == ["00000009"]


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_serialization_failures_are_tried_again(database: Callable[[str], str], level: str) -> None:
    url = database(f"default_transaction_isolation = '{level}'")
    run_concurrently(RIVAL, [(url, name) for name in "ab"])
    check_rivals(url, ["a", "b"])


def test_pgbouncer_may_hand_out_another_connection_for_each_transaction() -> None:
    if postgres_servers.pgbouncer() is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    server = postgres_servers.shared()
    with postgres_servers.fresh_bouncer(server, {"default_pool_size": "2"}) as bouncer:
        url = postgres_servers.fresh_schema(bouncer)
        schema = url.partition("schema=")[2]
        keeps = [threadkeep.open(url, prepare=False) for _ in range(3)]
        writers = [Writers(keep, threads=2, tasks=10, name=f"k{n} ") for n, keep in enumerate(keeps)]
        for each in writers:
            each.__enter__()
        for each in writers:
            each.wait_for(60)
        for each in writers:
            each.__exit__()
            each.check(server.url(schema=schema))
        for n, keep in enumerate(keeps):
            saver = keep.checkpointer
            saver.copy_thread(f"k{n} 0", f"copy {n}")
            saver.prune([f"copy {n}"])
            saver.delete_for_runs(["nobody's"])
            assert len(list_ids(saver, f"copy {n}")) == 1
            saver.delete_thread(f"copy {n}")
            keep.close()


@pytest.mark.parametrize("group", ["all", "thread"])
def test_graphs_run_through_pgbouncer(group: str) -> None:
    if postgres_servers.pgbouncer() is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    with postgres_servers.fresh_bouncer(postgres_servers.shared(), {"default_pool_size": "2"}) as bouncer:
        for name in ("fan-out", "messages edited and removed"):
            asyncio.run(tell(name, postgres_servers.fresh_schema(bouncer), prepare=False, group=group))


async def tell(name: str, url: str, **options: Any) -> None:
    """A graph has the same history as with InMemorySaver."""
    play, call = SCENARIOS[name], AsyncCaller()
    async with threadkeep.open(url, **options) as keep:
        graph, peer = play.build(keep.checkpointer), play.build(InMemorySaver())
        await play.run(call, graph)
        await play.run(call, peer)
        assert_same(await describe_thread(call, graph), await describe_thread(call, peer))


# --- the oldest PostgreSQL


@pytest.fixture
def oldest() -> postgres_servers.Server:
    bin = postgres_servers.oldest()
    if bin is None:
        pytest.skip("PostgreSQL 15 is not installed: apt-get install postgresql-15")
    return postgres_servers.shared(bin)


def test_the_oldest_server_passes_the_official_suite(oldest: postgres_servers.Server) -> None:
    assert oldest.execute("show server_version_num")[0][0].startswith("15")
    assert_complete(asyncio.run(report_on(lambda: postgres_servers.fresh_schema(oldest), lambda saver: saver)))


@pytest.mark.parametrize("name", ["messages edited and removed", "subgraphs with memory"])
def test_a_graph_on_the_oldest_server_has_the_history_that_in_memory_saver_has(
    oldest: postgres_servers.Server, name: str
) -> None:
    asyncio.run(tell(name, postgres_servers.fresh_schema(oldest)))


def test_the_oldest_server_prunes_copies_and_lists(oldest: postgres_servers.Server) -> None:
    url = postgres_servers.fresh_schema(oldest)
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        for thread in ("a", "b", "c"):
            chain = Chain(saver, thread, run=f"run of {thread}")
            for n in range(5):
                chain.put({"log": [f"{n} " * 100] * n}, user=thread)
        saver.copy_thread("a", "copy")
        saver.prune(["a"])
        saver.delete_for_runs(["run of b"])
        assert [len(list_ids(saver, thread)) for thread in ("a", "b", "c", "copy")] == [1, 0, 5, 5]
        assert values_of(saver, "a") == values_of(saver, "copy") == {"log": ["4 " * 100] * 4}
        assert {info.id for info in keep.threads(order="created")} >= {"a", "c", "copy"}
        assert [info.id for info in keep.threads(metadata={"user": "c"})] == ["c"]
        assert [info.id for info in keep.threads(prefix="co")] == ["copy"]
        saver.delete_thread("c")
        assert list_ids(saver, "c") == []


def test_a_cache_of_what_a_promoted_standby_never_had_is_not_used() -> None:
    """A lagging standby is promoted, and another process continues the thread: the first one's cache is outdated."""
    with postgres_servers.fresh_server() as primary:
        with threadkeep.open(primary.url(schema="k")) as keep:
            Chain(keep.checkpointer).put({"log": ["first " * 60]})
        standby = primary.standby(
            postgres_servers.fresh_folder(), postgres_servers.free_port(), "late"
        )  # it starts after the crash
        try:
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            url = f"postgresql://postgres@{hosts}/postgres?schema=k&target_session_attrs=read-write"
            with threadkeep.open(url) as one, threadkeep.open(url) as other:
                log, chain = ["first " * 60], Chain(one.checkpointer)
                chain.number, chain.last = 1, "00000000"
                for n in range(2):
                    log = [*log, f"lost {n} " * 100, f"lost too {n} " * 100]
                    chain.put({"log": log})
                primary.kill()
                standby.start()
                standby.promote()
                others = Chain(other.checkpointer)
                others.number, others.last = 1, "00000000"
                for n in range(2):
                    others.put({"log": ["first " * 60, f"another past {n} " * 100]}, id=f"b{n}")
                assert values_of(one.checkpointer, "t", "b1")["log"][-1] == "another past 1 " * 100
                log = [*log, "new " * 100]
                chain.put({"log": log})
            with threadkeep.open(url) as again:
                assert values_of(again.checkpointer, "t", "00000003")["log"] == log
                assert values_of(again.checkpointer, "t", "b1")["log"][-1] == "another past 1 " * 100
            assert find_problems(standby.url(schema="k")) == []
        finally:
            standby.remove()
