"""The agent of the demo: a LangGraph graph whose model is scripted, so that it needs no API key.

    START -> model -> tools -> respond -> END

Messages, tool calls and the tool node are LangChain's and LangGraph's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

Agent: TypeAlias = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]

FORECASTS = {"Lisbon": "24 °C and sun", "Oslo": "-3 °C and snow"}


def model(state: MessagesState) -> dict[str, Any]:
    """Stand in for a language model: ask the tool about the last word of the question."""
    question = state["messages"][-1].text
    return {"messages": [asks_for(question.rstrip("?").split()[-1])]}


def asks_for(subject: str, *, message_id: str | None = None) -> AIMessage:
    """Build the message with which the model calls its tool."""
    call = {"name": "look_up", "args": {"subject": subject}, "id": f"call-{subject}"}
    return AIMessage("", id=message_id, tool_calls=[call])


def respond(state: MessagesState) -> dict[str, Any]:
    """Turn what the tool found into an answer."""
    return {"messages": [AIMessage(f"I looked it up: {state['messages'][-1].text}.")]}


def weather(subject: str) -> str:
    """Return the weather of a city."""
    return f"{subject} has {FORECASTS[subject]}"


def agent(saver: BaseCheckpointSaver[Any], look_up: Callable[[str], str] = weather) -> Agent:
    """Compile the agent with its checkpointer and the function behind its only tool."""
    tool = StructuredTool.from_function(look_up, name="look_up", description="Look a subject up.")
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([tool]))
    builder.add_node("respond", respond)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", "respond")
    builder.add_edge("respond", END)
    return builder.compile(checkpointer=saver)


def ask(graph: Agent, question: str, config: RunnableConfig) -> list[AnyMessage]:
    """Ask the agent a question, and return all messages of the thread."""
    return messages(graph.invoke({"messages": [HumanMessage(question)]}, config))


def messages(state: dict[str, Any]) -> list[AnyMessage]:
    """Return the messages of a state. The first state of a thread has none."""
    found: list[AnyMessage] = state.get("messages", [])
    return found
