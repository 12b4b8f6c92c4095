"""The store inside LangGraph: nodes, tools, agents and entrypoints, on every backend, sync and async.

Each graph is compiled with the checkpointer and the store of one Keep.
"""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

import shared_pool
import threadkeep
from sync_async import AsyncCaller, Caller
from threadkeep.conformance.store.embedder import DIMS, embed

HI = {"messages": [{"role": "user", "content": "hi"}]}


def config(thread: str, user: str = "1") -> Any:
    return {"configurable": {"thread_id": thread, "user_id": user}}


def user_input(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def last(state: Any) -> str:
    return str(state["messages"][-1].content)


# --- the whole example "Memory Store" of LangGraph's documentation, with a Keep

FOODS = ["like eat pizza food cuisine", "user 2024 updated", "dinner plans"]
"""Texts are similar if they share words of the same line, so a question about food finds food."""


def embed_foods(texts: Sequence[str]) -> list[list[float]]:
    known = [set(line.split()) for line in FOODS]
    heard = [set(re.findall(r"\w+", text.lower())) for text in texts]
    return [[*(float(len(words & line)) for line in known), 0.1] for words in heard]


@pytest.fixture
def keep(url: str) -> Iterator[threadkeep.Keep]:
    index: Any = {"embed": embed_foods, "dims": len(FOODS) + 1, "fields": ["food_preference", "$"]}
    with shared_pool.open_keep(url, index=index) as opened:
        yield opened


async def test_memories_are_put_and_read_as_the_guide_does_it(keep: threadkeep.Keep, call: Caller) -> None:
    namespace_for_memory = ("1", "memories")
    memory_id = str(uuid.uuid4())
    await call(keep.store, "put", namespace_for_memory, memory_id, {"food_preference": "I like pizza"})
    memories = await call(keep.store, "search", namespace_for_memory)
    item_dict = memories[-1].dict()
    assert item_dict["value"] == {"food_preference": "I like pizza"}
    assert (item_dict["key"], item_dict["namespace"]) == (memory_id, ["1", "memories"])
    assert item_dict["created_at"] == item_dict["updated_at"]
    peer = InMemoryStore()
    peer.put(namespace_for_memory, memory_id, {"food_preference": "I like pizza"})
    theirs = peer.search(namespace_for_memory)[-1].dict()
    assert {key: type(value) for key, value in item_dict.items()} == {key: type(value) for key, value in theirs.items()}


async def test_memories_are_found_by_meaning_as_the_guide_does_it(keep: threadkeep.Keep, call: Caller) -> None:
    namespace, store = ("1", "memories"), keep.store
    await call(store, "put", namespace, "pizza", {"food_preference": "I like pizza"})
    dinner = {"food_preference": "I love Italian cuisine", "context": "Discussing dinner plans"}
    await call(store, "put", namespace, "italian", dinner, index=["food_preference"])
    await call(store, "put", namespace, "system", {"system_info": "Last updated: 2024-01-01"}, index=False)
    memories = await call(store, "search", namespace, query="What does the user like to eat?", limit=3)
    assert [memory.key for memory in memories] == ["pizza", "italian"]
    memories = await call(store, "search", namespace, query="dinner plans", limit=1)
    assert memories[0].score < 0.2, "only the food preference of it was embedded"
    assert len(await call(store, "search", namespace)) == 3


def update_memory(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> None:
    namespace = (config["configurable"]["user_id"], "memories")
    store.put(namespace, str(uuid.uuid4()), {"memory": last(state)})


async def aupdate_memory(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> None:
    namespace = (config["configurable"]["user_id"], "memories")
    await store.aput(namespace, str(uuid.uuid4()), {"memory": last(state)})


def call_model(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    namespace = (config["configurable"]["user_id"], "memories")
    memories = store.search(namespace, query=last(state), limit=3)
    info = "\n".join([d.value["memory"] for d in memories])
    return {"messages": [{"role": "assistant", "content": info}]}


async def acall_model(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    namespace = (config["configurable"]["user_id"], "memories")
    memories = await store.asearch(namespace, query=last(state), limit=3)
    info = "\n".join([d.value["memory"] for d in memories])
    return {"messages": [{"role": "assistant", "content": info}]}


async def test_threads_of_one_user_share_memories_as_the_guide_does_it(keep: threadkeep.Keep, call: Caller) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("call_model", acall_model if isinstance(call, AsyncCaller) else call_model)
    builder.add_node("update_memory", aupdate_memory if isinstance(call, AsyncCaller) else update_memory)
    builder.add_edge(START, "call_model")
    builder.add_edge("call_model", "update_memory")
    graph = builder.compile(checkpointer=keep.checkpointer, store=keep.store)

    updates = await call.every(graph, "stream", HI, config("1"), stream_mode="updates")
    assert [list(update) for update in updates] == [["call_model"], ["update_memory"]]
    await call(keep.store, "put", ("1", "memories"), "food", {"memory": "I like pizza"})
    await call(keep.store, "put", ("2", "memories"), "food", {"memory": "I like soup"})
    answered = await call(graph, "invoke", user_input("what do I like to eat?"), config("2"))
    assert answered["messages"][-1].content.splitlines()[0] == "I like pizza"
    assert "soup" not in answered["messages"][-1].content
    state = await call(graph, "get_state", config("2"))
    assert len(state.values["messages"]) == 2
    assert len(await call(keep.store, "search", ("1", "memories"))) == 3
    assert await call(keep.store, "list_namespaces") == [("1", "memories"), ("2", "memories")]


# --- how nodes get the store


class Counted(TypedDict):
    """A state that counts."""

    count: int


@dataclass
class User:
    """The context of a run."""

    name: str


def counted(store: BaseStore, name: str) -> dict[str, int]:
    """Return one more than the last time (sync)."""
    item = store.get(("counts", name), "count")
    count = item.value["n"] + 1 if item else 1
    store.put(("counts", name), "count", {"n": count})
    return {"count": count}


async def acounted(store: BaseStore, name: str) -> dict[str, int]:
    item = await store.aget(("counts", name), "count")
    count = item.value["n"] + 1 if item else 1
    await store.aput(("counts", name), "count", {"n": count})
    return {"count": count}


def by_parameter(state: Counted, *, store: BaseStore) -> Any:
    return counted(store, "ada")


async def aby_parameter(state: Counted, *, store: BaseStore) -> Any:
    return await acounted(store, "ada")


def by_runtime(state: Counted, runtime: Runtime[User]) -> Any:
    assert runtime.store is not None
    return counted(runtime.store, runtime.context.name)


async def aby_runtime(state: Counted, runtime: Runtime[User]) -> Any:
    assert runtime.store is not None
    return await acounted(runtime.store, runtime.context.name)


def by_function(state: Counted) -> Any:
    return counted(get_store(), "ada")


async def aby_function(state: Counted) -> Any:
    return await acounted(get_store(), "ada")


NODES: dict[str, tuple[Any, Any]] = {
    "parameter": (by_parameter, aby_parameter),
    "runtime": (by_runtime, aby_runtime),
    "get_store": (by_function, aby_function),
}


def counting(node: Callable[..., Any]) -> StateGraph[Any, Any]:
    return StateGraph(Counted, context_schema=User).add_node("count", node).add_edge(START, "count")


@pytest.mark.parametrize("way", NODES)
async def test_every_way_to_the_store_leads_to_the_same_one(keep: threadkeep.Keep, call: Caller, way: str) -> None:
    graph = counting(NODES[way][isinstance(call, AsyncCaller)]).compile(
        checkpointer=keep.checkpointer, store=keep.store
    )
    counts = [
        (await call(graph, "invoke", {"count": 0}, config(thread), context=User("ada")))["count"] for thread in "aba"
    ]
    assert counts == [1, 2, 3]
    item = await call(keep.store, "get", ("counts", "ada"), "count")
    assert item.value == {"n": 3}


async def test_a_subgraph_has_the_store_of_its_parent(keep: threadkeep.Keep, call: Caller) -> None:
    child = counting(NODES["runtime"][isinstance(call, AsyncCaller)]).compile()
    parent = StateGraph(Counted, context_schema=User).add_node("child", child).add_edge(START, "child")
    graph = parent.compile(checkpointer=keep.checkpointer, store=keep.store)
    for n in range(1, 3):
        assert (await call(graph, "invoke", {"count": 0}, config("t"), context=User("bob")))["count"] == n


async def test_what_a_node_stored_before_an_interrupt_is_there_when_it_resumes(
    keep: threadkeep.Keep, call: Caller
) -> None:
    def ask(state: Counted, *, store: BaseStore) -> dict[str, int]:
        store.put(("asked",), "times", {"n": len(store.search(("asked",))) + 1})
        return {"count": interrupt("how many?")}

    async def aask(state: Counted, *, store: BaseStore) -> dict[str, int]:
        await store.aput(("asked",), "times", {"n": len(await store.asearch(("asked",))) + 1})
        return {"count": interrupt("how many?")}

    graph = counting(aask if isinstance(call, AsyncCaller) else ask).compile(
        checkpointer=keep.checkpointer, store=keep.store
    )
    assert "__interrupt__" in await call(graph, "invoke", {"count": 0}, config("t"))
    assert (await call(keep.store, "get", ("asked",), "times")).value == {"n": 1}
    assert (await call(graph, "invoke", Command(resume=7), config("t")))["count"] == 7
    assert (await call(keep.store, "get", ("asked",), "times")).value == {"n": 2}


# --- the functional API


async def test_an_entrypoint_and_its_tasks_have_the_store(keep: threadkeep.Keep, call: Caller) -> None:
    @task
    def remember(word: str) -> int:
        get_store().put(("words",), word, {"word": word})
        return len(word)

    @task
    async def aremember(word: str) -> int:
        await get_store().aput(("words",), word, {"word": word})
        return len(word)

    @entrypoint(checkpointer=keep.checkpointer, store=keep.store)
    def flow(words: list[str], *, store: BaseStore, previous: Any = None) -> Any:
        lengths = [each.result() for each in [remember(word) for word in words]]
        return sum(lengths) + (previous or 0), sorted(item.key for item in store.search(("words",)))

    @entrypoint(checkpointer=keep.checkpointer, store=keep.store)
    async def aflow(words: list[str], *, store: BaseStore, previous: Any = None) -> Any:
        lengths = [await each for each in [aremember(word) for word in words]]
        return sum(lengths) + (previous or 0), sorted(item.key for item in await store.asearch(("words",)))

    run = aflow if isinstance(call, AsyncCaller) else flow
    assert await call(run, "invoke", ["tea", "rum"], config("1")) == (6, ["rum", "tea"])
    assert await call(run, "invoke", ["milk"], config("2")) == (4, ["milk", "rum", "tea"])


# --- tools and agents


@tool
def note(text: str, store: Annotated[Any, InjectedStore()], config: RunnableConfig) -> str:
    """Note something about the user."""
    store.put((config["configurable"]["user_id"], "notes"), text, {"text": text})
    return f"noted {text}"


@tool
async def anote(text: str, store: Annotated[Any, InjectedStore()], config: RunnableConfig) -> str:
    """Note something about the user."""
    await store.aput((config["configurable"]["user_id"], "notes"), text, {"text": text})
    return f"noted {text}"


@tool
def look(topic: str, runtime: ToolRuntime) -> str:
    """Look for something about the user."""
    assert runtime.store is not None
    found = runtime.store.search((runtime.config["configurable"]["user_id"], "notes"), query=topic, limit=1)
    return found[0].value["text"] if found else "nothing"


@tool
async def alook(topic: str, runtime: ToolRuntime) -> str:
    """Look for something about the user."""
    assert runtime.store is not None
    found = await runtime.store.asearch((runtime.config["configurable"]["user_id"], "notes"), query=topic, limit=1)
    return found[0].value["text"] if found else "nothing"


def wanted(tool: str, /, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": args, "id": "the only one"}])


@pytest.fixture
def word_keep(url: str) -> Iterator[threadkeep.Keep]:
    """Queries are answered by words: no embedding is needed."""
    with shared_pool.open_keep(url) as opened:
        yield opened


async def test_a_tool_node_gives_the_store_to_its_tools(word_keep: threadkeep.Keep, call: Caller) -> None:
    a = "a" if isinstance(call, AsyncCaller) else ""
    node = ToolNode([anote, alook] if a else [note, look])
    builder = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
    graph = builder.compile(checkpointer=word_keep.checkpointer, store=word_keep.store)
    item_dict = await call(graph, "invoke", {"messages": [wanted(f"{a}note", text="likes green tea")]}, config("1"))
    assert last(item_dict) == "noted likes green tea"
    asked = {"messages": [wanted(f"{a}look", topic="tea")]}
    assert last(await call(graph, "invoke", asked, config("2"))) == "likes green tea"
    assert last(await call(graph, "invoke", asked, config("3", user="2"))) == "nothing"


class Actor(BaseChatModel):
    """A model that returns its lines in order."""

    lines: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "actor"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        spoken = sum(isinstance(message, AIMessage) for message in messages)
        return ChatResult(generations=[ChatGeneration(message=self.lines[spoken])])


def langchain_agent(model: Any, tools: list[BaseTool], keep: threadkeep.Keep) -> Any:
    return create_agent(model, tools, checkpointer=keep.checkpointer, store=keep.store)


def langgraph_agent(model: Any, tools: list[BaseTool], keep: threadkeep.Keep) -> Any:
    from langgraph.prebuilt import create_react_agent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangGraph has moved it, but many still use it
        return create_react_agent(model, tools, checkpointer=keep.checkpointer, store=keep.store)


@pytest.mark.parametrize("make", [langchain_agent, langgraph_agent])
async def test_an_agent_notes_in_one_thread_and_knows_in_another(
    word_keep: threadkeep.Keep, call: Caller, make: Callable[..., Any]
) -> None:
    a = "a" if isinstance(call, AsyncCaller) else ""
    tools: Any = [anote, alook] if a else [note, look]
    lines = [wanted(f"{a}note", text="likes green tea"), AIMessage("I will remember.")]
    talk = await call(make(Actor(lines=lines), tools, word_keep), "invoke", user_input("I like green tea"), config("1"))
    assert last(talk) == "I will remember."
    lines = [wanted(f"{a}look", topic="what tea?"), AIMessage("Green tea.")]
    talk = await call(make(Actor(lines=lines), tools, word_keep), "invoke", user_input("Which tea?"), config("2"))
    assert [m.content for m in talk["messages"] if isinstance(m, ToolMessage)] == ["likes green tea"]


# --- langmem, if it is installed


@pytest.fixture
def langmem_tools() -> Any:
    langmem = pytest.importorskip("langmem")
    namespace = ("memories", "{user_id}")
    return langmem.create_manage_memory_tool(namespace), langmem.create_search_memory_tool(namespace)


async def test_the_tools_of_langmem_add_change_delete_and_find(url: str, call: Caller, langmem_tools: Any) -> None:
    index: Any = {"dims": DIMS, "embed": embed}
    async with threadkeep.open(url, index=index) as keep:
        builder = StateGraph(MessagesState).add_node("tools", ToolNode(list(langmem_tools))).add_edge(START, "tools")
        graph = builder.compile(checkpointer=keep.checkpointer, store=keep.store)

        async def use(name: str, user: str = "1", **args: Any) -> str:
            message = wanted(name, **args)
            return last(await call(graph, "invoke", {"messages": [message]}, config(uuid.uuid4().hex, user)))

        item_dict = await use("manage_memory", content="likes apple pie", action="create")
        await use("manage_memory", content="hates rain", action="create")
        found = await use("search_memory", query="apple", limit=1)
        assert "likes apple pie" in found
        id = re.findall(r"[0-9a-f-]{36}", item_dict)[0]
        await use("manage_memory", content="likes plum cake", action="update", id=id)
        assert "plum cake" in await use("search_memory", query="plum", limit=1)
        assert "apple" not in await use("search_memory", query="apple")
        await use("manage_memory", action="delete", id=id)
        assert "plum" not in await use("search_memory", query="plum")
        assert await use("search_memory", query="rain", user="2") == "[]"


# --- embeddings by name


async def test_an_embedder_may_be_named_as_init_embeddings_has_it(
    url: str, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langgraph.store.base import embed as embedding

    from threadkeep.conformance.store.embedder import Embedder

    asked: list[str] = []
    monkeypatch.setattr(embedding, "_get_init_embeddings", lambda: lambda name: asked.append(name) or Embedder())
    async with threadkeep.open(url, index={"dims": DIMS, "embed": "openai:text-embedding-3-small"}) as keep:
        await call(keep.store, "put", ("a",), "k", {"text": "apple"})
        assert [item.key for item in await call(keep.store, "search", ("a",), query="apple")] == ["k"]
    assert asked == ["openai:text-embedding-3-small"]
