"""Tests of the cache in a LangGraph graph: a node with a CachePolicy runs once for each input."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from threadkeep.conformance.sync_async import Caller


class State(TypedDict):
    """State of a graph that squares a number."""

    n: int
    square: int


def square_graph(cache: Caller, calls: list[int], *, ttl: int | None = None) -> Caller:
    """Return a graph whose only node is cached. `calls` gets the input of each run of the node."""
    graph = pytest.importorskip("langgraph.graph")
    types = pytest.importorskip("langgraph.types")

    def square(state: State) -> dict[str, Any]:
        calls.append(state["n"])
        return {"square": state["n"] ** 2}

    builder = graph.StateGraph(State)
    builder.add_node("square", square, cache_policy=types.CachePolicy(ttl=ttl))
    builder.add_edge(graph.START, "square")
    return cache.wrap(builder.compile(cache=cache.target))


def test_a_cached_node_runs_once_for_each_input(my_cache: Caller) -> None:
    calls: list[int] = []
    graph = square_graph(my_cache, calls)
    for n in (3, 4, 3, 4):
        assert graph.invoke({"n": n}) == {"n": n, "square": n**2}
    assert calls == [3, 4]


def test_another_graph_of_the_same_node_uses_the_entries(my_cache: Caller) -> None:
    calls: list[int] = []
    square_graph(my_cache, calls, ttl=600).invoke({"n": 5})
    assert square_graph(my_cache, calls, ttl=600).invoke({"n": 5}) == {"n": 5, "square": 25}
    assert calls == [5]


def test_a_cleared_node_runs_again(my_cache: Caller) -> None:
    calls: list[int] = []
    graph = square_graph(my_cache, calls)
    graph.invoke({"n": 6})
    graph.clear_cache()
    graph.invoke({"n": 6})
    assert calls == [6, 6]
