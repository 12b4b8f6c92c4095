"""The example of the README: a graph with memory in one SQLite file."""

import tempfile

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

import threadkeep


def reply(state: MessagesState) -> MessagesState:
    said = [message.text for message in state["messages"] if isinstance(message, HumanMessage)]
    return {"messages": [AIMessage(f"You said: {', then '.join(said)}.")]}


builder = StateGraph(MessagesState)
builder.add_node("reply", reply)
builder.add_edge(START, "reply")

with tempfile.TemporaryDirectory() as folder, threadkeep.open(f"sqlite:///{folder}/agent.db") as keep:
    graph = builder.compile(checkpointer=keep.checkpointer)
    thread: RunnableConfig = {"configurable": {"thread_id": "t1"}}
    for text in ("hello", "good-bye"):
        print(graph.invoke({"messages": [HumanMessage(text)]}, thread)["messages"][-1].text)

    for state in graph.get_state_history(thread):
        print(len(state.values["messages"]), "messages, next:", state.next or "nothing")
