"""A primary with two standbys, one of which has each commit: it crashes, a standby takes over, writers continue."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from concurrent_writers import Writers
from postgres_failover import fail_over, quorum_cluster, url_of
from test_postgres_faults import slow_graph
from threadkeep import errors


@pytest.fixture
def cluster() -> Iterator[list[postgres_servers.Server]]:
    """The primary, then its standbys."""
    with quorum_cluster() as servers:
        yield servers


@pytest.mark.parametrize(("group", "round"), [("all", 1), ("all", 2), ("all", 3), ("thread", 1)])
def test_writers_continue_with_the_new_primary(cluster: list[postgres_servers.Server], group: str, round: int) -> None:
    schema = f"t_{uuid.uuid4().hex}"
    url = url_of(cluster, schema)
    with threadkeep.open(url, group=group) as keep, Writers(keep, threads=4, tasks=20) as writers:
        writers.wait_for(100 * round)
        before = writers.count()
        new = fail_over(cluster)
        writers.wait_for(200)
    assert before < writers.count()
    writers.check(url)
    assert new.execute("select pg_is_in_recovery()") == [(False,)]


async def test_fifty_running_graphs_continue_with_the_new_primary(cluster: list[postgres_servers.Server]) -> None:
    url = url_of(cluster, "graphs")
    threads = [{"configurable": {"thread_id": f"g{n}"}} for n in range(50)]
    async with threadkeep.open(url) as keep:
        graph = slow_graph(keep.checkpointer, steps=10)
        runs = [asyncio.ensure_future(graph.ainvoke({"steps": []}, thread, durability="sync")) for thread in threads]
        while len(await keep.athreads(limit=100)) < 50:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(fail_over, cluster)
        assert not all(each.done() for each in runs)
        assert [each["steps"] for each in await asyncio.gather(*runs)] == [list(range(10))] * 50
    async with threadkeep.open(url) as keep:
        graph = slow_graph(keep.checkpointer, steps=10)
        for thread in threads:
            history = [state async for state in graph.aget_state_history(thread)]
            assert [len(state.values.get("steps", [])) for state in history] == [*range(10, -1, -1), 0]


def test_a_cluster_without_a_primary_is_unavailable_until_there_is_one(cluster: list[postgres_servers.Server]) -> None:
    with threadkeep.open(url_of(cluster, "k"), timeout=2) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        cluster[0].kill()
        for ask in (
            lambda: keep.checkpointer.get_tuple(config("t")),
            lambda: Chain(keep.checkpointer, "u").put({"x": 2}),
        ):
            with pytest.raises(errors.Unavailable):
                ask()
        for standby in cluster[1:]:
            assert postgres_servers.wait_until(
                lambda: standby.execute("select count(*) from k.tk_checkpoints") == [(1,)], 30
            )
        cluster[1].promote()
        assert values_of(keep.checkpointer) == {"x": 1}
        Chain(keep.checkpointer).put({"x": 3}, id="1")
        assert list_ids(keep.checkpointer) == ["1", "00000000"]
