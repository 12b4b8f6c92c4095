"""Tests of the saver in a LangGraph graph: a thread continues, waits for an answer, and can be forked."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from threadkeep.conformance.sync_async import Caller

THREAD: dict[str, Any] = {"configurable": {"thread_id": "t"}}


class Log(TypedDict):
    """State of a graph that adds lines."""

    lines: Annotated[list[str], operator.add]


def graph_on(saver: Caller, *, asks: bool = False) -> Caller:
    """Compile a graph that adds a line and then, if `asks`, interrupts to ask for another one."""
    graph = pytest.importorskip("langgraph.graph", reason="the package langgraph is not installed")
    types = pytest.importorskip("langgraph.types", reason="the package langgraph is not installed")

    def note(state: Log) -> dict[str, Any]:
        return {"lines": [f"line {len(state['lines'])}"]}

    def ask(_: Log) -> dict[str, Any]:
        return {"lines": [types.interrupt("which?")]}

    builder = graph.StateGraph(Log)
    builder.add_sequence([note, ask] if asks else [note])
    builder.add_edge(graph.START, "note")
    return saver.wrap(builder.compile(checkpointer=saver.target))


def test_a_thread_continues_where_it_stopped(my_saver: Caller) -> None:
    graph = graph_on(my_saver)
    for _ in range(3):
        graph.invoke({"lines": []}, THREAD)
    assert graph.get_state(THREAD).values == {"lines": ["line 0", "line 1", "line 2"]}
    assert graph.get_state({"configurable": {"thread_id": "other"}}).values == {}


def test_an_interrupted_thread_waits_for_its_answer(my_saver: Caller) -> None:
    types = pytest.importorskip("langgraph.types", reason="the package langgraph is not installed")
    graph = graph_on(my_saver, asks=True)
    graph.invoke({"lines": []}, THREAD)
    waiting = graph.get_state(THREAD)
    assert [task.interrupts[0].value for task in waiting.tasks] == ["which?"]
    assert graph.invoke(types.Command(resume="this"), THREAD) == {"lines": ["line 0", "this"]}


def test_a_thread_may_be_forked_from_its_history(my_saver: Caller) -> None:
    graph = graph_on(my_saver)
    for _ in range(2):
        graph.invoke({"lines": []}, THREAD)
    first = next(state for state in graph.get_state_history(THREAD) if state.values == {"lines": ["line 0"]})
    graph.update_state(first.config, {"lines": ["another"]})
    assert graph.get_state(THREAD).values == {"lines": ["line 0", "another"]}
    assert graph.invoke({"lines": []}, THREAD) == {"lines": ["line 0", "another", "line 2"]}


def test_a_duplicate_of_any_checkpoint_has_its_values_and_next_nodes(my_saver: Caller) -> None:
    """`__copy__` puts a sibling of the checkpoint with all its versions, none of them new."""
    graph = graph_on(my_saver, asks=True)
    graph.invoke({"lines": []}, THREAD)
    for state in list(graph.get_state_history(THREAD)):
        made = graph.get_state(graph.update_state(state.config, None, as_node="__copy__"))
        assert (made.values, made.next) == (state.values, state.next)
        assert made.config != state.config
