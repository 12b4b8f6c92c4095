"""log, show, tree, find, diff and blame agree with what graphs report themselves, on every backend."""

from __future__ import annotations

import asyncio
import json
import pickle
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import example_threads
import threadkeep
from checkpoint_chains import Chain
from example_threads import config_of
from graph_scenarios import SCENARIOS, THREAD
from sync_async import AsyncCaller, SyncCaller
from test_delta_graphs import build as delta_graph
from test_delta_graphs import turns
from threadkeep.engine.history import paths
from threadkeep.engine.history.show import short_ids
from threadkeep.engine.history.value_diff import changes, pair_elements
from threadkeep.engine.log.plain import plain
from threadkeep.errors import Corrupt, Missing

CALLERS = (SyncCaller(), AsyncCaller())
SERDE = JsonPlusSerializer()


def as_plain(value: Any) -> Any:
    """Return what the serializer stores of a value, as plain data."""
    return plain(*SERDE.dumps_typed(value))


async def both(keep: threadkeep.Keep, verb: str, *args: Any, **options: Any) -> Any:
    """Return a verb's result, after checking that sync and async are the same."""
    one, other = [await call(keep, verb, *args, **options) for call in CALLERS]
    assert one == other
    return one


# --- compared with graphs


@pytest.mark.parametrize("name", [*SCENARIOS, "delta", "delta, snapshots"])
async def test_a_checkpoint_shows_what_its_graph_reports(name: str) -> None:
    async with threadkeep.open("memory://") as keep:
        if name in SCENARIOS:
            graph = SCENARIOS[name].build(keep.checkpointer)
            await SCENARIOS[name].run(AsyncCaller(), graph)
        else:
            graph = delta_graph(keep.checkpointer, frequency=4 if "snapshots" in name else 1000)
            await turns(AsyncCaller(), graph, 5)
        history = [state async for state in graph.aget_state_history(THREAD)]
        log = await keep.alog("1", ns="")
        assert [step.id for step in log] == [state.config["configurable"]["checkpoint_id"] for state in history]
        for step, state in zip(log, history, strict=True):
            shown = await keep.ashow("1", step.id)
            assert shown.checkpoint == step
            assert sorted(shown.next) == sorted(state.next)
            assert step.metadata == as_plain(dict(state.metadata))
            if name == "functional":  # its value is one of its channels
                assert shown.state.get("__end__") == as_plain(state.values) or not state.values
            else:
                empty = [key for key, value in state.values.items() if not value]
                assert {**dict.fromkeys(empty), **shown.state}.keys() >= state.values.keys()
                reported = {key: value for key, value in state.values.items() if key in shown.state}
                assert {key: shown.state[key] for key in reported} == as_plain(reported)
                assert set(state.values) - set(reported) <= set(empty)
        newest = await keep.ashow("1")
        assert newest.next == (await graph.aget_state(THREAD)).next
        assert newest.status == (await keep.athread("1")).status  # type: ignore[union-attr]
        assert bool(newest.delta) == name.startswith("delta")


async def test_every_value_of_every_scenario_has_a_write_to_blame() -> None:
    async with threadkeep.open("memory://") as keep:
        graph = SCENARIOS["messages edited and removed"].build(keep.checkpointer)
        await SCENARIOS["messages edited and removed"].run(AsyncCaller(), graph)
        log = await keep.alog("1")
        for step in log[::5]:
            shown = await keep.ashow("1", step.id)
            for n, message in enumerate(shown.state.get("messages", ())):
                blame = await keep.ablame("1", f"messages[{n}].content", checkpoint_id=step.id)
                assert blame.value == message["content"]
                assert blame.write is not None
                contents = [each["content"] for each in blame.write.value]
                assert message["content"] in contents


# --- the verbs, on every backend


@pytest.fixture
async def looked(keep: threadkeep.Keep) -> threadkeep.Keep:
    await asyncio.to_thread(example_threads.write_threads, keep)
    await example_threads.write_cube_threads(keep.cube)
    return keep


