"""One store with many users: tasks, threads, event loops, processes, forks; cancelled callers.

Nothing is lost, batches are never seen half done, and a memory has exactly the vectors of its current value: there are
none of other values or of deleted memories. A search sees at once what others stored and deleted.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp

import postgres_servers
import stored_memories
import threadkeep
from memory_batches import (
    HOME,
    INDEX,
    NEAR,
    PARTS,
    TEXTS,
    WORDS,
    atomic_namespaces,
    check_mixed_batches,
    check_vectors,
    keys,
    location,
    mixed_batches,
    replacing_batch,
)
from processes import finish, fork, run_concurrently, run_forked
from test_concurrency import in_loop, in_threads
from test_postgres import blocked
from threadkeep.conformance.store.embedder import embed
from threadkeep.engine.memories.namespaces import MemoryKey

TIMEOUT = 30


@pytest.fixture
def store(url: str) -> Iterator[threadkeep.KeepStore]:
    with threadkeep.open(url, index=INDEX) as keep:
        yield keep.store


# --- many callers, on their own keys and on shared ones


def test_threads_and_loops_lose_nothing_and_leave_nothing_behind(url: str, store: threadkeep.KeepStore) -> None:
    rounds, names = 10, [f"{kind}{n}" for kind in ("sync", "loop") for n in range(4)]

    def sync(name: str) -> Callable[[], None]:
        def work() -> None:
            for ops in mixed_batches(name, rounds):
                store.batch(ops)
                store.search(HOME, query="apple", limit=3)

        return work

    def loop(name: str) -> Callable[[], Any]:
        async def work() -> None:
            for ops in mixed_batches(name, rounds):
                await asyncio.gather(store.abatch(ops), store.asearch(HOME, query="apple", limit=3))

        return in_loop(work)

    in_threads(*(sync(name) if name.startswith("sync") else loop(name) for name in names))
    check_mixed_batches(url, store, names, rounds)


PROCESS = """
import threadkeep
from memory_batches import INDEX, mixed_batches
with threadkeep.open(sys.argv[1], index=INDEX) as keep:
    wait_for_others()
    for ops in mixed_batches(sys.argv[2], int(sys.argv[3])):
        keep.store.batch(ops)
        keep.store.search(("home",), query="apple", limit=3)
