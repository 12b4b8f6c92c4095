"""LangGraph's Agent Server on a Keep: `langgraph dev`, with a checkpointer and a store from `threadkeep.agent_server`.

The server is the real one, in a process of its own, and langgraph_sdk drives it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import NotFoundError

import agent_servers
import served_graphs
import threadkeep
from agent_servers import Server
from conftest import BACKENDS

LASTING = {backend.name: backend for backend in BACKENDS if backend.lasting}
LATER = [pytest.param(name, marks=pytest.mark.long) for name in LASTING if name != "sqlite"]
on_sqlite = pytest.mark.parametrize("served", ["sqlite", *LATER], indirect=True)
"""`make test` runs these tests on SQLite only, and the others on every backend."""
ODD = {"a.b": 1, 'it\'s "$odd"': "é\n", "nested": {"list": [1, {"two": None}]}, "empty": None}
"""Metadata of a run."""


EXAMPLE = Path(__file__).parents[1] / "examples/agent_server"
SAID = """\
the graph asks: Store this note? My boat is called Gull.
the graph says: Noted.
the graph says: My boat is called Gull.
checkpoints: 6
"""


class Served(NamedTuple):
    """A running server, the URL of its storage, and a thread that has finished a run."""

    server: Server
    client: SyncLangGraphClient
    url: str
    finished: str

    def keep(self) -> threadkeep.Keep:
        """Open the storage in this process, too."""
        return threadkeep.open(self.url)


def new_server(backend: str, folder: Path, **environment: str) -> tuple[Server, str]:
    """Return a server, and the URL of its storage. It forgets whatever it does not store there."""
    url = LASTING[backend].fresh(folder, 0)
    config = agent_servers.config({"ttl": {"default_ttl": 60}}) | {"disable_persistence": True}
    return Server(folder, config, THREADKEEP_URL=url, **environment), url


@pytest.fixture(scope="module", params=list(LASTING))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests of a backend. At the end it has logged no error, such as that of a call that blocked."""
    server, url = new_server(request.param, tmp_path_factory.mktemp(f"server-{request.param}"))
    try:
        server.start()
        client = server.client()
        finished = new_thread(client)
        run(client, finished, metadata=ODD)
        yield Served(server, client, url, finished)
        assert server.complaints() == []
        assert server.stop() == 0
    finally:
        server.kill()


def new_thread(client: SyncLangGraphClient) -> str:
    return str(client.threads.create()["thread_id"])


def run(client: SyncLangGraphClient, thread: str, **given: Any) -> Any:
    """Run the graph to its end, or to an interrupt. Return the values of the state."""
    return client.runs.wait(thread, "steps", **{"input": {"log": ["input"]}, **given})


def history(client: SyncLangGraphClient, thread: str, **given: Any) -> list[Any]:
    return list(client.threads.get_history(thread, limit=100, **given))


def steps(states: list[Any]) -> list[int]:
    return [state["metadata"]["step"] for state in states]


def log(client: SyncLangGraphClient, thread: str) -> list[str]:
    values: Any = client.threads.get_state(thread)["values"]
    return list(values["log"])


