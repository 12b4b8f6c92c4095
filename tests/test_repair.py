"""repair rebuilds damaged checkpoints as a new branch, on which a real graph continues, and reports its assumptions."""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, Send, interrupt

import threadkeep
from checkpoint_chains import Chain
from checkpoint_chains import values_of as channel_values
from damage import StoredRows, flip_byte, rows_opener
from sync_async import AsyncCaller, Caller
from test_delta_graphs import appended
from test_delta_graphs import build as delta_graph
from test_serializers import JsonTyped
from threadkeep.cli.app import run
from threadkeep.engine.health.apply_writes import next_version
from threadkeep.engine.log.codec import Codec, Parts
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, NAMES, SHARED, ItemId, unseal_item
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.engine.threads.default_merge import merge_writes
from threadkeep.errors import Corrupt, Missing, ReadOnly

THREAD: dict[str, Any] = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    files: Annotated[dict[str, str], operator.or_]
    log: Annotated[list[str], operator.add]
    turn: int


def build(saver: Any, *, asks: bool = False) -> Any:
    """Build a graph: `model`, then three parallel `work`, then `rest`, which waits for two branches to join."""

    def model(state: State) -> dict[str, Any]:
        n = len(state["messages"])
        reply = AIMessage(f"answer {n} " * 20, id=f"ai{n}")
        removed = [RemoveMessage(id="h0")] if n == 5 else []
        return {"messages": [reply, *removed], "turn": state.get("turn", 0) + 1, "log": [f"model {n}"]}

    def last(state: State) -> dict[str, Any]:
        if asks:
            interrupt("go on?")
        return {"log": ["last"]}

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("work", lambda task: {"log": [f"work {task['n']}"], "files": {f"f{task['n']}": "x" * 400}})
    builder.add_node("left", lambda state: {"files": {"left": "l" * 100}})
    builder.add_node("right", lambda state: {"files": {"right": "r" * 100}})
    builder.add_node("last", last)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: [Send("work", {"n": n}) for n in (1, 0, 2)], ["work"])
    builder.add_edge("model", "left")
    builder.add_edge("model", "right")
    builder.add_edge(["left", "right"], "last")
    return builder.compile(checkpointer=saver)


def run_turns(graph: Any, turns: int = 3) -> list[Any]:
    """Run some turns and return the states, newest first."""
    for n in range(turns):
        graph.invoke({"messages": [HumanMessage(f"question {n} " * 20, id=f"h{n}")]}, THREAD)
    return list(graph.get_state_history(THREAD))


def id_of(state: Any) -> str:
    return str(state.config["configurable"]["checkpoint_id"])


def spoil(rows: StoredRows, *ids: str) -> None:
    for row in rows.root():
        if row.id in ids:
            rows.set_checkpoint(row, row._replace(body=flip_byte(row.body)))


def lose(rows: StoredRows, *ids: str) -> None:
    for row in rows.root():
        if row.id in ids:
            rows.set_checkpoint(row, None)


def spoil_shape(rows: StoredRows, *ids: str) -> None:
    at = ItemId(SHARED, next(row for row in rows.root() if row.id == ids[0]).refs[0].start)
    rows.set_item(at, flip_byte(rows.items()[at]))


WAYS: dict[str, tuple[Callable[..., None], int]] = {
    "its body": (spoil, 1),
    "two bodies": (spoil, 2),
    "four bodies": (spoil, 4),
    "its row is gone": (lose, 1),
    "its shape": (spoil_shape, 1),
}