"""


def test_processes_lose_nothing_and_leave_nothing_behind(lasting_url: str) -> None:
    names, rounds = ["one", "two", "three"], 25
    with threadkeep.open(lasting_url, index=INDEX) as keep:
        assert keep.store.search(HOME, query="apple") == []
        run_concurrently(PROCESS, [(lasting_url, name, rounds) for name in names])
        check_mixed_batches(lasting_url, keep.store, names, rounds)


async def test_tasks_that_write_one_key_leave_one_value_and_its_vectors(url: str, store: threadkeep.KeepStore) -> None:
    values = [{"text": f"{text} {n}", **more} for text in TEXTS for n in range(3) for more in ({}, {"more": text})]
    calls = [store.adelete(HOME, "k") for _ in range(5)] + [store.aput(HOME, "k", value) for value in values]
    await asyncio.gather(*calls[::2], *calls[1::2])
    found = await store.aget(HOME, "k")
    assert found is None or found.value in values
    await asyncio.to_thread(check_vectors, url, store)


def test_keeps_with_different_indexes_leave_the_last_ones_vectors_and_words(lasting_url: str) -> None:
    with ExitStack() as stack:
        kinds = [INDEX, NEAR, WORDS, {"search": "off"}]
        stores = [stack.enter_context(threadkeep.open(lasting_url, index=kind)).store for kind in kinds]
        for one in range(4):
            for other in range(4):
                stores[one].put(HOME, "k", {"text": "apple pie", "more": "plum"})
                stores[other].put(HOME, "k", {"text": "apple juice"})
                there = stored_memories.read_memories(location(lasting_url))
                (number,) = there.memory_keys
                assert len(there.vectors.get(number, {})) == (1 if other in (0, 1) else 0)
                assert (number in there.words) is (other in (0, 2))
                assert keys(stores[1].search(HOME, query="plum", limit=3)) == (["k"] if other in (0, 1) else [])
                assert keys(stores[2].search(HOME, query="pie")) == []
                assert keys(stores[2].search(HOME, query="juice")) == (["k"] if other in (0, 2) else [])


# --- PostgreSQL: writers that block each other at critical points


class Rivals:
    """Two stores on one schema. While `tk_parts` is locked, writers wait between memories and vectors."""

    def __init__(self) -> None:
        self.name = f"t_{uuid.uuid4().hex}"
        self.url = postgres_servers.shared().url(schema=self.name, application_name=self.name)
        self.keeps = [threadkeep.open(self.url, index=NEAR) for _ in range(2)]
        self.one, self.other = (keep.store for keep in self.keeps)
        self.one.put(HOME, "always", {"text": "rain"})
        self.other.put(HOME, "always", {"text": "rain"})
        self._threads: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def go(self, work: Callable[[], Any]) -> None:
        """Start a function in a thread, and wait until it reaches the lock or ends."""
        new = threading.Thread(target=self._work, args=[work])
        self._threads.append(new)
        new.start()
        waiting = len(self._threads)
        assert postgres_servers.wait_until(lambda: blocked(self.name) == waiting or not new.is_alive(), TIMEOUT), (
            "it hangs"
        )

    def _work(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            self._failed.append(error)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT)
        assert not any(thread.is_alive() for thread in self._threads), "they hang"
        self._threads.clear()
        if self._failed:
            raise self._failed[0]

    def lock(self, table: str, which: str = "TRUE") -> psycopg.Connection[Any]:
        holder = psycopg.connect(self.url.partition("?")[0])
        holder.execute(f"SELECT 1 FROM {self.name}.{table} WHERE {which} FOR UPDATE".encode())
        return holder


@pytest.fixture
def rivals() -> Iterator[Rivals]:
    made = Rivals()
    yield made
    for keep in made.keeps:
        keep.close()


TWO, ONE = {"text": "apple", "more": "plum"}, {"text": "pear"}
MEETINGS: dict[str, tuple[Any, Any, Any]] = {
    "a delete after more vectors": ({"text": "sea", "indexed": False}, TWO, None),
    "a delete after the first put": (None, TWO, None),
    "fewer vectors after more": (ONE, TWO, ONE),
    "more vectors after fewer": (TWO, ONE, TWO),
    "none after some": (None, TWO, {"text": "sea", "indexed": False}),
    "some after a delete": (TWO, None, ONE),
}


@pytest.mark.parametrize("story", MEETINGS)
def test_a_writer_that_waited_leaves_the_vectors_of_its_own_value_only(rivals: Rivals, story: str) -> None:
    def change(store: threadkeep.KeepStore, value: Any) -> None:
        indexed = None if value is None or value.get("indexed", True) else False
        store.batch([PutOp(HOME, "k", value, indexed)])

    before, first, then = MEETINGS[story]
    if before is not None:
        change(rivals.one, before)
    with rivals.lock("tk_parts"):
        rivals.go(lambda: change(rivals.one, first))
        rivals.go(lambda: change(rivals.other, then))
    rivals.finish()
    found = rivals.one.get(HOME, "k")
    assert (found.value if found else None) in (first, then)
    check_vectors(rivals.url, rivals.one)
    for store in (rivals.one, rivals.other):
        assert set(keys(store.search(HOME, query="plum"))) == {"always"} | ({"k"} if remaining(rivals) else set())


def remaining(rivals: Rivals) -> bool:
    return bool(stored_memories.read_memories(rivals.url).of(MemoryKey(HOME, "k")))


@pytest.mark.parametrize("saved", ["by a read", "by a put"])
def test_a_sweep_leaves_what_was_renewed_while_it_waited(rivals: Rivals, saved: str) -> None:
    rivals.one.put(HOME, "k", {"text": "apple"}, ttl=0.0001)
    time.sleep(0.01)
    holder = psycopg.connect(rivals.url.partition("?")[0])
    change = {
        "by a read": "expires = expires + 1000000000, times = times + 1000000000",
        "by a put": "expires = NULL, ttl = NULL, checksum = NULL, times = NULL",
    }[saved]
    holder.execute(f"UPDATE {rivals.name}.tk_memories SET {change} WHERE key = 'k'".encode())
    swept: list[int] = []
    rivals.go(lambda: swept.append(rivals.keeps[1].sweep().memories))
    holder.commit()
    rivals.finish()
    holder.close()
    assert swept == [0]
    assert rivals.one.get(HOME, "k", refresh_ttl=False) is not None
    check_vectors(rivals.url, rivals.one)


def test_an_erase_leaves_a_partition_whose_vectors_are_being_stored(rivals: Rivals) -> None:
    rivals.one.delete(HOME, "always")
    with psycopg.connect(rivals.url.partition("?")[0]) as holder:
        holder.execute(f"UPDATE {rivals.name}.tk_parts SET seq = seq + 1".encode())
        rivals.go(lambda: rivals.keeps[1].erase(namespace=("nobody",)))
    rivals.finish()
    count = f"SELECT count(*) FROM {rivals.name}.tk_parts"
    assert postgres_servers.shared().execute(count) == [(1,)]
    rivals.keeps[1].erase(namespace=("nobody",))
    assert postgres_servers.shared().execute(count) == [(0,)]


def test_batches_that_lock_in_opposite_orders_all_succeed(rivals: Rivals) -> None:
    """Two batches with the same keys and partitions in opposite orders."""
    places = [((f"part {n}",), f"k{n}") for n in range(6)]

    def work(store: threadkeep.KeepStore, name: str, order: int) -> Callable[[], None]:
        def puts() -> None:
            for n in range(15):
                ops = [PutOp(*place, {"text": f"apple {name}", "n": n}) for place in places[::order]]
                store.batch([*ops[:3], *(op._replace(value=None) for op in ops[3:])])

        return puts

    started = time.monotonic()
    in_threads(work(rivals.one, "one", 1), work(rivals.other, "other", -1))
    assert time.monotonic() - started < TIMEOUT
    found = rivals.one.search((), filter={"n": 14}, limit=100)
    assert len({item.value["text"] for item in found}) == 1
    assert len(found) == 3
    check_vectors(rivals.url, rivals.one)


# --- a search sees changes by others at once

SERVANT = """
import sys, threadkeep
from langgraph.store.base import PutOp
from memory_batches import INDEX
with threadkeep.open(sys.argv[1], index=INDEX) as keep:
    store, home = keep.store, ("home",)
    for line in sys.stdin:
        verb, key, text = line.strip().split("|")
        if verb == "batch":
            store.batch([PutOp(home, f"{key} {n}", {"text": text}) for n in range(50)])
        elif verb == "put":
            store.put(home, key, {"text": text})
        elif verb == "hide":
            store.put(home, key, {"text": text}, index=False)
        elif verb == "delete":
            store.delete(home, key)
        print(" ".join(sorted(item.key for item in store.search(home, query=text, limit=1))), flush=True)
