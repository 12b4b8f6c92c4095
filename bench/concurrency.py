"""Rows about many callers at once: async threads in one event loop, and a graph with a hundred parallel tasks."""

from __future__ import annotations

import asyncio
import importlib
import operator
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import threadkeep
import workload
from benchmark import Benchmark
from conversations import config_of
from equality import acheck_equal
from measuring import Figures, Spent, ameasure, measure, rotate
from recording import Call, areplay, record
from workload import Saver

TURNS = 2
TASKS = 100
RUNS = 5
ALONE = "no checkpointer"


def crowd(benchmark: Benchmark) -> None:
    asyncio.run(acrowd(benchmark))


async def acrowd(benchmark: Benchmark) -> None:
    """Measure many concurrent short conversations, on new threads each time."""
    threads = benchmark.scale.crowd
    what, calls = f"{threads} async threads, {TURNS} turns each", recorded()
    for number in benchmark.repetitions(what):
        with benchmark.installations("crowd", "strict") as installations:
            async with AsyncExitStack() as stack:
                savers = {
                    one.name: await stack.enter_async_context(one.contender.aopen(one.url, one.durability))
                    for one in installations
                }
                await replay_crowd(savers, calls, 10, "first")  # opens connections, imports
                spent = Spent(list(savers))
                for name in rotate(list(savers), number):
                    with spent.by(name):
                        await replay_crowd({name: savers[name]}, calls, threads, "crowd")
                benchmark.rows.add_timed("async threads", what, spent.per_call())
                await acheck_equal(list(savers.values()), config_of(f"crowd-{threads - 1}"), limit=3)


def recorded() -> list[Call]:
    """Return the calls of one short conversation."""
    return list(chain.from_iterable(record(TURNS)))


async def replay_crowd(savers: Mapping[str, Saver], calls: list[Call], threads: int, label: str) -> None:
    for saver in savers.values():
        await asyncio.gather(*(areplay(saver, calls, thread=f"{label}-{number}") for number in range(threads)))


# --- a graph with parallel tasks


class FanState(TypedDict):
    results: Annotated[list[Any], operator.add]


def fan_out(words: list[AnyMessage], saver: Saver | None) -> Any:
    """Compile a graph whose second superstep has one task for each message."""

    def work(task: Any) -> dict[str, Any]:
        return {"results": [words[task["number"]]]}

    builder: Any = StateGraph(FanState)
    builder.add_node("plan", lambda _: {"results": []})
    builder.add_node("work", work)
    builder.add_edge(START, "plan")
    sends = [Send("work", {"number": number}) for number in range(len(words))]
    builder.add_conditional_edges("plan", lambda _: sends, ["work"])
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


def parallel_tasks(benchmark: Benchmark) -> None:
    """Measure runs of the graph, on a new thread each time; also the same runs without a checkpointer."""
    words = list(workload.messages(TASKS // 4))
    threads = count()
    run = lambda graph, _: graph.invoke({}, config_of(f"fan-{next(threads)}"))  # noqa: E731
    for number in benchmark.repetitions(f"{TASKS} parallel tasks"):
        with benchmark.installations("fan", "strict") as installations, ExitStack() as stack:
            graphs = {one.name: fan_out(words, stack.enter_context(one.opened())) for one in installations}
            graphs[ALONE] = fan_out(words, None)
            check_fan_out(graphs)
            add_fan_out(benchmark, "sync", measure(graphs, run, RUNS, first=number))
        asyncio.run(aparallel_tasks(benchmark, words, number))


async def aparallel_tasks(benchmark: Benchmark, words: list[AnyMessage], number: int) -> None:
    threads = count()
    with benchmark.installations("afan", "strict") as installations:
        async with AsyncExitStack() as stack:
            graphs: dict[str, Any] = {}
            for one in installations:
                saver = await stack.enter_async_context(one.contender.aopen(one.url, one.durability))
                graphs[one.name] = fan_out(words, saver)
            graphs[ALONE] = fan_out(words, None)
            for graph in graphs.values():
                await graph.ainvoke({}, config_of("first"))
            run = lambda graph, _: graph.ainvoke({}, config_of(f"fan-{next(threads)}"))  # noqa: E731
            add_fan_out(benchmark, "async", await ameasure(graphs, run, RUNS, first=number))


def check_fan_out(graphs: Mapping[str, Any]) -> None:
    """Run each graph once, unmeasured, and check that all end with the same results."""
    ends = [graph.invoke({}, config_of("first")) for graph in graphs.values()]
    assert all(len(end["results"]) == TASKS and end == ends[0] for end in ends)
    states = [graph.get_state(config_of("first")).values for graph in graphs.values() if graph.checkpointer]
    assert all(state == ends[0] for state in states)


def add_fan_out(benchmark: Benchmark, how: str, timed: tuple[Figures, Figures]) -> None:
    """Add the whole run, and what is left of it without the graph's own time."""
    what = f"{TASKS} parallel tasks in a graph, {how}"
    own = [figures.pop(ALONE) for figures in timed]
    benchmark.rows.add_timed(f"parallel tasks, {how}", what, timed)
    wall, cpu = (
        {name: max(figure - alone, 0.01) for name, figure in figures.items()}
        for figures, alone in zip(timed, own, strict=True)
    )
    benchmark.rows.add_timed(f"parallel tasks, {how}, saver", f"{what}, the saver's share", (wall, cpu))


# --- Valkey


def valkey(benchmark: Benchmark) -> None:
    """Measure the concurrent conversations on threadkeep alone: on PostgreSQL, and on a Valkey cluster.

    The cluster is 3 x (1 + 2) servers on this machine. It acknowledges a change when the primary and one replica have it
    in memory; PostgreSQL acknowledges after fsync. The guarantees differ.
    """
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    servers: Any = importlib.import_module("valkey_servers")
    cluster = servers.fresh_cluster(**{"min-replicas-to-write": "1"})
    try:
        asyncio.run(avalkey(benchmark, cluster))
    finally:
        cluster.stop()


async def avalkey(benchmark: Benchmark, cluster: Any) -> None:
    threads = benchmark.scale.crowd
    what, calls = f"{threads} async threads, {TURNS} turns each", recorded()
    for number in benchmark.repetitions(f"{what}, PostgreSQL and Valkey"):
        with benchmark.databases("crowd", 1) as (url,):
            async with threadkeep.open(url) as base, threadkeep.open(cluster.url()) as spread:
                savers = {"on PostgreSQL": base.checkpointer, "on Valkey": spread.checkpointer}
                await replay_crowd(savers, calls, 10, "first")
                spent = Spent(list(savers))
                for name in rotate(list(savers), number):
                    with spent.by(name):
                        await replay_crowd({name: savers[name]}, calls, threads, "crowd")
                benchmark.rows.add_timed("async threads", what, spent.per_call())
                await acheck_equal(list(savers.values()), config_of(f"crowd-{threads - 1}"), limit=3)