def test_a_damaged_newest_checkpoint_is_rebuilt_as_it_was_and_the_graph_continues(url: str) -> None:
    """At each step of a run, with the graph's channels and without; for each kind of damage to a checkpoint."""
    rows_of = rows_opener(url)
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = build(keep.checkpointer)
        run_turns(graph, 2)
        states = list(graph.get_state_history(THREAD))
        steps = states[:4]
        quick = url.startswith(("memory", "sqlite"))
        for n, (way, (damage, count)) in enumerate(WAYS.items()):
            for with_graph in (False, True) if quick else (n % 2 == 0,):
                before = steps[n % len(steps)]
                name = f"{way} {with_graph}"
                cut(keep, rows_of, states, before, name)
                config = {"configurable": {"thread_id": name}}
                line = [id_of(state) for state in states[states.index(before) :]]
                damage(rows_of(keep, name), *line[:count])
                repaired = keep.repair(name, graph=graph if with_graph else None)
                assert repaired.damaged == line[0], name
                found = graph.get_state(config)
                assert found.values == before.values, name
                assert found.next == before.next, name
                assert found.metadata["source"] == "fork"
                assert found.metadata["repaired"] == line[0]
                assert found.metadata["step"] == before.metadata["step"]
                assert found.config["configurable"]["checkpoint_id"] == repaired.checkpoint
                assert repaired.checkpoint > max(id_of(state) for state in states)
                went_on = (
                    graph.invoke(None, config)
                    if before.next
                    else graph.invoke({"messages": [HumanMessage("more", id="x")]}, config)
                )
                expected = expectation(keep, rows_of, states, before)
                assert went_on == expected, name
                assert keep.repair(name).damaged is None


def cut(keep: threadkeep.Keep, rows_of: Any, states: list[Any], last: Any, name: str) -> None:
    """Copy the thread up to a checkpoint; later ones are removed with their writes."""
    keep.copy("t", name)
    rows = rows_of(keep, name)
    later = {id_of(state) for state in states[: states.index(last)]} | {id_of(last)}
    for row in rows.root():
        if row.id in later and row.id != id_of(last):
            rows.set_checkpoint(row, None)
    for row in rows.writes():
        if row.checkpoint in later:
            rows.set_writes(row, None)
    rows.set_thread(rows.thread()._replace(top=id_of(last)))


def expectation(keep: threadkeep.Keep, rows_of: Any, states: list[Any], before: Any) -> Any:
    """Return the final state when an undamaged copy of that checkpoint continues."""
    name = f"expected {id_of(before)}"
    graph = build(keep.checkpointer)
    config = {"configurable": {"thread_id": name}}
    if keep.thread(name) is None:
        cut(keep, rows_of, states, before, name)
        graph.invoke(None, config) if before.next else graph.invoke(
            {"messages": [HumanMessage("more", id="x")]}, config
        )
    return graph.get_state(config).values


def message_item(rows: StoredRows, id: str) -> ItemId:
    """Return the last item of a checkpoint's messages."""
    row, items = next(row for row in rows.root() if row.id == id), rows.items()
    family = rows.thread().family
    names = {at.n: unseal_item(at, stored, "", family).data for at, stored in items.items() if at.lane == NAMES}
    lane = next(FIRST_CHANNEL + n for n, name in names.items() if name == b"messages")
    run = [run for run in row.refs if run.lane == lane][-1]
    return ItemId(lane, run.start + run.length - 1)


async def test_what_is_lost_is_omitted_and_reported(url: str, call: Caller) -> None:
    """An item that the write and the channel share is lost for both; the rest of the list is kept."""
    with_graph = isinstance(call, AsyncCaller)
    async with threadkeep.open(url, durability="relaxed") as keep:
        graph = build(keep.checkpointer)
        for n in range(2):
            await call(graph, "invoke", {"messages": [HumanMessage(f"question {n} " * 20, id=f"h{n}")]}, THREAD)
        before = (await call(graph, "get_state", THREAD)).values["messages"]
        rows = rows_opener(url)(keep, "t")
        newest = rows.root()[-1]
        at = message_item(rows, newest.id)
        rows.set_item(at, flip_byte(rows.items()[at]))
        dry = await call(keep, "repair", "t", graph=graph if with_graph else None, dry_run=True)
        repaired = await call(keep, "repair", "t", graph=graph if with_graph else None)
        assert (dry.damaged, dry.checkpoint, dry.channels) == (newest.id, None, repaired.channels)
        assert repaired.channels["messages"] == f"what can be read of it: {len(before) - 1} of {len(before)} elements"
        assert repaired.channels["turn"] == "intact"
        assert any("1 of 4 elements" in said for said in repaired.assumptions)
        assert newest.parent in repaired.affected
        found = (await call(graph, "get_state", THREAD)).values
        assert [message.id for message in found["messages"]] == [message.id for message in before][:-1]
        out = await call(graph, "invoke", {"messages": [HumanMessage("more", id="more")]}, THREAD)
        assert out["turn"] == 3