async def test_the_verbs_show_threads(looked: threadkeep.Keep) -> None:
    """One set of threads for many tests, because writing it takes the most time."""
    await log_tells_of_every_checkpoint(looked)
    await show_needs_no_class_of_the_application(looked)
    await trees_have_branches_and_subgraphs(looked)
    await diffs_are_deep(looked)
    await blame_finds_the_write(looked)
    await talks_are_looked_into(looked)
    await checkpoints_are_found_by_name(looked)
    await wrong_arguments_are_refused(looked)


async def log_tells_of_every_checkpoint(keep: threadkeep.Keep) -> None:
    log = await both(keep, "log", "chat")
    listed = [found async for found in keep.checkpointer.alist(config_of("chat"))]
    assert [step.id for step in log] == [found.checkpoint["id"] for found in listed]
    assert [step.parent for step in log[:-1]] == [f.parent_config["configurable"]["checkpoint_id"] for f in listed[:-1]]
    assert [step.writes for step in log] == [len(found.pending_writes) for found in listed]
    written = [{channel for _, channel, _ in found.pending_writes} for found in listed]
    assert [step.interrupted for step in log] == ["__interrupt__" in channels for channels in written]
    assert sum(step.interrupted for step in log) == 1
    assert [step.failed for step in await both(keep, "log", "broken")][:2] == [True, False]
    assert [(step.step, step.source, step.nodes) for step in log] == [
        (5, "loop", ("agent",)), (4, "input", ("__start__",)), (3, "update", ()), (3, "loop", ()),
        (2, "loop", ("agent",)), (1, "loop", ("tool",)), (0, "loop", ("agent",)), (-1, "input", ("__start__",)),
    ]  # fmt: skip
    assert log[2].updated == ("messages", "user")
    assert set(log[-3].updated) == {"messages", "user", "branch:to:tool", "branch:to:agent"}
    assert log[-1].updated == ("__start__",)
    assert all(step.bytes > 0 and step.time.tzinfo is UTC and step.thread == "chat" for step in log)
    assert {step.forked_from for step in log} == {None}
    found = await keep.checkpointer.aget_tuple(log[3].config)
    assert found is not None and found.checkpoint["id"] == log[3].id
    assert await both(keep, "log", "chat", limit=2) == log[:2]
    assert await both(keep, "log", "chat", limit=0) == []
    team = await both(keep, "log", "fan")
    spaces = {step.ns for step in team}
    assert len(spaces) == 2
    inner = max(spaces)
    assert await both(keep, "log", "fan", ns=inner) == [step for step in team if step.ns == inner]
    assert [step.nodes for step in team if not step.ns] == [(), ("team",), ("work",), ("plan",), ("__start__",)]


async def show_needs_no_class_of_the_application(keep: threadkeep.Keep) -> None:
    shown = await both(keep, "show", "chat")
    assert shown.state["user"] == {
        "$type": "gone_app.User",
        "name": "Ann",
        "address": {"city": "Bergen", "zip": [1, 2]},
    }
    assert shown.state["note"] == {"$type": "gone_app.Note", "text": "hi", "pages": [3]}
    assert [message["content"] for message in shown.state["messages"]] == ["Edited.", "21 degrees", "please approve"]
    assert "branch:to:agent" in shown.values and "branch:to:agent" not in shown.state
    assert (shown.status, shown.next, shown.delta) == ("interrupted", ("agent",), ())
    (write,) = shown.writes
    assert (write.node, write.idx, write.channel) == ("agent", -3, "__interrupt__")
    assert write.value[0]["value"] == {"question": "really?"}
    assert abs((write.time - datetime.now(UTC)).total_seconds()) < 3600
    sent = await both(keep, "show", "fan", "latest~2")
    assert [(write.node, write.channel, write.value) for write in sent.writes] == [
        ("work", "done", [4]),
        ("work", "branch:to:team", None),
        ("work", "done", [0]),
        ("work", "branch:to:team", None),
        ("work", "done", [2]),
        ("work", "branch:to:team", None),
    ]
    assert [send["node"] for send in sent.values["__pregel_tasks"]] == ["work"] * 3
    broken = await both(keep, "show", "broken")
    assert (broken.status, broken.next) == ("error", ("fail",))
    assert "no such city" in json.dumps(broken.writes[0].value)


