"""The data flow of threads: nodes, channels and edges, as text and as Mermaid, on every backend."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from cubeloop.providers.base import AssistantMessage, TextContent, ToolCall, ToolResultMessage
from hypothesis import given
from hypothesis import strategies as st
from langgraph.graph import START, StateGraph

import threadkeep
from checkpoint_chains import Chain
from damage import flip_byte, rows_opener
from encrypted_keeps import KEYS
from rich_threads import user_message, write_cube_thread, write_thread
from sync_async import Caller
from threadkeep import Flow, FlowChannel, FlowEdge, FlowNode, errors
from threadkeep.cli.app import run

MODES: dict[str, dict[str, Any]] = {"plain": {}, "hidden": {"keys": KEYS, "hide_ids": True}}


@pytest.fixture(params=MODES)
def stored(request: pytest.FixtureRequest, fresh_url: Callable[[], str]) -> Iterator[threadkeep.Keep]:
    options = MODES[request.param]
    with threadkeep.open(fresh_url(), **options, tenant="acme" if options else "") as keep:
        write_thread(keep, "fan")
        yield keep


def edges(flow: Flow) -> dict[tuple[str, str, str], int]:
    """The counts of edges by kind, source and target, as `namespace/name`."""
    nodes, channels = ([f"{each.ns}/{each.name}" for each in one] for one in (flow.nodes, flow.channels))
    return {
        (
            edge.kind,
            (channels if edge.kind == "trigger" else nodes)[edge.source],
            (channels if edge.kind == "write" else nodes)[edge.target],
        ): edge.count
        for edge in flow.edges
    }


# --- what is found

FAN = {
    ("write", "/__start__", "/log"): 1, ("next", "/__start__", "/left"): 1, ("next", "/__start__", "/right"): 1,
    ("write", "/left", "/log"): 1, ("write", "/left", "/big"): 1, ("send", "/left", "/one"): 2,
    ("send", "/left", "/two, too"): 1, ("write", "/right", "/log"): 1, ("write", "/one", "/log"): 2,
    ("next", "/one", "/sub"): 2, ("write", "/two, too", "/log"): 1, ("write", "/sub", "/log"): 1,
    ("write", "/sub", "/big"): 1, ("next", "/sub", "/ask"): 1, ("write", "/ask", "/log"): 1,
    ("write", "/ask", "/__interrupt__"): 1, ("write", "/ask", "/__resume__"): 1, ("write", "/resume", "/__resume__"): 1,
    ("write", "/update_state", "/log"): 1, ("write", "sub/__start__", "sub/log"): 1,
    ("write", "sub/__start__", "sub/big"): 1, ("next", "sub/__start__", "sub/inner"): 1,
    ("write", "sub/inner", "sub/log"): 1,
}  # fmt: skip


async def test_a_flow_has_every_node_channel_and_write(stored: threadkeep.Keep, call: Caller) -> None:
    flow = await call(stored, "flow", "fan")
    assert edges(flow) == FAN
    traced = [
        write
        for step in await call(stored, "log", "fan")
        for write in await call(stored, "trace", "fan", step.id, ns=step.ns)
        if not write.channel.startswith(("branch:", "__pregel_tasks"))
    ]
    assert sum(each.writes for each in flow.channels) == len(traced)
    assert sum(each.bytes for each in flow.channels) == sum(each.size for each in traced)
    assert sum(each.bytes for each in flow.edges) == sum(each.size for each in traced)
    assert {each.name: each.kind for each in flow.nodes if each.kind != "node"} == {
        "__start__": "input", "resume": "caller", "update_state": "update",
    }  # fmt: skip
    one = next(each for each in flow.nodes if each.name == "one")
    assert (one.tasks, one.first_step, one.last_step) == (2, 2, 2)
    assert (flow.checkpoints, flow.damaged) == (len(stored_log := await call(stored, "log", "fan")), ())
    times = [each.time for each in stored_log]
    assert all(edge.first <= edge.last <= max(times) for edge in flow.edges if edge.kind != "write")


async def test_a_flow_is_the_same_after_a_copy_and_a_fork(stored: threadkeep.Keep, call: Caller) -> None:
    flow = await call(stored, "flow", "fan")
    await call(stored, "copy", "fan", "copy")
    assert edges(await call(stored, "flow", "copy")) == edges(flow)
    await call(stored, "fork", "fan", to="fork")
    assert edges(await call(stored, "flow", "fork")) == edges(flow)
    with pytest.raises(errors.Missing):
        await call(stored, "flow", "nobody")


def test_a_flow_is_the_same_in_another_storage(tmp_path: Path) -> None:
    first, other, file = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}", tmp_path / "all.tk"
    with threadkeep.open(first) as keep:
        write_thread(keep, "fan")
        write_cube_thread(keep, "talk")
        found = {id: keep.flow(id) for id in ("fan", "talk")}
        keep.export(file)
    threadkeep.convert(first, other)
    with threadkeep.open(other, read_only=True) as keep:
        assert {id: keep.flow(id) for id in found} == found
    with threadkeep.open("memory://") as keep:
        keep.import_portable(file)
        assert {id: keep.flow(id) for id in found} == found


async def test_joined_nodes_and_loops_are_counted(keep: threadkeep.Keep, call: Caller) -> None:
    class State(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    builder = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda state, name=name: {"log": [name]})
        if name != "c":
            builder.add_edge(START, name)
    builder.add_edge(["a", "b"], "c")
    graph = builder.compile(checkpointer=keep.checkpointer)
    for _ in range(2):
        await asyncio.to_thread(graph.invoke, {"log": []}, {"configurable": {"thread_id": "t"}})
    found = edges(await call(keep, "flow", "t"))
    assert {at: count for at, count in found.items() if at[0] == "next" and at[2] == "/c"} == {
        ("next", "/a", "/c"): 2,
        ("next", "/b", "/c"): 2,
    }
    assert found["write", "/c", "/log"] == 2


async def test_channels_that_trigger_nodes_are_found(keep: threadkeep.Keep, call: Caller) -> None:
    chain = Chain(keep.checkpointer)
    for n in range(3):
        parent, checkpoint, metadata, new = chain.next({"text": f"v{n}"})
        checkpoint["versions_seen"] = {"shout": {"text": n}, "__interrupt__": {"text": n}} if n else {}
        await keep.checkpointer.aput(parent, checkpoint, metadata, new)
    assert edges(await call(keep, "flow", "t")) == {("trigger", "/text", "/shout"): 2}


async def test_roles_and_tools_are_the_nodes_of_a_cube_thread(keep: threadkeep.Keep, call: Caller) -> None:
    calls = [ToolCall(id=f"c{n}", name=name, arguments={}) for n, name in enumerate(("search", "search", "send\n"))]
    messages = [
        user_message("find it"),
        AssistantMessage(content=[TextContent(text="I look"), *calls], id="a1"),
        *(ToolResultMessage(tool_call_id=c.id, tool_name=c.name, content=[], id=f"r{c.id}") for c in calls),
        AssistantMessage(content=[TextContent(text="done")], id="a2"),
    ]
    await keep.cube.append("talk", messages)
    flow = await call(keep, "flow", "talk")
    assert edges(flow) == {
        ("write", "/user", "/messages"): 1, ("write", "/assistant", "/messages"): 2,
        ("call", "/assistant", "/search"): 2, ("call", "/assistant", "/send\n"): 1,
        ("write", "/search", "/messages"): 2, ("write", "/send\n", "/messages"): 1,
    }  # fmt: skip
    assert {each.name: (each.kind, each.tasks) for each in flow.nodes}["search"] == ("tool", 2)
    assert "calls send\\x0a  1x, step 1" in flow.text()
    await call(keep, "fork", "talk", to="fork")
    assert edges(await call(keep, "flow", "fork")) == edges(flow)


async def test_damaged_checkpoints_are_shown_and_left_out(keep: threadkeep.Keep, url: str, call: Caller) -> None:
    await asyncio.to_thread(write_thread, keep, "t")
    whole = await call(keep, "flow", "t")

    def spoil() -> None:
        rows = rows_opener(url)(keep, "t")
        row = rows.checkpoints()[2]
        rows.set_checkpoint(row, row._replace(body=flip_byte(row.body)))

    await asyncio.to_thread(spoil)
    flow = await call(keep, "flow", "t")
    assert len(flow.damaged) == 1
    assert flow.damaged[0] in flow.text()
    check_mermaid(flow.mermaid())
    assert "%% damaged" in flow.mermaid()
    assert {each.name for each in flow.nodes} <= {*(each.name for each in whole.nodes), "unknown"}


# --- Mermaid

LABEL = r'"(?:[^\W_]|[ ,/_.-]|#[0-9]+;)+"'
EDGE = rf"n\d+ (?:-->|-\.->|==>)\|{LABEL}\| [nc]\d+|c\d+ -\.->\|{LABEL}\| n\d+|n\d+ -\.- n\d+"
NODE = rf"n\d+(?:\[{LABEL}\]|\(\[{LABEL}\]\)|\[/{LABEL}/\]|\[\[{LABEL}\]\])|c\d+\[\({LABEL}\)\]"
LINE = re.compile(rf"\s+(?:{EDGE}|{NODE}|subgraph s\d+\[{LABEL}\]|end|%% damaged, {LABEL})")


def check_mermaid(text: str) -> list[str]:
    """Check the whole text against the part of Mermaid's grammar that is used. Return the labels of nodes, decoded."""
    first, *lines = text.removesuffix("\n").split("\n")
    assert first == "flowchart LR"
    depth, defined, used = 0, list[str](), set[str]()
    for line in lines:
        assert LINE.fullmatch(line), line
        depth += line.lstrip().startswith("subgraph ") - (line.strip() == "end")
        assert depth >= 0
        if re.fullmatch(rf"\s+(?:{EDGE})", line):
            used.update(re.findall(r"\b[nc]\d+\b", re.sub(LABEL, "", line)))
        elif node := re.match(r"\s+([nc]\d+)", line):
            defined.append(node[1])
    assert depth == 0
    assert len(defined) == len(set(defined))
    assert used <= set(defined)
    labels = [re.search(LABEL, line) for line in lines if re.fullmatch(rf"\s+(?:{NODE})", line)]
    return [unescape(re.sub(r"#(\d+);", r"&#\1;", found[0][1:-1])) for found in labels if found]


