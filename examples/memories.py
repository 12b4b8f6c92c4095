"""Memories of a user, shared by all threads: found by words, then by meaning, with a tiny embedder."""

import re
import tempfile
from collections.abc import Sequence

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore, IndexConfig

import threadkeep

Chat = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]

TOPICS = [{"drink", "drinks", "tea", "coffee", "thirsty"}, {"boat", "sail", "sails", "sea"}, {"piano", "music", "song"}]
FACTS = ["I drink green tea.", "My boat is called Gull.", "I play the piano."]


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Count the words of each topic. A real model has hundreds of dimensions, without names."""
    words = [set(re.findall(r"\w+", text.lower())) for text in texts]
    return [[float(len(topic & found)) for topic in TOPICS] for found in words]


def reply(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> MessagesState:
    """Answer a question from this user's memories; store everything else as a memory."""
    last = state["messages"][-1]
    notes = ("users", config["configurable"]["user"], "notes")
    if not last.text.endswith("?"):
        store.put(notes, str(last.id), {"text": last.text, "thread": config["configurable"]["thread_id"]})
        return {"messages": [AIMessage("I will remember that.")]}
    found = store.search(notes, query=last.text, limit=1)
    known = [item for item in found if item.score is not None]  # without a score, it has no word of the question
    return {"messages": [AIMessage(known[0].value["text"] if known else "I do not know.")]}


def chat(keep: threadkeep.Keep) -> Chat:
    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=keep.checkpointer, store=keep.store)


def say(graph: Chat, text: str, *, user: str, thread: str) -> str:
    config: RunnableConfig = {"configurable": {"thread_id": f"{user}-{thread}", "user": user}}
    answer: str = graph.invoke({"messages": [HumanMessage(text)]}, config)["messages"][-1].text
    print(f"  {user:<3} in {thread:<7}  {text:<28}  {answer}")
    return answer


with tempfile.TemporaryDirectory() as folder:
    print("By words, which is the default: memories with a word in common come first, and have a score")
    with threadkeep.open(f"sqlite:///{folder}/words.db") as keep:
        graph = chat(keep)
        for text in FACTS:
            say(graph, text, user="user-1", thread="monday")
        assert say(graph, "What is my boat called?", user="user-1", thread="tuesday") == FACTS[1]
        assert say(graph, "Thirsty?", user="user-1", thread="tuesday") == "I do not know."
        assert say(graph, "What is my boat called?", user="user-2", thread="tuesday") == "I do not know."

    print("By meaning: no word has to be the same")
    index = IndexConfig(dims=len(TOPICS), embed=embed, fields=["text"])
    with threadkeep.open(f"sqlite:///{folder}/vectors.db", index=index) as keep:
        graph = chat(keep)
        for text in FACTS:
            say(graph, text, user="user-1", thread="monday")
        assert say(graph, "Thirsty?", user="user-1", thread="tuesday") == FACTS[0]
        assert say(graph, "Shall we sail?", user="user-1", thread="tuesday") == FACTS[1]

    print("All memories, from any thread")
    with threadkeep.open(f"sqlite:///{folder}/vectors.db", index=index) as keep:
        print(" ", keep.store.list_namespaces())
        for item in keep.store.search(("users",), filter={"thread": {"$in": ["user-1-monday"]}}):
            print(" ", item.value)