async def trees_have_branches_and_subgraphs(keep: threadkeep.Keep) -> None:
    tree = await both(keep, "tree", "chat")
    assert list(tree.checkpoints) == await keep.alog("chat")
    (root,) = tree.roots[""]
    assert root == tree.checkpoints[-1].id
    forked = [children for children in tree.children[""].values() if len(children) > 1]
    assert forked == [(tree.checkpoints[3].id, tree.checkpoints[2].id)]
    assert [tree.before(step) for step in tree.checkpoints] == [step.parent for step in tree.checkpoints]
    team = await both(keep, "tree", "fan")
    assert {ns.partition(":")[0]: len(ids) for ns, ids in team.roots.items()} == {"": 1, "team": 1}


async def diffs_are_deep(keep: threadkeep.Keep) -> None:
    log = await keep.alog("chat")
    diff = await both(keep, "diff", "chat", log[4].id, log[2].id)
    assert (diff.a, diff.b) == (log[4], log[2])
    assert {each.channel: each.change for each in diff.channels} == {"messages": "changed", "user": "changed"}
    assert {"note", "branch:to:agent"} <= set(diff.unchanged)
    messages, user = diff.channels
    assert [(each.path, each.change) for each in messages.changes] == [
        ("messages[0]", "removed"), ("messages[0].content", "changed"), ("messages[0].tool_calls[0]", "removed"),
    ]  # fmt: skip
    assert messages.changes[0].before["id"] == "asks"
    assert [(each.path, each.before, each.after) for each in user.changes] == [("user.address.city", "Oslo", "Bergen")]
    grown = await both(keep, "diff", "chat", "latest~1")
    assert [(each.channel, each.change) for each in grown.channels] == [
        ("messages", "changed"), ("__start__", "removed"), ("branch:to:agent", "added"),
    ]  # fmt: skip
    assert [each.is_internal for each in grown.channels] == [False, True, True]
    assert (await both(keep, "diff", "chat", None)).channels == ()
    assert await keep.acopy("chat", "copied")
    copied = await both(keep, "diff", "chat", None, other_thread="copied")
    assert copied.channels == () and (copied.a.thread, copied.b.thread) == ("chat", "copied")
    other = await both(keep, "diff", "chat", None, other_thread="fan")
    assert {"done": "added", "messages": "removed"}.items() <= {e.channel: e.change for e in other.channels}.items()
    assert await keep.adelete("copied")


async def blame_finds_the_write(keep: threadkeep.Keep) -> None:
    found = {
        "messages[0].content": ("Edited.", 3, "update", None),
        "messages[id=found]": (None, 2, "loop", ("tool", 0)),
        "messages[-1].content": ("please approve", 5, "loop", ("__start__", 0)),
        "user.address.city": ("Bergen", 3, "update", None),
        "user.address.zip[1]": (2, 1, "loop", ("agent", 1)),
        "user.name": ("Ann", 1, "loop", ("agent", 1)),
        "note": (None, 2, "loop", ("tool", 1)),
        "note.pages[0]": (3, 2, "loop", ("tool", 1)),
    }
    for path, (value, step, source, write) in found.items():
        blame = await both(keep, "blame", "chat", path)
        assert value in (None, blame.value), path
        assert (blame.introduced_in.step, blame.introduced_in.source) == (step, source), path
        assert (blame.write and (blame.write.node, blame.write.idx)) == write, path
        assert not blame.oldest
    moved = await both(keep, "blame", "chat", "messages[1].content")
    assert (moved.path, moved.origin) == ("messages[1].content", "messages[2].content")
    before = await both(keep, "blame", "chat", "messages[0].content", checkpoint_id="latest~3")
    assert (before.value, before.write.node, before.write.path) == (
        "How is the weather?",
        "__start__",
        before.write.path,
    )
    sums = [await keep.ablame("fan", f"done[{n}]") for n in range(9)]
    assert [blame.value for blame in sums] == [7, 4, 0, 2, 7, 4, 0, 2, 100]
    assert [blame.write.node for blame in sums[:5] if blame.write] == ["__start__", "work", "work", "work", "team"]
    assert [blame.write.value for blame in sums[1:4] if blame.write] == [[4], [0], [2]]
    await keep.aprune("fan")
    pruned = await both(keep, "blame", "fan", "done[1]")
    assert pruned.oldest and pruned.write is None
    for path in (
        "messages[9]",
        "messages[id=nobody]",
        "user.age",
        "nothing",
        "user.name.first",
        "user[0]",
        "note.pages.x",
    ):
        with pytest.raises(Missing, match="not found"):
            await both(keep, "blame", "chat", path)


