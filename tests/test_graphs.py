"""Real graphs on every backend, sync and async: every checkpoint agrees with InMemorySaver's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, interrupt

import threadkeep
from graph_scenarios import (
    THREAD,
    Graph,
    Letters,
    Scenario,
    assert_same,
    describe_thread,
    each_scenario,
    fan,
    letters,
    nested,
    two_questions,
)
from sync_async import Caller


@pytest.mark.sampled(2)
@each_scenario
async def test_a_graph_has_the_history_that_in_memory_saver_has(
    saver: threadkeep.KeepSaver, call: Caller, play: Scenario
) -> None:
    graph, peer = play.build(saver), play.build(InMemorySaver())
    await play.run(call, graph)
    await play.run(call, peer)
    expected = await describe_thread(call, peer)
    assert len(expected) > 1
    assert_same(await describe_thread(call, graph), expected)


@pytest.mark.sampled(2)
@each_scenario
async def test_another_keep_on_the_same_url_has_the_same_history(
    lasting_url: str, call: Caller, play: Scenario
) -> None:
    async with threadkeep.open(lasting_url) as keep:
        graph = play.build(keep.checkpointer)
        await play.run(call, graph)
        expected = await describe_thread(call, graph)
        peer = play.build(InMemorySaver())
        await play.run(call, peer)
        assert_same(expected, await describe_thread(call, peer))
    async with threadkeep.open(lasting_url) as keep:
        assert_same(await describe_thread(call, play.build(keep.checkpointer)), expected)


async def test_the_first_example_of_the_guide_saves_exactly_these_four_checkpoints(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = letters(saver)
    await call(graph, "invoke", {"foo": ""}, THREAD)
    history = await call.every(graph, "get_state_history", THREAD)
    assert [(state.values, state.next, state.metadata["source"], state.metadata["step"]) for state in history] == [
        ({"foo": "b", "bar": ["a", "b"]}, (), "loop", 2),
        ({"foo": "a", "bar": ["a"]}, ("node_b",), "loop", 1),
        ({"foo": "", "bar": []}, ("node_a",), "loop", 0),
        ({"bar": []}, ("__start__",), "input", -1),
    ]
    assert [state.parent_config for state in history] == [*(state.config for state in history[1:]), None]
    assert len(await call.every(saver, "list", THREAD)) == 4


async def test_get_state_gives_the_latest_or_the_one_that_is_asked_for(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = letters(saver)
    await call(graph, "invoke", {"foo": ""}, THREAD)
    history = await call.every(graph, "get_state_history", THREAD)
    assert await call(graph, "get_state", THREAD) == history[0]
    for state in history:
        assert await call(graph, "get_state", state.config) == state


async def test_history_honours_limit_before_and_filter(saver: threadkeep.KeepSaver, call: Caller) -> None:
    graph = letters(saver)
    await call(graph, "invoke", {"foo": ""}, THREAD)
    history = await call.every(graph, "get_state_history", THREAD)
    assert await call.every(graph, "get_state_history", THREAD, limit=2) == history[:2]
    assert await call.every(graph, "get_state_history", THREAD, before=history[1].config) == history[2:]
    assert await call.every(graph, "get_state_history", THREAD, filter={"source": "input"}) == history[3:]


async def test_replay_from_a_checkpoint_runs_only_what_came_after_it(saver: threadkeep.KeepSaver, call: Caller) -> None:
    ran: Counter[str] = Counter()

    def counting(name: str) -> Callable[[Letters], dict[str, Any]]:
        def node(state: Letters) -> dict[str, Any]:
            ran[name] += 1
            return {"foo": name, "bar": [f"{name}{ran[name]}"]}

        return node

    builder = StateGraph(Letters)
    builder.add_sequence([("a", counting("a")), ("b", counting("b"))])
    builder.add_edge(START, "a")
    graph = builder.compile(checkpointer=saver)
    await call(graph, "invoke", {"foo": ""}, THREAD)
    middle = (await call.every(graph, "get_state_history", THREAD))[1]
    replayed = await call(graph, "invoke", None, middle.config)
    assert replayed["bar"] == ["a1", "b2"]
    assert ran == {"a": 1, "b": 2}
    assert (await call(graph, "get_state", THREAD)).values["bar"] == ["a1", "b2"]
    kept = await call.every(graph, "get_state_history", THREAD)
    assert sorted(state.values["bar"] for state in kept if not state.next) == [["a1", "b1"], ["a1", "b2"]]


async def test_update_state_applies_the_reducers_and_forks_from_the_given_checkpoint(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = letters(saver)
    await call(graph, "invoke", {"foo": "1", "bar": ["a"]}, THREAD)
    first = (await call.every(graph, "get_state_history", THREAD))[-2]
    await call(graph, "update_state", THREAD, {"foo": "2", "bar": ["b"]})
    assert (await call(graph, "get_state", THREAD)).values == {"foo": "2", "bar": ["a", "a", "b", "b"]}
    forked = await call(graph, "update_state", first.config, {"foo": "3", "bar": ["c"]}, as_node="node_a")
    state = await call(graph, "get_state", forked)
    assert (state.values, state.next, state.parent_config) == (
        {"foo": "3", "bar": ["a", "c"]},
        ("node_b",),
        first.config,
    )


async def test_a_copied_checkpoint_has_the_values_of_its_source_and_the_parent_of_its_source(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = letters(saver)
    await call(graph, "invoke", {"foo": "1", "bar": ["in"]}, THREAD)
    for source in await call.every(graph, "get_state_history", THREAD):
        copied = await call(
            graph, "get_state", await call(graph, "update_state", source.config, None, as_node="__copy__")
        )
        assert (copied.values, copied.next, copied.parent_config) == (source.values, source.next, source.parent_config)
        assert copied.metadata["source"] == "fork"
        assert copied.config != source.config


async def test_get_state_reaches_into_interrupted_subgraphs(saver: threadkeep.KeepSaver, call: Caller) -> None:
    graph = nested()(saver)
    await call(graph, "invoke", {"said": ["go"]}, THREAD)
    outer = await call(graph, "get_state", THREAD, subgraphs=True)
    middle = outer.tasks[0].state
    inner = middle.tasks[0].state
    assert (outer.next, middle.next, inner.next) == (("middle",), ("inner",), ("ask",))
    assert (outer.values, middle.values, inner.values) == (
        {"said": ["go"]},
        {"said": ["go", "before"]},
        {"said": ["go", "before"]},
    )
    assert [found.value for found in inner.tasks[0].interrupts] == ["name?"]
    namespaces = [state.config["configurable"]["checkpoint_ns"] for state in (outer, middle, inner)]
    assert namespaces[0] == ""
    assert namespaces[1].startswith("middle:")
    assert namespaces[2].startswith(f"{namespaces[1]}|inner:")
    assert (
        len(await call.every(saver, "list", {"configurable": {"thread_id": "1", "checkpoint_ns": namespaces[1]}})) > 0
    )
    assert await call(graph, "get_state", inner.config) == inner
    done = await call(graph, "invoke", Command(resume="world"), THREAD)
    assert done["said"][-1] == "heard world"


async def test_update_state_of_a_subgraph_reaches_its_parent_on_resume(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = nested()(saver)
    await call(graph, "invoke", {"said": ["go"]}, THREAD)
    outer = await call(graph, "get_state", THREAD, subgraphs=True)
    await call(graph, "update_state", outer.tasks[0].state.config, {"said": ["slipped in"]}, as_node="inner")
    done = await call(graph, "invoke", None, THREAD)
    assert "slipped in" in done["said"]


async def test_a_failed_task_of_a_hundred_is_the_only_one_that_runs_again(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    ran: Counter[int] = Counter()
    broken = threading.Event()
    broken.set()

    def finished_tasks() -> int:
        latest = saver.get_tuple(THREAD)
        return len({task for task, channel, _ in latest.pending_writes or () if channel == "done"}) if latest else 0

    def work(item: dict[str, int]) -> dict[str, Any]:
        ran[item["n"]] += 1
        if item["n"] == 57 and broken.is_set():
            deadline = time.monotonic() + 60
            while finished_tasks() < 99 and time.monotonic() < deadline:
                time.sleep(0.02)
            message = "57 is broken"
            raise RuntimeError(message)
        return {"done": [item["n"]]}

    graph = fan(work)(saver)
    with pytest.raises(RuntimeError, match="57 is broken"):
        await call(graph, "invoke", {"items": list(range(100))}, THREAD)
    state = await call(graph, "get_state", THREAD)
    assert [each.error for each in state.tasks if each.error] == ["RuntimeError('57 is broken')"]
    assert sum(each.result is not None for each in state.tasks) == 99
    broken.clear()
    done = await call(graph, "invoke", None, THREAD)
    assert done["done"] == done["items"] == list(range(100))
    assert ran == {n: 2 if n == 57 else 1 for n in range(100)}


async def test_an_interrupt_waits_in_the_store_until_it_is_answered(lasting_url: str, call: Caller) -> None:
    async with threadkeep.open(lasting_url) as keep:
        interrupted_state = await call(two_questions(keep.checkpointer), "invoke", {"said": ["go"]}, THREAD)
    async with threadkeep.open(lasting_url) as keep:
        graph = two_questions(keep.checkpointer)
        state = await call(graph, "get_state", THREAD)
        assert sorted(state.interrupts, key=str) == sorted(interrupted_state["__interrupt__"], key=str)
        assert all(isinstance(found, Interrupt) for found in state.interrupts)
        answers = {found.id: found.value.upper() for found in state.interrupts}
        done = await call(graph, "invoke", Command(resume=answers), THREAD)
    assert done["said"] == ["go", "left LEFT?", "right RIGHT?", "after"]


@pytest.mark.parametrize(("durability", "checkpoints"), [("sync", 4), ("async", 4), ("exit", 1)])
async def test_durability_decides_which_checkpoints_are_kept(
    saver: threadkeep.KeepSaver, call: Caller, durability: str, checkpoints: int
) -> None:
    graph = letters(saver)
    await call(graph, "invoke", {"foo": ""}, THREAD, durability=durability)
    history = await call.every(graph, "get_state_history", THREAD)
    assert len(history) == checkpoints
    assert history[0].values == {"foo": "b", "bar": ["a", "b"]}
    await call(graph, "invoke", {"foo": ""}, THREAD, durability=durability)
    assert (await call(graph, "get_state", THREAD)).values["bar"] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_an_interrupted_run_is_resumed_in_every_durability(
    saver: threadkeep.KeepSaver, call: Caller, durability: str
) -> None:
    graph = two_questions(saver)
    interrupted_state = await call(graph, "invoke", {"said": ["go"]}, THREAD, durability=durability)
    answers = {found.id: found.value.upper() for found in interrupted_state["__interrupt__"]}
    done = await call(graph, "invoke", Command(resume=answers), THREAD, durability=durability)
    assert done["said"] == ["go", "left LEFT?", "right RIGHT?", "after"]


async def test_a_workflow_has_what_it_saved_and_does_not_repeat_its_tasks(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    ran: Counter[int] = Counter()

    @task
    def slow(n: int) -> int:
        ran[n] += 1
        return n + 1

    @entrypoint(checkpointer=saver)
    def flow(n: int, *, previous: list[int] | None = None) -> Any:
        more = slow(n).result()
        answer = interrupt(f"{more}?")
        seen = [*(previous or []), answer]
        return entrypoint.final(value=sum(seen), save=seen)

    interrupted_state = await call(flow, "invoke", 1, THREAD)
    assert [found.value for found in interrupted_state["__interrupt__"]] == ["2?"]
    assert await call(flow, "invoke", Command(resume=10), THREAD) == 10
    await call(flow, "invoke", 5, THREAD)
    assert await call(flow, "invoke", Command(resume=20), THREAD) == 30
    assert ran == {1: 1, 5: 1}
    assert (await call(flow, "get_state", THREAD)).values == 30


class FakeModel(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> FakeModel:
        return self


@tool
def weather(city: str) -> str:
    """Say what the weather is like."""
    return f"{city}: rain ☔"


def agent(saver: Any) -> Graph:
    said = [
        AIMessage(
            "", id="ai1", tool_calls=[{"name": "weather", "args": {"city": "Kyiv"}, "id": "call1", "type": "tool_call"}]
        ),
        AIMessage("Take an umbrella.", id="ai2"),
        AIMessage("You are welcome.", id="ai3"),
    ]
    return create_agent(FakeModel(messages=iter(said)), tools=[weather], checkpointer=saver)


async def test_an_agent_with_a_tool_remembers_its_conversation(saver: threadkeep.KeepSaver, call: Caller) -> None:
    bot = agent(saver)
    await call(bot, "invoke", {"messages": [HumanMessage("Weather in Kyiv?", id="h1")]}, THREAD)
    done = await call(bot, "invoke", {"messages": [HumanMessage("Thanks", id="h2")]}, THREAD)
    assert [(type(message), message.content) for message in done["messages"]] == [
        (HumanMessage, "Weather in Kyiv?"),
        (AIMessage, ""),
        (ToolMessage, "Kyiv: rain ☔"),
        (AIMessage, "Take an umbrella."),
        (HumanMessage, "Thanks"),
        (AIMessage, "You are welcome."),
    ]
    stored = (await call(bot, "get_state", THREAD)).values["messages"]
    assert stored == done["messages"]
    assert stored[1].tool_calls[0]["args"] == {"city": "Kyiv"}


async def test_an_agents_history_is_that_of_in_memory_saver(saver: threadkeep.KeepSaver, call: Caller) -> None:
    stories = []
    for checkpointer in (saver, InMemorySaver()):
        bot = agent(checkpointer)
        await call(bot, "invoke", {"messages": [HumanMessage("Weather in Kyiv?", id="h1")]}, THREAD)
        told_here = await describe_thread(call, bot)
        for state in told_here:  # ToolNode gives its message a random id
            for message in state["values"].get("messages", []):
                message.id = message.id if not isinstance(message, ToolMessage) else "tool"
            state["tasks"] = [name for name, *_ in state["tasks"]]
        stories.append(told_here)
    assert stories[0] == stories[1]
