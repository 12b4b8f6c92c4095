"""usage: every message that says how many tokens it took counts once, wherever it is stored; on every backend."""

from __future__ import annotations

import asyncio
import json
import operator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
import pytest
from cubeloop.providers.base import AssistantMessage, TextContent, Usage, UserMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

import threadkeep
from checkpoint_chains import Chain
from checkpoint_trees import put
from encrypted_keeps import KEYS
from graph_scenarios import THREAD, Chat, chat
from hypothesis_profiles import examples
from sync_async import Ask
from test_delta_graphs import build as delta_graph
from threadkeep.adapters import langgraph_saver
from threadkeep.errors import Missing

PRICES = {"big": {"input": 2.0, "output": 10.0, "cache_read": 0.5}, "small*": {"input": 1.0, "output": 1.0}}


def ai(id: str | None, tokens: int = 10, *, model: str | None = "big", **details: Any) -> AIMessage:
    """Return an answer that took this many tokens as input, and one as output."""
    counted = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1, **details}
    return AIMessage(
        f"answer {id}", id=id, usage_metadata=counted, response_metadata={"model_name": model} if model else {}
    )


def answers(state: Chat) -> dict[str, Any]:
    n = len(state["messages"])
    return {"messages": [ai(f"ai{n}", 10 * n)]}


CHAT = chat(answers)


def talk(keep: threadkeep.Keep, ask: Ask, turns: int = 3, thread: str = "1", **metadata: Any) -> Any:
    graph = CHAT(keep.checkpointer)
    config = {"configurable": {"thread_id": thread}, "metadata": metadata}
    for n in range(turns):
        ask(graph, "invoke", {"messages": [HumanMessage(f"q{n}", id=f"h{n}")]}, config)
    return graph


def counted(result: threadkeep.TokenUsage) -> tuple[int, int, int, int]:
    total = result.total
    return total.messages, total.input_tokens, total.output_tokens, total.total_tokens


def test_each_message_counts_once(keep: threadkeep.Keep, ask: Ask) -> None:
    talk(keep, ask)
    found = ask(keep, "usage")
    assert counted(found) == (3, 10 + 30 + 50, 3, 93)
    (row,) = found.rows
    assert (row.key, row.messages, row.cost, row.unpriced) == ({"thread": "1", "kind": "graph"}, 3, None, ())
    assert counted(ask(keep, "usage", all_branches=True)) == counted(found)
    assert (found.threads, found.by, found.skipped, found.damaged) == (1, ("thread",), (), ())


def test_removed_messages_and_abandoned_branches_count_with_all_branches(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = talk(keep, ask)
    ask(graph, "update_state", THREAD, {"messages": [RemoveMessage("ai1")]})
    assert counted(ask(keep, "usage"))[:2] == (2, 80)
    assert counted(ask(keep, "usage", all_branches=True))[:2] == (3, 90)
    first = [each for each in keep.log("1", ns="") if each.step == 1][-1]
    ask(keep, "rollback", "1", first.id)
    assert counted(ask(keep, "usage"))[:2] == (1, 10)
    assert counted(ask(keep, "usage", all_branches=True))[:2] == (3, 90)


def test_tokens_by_model_with_prices(keep: threadkeep.Keep, ask: Ask) -> None:
    messages = [
        ai("a", 1_000_000, input_token_details={"cache_read": 400_000}, output_token_details={"reasoning": 1}),
        ai("b", 500_000, model="small-2026"),
        ai("c", 7, model="other"),
        ai("d", 8, model=None),
        HumanMessage("no tokens"),
    ]
    put(keep.checkpointer, {"messages": messages})
    found = ask(keep, "usage", by="model", prices=PRICES)
    rows = {row.key["model"]: row for row in found.rows}
    assert [row.key["model"] for row in found.rows] == ["big", "small-2026", None, "other"]
    assert rows["big"].cost == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 10 / 1e6)
    assert rows["big"].input_details == {"cache_read": 400_000}
    assert rows["big"].output_details == {"reasoning": 1}
    assert rows["small-2026"].cost == pytest.approx(0.500001)
    assert (rows["other"].cost, rows["other"].unpriced) == (None, ("other",))
    assert (rows[None].cost, rows[None].unpriced) == (None, (None,))
    assert found.total.unpriced == (None, "other")
    assert found.total.cost == pytest.approx(rows["big"].cost + rows["small-2026"].cost)