async def talks_are_looked_into(keep: threadkeep.Keep) -> None:
    shown = await both(keep, "show", "talk")
    assert list(shown.values) == ["messages", "extra", "pending", "answers", "runs"]
    assert [message["id"] for message in shown.values["messages"]] == ["m1", "m2", "m3"]
    assert shown.values["extra"] == {"a": {"b": 2}, "large": 2**80}
    assert (shown.values["pending"]["request"]["question_id"], shown.values["pending"]["run"]) == ("q", "r2")
    assert shown.values["answers"] == {"r2": {"q0": "yes"}}
    assert [(run["run"], run["completed"], run["messages"]) for run in shown.values["runs"]] == [
        ("r1", True, 2), ("r2", False, 1),
    ]  # fmt: skip
    assert (shown.status, shown.next, shown.writes) == ("interrupted", (), ())
    first = await both(keep, "show", "talk", "latest~1")
    assert (first.status, first.values["pending"], first.values["answers"]) == ("idle", None, {})
    log = await both(keep, "log", "talk")
    assert [(step.id, step.run, step.step) for step in log] == [("0000000002", "r2", 3), ("0000000001", "r1", 2)]
    assert log[1].updated == ("messages", "extra", "runs")
    with pytest.raises(ValueError, match="is a CubeLoop thread"):
        _ = log[0].config
    diff = await both(keep, "diff", "talk", "0000000001")
    assert [change.path for each in diff.channels for change in each.changes] == [
        "messages[2]", "extra.a.b", "extra.large", "pending", "answers.r2", "runs[1]",
    ]  # fmt: skip
    assert (await both(keep, "blame", "talk", "extra.a.b")).introduced_in.run == "r2"
    reported = await both(keep, "blame", "talk", "messages[id=m2].content")
    assert (reported.introduced_in.run, reported.write, reported.oldest) == ("r1", None, False)
    forked = await both(keep, "blame", "talk2", "messages[0]")
    assert (forked.introduced_in.thread, forked.introduced_in.id, forked.oldest) == ("talk", "0000000001", False)
    assert (await both(keep, "tree", "talk")).children == {"": {"0000000001": ("0000000002",)}}


async def checkpoints_are_found_by_name(keep: threadkeep.Keep) -> None:
    log = await keep.alog("chat")
    short = short_ids(step.id for step in log)
    assert all(len(each) == 8 for each in short.values())
    for step in log:
        assert (await keep.ashow("chat", short[step.id])).checkpoint == step
        assert (await keep.ashow("chat", step.id[:-1])).checkpoint == step
    assert await both(keep, "find", "chat") == log[0]
    assert await both(keep, "find", f"chat@{short[log[2].id]}") == log[2]
    assert await both(keep, "find", "chat@latest~2") == log[2]
    assert await both(keep, "find", log[3].id) == log[3]
    (inner, *_) = [step for step in await keep.alog("fan") if step.ns] or [log[3]]
    assert await both(keep, "find", inner.id) == inner
    assert await both(keep, "find", f"{inner.thread}@{inner.id[-8:]}") == inner
    await keep.acopy("chat", "me@example.com")
    assert (await both(keep, "find", "me@example.com")).thread == "me@example.com"
    assert (await both(keep, "find", "me@example.com@latest~1")).step == 4
    with pytest.raises(ValueError, match="several threads"):
        await both(keep, "find", log[3].id)
    for ref in ("nothing", "chat@nothing", "", "@", "chat@latest~99"):
        with pytest.raises(Missing):
            await both(keep, "find", ref)
    with pytest.raises(ValueError, match="begin or end"):
        await both(keep, "show", "chat", log[0].id[:4])


