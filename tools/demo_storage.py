"""A storage to look at: what a support desk's agents leave behind, for the inspector's screenshots and tests."""

from __future__ import annotations

import asyncio
import operator
import struct
import zlib
from base64 import b64encode
from contextlib import suppress
from time import sleep, time
from typing import Annotated, Any, TypedDict

from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import AssistantMessage, TextContent, UserMessage
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

import threadkeep

HOSTILE = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"
"""A message that must stay a text."""
_POLICY = """Here is what our policy says:

- Orders that arrive **damaged** are refunded in full.
- Refunds above *$100* need approval by a person.

| order | price | state |
|---|---:|---|
| A-1041 | $129.00 | damaged |
"""


class Desk(TypedDict, total=False):
    """The state of a conversation."""

    messages: Annotated[list[AnyMessage], add_messages]
    customer: dict[str, Any]
    refund: dict[str, Any]


def support() -> Any:
    """Build the graph of the support desk: it looks up an order, asks a person above a limit, and refunds."""

    def agent(state: Desk) -> dict[str, Any]:
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            usage = {"input_tokens": 812, "output_tokens": 96, "total_tokens": 908}
            return {"messages": [AIMessage(_POLICY, id=f"policy-{len(state['messages'])}", usage_metadata=usage)]}
        call = {"name": "find_order", "args": {"order": "A-1041", "fields": ["price", "state"]}, "id": "call-1"}
        usage = {"input_tokens": 344, "output_tokens": 31, "total_tokens": 375}
        text = "Let me look at your order."
        found = AIMessage(text, id=f"looks-{len(state['messages'])}", tool_calls=[call], usage_metadata=usage)
        return {"messages": [found], "customer": {"name": "Ada", "plan": "pro", "since": 2021, "tags": ["vip", "eu"]}}

    def find_order(state: Desk) -> dict[str, Any]:
        text = '{"order": "A-1041", "price": 129.0, "state": "damaged", "items": [{"sku": "LAMP-2", "count": 1}]}'
        return {
            "messages": [
                ToolMessage(text, tool_call_id="call-1", name="find_order", id=f"found-{len(state['messages'])}")
            ]
        }

    def approve(_state: Desk) -> dict[str, Any]:
        answer = interrupt({"question": "Refund $129.00 for order A-1041?", "limit": 100, "options": ["yes", "no"]})
        return {"refund": {"order": "A-1041", "amount": 129.0, "approved": answer}}

    def close(state: Desk) -> dict[str, Any]:
        said = (
            "Your refund is on its way."
            if state["refund"]["approved"] == "yes"
            else "I am afraid I cannot refund this."
        )
        return {"messages": [AIMessage(said, id="closes")]}

    builder: Any = StateGraph(Desk)
    for node in (agent, find_order, approve, close):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges(
        "agent",
        lambda state: "find_order" if state["messages"][-1].tool_calls else "approve",
        ["find_order", "approve"],
    )
    builder.add_edge("find_order", "agent")
    builder.add_edge("approve", "close")
    builder.add_edge("close", END)
    return builder


class Research(TypedDict, total=False):
    """The state of a research."""

    topic: str
    notes: Annotated[list[str], operator.add]


def research() -> Any:
    """Build a graph that fans out and calls a subgraph."""

    def search(piece: Any) -> dict[str, Any]:
        sleep(0.04)
        return {"notes": [f"found: {piece['topic']}"]}

    def draft(state: Research) -> dict[str, Any]:
        sleep(0.15)
        return {"notes": [f"draft on {state['topic']}"]}

    inner: Any = StateGraph(Research)
    inner.add_node("draft", draft)
    inner.add_node("review", lambda _state: {"notes": ["reviewed"]})
    inner.add_edge(START, "draft")
    inner.add_edge("draft", "review")
    builder: Any = StateGraph(Research)
    builder.add_node("plan", lambda _state: {"notes": ["a plan"]})
    builder.add_node("search", search)
    builder.add_node("write", inner.compile())
    builder.add_edge(START, "plan")
    sources = ("papers", "news", "books")
    builder.add_conditional_edges(
        "plan", lambda state: [Send("search", {"topic": f"{state['topic']} in {each}"}) for each in sources], ["search"]
    )
    builder.add_edge("search", "write")
    return builder


def failing() -> Any:
    """Build a graph whose only node fails."""

    def call_model(_state: Any) -> dict[str, Any]:
        raise TimeoutError("the model did not answer within 60 s")

    builder: Any = StateGraph(Research)
    builder.add_node("call_model", call_model)
    builder.add_edge(START, "call_model")
    return builder


