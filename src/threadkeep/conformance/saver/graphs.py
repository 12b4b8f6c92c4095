"""In a graph of LangGraph: a thread goes on where it was, waits for an answer, and may be forked."""
# ruff: noqa: D103 - the name of a test says what it demands

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from threadkeep.conformance.colours import Colour

THREAD: dict[str, Any] = {"configurable": {"thread_id": "t"}}


class Log(TypedDict):
    """The state of a graph that writes lines."""

    lines: Annotated[list[str], operator.add]


def graph_on(saver: Colour, *, asks: bool = False) -> Colour:
    """A graph that adds a line, and then perhaps asks for another one."""
    graph = pytest.importorskip("langgraph.graph", reason="the package langgraph is not installed")
    types = pytest.importorskip("langgraph.types", reason="the package langgraph is not installed")

    def note(state: Log) -> dict[str, Any]:
        return {"lines": [f"line {len(state['lines'])}"]}

    def ask(_: Log) -> dict[str, Any]:
        return {"lines": [types.interrupt("which?")]}

    builder = graph.StateGraph(Log)
    builder.add_sequence([note, ask] if asks else [note])
    builder.add_edge(graph.START, "note")
    return saver.beside(builder.compile(checkpointer=saver.target))


def test_a_thread_goes_on_where_it_was(my_saver: Colour) -> None:
    graph = graph_on(my_saver)
    for _ in range(3):
        graph.invoke({"lines": []}, THREAD)
    assert graph.get_state(THREAD).values == {"lines": ["line 0", "line 1", "line 2"]}
    assert graph.get_state({"configurable": {"thread_id": "other"}}).values == {}


def test_an_interrupted_thread_waits_for_its_answer(my_saver: Colour) -> None:
    types = pytest.importorskip("langgraph.types", reason="the package langgraph is not installed")
    graph = graph_on(my_saver, asks=True)
    graph.invoke({"lines": []}, THREAD)
    waiting = graph.get_state(THREAD)
    assert [task.interrupts[0].value for task in waiting.tasks] == ["which?"]
    assert graph.invoke(types.Command(resume="this"), THREAD) == {"lines": ["line 0", "this"]}


def test_a_thread_may_be_forked_from_its_history(my_saver: Colour) -> None:
    graph = graph_on(my_saver)
    for _ in range(2):
        graph.invoke({"lines": []}, THREAD)
    first = next(state for state in graph.get_state_history(THREAD) if state.values == {"lines": ["line 0"]})
    graph.update_state(first.config, {"lines": ["another"]})
    assert graph.get_state(THREAD).values == {"lines": ["line 0", "another"]}
    assert graph.invoke({"lines": []}, THREAD) == {"lines": ["line 0", "another", "line 2"]}


def test_a_duplicate_of_any_checkpoint_has_its_values_and_goes_on_as_it_does(my_saver: Colour) -> None:
    """`__copy__` puts beside the checkpoint, with all its versions and none that is new."""
    graph = graph_on(my_saver, asks=True)
    graph.invoke({"lines": []}, THREAD)
    for state in list(graph.get_state_history(THREAD)):
        made = graph.get_state(graph.update_state(state.config, None, as_node="__copy__"))
        assert (made.values, made.next) == (state.values, state.next)
        assert made.config != state.config
