"""Graphs with messages in a DeltaChannel: values survive other savers, forks, prunes, deleted runs and copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, Send, interrupt

import threadkeep
from sync_async import Caller

THREAD: dict[str, Any] = {"configurable": {"thread_id": "1"}}


def in_turn(state: Any, writes: Sequence[Any]) -> Any:
    for write in writes:
        state = add_messages(state, write)
    return state


def appended(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


def build(saver: Any, *, frequency: int = 4) -> Any:
    """Build a graph: `messages` and `log` are delta channels, `turn` is not; three `work` tasks run in parallel."""

    messages = Annotated[list[Any], DeltaChannel(in_turn, snapshot_frequency=frequency)]
    log = Annotated[list[Any], DeltaChannel(appended, snapshot_frequency=1000)]
    State = TypedDict("State", {"messages": messages, "log": log, "turn": int}, total=False)  # noqa: UP013

    def answer(state: Any) -> dict[str, Any]:
        n = len(state["messages"])
        return {
            "messages": [AIMessage(f"answer {n}", id=f"ai{n}")],
            "turn": state.get("turn", 0) + 1,
            "log": ["answer"],
        }

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_node("work", lambda task: {"log": [f"work {task['n']}"]})
    builder.add_node("rest", lambda state: {})
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", lambda state: [Send("work", {"n": n}) for n in (2, 0, 1)], ["work"])
    builder.add_edge("work", "rest")
    return builder.compile(checkpointer=saver)


async def turns(
    call: Caller, graph: Any, count: int, *, start: int = 0, config: dict[str, Any] = THREAD, **options: Any
) -> None:
    for n in range(start, start + count):
        await call(graph, "invoke", {"messages": [HumanMessage(f"question {n}", id=f"human{n}")]}, config, **options)


async def values(call: Caller, graph: Any, config: dict[str, Any] = THREAD) -> Any:
    return (await call(graph, "get_state", config)).values


async def history(call: Caller, graph: Any) -> list[Any]:
    """Return values, next, and metadata without ids, including the counters of delta channels."""
    return [
        (state.values, state.next, state.metadata) for state in await call.every(graph, "get_state_history", THREAD)
    ]


async def peer_after(call: Caller, count: int, **options: Any) -> Any:
    peer = build(InMemorySaver())
    await turns(call, peer, count, **options)
    return await values(call, peer)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("frequency", [1, 2, 4, 1000])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_delta_graph_has_the_history_that_in_memory_saver_gives_it(
    saver: threadkeep.KeepSaver, call: Caller, frequency: int, durability: str
) -> None:
    graph, peer = build(saver, frequency=frequency), build(InMemorySaver(), frequency=frequency)
    for each in (graph, peer):
        await turns(call, each, 5, durability=durability)
    assert await history(call, graph) == await history(call, peer)
    assert (await values(call, graph))["log"] == ["answer", "work 2", "work 0", "work 1"] * 5


async def test_a_delta_graph_continues_in_another_keep(lasting_url: str, call: Caller) -> None:
    for n in range(6):
        async with threadkeep.open(lasting_url) as keep:
            await turns(call, build(keep.checkpointer), 1, start=n)
    async with threadkeep.open(lasting_url) as keep:
        assert await values(call, build(keep.checkpointer)) == await peer_after(call, 6)


async def test_every_state_of_a_delta_graph_is_read_by_its_id(saver: threadkeep.KeepSaver, call: Caller) -> None:
    graph = build(saver)
    await turns(call, graph, 4)
    for state in await call.every(graph, "get_state_history", THREAD):
        assert await call(graph, "get_state", state.config) == state


async def test_a_fork_of_a_delta_graph_has_only_its_own_branch(saver: threadkeep.KeepSaver, call: Caller) -> None:
    graph, peer = build(saver), build(InMemorySaver())
    for each in (graph, peer):
        await turns(call, each, 4)
        old = next(
            state
            for state in await call.every(each, "get_state_history", THREAD)
            if not state.next and state.values["turn"] == 2
        )
        await turns(call, each, 2, start=50, config=old.config)
        await turns(call, each, 2, start=60)
        await call(
            each, "update_state", old.config, {"messages": [HumanMessage("by hand", id="hand")]}, as_node="answer"
        )
        await call(each, "invoke", None, THREAD)
    assert await history(call, graph) == await history(call, peer)


async def test_a_copied_checkpoint_of_a_delta_graph_has_its_value(saver: threadkeep.KeepSaver, call: Caller) -> None:
    graph = build(saver)
    await turns(call, graph, 3)
    for source in await call.every(graph, "get_state_history", THREAD):
        copied = await call(graph, "update_state", source.config, None, as_node="__copy__")
        assert await values(call, graph, copied) == source.values


async def test_edits_removals_and_overwrites_reach_a_delta_channel(saver: threadkeep.KeepSaver, call: Caller) -> None:
    graph, peer = build(saver), build(InMemorySaver())
    for each in (graph, peer):
        await turns(call, each, 3)
        await call(each, "invoke", {"messages": [HumanMessage("edited", id="human1"), RemoveMessage("human0")]}, THREAD)
        await call(each, "update_state", THREAD, {"log": Overwrite(["reset"])}, as_node="answer")
        await call(each, "invoke", None, THREAD)
        await turns(call, each, 1, start=9)
    assert await history(call, graph) == await history(call, peer)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("frequency", [1, 4, 1000])
async def test_a_pruned_delta_graph_keeps_its_value_and_continues(
    saver: threadkeep.KeepSaver, call: Caller, frequency: int
) -> None:
    graph = build(saver, frequency=frequency)
    for n in range(6):
        await turns(call, graph, 1, start=n)
        before = await call(graph, "get_state", THREAD)
        await call(saver, "prune", ["1"])
        after = await call(graph, "get_state", THREAD)
        assert (after.values, after.next, after.config) == (before.values, before.next, before.config)
        assert len(await call.every(graph, "get_state_history", THREAD)) == 1
    assert await values(call, graph) == await peer_after(call, 6)


class Asked(TypedDict, total=False):
    log: Annotated[list[Any], DeltaChannel(appended)]


def asking(saver: Any) -> Any:
    """`left` interrupts while `right` continues."""
    builder = StateGraph(Asked)
    builder.add_node("before", lambda state: {"log": ["before"]})
    builder.add_node("left", lambda state: {"log": ["left " + interrupt("left?")]})
    builder.add_node("right", lambda state: {"log": ["right"]})
    builder.add_edge(START, "before")
    builder.add_edge("before", "left")
    builder.add_edge("before", "right")
    return builder.compile(checkpointer=saver)


async def test_a_prune_between_question_and_answer_keeps_the_question(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = asking(saver)
    await call(graph, "invoke", {"log": ["in"]}, THREAD)
    await call(saver, "prune", ["1"])
    state = await call(graph, "get_state", THREAD)
    assert [found.value for found in state.interrupts] == ["left?"]
    done = await call(graph, "invoke", Command(resume="yes"), THREAD)
    assert done["log"] == ["in", "before", "left yes", "right"]


def by(run: str) -> dict[str, Any]:
    """Return the config of a run. In exit mode, and on resume, it leaves writes on the previous run's checkpoint."""
    return {"configurable": {"thread_id": "1"}, "metadata": {"run_id": run}}


