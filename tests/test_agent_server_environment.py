"""`threadkeep.agent_server`: what it opens as the environment says, once for a process, and never blocking a loop."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

import processes
import threadkeep
from checkpoint_chains import Chain, config
from threadkeep import agent_server
from threadkeep.errors import WrongKey

AES_KEY = "sixteen letters!"
DERIVED = bytes.fromhex("307d5fe96b539d789f7e615fd5a9055c3466d8c7aa62fa9e1ffb38aaf79ec012")
MASTER = bytes(range(32))
VARIABLES = ("THREADKEEP_URL", "THREADKEEP_KEYS", "LANGGRAPH_AES_KEY", "LANGGRAPH_STORE", "LANGGRAPH_CHECKPOINTER")
Set = Callable[..., str]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Set]:
    """Set variables, and the URL of a new file. Return that URL."""
    url = f"sqlite:///{tmp_path}/agent.db"

    def set_variables(**variables: Any) -> str:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in {"THREADKEEP_URL": url, **variables}.items():
            monkeypatch.setenv(name, value if isinstance(value, str) else json.dumps(value))
        return url

    yield set_variables
    forget()


def forget() -> None:
    """Close what was opened, so that nothing is cached."""
    for opened in agent_server._opened.values():
        opened.keep.close()
    agent_server._opened.clear()


async def entered() -> tuple[threadkeep.KeepSaver, threadkeep.KeepStore]:
    """Enter both factories and leave them, as few threads of the server do."""
    async with agent_server.checkpointer() as saver, agent_server.store() as store:
        return saver, store


def store_block(**settings: Any) -> dict[str, Any]:
    return {"path": "threadkeep.agent_server.store", **settings}


def saver_block(**serde: Any) -> dict[str, Any]:
    return {"path": "threadkeep.agent_server.checkpointer", "serde": serde}


# --- one Keep for a process


def test_all_threads_and_loops_use_one_keep(environment: Set) -> None:
    environment()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: asyncio.run(entered()), range(8)))
    assert len({id(saver) for saver, _ in found}) == len({id(store) for _, store in found}) == 1
    assert len({id(agent_server.keep()._session), *(id(each._session) for pair in found for each in pair)}) == 1


async def test_leaving_a_factory_closes_nothing(environment: Set) -> None:
    environment()
    saver, store = await entered()
    await entered()
    assert await saver.aget_tuple(config("t")) is None
    await store.aput(("n",), "k", {"v": 1})


def test_a_forked_process_goes_on_with_the_keep_of_its_parent(environment: Set) -> None:
    environment()
    script = """
import asyncio, os
from threadkeep import agent_server

async def put(key):
    async with agent_server.store() as store:
        await store.aput(("n",), key, {"v": 1})