def test_prices_are_read_from_a_file(keep: threadkeep.Keep, tmp_path: Path, ask: Ask) -> None:
    put(keep.checkpointer, {"messages": [ai("a", 1_000_000)]})
    (tmp_path / "p.json").write_text(json.dumps(PRICES))
    (tmp_path / "p.toml").write_text('["bi?"]\ninput = 2\noutput = 10\n')
    (tmp_path / "bad.toml").write_text('["big"]\ninput = "2"\noutput = 10\n')
    (tmp_path / "list.json").write_text("[]")
    for name in ("p.json", "p.toml"):
        assert ask(keep, "usage", prices=tmp_path / name).total.cost == pytest.approx(2.00001)
    for wrong in (tmp_path / "bad.toml", tmp_path / "list.json", {"big": {"input": 1}}, {"big": 2}):
        with pytest.raises(ValueError, match=r"price|table"):
            ask(keep, "usage", prices=wrong)
    with pytest.raises(TypeError):
        ask(keep, "usage", prices=3)


class Team(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[Any], operator.add]


def team(saver: Any) -> Any:
    """Build a graph of a writer and a subgraph with a private answer."""
    inner = StateGraph(Team)
    inner.add_node("think", lambda state: {"notes": [ai("thought", 100, model="small")]})
    inner.add_node("say", lambda state: {"messages": [ai("said", 20)]})
    inner.add_edge(START, "think")
    inner.add_edge("think", "say")

    def call(state: Team) -> Any:
        return {"messages": compiled.invoke({"messages": state["messages"]})["messages"]}

    compiled = inner.compile(checkpointer=True)
    outer = StateGraph(Team)
    outer.add_node("write", lambda state: {"messages": [ai("written", 3)]})
    outer.add_node("team", call)
    outer.add_edge(START, "write")
    outer.add_edge("write", "team")
    return outer.compile(checkpointer=saver)