each_frequency = pytest.mark.parametrize("frequency", [1, 3, 4, 1000])
each_durability = pytest.mark.parametrize("durability", ["sync", "exit"])


@pytest.mark.sampled(2)
@each_frequency
@each_durability
async def test_deleting_the_last_run_of_a_delta_graph_brings_back_the_value_before_it(
    saver: threadkeep.KeepSaver, call: Caller, frequency: int, durability: str
) -> None:
    graph = build(saver, frequency=frequency)
    for n in range(4):
        await turns(call, graph, 1, start=n, config=by(f"run{n}"), durability=durability)
    await call(saver, "delete_for_runs", ["run3"])
    assert await values(call, graph) == await peer_after(call, 3)
    await turns(call, graph, 2, start=3, durability=durability)
    assert await values(call, graph) == await peer_after(call, 5)


@pytest.mark.sampled(2)
@each_frequency
@each_durability
async def test_deleting_earlier_runs_of_a_delta_graph_keeps_the_values_after_them(
    saver: threadkeep.KeepSaver, call: Caller, frequency: int, durability: str
) -> None:
    graph = build(saver, frequency=frequency)
    for n in range(5):
        await turns(call, graph, 1, start=n, config=by(f"run{n}"), durability=durability)
    history = await call.every(graph, "get_state_history", THREAD)
    kept = [state for state in history if state.metadata["run_id"] not in {"run0", "run2"}]
    await call(saver, "delete_for_runs", ["run0", "run2"])
    left = await call.every(graph, "get_state_history", THREAD)
    assert [(state.config, state.values) for state in left] == [(state.config, state.values) for state in kept]
    await turns(call, graph, 1, start=5, durability=durability)
    assert await values(call, graph) == await peer_after(call, 6)


