"""Connections that are cut within requests and replies: every call succeeds, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cubeloop.providers.base import TextContent, UserMessage

import postgres_servers
import threadkeep
import valkey_servers
from checkpoint_chains import Chain, config
from cutting_proxy import PLACES, CuttingProxy, cutting_proxy
from fault_log import FaultLog, Findings, audit
from fault_matrix import Matrix, size
from fault_writers import FaultWriters
from sample_keep import contents


@contextmanager
def proxied_postgres() -> Iterator[tuple[CuttingProxy, Callable[[], str]]]:
    server = postgres_servers.shared()
    with cutting_proxy(server.port) as proxy:
        yield proxy, lambda: postgres_servers.fresh_schema(server).replace(f":{server.port}/", f":{proxy.port}/")


@contextmanager
def proxied_valkey() -> Iterator[tuple[CuttingProxy, Callable[[], str]]]:
    with cutting_proxy(valkey_servers.shared_one().port) as proxy:
        yield proxy, lambda: f"valkey://127.0.0.1:{proxy.port}/?prefix={valkey_servers.fresh_prefix()}"


PROXIED: dict[str, Any] = {"postgres": proxied_postgres, "valkey": proxied_valkey}


@pytest.mark.fault("connections cut under load")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", PROXIED)
def test_writers_lose_and_repeat_nothing(backend: str, place: str, log: FaultLog, matrix: Matrix) -> None:
    with PROXIED[backend]() as (proxy, fresh_url):
        url = fresh_url()
        with threadkeep.open(url) as keep, FaultWriters(keep, log) as writers:
            writers.wait_for(2)
            for every in size([7], [3, 4, 5, 7, 11, 13, 17, 29]):
                proxy.cut_at(every, place, repeatedly=True)
                writers.wait_for(size(5, 20))
                proxy.stop_cutting()
                writers.wait_for(1)
        assert writers.failed == []
        matrix.add(proxy.cuts, audit(url, log))


def message(text: str) -> Any:
    return UserMessage(content=[TextContent(text=text)], id=text)


def past(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer, "t", run="r")
    for n in range(3):
        chain.put({"log": ["entry " * 30] * (n + 1), "long": "x" * 5000 * n})
        keep.checkpointer.put_writes(config("t", chain.last), [("log", n)], f"task {n}")
    asyncio.run(keep.cube.append("c", [message("first"), message("second")]))
    asyncio.run(keep.cube.claim_run("c", "run"))
    for n in range(3):
        keep.store.put(("a", "b"), f"k{n}", {"n": n})


VERBS: dict[str, Callable[[threadkeep.Keep], Any]] = {
    "put": lambda keep: keep.checkpointer.put(*fourth().next({"log": ["new"], "long": "y" * 70_000}, id="00000003")),
    "put to a new thread": lambda keep: Chain(keep.checkpointer, "new").put({"log": ["new"]}),
    "put_writes": lambda keep: keep.checkpointer.put_writes(config("t", "00000002"), [("log", "w")], "task"),
    "delete_thread": lambda keep: keep.checkpointer.delete_thread("t"),
    "copy_thread": lambda keep: keep.checkpointer.copy_thread("t", "copy"),
    "prune": lambda keep: keep.checkpointer.prune(["t"]),
    "delete_for_runs": lambda keep: keep.checkpointer.delete_for_runs(["r"]),
    "describe": lambda keep: keep.describe("t", title="A title", labels=["x"]),
    "append": lambda keep: asyncio.run(keep.cube.append("c", [message("third")])),
    "append of messages without ids": lambda keep: asyncio.run(
        keep.cube.append("c", [UserMessage(content=[TextContent(text="no id")])])
    ),
    "save_extra": lambda keep: asyncio.run(keep.cube.save_extra("c", {"a": 1})),
    "mark_run_complete": lambda keep: asyncio.run(keep.cube.mark_run_complete("c", "run")),
    "fork": lambda keep: keep.fork("t", to="forked"),
    "store put": lambda keep: keep.store.put(("a", "b"), "new", {"n": 9}),
    "store delete": lambda keep: keep.store.delete(("a", "b"), "k1"),
    "delete_memories": lambda keep: keep.delete_memories(("a",)),
}


def fourth() -> Chain:
    chain = Chain(None, "t", run="r")
    for n in range(3):
        chain.next({"log": ["entry " * 30] * (n + 1), "long": "x" * 5000 * n})
    return chain


def outcome(keep: threadkeep.Keep) -> Any:
    """Return what is stored, without times and random ids."""
    cubes = {thread: asyncio.run(keep.cube.load(thread)) for thread in ("c", "forked")}
    return {
        "checkpoints": [outcome_of(found) for found in keep.checkpointer.list(None)],
        "threads": sorted((each.id, each.kind, each.checkpoints, each.writes, each.title) for each in keep.threads()),
        "messages": {thread: [each.content[0].text for each in found.messages] for thread, found in cubes.items() if found},
        "extra": {thread: found.extra for thread, found in cubes.items() if found},
        "memories": sorted((item.key, item.value["n"]) for item in keep.store.search(())),
    }  # fmt: skip


def outcome_of(found: Any) -> Any:
    place = found.config["configurable"]
    id = "" if place["thread_id"] == "forked" else place["checkpoint_id"]
    return place["thread_id"], id, found.checkpoint["channel_values"], found.pending_writes


def cases() -> Iterator[tuple[str, str]]:
    """Yield verbs and places: all of them, or for `make test` each verb with one place."""
    for n, verb in enumerate(VERBS):
        for m, place in enumerate(PLACES):
            if size(short=n % len(PLACES) == m, full=True):
                yield verb, place


@pytest.mark.fault("connection cut at each request of each verb")
@pytest.mark.parametrize("backend", PROXIED)
def test_each_verb_is_done_once_whichever_request_is_cut(backend: str, matrix: Matrix) -> None:
    with PROXIED[backend]() as (proxy, fresh_url), threadkeep.open(fresh_url()) as keep:
        for verb, place in cases():
            expected = None
            for k in itertools.count():
                with keep.tenant(f"{verb} {place} {k}") as own:
                    past(own)
                    before = proxy.cuts
                    proxy.cut_at(k, place)
                    VERBS[verb](own)
                    proxy.stop_cutting()
                    expected = expected or outcome(own)
                    assert outcome(own) == expected, (verb, place, k)
                    assert own.verify().problems == []
                if k and proxy.cuts == before:
                    break
            assert 1 < k < 30, (verb, place, k)
        matrix.add(proxy.cuts, Findings(proxy.cuts))
