"""In a graph of LangGraph: what one thread of a user remembers, another thread of the same user finds."""
# ruff: noqa: D103 - the name of a test says what it demands

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore

from threadkeep.conformance.colours import Colour


class Said(TypedDict):
    """The state of a graph that remembers what is said."""

    text: str
    known: list[str]


def _place(config: RunnableConfig) -> tuple[str, ...]:
    return ("memories", config["configurable"]["user"])


def _kept(state: Said, config: RunnableConfig, store: BaseStore) -> dict[str, Any]:
    store.put(_place(config), state["text"], {"text": state["text"]})
    return {"known": sorted(item.value["text"] for item in store.search(_place(config)))}


async def _akept(state: Said, config: RunnableConfig, store: BaseStore) -> dict[str, Any]:
    await store.aput(_place(config), state["text"], {"text": state["text"]})
    return {"known": sorted(item.value["text"] for item in await store.asearch(_place(config)))}


def _by_store(state: Said, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    return _kept(state, config, store)


async def _aby_store(state: Said, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    return await _akept(state, config, store)


def _by_runtime(state: Said, config: RunnableConfig, runtime: Any) -> dict[str, Any]:
    return _kept(state, config, runtime.store)


async def _aby_runtime(state: Said, config: RunnableConfig, runtime: Any) -> dict[str, Any]:
    return await _akept(state, config, runtime.store)


NODES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "store": (_by_store, _aby_store),
    "runtime": (_by_runtime, _aby_runtime),
}


def graph_on(store: Colour, node: Callable[..., Any]) -> Colour:
    """A graph with one node, on a store, in the store's colour."""
    graph = pytest.importorskip("langgraph.graph", reason="the package langgraph is not installed")
    builder = graph.StateGraph(Said)
    builder.add_node("remember", node)
    builder.add_edge(graph.START, "remember")
    return store.beside(builder.compile(store=store.target, checkpointer=InMemorySaver()))


def said(graph: Colour, text: str, *, user: str, thread: str) -> list[str]:
    """What the graph knows of a user after a thread has said something."""
    config = {"configurable": {"thread_id": thread, "user": user}}
    known: list[str] = graph.invoke({"text": text, "known": []}, config)["known"]
    return known


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES.keys())
def test_threads_of_one_user_share_what_a_graph_remembers(
    my_store: Colour, nodes: tuple[Callable[..., Any], ...]
) -> None:
    graph = graph_on(my_store, nodes[my_store.is_async])
    assert said(graph, "tea", user="ada", thread="1") == ["tea"]
    assert said(graph, "milk", user="ada", thread="2") == ["milk", "tea"]
    assert said(graph, "rum", user="bob", thread="3") == ["rum"]
    assert said(graph, "sugar", user="ada", thread="1") == ["milk", "sugar", "tea"]
    assert my_store.list_namespaces() == [("memories", "ada"), ("memories", "bob")]
