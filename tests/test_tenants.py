"""Tenants of one storage: separate in every verb, with quotas of their own, listed and dropped. On every backend."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import io
import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cubeloop.providers.base import TextContent, UserMessage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import processes
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from hypothesis_profiles import examples
from sync_async import AsyncCaller, Caller, SyncCaller
from test_cli import forked as run_cli
from test_conformance import SyncSide, assert_complete, checkpointer_test, validate
from threadkeep import Policy, errors
from threadkeep.engine.threads.catalogue import ThreadInfo

THREADS, NAMESPACES, KEYS = ("t", "u"), (("n",), ("n", "m")), ("k", "l")
KEY = {"k1": bytes(range(32))}
VALUE = {"text": "x" * 500}


@pytest.fixture
def keep(url: str) -> Iterator[threadkeep.Keep]:
    """A Keep of the default tenant, on a storage of its own."""
    with threadkeep.open(url, index=INDEX) as opened:
        yield opened


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), float(sum(map(ord, text)) % 97), 1.0] for text in texts]


INDEX: Any = {"dims": 3, "embed": embed}


# --- the same calls give what a storage of one's own gives


class Own:
    """A Keep, and how its answers are made comparable with those of another storage: without times and sizes."""

    def __init__(self, keep: threadkeep.Keep, call: Caller) -> None:
        self.keep, self.call = keep, call

    async def answer(self, verb: str, *args: Any) -> Any:
        """Call a verb. Return what it answers, or the error that it raises."""
        try:
            return await getattr(self, verb)(*args)
        except (errors.ThreadkeepError, ValueError) as error:
            return type(error)

    async def put(self, thread: str, id: int, value: str) -> Any:
        arguments = Chain(None, thread, run=f"run{id % 2}").next({"a": [value]}, id=f"{id:04}", mark=id)
        return await self.call(self.keep.checkpointer, "put", *arguments)

    async def put_writes(self, thread: str, id: int, value: str) -> Any:
        return await self.call(self.keep.checkpointer, "put_writes", config(thread, f"{id:04}"), [("a", value)], "task")

    async def get(self, thread: str) -> Any:
        return _shown(await self.call(self.keep.checkpointer, "get_tuple", config(thread)))

    async def list(self, thread: str | None) -> Any:
        listed = config(thread) if thread is not None else None
        found = await self.call.every(self.keep.checkpointer, "list", listed)
        return sorted(map(_shown, found), key=repr)

    async def list_filtered(self, mark: int) -> Any:
        found = await self.call.every(self.keep.checkpointer, "list", None, filter={"mark": mark})
        return sorted(map(_shown, found), key=repr)

    async def delete_thread(self, thread: str) -> Any:
        return await self.call(self.keep.checkpointer, "delete_thread", thread)

    async def delete_for_runs(self, run: int) -> Any:
        return await self.call(self.keep.checkpointer, "delete_for_runs", [f"run{run}"])

    async def copy_thread(self, source: str, target: str) -> Any:
        return await self.call(self.keep.checkpointer, "copy_thread", source, target)

    async def prune(self, thread: str) -> Any:
        return await self.call(self.keep.checkpointer, "prune", [thread])

    async def prune_all(self) -> Any:
        return _counts(await self.call(self.keep, "prune", policy=Policy(keep_last=1)))

    async def remember(self, namespace: tuple[str, ...], key: str, value: str, *, expired: bool) -> Any:
        await self.call(self.keep.store, "put", namespace, key, {"text": value}, ttl=1e-9 if expired else None)
        await asyncio.sleep(0.001 if expired else 0)

    async def recall(self, namespace: tuple[str, ...], key: str) -> Any:
        return _item(await self.call(self.keep.store, "get", namespace, key))

    async def forget(self, namespace: tuple[str, ...], key: str) -> Any:
        return await self.call(self.keep.store, "delete", namespace, key)

    async def search(self, namespace: tuple[str, ...], query: str | None) -> Any:
        return sorted(map(_item, await self.call(self.keep.store, "search", namespace, query=query)), key=repr)

    async def list_namespaces(self) -> Any:
        return sorted(await self.call(self.keep.store, "list_namespaces"))

    async def append(self, thread: str, value: str) -> Any:
        return await self.keep.cube.append(thread, [UserMessage(content=[TextContent(text=value)], id=value)])

    async def load(self, thread: str) -> Any:
        found = await self.keep.cube.load(thread)
        return found and [(each.id, each.content[0].text) for each in found.messages]

    async def threads(self) -> Any:
        return sorted(map(_thread, await self.call(self.keep, "threads")))

    async def threads_containing(self, value: str) -> Any:
        return sorted(map(_thread, await self.call(self.keep, "threads", contains=value)))

    async def describe(self, thread: str, value: str) -> Any:
        return _thread(await self.call(self.keep, "describe", thread, title=value, labels=[value], kind="graph"))

    async def log(self, thread: str) -> Any:
        return [(each.id, each.step) for each in await self.call(self.keep, "log", thread, kind="graph")]

    async def tag(self, thread: str) -> Any:
        return await self.call(self.keep, "tag", thread, "latest", "release", kind="graph") and True

    async def delete(self, thread: str) -> Any:
        return _counts(await self.call(self.keep, "delete", thread))

    async def delete_memories(self, namespace: tuple[str, ...]) -> Any:
        return await self.call(self.keep, "delete_memories", namespace)

    async def erase(self, thread: str, namespace: tuple[str, ...]) -> Any:
        return _counts(await self.call(self.keep, "erase", thread_id=thread, namespace=[namespace]))

    async def sweep(self) -> Any:
        return _counts(await self.call(self.keep, "sweep"))

    async def stats(self) -> Any:
        return _counts(await self.call(self.keep, "stats"))

    async def activity(self) -> Any:
        found = await self.call(self.keep, "activity")
        return found.threads if hasattr(found, "threads") else len(found)

    async def sizes(self) -> Any:
        return (await self.call(self.keep, "sizes")).threads

    async def verify(self) -> Any:
        found = await self.call(self.keep, "verify")
        return found.threads, found.checkpoints, found.memories, found.problems

    async def compact(self) -> Any:
        await self.call(self.keep, "compact")

    async def export(self) -> Any:
        file = io.BytesIO()
        return _counts(await self.call(self.keep, "export", file))


def _shown(found: Any) -> Any:
    if found is None:
        return None
    writes = [tuple(write) for write in found.pending_writes or ()]
    return found.config, found.checkpoint["channel_values"], found.metadata, found.parent_config, writes


def _item(item: Any) -> Any:
    return item and (item.namespace, item.key, item.value, round(getattr(item, "score", None) or 0, 4))


def _thread(info: ThreadInfo) -> Any:
    described = info.title or "", info.labels, info.archived
    return info.id, info.kind, info.checkpoints, info.writes, info.step or 0, info.status, *described


def _counts(answer: Any) -> dict[str, Any]:
    names = ("examined", "threads", "checkpoints", "memories", "namespaces", "writes", "missing", "by_kind", "items")
    counted = {name: getattr(answer, name) for name in names if hasattr(answer, name)}
    return {name: len(value) if isinstance(value, tuple) else value for name, value in counted.items()}


threads, namespaces, keys = st.sampled_from(THREADS), st.sampled_from(NAMESPACES), st.sampled_from(KEYS)
ids, values = st.integers(0, 3), st.sampled_from(["red", "green", "blue"])
CALLS = st.one_of(
    st.tuples(st.just("put"), threads, ids, values),
    st.tuples(st.just("put"), threads, ids, values),
    st.tuples(st.just("put_writes"), threads, ids, values),
    st.tuples(st.just("remember"), namespaces, keys, values),
    st.tuples(st.just("remember"), namespaces, keys, values, st.just("expired")),
    st.tuples(st.just("append"), threads, values),
    st.tuples(st.just("describe"), threads, values),
    st.tuples(st.sampled_from(["get", "list", "delete_thread", "prune", "load", "log", "tag", "delete"]), threads),
    st.tuples(st.just("copy_thread"), threads, threads),
    st.tuples(st.just("list"), st.none()),
    st.tuples(st.sampled_from(["list_filtered", "delete_for_runs"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["recall", "forget"]), namespaces, keys),
    st.tuples(st.just("search"), namespaces, st.one_of(st.none(), values)),
    st.tuples(st.just("threads_containing"), values),
    st.tuples(st.just("delete_memories"), namespaces),
    st.tuples(st.just("erase"), threads, namespaces),
    st.tuples(
        st.sampled_from(
            ["prune_all", "list_namespaces", "threads", "sweep", "stats", "activity", "sizes", "verify", "compact"]
            + ["export"]
        )
    ),
)
EVERYTHING = [
    ("list", None), ("threads",), ("search", (), None), ("list_namespaces",), ("load", "t"), ("load", "u"), ("stats",),
    ("verify",), ("export",), ("sweep",),
]  # fmt: skip
_numbers = itertools.count()


async def compare(keep: threadkeep.Keep, steps: list[tuple[int, tuple[Any, ...]]], call: Caller) -> None:
    """Make calls on three tenants, and the same on three storages in memory. Assert that the answers are the same."""
    number = next(_numbers)
    names = [f"{number}", f"{number}\0", f"{number}/é"]
    tenants = [Own(keep.tenant(name), call) for name in names]
    alone = [Own(threadkeep.open("memory://", index=INDEX), call) for _ in names]
    try:
        for n, step in [*steps, *((n, step) for step in EVERYTHING for n in range(len(names)))]:
            verb, *args = step
            answers = [await _answer(each[n], verb, args) for each in (tenants, alone)]
            assert answers[0] == answers[1], (n, step)
        for step in EVERYTHING[:5]:
            assert not await Own(keep, call).answer(*step), f"the default tenant has something of another: {step}"
    finally:
        for each in [*tenants, *alone]:
            await each.keep.aclose()


async def _answer(own: Own, verb: str, args: list[Any]) -> Any:
    if verb != "remember":
        return await own.answer(verb, *args)
    return await own.remember(*args[:3], expired=len(args) > 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("caller", [SyncCaller(), AsyncCaller()], ids=["sync", "async"])
def test_every_verb_answers_as_if_the_tenant_had_a_storage_of_its_own(
    keep: threadkeep.Keep, caller: Caller, request: pytest.FixtureRequest
) -> None:
    tries = 3 if "valkey" in request.node.name else 12  # a list over all threads asks every partition

    @settings(max_examples=examples(tries), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.integers(0, 2), CALLS), max_size=30))
    def check(steps: list[tuple[int, tuple[Any, ...]]]) -> None:
        asyncio.run(compare(keep, steps, caller))

    check()


def test_rollback_and_fork_stay_within_the_tenant(keep: threadkeep.Keep) -> None:
    one, two = keep.tenant("one"), keep.tenant("two")
    for each in (one, two):
        chain = Chain(each.checkpointer)
        for n in range(3):
            chain.put({"a": [n]})
    one.rollback("t", "latest~1")
    one.fork("t", "latest", to="new")
    assert len(one.log("t")) == 4
    assert [info.id for info in two.threads()] == ["t"]
    assert list_ids(two.checkpointer) == ["00000002", "00000001", "00000000"]


async def test_one_tenant_does_not_use_the_vectors_of_another(keep: threadkeep.Keep) -> None:
    one, two = keep.tenant("one"), keep.tenant("two")
    await one.store.aput(("n",), "mine", {"text": "apple"})
    assert [item.key for item in await one.store.asearch(("n",), query="apple")] == ["mine"]
    assert await two.store.asearch(("n",), query="apple") == []


# --- the Keep of a tenant


def test_the_same_name_gives_the_same_data(keep: threadkeep.Keep) -> None:
    Chain(keep.tenant("one").checkpointer).put({"a": 1})
    assert values_of(keep.tenant("one").checkpointer) == {"a": 1}


def test_a_tenant_is_the_one_that_open_names(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        Chain(keep.tenant("one").checkpointer).put({"a": 1})
    with threadkeep.open(lasting_url, tenant="one") as keep:
        assert values_of(keep.checkpointer) == {"a": 1}


async def test_closing_the_keep_of_a_tenant_closes_only_that(keep: threadkeep.Keep, call: Caller) -> None:
    one, again = keep.tenant("one"), keep.tenant("one")
    await call(one, "close")
    await call(one, "close")
    with pytest.raises(errors.Closed):
        await call(one.store, "get", ("n",), "k")
    with pytest.raises(errors.Closed):
        await call(one.checkpointer, "get_tuple", config("t"))
    assert await call(again.store, "get", ("n",), "k") is None
    assert await call(keep.store, "get", ("n",), "k") is None


def test_a_read_of_a_closed_tenant_does_not_leave_a_coroutine(recwarn: pytest.WarningsRecorder) -> None:
    with threadkeep.open("memory://") as keep:
        one = keep.tenant("one")
        one.close()
        with pytest.raises(errors.Closed):
            one.checkpointer.get_tuple(config("t"))
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


async def test_closing_a_keep_closes_those_of_its_tenants(url: str, call: Caller) -> None:
    keep = threadkeep.open(url)
    one = keep.tenant("one", quota_bytes=10_000)
    await call(one.store, "put", ("n",), "k", VALUE)
    await call(keep, "close")
    with pytest.raises(errors.Closed):
        await call(one.store, "get", ("n",), "k")
    with pytest.raises(errors.Closed):
        keep.tenant("two")
    await call(one, "close")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": ""}, ValueError),
        ({"name": None}, TypeError),
        ({"name": b"one"}, TypeError),
        ({"name": "one", "keys": {}}, TypeError),
        ({"name": "one", "quota_bytes": -1}, ValueError),
        ({"name": "one", "quota_bytes": 1.5}, TypeError),
        ({"name": "one", "quota_bytes": True}, TypeError),
        ({"name": "one", "quota_bytes": math.nan}, TypeError),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with threadkeep.open("memory://") as keep, pytest.raises(error):
        keep.tenant(**arguments)


def test_only_the_default_tenant_opens_lists_and_drops_others(keep: threadkeep.Keep) -> None:
    one = keep.tenant("one")
    for refused in (lambda: one.tenant("two"), one.tenants, lambda: one.drop_tenant("two")):
        with pytest.raises(ValueError, match="default tenant"):
            refused()
    with pytest.raises(ValueError, match="default tenant"):
        keep.drop_tenant("")


def test_tenants_without_quota_and_keys_cost_next_to_nothing(keep: threadkeep.Keep) -> None:
    one = keep.tenant("one")
    for each in (one, keep):
        each.store.put(("n",), "k", VALUE)
        Chain(each.checkpointer).put({"a": 1})
    transport: Any = keep._session.transport
    for method in ("try_commit", "try_drop"):
        assert getattr(transport, method) == getattr(transport.inner, method)
    for method in ("read", "write"):  # these look whether a reply says nothing, and at nothing else
        assert getattr(transport, method) == getattr(transport._plain, method)


# --- keys


def test_a_tenant_of_an_encrypted_keep_is_encrypted_with_its_keys(url: str) -> None:
    keys = threadkeep.Keys(KEY, primary="k1")
    with threadkeep.open(url, keys=keys) as keep:
        one = keep.tenant("one")
        Chain(one.checkpointer).put({"a": 1})
        one.store.put(("n",), "k", VALUE)
        assert values_of(keep.tenant("one").checkpointer) == {"a": 1}
        assert keep.checkpointer.get_tuple(config("t")) is None
        assert [(info.name, info.encrypted) for info in keep.tenants()] in (
            [("one", True)],
            [("", True), ("one", True)],
        )


def test_a_tenant_of_a_plain_keep_may_have_keys_of_its_own(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        Chain(keep.checkpointer).put({"a": "plain"})
        Chain(keep.tenant("one", keys=threadkeep.Keys(KEY, primary="k1")).checkpointer).put({"a": 1})
        assert values_of(keep.checkpointer) == {"a": "plain"}
    with threadkeep.open(lasting_url) as keep:
        with pytest.raises(errors.WrongKey):
            keep.tenant("one").checkpointer.get_tuple(config("t"))
        with pytest.raises(errors.WrongKey):
            keep.tenant("one", keys=threadkeep.Keys({"k1": bytes(32)}, primary="k1")).checkpointer.get_tuple(
                config("t")
            )
        assert values_of(keep.tenant("one", keys=threadkeep.Keys(KEY, primary="k1")).checkpointer) == {"a": 1}
        assert values_of(keep.checkpointer) == {"a": "plain"}


def test_a_new_tenant_hides_ids_if_its_keep_does(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"
    keys, own = (threadkeep.Keys({id: id.encode() * 16}, primary=id) for id in ("k1", "k2"))
    with threadkeep.open(f"sqlite:///{path}", keys=keys, hide_ids=True) as keep:
        _put_secrets(keep.tenant("acme", keys=own))
        _put_secrets(keep)
    with threadkeep.open(f"sqlite:///{path}", keys=keys) as keep:  # it is as was decided
        _put_secrets(keep.tenant("globex"))
        _put_secrets(keep.tenant("initech", keys=own))
    assert b"secret-" not in path.read_bytes()


def _put_secrets(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer, "secret-thread").put({"a": 1})
    keep.store.put(("secret-namespace",), "secret-key", {"a": 1})
    assert [info.id for info in keep.threads()] == ["secret-thread"]


def test_an_encrypted_tenant_is_dropped_without_its_keys(lasting_url: str) -> None:
    keys = threadkeep.Keys(KEY, primary="k1")
    with threadkeep.open(lasting_url) as keep:
        one = keep.tenant("one", keys=keys)
        Chain(one.checkpointer).put({"a": 1})
        one.store.put(("n",), "k", VALUE)
    with threadkeep.open(lasting_url) as keep:
        dropped = keep.drop_tenant("one")
        assert (dropped.threads, dropped.memories) == (1, 1)
        assert keep.tenants() == []
        assert keep.tenant("one", keys=keys).checkpointer.get_tuple(config("t")) is None


# --- quotas


def fill(keep: threadkeep.Keep, most: int = 1000, name: str = "k") -> int:
    """Store memories until the quota is used up. Return how many were stored."""
    for n in range(most):
        try:
            keep.store.put(("n",), f"{name}{n}", VALUE)
        except errors.QuotaExceeded:
            return n
    raise AssertionError("the quota is not enforced")


def stored_bytes(keep: threadkeep.Keep, name: str = "one") -> int:
    return next((info.bytes for info in keep.tenants() if info.name == name), 0)


async def test_nothing_is_stored_beyond_a_quota(keep: threadkeep.Keep, call: Caller) -> None:
    one = await asyncio.to_thread(keep.tenant, "one", quota_bytes=0)
    message = UserMessage(content=[TextContent(text="hello")], id="m")
    with pytest.raises(errors.QuotaExceeded):
        await call(one.checkpointer, "put", *Chain(None).next({"a": 1}))
    with pytest.raises(errors.QuotaExceeded):
        await call(one.checkpointer, "put_writes", config("t", "1"), [("a", 1)], "task")
    with pytest.raises(errors.QuotaExceeded):
        await call(one.store, "put", ("n",), "k", VALUE)
    with pytest.raises(errors.QuotaExceeded):
        await one.cube.append("t", [message])
    with pytest.raises(errors.QuotaExceeded):
        await one.cube.save_extra("t", {"a": 1})
    assert await call(one, "threads") == []
    assert await call(one.store, "search", ()) == []
    assert await call.every(one.checkpointer, "list", None) == []
    [info] = await call(keep, "tenants")
    assert (info.name, info.threads, info.memories, info.bytes, info.quota_bytes) == ("one", 0, 0, 0, 0)
    await call(keep.store, "put", ("n",), "k", VALUE)


def test_a_quota_is_used_up_and_not_exceeded(keep: threadkeep.Keep) -> None:
    one = keep.tenant("one", quota_bytes=20_000)
    fill(one)
    assert 19_000 < stored_bytes(keep) <= 20_000


def test_threads_count_what_the_catalogue_shows(keep: threadkeep.Keep) -> None:
    one, chain = keep.tenant("one", quota_bytes=20_000), None
    chain = Chain(one.checkpointer)
    with pytest.raises(errors.QuotaExceeded):
        for _ in range(1000):
            chain.put({"a": os.urandom(500)})
    assert stored_bytes(keep) == sum(info.bytes for info in one.threads())
    assert 18_000 < stored_bytes(keep) <= 20_000
    assert len(list_ids(one.checkpointer)) == chain.number - 1, "the refused put stored nothing"
    assert one.verify().ok


def test_deleting_and_pruning_work_at_the_limit_and_free_the_quota(keep: threadkeep.Keep) -> None:
    one = keep.tenant("one", quota_bytes=20_000)
    chain = Chain(one.checkpointer)
    for _ in range(10):
        chain.put({"a": os.urandom(900)})
    fill(one)
    one.prune("t")
    assert fill(one, name="after prune") > 5
    one.checkpointer.delete_thread("t")
    assert fill(one, name="after delete") > 0
    one.store.delete(("n",), "k0")
    one.store.put(("n",), "k0", VALUE)
    one.delete_memories(("n",))
    assert fill(one, name="all") > 30
    one.erase(namespace=[("n",)])
    assert stored_bytes(keep) == 0


def test_a_value_may_be_replaced_by_a_smaller_one_at_the_limit(keep: threadkeep.Keep) -> None:
    one = keep.tenant("one", quota_bytes=20_000)
    fill(one)
    one.store.put(("n",), "k0", {"text": "small"})
    one.store.put(("n",), "k1", {"text": "y" * 500})
    assert one.store.get(("n",), "k0").value == {"text": "small"}


def test_a_quota_stays_until_another_value_is_given(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.tenant("one", quota_bytes=5_000).store.put(("n",), "k", {"text": "x"})
    with threadkeep.open(lasting_url) as keep:
        one = keep.tenant("one")
        first = fill(one)
        assert keep.tenants()[0].quota_bytes == 5_000
        keep.tenant("one", quota_bytes=10_000)
        assert fill(one, name="more") > first // 2
        keep.tenant("one", quota_bytes=100)
        with pytest.raises(errors.QuotaExceeded):
            one.store.put(("n",), "even more", VALUE)
        keep.tenant("one", quota_bytes=math.inf)
        for n in range(50):
            one.store.put(("n",), f"unlimited{n}", VALUE)
        assert keep.tenants()[0].quota_bytes is None


def test_two_keeps_share_a_quota(lasting_url: str) -> None:
    quota = 60_000
    with threadkeep.open(lasting_url) as first, threadkeep.open(lasting_url) as second:
        tenants = [keep.tenant("one", quota_bytes=quota) for keep in (first, second)]
        refused: set[int] = set()
        for n in range(1000):
            try:
                tenants[n % 2].store.put(("n",), f"k{n}", VALUE)
            except errors.QuotaExceeded:
                refused.add(n % 2)
            if len(refused) == len(tenants):
                break
        assert quota * 0.95 < stored_bytes(first) <= quota + 2 * quota // 100


async def test_concurrent_callers_do_not_exceed_a_quota(keep: threadkeep.Keep) -> None:
    one = await asyncio.to_thread(keep.tenant, "one", quota_bytes=20_000)
    puts = [one.store.aput(("n",), f"k{n}", VALUE) for n in range(60)]
    puts += [one.checkpointer.aput(*Chain(None, f"t{n}").next({"a": os.urandom(500)})) for n in range(20)]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    assert failures
    assert all(isinstance(each, errors.QuotaExceeded) for each in failures)
    assert 15_000 < await asyncio.to_thread(stored_bytes, keep) <= 20_000


KILLED = """
import sys, time, threadkeep
keep = threadkeep.open(sys.argv[1])
keep.tenant("one").store.put(("killed",), sys.argv[2], {"text": "x"})
print("stored", flush=True)
time.sleep(600)
"""


def test_the_slices_of_killed_processes_are_found_again(lasting_url: str) -> None:
    quota = 100_000
    with threadkeep.open(lasting_url) as keep:
        one = keep.tenant("one", quota_bytes=quota)
        one.store.put(("n",), "first", VALUE)
        for n in range(3):
            process = processes.fork(KILLED, lasting_url, n)
            assert process.stdout is not None
            assert process.stdout.readline() == "stored\n"
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        fill(one)
        assert quota - 1_000 < stored_bytes(keep) <= quota + 3 * quota // 100


def test_a_closed_keep_returns_what_it_did_not_use(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.tenant("one", quota_bytes=20_000)
        for n in range(40):  # more slices than there are
            with threadkeep.open(lasting_url) as other:
                other.tenant("one").store.put(("n",), f"k{n}", {"text": "x"})
        assert stored_bytes(keep) < 20_000 // 10


def test_a_copy_counts(keep: threadkeep.Keep) -> None:
    one = keep.tenant("one", quota_bytes=20_000)
    chain = Chain(one.checkpointer)
    for _ in range(10):
        chain.put({"a": os.urandom(900)})
    one.copy("t", "copy")
    with pytest.raises(errors.QuotaExceeded):
        one.copy("t", "another")
    assert sorted(info.id for info in one.threads()) == ["copy", "t"]


# --- list and drop


async def test_tenants_are_listed_and_measured(keep: threadkeep.Keep, call: Caller) -> None:
    assert await call(keep, "tenants") == []
    await call(keep.store, "put", ("n",), "k", VALUE)
    for name, threads in (("two", 2), ("one", 1)):
        tenant = keep.tenant(name)
        for n in range(threads):
            await call(tenant.checkpointer, "put", *Chain(None, f"t{n}").next({"a": n}))
        await call(tenant.store, "put", ("n",), "k", VALUE)
    found = await call(keep, "tenants")
    assert [(info.name, info.threads, info.memories) for info in found] == [("", 0, 1), ("one", 1, 1), ("two", 2, 1)]
    assert not any(info.encrypted or info.quota_bytes for info in found)
    assert all(info.bytes > 500 for info in found)


async def test_a_dropped_tenant_leaves_nothing_and_others_keep_all(keep: threadkeep.Keep, call: Caller) -> None:
    names = ["one", "one\0", "two"]
    for name in names:
        tenant = keep.tenant(name, quota_bytes=100_000)
        await call(tenant.checkpointer, "put", *Chain(None).next({"a": name}))
        await call(tenant.store, "put", ("n",), "k", {"text": name})
        await tenant.cube.append("t", [UserMessage(content=[TextContent(text=name)], id=name)])
    one = keep.tenant("one")
    dropped = await call(keep, "drop_tenant", "one")
    assert dataclasses.astuple(dropped) == ("one", 2, 1)
    assert [info.name for info in await call(keep, "tenants")] == ["one\0", "two"]
    assert await call(one.checkpointer, "get_tuple", config("t")) is None
    assert await call(one.store, "search", (), query="one") == []
    assert await one.cube.load("t") is None
    for name in names[1:]:
        other = keep.tenant(name)
        found = await call(other.checkpointer, "get_tuple", config("t"))
        assert found.checkpoint["channel_values"] == {"a": name}
        assert (await call(other.store, "get", ("n",), "k")).value == {"text": name}
    with pytest.raises(errors.Missing):
        await call(keep, "drop_tenant", "one")
    await call(one.store, "put", ("n",), "k", VALUE)
    assert [info.quota_bytes for info in await call(keep, "tenants")] == [None, 100_000, 100_000]


def test_a_sweep_removes_expired_memories_of_its_tenant_only(keep: threadkeep.Keep) -> None:
    one, two = keep.tenant("one"), keep.tenant("two")
    for each in (one, two):
        each.store.put(("n",), "k", VALUE, ttl=1e-9)
    time.sleep(0.001)
    assert one.sweep().memories == 1
    assert [(info.name, info.memories) for info in keep.tenants()] == [("two", 1)]
    assert two.store.sweep_ttl() == 1


def test_the_command_lists_exports_and_drops_tenants(lasting_url: str, tmp_path: Any) -> None:
    with threadkeep.open(lasting_url) as keep:
        Chain(keep.tenant("one", quota_bytes=100_000).checkpointer).put({"a": 1})
        Chain(keep.tenant("two").checkpointer).put({"a": 2})
    listed = run_cli("tenants", "--url", lasting_url, "--json")
    assert [(each["name"], each["quota_bytes"]) for each in json.loads(listed.stdout)] == [
        ("one", 100_000),
        ("two", None),
    ]
    assert "100" in run_cli("tenants", "--url", lasting_url).stdout
    file = tmp_path / "one.jsonl"
    assert run_cli("export", "--output", str(file), "--url", lasting_url, "--tenant", "one").returncode == 0
    assert run_cli("tenants", "drop", "one", "--url", lasting_url).returncode == 2, "without --yes"
    assert run_cli("tenants", "drop", "one", "--yes", "--url", lasting_url).returncode == 0
    assert run_cli("tenants", "drop", "one", "--yes", "--url", lasting_url).returncode == 1
    assert run_cli("tenants", "rename", "--url", lasting_url).returncode == 2
    with threadkeep.open(lasting_url) as keep:
        assert [info.name for info in keep.tenants()] == ["two"]
        keep.tenant("three").import_portable(file)
        assert values_of(keep.tenant("three").checkpointer) == {"a": 1}


# --- the official suite; `test_tenant_store.py` and `test_tenant_cube.py` run our own ones


@pytest.mark.parametrize("shown", [SyncSide, lambda saver: saver], ids=["sync", "async"])
def test_the_saver_of_a_tenant_passes_the_official_suite(fresh_url: Callable[[], str], shown: Any) -> None:
    @checkpointer_test(name="threadkeep tenant")
    async def fresh_saver() -> Any:
        async with threadkeep.open(fresh_url()) as keep:
            yield shown(keep.tenant("one").checkpointer)

    assert_complete(asyncio.run(validate(fresh_saver)))
