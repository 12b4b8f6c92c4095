"""A message that gets its id late shares its long strings between its write and its channel."""

from __future__ import annotations

import random
from typing import Any

import ormsgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

import threadkeep
from threadkeep.engine.log import cut_points
from threadkeep.engine.log.type_gate import KeepSerializer

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary(),
              st.integers(500, 70_000).map(lambda n: "x" * n), st.integers(500, 1500).map(lambda n: b"y" * n)),
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(st.text(), inner, max_size=20)),
    max_leaves=20,
)  # fmt: skip


@given(st.binary())
def test_the_pieces_are_the_element_whatever_it_is(element: bytes) -> None:
    assert b"".join(cut_points.cut(element)) == element


@given(PLAIN)
@settings(deadline=None)
def test_every_long_string_of_msgpack_is_a_piece(value: Any) -> None:
    element = ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    pieces = cut_points.cut(element)
    assert b"".join(pieces) == element
    long = [text for text in strings(value) if len(text) >= cut_points.LONG]
    assert [piece for piece in pieces if piece in long] == long


def strings(value: Any) -> list[bytes]:
    if isinstance(value, (list, tuple)):
        return [text for inner in value for text in strings(inner)]
    if isinstance(value, dict):
        return [text for pair in value.items() for inner in pair for text in strings(inner)]
    return [value.encode() if isinstance(value, str) else value] if isinstance(value, (str, bytes)) else []


def test_a_long_string_inside_a_message_is_a_piece() -> None:
    element = KeepSerializer().dumps_typed([ToolMessage("z" * 5000, tool_call_id="1")])[1][1:]
    assert b"z" * 5000 in cut_points.cut(element)


def noise(seed: int, size: int) -> str:
    return "".join(random.Random(seed).choices("0123456789abcdef", k=size))


def grown(keep: threadkeep.Keep, answer: AIMessage, *, turns: int) -> int:
    builder = StateGraph(MessagesState)
    builder.add_node(
        "reply",
        lambda state: {"messages": [answer.model_copy(update={"content": noise(len(state["messages"]), 40_000)})]},
    )
    builder.add_edge(START, "reply")
    graph = builder.compile(checkpointer=keep.checkpointer)
    config: Any = {"configurable": {"thread_id": "t"}}
    for turn in range(turns):
        graph.invoke({"messages": [HumanMessage(f"turn {turn}")]}, config)
    stored = graph.get_state(config).values["messages"]
    assert [m.content for m in stored if m.type == "ai"] == [noise(2 * turn + 1, 40_000) for turn in range(turns)]
    assert all(m.id for m in stored)
    return keep.threads()[0].bytes


def test_a_message_without_an_id_is_stored_once_for_its_write_and_its_channel(keep: threadkeep.Keep) -> None:
    """40,000 hex digits are 20,000 bytes at best, 40,000 if write and channel did not share them.

    LangGraph puts writes and checkpoints from several threads: a write that arrives after its checkpoint is not shared.
    """
    assert grown(keep, AIMessage(""), turns=12) < 12 * 20_000 * 1.4


def test_a_long_list_in_many_pieces_reads_the_same_in_another_keep(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        grown(keep, AIMessage(""), turns=40)
        before = [t.checkpoint for t in keep.checkpointer.list({"configurable": {"thread_id": "t"}})]
        keep.checkpointer.prune(["t"])
        keep.checkpointer.copy_thread("t", "copy")
    with threadkeep.open(lasting_url) as keep:
        for thread in ("t", "copy"):
            (found,) = keep.checkpointer.list({"configurable": {"thread_id": thread}})
            assert found.checkpoint == before[0]
