"""A graph for `langgraph dev` that takes notes, once a person has approved them, and finds them again. No API key."""

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import interrupt


async def reply(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> MessagesState:
    """Answer a question from the notes of this user; offer to store everything else as a note."""
    last = state["messages"][-1]
    notes = ("notes", config["configurable"].get("user", "anybody"))
    if last.text.endswith("?"):
        found = await store.asearch(notes, query=last.text, limit=1)
        return {"messages": [AIMessage(found[0].value["text"] if found else "I do not know.")]}
    if interrupt(f"Store this note? {last.text}") != "yes":
        return {"messages": [AIMessage("Forgotten.")]}
    await store.aput(notes, str(last.id), {"text": last.text})
    return {"messages": [AIMessage("Noted.")]}


graph = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply").compile()
