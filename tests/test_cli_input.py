"""The command with input that people get wrong, or that is strange: nothing is lost, nothing is misunderstood."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import threadkeep
from threadkeep.cli.app import run


def chat(keep: threadkeep.Keep, *ids: str) -> None:
    """A thread of three checkpoints for each id."""
    builder = StateGraph(MessagesState).add_node("reply", lambda _: {"messages": [("ai", "hello")]})
    graph = builder.add_edge(START, "reply").compile(checkpointer=keep.checkpointer)
    for id in ids:
        graph.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": id}})


def talk(keep: threadkeep.Keep, id: str) -> None:
    asyncio.run(keep.cube.save_extra(id, {"mood": "good"}))


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THREADKEEP_URL", "agent.db")
    with threadkeep.open("sqlite:///agent.db") as opened:
        yield opened


def test_a_thread_that_is_named_twice_is_deleted_once_and_ids_stay_on_their_line(keep: Any, capsys: Any) -> None:
    chat(keep, "t", "u\nv")
    assert run(["copy", "t", "w\nx"]) == 0
    assert run(["delete", "t", "t", "u\nv", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines() == ["copied t to w\\nx", "deleted t", "deleted u\\nv"]
