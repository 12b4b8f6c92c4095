"""Graphs and scenarios that run them, to compare the resulting threads of two savers."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Send, StateUpdate, interrupt

from sync_async import Caller

THREAD: dict[str, Any] = {"configurable": {"thread_id": "1"}}
Graph = Any


def describe_states(history: list[Any]) -> list[dict[str, Any]]:
    """Describe a state history without the ids that differ from run to run."""
    return [
        {
            "values": state.values,
            "next": state.next,
            "metadata": dict(sorted({**state.metadata, "parents": sorted(state.metadata.get("parents", {}))}.items())),
            "tasks": [
                (each.name, each.error, [found.value for found in each.interrupts], each.result) for each in state.tasks
            ],
            "has_parent": state.parent_config is not None,
        }
        for state in history
    ]


async def describe_thread(call: Caller, graph: Graph, config: dict[str, Any] = THREAD) -> list[dict[str, Any]]:
    return describe_states(await call.every(graph, "get_state_history", config))


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Assert that values and their repr are equal: 1, True and 1.0 differ, and so do 0.0 and -0.0."""
    assert found == expected
    assert repr(found) == repr(expected)


# --- graphs


class Letters(TypedDict):
    foo: str
    bar: Annotated[list[str], operator.add]


def letters(saver: Any) -> Graph:
    """The first example of LangGraph's persistence guide."""
    builder = StateGraph(Letters)
    builder.add_node("node_a", lambda state: {"foo": "a", "bar": ["a"]})
    builder.add_node("node_b", lambda state: {"foo": "b", "bar": ["b"]})
    builder.add_edge(START, "node_a")
    builder.add_edge("node_a", "node_b")
    builder.add_edge("node_b", END)
    return builder.compile(checkpointer=saver)


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    asked: Any


def chat(answer: Callable[[Chat], dict[str, Any]]) -> Callable[[Any], Graph]:
    def build(saver: Any) -> Graph:
        builder = StateGraph(Chat)
        builder.add_node("answer", answer)
        builder.add_node("rest", lambda state: {"asked": len(state["messages"])})
        builder.add_edge(START, "answer")
        builder.add_edge("answer", "rest")
        return builder.compile(checkpointer=saver)

    return build


def replies(state: Chat) -> dict[str, Any]:
    n = len(state["messages"])
    return {"messages": [AIMessage(f"answer {n} 🦜", id=f"ai{n}")]}


def edits_in_place_and_returns_it(state: Chat) -> dict[str, Any]:
    state["messages"][0].content += "!"
    state["messages"][0].additional_kwargs["seen"] = len(state["messages"])
    return {"messages": [state["messages"][0]]}


def edits_in_place_and_returns_another(state: Chat) -> dict[str, Any]:
    state["messages"][0].content += "?"
    return replies(state)


def edits_in_place_and_returns_nothing_of_it(state: Chat) -> dict[str, Any]:
    state["messages"][0].content += "#"
    return {"asked": "something else"}


def same_number_as_another_type(state: Chat) -> dict[str, Any]:
    turn = sum(isinstance(message, HumanMessage) for message in state["messages"])
    return {"messages": [AIMessage("n", id="ai", additional_kwargs={"n": [1, True, 1.0, 0.0, -0.0][turn % 5]})]}


class Files(TypedDict, total=False):
    files: Annotated[
        dict[str, Any], lambda old, new: {key: value for key, value in {**old, **new}.items() if value is not None}
    ]
    turn: Annotated[int, operator.add]


def editor(saver: Any) -> Graph:
    builder = StateGraph(Files)
    builder.add_node(
        "edit", lambda state: {"turn": 1, "files": {f"f{state['turn']}": None, f"g{state['turn']}": "new" * 200}}
    )
    builder.add_edge(START, "edit")
    return builder.compile(checkpointer=saver)


class Sums(TypedDict, total=False):
    items: list[int]
    done: Annotated[list[int], operator.add]