def test_what_is_left_of_a_list_is_kept_if_the_checkpoint_after_it_is_damaged_too() -> None:
    with threadkeep.open("memory://") as keep:
        graph = build(keep.checkpointer)
        states = run_turns(graph, 2)
        rows = rows_opener("memory://")(keep, "t")
        at = message_item(rows, id_of(states[1]))
        rows.set_item(at, flip_byte(rows.items()[at]))
        spoil(rows, id_of(states[0]))
        repaired = keep.repair("t")
        assert repaired.channels["messages"] == "what can be read of it: 3 of 4 elements"
        assert repaired.channels["log"].startswith("rebuilt from ancestor")
        found = graph.get_state(THREAD)
        before = states[0].values
        assert found.values == {**before, "messages": before["messages"][:-1]}


def test_custom_reducers_need_the_graph(tmp_path: Path) -> None:
    class Scores(TypedDict, total=False):
        best: Annotated[int, lambda old, new: max(old, new)]
        seen: list[int]

    def graph_on(keep: threadkeep.Keep) -> Any:
        builder = StateGraph(Scores)
        builder.add_node("one", lambda state: {"best": 5, "seen": [1]})
        builder.add_node("two", lambda state: {"best": 3, "seen": [2]})
        builder.add_edge(START, "one")
        builder.add_edge("one", "two")
        return builder.compile(checkpointer=keep.checkpointer)

    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = graph_on(keep)
        graph.invoke({"best": 1}, THREAD)
        spoil(rows_opener(url)(keep, "t"), id_of(graph.get_state(THREAD)))
        keep.repair("t", graph=graph)
        assert graph.get_state(THREAD).values == {"best": 5, "seen": [2]}
        spoil(rows_opener(url)(keep, "t"), id_of(graph.get_state(THREAD)))
        result = keep.repair("t")
        assert graph.get_state(THREAD).values == {"best": 3, "seen": [1, 2]}
        assert any("default rule" in said for said in result.assumptions)


def test_delta_channels_are_rebuilt(url: str) -> None:
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = delta_graph(keep.checkpointer, frequency=3)
        for n in range(3):
            graph.invoke({"messages": [HumanMessage(f"question {n}", id=f"h{n}")]}, THREAD)
        before = graph.get_state(THREAD)
        line = [id_of(state) for state in graph.get_state_history(THREAD)]
        for count, with_graph in ((1, False), (3, False), (1, True), (3, True)):
            name = f"damaged {count} {with_graph}"
            keep.copy("t", name)
            config = {"configurable": {"thread_id": name}}
            spoil(rows_opener(url)(keep, name), *line[:count])
            repaired = keep.repair(name, graph=graph if with_graph else None)
            assert graph.get_state(config).values == before.values, count
            assert repaired.damaged == line[0]
            assert graph.invoke({"messages": [HumanMessage("more", id="more")]}, config)["turn"] == 4


def test_a_delta_channel_whose_writes_are_damaged_is_damage_of_the_checkpoints_after_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = delta_graph(keep.checkpointer, frequency=100)
        for n in range(2):
            graph.invoke({"messages": [HumanMessage(f"question {n} " * 30, id=f"h{n}")]}, THREAD)
        rows = rows_opener(url)(keep, "t")
        wrote = next(row for row in rows.writes() if any(run.lane > SHARED for run in row.refs))
        rows.set_writes(wrote, wrote._replace(body=flip_byte(wrote.body)))
        with pytest.raises(Corrupt):
            threadkeep.open(url).checkpointer.get_delta_channel_history(
                config=graph.get_state(THREAD).config, channels=["messages"]
            )
        repaired = keep.repair("t")
        assert repaired.damaged is not None
        assert any("missing in it" in said for said in repaired.assumptions)
        assert graph.invoke({"messages": [HumanMessage("more", id="more")]}, THREAD)["turn"] == 3