async def wrong_arguments_are_refused(keep: threadkeep.Keep) -> None:
    calls: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (Missing, "log", ("nobody",), {}),
        (Missing, "show", ("nobody",), {}),
        (Missing, "show", ("chat", "nothing"), {}),
        (Missing, "show", ("chat",), {"ns": "nothing"}),
        (Missing, "tree", ("nobody",), {}),
        (Missing, "diff", ("chat", "nothing"), {}),
        (Missing, "diff", ("chat", None), {"other_thread": "nobody"}),
        (Missing, "blame", ("nobody", "x"), {}),
        (Missing, "log", ("chat",), {"kind": "cube"}),
        (ValueError, "log", ("chat",), {"limit": -1}),
        (ValueError, "log", ("chat",), {"kind": "tree"}),
        (TypeError, "log", ("chat",), {"limit": "1"}),
        (TypeError, "log", (None,), {}),
        (TypeError, "log", ("chat",), {"ns": 1.5}),
        (TypeError, "show", ("chat", 1.5), {}),
        (TypeError, "find", (None,), {}),
        (TypeError, "blame", ("chat", None), {}),
        (TypeError, "threads", (), {"contains": None}),
        *(
            (ValueError, "blame", ("chat", path), {})
            for path in ("", ".", "a..b", "a[", "a[x]", "a[1", '["a', "[0]", "a]", "a[1]b")
        ),
    ]
    for error, verb, args, options in calls:
        for call in CALLERS:
            with pytest.raises(error):
                await call(keep, verb, *args, **options)


async def test_threads_are_found_by_what_their_ids_contain(keep: threadkeep.Keep) -> None:
    for id in ("anna-1", "ANNA-2", "bob", "an%a", "hannah"):
        await Chain(keep.checkpointer, id).aput({"x": 1}, who=id[0])
    assert [info.id for info in await both(keep, "threads", contains="anna", order="id")] == [
        "ANNA-2",
        "anna-1",
        "hannah",
    ]
    assert [info.id for info in await both(keep, "threads", contains="%", order="id")] == ["an%a"]
    assert [info.id for info in await both(keep, "threads", contains="A", order="id", limit=2)] == ["ANNA-2", "an%a"]
    assert [info.id for info in await both(keep, "threads", contains="a", metadata={"who": "h"})] == ["hannah"]
    assert [info.id for info in await both(keep, "threads", contains="nn", order="id", after="ANNA-2")] == [
        "anna-1",
        "hannah",
    ]
    assert await both(keep, "threads", contains="zz") == []


async def test_a_thread_of_both_kinds_is_asked_for_by_its_kind(keep: threadkeep.Keep) -> None:
    await example_threads.write_cube_threads(keep.cube)
    await Chain(keep.checkpointer, "talk").aput({"x": 1})
    for verb, args in (("log", ()), ("show", ()), ("tree", ()), ("diff", (None,)), ("blame", ("x",))):
        with pytest.raises(ValueError, match="by its kind"):
            await both(keep, verb, "talk", *args)
    assert [step.kind for step in await both(keep, "log", "talk", kind="cube")] == ["cube", "cube"]
    assert (await both(keep, "find", "talk", kind="graph")).kind == "graph"


# --- special cases


