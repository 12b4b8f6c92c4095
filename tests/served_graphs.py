"""Graphs and an auth handler that `langgraph dev` loads in tests: see `agent_servers.py`. No model, no network."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import interrupt
from langgraph_sdk import Auth


class Steps(TypedDict, total=False):
    """`log` has the names of the nodes that ran, and what they were told to add."""

    log: Annotated[list[str], operator.add]
    ask: bool
    """Whether the second node asks before it goes on."""


async def first(state: Steps) -> Steps:
    return {"log": ["first"]}


async def second(state: Steps, config: RunnableConfig, *, store: BaseStore) -> Steps:
    """Wait as many seconds as the config says."""
    given = config["configurable"]
    await asyncio.sleep(given.get("seconds", 0))
    answer = [interrupt("go on?")] if state.get("ask") else []
    await store.aput(("steps",), given["thread_id"], {"log": state["log"]})
    return {"log": [*answer, "second"]}


def build() -> StateGraph[Any, Any, Any, Any]:
    """Return the graph, which tests also compile with a saver of their own."""
    builder = StateGraph(Steps).add_node("first", first).add_node("second", second)
    return builder.add_edge(START, "first").add_edge("first", "second")


steps = build().compile()


auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
    """Whoever comes is who they say."""
    if not authorization:
        raise Auth.exceptions.HTTPException(401, "say who you are")
    return {"identity": authorization, "secret": f"the secret of {authorization}"}


@auth.on.store
async def only_own_memories(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    """Store who put a memory, and let everybody find only their own."""
    if ctx.action == "put":
        value["value"]["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.threads
async def only_own_threads(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    """Store who created a thread, and let everybody find only their own."""
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}
