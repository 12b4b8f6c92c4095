"""`store.put(..., if_version=...)`: a memory that others changed meanwhile is left alone, on every backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import processes
import threadkeep
from encrypted_keeps import KEYS
from sync_async import Caller
from threadkeep import errors
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.engine.memories.requests import ChangeMemories, MemoryRow, NewMemory, WriteMemories

HOME, KEY = ("home", "deep"), "k"
version_of = threadkeep.KeepStore.version_of


@pytest.fixture
def keep(url: str) -> Iterator[threadkeep.Keep]:
    with threadkeep.open(url) as opened:
        yield opened


async def test_a_put_with_the_version_that_was_read_replaces_the_memory(keep: threadkeep.Keep, call: Caller) -> None:
    store = keep.store
    await call(store, "put", HOME, KEY, {"n": 1})
    read = await call(store, "get", HOME, KEY)
    await call(store, "put", HOME, KEY, {"n": 2}, if_version=version_of(read))
    now = await call(store, "get", HOME, KEY)
    assert now.value == {"n": 2}
    assert now.created_at == read.created_at
    assert version_of(now) > version_of(read)


async def test_a_put_with_an_old_version_is_a_conflict_and_changes_nothing(keep: threadkeep.Keep, call: Caller) -> None:
    store = keep.store
    await call(store, "put", HOME, KEY, {"n": 1})
    read = await call(store, "get", HOME, KEY)
    await call(store, "put", HOME, KEY, {"n": 2}, if_version=version_of(read))
    for version in (version_of(read), 1, 0):
        with pytest.raises(errors.Conflict, match="memory 'k' in home/deep was changed"):
            await call(store, "put", HOME, KEY, {"n": 3}, if_version=version)
    assert (await call(store, "get", HOME, KEY)).value == {"n": 2}


async def test_version_0_stores_only_what_is_not_there(keep: threadkeep.Keep, call: Caller) -> None:
    store = keep.store
    assert version_of(await call(store, "get", HOME, KEY)) == 0
    with pytest.raises(errors.Conflict):
        await call(store, "put", HOME, KEY, {"n": 1}, if_version=5)
    await call(store, "put", HOME, KEY, {"n": 1}, if_version=0)
    with pytest.raises(errors.Conflict):
        await call(store, "put", HOME, KEY, {"n": 2}, if_version=0)
    assert (await call(store, "get", HOME, KEY)).value == {"n": 1}


def test_an_expired_memory_counts_as_missing(keep: threadkeep.Keep) -> None:
    keep.store.put(HOME, KEY, {"n": 1}, ttl=0)
    keep.store.put(HOME, KEY, {"n": 2}, if_version=0)
    item = keep.store.get(HOME, KEY)
    assert item is not None
    assert item.value == {"n": 2}


def test_an_item_of_a_search_has_its_version(keep: threadkeep.Keep) -> None:
    keep.store.put(HOME, KEY, {"n": 1})
    (found,) = keep.store.search(HOME)
    keep.store.put(HOME, KEY, {"n": 2}, if_version=version_of(found))


def test_the_version_grows_even_if_the_clock_goes_back(keep: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep.store.put(HOME, KEY, {"n": 0})
    monkeypatch.setattr("threadkeep.clock.now_us", lambda: 1_000_000)
    seen = [version_of(keep.store.get(HOME, KEY))]
    for n in range(3):
        keep.store.put(HOME, KEY, {"n": n}, if_version=seen[-1])
        seen.append(version_of(keep.store.get(HOME, KEY)))
    assert seen == sorted(set(seen))


def test_a_conditional_put_is_indexed_and_expires(fresh_url: Callable[[], str]) -> None:
    index: Any = {
        "dims": 2,
        "embed": lambda texts: [[float("moon" in text), 1.0] for text in texts],
        "search": "hybrid",
    }
    with threadkeep.open(fresh_url(), index=index, ttl={"default_ttl": 600}) as keep:
        store = keep.store
        store.put(HOME, KEY, {"text": "sun"}, if_version=0)
        store.put(HOME, KEY, {"text": "blue moon"}, if_version=version_of(store.get(HOME, KEY)))
        store.put(HOME, "other", {"text": "sun"}, if_version=0)
        assert [item.key for item in store.search((), query="moon", limit=1)] == [KEY]
        store.put(HOME, KEY, {"text": "gone"}, ttl=0, if_version=version_of(store.get(HOME, KEY)))
        assert store.get(HOME, KEY) is None
        assert keep.verify().ok


@pytest.mark.parametrize("hide_ids", [False, True])
def test_versions_are_compared_in_an_encrypted_keep(fresh_url: Callable[[], str], hide_ids: bool) -> None:  # noqa: FBT001
    with threadkeep.open(fresh_url(), keys=KEYS, hide_ids=hide_ids) as keep:
        store = keep.store
        store.put(HOME, KEY, {"n": 1}, if_version=0)
        read = store.get(HOME, KEY)
        store.put(HOME, KEY, {"n": 2}, if_version=version_of(read))
        with pytest.raises(errors.Conflict):
            store.put(HOME, KEY, {"n": 3}, if_version=version_of(read))
        item = store.get(HOME, KEY)
        assert item is not None
        assert item.value == {"n": 2}


def test_a_quota_holds_for_conditional_puts(keep: threadkeep.Keep) -> None:
    small = keep.tenant("small", quota_bytes=2000).store
    with pytest.raises(errors.QuotaExceeded):
        small.put(HOME, KEY, {"text": "x" * 5000}, if_version=0)
    small.put(HOME, KEY, {"text": "x"}, if_version=0)


def test_a_batch_is_made_only_if_all_its_memories_are_as_expected(keep: threadkeep.Keep) -> None:
    one, two, gone = (MemoryKey(("p", name), "k") for name in ("one", "two", "gone"))
    keep.store.put(*two, {"n": 0})
    keep.store.put(*gone, {"n": 0})
    versions = {key: version_of(keep.store.get(*key)) for key in (two, gone)}
    now = max(versions.values()) + 10
    row = MemoryRow(*one, '{"n":1}', now, now, None, None)

    def outcome(expected: dict[MemoryKey, int | None]) -> Any:
        write = WriteMemories("", (NewMemory(row), NewMemory(row._replace(namespace=two.namespace))), (gone,), now)
        return keep._session.transport.write([ChangeMemories(write, tuple(expected.items()))])[0]

    for wrong in ({one: 5}, {two: None}, {gone: versions[gone] + 1}):
        failed = outcome({one: None, two: versions[two], gone: versions[gone], **wrong})
        assert isinstance(failed.error, errors.Conflict)
        assert [keep.store.get(*key) is None for key in (one, two, gone)] == [True, False, False]
    assert outcome({one: None, two: versions[two], gone: versions[gone]}).value is None
    assert [item and item.value for item in (keep.store.get(*key) for key in (one, two, gone))] == [
        {"n": 1},
        {"n": 1},
        None,
    ]


def test_a_put_whose_reply_was_lost_is_no_conflict(keep: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep.store.put(HOME, KEY, {"n": 1})
    read = keep.store.get(HOME, KEY)
    transport, write = keep._session.transport, keep._session.transport.write

    def write_twice(requests: Any) -> Any:
        write(requests)
        return write(requests)

    monkeypatch.setattr(transport, "write", write_twice)
    keep.store.put(HOME, KEY, {"n": 2}, if_version=version_of(read))
    item = keep.store.get(HOME, KEY)
    assert item is not None
    assert item.value == {"n": 2}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"if_version": -1}, ValueError),
        ({"if_version": "1"}, TypeError),
        ({"if_version": 0, "index": "text"}, TypeError),
        ({"if_version": 0, "ttl": "1"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, error: type[Exception]) -> None:
    with threadkeep.open("memory://") as keep:
        with pytest.raises(error):
            keep.store.put(HOME, KEY, {}, **arguments)
        with pytest.raises(ValueError, match="reserved|langgraph"):
            keep.store.put(("langgraph",), KEY, {}, if_version=0)
        with pytest.raises(TypeError):
            keep.store.put(HOME, KEY, None, if_version=0)  # type: ignore[arg-type]
        assert keep.store.search(()) == []


# --- many writers

ADD = """
import sys
import threadkeep
url, name = sys.argv[1:]
version_of = threadkeep.KeepStore.version_of
with threadkeep.open(url) as keep:
    store = keep.store
    store.get(("home",), "list")
    wait_for_others()
    for n in range(15):
        while True:
            item = store.get(("home",), "list")
            entries = item.value["entries"] if item else []
            try:
                store.put(("home",), "list", {"entries": [*entries, f"{name} {n}"]}, if_version=version_of(item))
            except threadkeep.errors.Conflict:
                continue
            break