def fan(work: Callable[[Any], Any]) -> Callable[[Any], Graph]:
    def build(saver: Any) -> Graph:
        builder = StateGraph(Sums)
        builder.add_node("plan", lambda state: {})
        builder.add_node("work", work)
        builder.add_node("join", lambda state: {"items": sorted(state["done"])})
        builder.add_edge(START, "plan")
        builder.add_conditional_edges("plan", lambda state: [Send("work", {"n": n}) for n in state["items"]], ["work"])
        builder.add_edge("work", "join")
        return builder.compile(checkpointer=saver)

    return build


class Asked(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


def two_questions(saver: Any) -> Graph:
    """Build a graph of two nodes that interrupt at the same time, and one that runs when both are answered."""
    builder = StateGraph(Asked)
    builder.add_node("left", lambda state: {"said": ["left " + interrupt("left?")]})
    builder.add_node("right", lambda state: {"said": ["right " + interrupt("right?")]})
    builder.add_node("after", lambda state: {"said": ["after"]})
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "after")
    return builder.compile(checkpointer=saver)


def nested(*, inner_saver: Any = None) -> Callable[[Any], Graph]:
    """Build a graph in a graph in a graph. The innermost interrupts."""

    def build(saver: Any) -> Graph:
        inner = StateGraph(Asked)
        inner.add_node("ask", lambda state: {"said": ["heard " + interrupt("name?")]})
        inner.add_edge(START, "ask")
        middle = StateGraph(Asked)
        middle.add_node("before", lambda state: {"said": ["before"]})
        middle.add_node("inner", inner.compile(checkpointer=inner_saver))
        middle.add_edge(START, "before")
        middle.add_edge("before", "inner")
        outer = StateGraph(Asked)
        outer.add_node("middle", middle.compile(checkpointer=inner_saver))
        outer.add_edge(START, "middle")
        return outer.compile(checkpointer=saver)

    return build


def workflow(saver: Any) -> Graph:
    @task
    def double(n: int) -> int:
        return n * 2

    @entrypoint(checkpointer=saver)
    def total(numbers: list[int], *, previous: int | None = None) -> Any:
        doubled = [each.result() for each in [double(n) for n in numbers]]
        bonus = interrupt("bonus?") if len(numbers) == 1 else 0
        answer = sum(doubled) + bonus + (previous or 0)
        return entrypoint.final(value={"answer": answer, "previous": previous}, save=answer)

    return total


# --- scenarios


@dataclass(frozen=True, slots=True)
class Scenario:
    """A graph and what is done with it."""

    build: Callable[[Any], Graph]
    run: Callable[[Caller, Graph], Awaitable[None]]


async def one_run(call: Caller, graph: Graph) -> None:
    await call(graph, "invoke", {"foo": ""}, THREAD)


async def update_states(call: Caller, graph: Graph) -> None:
    await call(graph, "invoke", {"foo": "", "bar": ["in"]}, THREAD, interrupt_before=["node_b"])
    await call(graph, "update_state", THREAD, {"foo": "edited", "bar": ["as last node"]})
    await call(graph, "update_state", THREAD, {"bar": ["as node_a"]}, as_node="node_a")
    await call(graph, "invoke", None, THREAD)
    await call(graph, "update_state", THREAD, None, as_node=END)
    await call(
        graph,
        "bulk_update_state",
        THREAD,
        [[StateUpdate({"foo": "bulk", "bar": ["1"]}, "node_a")], [StateUpdate({"bar": ["2"]}, "node_b")]],
    )
    await call(graph, "update_state", THREAD, {"foo": "as input", "bar": ["again"]}, as_node="__input__")
    await call(graph, "invoke", None, THREAD)


async def copy_checkpoints(call: Caller, graph: Graph) -> None:
    await call(graph, "invoke", {"foo": "", "bar": ["in"]}, THREAD)
    history = await call.every(graph, "get_state_history", THREAD)
    copied = await call(graph, "update_state", history[1].config, None, as_node="__copy__")
    await call(graph, "invoke", None, copied)
    await call(
        graph,
        "bulk_update_state",
        THREAD,
        [[StateUpdate(None, "__copy__")], [StateUpdate({"foo": "x", "bar": ["x"]}, "node_a")]],
    )
    await call(
        graph,
        "update_state",
        history[2].config,
        [({"foo": "copied and changed", "bar": ["c"]}, "node_a")],
        as_node="__copy__",
    )