async def test_deleting_the_run_that_answered_a_question_keeps_the_value_after_it(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = asking(saver)
    await call(graph, "invoke", {"log": ["in"]}, by("asks"))
    await call(graph, "invoke", Command(resume="yes"), by("answers"))
    await call(graph, "invoke", {"log": ["again"]}, by("goes on"))
    before = (await values(call, graph))["log"]
    assert before == ["in", "before", "left yes", "right", "again", "before", "right"]
    await call(saver, "delete_for_runs", ["answers"])
    assert (await values(call, graph))["log"] == before
    done = await call(graph, "invoke", Command(resume="no"), by("last"))
    assert done["log"] == ["in", "before", "left yes", "right", "again", "before", "left no", "right"]


async def test_deleting_the_run_that_answered_a_question_brings_the_question_back(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    graph = asking(saver)
    await call(graph, "invoke", {"log": ["in"]}, by("asks"))
    before = await call(graph, "get_state", THREAD)
    await call(graph, "invoke", Command(resume="yes"), by("answers"))
    await call(saver, "delete_for_runs", ["answers"])
    after = await call(graph, "get_state", THREAD)
    assert (after.values, after.next, after.interrupts) == (before.values, before.next, before.interrupts)
    done = await call(graph, "invoke", Command(resume="no"), by("answers again"))
    assert done["log"] == ["in", "before", "left no", "right"]


async def test_a_copy_of_a_delta_graph_continues_alone(saver: threadkeep.KeepSaver, call: Caller) -> None:
    graph = build(saver)
    copy: dict[str, Any] = {"configurable": {"thread_id": "copy"}}
    await turns(call, graph, 3)
    await call(saver, "copy_thread", "1", "copy")
    await turns(call, graph, 1, start=70)
    await call(saver, "delete_thread", "1")
    await turns(call, graph, 3, start=3, config=copy)
    assert await values(call, graph, copy) == await peer_after(call, 6)


async def test_a_thread_may_turn_from_a_plain_channel_to_a_delta_channel_and_back(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    class Plain(TypedDict, total=False):
        log: Annotated[list[Any], lambda old, new: [*old, *new]]

    class Delta(TypedDict, total=False):
        log: Annotated[list[Any], DeltaChannel(appended)]

    for n, schema in enumerate([Plain, Plain, Delta, Delta, Plain, Delta]):
        builder = StateGraph(schema)
        builder.add_node("node", lambda state: {"log": [f"after {len(state['log'])}"]})
        builder.add_edge(START, "node")
        done = await call(builder.compile(checkpointer=saver), "invoke", {"log": [n]}, THREAD)
        assert len(done["log"]) == 2 * (n + 1)
        await call(saver, "prune", ["1"])
    assert done["log"] == [0, "after 1", 1, "after 3", 2, "after 5", 3, "after 7", 4, "after 9", 5, "after 11"]
