"""Threads that have all there is: parallel nodes, sends to two nodes, a subgraph, an interrupt, an update, and a talk.

For tests of what looks at stored threads from outside.
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
TALK = {"r1": ["hello " * 50, "second"], "r2": ["third"]}
"""What is said in a talk, by run."""


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    big: str


def graph(saver: Any) -> Any:
    """Two nodes at once; one sends three times to two nodes; then a subgraph, then a question."""
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


def live(keep: threadkeep.Keep, thread: str, **metadata: Any) -> Any:
    """A whole life of such a thread; the graph."""
    made, where = graph(keep.checkpointer), config(thread, **metadata)
    made.invoke({"log": ["hi"]}, where)
    made.invoke(Command(resume="yes"), where)
    made.update_state(where, {"log": ["edited"]}, as_node="right")
    return made


def said(text: str, run: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], id=text[:9], run_id=run)


def talk(keep: threadkeep.Keep, thread: str) -> None:
    """A talk of two runs."""

    async def all_of_it() -> None:
        for run, texts in TALK.items():
            await keep.cube.claim_run(thread, run)
            await keep.cube.append(thread, [said(text, run) for text in texts])
            await keep.cube.mark_run_complete(thread, run)

    asyncio.run(all_of_it())