def test_what_delta_channels_are_rebuilt_through_is_damage_of_the_checkpoints_after_it() -> None:
    with threadkeep.open("memory://") as keep:
        graph = delta_graph(keep.checkpointer, frequency=3)
        for n in range(3):
            graph.invoke({"messages": [HumanMessage(f"question {n} " * 30, id=f"h{n}")]}, THREAD)
        before = graph.get_state(THREAD)
        line = [id_of(state) for state in graph.get_state_history(THREAD)]
        for n, id in enumerate(line):
            keep.copy("t", f"t{n}")
            config = {"configurable": {"thread_id": f"t{n}"}}
            rows = rows_opener("memory://")(keep, f"t{n}")
            row = next(row for row in rows.root() if row.id == id)
            rows.set_checkpoint(row, row._replace(body=flip_byte(row.body)))
            keep.repair(f"t{n}")
            assert graph.get_state(config).values == before.values, id
            assert graph.invoke({"messages": [HumanMessage("more", id="more")]}, config)["turn"] == 4
        for n, at in enumerate(at for at in rows_opener("memory://")(keep, "t").items() if at.lane > SHARED):
            keep.copy("t", f"item {n}")
            rows = rows_opener("memory://")(keep, f"item {n}")
            rows.set_item(at, flip_byte(rows.items()[at]))
            keep.repair(f"item {n}")
            assert graph.get_state({"configurable": {"thread_id": f"item {n}"}}).values["turn"] == 3, "it can be read"


def test_an_interrupted_thread_waits_again(url: str) -> None:
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = build(keep.checkpointer, asks=True)
        graph.invoke({"messages": [HumanMessage("question", id="h0")]}, THREAD)
        before = graph.get_state(THREAD)
        assert before.next == ("last",)
        spoil(rows_opener(url)(keep, "t"), id_of(before))
        repaired = keep.repair("t")
        assert any("run again" in said for said in repaired.assumptions)
        assert (graph.get_state(THREAD).next, graph.get_state(THREAD).values) == (before.next, before.values)
        assert "__interrupt__" in graph.invoke(None, THREAD)
        assert graph.invoke(Command(resume="yes"), THREAD)["log"][-1] == "last"


@pytest.mark.parametrize("lost", ["row", "item"])
def test_a_thread_whose_pending_writes_are_damaged_waits_again(lost: str) -> None:
    with threadkeep.open("memory://") as keep:
        graph = build(keep.checkpointer, asks=True)
        graph.invoke({"messages": [HumanMessage("question", id="h0")]}, THREAD)
        before = graph.get_state(THREAD)
        keep.checkpointer.put_writes(before.config, [("log", ["long " * 300])], "another")
        rows = rows_opener("memory://")(keep, "t")
        wrote = [row for row in rows.writes() if row.checkpoint == id_of(before)]
        if lost == "row":
            rows.set_writes(wrote[0], wrote[0]._replace(body=flip_byte(wrote[0].body)))
        else:
            run = next(run for row in wrote for run in row.refs if run.lane > SHARED)
            rows.set_item(ItemId(run.lane, run.start), None)
        repaired = keep.repair("t")
        assert repaired.damaged == id_of(before)
        assert any("run again" in said for said in repaired.assumptions)
        assert (graph.get_state(THREAD).next, graph.get_state(THREAD).values) == (before.next, before.values)
        assert "__interrupt__" in graph.invoke(None, THREAD)
        assert keep.repair("t").damaged is None


def test_an_item_with_an_enormous_number_of_its_lane_is_only_one_that_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = build(keep.checkpointer)
        graph.invoke({"messages": [HumanMessage("question " * 30, id="h0")]}, THREAD)
        rows: Any = rows_opener(url)(keep, "t")
        at = message_item(rows, rows.root()[-1].id)
        rows.execute(f"UPDATE tk_items SET lane = {1 << 40} WHERE lane = {at.lane} AND n = {at.n}", {})
        assert keep.repair("t").checkpoint is not None
        assert [message.id for message in graph.get_state(THREAD).values["messages"]] == ["h0"]