async def six_turns(call: Caller, graph: Graph) -> None:
    for n in range(6):
        await call(
            graph, "invoke", {"messages": [HumanMessage(f"question {n}", id=f"human{n}")]}, THREAD, durability="sync"
        )


async def message_surgery(call: Caller, graph: Graph) -> None:
    await six_turns(call, graph)
    edits: list[list[Any]] = [
        [HumanMessage("edited in the middle", id="human3")],
        [RemoveMessage("human1"), RemoveMessage("ai1")],
        [AIMessage("edited at the end", id="ai11"), HumanMessage("appended", id="last")],
        [RemoveMessage("human0")],
        [
            RemoveMessage(REMOVE_ALL_MESSAGES),
            HumanMessage("trimmed to this", id="human5"),
            AIMessage("and this", id="new"),
        ],
        [ToolMessage("result", tool_call_id="call", id="tool", artifact={"nested": [1, {"two": 2}]})],
        [RemoveMessage(REMOVE_ALL_MESSAGES)],
        [HumanMessage("from nothing", id="again")],
    ]
    for messages in edits:
        await call(graph, "invoke", {"messages": messages}, THREAD, durability="sync")


async def edit_files(call: Caller, graph: Graph) -> None:
    files = {f"f{n}": {"content": f"text {n} " * 100, "lines": [n, str(n)]} for n in range(20)}
    await call(graph, "invoke", {"files": files, "turn": 0}, THREAD)
    for n in range(5):
        await call(graph, "invoke", {"files": {f"f{n + 10}": "replaced"}, "turn": 0}, THREAD)


async def fan_out(call: Caller, graph: Graph) -> None:
    await call(graph, "invoke", {"items": [3, 1, 2]}, THREAD)
    await call(graph, "invoke", {"items": [5, 4]}, THREAD)


async def answer_both(call: Caller, graph: Graph) -> None:
    asked = await call(graph, "invoke", {"said": ["go"]}, THREAD)
    answers = {found.id: f"({found.value})" for found in asked["__interrupt__"]}
    await call(graph, "invoke", Command(resume=answers), THREAD)


async def answer_one_by_one(call: Caller, graph: Graph) -> None:
    asked = await call(graph, "invoke", {"said": ["go"]}, THREAD)
    for found in asked["__interrupt__"]:
        await call(graph, "invoke", Command(resume={found.id: f"({found.value})"}), THREAD)


async def answer_twice(call: Caller, graph: Graph) -> None:
    for name in ("first", "second"):
        await call(graph, "invoke", {"said": ["go"]}, THREAD)
        await call(graph, "invoke", Command(resume=name), THREAD)


async def compute(call: Caller, graph: Graph) -> None:
    await call(graph, "invoke", [1, 2, 3], THREAD)
    await call(graph, "invoke", [10], THREAD)
    await call(graph, "invoke", Command(resume=5), THREAD)


SCENARIOS = {
    "one run": Scenario(letters, one_run),
    "update_state": Scenario(letters, update_states),
    "__copy__": Scenario(letters, copy_checkpoints),
    "chat": Scenario(chat(replies), six_turns),
    "messages edited and removed": Scenario(chat(replies), message_surgery),
    "edited in place and returned": Scenario(chat(edits_in_place_and_returns_it), six_turns),
    "edited in place beside a new one": Scenario(chat(edits_in_place_and_returns_another), six_turns),
    "edited in place and dropped": Scenario(chat(edits_in_place_and_returns_nothing_of_it), six_turns),
    "equal but of another type": Scenario(chat(same_number_as_another_type), six_turns),
    "large dict": Scenario(editor, edit_files),
    "fan-out": Scenario(fan(lambda task: {"done": [task["n"] * 10]}), fan_out),
    "two interrupts at once": Scenario(two_questions, answer_both),
    "two interrupts one by one": Scenario(two_questions, answer_one_by_one),
    "subgraphs": Scenario(nested(), answer_twice),
    "subgraphs with memory": Scenario(nested(inner_saver=True), answer_twice),
    "functional": Scenario(workflow, compute),
}
each_scenario = pytest.mark.parametrize("play", SCENARIOS.values(), ids=SCENARIOS.keys())
