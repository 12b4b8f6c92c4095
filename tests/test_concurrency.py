"""One Keep with many users: threads, event loops, processes, forks; callers that are cancelled, interrupted or gone."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from processes import run, run_concurrently, run_forked
from threadkeep import errors
from threadkeep.drivers.retries import TryLater
from threadkeep.engine.requests import LoadItems
from threadkeep.plan import Failure, Outcome
from threadkeep.session import _GraphOps
from verbs import every, every_async_verb

TIMEOUT = 60


def in_threads(*works: Callable[[], Any]) -> None:
    """Run functions concurrently in threads. Raise the first error."""
    failed: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run_one(work: Callable[[], Any]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run_one, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]


def in_loop(work: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
    return lambda: asyncio.run(asyncio.wait_for(work(), TIMEOUT))


class Counted:
    """Counts the transactions of a Keep, and slows each down so that other commits can join."""

    def __init__(self, keep: threadkeep.Keep) -> None:
        self.transactions = self.commits = 0
        transport = keep.checkpointer._session.transport
        write = transport.write

        def counting(requests: Any) -> Any:
            self.transactions += 1
            self.commits += len(requests)
            time.sleep(0.02)
            return write(requests)

        transport.write = counting  # type: ignore[method-assign]


# --- many users of one saver


def test_sixteen_threads_use_one_thread_of_an_agent(saver: threadkeep.KeepSaver) -> None:
    def use(name: str) -> Callable[[], None]:
        def work() -> None:
            for n in range(12):
                id = f"{name}-{n:03}"
                Chain(saver).put({"who": [name, n], "padding": name * 100}, id=id)
                saver.put_writes(config("t", id), [("who", [name, n])], f"task {name}")
                assert values_of(saver, "t", id)["who"] == [name, n]
                assert id in list_ids(saver, limit=400)

        return work

    names = [f"{n:02}" for n in range(16)]
    in_threads(*map(use, names))
    found = {each.checkpoint["id"]: each for each in saver.list(config("t"))}
    assert sorted(found) == [f"{name}-{n:03}" for name in names for n in range(12)]
    for id, each in found.items():
        name, n = id[:2], int(id[3:])
        assert each.checkpoint["channel_values"] == {"who": [name, n], "padding": name * 100}
        assert each.pending_writes == [(f"task {name}", "who", [name, n])]


def test_sixteen_threads_use_a_thread_each(saver: threadkeep.KeepSaver) -> None:
    def use(name: str) -> Callable[[], None]:
        def work() -> None:
            chain, log = Chain(saver, name), []
            for n in range(25):
                log.append(f"{name} says {n} " * 5)
                chain.put({"log": list(log)})
                assert values_of(saver, name) == {"log": log}

        return work

    names = [f"t{n}" for n in range(16)]
    in_threads(*map(use, names))
    for name in names:
        assert len(list_ids(saver, name)) == 25
        assert len(values_of(saver, name)["log"]) == 25


def test_sync_and_async_callers_and_several_loops_share_a_thread(saver: threadkeep.KeepSaver) -> None:
    def sync(name: str) -> Callable[[], None]:
        def work() -> None:
            for n in range(20):
                Chain(saver).put({"who": name}, id=f"{name}-{n:02}")
                saver.put_writes(config("t", "early"), [("x", n)], f"{name}-{n:02}")

        return work

    def loop(name: str) -> Callable[[], Any]:
        async def work() -> None:
            await asyncio.gather(
                *(Chain(saver).aput({"who": name}, id=f"{name}-{n:02}") for n in range(20)),
                *(saver.aput_writes(config("t", "early"), [("x", n)], f"{name}-{n:02}") for n in range(20)),
            )
            assert len([found async for found in saver.alist(config("t"), limit=20)]) == 20

        return in_loop(work)

    in_threads(*(sync(f"s{n}") for n in range(4)), *(loop(f"a{n}") for n in range(4)))
    expected = sorted(f"{kind}{number}-{n:02}" for kind in "sa" for number in range(4) for n in range(20))
    assert sorted(list_ids(saver)) == expected
    Chain(saver).put({}, id="early")
    found = saver.get_tuple(config("t", "early"))
    assert found is not None
    assert sorted(task for task, _, _ in found.pending_writes or []) == expected


def test_puts_deletes_prunes_and_copies_at_once_leave_no_broken_checkpoint(saver: threadkeep.KeepSaver) -> None:
    over = threading.Event()

    def grow(name: str) -> Callable[[], None]:
        def work() -> None:
            try:
                for n in range(40):
                    log = [f"{k} of the log of anybody" for k in range(n)]
                    Chain(saver).put({"log": log}, id=f"{n:04}-{name}")
            finally:
                over.set()

        return work

    def until_over(act: Callable[[], Any]) -> Callable[[], None]:
        def work() -> None:
            while not over.is_set():
                act()

        return work

    def check() -> None:
        for found in saver.list(None):
            count = int(found.checkpoint["id"][:4])
            assert found.checkpoint["channel_values"] == {"log": [f"{k} of the log of anybody" for k in range(count)]}

    in_threads(
        *map(grow, "abc"),
        until_over(lambda: saver.prune(["t", "copy"])),
        until_over(lambda: saver.copy_thread("t", "copy")),
        until_over(lambda: saver.delete_thread("copy")),
        until_over(check),
    )
    check()
    assert list_ids(saver)


# --- group commit


async def test_a_hundred_parallel_writes_on_one_thread_are_a_few_commits(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    await Chain(saver).aput({"x": 0})
    counted = Counted(keep)
    await asyncio.gather(*(saver.aput_writes(config("t", "00000000"), [("x", n)], f"task {n:03}") for n in range(100)))
    assert counted.commits <= 20
    found = await saver.aget_tuple(config("t"))
    assert found is not None
    assert found.pending_writes == [(f"task {n:03}", "x", n) for n in range(100)]


def test_a_hundred_threads_that_write_on_one_thread_are_a_few_commits(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    Chain(saver).put({"x": 0})
    counted = Counted(keep)
    at = config("t", "00000000")
    in_threads(*(partial(saver.put_writes, at, [("x", n)], f"task {n:03}") for n in range(100)))
    assert counted.commits <= 20
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.pending_writes == [(f"task {n:03}", "x", n) for n in range(100)]


async def test_a_hundred_parallel_puts_on_as_many_threads_are_a_few_transactions(keep: threadkeep.Keep) -> None:
    counted = Counted(keep)
    await asyncio.gather(*(Chain(keep.checkpointer, f"t{n}").aput({"x": n}) for n in range(100)))
    assert counted.transactions <= 20 * keep._session.transport.writers
    assert len(await keep.athreads(limit=200)) == 100


@pytest.mark.parametrize("is_on", [True, False])
async def test_changes_of_many_tasks_are_staged_without_collections(keep: threadkeep.Keep, *, is_on: bool) -> None:
    """The collector would visit everything in the process now and then. Afterwards it is as the program set it."""
    chains = [Chain(keep.checkpointer, f"t{n}") for n in range(100)]
    await asyncio.gather(*(chain.aput({"x": 0}) for chain in chains))
    met: list[bool] = []

    def noted(ops: Any, *given: Any, stage: Any = _GraphOps.stage) -> Any:
        met.append(gc.isenabled())
        return stage(ops, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_GraphOps, "stage", noted)
        if not is_on:
            gc.disable()
        try:
            await asyncio.gather(*(chain.aput({"x": 1}) for chain in chains))
            assert gc.isenabled() is is_on
        finally:
            gc.enable()
    assert sum(met) <= (50 if is_on else 0)
    assert len(met) >= 90


async def test_a_bad_value_among_many_fails_alone(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    Counted(keep)
    bad = {n: {"x": threading.Lock()} if n % 10 == 3 else {"x": n} for n in range(40)}
    outcomes = await asyncio.gather(
        *(Chain(saver).aput(given, id=f"{n:02}") for n, given in bad.items()), return_exceptions=True
    )
    failed = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
    assert failed == [3, 13, 23, 33]
    assert sorted([found.checkpoint["id"] async for found in saver.alist(config("t"))]) == [
        f"{n:02}" for n in range(40) if n not in failed
    ]


# --- callers that go away


async def test_cancelled_calls_leave_whole_checkpoints_and_a_working_saver(saver: threadkeep.KeepSaver) -> None:
    errors_of_loop: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors_of_loop.append(context))
    chance = random.Random(7)
    first = Chain(saver)
    await first.aput({"log": ["start"], "padding": "x" * 1000})
    done: set[str] = set()

    async def use(id: str) -> None:
        await Chain(saver).aput({"log": [id, id * 50], "padding": "x" * 1000}, id=id)
        done.add(id)
        await saver.aput_writes(config("t", id), [("log", id), ("padding", id * 50)], "task")
        await saver.aget_tuple(config("t", id))
        async for found in saver.alist(config("t"), limit=30):
            assert found.checkpoint["channel_values"]["padding"] == "x" * 1000

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for attempt in range(60):
            tasks = [asyncio.create_task(use(f"1-{attempt:03}-{n}")) for n in range(8)]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(chance.choice((0, 0, 0.001, 0.004)))
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, type(None)}
        del tasks, outcomes
        gc.collect()
    await asyncio.wait_for(first.aput({"log": ["end"]}, id="2"), TIMEOUT)
    assert [str(warning.message) for warning in warned] == []
    assert errors_of_loop == []
    assert len(asyncio.all_tasks()) == 1
    stored = {found.checkpoint["id"]: found async for found in saver.alist(config("t"))}
    assert done <= set(stored)
    for id, found in stored.items():
        if id.startswith("1-"):
            assert found.checkpoint["channel_values"] == {"log": [id, id * 50], "padding": "x" * 1000}
            assert found.pending_writes in ([], [("task", "log", id), ("task", "padding", id * 50)])


async def test_a_cancelled_put_is_finished_by_the_worker(keep: threadkeep.Keep) -> None:
    """The caller is gone, but its change completes as a whole, soon, and does not block the next one."""
    Counted(keep)
    task = asyncio.create_task(Chain(keep.checkpointer).aput({"x": 1}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await Chain(keep.checkpointer).aput({"x": 2}, id="later")
    async with asyncio.timeout(TIMEOUT):
        while len([found async for found in keep.checkpointer.alist(config("t"))]) < 2:
            await asyncio.sleep(0.01)
    assert [found.checkpoint["id"] async for found in keep.checkpointer.alist(config("t"))] == ["later", "00000000"]


async def test_async_puts_of_one_thread_are_stored_in_the_order_of_their_calls(url: str) -> None:
    class Slow(JsonPlusSerializer):
        """Takes longer for some values than for others."""

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            if obj == "slow":
                time.sleep(0.1)
            return super().dumps_typed(obj)

    async with threadkeep.open(url, serde=Slow()) as keep:
        for cancelled in (False, True):
            checkpoint = empty_checkpoint()
            puts = [
                asyncio.ensure_future(
                    keep.checkpointer.aput(
                        config("t"),
                        {**checkpoint, "channel_values": {"x": value}, "channel_versions": {"x": 1}},
                        {},
                        {"x": 1},
                    )
                )
                for value in ("slow", "quick")
            ]
            await asyncio.sleep(0)
            if cancelled:
                puts[0].cancel()
            await asyncio.gather(*puts, return_exceptions=True)
            stored = await keep.checkpointer.aget_tuple(config("t"))
            assert stored is not None
            assert stored.checkpoint["channel_values"] == {"x": "quick"}, "the later call counts"


async def _until(event: threading.Event) -> None:
    """Let the loop run until an event is set."""
    deadline = time.monotonic() + TIMEOUT
    while not event.is_set():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_loop_may_be_closed_while_its_calls_are_under_way(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    keep.setup()
    transport = saver._session.transport
    write, writing, go_on = transport.write, threading.Event(), threading.Event()

    def slow(requests: Any) -> Any:
        writing.set()
        go_on.wait(TIMEOUT)
        return write(requests)

    transport.write = slow  # type: ignore[method-assign]
    loop = asyncio.new_event_loop()
    errors_of_loop: list[Any] = []
    loop.set_exception_handler(lambda _, context: errors_of_loop.append(context))
    tasks = [
        loop.create_task(Chain(saver).aput({"x": 1})),
        loop.create_task(saver.aput_writes(config("t", "00000000"), [("x", 1)], "task")),
        loop.create_task(saver.aget_tuple(config("t"))),
    ]
    loop.run_until_complete(_until(writing))
    loop.close()
    go_on.set()
    Chain(saver, "another").put({"x": 2})
    saver.put_writes(config("t", "00000000"), [("x", 3)], "later")
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": 1}
    assert sorted(task for task, _, _ in found.pending_writes or []) == ["later", "task"]
    keep.close()
    del tasks
    gc.collect()
    assert {context["message"] for context in errors_of_loop} <= {"Task was destroyed but it is pending!"}


def test_a_loop_may_be_closed_while_the_keep_is_being_closed(keep: threadkeep.Keep) -> None:
    """The thread that closes must not fail because no caller is left to notify."""
    saver = keep.checkpointer
    Chain(saver).put({"x": 1})
    inside, go_on = threading.Event(), threading.Event()
    close = saver._session.transport.close

    def slow() -> None:
        inside.set()
        go_on.wait(TIMEOUT)
        close()

    saver._session.transport.close = slow  # type: ignore[method-assign]
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: None)
    task = loop.create_task(keep.aclose())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert inside.wait(TIMEOUT)
    loop.close()
    del task
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "threadkeep-close":
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def test_a_keep_goes_from_loop_to_loop(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    for n in range(20):

        async def use(n: int = n) -> None:
            await chain.aput({"n": n})
            found = await keep.checkpointer.aget_tuple(config("t"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"n": n}
            await keep.athreads()

        asyncio.run(use())
    assert len(list_ids(keep.checkpointer)) == 20


async def test_reads_do_not_wait_for_a_write_that_waits(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    await Chain(saver).aput({"x": 1})
    transport = saver._session.transport
    write, go_on = transport.write, threading.Event()

    def slow(requests: Any) -> Any:
        go_on.wait(TIMEOUT)
        return write(requests)

    transport.write, transport.commits_at_once = slow, False  # type: ignore[method-assign]
    writers = [asyncio.create_task(Chain(saver, f"t{n}").aput({"x": n})) for n in range(30)]
    await asyncio.sleep(0.05)
    try:
        for _ in range(10):
            found = await asyncio.wait_for(saver.aget_tuple(config("t")), TIMEOUT / 2)
            assert found is not None
        assert not any(task.done() for task in writers)
    finally:
        go_on.set()
    await asyncio.gather(*writers)


@contextmanager
def threads_away(transport: Any, prefix: str) -> Iterator[None]:
    """Let the transport report that a part of the storage is away: the threads whose id starts so."""
    read, write, try_commit = transport.read, transport.write, transport.try_commit

    def later(request: Any) -> TryLater | None:
        batch = getattr(request, "batch", None)
        key = batch.thread.key if batch is not None else getattr(request, "key", None)
        if not getattr(key, "id", "").startswith(prefix):
            return None
        return TryLater(errors.Unavailable("away"), started=time.monotonic(), timeout=TIMEOUT)

    def read_others(request: Any) -> Any:
        if error := later(request):
            raise error
        return read(request)

    def write_others(requests: Any) -> list[Outcome]:
        waiting = [later(request) for request in requests]
        done = iter(write([request for request, error in zip(requests, waiting, strict=True) if not error]))
        return [Failure(error) if error else next(done) for error in waiting]

    def try_to_commit_others(batch: Any) -> bool:
        return not batch.thread.key.id.startswith(prefix) and try_commit(batch)

    transport.read, transport.write, transport.try_commit = read_others, write_others, try_to_commit_others
    try:
        yield
    finally:
        transport.read, transport.write, transport.try_commit = read, write, try_commit


async def test_calls_that_wait_for_a_retry_hold_up_no_others(keep: threadkeep.Keep) -> None:
    if repr(keep).startswith("<Keep sqlite"):
        pytest.skip("a file is never away for a part of its threads, and takes no changes beside others")
    saver = keep.checkpointer
    away, here = ([Chain(saver, f"{name} {n}") for n in range(30)] for name in ("away", "here"))
    for chain in (*away, *here):
        await chain.aput({"x": 0})
    with threads_away(saver._session.transport, "away"):
        waiting = [asyncio.create_task(chain.aput({"x": 1})) for chain in away]
        waiting += [asyncio.create_task(saver.aget_tuple(config(chain.thread, "none"))) for chain in away]
        waiting += [
            asyncio.create_task(asyncio.to_thread(saver.put_writes, config("away 0", "00000000"), [("x", 1)], n))
            for n in "ab"
        ]
        for n in range(3):
            await asyncio.wait_for(asyncio.gather(*(chain.aput({"x": n}) for chain in here)), TIMEOUT / 2)
            await asyncio.to_thread(here[0].put, {"x": n})
            assert await saver.aget_tuple(config("here 1")) is not None
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    for chain in away:
        found = await saver.aget_tuple(config(chain.thread))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 1}


async def test_a_retry_ends_with_unavailable_when_its_time_is_over(
    keep: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = keep.checkpointer
    chain = Chain(saver, "away")
    await chain.aput({"x": 0})
    monkeypatch.setattr("test_concurrency.TIMEOUT", 0.2)
    with threads_away(saver._session.transport, "away"):
        for call in (chain.aput({"x": 1}), saver.aget_tuple(config("away", "none"))):
            with pytest.raises(errors.Unavailable, match="away"):
                await call
        with pytest.raises(errors.Unavailable, match="away"):
            await asyncio.to_thread(saver.get_tuple, config("away", "none"))
    await chain.aput({"x": 2})
    found = await saver.aget_tuple(config("away"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": 2}


INTERRUPTED = """
import faulthandler, random, signal, sys, threading, time, warnings
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # Ctrl-C came before its first step
faulthandler.dump_traceback_later(90, exit=True)
keep = threadkeep.open(sys.argv[1])
saver = keep.checkpointer
keep.setup()
chance = random.Random(3)
stop, seen, done = threading.Event(), [], []
def work(name):
    n = 0
    while not stop.is_set():
        n += 1
        try:
            Chain(saver, name).put({"n": n}, id=f"{n:06}")
            done.append((name, f"{n:06}"))
        except BaseException as error:
            seen.append(type(error))
