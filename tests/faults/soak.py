"""Many conversations that take turns, sync and async, in one process: how much it holds after each turn of all.

`main` prints one line of JSON for each turn, as soon as every conversation has had it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import threadkeep

CALLERS = 16
_CACHE_BYTES = 4_000_000


def conversation(saver: Any) -> Any:
    """Return a graph that answers each message."""
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])} " * 10)]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def config(n: int) -> Any:
    return {"configurable": {"thread_id": f"t{n}"}}


def turn_of(number: int) -> Any:
    return {"messages": [HumanMessage(f"question {number} " * 10)]}


def sample() -> dict[str, int]:
    """Return what this process holds: bytes of memory, objects, open files with connections, threads."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "objects": len(gc.get_objects()),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


async def soak(url: str, threads: int, turns: int) -> None:
    limit = asyncio.Semaphore(CALLERS)
    with threadkeep.open(url, cache_bytes=_CACHE_BYTES) as keep, ThreadPoolExecutor(CALLERS) as callers:
        graph, loop = conversation(keep.checkpointer), asyncio.get_running_loop()

        async def take_turn(n: int, number: int) -> None:
            async with limit:
                if n % 2:
                    await graph.ainvoke(turn_of(number), config(n))
                else:
                    await loop.run_in_executor(callers, graph.invoke, turn_of(number), config(n))
                keep.store.put(("turns",), f"{n}", {"number": number}) if n % 10 == 0 else None

        for number in range(turns):
            await asyncio.gather(*(take_turn(n, number) for n in range(threads)))
            print(json.dumps(sample() | {"tasks": len(asyncio.all_tasks())}), flush=True)


def main(url: str, threads: str, turns: str) -> None:
    asyncio.run(soak(url, int(threads), int(turns)))