def test_tokens_by_node_are_those_of_the_node_that_first_wrote_the_message(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = team(keep.checkpointer)
    graph.invoke({"messages": [HumanMessage("go", id="h")]}, THREAD)
    found = ask(keep, "usage", by=["node", "model"])
    assert [(row.key, row.input_tokens) for row in found.rows] == [
        ({"node": "think", "model": "small"}, 100),
        ({"node": "say", "model": "big"}, 20),
        ({"node": "write", "model": "big"}, 3),
    ]
    ask(graph, "update_state", THREAD, {"messages": [RemoveMessage("said")]}, as_node="team")
    assert {row.key["node"] for row in ask(keep, "usage", by="node").rows} == {"think", "write"}


def test_threads_are_grouped_by_metadata_and_selected(keep: threadkeep.Keep, ask: Ask) -> None:
    for thread, user in (("a1", "ada"), ("a2", "ada"), ("b1", "bob")):
        talk(keep, ask, 1, thread, user=user)
    talk(keep, ask, 2, "c1")
    found = ask(keep, "usage", by="metadata:user")
    assert {row.key["metadata:user"]: row.messages for row in found.rows} == {"ada": 2, "bob": 1, None: 2}
    assert counted(ask(keep, "usage", prefix="a"))[0] == 2
    assert counted(ask(keep, "usage", metadata={"user": "bob"}))[0] == 1
    assert counted(ask(keep, "usage", "c1"))[0] == 2
    assert counted(ask(keep, "usage", ["c1", "b1", "c1"]))[0] == 3
    assert counted(ask(keep, "usage", kind="cube"))[0] == 0
    for missing in (7, [7]):
        with pytest.raises(Missing, match="'7'"):
            ask(keep, "usage", missing)
    with pytest.raises(TypeError, match="thread_ids"):
        ask(keep, "usage", 7.5)
    with pytest.raises(Missing):
        ask(keep, "usage", ["c1", "nobody"])
    for wrong in ({"by": "day"}, {"by": "metadata:"}, {"match": "some"}):
        with pytest.raises(ValueError, match="must be"):
            ask(keep, "usage", **wrong)
    with pytest.raises(ValueError, match="not both"):
        ask(keep, "usage", "c1", prefix="c")


def test_only_messages_of_a_time_count(keep: threadkeep.Keep, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(keep.checkpointer)
    for n, day in enumerate((1, 5, 9)):
        moment = datetime(2026, 4, day, tzinfo=UTC)
        monkeypatch.setattr(langgraph_saver, "now_ms", lambda moment=moment: round(moment.timestamp() * 1000))
        chain.put({"messages": [ai(f"m{m}", 10**m) for m in range(n + 1)]})
    monkeypatch.undo()
    assert counted(ask(keep, "usage"))[1] == 111
    assert counted(ask(keep, "usage", since="2026-04-02"))[1] == 110
    assert counted(ask(keep, "usage", since="2026-04-05", until="2026-04-09"))[1] == 10
    assert counted(ask(keep, "usage", until="2026-04-05"))[1] == 1
    assert counted(ask(keep, "usage", since="2026-04-10"))[1] == 0


def test_messages_without_an_id_count_where_they_are_stored(keep: threadkeep.Keep, ask: Ask) -> None:
    chain = Chain(keep.checkpointer)
    same = [ai(None, 5), ai(None, 5)]
    chain.put({"log": [ai(None, 1)]})
    chain.put({"log": [ai(None, 1), ai(None, 2)], "nested": {"deep": same}})
    chain.put({"log": [ai(None, 1), ai(None, 2), ai(None, 3)], "nested": {"deep": same}})
    for options in ({}, {"all_branches": True}, {"by": "node"}):
        assert counted(ask(keep, "usage", **options))[:2] == (5, 16)


def test_large_messages_and_edits_in_the_middle_count_once(keep: threadkeep.Keep, ask: Ask) -> None:
    chain = Chain(keep.checkpointer)
    messages = [ai(f"m{n}", 1) for n in range(700)]
    messages[5].content = "long " * 700_000
    for edit in (None, 5, 300, 699, 0):
        if edit is not None:
            messages[edit] = messages[edit].model_copy(update={"content": f"{messages[edit].content} edited"})
        chain.put({"messages": list(messages)})
    chain.put({"messages": messages[3:]})
    assert counted(ask(keep, "usage"))[0] == 697
    assert counted(ask(keep, "usage", all_branches=True))[0] == 700


def test_messages_of_delta_channels_count(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = delta_graph(keep.checkpointer, frequency=3)
    for n in range(5):
        ask(graph, "invoke", {"messages": [HumanMessage(f"q{n}", id=f"h{n}"), ai(f"given{n}", 10)]}, THREAD)
    ask(graph, "update_state", THREAD, {"messages": [RemoveMessage("given1")]})
    for options in ({}, {"by": "node"}):
        assert counted(ask(keep, "usage", **options))[0] == 4
    assert counted(ask(keep, "usage", all_branches=True))[0] == 5


def test_writes_of_a_step_that_is_not_done_count_with_all_branches(keep: threadkeep.Keep, ask: Ask) -> None:
    builder = StateGraph(Chat)
    builder.add_node("good", lambda state: {"messages": [ai("paid", 9)]})
    builder.add_node("waiting", lambda state: {"asked": interrupt("really?")})
    builder.add_edge(START, "good")
    builder.add_edge(START, "waiting")
    graph = builder.compile(checkpointer=keep.checkpointer)
    ask(graph, "invoke", {"messages": []}, THREAD)
    assert counted(ask(keep, "usage"))[0] == 0
    found = ask(keep, "usage", all_branches=True, by="node")
    assert [(row.key["node"], row.input_tokens) for row in found.rows] == [("good", 9)]


async def _cube(keep: threadkeep.Keep) -> None:
    used = Usage(input_tokens=10, output_tokens=2, cache_read_tokens=30, cache_write_tokens=4)
    await keep.cube.append("talk", [UserMessage(content=[TextContent(text="before")], id="m0")])
    await keep.cube.claim_run("talk", "run-1")
    said = UserMessage(content=[TextContent(text="hi")], run_id="run-1", id="m1")
    answer = AssistantMessage(content=[TextContent(text="ho")], usage=used, model_id="big", run_id="run-1", id="m2")
    odd = AssistantMessage(
        content=[TextContent(text="\ud800")], usage=used, model_id="odd", metadata={"n": 2**70}, run_id="run-1"
    )
    await keep.cube.append("talk", [said])
    await keep.cube.append("talk", [answer, odd])
    await keep.cube.mark_run_complete("talk", "run-1")
    await keep.cube.fork("talk", "forked", after_run_id="run-1")


def test_cube_threads_count_cached_tokens_as_input(keep: threadkeep.Keep, ask: Ask) -> None:
    asyncio.run(_cube(keep))
    found = ask(keep, "usage", by=("thread", "model"))
    assert sorted(tuple(row.key.values()) for row in found.rows) == [
        ("forked", "cube", "big"), ("forked", "cube", "odd"), ("talk", "cube", "big"), ("talk", "cube", "odd"),
    ]  # fmt: skip
    assert {(row.input_tokens, row.output_tokens, row.total_tokens) for row in found.rows} == {(44, 2, 46)}
    assert found.rows[0].input_details == {"cache_read": 30, "cache_creation": 4}
    first = next(each.id for each in keep.log("talk") if len(keep.show("talk", each.id).values["messages"]) == 1)
    ask(keep, "rollback", "talk", first)
    assert counted(ask(keep, "usage", "talk"))[0] == 0
    assert counted(ask(keep, "usage", "talk", all_branches=True, by="node"))[0] == 2


def test_copies_files_keys_tenants_and_readers_count_the_same(lasting_url: str, ask: Ask, tmp_path: Path) -> None:
    with threadkeep.open(lasting_url) as keep:
        talk(keep, ask)
        expected = counted(keep.usage("1", all_branches=True))
        keep.copy("1", "2")
        keep.fork("1", to="3")
        keep.export(str(tmp_path / "all.tk"))
        assert counted(keep.usage("2", all_branches=True)) == counted(keep.usage("3")) == expected
    with threadkeep.open(lasting_url, read_only=True) as keep:
        assert counted(ask(keep, "usage", "1")) == expected
    with threadkeep.open(f"sqlite:///{tmp_path / 'sealed.db'}", keys=KEYS, hide_ids=True) as keep:
        tenant = keep.tenant("acme")
        tenant.import_portable(str(tmp_path / "all.tk"))
        assert counted(ask(tenant, "usage", "1", by="node")) == expected
        assert counted(ask(keep, "usage"))[0] == 0


def test_a_damaged_message_does_not_count_and_is_reported(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "damaged.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        long = [ai(f"m{n}", 1).model_copy(update={"content": f"{n} " * 900}) for n in range(5)]
        put(keep.checkpointer, {"messages": long}, thread="t")
        put(keep.checkpointer, {"messages": [ai("fine", 1)]}, thread="u")
    database = apsw.Connection(str(path))
    (place,) = database.execute("SELECT thread, lane, n FROM tk_items WHERE lane > 2 ORDER BY 1, 2, 3 LIMIT 1")
    database.execute("UPDATE tk_items SET payload = x'0000' WHERE (thread, lane, n) = (?, ?, ?)", place)
    database.close()
    with threadkeep.open(f"sqlite:///{path}") as keep:
        found = ask(keep, "usage")
        assert (found.damaged, found.skipped, counted(found)[0], found.threads) == (("t",), (), 5, 2)


# --- any history of a conversation


EDIT = st.tuples(st.sampled_from(["append", "replace", "remove", "insert", "back"]), st.integers(0, 30))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(EDIT, max_size=12))
def test_any_edits_of_a_conversation_count_each_message_once(edits: list[tuple[str, int]]) -> None:
    with threadkeep.open("memory://") as keep:
        saver = keep.checkpointer
        state: list[Any] = []
        stored: list[tuple[str, list[Any]]] = []
        ever: dict[str, int] = {}
        parent: str | None = None
        for number, (edit, at) in enumerate(edits):
            where = at % len(state) if state else 0
            new = ai(f"m{number}", number + 1)
            if edit == "back" and stored:
                parent, state = stored[at % len(stored)]
            elif edit == "replace" and state:
                state = [*state[:where], new, *state[where + 1 :]]
            elif edit == "remove":
                state = [*state[:where], *state[where + 1 :]]
            else:
                state = [*state[:where], new, *state[where:]] if edit == "insert" else [*state, new]
            chain = Chain(saver)
            chain.last = parent
            parent = f"{number:08}"
            chain.put({"messages": list(state)}, id=parent)
            stored.append((parent, list(state)))
            ever |= {each.id: each.usage_metadata["input_tokens"] for each in state}
        now = sum(each.usage_metadata["input_tokens"] for each in state)
        assert counted(keep.usage())[:2] == (len(state), now)
        assert counted(keep.usage(by="node"))[:2] == (len(state), now)
        assert counted(keep.usage(all_branches=True))[:2] == (len(ever), sum(ever.values()))
