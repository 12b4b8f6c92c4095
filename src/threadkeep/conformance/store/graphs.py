"""Tests of the store in a LangGraph graph: what one thread of a user stores, another thread of that user finds."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore

from threadkeep.conformance.sync_async import Caller


class State(TypedDict):
    """State of a graph that stores each text it gets."""

    text: str
    known: list[str]


def _namespace(config: RunnableConfig) -> tuple[str, ...]:
    return ("memories", config["configurable"]["user"])


def _remember(state: State, config: RunnableConfig, store: BaseStore) -> dict[str, Any]:
    store.put(_namespace(config), state["text"], {"text": state["text"]})
    return {"known": sorted(item.value["text"] for item in store.search(_namespace(config)))}


async def _aremember(state: State, config: RunnableConfig, store: BaseStore) -> dict[str, Any]:
    await store.aput(_namespace(config), state["text"], {"text": state["text"]})
    return {"known": sorted(item.value["text"] for item in await store.asearch(_namespace(config)))}


def _by_store(state: State, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    return _remember(state, config, store)


async def _aby_store(state: State, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    return await _aremember(state, config, store)


def _by_runtime(state: State, config: RunnableConfig, runtime: Any) -> dict[str, Any]:
    return _remember(state, config, runtime.store)


async def _aby_runtime(state: State, config: RunnableConfig, runtime: Any) -> dict[str, Any]:
    return await _aremember(state, config, runtime.store)


NODES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "store": (_by_store, _aby_store),
    "runtime": (_by_runtime, _aby_runtime),
}


def graph_on(store: Caller, node: Callable[..., Any]) -> Caller:
    """Compile a graph with one node on a store."""
    graph = pytest.importorskip("langgraph.graph", reason="the package langgraph is not installed")
    builder = graph.StateGraph(State)
    builder.add_node("remember", node)
    builder.add_edge(graph.START, "remember")
    return store.wrap(builder.compile(store=store.target, checkpointer=InMemorySaver()))


def say(graph: Caller, text: str, *, user: str, thread: str) -> list[str]:
    """Send a text to a thread, and return what the graph then knows of the user."""
    config = {"configurable": {"thread_id": thread, "user": user}}
    known: list[str] = graph.invoke({"text": text, "known": []}, config)["known"]
    return known


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES.keys())
def test_threads_of_one_user_share_what_a_graph_remembers(
    my_store: Caller, nodes: tuple[Callable[..., Any], ...]
) -> None:
    graph = graph_on(my_store, nodes[my_store.is_async])
    assert say(graph, "tea", user="ada", thread="1") == ["tea"]
    assert say(graph, "milk", user="ada", thread="2") == ["milk", "tea"]
    assert say(graph, "rum", user="bob", thread="3") == ["rum"]
    assert say(graph, "sugar", user="ada", thread="1") == ["milk", "sugar", "tea"]
    assert my_store.list_namespaces() == [("memories", "ada"), ("memories", "bob")]
