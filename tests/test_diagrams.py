"""The diagram of the item log shows what a Keep really stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import diagrams
import threadkeep
from threadkeep.engine.log.itemlog import unpack_ranges

THREAD: Any = {"configurable": {"thread_id": "t1"}}
LANE = 4


def said(id: str, text: str = "What is this?") -> Any:
    return {"messages": [HumanMessage(text, id=id)]}


def ranges_by_step(file: Path) -> dict[tuple[int, str], tuple[tuple[int, int], ...]]:
    """Return the ranges of messages of the last checkpoint of each step and source that was put."""
    rows = apsw.Connection(str(file)).execute("SELECT step, source, refs FROM tk_checkpoints ORDER BY id")
    return {
        (step, source): tuple((each.start, each.length) for each in unpack_ranges(refs) if each.lane == LANE)
        for step, source, refs in rows
    }


def test_the_ranges_of_the_picture_are_those_that_are_stored(tmp_path: Path) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node(
        "reply", lambda state: {"messages": [AIMessage("Yes.", id=f"reply to {state['messages'][-1].id}")]}
    )
    builder.add_edge(START, "reply")
    file = tmp_path / "agent.db"
    with threadkeep.open(f"sqlite:///{file}") as keep:
        graph = builder.compile(checkpointer=keep.checkpointer)
        for id in ("first", "second", "third"):
            graph.invoke(said(id), THREAD, durability="sync")
        before = ranges_by_step(file)
        history = list(graph.get_state_history(THREAD))
        end_of_the_second = next(state for state in history if state.metadata["step"] == 4)
        graph.invoke(said("another third"), end_of_the_second.config, durability="sync")
        graph.update_state(history[0].config, said("first", "Edited."))
    after = ranges_by_step(file)
    stored = [before[1, "loop"], before[4, "loop"], before[7, "loop"], after[7, "loop"], after[8, "update"]]
    assert [ranges for _, _, _, ranges in diagrams.CHECKPOINTS] == stored


def test_the_written_ranges_of_the_picture_are_those_that_it_draws() -> None:
    for _, _, written, ranges in diagrams.CHECKPOINTS:
        drawn = [f"{LANE}:{start}" + f"+{length}" * (length > 1) for start, length in ranges]
        assert written.split() == drawn