def test_writes_of_another_branch_are_not_taken_in(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = build(keep.checkpointer)
        states = run_turns(graph, 1)
        ran = graph.get_state(THREAD)
        graph.update_state(states[1].config, {"log": ["by hand"]}, as_node="model")
        updated = graph.get_state(THREAD)
        rows = rows_opener(url)(keep, "t")
        spoil(rows, id_of(updated), id_of(ran))
        repaired = keep.repair("t")
        assert repaired.damaged == id_of(updated)
        assert graph.get_state(THREAD).values == states[1].values
        assert any("update_state" in said for said in repaired.assumptions)
        repaired = keep.repair("t", id_of(ran))
        assert graph.get_state(THREAD).values == ran.values
        assert any("children" in said for said in repaired.assumptions)


def test_what_cannot_be_repaired_is_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, durability="relaxed") as keep:
        graph = build(keep.checkpointer)
        states = run_turns(graph, 1)
        for copy in ("names", "all", "row"):
            keep.copy("t", copy)
        assert keep.repair("t") == threadkeep.RepairResult("t", "graph", "", None)
        with pytest.raises(Missing, match="'nobody'"):
            keep.repair("nobody")
        with pytest.raises(Missing, match="'nothing'"):
            keep.repair("t", "nothing")
        with pytest.raises(ValueError, match="begin or end with '1'"):
            keep.repair("t", "1")
        with pytest.raises(Missing, match="latest~99"):
            keep.repair("t", "latest~99")
        one, other = (keep.repair("t", ref, dry_run=True) for ref in ("latest~1", id_of(states[1])[-12:]))
        assert one == other
        with pytest.raises(TypeError, match="compiled LangGraph graph"):
            keep.repair("t", graph="no graph")
        rows = rows_opener(url)(keep, "names")
        rows.set_item(ItemId(NAMES, 2), flip_byte(rows.items()[ItemId(NAMES, 2)]))
        with pytest.raises(Corrupt, match="names of channels or nodes are damaged"):
            keep.repair("names")
        spoil(rows_opener(url)(keep, "all"), *map(id_of, states))
        with pytest.raises(Corrupt, match="no checkpoint before it can be read"):
            keep.repair("all")
        rows = rows_opener(url)(keep, "row")
        rows.execute(
            "UPDATE tk_threads SET nexts = :bad WHERE thread = :number", {"number": rows.number, "bad": b"\xff"}
        )  # type: ignore[attr-defined]
        assert "nexts" in keep.repair("row").thread_row
        assert keep.verify("row").ok
        spoil(rows_opener(url)(keep, "t"), id_of(states[0]))
        other = StateGraph(State).add_node("else", lambda state: {}).add_edge(START, "else").compile()
        with pytest.raises(ValueError, match="not the thread's graph"):
            keep.repair("t", graph=other)
        with threadkeep.open(url, read_only=True) as looking:
            assert looking.repair("t", dry_run=True).damaged == id_of(states[0])
            with pytest.raises(ReadOnly):
                looking.repair("t")


def test_a_subgraphs_checkpoint_is_repaired_in_its_namespace(tmp_path: Path) -> None:
    class Inner(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, durability="relaxed") as keep:
        inner = StateGraph(Inner)
        inner.add_node("a", lambda state: {"log": ["a"]})
        inner.add_node("b", lambda state: {"log": [str(interrupt("?"))]})
        inner.add_edge(START, "a")
        inner.add_edge("a", "b")
        outer = (
            StateGraph(Inner)
            .add_node("inner", inner.compile())
            .add_edge(START, "inner")
            .compile(checkpointer=keep.checkpointer)
        )
        outer.invoke({"log": ["in"]}, THREAD)
        rows = rows_opener(url)(keep, "t")
        damaged = max((row for row in rows.checkpoints() if row.ns), key=lambda row: row.id)
        rows.set_checkpoint(damaged, damaged._replace(body=flip_byte(damaged.body)))
        assert keep.repair("t").damaged is None
        repaired = keep.repair("t", ns=damaged.ns)
        assert (repaired.damaged, repaired.ns) == (damaged.id, damaged.ns)
        found = keep.checkpointer.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": damaged.ns}})
        assert found is not None
        assert found.checkpoint["channel_values"]["log"] == ["in", "a"]


