"""One saver with many users: sync and async, several event loops, and callers that use it while they list."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blockbuster import BlockingError

import threadkeep
from checkpoint_chains import config
from checkpoint_trees import put, values_at
from graph_scenarios import THREAD, letters
from sync_async import AsyncCaller


async def test_a_sync_call_on_the_event_loop_is_detected_by_blockbuster(lasting_url: str) -> None:
    """Otherwise the async tests would prove nothing about blocking."""
    keep = threadkeep.open(lasting_url)
    with pytest.raises(BlockingError):
        keep.checkpointer.get_tuple(THREAD)
    await keep.aclose()


async def test_a_relative_url_is_opened_and_used_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with threadkeep.open("sqlite:///agent.db") as keep:
        await letters(keep.checkpointer).ainvoke({"foo": ""}, THREAD)
    assert (tmp_path / "agent.db").exists()


async def test_an_async_run_is_read_by_sync_calls_and_back(saver: threadkeep.KeepSaver) -> None:
    graph = letters(saver)
    await graph.ainvoke({"foo": ""}, THREAD)
    assert (await asyncio.to_thread(graph.get_state, THREAD)).values == {"foo": "b", "bar": ["a", "b"]}
    await asyncio.to_thread(graph.invoke, {"foo": ""}, THREAD)
    assert (await graph.aget_state(THREAD)).values == {"foo": "b", "bar": ["a", "b", "a", "b"]}


def in_own_loops(*actors: Callable[[], Awaitable[None]]) -> None:
    """Run each function in a thread with its own event loop. Raise any error."""
    failed: list[BaseException] = []

    def run(actor: Callable[[], Awaitable[None]]) -> None:
        try:
            asyncio.run(asyncio.wait_for(actor(), timeout=60))  # type: ignore[arg-type]
        except BaseException as error:  # raised again below, in the test's thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=[actor]) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_one_thread_is_used_by_two_event_loops_in_turns(saver: threadkeep.KeepSaver) -> None:
    graph = letters(saver)
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def actor(number: int) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            for _ in range(5):
                await asyncio.to_thread(turns[number].acquire)
                await graph.ainvoke({"foo": "", "bar": [str(number)]}, THREAD)
                turns[1 - number].release()

        return act

    in_own_loops(actor(0), actor(1))
    assert graph.get_state(THREAD).values["bar"] == ["0", "a", "b", "1", "a", "b"] * 5


def test_writes_of_two_event_loops_on_one_checkpoint_all_arrive(saver: threadkeep.KeepSaver) -> None:
    letters(saver).invoke({"foo": ""}, THREAD)
    latest = saver.get_tuple(THREAD)
    assert latest is not None

    def actor(number: int) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            await asyncio.gather(
                *(saver.aput_writes(latest.config, [("bar", [number, n])], f"task {number} {n}") for n in range(50))
            )

        return act

    in_own_loops(actor(0), actor(1))
    found = saver.get_tuple(THREAD)
    assert found is not None
    assert sorted(value for _, _, value in found.pending_writes or ()) == [
        [number, n] for number in (0, 1) for n in range(50)
    ]


def test_threads_of_two_event_loops_do_not_mix(saver: threadkeep.KeepSaver) -> None:
    graph = letters(saver)

    def actor(number: int) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            await asyncio.gather(
                *(
                    graph.ainvoke(
                        {"foo": "", "bar": [f"{number}-{n}"]}, {"configurable": {"thread_id": f"{number}-{n}"}}
                    )
                    for n in range(10)
                )
            )

        return act

    in_own_loops(actor(0), actor(1))
    for name in (f"{number}-{n}" for number in (0, 1) for n in range(10)):
        assert graph.get_state({"configurable": {"thread_id": name}}).values["bar"] == [name, "a", "b"]


@pytest.fixture
def eager_garbage_collection() -> Iterator[None]:
    """Let other threads run wherever Python may collect garbage, such as inside `list(d.items())` (until 3.12)."""
    thresholds = gc.get_threshold()

    def step_aside(phase: str, info: dict[str, int]) -> None:
        time.sleep(0.00005)

    gc.callbacks.append(step_aside)
    gc.set_threshold(100)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(step_aside)


@pytest.mark.usefixtures("eager_garbage_collection")
def test_many_os_threads_read_and_write_through_one_saver(saver: threadkeep.KeepSaver) -> None:
    for n in range(300):
        put(saver, {"n": n}, thread=str(n))

    def write(worker: int) -> None:
        for n in range(300):
            put(saver, {"n": [worker, n]}, thread=f"{worker}-{n}")

    def read(worker: int) -> None:
        for n in range(600):
            assert values_at(saver, config(str((7 * n + worker) % 300))) == {"n": (7 * n + worker) % 300}

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, worker) for worker in range(3) for work in (write, read)]:
            done.result()
    assert {values_at(saver, config(f"{worker}-{n}"))["n"][1] for worker in range(3) for n in range(300)} == set(
        range(300)
    )


async def test_the_saver_may_be_used_inside_its_own_alist_loop(saver: threadkeep.KeepSaver) -> None:
    graph = letters(saver)
    await graph.ainvoke({"foo": ""}, THREAD)

    async def walk() -> list[str]:
        seen = []
        async for found in saver.alist(THREAD):
            seen.append(found.checkpoint["id"])
            assert await saver.aget_tuple(found.config) == found
            await saver.aput_writes(found.config, [("bar", ["late"])], f"late {found.checkpoint['id']}")
            await graph.ainvoke({"foo": ""}, {"configurable": {"thread_id": "another"}})
            assert len([inner async for inner in saver.alist(THREAD, limit=2)]) == 2
        return seen

    seen = await asyncio.wait_for(walk(), timeout=60)
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 4


def test_the_saver_may_be_used_inside_its_own_list_loop(saver: threadkeep.KeepSaver) -> None:
    graph = letters(saver)
    graph.invoke({"foo": ""}, THREAD)
    seen = []
    for found in saver.list(THREAD):
        seen.append(found.checkpoint["id"])
        assert saver.get_tuple(found.config) == found
        saver.put_writes(found.config, [("bar", ["late"])], f"late {found.checkpoint['id']}")
        graph.invoke({"foo": ""}, {"configurable": {"thread_id": "another"}})
        assert len(list(saver.list(THREAD, limit=2))) == 2
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 4


def test_a_thread_may_be_deleted_inside_its_own_list_loop(saver: threadkeep.KeepSaver) -> None:
    letters(saver).invoke({"foo": ""}, THREAD)
    for found in saver.list(THREAD):
        saver.delete_thread(found.config["configurable"]["thread_id"])
    assert list(saver.list(THREAD)) == []


async def test_an_abandoned_alist_holds_nothing(saver: threadkeep.KeepSaver) -> None:
    graph = letters(saver)
    await graph.ainvoke({"foo": ""}, THREAD)
    listing = saver.alist(THREAD)
    await anext(listing)
    await asyncio.wait_for(graph.ainvoke({"foo": ""}, THREAD), timeout=60)
    await asyncio.wait_for(saver.adelete_thread("1"), timeout=60)
    await listing.aclose()
    assert await saver.aget_tuple(THREAD) is None


async def test_a_hundred_threads_run_at_once_and_do_not_mix(saver: threadkeep.KeepSaver) -> None:
    graph = letters(saver)
    configs = [{"configurable": {"thread_id": f"t{n}"}} for n in range(100)]
    await asyncio.gather(*(graph.ainvoke({"foo": "", "bar": [str(n)]}, at) for n, at in enumerate(configs)))
    for n, at in enumerate(configs):
        assert (await graph.aget_state(at)).values["bar"] == [str(n), "a", "b"]
        assert len(await AsyncCaller().every(saver, "list", at)) == 4
