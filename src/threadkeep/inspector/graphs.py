"""The user's own graph, for what only it can do: answer an interrupt, update the state."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from threadkeep.inspector.query import QueryParameters, json_or_text

if TYPE_CHECKING:
    from threadkeep import Keep
    from threadkeep.inspector.inspected import ChosenCheckpoint, Inspected


def load_graph(name: str, keep: Keep) -> Any:
    """Import a graph, `module:attribute`, and return it with the checkpointer and the store of a Keep.

    The attribute is a compiled graph, or a StateGraph that was not compiled. ValueError if it is neither.
    """
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise ValueError(f"--graph must be module:attribute, not {name!r}")
    graph: Any = getattr(import_module(module), attribute, None)
    if hasattr(graph, "compile"):
        return graph.compile(checkpointer=keep.checkpointer, store=keep.store)
    if not hasattr(graph, "ainvoke") or not hasattr(graph, "copy"):
        raise ValueError(f"{name} is not a graph of LangGraph")
    return graph.copy({"checkpointer": keep.checkpointer, "store": keep.store})


async def answer(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> None:
    """Resume a thread with an answer to its interrupt."""
    from langgraph.types import Command  # noqa: PLC0415 - the user's graph has imported it

    given, interrupt = json_or_text(form.required("value")), form.optional("interrupt")
    command: Any = Command(resume={interrupt: given} if interrupt is not None else given)
    await shown.graph.ainvoke(command, {"configurable": {"thread_id": place.thread}})


async def update(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> str:
    """Update the state of a checkpoint. Return the id of the new one."""
    made = await shown.graph.aupdate_state(place.config, form.conditions("value"), as_node=form.optional("node"))
    return str(made["configurable"]["checkpoint_id"])