async def test_a_cube_thread_is_repaired_with_the_messages_that_can_be_read(url: str) -> None:
    def said(n: int) -> UserMessage:
        return UserMessage(content=[TextContent(text=f"message {n} " * 40)], metadata={"id": f"m{n}"})

    async with threadkeep.open(url, durability="relaxed") as keep:
        for n in range(8):
            await keep.cube.append("talk", [said(n)])
        await keep.cube.save_extra("talk", {"mood": "good"})
        await keep.acopy("talk", "row")
        whole = await keep.cube.load("talk")
        rows_of = rows_opener(url)
        rows = rows_of(keep, "talk", "cube")
        newest = rows.root()[-1]
        at = message_item(rows, newest.id)
        rows.set_item(at, flip_byte(rows.items()[at]))
        repaired = await keep.arepair("talk")
        assert repaired.channels["messages"] == "what can be read of it: 7 of 8 messages"
        mended = await keep.cube.load("talk")
        assert [each.content for each in mended.messages] == [each.content for each in whole.messages[:-1]]
        assert mended.extra == {"mood": "good"}
        await keep.cube.append("talk", [said(9)])
        assert len((await keep.cube.load("talk")).messages) == 8
        assert {problem.problem for problem in (await keep.averify("talk")).problems} == {"checksum"}
        assert (await keep.arepair("talk", discard=True)).discarded == [("", newest.id)]
        assert (await keep.averify("talk")).ok
        assert len((await keep.cube.load("talk")).messages) == 8
        rows = rows_of(keep, "row", "cube")
        newest = rows.root()[-1]
        rows.set_checkpoint(newest, newest._replace(body=flip_byte(newest.body)))
        repaired = await keep.arepair("row")
        assert (repaired.damaged, repaired.parent) == (newest.id, newest.parent)
        assert len((await keep.cube.load("row")).messages) == 7
        assert [each.id for each in await keep.alog("row") if each.damaged] == [newest.id]
        assert (await keep.aprune("row", kind="cube")).damaged == ("row",)
        assert (await keep.arepair("row", discard=True)).discarded == [("", newest.id)]
        assert (await keep.averify("row")).ok
        await keep.cube.claim_run("row", "run")
        rows = rows_of(keep, "row", "cube")
        newest = rows.root()[-1]
        rows.set_checkpoint(newest, newest._replace(body=flip_byte(newest.body)))
        with pytest.raises(Corrupt):
            await keep.cube.load("row")
        assert (await keep.arepair("row", discard=True)).discarded == [("", newest.id)]
        assert (await keep.averify("row")).ok
        assert len((await keep.cube.load("row")).messages) == 7
        with pytest.raises(ValueError, match="CubeLoop thread"):
            await keep.arepair("row", ns="a")


OVERWRITES: dict[str, Any] = {
    "instance": Overwrite(["z"]),
    "one key": {"__overwrite__": ["z"]},
    "as JSON": {"value": ["z"], "type": "__overwrite__"},
    "as JSON, with more": {"type": "__overwrite__", "more": "x" * 2000, "value": ["z"]},
}


def test_show_diff_blame_and_repair_agree_on_every_form_of_overwrite(url: str) -> None:
    """A delta channel is rebuilt from its writes, as LangGraph's channel does."""
    with threadkeep.open(url, durability="relaxed") as keep:
        for form, overwrite in OVERWRITES.items():
            chain, counted = Chain(keep.checkpointer, form), {"counters_since_delta_snapshot": {"log": (1, 1)}}
            first = chain.put({"log": ["a", "b"]})
            second, third = [
                keep.checkpointer.put(parent, {**checkpoint, "channel_values": {}}, new_metadata, {})
                for parent, checkpoint, new_metadata, _ in (chain.next({"log": n}, **counted) for n in range(2))
            ]
            keep.checkpointer.put_writes(first, [("log", overwrite)], "task", "~__pregel_pull, second")
            keep.checkpointer.put_writes(second, [("log", ["y"])], "task", "~__pregel_pull, third")
            history = keep.checkpointer.get_delta_channel_history(config=third, channels=["log"])["log"]
            channel = DeltaChannel(appended).from_checkpoint(history["seed"])
            channel.replay_writes(history["writes"])
            assert channel.get() == ["z", "y"], "what LangGraph makes of it"
            ids = [each["configurable"]["checkpoint_id"] for each in (first, second, third)]
            assert [keep.show(form, id).values["log"] for id in ids] == [["a", "b"], ["z"], ["z", "y"]]
            (differing,) = keep.diff(form, ids[0], ids[1]).channels
            assert sorted((each.change, each.path) for each in differing.changes) == [
                ("changed", "log[0]"),
                ("removed", "log[1]"),
            ]
            wrote = keep.blame(form, "log[0]").write
            assert wrote is not None
            assert wrote.node == "second"
            spoil(rows_opener(url)(keep, form), ids[2])
            keep.repair(form)
            assert channel_values(keep.checkpointer, form)["log"].value == ["z", "y"], "a snapshot"