"""


class Servant:
    """Another process that executes commands on the storage."""

    def __init__(self, url: str) -> None:
        self._process = fork(SERVANT, url)

    def __call__(self, verb: str, key: str, text: str) -> str:
        """Do something, then search for the text. Return the first hit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(verb, key, text, sep="|", file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def finish(self) -> None:
        finish(self._process)


@pytest.mark.parametrize("index", [NEAR, WORDS], ids=["vectors", "words"])
def test_a_search_sees_at_once_what_another_process_did(lasting_url: str, index: Any) -> None:
    with threadkeep.open(lasting_url, index=index) as keep:
        servant, store = Servant(lasting_url), keep.store

        def best(text: str) -> list[str]:
            return keys(item for item in store.search(HOME, query=text, limit=100) if (item.score or 0) > 0)

        assert best("apple") == []
        assert servant("put", "a", "apple") == "a"
        assert best("apple") == ["a"]
        servant("put", "a", "rain")
        assert (best("apple"), best("rain")) == ([], ["a"])
        servant("batch", "b", "plum")
        assert len(best("plum")) == 50
        servant("hide", "a", "rain")
        servant("delete", "b 7", "plum")
        assert best("rain") == []
        assert len(best("plum")) == 49
        servant("put", "b 7", "plum")
        servant("delete", "b 8", "plum")
        assert sorted(best("plum")) == sorted(f"b {n}" for n in range(50) if n != 8)
        servant.finish()


def test_another_process_sees_at_once_what_this_one_did(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, index=INDEX) as keep:
        servant = Servant(lasting_url)
        for n in range(10):
            keep.store.put(HOME, "k", {"text": TEXTS[n % 5]})
            assert servant("look", "", TEXTS[n % 5]) == "k"
        keep.store.delete(HOME, "k")
        assert servant("look", "", TEXTS[4]) == ""
        servant.finish()


def test_searches_while_others_write_find_only_what_is_there(url: str, store: threadkeep.KeepStore) -> None:
    """A hit is a current or a just replaced memory, and one that stays is always found."""
    store.put(HOME, "stays", {"text": "apple", "n": -1})
    stop = threading.Event()

    def write() -> None:
        for n in range(60):
            store.put(HOME, f"k{n % 5}", {"text": f"apple {n}", "n": n, "same": [n] * 20})
            store.delete(HOME, f"k{(n + 2) % 5}")
        stop.set()

    def read() -> None:
        while not stop.is_set():
            found = store.search(HOME, query="apple", limit=10)
            assert "stays" in keys(found)
            assert len(set(keys(found))) == len(found)
            assert all(item.value.get("same", [-1] * 20) == [item.value["n"]] * 20 for item in found)

    in_threads(write, read, read)
    check_vectors(url, store)


# --- a reader never sees half a batch

WRITER = """
import sys, threadkeep
from memory_batches import INDEX, replacing_batch
with threadkeep.open(sys.argv[1], index=INDEX) as keep:
    for n in range(1, 100_000):
        keep.store.batch(replacing_batch(n, sys.argv[1]))
        print(n, flush=True)
"""


def test_a_reader_never_sees_half_a_batch_of_another_process(lasting_url: str) -> None:
    writer = fork(WRITER, lasting_url)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "1\n"
        with threadkeep.open(lasting_url, index=NEAR) as keep:
            seen = [_seen(keep.store, lasting_url) for _ in range(100)]
            end = time.monotonic() + TIMEOUT
            while len(set(seen)) <= 3 and time.monotonic() < end:  # let a writer that had no turn yet go
                seen.append(_seen(keep.store, lasting_url))
        assert seen == sorted(seen)
        assert len(set(seen)) > 3
    finally:
        writer.kill()
        writer.communicate()


def _gets(url: str) -> list[GetOp]:
    return [GetOp(space, "k") for space in atomic_namespaces(url)]


def _seen(store: threadkeep.KeepStore, url: str) -> int:
    """Return which batch is stored. The gets are one read, the search another; on Valkey it is no snapshot."""
    (n,) = {item.value["n"] for item in store.batch(_gets(url))}
    if url.startswith("valkey:"):
        return int(n)
    found = store.search((), limit=10)
    assert len({item.value["n"] for item in found}) == 1
    assert len(found) == PARTS + 1
    assert found[0].value["n"] >= n
    return int(n)


def test_a_reader_never_sees_half_a_batch_of_another_thread(url: str, store: threadkeep.KeepStore) -> None:
    stop = threading.Event()

    def write() -> None:
        for n in range(60):
            store.batch(replacing_batch(n, url))
        stop.set()

    def read() -> None:
        while not stop.is_set():
            assert len({item and item.value["n"] for item in store.batch(_gets(url))}) == 1

    in_threads(write, read, read)


# --- cancelled callers


async def test_a_batch_that_is_cancelled_happens_wholly_or_not_at_all(url: str, store: threadkeep.KeepStore) -> None:
    ended = set()
    for n in range(40):
        task = asyncio.ensure_future(
            store.abatch([PutOp((f"part {k}",), f"k{n}", {"text": "apple", "n": n}) for k in range(3)])
        )
        await asyncio.sleep(0.0003 * n)
        task.cancel()
        ended.add((await asyncio.gather(task, return_exceptions=True))[0] is None or "cancelled")
    await asyncio.sleep(0.1)
    for n in range(40):
        got = await store.abatch([GetOp((f"part {k}",), f"k{n}") for k in range(3)])
        assert len({item is None for item in got}) == 1
    assert "cancelled" in ended
    await asyncio.to_thread(check_vectors, url, store)


async def test_a_call_that_is_cancelled_while_it_embeds_stores_nothing(url: str) -> None:
    embedding = asyncio.Event()

    async def slow(texts: Sequence[str]) -> list[list[float]]:
        if "slow" in texts:
            embedding.set()
            await asyncio.sleep(TIMEOUT)
        return embed(texts)

    async with threadkeep.open(url, index={**NEAR, "embed": slow}) as keep:
        await keep.store.aput(HOME, "old", {"text": "apple"})
        ops = [PutOp(HOME, "new", {"text": "slow"}), PutOp(HOME, "old", None)]
        task = asyncio.ensure_future(keep.store.abatch(ops))
        await embedding.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert keys(await keep.store.asearch(HOME, query="apple")) == ["old"]


async def test_cancelled_searches_leave_the_store_usable(store: threadkeep.KeepStore) -> None:
    await store.abatch([PutOp(HOME, f"k{n}", {"text": TEXTS[n % 5]}) for n in range(50)])
    for n in range(20):
        tasks = [asyncio.ensure_future(store.asearch(HOME, query=text)) for text in TEXTS * 4]
        await asyncio.sleep(0.0005 * n)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(await store.asearch(HOME, query="apple", limit=100)) == 50


# --- event loops


async def test_no_call_blocks_the_event_loop(url: str) -> None:
    """The fixture `unblocked_loop` raises if a loop is blocked."""
    keep = threadkeep.open(url, index=INDEX, ttl={"default_ttl": 1, "sweep_interval_minutes": 1})
    store = keep.store
    await store.setup()
    await store.start_ttl_sweeper()
    await store.aput(HOME, "k", {"text": "apple"}, ttl=0)
    await store.abatch([PutOp(HOME, f"k{n}", {"text": TEXTS[n % 5]}) for n in range(20)])
    assert len(await store.asearch(HOME, query="apple", limit=100)) == 20
    assert len(await store.asearch(HOME, filter={"text": {"$ne": "sea"}}, limit=100)) == 16
    assert await store.aget(HOME, "k") is None
    await store.adelete(HOME, "k1")
    assert await store.alist_namespaces() == [HOME]
    assert await store.sweep_ttl() == 1
    assert (await keep.asweep()).memories == 0
    assert await store.stop_ttl_sweeper() is True
    await keep.aclose()


@pytest.mark.parametrize("sync_or_async", ["sync", "async"])
async def test_an_embedder_that_takes_its_time_does_not_stop_the_loop(url: str, sync_or_async: str) -> None:
    def slow(texts: Sequence[str]) -> list[list[float]]:
        time.sleep(0.2)
        return embed(texts)

    async def aslow(texts: Sequence[str]) -> list[list[float]]:
        await asyncio.sleep(0.2)
        return embed(texts)

    async with threadkeep.open(url, index={**NEAR, "embed": slow if sync_or_async == "sync" else aslow}) as keep:
        await keep.setup()
        put = asyncio.ensure_future(keep.store.aput(HOME, "k", {"text": "apple"}))
        ticks = 0
        while not put.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks >= 10
        assert keys(await keep.store.asearch(HOME, query="apple")) == ["k"]


def test_a_sync_caller_may_have_an_async_embedder_inside_a_loop_or_not(url: str) -> None:
    async def aembed(texts: Sequence[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return embed(texts)

    with threadkeep.open(url, index={**NEAR, "embed": aembed}) as keep:
        keep.store.put(HOME, "k", {"text": "apple"})

        async def inside() -> list[str]:
            return keys(keep.store.search(HOME, query="apple"))

        assert asyncio.run(inside()) == ["k"]


def test_loops_one_after_the_other_and_at_once_share_a_store(store: threadkeep.KeepStore) -> None:
    for n in range(3):
        asyncio.run(store.aput(HOME, f"k{n}", {"text": "apple"}))

    async def work(name: str) -> None:
        await asyncio.gather(*(store.aput(HOME, f"{name}{n}", {"text": "apple"}) for n in range(10)))
        assert len(await store.asearch(HOME, query="apple", limit=100)) >= 13

    in_threads(*(in_loop(lambda name=name: work(name)) for name in ("a", "b", "c")))
    assert len(store.search(HOME, query="apple", limit=100)) == 33


# --- forks

FORK = """
import os, sys, signal, warnings
import threadkeep
from memory_batches import HOME, INDEX
warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(90)
lasting = not sys.argv[1].startswith("memory")
keep = threadkeep.open(sys.argv[1], index=INDEX)
store = keep.store
store.start_ttl_sweeper(0.001)
store.put(HOME, "both", {"text": "apple"})
def found():
    return sorted(item.key for item in store.search(HOME, query="apple", limit=100))
assert found() == ["both"]
pid = os.fork()
if not pid:
    try:
        store.put(HOME, "child", {"text": "apple"})
        assert found() == ["both", "child"], found()
        store.put(HOME, "over", {"text": "apple"}, ttl=0)
        assert keep.sweep().memories <= 1  # the sweeper of the parent may be faster
        assert store.get(HOME, "over") is None
        assert store.stop_ttl_sweeper() is True
        keep.close()
    except BaseException:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert found() == (["both", "child"] if lasting else ["both"]), found()
store.put(HOME, "parent", {"text": "apple"})
store.delete(HOME, "both")
assert found() == (["child", "parent"] if lasting else ["parent"]), found()
keep.close()
"""


def test_a_store_may_be_forked(url: str) -> None:
    run_forked(FORK, url)


def test_a_search_and_its_batch_are_answered_from_one_call(store: threadkeep.KeepStore) -> None:
    """Reads of a batch see the state before its puts, whoever else writes."""
    store.put(HOME, "k", {"text": "apple", "n": 0})

    def work() -> None:
        for n in range(1, 20):
            before, found, _ = store.batch(
                [GetOp(HOME, "k"), SearchOp(HOME, query="apple"), PutOp(HOME, "k", {"text": "apple", "n": n})]
            )
            assert before is not None
            assert keys(found) == ["k"]

    in_threads(work, work)
