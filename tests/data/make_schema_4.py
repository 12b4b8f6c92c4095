"""Makes schema-4.sqlite.gz: a file of the last threadkeep whose thread rows had no checksums.

Run it with that version's `src` as PYTHONPATH:  python tests/data/make_schema_4.py FOLDER
"""

import asyncio
import gzip
import sys
from pathlib import Path

from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import threadkeep

THREADS = ["talk", "Gespräch 😀", "waiting"]
NODE = "antwört 😀"
"""The path of a task has this name. `repr` leaves its characters as they are, `ascii` does not."""


def config(id):
    return {"configurable": {"thread_id": id}, "metadata": {"user": "ü1"}}


def graph(saver):
    def answer(state):
        if state["messages"][-1].text == "stop":
            interrupt("go on?")
        return {"messages": [AIMessage("answer " * 50, id=f"a{len(state['messages'])}")]}

    builder = StateGraph(MessagesState)
    builder.add_node(NODE, answer)
    builder.add_edge(START, NODE)
    return builder.compile(checkpointer=saver)


async def append(keep):
    message = UserMessage(content=[TextContent(text="hello " * 50)], metadata={"id": "m1"})
    await keep.cube.append("cube", [message])


def main(folder):
    path = Path(folder) / "schema-4.sqlite"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        for id in THREADS:
            for n in range(3):
                question = HumanMessage(f"question {n} " * 30, id=f"h{n}")
                graph(keep.checkpointer).invoke({"messages": [question]}, config(id))
        graph(keep.checkpointer).invoke({"messages": [HumanMessage("stop", id="h3")]}, config("waiting"))
        edited = {"messages": [AIMessage("edited", id="a1")]}
        graph(keep.checkpointer).update_state(config("talk"), edited, as_node=NODE)
        asyncio.run(append(keep))
        keep.store.put(("users", "u1"), "name", {"text": "Ada"})
        assert keep.verify().ok
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
