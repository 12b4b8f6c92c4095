"""Example threads to inspect: a chat with tools, branches and a question; a fan-out with a subgraph; cube threads."""

from __future__ import annotations

import operator
import sys
import types
from typing import Annotated, Any, TypedDict

from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import AssistantMessage, TextContent, UserMessage
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt

APP = """
import dataclasses
import pydantic

class User(pydantic.BaseModel):
    name: str
    address: dict

@dataclasses.dataclass
class Note:
    text: str
    pages: list
"""


def config_of(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    user: Any
    note: Any


def chat(saver: Any, app: Any) -> Any:
    """Build a graph that calls a tool, answers, and asks a person on `approve`. Its classes are those of `app`."""

    def agent(state: Chat) -> dict[str, Any]:
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            return {"messages": [AIMessage("It is 21 degrees.", id="answer")]}
        if "approve" in last.content:
            return {"messages": [AIMessage(f"You said {interrupt({'question': 'really?'})}")]}
        call = {"name": "weather", "args": {"city": "Oslo"}, "id": "call"}
        user = app.User(name="Ann", address={"city": "Oslo", "zip": [1, 2]})
        return {"messages": [AIMessage("Let me look.", id="looks", tool_calls=[call])], "user": user}

    def tool(state: Chat) -> dict[str, Any]:
        found = ToolMessage("21 degrees", tool_call_id="call", name="weather", id="found")
        return {"messages": [found], "note": app.Note("hi", [3])}

    def after(state: Chat) -> str:
        return "tool" if getattr(state["messages"][-1], "tool_calls", None) else END

    builder = StateGraph(Chat)
    builder.add_node("agent", agent)
    builder.add_node("tool", tool)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", after, ["tool", END])
    builder.add_edge("tool", "agent")
    return builder.compile(checkpointer=saver)


class Sums(TypedDict, total=False):
    done: Annotated[list[int], operator.add]


def team(saver: Any) -> Any:
    """Build a graph that fans out with sends and then runs a subgraph."""
    inner = StateGraph(Sums)
    inner.add_node("first", lambda state: {"done": [100]})
    inner.add_node("second", lambda state: {"done": [101]})
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    builder = StateGraph(Sums)
    builder.add_node("plan", lambda state: {})
    builder.add_node("work", lambda task: {"done": [task["n"] * 2]})
    builder.add_node("team", inner.compile())
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"n": n}) for n in (2, 0, 1)], ["work"])
    builder.add_edge("work", "team")
    return builder.compile(checkpointer=saver)


def failing(saver: Any) -> Any:
    def fail(state: Sums) -> dict[str, Any]:
        raise ValueError("no such city")

    builder = StateGraph(Sums)
    builder.add_node("fail", fail)
    builder.add_edge(START, "fail")
    return builder.compile(checkpointer=saver)


def write_threads(keep: Any) -> Any:
    """Write the threads `chat`, `fan` and `broken`. Return the chat's graph; its classes are no longer importable.

    The chat: a question, a tool call, an answer; then a branch from before the answer by update_state, and an
    interrupt.
    """
    app = types.ModuleType("gone_app")
    sys.modules["gone_app"] = app
    exec(APP, app.__dict__)  # so that the classes belong to this module
    try:
        graph = chat(keep.checkpointer, app)
        graph.invoke({"messages": [HumanMessage("How is the weather?", id="asks")]}, config_of("chat"))
        before = list(graph.get_state_history(config_of("chat")))[1]
        edited = [AIMessage("Edited.", id="looks"), RemoveMessage("asks")]
        user = app.User(name="Ann", address={"city": "Bergen", "zip": [1, 2]})
        graph.update_state(before.config, {"messages": edited, "user": user})
        graph.invoke({"messages": [("human", "please approve")]}, config_of("chat"))
    finally:
        del sys.modules["gone_app"]
    team(keep.checkpointer).invoke({"done": [7]}, config_of("fan"))
    try:
        failing(keep.checkpointer).invoke({"done": []}, config_of("broken"))
    except ValueError:
        return graph
    raise AssertionError("it did not fail")


async def write_cube_threads(cube: Any) -> None:
    """Write the CubeLoop threads `talk` (two runs, the second with a question) and `talk2` (a fork after the first)."""

    def user_message(text: str, run: str, id: str) -> UserMessage:
        return UserMessage(content=[TextContent(text=text)], run_id=run, id=id)

    await cube.claim_run("talk", "r1")
    reply = AssistantMessage(content=[TextContent(text="hi there")], run_id="r1", id="m2")
    await cube.append("talk", [user_message("hello", "r1", "m1"), reply])
    await cube.save_extra("talk", {"a": {"b": 1}})
    await cube.mark_run_complete("talk", "r1")
    await cube.claim_run("talk", "r2")
    await cube.append("talk", [user_message("more", "r2", "m3")])
    await cube.save_extra("talk", {"a": {"b": 2}, "large": 2**80})
    question = HitlRequest(question_id="q", thread_id="talk", payload=ConfirmRequest(prompt="Shall I?"), created_at=1.5)
    await cube.save_pending_request("talk", question, run_id="r2")
    await cube.save_hitl_answer("talk", "q0", "yes", run_id="r2")
    await cube.fork("talk", "talk2", after_run_id="r1")