asyncio.run(put("parent"))
if (child := os.fork()) == 0:
    asyncio.run(put("child"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sorted(item.key for item in agent_server.keep().store.search(("n",))))
"""
    assert processes.run_forked(script) == "['child', 'parent']\n"


def test_opening_and_first_calls_do_not_block_the_event_loop(environment: Set) -> None:
    environment(LANGGRAPH_STORE=store_block(ttl={"default_ttl": 1}, index={"search": "text"}))
    script = """
import asyncio
from blockbuster import blockbuster_ctx
from threadkeep import agent_server

async def main():
    async with agent_server.checkpointer() as saver, agent_server.store() as store:
        await store.aput(("n",), "k", {"text": "boat"})
        print(len(await store.asearch(("n",), query="boat")))
        print(await saver.aget_tuple({"configurable": {"thread_id": "t"}}))

with blockbuster_ctx(scanned_modules=["threadkeep"]):
    asyncio.run(main())
"""
    assert processes.run(script) == "1\nNone\n"


def test_the_end_of_a_process_closes_its_keep(environment: Set, tmp_path: Path) -> None:
    environment()
    processes.run("from threadkeep import agent_server; agent_server.keep().store.put(('n',), 'k', {'v': 1})")
    assert [file.name for file in tmp_path.iterdir()] == ["agent.db"]  # without the write-ahead log


# --- URL and keys


@pytest.mark.parametrize("variables", [{"THREADKEEP_URL": ""}, {"THREADKEEP_URL": "mongo://h"}])
async def test_a_missing_or_unknown_url_is_refused_when_a_factory_is_entered(
    environment: Set, variables: dict[str, str]
) -> None:
    environment(**variables)
    with pytest.raises(ValueError, match="sqlite:///"):
        await entered()


def opens(url: str, keys: threadkeep.Keys | None) -> bool:
    """Whether a Keep with these keys reads the thread `t` that was stored at a URL."""
    with threadkeep.open(url, keys=keys) as keep:
        try:
            return keep.checkpointer.get_tuple(config("t")) is not None
        except WrongKey:
            return False


def test_keys_of_threadkeep_encrypt(environment: Set) -> None:
    url = environment(THREADKEEP_KEYS=f"k1:{b64encode(MASTER).decode()}", LANGGRAPH_AES_KEY=AES_KEY)
    Chain(agent_server.keep().checkpointer, "t").put({"x": 1})
    assert opens(url, threadkeep.Keys({"k1": MASTER}, primary="k1"))
    assert not opens(url, None)


def test_the_key_of_the_server_encrypts_if_there_are_no_others(environment: Set) -> None:
    url = environment(LANGGRAPH_AES_KEY=AES_KEY)
    Chain(agent_server.keep().checkpointer, "t").put({"x": 1})
    derived = agent_server.derive_key(AES_KEY)
    assert opens(url, threadkeep.Keys({"langgraph-aes-key": derived}, primary="langgraph-aes-key"))
    assert not opens(url, None)


def test_the_key_that_is_derived_never_changes() -> None:
    assert agent_server.derive_key(AES_KEY) == DERIVED


@pytest.mark.parametrize("key", ["", "too short", "x" * 33])
def test_a_key_that_the_server_would_refuse_is_refused_and_not_shown(environment: Set, key: str) -> None:
    with pytest.raises(ValueError, match="16, 24 or 32 bytes") as refused:
        agent_server.derive_key(key)
    assert not key or key not in str(refused.value)


# --- the block of the store


async def test_the_index_of_the_block_decides_what_a_query_finds(environment: Set) -> None:
    environment(LANGGRAPH_STORE=store_block(index={"search": "text", "fields": ["text"]}))
    _, store = await entered()
    await store.aput(("n",), "boat", {"text": "boat"})
    await store.aput(("n",), "tea", {"text": "tea", "other": "boat"})
    assert [item.key for item in await store.asearch(("n",), query="boat")] == ["boat"]


async def test_the_index_takes_its_embedding_function_from_a_file(environment: Set, tmp_path: Path) -> None:
    file = tmp_path / "embed.py"
    file.write_text("async def embed(texts):\n    return [[float(len(text)), 1.0] for text in texts]\n", "utf-8")
    index = {"dims": 2, "embed": f"{file}:embed", "fields": ["text"], "distance_type": "l2"}
    environment(LANGGRAPH_STORE=store_block(index=index))
    _, store = await entered()
    for text in ("x" * 3, "x" * 30, "x" * 9):
        await store.aput(("n",), str(len(text)), {"text": text})
    assert [item.key for item in await store.asearch(("n",), query="y" * 10)] == ["9", "3", "30"]


EMBED_WITH_A_DATA_CLASS = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Model:
    scale: float = 1.0

model = Model()

async def embed(texts):
    return [[model.scale, 1.0] for _ in texts]
"""


async def test_the_file_of_an_embedding_function_may_define_classes(environment: Set, tmp_path: Path) -> None:
    (tmp_path / "embed.py").write_text(EMBED_WITH_A_DATA_CLASS, "utf-8")
    environment(LANGGRAPH_STORE=store_block(index={"dims": 2, "embed": f"{tmp_path}/embed.py:embed"}))
    _, store = await entered()
    await store.aput(("n",), "k", {"v": 1})
    assert len(await store.asearch(("n",), query="x")) == 1


@pytest.mark.parametrize("error", ["FileNotFoundError('model.bin')", "AttributeError('model')"])
async def test_an_error_of_the_file_of_an_embedding_function_is_not_hidden(
    environment: Set, tmp_path: Path, error: str
) -> None:
    (tmp_path / "embed.py").write_text(f"raise {error}", "utf-8")
    environment(LANGGRAPH_STORE=store_block(index={"dims": 2, "embed": f"{tmp_path}/embed.py:embed"}))
    with pytest.raises((FileNotFoundError, AttributeError), match="model"):
        await entered()


@pytest.mark.parametrize("embed", ["{0}/none.py:embed", "{0}/empty.py:embed"])
async def test_a_missing_embedding_function_is_named(environment: Set, tmp_path: Path, embed: str) -> None:
    (tmp_path / "empty.py").write_text("", "utf-8")
    path = embed.format(tmp_path)
    environment(LANGGRAPH_STORE=store_block(index={"dims": 2, "embed": path}))
    with pytest.raises(ValueError, match=path):
        await entered()


def lifetimes(url: str) -> dict[str, float | None]:
    """Return how many minutes each memory of a file lives."""
    rows = apsw.Connection(url.removeprefix("sqlite:///")).execute("SELECT key, ttl FROM tk_memories")
    return {key.decode() if isinstance(key, bytes) else key: ttl for key, ttl in rows}


async def test_a_put_of_the_api_without_a_ttl_gets_the_default(environment: Set) -> None:
    url = environment(LANGGRAPH_STORE=store_block(ttl={"default_ttl": 30}))
    _, store = await entered()
    await store.aput(("n",), "api", {"v": 1}, index=None, ttl=None)  # as the server calls it
    await store.aput(("n",), "own", {"v": 1}, ttl=5)
    await store.aput(("n",), "none given", {"v": 1}, if_version=0)
    await asyncio.to_thread(store.put, ("n",), "forever", {"v": 1}, ttl=None)
    assert await asyncio.to_thread(lifetimes, url) == {"api": 30, "own": 5, "none given": 30, "forever": None}


@pytest.mark.parametrize(("ttl", "sweeps"), [({"default_ttl": 30}, True), (None, False)])
async def test_a_block_with_a_ttl_sweeps_in_one_thread(environment: Set, ttl: Any, sweeps: bool) -> None:
    environment(LANGGRAPH_STORE=store_block(ttl=ttl))
    before = threading.enumerate()
    for _ in range(3):
        await entered()
    new = [thread.name for thread in threading.enumerate() if thread not in before]
    assert new.count("threadkeep-sweeper") == sweeps


async def test_the_block_of_another_store_is_ignored(environment: Set) -> None:
    environment(LANGGRAPH_STORE={"index": {"dims": 2, "embed": "./none.py:embed"}, "ttl": {"default_ttl": 30}})
    async with agent_server.checkpointer() as saver:
        assert await saver.aget_tuple(config("t")) is None


# --- the block of the checkpointer


@dataclass
class Listed:
    x: int = 1


@dataclass
class NotListed:
    x: int = 1


class Plain:
    """A class that is no data class: only pickle stores it."""


LIST = [[__name__, "Listed"]]


@pytest.mark.parametrize(
    ("serde", "listed", "not_listed"),
    [
        ({}, Listed(), NotListed()),
        ({"allowed_msgpack_modules": True}, Listed(), NotListed()),
        ({"allowed_msgpack_modules": LIST}, Listed(), {"x": 1}),
        ({"allowed_msgpack_modules": [f"{__name__}.Listed"]}, Listed(), {"x": 1}),
        ({"allowed_msgpack_modules": None}, {"x": 1}, {"x": 1}),
        ({"allowed_msgpack_modules": False, "allowed_json_modules": False}, {"x": 1}, {"x": 1}),
    ],
)
async def test_types_are_allowed_as_the_block_says(
    environment: Set, serde: dict[str, Any], listed: Any, not_listed: Any
) -> None:
    environment(LANGGRAPH_CHECKPOINTER=saver_block(**serde))
    saver, _ = await entered()
    await asyncio.to_thread(lambda: Chain(saver, "t").put({"a": Listed(), "b": NotListed()}))
    await asyncio.to_thread(forget)
    saver, _ = await entered()
    found = await saver.aget_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": listed, "b": not_listed}


@pytest.mark.parametrize("allowed", [True, False])
def test_pickle_is_used_only_if_the_block_says_so(environment: Set, allowed: bool) -> None:
    environment(LANGGRAPH_CHECKPOINTER=saver_block(pickle_fallback=True) if allowed else saver_block())
    chain = Chain(agent_server.keep().checkpointer, "t")
    if allowed:
        chain.put({"a": Plain()})
    else:
        with pytest.raises(TypeError):
            chain.put({"a": Plain()})


@pytest.mark.parametrize("name", ["LANGGRAPH_STORE", "LANGGRAPH_CHECKPOINTER"])
def test_a_block_that_is_no_object_is_refused(environment: Set, name: str) -> None:
    environment(**{name: "[1]"})
    with pytest.raises(TypeError, match=name):
        agent_server.keep()