def config(thread: str, user: str) -> dict[str, Any]:
    """Return the config of a thread of a user."""
    return {"configurable": {"thread_id": thread}, "metadata": {"user": user}}


def fill(keep: threadkeep.Keep) -> None:
    """Write a storage with something on every page of the inspector."""
    _conversations(keep)
    asked = support().compile(checkpointer=keep.checkpointer)
    graph = research().compile(checkpointer=keep.checkpointer)
    for n, topic in enumerate(("tides", "volcanoes", "lichen")):
        # a checkpoint is stored before its tasks run, so that bars of the timeline begin where they should
        graph.invoke({"topic": topic}, config(f"research/{topic}", f"u{n}"), durability="sync")
    with suppress(TimeoutError):
        failing().compile(checkpointer=keep.checkpointer).invoke({"topic": "comets"}, config("research/comets", "u2"))
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_picture()}"}}
    hostile = HumanMessage([{"type": "text", "text": HOSTILE}, picture], id="hostile")
    asked.invoke(
        {"messages": [SystemMessage("You help customers.", id="system"), hostile]}, config("hostile <b>id</b>", "u9")
    )
    _memories(keep)
    _cube(keep)


def _picture() -> str:
    """Return a small PNG of coloured bands, in base64."""
    width, height = 96, 48
    rows = b"".join(
        b"\0" + b"".join(bytes((90 + x // 8 * 12, 108, 242 - x // 8 * 12)) for x in range(width)) for _ in range(height)
    )
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(packed)).decode()


def _conversations(keep: threadkeep.Keep) -> None:
    """One conversation with a second attempt and a tag, one that waits, one that was answered."""
    graph = support().compile(checkpointer=keep.checkpointer)
    question = HumanMessage("My lamp arrived **broken**. Can I get my money back?", id="asks")
    for thread, user in (("support/ada", "ada"), ("support/grace", "grace"), ("support/linus", "linus")):
        graph.invoke({"messages": [question]}, config(thread, user))
    graph.invoke(Command(resume="yes"), config("support/ada", "ada"))
    again = list(graph.get_state_history(config("support/ada", "ada")))[2]
    graph.update_state(again.config, {"customer": {"name": "Ada", "plan": "free", "since": 2021, "tags": ["eu"]}})
    graph.invoke(None, config("support/ada", "ada"))
    graph.invoke(Command(resume="no"), config("support/ada", "ada"))
    graph.invoke(Command(resume="yes"), config("support/linus", "linus"))
    keep.describe("support/ada", title="Broken lamp: refund of A-1041", labels=["refund", "vip"])
    keep.describe("support/linus", labels=["refund"])
    keep.tag("support/ada", "latest~3", "before the refund")
    token = HumanMessage("Use my key sk-demo-4f9a2b to check it.", id="key")
    graph.invoke({"messages": [token]}, config("support/linus", "linus"))


def _memories(keep: threadkeep.Keep) -> None:
    for n, (user, kind, text) in enumerate(
        (
            ("ada", "preference", "Likes short answers, and tea"),
            ("ada", "fact", "Lives in London"),
            ("grace", "preference", "Wants every step explained"),
            ("linus", "fact", "Uses a reading lamp at night"),
        )
    ):
        keep.store.put(("users", user, kind), f"m{n}", {"kind": kind, "text": text, "seen": n + 1})
    keep.store.put(("desk", "policies"), "refunds", {"text": "Refunds above $100 need approval", "version": 3})
    keep.store.put(("sessions",), "cart", {"items": ["LAMP-2"], "total": 129.0}, ttl=90)


def _cube(keep: threadkeep.Keep) -> None:
    """A thread of CubeLoop that asks."""

    async def write() -> None:
        cube = keep.cube
        await cube.claim_run("cleanup", "r1")
        said: list[Any] = [
            UserMessage(content=[TextContent(text="Delete the old exports")], run_id="r1", id="m1"),
            AssistantMessage(content=[TextContent(text="That is 42 files. May I?")], run_id="r1", id="m2"),
        ]
        await cube.append("cleanup", said)
        payload = ConfirmRequest(prompt="Delete 42 files?")
        question = HitlRequest(question_id="q", thread_id="cleanup", payload=payload, created_at=time())
        await cube.save_pending_request("cleanup", question, run_id="r1")

    asyncio.run(write())