async def test_a_fork_hangs_on_what_it_was_forked_from(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    for n in range(3):
        await chain.aput({"x": n}, id=f"{n}")
    await Chain(keep.checkpointer).aput({"x": 1}, id="7", forked_from="1")
    await Chain(keep.checkpointer).aput({"x": 1}, id="8", forked_from="elsewhere@5")
    await Chain(keep.checkpointer).aput({"x": 1}, id="9", forked_from=["1"])
    tree = await both(keep, "tree", "t")
    assert tree.roots == {"": ("0", "8", "9")}
    assert tree.children == {"": {"0": ("1",), "1": ("2", "7")}}
    assert [step.forked_from for step in tree.checkpoints] == [None, "elsewhere@5", "1", None, None, None]


async def test_delta_channels_are_blamed(keep: threadkeep.Keep) -> None:
    await turns(AsyncCaller(), delta_graph(keep.checkpointer, frequency=1000), 2)
    found = {
        path: await both(keep, "blame", "1", path)
        for path in ("messages[0].content", "messages[-1]", "log[1]", "log[4]")
    }
    assert [(blame.introduced_in.step, blame.write.node) for blame in found.values()] == [
        (0, "__start__"), (6, "answer"), (2, "work"), (6, "answer"),
    ]  # fmt: skip
    assert found["log[1]"].write.value == ["work 2"]


async def test_hidden_checkpoints_are_not_shown_but_used(keep: threadkeep.Keep) -> None:
    graph = delta_graph(keep.checkpointer, frequency=1000)
    await turns(AsyncCaller(), graph, 2)
    await keep.aprune("1")
    (left,) = await both(keep, "log", "1")
    shown = await both(keep, "show", "1")
    assert shown.checkpoint == left and shown.delta == ("log", "messages")
    assert shown.state["log"] == (await graph.aget_state(THREAD)).values["log"]
    tree = await both(keep, "tree", "1")
    assert tree.roots == {"": (left.id,)} and tree.checkpoints == (left,)


async def test_moved_elements_are_followed(keep: threadkeep.Keep) -> None:
    lists = [["a"], ["a", "b"], ["new", "a", "b"], ["new", "b"], ["b", "new"]]
    chain = Chain(keep.checkpointer)
    for n, value in enumerate(lists):
        await chain.aput({"x": value, "ids": [HumanMessage(each, id=each) for each in value]}, id=f"{n}")
    assert (await both(keep, "blame", "t", "x[-1]", checkpoint_id="3")).introduced_in.id == "1"
    assert (await both(keep, "blame", "t", "ids[0]")).introduced_in.id == "1"
    assert (await both(keep, "blame", "t", "ids[id=new]")).origin == "ids[0]"
    assert (await both(keep, "blame", "t", "ids[id=new]")).introduced_in.id == "2"


async def test_writes_of_nodes_and_of_updates_are_not_mixed_up(keep: threadkeep.Keep) -> None:
    graph = SCENARIOS["one run"].build(keep.checkpointer)
    await graph.ainvoke({"foo": "", "bar": ["in"]}, THREAD, interrupt_before=["node_b"])
    stopped = await graph.aget_state(THREAD)
    await graph.aupdate_state(THREAD, {"foo": "b", "bar": ["by hand"]}, as_node="node_b")
    by_hand = await both(keep, "blame", "1", "foo")
    assert (by_hand.value, by_hand.introduced_in.source, by_hand.write.node) == ("b", "update", None)
    assert by_hand.write.value == "b" and (await both(keep, "blame", "1", "bar[-1]")).write.value == ["by hand"]
    await graph.ainvoke(None, stopped.config)
    by_node = await both(keep, "blame", "1", "foo")
    assert (by_node.value, by_node.introduced_in.source, by_node.write.node) == ("b", "loop", "node_b")


def test_what_is_unchanged_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{file}") as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"large": "text " * 100, "x": 1}, id="1")
        chain.put({"large": "text " * 100, "x": 2}, id="2")
    with closing(apsw.Connection(str(file))) as database:
        lost = database.execute("SELECT max(length(payload)) FROM tk_items WHERE lane > 2").fetchone()
        database.execute("DELETE FROM tk_items WHERE length(payload) = ?", lost)
    with threadkeep.open(f"sqlite:///{file}") as keep:
        assert [each.path for one in keep.diff("t", "1").channels for each in one.changes] == ["x"]
        assert keep.blame("t", "x").introduced_in.id == "2"
        assert len(keep.log("t")) == 2
        shown = keep.show("t")
        assert (shown.values, list(shown.damaged)) == ({"x": 2}, ["large"])
        assert list(keep.diff("t", "1", "2").damaged) == []
        with pytest.raises(Corrupt, match="missing"):
            keep.blame("t", "large")


def test_a_forged_row_is_damaged_and_runs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{file}") as keep:
        Chain(keep.checkpointer).put({"x": 1}, id="1")
    with closing(apsw.Connection(str(file))) as database:
        database.execute("UPDATE tk_checkpoints SET body = ?", (b"\x00\x01\x02\x03\x04cos\nsystem\n",))
    with threadkeep.open(f"sqlite:///{file}") as keep:
        found = [*keep.log("t"), *keep.tree("t").checkpoints, keep.show("t").checkpoint, keep.diff("t", None).a]
        assert [bool(each.damaged) for each in found] == [True] * 4
        assert (keep.show("t").status, keep.show("t").values) == ("damaged", {})
        with pytest.raises(Corrupt, match="checkpoint '1' .* is damaged"):
            keep.blame("t", "x")


def test_deep_values_are_shown_and_compared() -> None:
    deep: Any = 1
    for _ in range(60):
        deep = {"in": [deep]}
    with threadkeep.open("memory://") as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"x": deep}, id="1")
        chain.put({"x": {"in": [deep]}}, id="2")
        assert keep.show("t", "1").values["x"] == deep
        assert keep.diff("t", "1").channels[0].change == "changed"
        assert keep.blame("t", "x.in[0]").introduced_in.id == "2"