"""


def test_processes_that_add_to_one_memory_lose_nothing(lasting_url: str) -> None:
    names = ["a", "b", "c"]
    with threadkeep.open(lasting_url) as keep:
        keep.setup()
        processes.run_concurrently(ADD, [(lasting_url, name) for name in names])
        item = keep.store.get(("home",), "list")
        assert item is not None
        assert sorted(item.value["entries"]) == sorted(f"{name} {n}" for name in names for n in range(15))


def test_threads_that_create_one_memory_create_it_once(keep: threadkeep.Keep) -> None:
    created: list[int] = []
    barrier = threading.Barrier(8)

    def create(n: int) -> None:
        for round in range(10):
            barrier.wait()
            try:
                keep.store.put(("new",), f"k{round}", {"by": n}, if_version=0)
            except errors.Conflict:
                continue
            created.append(round)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == list(range(10))


async def test_tasks_that_add_to_one_memory_lose_nothing(url: str) -> None:
    async with threadkeep.open(url) as keep:

        async def add(n: int) -> None:
            while True:
                item = await keep.store.aget(HOME, KEY)
                entries = item.value["entries"] if item else []
                try:
                    await keep.store.aput(HOME, KEY, {"entries": [*entries, n]}, if_version=version_of(item))
                except errors.Conflict:
                    continue
                return

        await asyncio.gather(*(add(n) for n in range(12)))
        item = await keep.store.aget(HOME, KEY)
        assert item is not None
        assert sorted(item.value["entries"]) == list(range(12))
