"""One Keep serves sync and async callers, from any thread and any event loop.

Three threads run an event loop each, three run none, and the main thread runs its own. All use the
same checkpointer object at the same time.
"""

import asyncio
import operator
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph

import threadkeep

RUNS = 10


class Counter(TypedDict):
    count: Annotated[int, operator.add]


Graph = CompiledStateGraph[Counter, None, Counter, Counter]


def add_one(state: Counter) -> Counter:  # noqa: ARG001 (the reducer adds it to the state)
    return {"count": 1}


def counter(saver: BaseCheckpointSaver[int]) -> Graph:
    builder = StateGraph(Counter)
    builder.add_node("add_one", add_one)
    builder.add_edge(START, "add_one")
    return builder.compile(checkpointer=saver)


def thread(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def count_sync(graph: Graph, thread_id: str) -> None:
    for _ in range(RUNS):
        graph.invoke({"count": 0}, thread(thread_id))


async def count_async(graph: Graph, thread_id: str) -> None:
    for _ in range(RUNS):
        await graph.ainvoke({"count": 0}, thread(thread_id))


def count_in_own_loop(graph: Graph, name: str) -> None:
    """Run an event loop in this thread, with two concurrent counters."""

    async def both() -> None:
        await asyncio.gather(count_async(graph, f"{name}-a"), count_async(graph, f"{name}-b"))

    asyncio.run(both())


async def main(url: str) -> None:
    async with threadkeep.open(url) as keep:
        graph = counter(keep.checkpointer)
        with ThreadPoolExecutor(6) as pool:
            elsewhere = [pool.submit(count_in_own_loop, graph, f"loop-{n}") for n in range(3)]
            elsewhere += [pool.submit(count_sync, graph, f"sync-{n}") for n in range(3)]
            await count_async(graph, "main")
            await asyncio.gather(*map(asyncio.wrap_future, elsewhere))
        for info in sorted(await keep.athreads(), key=lambda info: info.id):
            count = (await graph.aget_state(thread(info.id))).values["count"]
            print(f"{info.id:<8}  counted to {count:>2} in {info.checkpoints} checkpoints")
            assert count == RUNS, f"{info.id} lost a step"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/agent.db"))