class Forger:
    """A serializer that stores given bytes."""

    def __init__(self, tag: str, data: bytes) -> None:
        self.stored = (tag, data)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self.stored

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        raise AssertionError("nobody who looks asks a serializer")


def test_values_that_name_code_are_shown_and_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    calls = ormsgpack.Ext(0, ormsgpack.packb(["os", "mkdir", str(made)]))
    imports = ormsgpack.Ext(2, ormsgpack.packb(["this_module_is_nowhere", "Thing", {"a": 1}]))
    forged = {
        "called": (("msgpack", ormsgpack.packb(calls)), {"$type": "os.mkdir", "value": str(made)}),
        "imported": (("msgpack", ormsgpack.packb(imports)), {"$type": "this_module_is_nowhere.Thing", "a": 1}),
        "pickled": (("pickle", pickle.dumps(made) * 9), {"$opaque": "pickle", "$size": len(pickle.dumps(made)) * 9}),
        "odd": (("odd", b"x" * 120), {"$opaque": "odd", "$size": 120}),
    }
    for stored, reported in forged.values():
        with threadkeep.open("memory://", serde=Forger(*stored)) as keep:  # type: ignore[arg-type]
            at = Chain(keep.checkpointer).put({"x": 1})
            keep.checkpointer.put_writes(at, [("x", 1)], "task")
            assert (keep.show("t").values["x"], keep.show("t").writes[0].value) == (reported, reported)
            assert keep.blame("t", "x").value == reported
    assert not made.exists()


async def test_a_thread_that_is_pruned_while_it_is_shown_is_read_again(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    for n in range(20):
        await chain.aput({"x": [f"text {n} {m}" * 20 for m in range(n)]})

    async def prune() -> None:
        for n in range(20, 30):
            await chain.aput({"x": [f"text {n} {m}" * 20 for m in range(n)]})
            await keep.aprune("t")

    async def look() -> None:
        for _ in range(20):
            shown = await keep.ashow("t")
            assert len(shown.values["x"]) == shown.checkpoint.step

    await asyncio.gather(prune(), look())


# --- comparing plain values


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        (1, 1, []),
        (1, True, [("x", "changed")]),
        (1, 1.0, [("x", "changed")]),
        ({"a": 1}, {"a": 2, "b": 3}, [("x.a", "changed"), ("x.b", "added")]),
        ({"a b": 1, "c.d": 2}, {"c.d": 3}, [('x["a b"]', "removed"), ('x["c.d"]', "changed")]),
        ([1, 2, 3], [1, 3], [("x[1]", "removed")]),
        ([1, 2], [0, 1, 2], [("x[0]", "added")]),
        ([1, 1], [1, 1, 1], [("x[2]", "added")]),
        ([{"a": 1}], [{"a": 2}], [("x[0].a", "changed")]),
        ([1], {"a": 1}, [("x", "changed")]),
        ({"$type": "m.A", "v": 1}, {"$type": "m.B", "v": 1}, [("x", "changed")]),
        (
            [{"role": "user", "content": "a", "id": "1"}, {"role": "user", "content": "b", "id": "2"}],
            [{"role": "user", "content": "b!", "id": "2"}, {"role": "user", "content": "a", "id": "1"}],
            [("x[0]", "moved"), ("x[0].content", "changed")],
        ),
    ],
)
def test_differences_are_reported_by_path(before: Any, after: Any, reported: list[tuple[str, str]]) -> None:
    assert sorted((each.path, each.change) for each in changes(("x",), before, after)) == sorted(reported)


