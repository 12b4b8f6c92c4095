"""Ask a person in the middle of a graph; answer later, even from another process."""

import tempfile
from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt

import threadkeep

THREAD: RunnableConfig = {"configurable": {"thread_id": "letter"}}


class Letter(TypedDict, total=False):
    to: str
    text: str
    sent: bool


def draft(state: Letter) -> Letter:
    print("  (draft runs)")
    return {"text": f"Dear {state['to']}, your order is late."}


def review(state: Letter) -> Letter:
    """Stop here until someone answers; the answer is what `interrupt` returns."""
    return {"text": interrupt({"please correct": state["text"]})}


def send(state: Letter) -> Letter:
    print("  (send runs)", state["text"])
    return {"sent": True}


def letter(saver: BaseCheckpointSaver[Any]) -> CompiledStateGraph[Letter, None, Letter, Letter]:
    builder = StateGraph(Letter)
    builder.add_sequence([draft, review, send])
    builder.add_edge(START, "draft")
    return builder.compile(checkpointer=saver)


with tempfile.TemporaryDirectory() as folder:
    url = f"sqlite:///{folder}/letters.db"

    print("The first process runs until the question:")
    with threadkeep.open(url) as keep:
        letter(keep.checkpointer).invoke({"to": "customer"}, THREAD)

    print("Later, another opens the same file, finds the question and answers:")
    with threadkeep.open(url) as keep:
        graph = letter(keep.checkpointer)
        waiting = graph.get_state(THREAD)
        print("  waiting at", waiting.next, "with", waiting.interrupts[0].value)
        final = graph.invoke(Command(resume="Dear customer, we are sorry: your order is late."), THREAD)

assert final["sent"], "the letter must be sent after the answer"