@pytest.mark.parametrize("serde", [None, JsonTyped()], ids=["msgpack", "json"])
def test_show_and_repair_agree_on_a_delta_channel_that_starts_from_a_small_dict(serde: Any) -> None:
    with threadkeep.open("memory://", serde=serde) as keep:
        chain, counted = Chain(keep.checkpointer), {"counters_since_delta_snapshot": {"files": (1, 1)}}
        first = chain.put({"files": {"a": 1} if serde else _DeltaSnapshot({"a": 1})})
        parent, checkpoint, new_metadata, _ = chain.next({"files": "changed"}, **counted)
        second = keep.checkpointer.put(parent, {**checkpoint, "channel_values": {}}, new_metadata, {})
        keep.checkpointer.put_writes(first, [("files", {"b": [2]})], "task")
        assert keep.show("t").values["files"] == {"a": 1, "b": [2]}
        spoil(rows_opener("memory://")(keep, "t"), second["configurable"]["checkpoint_id"])
        keep.repair("t")
        found = channel_values(keep.checkpointer)["files"]
        assert (found.value if isinstance(found, _DeltaSnapshot) else found) == {"a": 1, "b": [2]}


CODEC = Codec(KeepSerializer())


def value(parts: Parts | None) -> Any:
    assert parts is not None
    return CODEC.decode(parts.kind, parts.tag, len(parts.parts), b"".join(parts.parts), snapshot=False, what="it")


HUMAN, AI = HumanMessage("a", id="1"), AIMessage("b" * 600, id="2")
MERGES: list[tuple[Any, list[Any], Any]] = [
    ([1, 2], [[3], 4], [1, 2, 3, 4]),
    (None, [[3], [4]], [3, 4]),
    ([], [[]], []),
    ({"a": 1, "b": {"c": 1}}, [{"b": 2}, {"d": 3}], {"a": 1, "b": 2, "d": 3}),
    (dict.fromkeys(range(20), "x" * 100), [{3: "y"}], {**dict.fromkeys(range(20), "x" * 100), 3: "y"}),
    (5, [6, 7], 7),
    ("text", [None], None),
    ([1], [None], None),
    ({"a": 1}, [[1]], [1]),
    (
        [HUMAN, AI],
        [[AIMessage("c", id="2"), HumanMessage("d", id="3")]],
        [HUMAN, AIMessage("c", id="2"), HumanMessage("d", id="3")],
    ),
    ([HUMAN, AI], [RemoveMessage(id="1"), HumanMessage("e", id="4")], [AI, HumanMessage("e", id="4")]),
    ([HUMAN, AI], [[RemoveMessage(id="__remove_all__"), HumanMessage("f", id="5")]], [HumanMessage("f", id="5")]),
    ([HUMAN], [Overwrite([AI])], [AI]),
    ([HUMAN], [{"__overwrite__": [1]}, [2]], [1, 2]),
    ([HUMAN], [{"value": [AI], "type": "__overwrite__"}, HUMAN], [AI, HUMAN]),
    ([1], [{"value": [2], "type": "other"}], [1, {"value": [2], "type": "other"}]),
    ([1], [{"__overwrite__": [2], "more": 3}], [1, {"__overwrite__": [2], "more": 3}]),
    ([1], [Overwrite({"__overwrite__": 2})], {"__overwrite__": 2}),
    ({"a": 1}, [Overwrite(None), {"b": 2}], {"b": 2}),
]


@pytest.mark.parametrize(("base", "writes", "expected"), MERGES, ids=range(len(MERGES)))
def test_the_default_merge(base: Any, writes: list[Any], expected: Any) -> None:
    found = merge_writes(CODEC.encode(base) if base is not None else None, [CODEC.encode(write) for write in writes])
    assert value(found) == expected