def test_long_lists_of_equal_elements_are_compared_in_time() -> None:
    before, after = [n % 3 for n in range(20_000)], [n % 5 for n in range(20_000)]
    assert sum(1 for _ in changes(("x",), before, after)) > 1000


ELEMENTS = st.lists(
    st.one_of(
        st.integers(0, 3),
        st.builds(
            lambda id, text: {"role": "user", "content": text, "id": id},
            st.sampled_from("abcdef"),
            st.sampled_from("xy"),
        ),
    ),
    max_size=8,
)


def applied(before: list[Any], after: list[Any]) -> list[Any]:
    """Apply the changes that `changes` reports to the first list."""
    reported = list(changes(("x",), before, after))
    pairs = pair_elements(before, after)
    gone = {each.path for each in reported if each.change == "removed"}
    assert gone == {f"x[{n}]" for n in set(range(len(before))) - set(pairs.values())}
    new = {each.path: each.after for each in reported if each.change in ("added", "changed")}
    made = []
    for n in range(len(after)):
        element = new[f"x[{n}]"] if f"x[{n}]" in new else before[pairs[n]]
        if isinstance(element, dict):
            element = {key: new.get(f"x[{n}].{key}", value) for key, value in element.items()}
        made.append(element)
    return made


@settings(max_examples=200, deadline=None)
@given(before=ELEMENTS, after=ELEMENTS)
def test_differences_make_one_list_of_the_other(before: list[Any], after: list[Any]) -> None:
    pairs = pair_elements(before, after)
    assert len(set(pairs.values())) == len(pairs)
    assert applied(before, after) == after
    ids = [[each["id"] for each in side if isinstance(each, dict)] for side in (before, after)]
    for id in set(ids[0]) & set(ids[1]):
        if ids[0].count(id) == ids[1].count(id) == 1:
            new = next(n for n, each in enumerate(after) if isinstance(each, dict) and each["id"] == id)
            old = before[pairs[new]]
            assert isinstance(old, dict) and old["id"] == id


NAMES = st.text('ab.[]"\\ \n\0é🦜0-=', max_size=6)
TOKENS = st.one_of(NAMES, st.integers(-5, 1000), st.builds(paths.ById, st.text("abc.[ ", min_size=1, max_size=5)))


@settings(max_examples=200, deadline=None)
@given(channel=NAMES, rest=st.lists(TOKENS, max_size=4))
def test_a_path_is_read_as_it_is_written(channel: str, rest: list[Any]) -> None:
    path = (channel, *rest)
    assert paths.parse(paths.format_path(path)) == path


@settings(max_examples=100, deadline=None)
@given(st.sets(st.text("0123456789ab", min_size=1, max_size=20), max_size=12))
def test_short_ids_are_taken_for_one_each(ids: set[str]) -> None:
    with threadkeep.open("memory://") as keep:
        short = short_ids(ids)
        assert short.keys() == ids
        for id in ids:
            Chain(keep.checkpointer).put({"x": id}, id=id)
        for id in ids:
            assert keep.show("t", short[id]).checkpoint.id == id