def wait_until(done: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + agent_servers.SECONDS
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def started(client: SyncLangGraphClient, thread: str) -> str:
    """Start a run that waits in its second node, and return its id."""
    before = len(history(client, thread))
    config: Any = {"configurable": {"seconds": 600}}
    found = client.runs.create(thread, "steps", input={"log": ["slow"]}, config=config)
    wait_until(lambda: len(history(client, thread)) == before + 3, "a run that is in its second node")
    return str(found["run_id"])


def runs_of(served: Served, thread: str) -> set[str]:
    """Return the ids of the runs that have left a checkpoint."""
    with served.keep() as keep:
        return {str(each.metadata["run_id"]) for each in keep.log(thread)}


# --- runs


@on_sqlite
def test_a_run_goes_on_from_the_state_of_the_run_before(served: Served) -> None:
    thread = str(served.client.threads.copy(served.finished)["thread_id"])
    assert run(served.client, thread)["log"] == ["input", "first", "second"] * 2
    with served.keep() as keep:
        stored = keep.checkpointer.get_tuple({"configurable": {"thread_id": thread}})
    assert stored is not None
    assert stored.checkpoint["channel_values"]["log"] == ["input", "first", "second"] * 2


def test_a_stream_has_the_state_after_each_step(served: Served) -> None:
    thread, given = new_thread(served.client), {"log": ["input"]}
    stream = served.client.runs.stream(thread, "steps", input=given, stream_mode="values")
    values = [part.data["log"] for part in stream if part.event == "values"]
    assert values == [["input"], ["input", "first"], ["input", "first", "second"]]
    assert log(served.client, thread) == ["input", "first", "second"]


def test_history_ends_before_a_checkpoint_that_is_given_in_either_form(served: Served) -> None:
    states = history(served.client, served.finished)
    assert steps(states) == [2, 1, 0, -1]
    for before in (states[1]["checkpoint"], {"configurable": states[1]["checkpoint"]}):
        assert steps(history(served.client, served.finished, before=before)) == [0, -1]


def test_history_is_filtered_by_metadata_with_any_keys_and_values(served: Served) -> None:
    for filter in (*({key: value} for key, value in ODD.items()), ODD):
        assert steps(history(served.client, served.finished, metadata=filter)) == [2, 1, 0, -1], filter
    for filter in ({"a": {"b": 1}}, {"a.b": True}, {"nested": {"list": [1]}}, {"empty": ""}):
        assert history(served.client, served.finished, metadata=filter) == [], filter


@on_sqlite
def test_a_thread_goes_on_in_the_server_and_outside_of_it_by_turns(served: Served) -> None:
    thread = new_thread(served.client)
    config: Any = {"configurable": {"thread_id": thread}}
    with served.keep() as keep:
        graph = served_graphs.build().compile(checkpointer=keep.checkpointer, store=keep.store)
        asyncio.run(graph.ainvoke({"log": ["outside"]}, config))
        assert run(served.client, thread)["log"] == ["outside", "first", "second", "input", "first", "second"]
        asyncio.run(graph.ainvoke({"log": ["outside"]}, config))
    served.client.threads.update_state(thread, {"log": ["update"]})
    assert log(served.client, thread)[6:] == ["outside", "first", "second", "update"]
    assert steps(history(served.client, thread)) == [*range(11, -2, -1)]


# --- changes of threads


@on_sqlite
def test_a_run_goes_on_from_an_update_of_the_state(served: Served) -> None:
    thread = str(served.client.threads.copy(served.finished)["thread_id"])
    served.client.threads.update_state(thread, {"log": ["update"]}, as_node="first")
    assert served.client.threads.get_state(thread)["next"] == ["second"]
    assert run(served.client, thread, input=None)["log"] == ["input", "first", "second", "update", "second"]


@on_sqlite
def test_a_run_from_an_earlier_checkpoint_makes_a_branch(served: Served) -> None:
    thread = str(served.client.threads.copy(served.finished)["thread_id"])
    earlier = history(served.client, thread)[1]
    assert earlier["values"]["log"] == ["input", "first"]
    run(served.client, thread, input=None, checkpoint=earlier["checkpoint"])
    ends = [state["values"]["log"] for state in history(served.client, thread) if not state["next"]]
    assert ends == [["input", "first", "second"]] * 2


def test_an_interrupted_run_waits_for_an_answer(served: Served) -> None:
    thread = new_thread(served.client)
    asked = run(served.client, thread, input={"log": ["input"], "ask": True})
    assert [each["value"] for each in asked["__interrupt__"]] == ["go on?"]
    assert served.client.threads.get_state(thread)["next"] == ["second"]
    answered = run(served.client, thread, input=None, command={"resume": "yes"})
    assert answered["log"] == ["input", "first", "yes", "second"]


def test_a_copy_has_the_whole_history_and_outlives_its_source(served: Served) -> None:
    first = str(served.client.threads.copy(served.finished)["thread_id"])
    second = str(served.client.threads.copy(first)["thread_id"])
    served.client.threads.delete(first)
    states = history(served.client, second)
    assert [state["values"].get("log", []) for state in states] == [
        ["input", "first", "second"], ["input", "first"], ["input"], [],
    ]  # fmt: skip
    assert {state["metadata"]["thread_id"] for state in states} == {second}


def test_nothing_is_left_of_a_deleted_thread(served: Served) -> None:
    deleted, pruned = (str(served.client.threads.copy(served.finished)["thread_id"]) for _ in range(2))
    served.client.threads.delete(deleted)
    assert served.client.threads.prune([pruned], strategy="delete") == {"pruned_count": 1}
    with pytest.raises(NotFoundError):
        served.client.threads.get_state(deleted)
    with served.keep() as keep:
        assert {deleted, pruned, served.finished} & {each.id for each in keep.threads()} == {served.finished}


# --- several runs on one thread


@on_sqlite
def test_a_run_that_rolls_the_other_back_leaves_nothing_of_it(served: Served) -> None:
    thread = str(served.client.threads.copy(served.finished)["thread_id"])
    stopped = started(served.client, thread)
    last = served.client.runs.create(thread, "steps", input={"log": ["last"]}, multitask_strategy="rollback")
    served.client.runs.join(thread, last["run_id"])
    assert stopped not in runs_of(served, thread)
    assert log(served.client, thread) == ["input", "first", "second", "last", "first", "second"]


@on_sqlite
def test_a_run_that_interrupts_the_other_goes_on_from_its_state(served: Served) -> None:
    thread = new_thread(served.client)
    stopped = started(served.client, thread)
    last = served.client.runs.create(thread, "steps", input={"log": ["last"]}, multitask_strategy="interrupt")
    served.client.runs.join(thread, last["run_id"])
    assert runs_of(served, thread) == {stopped, last["run_id"]}
    assert log(served.client, thread) == ["slow", "first", "last", "first", "second"]


def test_a_run_that_is_cancelled_with_rollback_leaves_the_state_before_it(served: Served) -> None:
    thread = str(served.client.threads.copy(served.finished)["thread_id"])
    stopped = started(served.client, thread)
    served.client.runs.cancel(thread, stopped, action="rollback", wait=True)
    wait_until(lambda: stopped not in runs_of(served, thread), "the end of the rollback")
    assert steps(history(served.client, thread)) == [2, 1, 0, -1]
    assert log(served.client, thread) == ["input", "first", "second"]


# --- the store


def test_everybody_finds_only_what_the_auth_handler_lets_them(served: Served) -> None:
    mine, other = served.server.client("user-1"), served.server.client("user-2")
    for user, client in (("user-1", mine), ("user-2", other)):
        for n in range(3):
            client.store.put_item(["auth"], f"{user}-{n}", {"text": f"number {n}", "n": n})
    for filter, expected in ((None, {0, 1, 2}), ({"n": {"$gte": 1}}, {1, 2}), ({"owner": "user-1", "n": 0}, {0})):
        found = mine.store.search_items(["auth"], filter=filter)["items"]
        assert {(each["value"]["owner"], each["value"]["n"]) for each in found} == {("user-1", n) for n in expected}
    assert other.store.search_items(["auth"], filter={"owner": "user-1"})["items"] == []


def test_a_query_without_an_index_finds_everything_and_what_has_its_words_first(served: Served) -> None:
    for key, text in (("a", "one boat"), ("b", "boats and boats"), ("c", "a boat, another boat"), ("d", "tea")):
        served.client.store.put_item(["query"], key, {"text": text})
    found: Any = served.client.store.search_items(["query"], query="BOAT")["items"]
    assert [each["key"] for each in found] == ["c", "a", "d", "b"]
    assert [each["score"] is None for each in found] == [False, False, True, True]


@on_sqlite
def test_a_memory_is_stored_read_listed_and_deleted(served: Served) -> None:
    store = served.client.store
    store.put_item(["api", "deep"], "k", {"text": "é", "list": [1, None]})
    assert store.get_item(["api", "deep"], "k")["value"] == {"text": "é", "list": [1, None], "owner": "user-1"}
    assert store.list_namespaces(prefix=["api"])["namespaces"] == [["api", "deep"]]
    store.delete_item(["api", "deep"], "k")
    assert store.get_item(["api", "deep"], "k") is None


@on_sqlite
def test_a_node_stores_what_the_api_reads(served: Served) -> None:
    assert served.client.store.get_item(["steps"], served.finished)["value"] == {"log": ["input", "first"]}


@on_sqlite
def test_a_memory_lives_as_long_as_its_ttl_says(served: Served) -> None:
    served.client.store.put_item(["ttl"], "short", {"n": 1}, ttl=0.002)
    served.client.store.put_item(["ttl"], "default", {"n": 2})
    get = partial(served.client.store.get_item, ["ttl"], refresh_ttl=False)
    wait_until(lambda: get("short") is None, "the end of a memory")
    assert get("default") is not None


# --- what must not be stored


@on_sqlite
def test_nothing_of_who_called_is_stored_with_a_checkpoint(served: Served) -> None:
    with served.keep() as keep:
        stored = [each.metadata for each in keep.checkpointer.list({"configurable": {"thread_id": served.finished}})]
    assert len(stored) == 4
    assert "the secret of" not in str(stored)
    assert {key for each in stored for key in each if key.startswith(("langgraph_auth", "langgraph_request"))} == set()


# --- the example


def test_the_example_takes_a_note_and_finds_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder)
    server = Server(folder, json.loads((EXAMPLE / "langgraph.json").read_text("utf-8")))
    try:
        server.start()
        asked = subprocess.run(
            [sys.executable, "ask.py", server.url], cwd=folder, capture_output=True, text=True, check=True
        )
        assert server.complaints() == []
        assert server.stop() == 0
    finally:
        server.kill()
    assert asked.stdout == SAID
    with threadkeep.open(f"sqlite:///{folder}/notes.db") as keep:
        assert [thread.checkpoints for thread in keep.threads()] == [6]