@pytest.mark.parametrize("form", OVERWRITES)
def test_the_default_merge_overwrites_where_langgraph_does(form: str) -> None:
    channel = BinaryOperatorAggregate(list, operator.add).from_checkpoint(["a"])
    channel.update([OVERWRITES[form]])
    assert value(merge_writes(CODEC.encode(["a"]), [CODEC.encode(OVERWRITES[form])])) == channel.get() == ["z"]


def test_versions_continue() -> None:
    assert next_version([]) == 1
    assert next_version([1, 7, 3]) == 8
    after = next_version([f"{3:032}.0123", f"{12:032}.0001"])
    assert (after > f"{12:032}.9999", int(after.split(".")[0])) == (True, 13)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        states = run_turns(build(keep.checkpointer), 1)
        keep.copy("t", "other\x1b[31m")
        where = ["--url", str(path)]
        assert run(["verify", *where]) == 0
        assert "no problems: checked 2 threads" in capsys.readouterr().out
        spoil(rows_opener(f"sqlite:///{path}")(keep, "t"), id_of(states[0]))
        spoil(rows_opener(f"sqlite:///{path}")(keep, "other\x1b[31m"), id_of(states[0]))
    assert run(["verify", *where]) == 1
    out = capsys.readouterr().out
    assert "2 problems" in out
    assert "\x1b[31m" not in out.replace("\x1b[31mchecksum", "")
    assert run(["verify", "t", *where, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [(each["problem"], each["thread"], each["checkpoint"]) for each in result["problems"]] == [
        ("checksum", "t", id_of(states[0]))
    ]
    assert run(["verify", "nobody", *where]) == 1
    assert run(["repair", "t", *where, "--dry-run"]) == 0
    assert f"would repair {id_of(states[0])}" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").write_text("from test_repair import build\n\ndef graph():\n    return build(None)\n")
    assert run(["repair", "t", *where, "--graph", "nothing"]) == 2
    assert run(["repair", "t", *where, "--graph", "my_agent:nothing"]) == 2
    assert run(["repair", "t", *where, "--graph", "my_agent:graph", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damaged"] == id_of(states[0])
    assert run(["repair", "t", *where]) == 0
    assert "nothing to repair" in capsys.readouterr().out


@pytest.mark.parametrize("delta", [False, True])
def test_whatever_is_damaged_a_thread_is_repaired_or_refused_and_a_repaired_one_continues(delta: bool) -> None:
    rows_of, chance = rows_opener("memory://"), random.Random(5)
    with threadkeep.open("memory://") as keep:
        graph = delta_graph(keep.checkpointer, frequency=3) if delta else build(keep.checkpointer)
        for n in range(3):
            graph.invoke({"messages": [HumanMessage(f"question {n} " * 30, id=f"h{n}")]}, THREAD)
        went_on = 0
        for n in range(40):
            keep.copy("t", f"t{n}")
            config, rows = {"configurable": {"thread_id": f"t{n}"}}, rows_of(keep, f"t{n}")
            for _ in range(chance.choice([1, 1, 2, 4])):
                chance.choice([spoil_an_item, spoil_a_checkpoint, spoil_a_write])(rows, chance)
            try:
                repaired = keep.repair(f"t{n}", graph=graph if n % 2 else None)
            except Corrupt:
                continue
            more = [HumanMessage("more", id="more"), HumanMessage("again", id="h0")]
            assert graph.invoke({"messages": more}, config)["messages"], "also if it says that the newest is intact"
            went_on += repaired.damaged is not None
        assert went_on > 10


def spoil_an_item(rows: StoredRows, chance: random.Random) -> None:
    items = rows.items()
    at = chance.choice([at for at in items if at.lane != NAMES])
    rows.set_item(at, chance.choice([None, flip_byte(items[at], chance.random())]))


def spoil_a_checkpoint(rows: StoredRows, chance: random.Random) -> None:
    row = chance.choice(rows.root()[-5:])
    rows.set_checkpoint(row, chance.choice([None, row._replace(body=flip_byte(row.body, chance.random()))]))


def spoil_a_write(rows: StoredRows, chance: random.Random) -> None:
    row = chance.choice(rows.writes())
    rows.set_writes(row, chance.choice([None, row._replace(body=flip_byte(row.body, chance.random()))]))
