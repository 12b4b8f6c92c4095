"""Time travel: read a thread's history, replay from a checkpoint, and fork from one with another state."""

import operator
from typing import Annotated, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import StateSnapshot

import threadkeep


class Story(TypedDict):
    hero: str
    lines: Annotated[list[str], operator.add]


def opening(state: Story) -> dict[str, list[str]]:
    return {"lines": [f"There was a {state['hero']}."]}


def ending(state: Story) -> dict[str, list[str]]:
    return {"lines": [f"The {state['hero']} lived happily ever after."]}


def show(state: StateSnapshot) -> None:
    metadata = state.metadata or {}
    print(f"  {metadata.get('source'):<6} {metadata.get('step'):>2}  next {state.next or 'nothing'}  {state.values}")


builder = StateGraph(Story)
builder.add_sequence([opening, ending])
builder.add_edge(START, "opening")

with threadkeep.open("memory://") as keep:
    graph = builder.compile(checkpointer=keep.checkpointer)
    thread: RunnableConfig = {"configurable": {"thread_id": "story"}}

    print("The story:", *graph.invoke({"hero": "fox", "lines": []}, thread)["lines"])
    print("Its history, newest first:")
    history = list(graph.get_state_history(thread))
    for state in history:
        show(state)

    middle = next(state for state in history if state.next == ("ending",))
    print("Replayed from the middle:", *graph.invoke(None, middle.config)["lines"])

    fork = graph.update_state(middle.config, {"hero": "hedgehog", "lines": ["A hedgehog came along."]})
    print("Forked from the middle:", *graph.invoke(None, fork)["lines"])

    print("Both branches are kept:", len(list(keep.checkpointer.list(thread))), "checkpoints in one thread")
    assert graph.get_state(history[0].config).values["hero"] == "fox", "the first branch must not change"