others = [threading.Thread(target=work, args=[f"t{n % 2}-{n}"]) for n in range(4)]
for other in others:
    other.start()
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
n = interrupts = 0
end = time.monotonic() + 8
while interrupts < 150 and time.monotonic() < end:
    n += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.003))
        Chain(saver, "main").put({"n": n, "list": list(range(20))}, id=f"{n:06}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        done.append(("main", f"{n:06}"))
    except KeyboardInterrupt:
        interrupts += 1
signal.signal(signal.SIGALRM, signal.SIG_IGN)
count = len(done)
while len({name for name, _ in done[count:]}) < 4:
    time.sleep(0.01)
stop.set()
for other in others:
    other.join()
Chain(saver, "main").put({"n": -1}, id="last")
stored = {name: set(list_ids(saver, name)) for name in {name for name, _ in done}}
assert all(id in stored[name] for name, id in done)
assert seen == [], set(seen)
for found in saver.list(config("main")):
    assert found.checkpoint["channel_values"]["n"] in (-1, int(found.checkpoint["id"].replace("last", "-1")))
keep.close()
"""


def test_an_interrupted_main_thread_does_not_stop_the_others(url: str) -> None:
    """Ctrl-C may come at any moment; other callers' work that the main thread is doing must not be lost."""
    run_forked(INTERRUPTED, url)


class CommitsAtOnce(deque[Any]):
    """Changes that wait to be committed, which another thread does before the one that staged them goes on."""

    def __init__(self, commit: Callable[[], object]) -> None:
        super().__init__()
        self._commit = commit

    def append(self, change: Any) -> None:
        super().append(change)
        other = threading.Thread(target=self._commit)
        other.start()
        other.join()


def test_staged_changes_may_be_committed_before_the_caller_goes_on() -> None:
    with threadkeep.open("memory://") as keep:
        runner = keep.checkpointer._session.runner
        state = runner._state
        state.commits = CommitsAtOnce(lambda: runner._commit_all(state))
        chain = Chain(keep.checkpointer)
        for n in range(3):
            chain.put({"n": n})
        assert values_of(keep.checkpointer) == {"n": 2}


# --- using the saver while it lists


def test_puts_inside_a_listing_do_not_disturb_it(saver: threadkeep.KeepSaver) -> None:
    chain = Chain(saver)
    for n in range(70):
        chain.put({"n": n})
    before = list_ids(saver)
    seen = []
    for found in saver.list(config("t")):
        seen.append(found.checkpoint["id"])
        chain.put({"n": -1})
        Chain(saver, "another").put({"n": 1}, id=found.checkpoint["id"])
        saver.put_writes(found.config, [("n", 1)], "task")
        assert saver.get_tuple(found.config) is not None
    assert seen == before
    assert len(list_ids(saver)) == 140


async def test_puts_inside_an_async_listing_do_not_disturb_it(saver: threadkeep.KeepSaver) -> None:
    chain = Chain(saver)
    for n in range(70):
        await chain.aput({"n": n})
    seen = []
    async for found in saver.alist(config("t")):
        seen.append(found.checkpoint["id"])
        await chain.aput({"n": -1})
        await saver.aput_writes(found.config, [("n", 1)], "task")
        assert await saver.aget_tuple(found.config) is not None
        assert [inner.checkpoint["id"] async for inner in saver.alist(found.config)] == [seen[-1]]
    assert seen == [f"{n:08}" for n in reversed(range(70))]


def test_prune_and_delete_inside_a_listing_end_it_early_and_cleanly(saver: threadkeep.KeepSaver) -> None:
    chain = Chain(saver)
    for n in range(70):
        chain.put({"n": [n] * 50})
    listing = saver.list(config("t"))
    assert next(listing).checkpoint["id"] == "00000069"
    saver.prune(["t"])
    rest = [found.checkpoint["channel_values"] for found in listing]
    assert rest == [{"n": [n] * 50} for n in range(68, 68 - len(rest), -1)]
    assert len(rest) < 69
    listing = saver.list(config("t"))
    next(listing)
    saver.delete_thread("t")
    assert list(listing) == []


async def test_abandoned_async_listings_leak_nothing(saver: threadkeep.KeepSaver) -> None:
    errors_of_loop: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors_of_loop.append(context))
    chain = Chain(saver)
    for n in range(40):
        await chain.aput({"n": n})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for n in range(120):
            listing = saver.alist(config("t"))
            await anext(listing)
            if n % 3 == 0:
                await listing.aclose()
            elif n % 3 == 1:
                saver.alist(config("t"))
            del listing
        gc.collect()
        for _ in range(5):  # asyncio closes abandoned generators in its own tasks
            await asyncio.sleep(0)
    assert [str(warning.message) for warning in warned] == []
    assert errors_of_loop == []
    assert len(asyncio.all_tasks()) == 1
    assert len([one for one in threading.enumerate() if one.name == "threadkeep"]) <= 2 * 6  # also of another test
    assert len(await every(saver.alist(config("t")))) == 40