async def test_the_flowchart_of_a_graph_is_mermaid(stored: threadkeep.Keep, call: Caller) -> None:
    flow = await call(stored, "flow", "fan")
    labels = check_mermaid(flow.mermaid())
    assert {"__start__", "two, too", "update_state", "log", "inner", "__interrupt__"} <= set(labels)
    assert "__resume__" not in labels
    box = flow.mermaid().split("subgraph")[1].split("  end")[0]
    assert "inner" in box
    assert "left" not in box
    assert 'subgraph s1["sub"]' in flow.mermaid()


NAMES = st.one_of(
    st.text(max_size=100),
    st.sampled_from(['"]', '"; click n0 "javascript:1"', "end", "%%{init: 1}%%", "#35;", "a\nb", "`x`", "1. x", "style a:b#1;", "-", ""]),
)  # fmt: skip


@given(names=st.lists(NAMES, min_size=2, max_size=6), spaces=st.lists(NAMES, min_size=1, max_size=3))
def test_no_name_breaks_out_of_its_label(names: list[str], spaces: list[str]) -> None:
    nodes = tuple(
        FlowNode(spaces[n % len(spaces)], name, ("node", "tool", "input", "update")[n % 4], 1, None, None, None, None)
        for n, name in enumerate(names)
    )
    channels = tuple(FlowChannel(spaces[0], name, 1, 1) for name in names)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    links = tuple(FlowEdge("write", n, n, 1, 1, moment, moment, n, n + 1) for n in range(len(names)))
    flow = Flow(names[0], "graph", 1, nodes, channels, links, tuple(names))
    labels = check_mermaid(flow.mermaid())
    for name in names:
        if name.isprintable() and 0 < len(name) < 80:
            assert name in labels
    assert len(flow.text().split("\n")) == len(flow.text().splitlines())


# --- the command


def test_the_command_prints_text_mermaid_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url) as keep:
        write_thread(keep, "fan")
        flow = keep.flow("fan")
    assert run(["flow", "fan", "--url", url, "--mermaid"]) == 0
    assert capsys.readouterr().out == flow.mermaid()
    assert run(["flow", "fan", "--url", url]) == 0
    assert capsys.readouterr().out.splitlines() == flow.text().splitlines()
    assert run(["flow", "fan", "--url", url, "--json"]) == 0
    assert '"kind": "send"' in capsys.readouterr().out
    assert run(["flow", "fan", "--url", url, "--json", "--mermaid"]) != 0
