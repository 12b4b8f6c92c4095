"""Threads that use every feature: parallel nodes, sends, a subgraph, an interrupt, an update; and a cube thread.

For tests of code that inspects stored threads.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from cubeloop.providers.base import TextContent, UserMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import threadkeep

LONG = "x" * 5000
CUBE_TEXTS = {"r1": ["hello " * 50, "second"], "r2": ["third"]}
"""The texts of the cube thread, by run."""


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    big: str


def graph(saver: Any) -> Any:
    """Build a graph: two parallel nodes, one of which sends three times to two nodes; a subgraph; a question."""
    inner = StateGraph(State)
    inner.add_node("inner", lambda state: {"log": ["inner"]})
    inner.add_edge(START, "inner")
    builder = StateGraph(State)
    builder.add_node("left", lambda state: {"log": ["l" * 300], "big": LONG})
    builder.add_node("right", lambda state: {"log": ["r"]})
    builder.add_node("one", lambda state: {"log": [f"one {state['n']}"]})
    builder.add_node("two, too", lambda state: {"log": [f"two {state['n']}"]})
    builder.add_node("sub", inner.compile())
    builder.add_node("ask", lambda state: {"log": [interrupt("go on?")]})
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_conditional_edges("left", _sends, ["one", "two, too"])
    builder.add_edge("one", "sub")
    builder.add_edge("sub", "ask")
    return builder.compile(checkpointer=saver)


def _sends(state: State) -> list[Send]:
    return [Send("one", {"n": 1}), Send("two, too", {"n": 2}), Send("one", {"n": 3, "more": "m" * 400})]


def config(thread: str, **metadata: Any) -> Any:
    return {"configurable": {"thread_id": thread}, "metadata": metadata}


def write_thread(keep: threadkeep.Keep, thread: str, **metadata: Any) -> Any:
    """Run the graph to its question, answer it, update the state. Return the graph."""
    built, place = graph(keep.checkpointer), config(thread, **metadata)
    built.invoke({"log": ["hi"]}, place)
    built.invoke(Command(resume="yes"), place)
    built.update_state(place, {"log": ["edited"]}, as_node="right")
    return built


def user_message(text: str, run: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], id=text[:9], run_id=run)


def write_cube_thread(keep: threadkeep.Keep, thread: str) -> None:
    """Write a CubeLoop thread of two runs."""

    async def write_runs() -> None:
        for run, texts in CUBE_TEXTS.items():
            await keep.cube.claim_run(thread, run)
            await keep.cube.append(thread, [user_message(text, run) for text in texts])
            await keep.cube.mark_run_complete(thread, run)

    asyncio.run(write_runs())