# --- ends of the server, and its event loops


ENDS = [("kill", "isolated loops"), pytest.param("stop", "shared loop", marks=pytest.mark.long)]
"""With isolated loops, a server that is stopped waits for its runs, whatever the checkpointer is."""


@pytest.mark.parametrize(("end", "loops"), ENDS)
@pytest.mark.parametrize("backend", ["sqlite", *LATER])
def test_state_and_memories_outlive_a_server(backend: str, end: str, loops: str, tmp_path: Path) -> None:
    server, _ = new_server(backend, tmp_path, BG_JOB_ISOLATED_LOOPS=str(loops == "isolated loops"))
    try:
        server.start(jobs=3)
        client = server.client()
        threads = [new_thread(client) for _ in range(6)]  # twice as many as there are loops
        given = {"log": ["input"], "ask": True}
        for each in [client.runs.create(thread, "steps", input=given) for thread in threads]:
            client.runs.join(each["thread_id"], each["run_id"])
        running = new_thread(client)
        started(client, running)
        client.store.put_item(["notes"], "k", {"text": "kept"})
        getattr(server, end)()
        assert f"Starting queue with {loops}" in server.text()

        server.start(jobs=3)
        client = server.client()
        for thread in (*threads, running):  # of which a server that was killed knows nothing
            client.threads.create(thread_id=thread, graph_id="steps", if_exists="do_nothing")
            assert client.threads.get_state(thread)["next"] == ["second"]
        assert run(client, threads[0], input=None, command={"resume": "yes"})["log"][2:] == ["yes", "second"]
        finished = run(client, running, input=None, multitask_strategy="interrupt")  # a stopped server has restarted it
        assert finished["log"] == ["slow", "first", "second"]
        assert client.store.get_item(["notes"], "k")["value"]["text"] == "kept"
        assert server.complaints() == []
    finally:
        server.kill()