async def test_no_async_verb_blocks_the_event_loop(keep: threadkeep.Keep) -> None:
    """Every async test runs under blockbuster; this one runs every verb, on an empty Keep and on a used one."""
    for _ in range(2):
        for verb in every_async_verb(keep).values():
            await verb()
    await keep.aclose()


# --- several Keeps, several processes


def test_two_keeps_take_turns_on_one_thread(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as other:
        chain, log = Chain(one.checkpointer), []
        for n in range(40):
            chain.saver = (one, other)[n % 2].checkpointer
            log.append(f"{n} is a line of the log")
            if n % 7 == 6:
                log[n // 2] += " (edited)"
            chain.put({"log": list(log), "same": "all the time" * 10})
            for keep in (one, other):
                assert values_of(keep.checkpointer) == {"log": log, "same": "all the time" * 10}
        assert len(list_ids(one.checkpointer)) == len(list_ids(other.checkpointer)) == 40
    with threadkeep.open(lasting_url) as fresh:
        assert values_of(fresh.checkpointer) == {"log": log, "same": "all the time" * 10}


def gone(saver: threadkeep.KeepSaver) -> None:
    saver.delete_thread("t")


def gone_and_made_again(saver: threadkeep.KeepSaver) -> None:
    saver.delete_thread("t")
    other = Chain(saver)
    for n in range(4):
        other.put({"log": [f"another line {k}" for k in range(n)], "same": "something else " * 10}, id=f"0-{n}")


def pruned(saver: threadkeep.KeepSaver) -> None:
    saver.prune(["t"])


def pruned_twice_and_grown(saver: threadkeep.KeepSaver) -> None:
    saver.prune(["t"])
    Chain(saver).put({"log": ["x" * 100]}, id="z")
    saver.delete_thread("z")
    saver.prune(["t"])


def without_the_run(saver: threadkeep.KeepSaver) -> None:
    saver.delete_for_runs(["run"])


def replaced_by_a_copy(saver: threadkeep.KeepSaver) -> None:
    Chain(saver, "source").put({"log": ["y" * 100, "z" * 100]})
    saver.delete_thread("t")
    saver.copy_thread("source", "t")


@pytest.mark.parametrize(
    "act", [gone, gone_and_made_again, pruned, pruned_twice_and_grown, without_the_run, replaced_by_a_copy]
)
@pytest.mark.parametrize("read_between", [False, True], ids=["", "read-between"])
def test_what_another_keep_did_in_between_does_not_spoil_the_next_put(
    lasting_url: str, act: Callable[[threadkeep.KeepSaver], None], read_between: bool
) -> None:
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as other:
        chain = Chain(one.checkpointer, run="run")
        log = [f"{n} is a line of the log" for n in range(30)]
        for n in range(4):
            chain.put({"log": log[: 10 + n], "same": "all the time " * 10, "small": 1})
        act(other.checkpointer)
        if read_between:
            one.checkpointer.get_tuple(config("t"))
        wanted = {"log": log[2:20], "same": "all the time " * 10, "small": 1}
        chain.put(wanted)
        one.checkpointer.put_writes(config("t", chain.last), [("log", log[19]), ("log", "new" * 50)], "task")
        chain.put({**wanted, "log": log[2:25]})
        for keep in (one, other):
            assert values_of(keep.checkpointer, "t", "00000004") == wanted
            assert values_of(keep.checkpointer, "t", "00000005") == {**wanted, "log": log[2:25]}
    with threadkeep.open(lasting_url) as fresh:
        assert values_of(fresh.checkpointer, "t", "00000004") == wanted
        found = fresh.checkpointer.get_tuple(config("t", "00000004"))
        assert found is not None
        assert found.pending_writes == [("task", "log", log[19]), ("task", "log", "new" * 50)]
        for each in fresh.checkpointer.list(None):
            assert each.checkpoint["channel_values"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_three_keeps_that_do_anything_in_turns_agree_with_a_dict(lasting_url: str, seed: int) -> None:
    chance = random.Random(seed)
    keeps = [threadkeep.open(lasting_url, cache_bytes=cache) for cache in (0, 20_000, 1 << 27)]
    model: dict[str, dict[str, Any]] = {}
    log: list[str] = []
    for turn in range(120):
        saver = chance.choice(keeps).checkpointer
        thread = chance.choice("ab")
        held = model.setdefault(thread, {})
        match chance.choice(["put"] * 8 + ["read"] * 2 + ["prune", "delete", "copy", "again"]):
            case "put":
                edit = chance.randrange(5)
                log = [*log, f"line {turn} " * 6] if edit < 3 or not log else log[1:] if edit == 3 else [*log]
                if edit == 4:
                    log[chance.randrange(len(log))] = f"edited {turn} " * 6
                given = {"log": list(log), "same": "s" * 200, "table": {f"k{k}": f"{k} " * 40 for k in range(len(log))}}
                chain = Chain(saver, thread)
                chain.last = max(held, default=None)
                chain.put(given, id=f"{turn:04}")
                held[f"{turn:04}"] = given
            case "again" if held:
                id = chance.choice(sorted(held))
                held[id] = {"log": ["again " * 20, *log[:3]]}
                Chain(saver, thread).put(held[id], id=id)
            case "prune":
                saver.prune([thread])
                model[thread] = {id: held[id] for id in sorted(held)[-1:]}
            case "delete":
                saver.delete_thread(thread)
                model[thread] = {}
            case "copy":
                target = "b" if thread == "a" else "a"
                saver.copy_thread(thread, target)
                model[target] = {**held, **model.get(target, {})}
        for name in "ab":
            found = {each.checkpoint["id"]: each.checkpoint["channel_values"] for each in saver.list(config(name))}
            assert found == model.get(name, {}), turn
    for keep in keeps:
        keep.close()


def test_a_history_that_is_pruned_while_it_is_read_is_not_called_corrupt(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as other:
        chain = Chain(one.checkpointer)
        for n in range(5):
            at = chain.put({"log": [f"value {n} " * 20]})
            one.checkpointer.put_writes(at, [("log", f"write {n} " * 20)], "task")
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as other:
        transport = one.checkpointer._session.transport
        read = transport.read

        def with_a_prune_before_the_items(request: Any) -> Any:
            if isinstance(request, LoadItems):
                transport.read = read  # type: ignore[method-assign]
                other.checkpointer.prune(["t"])
            return read(request)

        transport.read = with_a_prune_before_the_items  # type: ignore[method-assign]
        history = one.checkpointer.get_delta_channel_history(config=config("t", "00000004"), channels=["log"])
        assert history in ({"log": {"writes": []}}, {
            "log": {"writes": [("task", "log", "write 3 " * 20)], "seed": ["value 3 " * 20]},
        })  # fmt: skip


WRITER = """
import sys
import threadkeep
from checkpoint_chains import Chain, config, values_of
url, name, thread, count = *sys.argv[1:4], int(sys.argv[4])
saver = threadkeep.open(url).checkpointer
wait_for_others()
log = []
for n in range(count):
    log.append(f"{name} wrote line {n}")
    id = f"{n:04}-{name}"
    chain = Chain(saver, thread)
    chain.last = f"{n - 1:04}-{name}" if n else None
    chain.put({"log": list(log)}, id=id)
    saver.put_writes(config(thread, "common"), [("log", id)], id)
    assert values_of(saver, thread, id) == {"log": log}
"""


def assert_whole(saver: threadkeep.KeepSaver, thread: str, names: list[str], count: int) -> None:
    found = {each.checkpoint["id"]: each.checkpoint["channel_values"]["log"] for each in saver.list(config(thread))}
    assert found == {
        f"{n:04}-{name}": [f"{name} wrote line {k}" for k in range(n + 1)] for name in names for n in range(count)
    }
    Chain(saver, thread).put({}, id="common")
    common = saver.get_tuple(config(thread, "common"))
    assert common is not None
    assert sorted(value for _, _, value in common.pending_writes or []) == sorted(found)


def test_processes_that_write_one_thread_lose_nothing(lasting_url: str) -> None:
    names = ["a", "b", "c", "d"]
    run_concurrently(WRITER, [(lasting_url, name, "t", 40) for name in names])
    with threadkeep.open(lasting_url) as keep:
        assert_whole(keep.checkpointer, "t", names, 40)


def test_processes_that_write_threads_of_their_own_lose_nothing(lasting_url: str) -> None:
    names = ["a", "b", "c", "d"]
    run_concurrently(WRITER, [(lasting_url, name, f"t-{name}", 40) for name in names])
    with threadkeep.open(lasting_url) as keep:
        for name in names:
            assert_whole(keep.checkpointer, f"t-{name}", [name], 40)


TIDIER = """
import sys, time
import threadkeep
from checkpoint_chains import Chain, config
url, role, seconds = sys.argv[1:]
saver = threadkeep.open(url).checkpointer
def line(n): return f"line {n} of anybody's log"
wait_for_others()
end = time.monotonic() + float(seconds)
n = 0
while time.monotonic() < end:
    n += 1
    if role.startswith("write"):
        Chain(saver).put({"log": [line(k) for k in range(n % 50)]}, id=f"{n:06}-{role}")
    elif role == "prune":
        saver.prune(["t", "copy"])
    elif role == "copy":
        saver.copy_thread("t", "copy")
        if n % 3 == 0:
            saver.delete_thread("copy")
    for found in saver.list(None, limit=20):
        count = int(found.checkpoint["id"][:6]) % 50
        assert found.checkpoint["channel_values"] == {"log": [line(k) for k in range(count)]}, found
"""


@pytest.mark.parametrize("seconds", [2, pytest.param(8, marks=pytest.mark.long)])
def test_processes_that_write_prune_and_copy_never_see_a_broken_checkpoint(lasting_url: str, seconds: int) -> None:
    run_concurrently(TIDIER, [(lasting_url, role, seconds) for role in ("write1", "write2", "prune", "copy")])
    with threadkeep.open(lasting_url) as keep:
        for found in keep.checkpointer.list(None):
            assert len(found.checkpoint["channel_values"]["log"]) == int(found.checkpoint["id"][:6]) % 50


# --- fork

FORKS = """
import asyncio, faulthandler, os, signal, sys, threading, time, warnings
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
warnings.simplefilter("ignore", DeprecationWarning)
faulthandler.register(signal.SIGALRM, chain=True)
signal.alarm(90)
url = sys.argv[1]
lasting = not url.startswith("memory")
keep = threadkeep.open(url)
saver = keep.checkpointer
def child(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.alarm(60)
        work()
    except BaseException as error:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
def wait(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
FORKED = {
    "before its first use": """
def work():
    Chain(saver, "child").put({"who": "child"})
    assert values_of(saver, "child") == {"who": "child"}
pid = child(work)
Chain(saver, "parent").put({"who": "parent"})
wait(pid)
assert values_of(saver, "parent") == {"who": "parent"}
assert [info.id for info in keep.threads(order="id")] == (["child", "parent"] if lasting else ["parent"])
""",
    "after sync use": """
chain = Chain(saver)
chain.put({"log": ["before the fork " * 5]})
def work():
    chain.put({"log": ["before the fork " * 5, "child"]}, id="child")
    assert list_ids(saver) == ["child", "00000000"]
    assert values_of(saver) == {"log": ["before the fork " * 5, "child"]}
wait(child(work))
chain.put({"log": ["before the fork " * 5, "parent"]}, id="parent")
assert list_ids(saver) == (["parent", "child", "00000000"] if lasting else ["parent", "00000000"])
""",
    "after async use": """
asyncio.run(Chain(saver).aput({"x": 1}))
def work():
    async def use():
        await Chain(saver).aput({"x": 2}, id="child")
        assert (await saver.aget_tuple(config("t"))).checkpoint["channel_values"] == {"x": 2}
        await keep.aclose()
    asyncio.run(use())
wait(child(work))
asyncio.run(Chain(saver).aput({"x": 3}, id="parent"))
assert list_ids(saver) == (["parent", "child", "00000000"] if lasting else ["parent", "00000000"])
""",
    "and the parent closes first": """
Chain(saver).put({"x": 1})
told, tell = os.pipe()
def work():
    Chain(saver).put({"x": 2}, id="1-child")
    os.read(told, 1)
    Chain(saver).put({"x": 3}, id="2-child")
    assert list_ids(saver) == ["2-child", "1-child", "00000000"]
pid = child(work)
time.sleep(0.3)
keep.close()
os.write(tell, b"!")
wait(pid)
if lasting:
    with threadkeep.open(url) as again:
        assert list_ids(again.checkpointer) == ["2-child", "1-child", "00000000"], list_ids(again.checkpointer)
""",
    "and the child closes first": """
Chain(saver).put({"x": 1})
def work():
    Chain(saver).put({"x": 2}, id="1-child")
    keep.close()
wait(child(work))
Chain(saver).put({"x": 3}, id="2-parent")
if lasting:
    with threadkeep.open(url) as again:
        assert list_ids(again.checkpointer) == ["2-parent", "1-child", "00000000"]
""",
    "and the child ends as an interpreter does": """
Chain(saver).put({"x": 1})
for n in range(3):
    pid = os.fork()
    if not pid:
        if n:
            Chain(saver).put({"x": 2}, id=f"child{n}")
        sys.exit(0)
    wait(pid)
    Chain(saver).put({"x": 3}, id=f"parent{n}")
if lasting:
    with threadkeep.open(url) as again:
        assert sorted(list_ids(again.checkpointer)) == ["00000000", "child1", "child2", "parent0", "parent1", "parent2"]
""",
    "and the child ends while callers of the parent wait": """
Chain(saver).put({"x": 1})
transport, gate = saver._session.transport, threading.Event()
read = transport.read
def slow(request):
    gate.wait()
    return read(request)
transport.read = slow
async def readers():
    await asyncio.gather(*(saver.aget_tuple(config("t")) for _ in range(12)))
waiting = [
    threading.Thread(target=lambda: asyncio.run(readers())),
    threading.Thread(target=lambda: Chain(saver, "parent").put({"x": 2})),
]
for each in waiting:
    each.start()
    time.sleep(0.2)
pid = os.fork()
if not pid:
    signal.alarm(60)
    sys.exit(0)
wait(pid)
transport.read = read
if lasting:
    with threadkeep.open(url) as other:
        assert [info.id for info in other.threads()] == ["t"], "the child did what the parent had to do"
gate.set()
for each in waiting:
    each.join()
assert [info.id for info in keep.threads(order="id")] == ["parent", "t"]
""",
    "and both write the same thread at once": """
Chain(saver).put({"log": []})
def work(who):
    for n in range(30):
        Chain(saver).put({"log": [who] * n}, id=f"{n:03}-{who}")
        assert values_of(saver, "t", f"{n:03}-{who}") == {"log": [who] * n}
pids = [child(lambda who=who: work(who)) for who in ("child1", "child2", "child3")]
work("parent")
for pid in pids:
    wait(pid)
for found in saver.list(config("t")):
    id = found.checkpoint["id"]
    assert found.checkpoint["channel_values"]["log"] == ([] if id == "00000000" else [id[4:]] * int(id[:3]))
assert len(list_ids(saver)) == (121 if lasting else 31)
""",
    "and the child uses it from many threads at once": """
Chain(saver).put({"x": 1})
def work():
    start = threading.Barrier(12)
    def use(n):
        start.wait()
        Chain(saver, f"t{n}").put({"x": n})
    threads = [threading.Thread(target=use, args=[n]) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keep.threads()) == 13
    keep.close()
for _ in range(5):
    wait(child(work))
""",
    "while other threads use it": """
stop, done = threading.Event(), []
def use(name):
    n = 0
    while not stop.is_set():
        n += 1
        Chain(saver, name).put({"log": [f"{name} {k} and so on" for k in range(n % 30)]}, id=f"{n:06}")
        done.append((name, n))
        values_of(saver, name)
users = [threading.Thread(target=use, args=[f"user{n}"]) for n in range(5)]
for user in users:
    user.start()
time.sleep(0.1)
def work(n):
    Chain(saver, f"child{n}").put({"x": n})
    assert values_of(saver, f"child{n}") == {"x": n}
    for name in ("user0", "user1"):
        for found in saver.list(config(name), limit=20):
            count = int(found.checkpoint["id"]) % 30
            assert found.checkpoint["channel_values"] == {"log": [f"{name} {k} and so on" for k in range(count)]}
pids = []
for n in range(25):
    pids.append(child(lambda: work(n)))
    time.sleep(0.02)
for pid in pids:
    wait(pid)
stop.set()
for user in users:
    user.join()
for name, n in done:
    assert len(values_of(saver, name, f"{n:06}")["log"]) == n % 30
if lasting:
    assert [info.id for info in keep.threads(prefix="child", order="id")] == sorted(f"child{n}" for n in range(25))
keep.close()
""",
    "by multiprocessing": """
import multiprocessing
Chain(saver).put({"x": 1})
def use(n):
    Chain(saver, f"t{n}").put({"x": n})
    return values_of(saver, f"t{n}")["x"]
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert pool.map(use, range(20)) == list(range(20))
assert len(keep.threads()) == (21 if lasting else 1)
""",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", list(FORKED))
def test_a_keep_may_be_forked(url: str, how: str) -> None:
    run_forked(FORKS + FORKED[how], url)


SPAWNED = """
import multiprocessing, sys
import threadkeep
from checkpoint_chains import Chain, config, list_ids
from spawned import put_one
if __name__ == "__main__":
    url = sys.argv[1]
    saver = threadkeep.open(url).checkpointer
    Chain(saver).put({"x": 1})
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(put_one, [(url, n) for n in range(10)]) == list(range(10))
    assert len(list_ids(saver)) == 11
"""


def test_spawned_workers_open_keeps_of_their_own(lasting_url: str, tmp_path: Any) -> None:
    (tmp_path / "spawned.py").write_text(
        "import threadkeep\nfrom checkpoint_chains import Chain, values_of\n\n"
        "def put_one(url, n):\n"
        "    with threadkeep.open(url) as keep:\n"
        "        Chain(keep.checkpointer).put({'x': n}, id=f'spawned-{n}')\n"
        "        return values_of(keep.checkpointer, 't', f'spawned-{n}')['x']\n"
    )
    (tmp_path / "program.py").write_text(SPAWNED)
    run(
        (
            "import runpy, sys; sys.path.insert(0, sys.argv.pop()); "
            "runpy.run_path(sys.path[0] + '/program.py', run_name='__main__')"
        ),
        lasting_url,
        tmp_path,
    )


async def test_errors_of_a_change_reach_every_caller_that_shared_it(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    await Chain(saver).aput({"x": 1})
    transport = saver._session.transport
    write = transport.write

    def fails(requests: Any) -> Any:
        time.sleep(0.02)
        raise errors.Unavailable("no disk")

    transport.write, transport.commits_at_once = fails, False  # type: ignore[method-assign]
    calls = [saver.aput_writes(config("t", "00000000"), [("x", n)], f"task {n}") for n in range(20)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {errors.Unavailable}
    transport.write = write  # type: ignore[method-assign]
    await saver.aput_writes(config("t", "00000000"), [("x", 1)], "task")
    found = await saver.aget_tuple(config("t"))
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]


def test_callers_do_the_work_themselves_if_python_can_start_no_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "threadkeep":
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with threadkeep.open(url) as keep:
        keep.setup()
        monkeypatch.setattr(threading.Thread, "start", start_others)
        chains = [Chain(keep.checkpointer, f"t{n % 2}-{n}") for n in range(4)]
        in_threads(*[partial(put_many, chain) for chain in chains])
        assert [values_of(keep.checkpointer, chain.thread) for chain in chains] == [{"n": 19}] * 4
        in_loop(partial(put_many_async, chains))()
        assert [values_of(keep.checkpointer, chain.thread) for chain in chains] == [{"n": 39}] * 4
        assert refused, "no worker was wanted"


def put_many(chain: Chain) -> None:
    for n in range(20):
        chain.put({"n": n})


async def put_many_async(chains: list[Chain]) -> None:
    for n in range(20, 40):
        await asyncio.gather(*[chain.aput({"n": n}) for chain in chains])


BUSY_IMPORT = """
import importlib, os, signal, sys, threading, time, warnings
import threadkeep.keep
warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(60)
name, begun, forking = "threadkeep.jobs.doctor", threading.Event(), threading.Event()
assert name not in sys.modules
class Slow:
    def find_spec(self, wanted, path=None, target=None):
        if wanted == name:
            begun.set()
            forking.wait()
            time.sleep(0.1)  # so that a fork that does not wait comes first
sys.meta_path.insert(0, Slow())
importer = threading.Thread(target=importlib.import_module, args=[name])
importer.start()
begun.wait()
os.register_at_fork(before=forking.set)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    importlib.import_module(name)
    os._exit(0)
importer.join()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_a_child_can_import_what_another_thread_was_importing_at_the_fork() -> None:
    run(BUSY_IMPORT)
