"""Concurrent processes, threads and tasks on one cube thread, cancelled and killed: nothing is lost or duplicated."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cubeloop.checkpointer.exceptions import RunAlreadyClaimedError
from cubeloop.providers.base import AssistantMessage, Message, TextContent, UserMessage

import killed_writers
import processes
import threadkeep
from row_invariants import find_problems
from threadkeep import Keep

SCRIPT = """
import asyncio, json, sys, threadkeep
from cubeloop.checkpointer.exceptions import RunAlreadyClaimedError
from test_cube_concurrency import message, write
url, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
"""


def message(text: str, id: str = "", run: str | None = None) -> Message:
    return UserMessage(content=[TextContent(text=text)], id=id, run_id=run)


async def write(keep: Keep, name: str, count: int, *, first: int = 0, thread: str = "t") -> None:
    """Append messages, half of them without an id, and after each save their number in extra."""
    for n in range(first, first + count):
        await keep.cube.append(thread, [message(f"{name} {n}", f"{name}-{n}" if n % 2 else "")])
        await keep.cube.save_extra(thread, {name: n + 1, f"{name}-{n}": {"n": n}})


def texts(messages: Any) -> list[str]:
    return [each.content[0].text for each in messages]


def by_writer(messages: Any) -> dict[str, list[int]]:
    """Return the numbers of each writer's messages, in order."""
    found: dict[str, list[int]] = {}
    for text in texts(messages):
        name, number = text.split(" ")
        found.setdefault(name, []).append(int(number))
    return found


def wrong_with(url: str) -> list[str]:
    """Return problems of the stored rows, where they can be read."""
    if url.startswith("sqlite"):
        return find_problems(Path(url.removeprefix("sqlite:///")))
    return find_problems(url) if url.startswith("postgres") else []


def loaded(url: str, thread: str = "t") -> Any:
    """Load a cube thread as another process would; the storage must be consistent."""
    assert wrong_with(url) == []
    with threadkeep.open(url) as keep:
        return asyncio.run(keep.cube.load(thread))


def check_all_there(found: Any, counts: dict[str, int]) -> None:
    """Check that all messages of each writer are there once and in order, and all that it saved in extra."""
    assert by_writer(found.messages) == {name: list(range(count)) for name, count in counts.items()}
    stored_texts = {f"{name}-{n}": {"n": n} for name, count in counts.items() for n in range(count)}
    assert found.extra == counts | stored_texts


# --- processes

WRITER = """
async def main():
    async with threadkeep.open(url) as keep:
        await keep.cube.load("t")
        wait_for_others()
        await write(keep, name, number)
asyncio.run(main())
"""
PRUNER = """
async def main():
    async with threadkeep.open(url) as keep:
        await keep.cube.append("u", [message("hi")])
        wait_for_others()
        for n in range(number):
            await keep.aprune("t")
            await keep.acopy("t", f"copy {n}")
asyncio.run(main())
"""


def test_processes_that_write_one_cube_thread_lose_and_duplicate_nothing(lasting_url: str) -> None:
    counts = {f"p{n}": 30 for n in range(3)}
    processes.run_concurrently(SCRIPT + WRITER, [(lasting_url, name, count) for name, count in counts.items()])
    check_all_there(loaded(lasting_url), counts)


def test_processes_that_write_a_pruned_and_copied_cube_thread_lose_and_duplicate_nothing(lasting_url: str) -> None:
    counts = {f"p{n}": 30 for n in range(2)}
    script = SCRIPT + f"exec({WRITER!r} if name != 'pruner' else {PRUNER!r})"
    processes.run_concurrently(
        script, [*((lasting_url, *each) for each in counts.items()), (lasting_url, "pruner", 15)]
    )
    whole = loaded(lasting_url)
    check_all_there(whole, counts)
    for n in range(15):
        copy = loaded(lasting_url, f"copy {n}")
        if copy is not None:  # there was nothing to copy yet
            assert copy.messages == whole.messages[: len(copy.messages)]
            assert all(
                len(numbers) - copy.extra.get(name, 0) in (0, 1) for name, numbers in by_writer(copy.messages).items()
            )


CLAIMER = """
import random
async def main():
    runs = [f"r{n}" for n in range(number)]
    random.Random(name).shuffle(runs)
    won = []
    async with threadkeep.open(url) as keep:
        await keep.cube.load("t")
        wait_for_others()
        for run in runs:
            try:
                await keep.cube.claim_run("t", run)
            except RunAlreadyClaimedError:
                continue
            won.append(run)
            await keep.cube.append("t", [message(f"{name} {run}", run=run)])
    print(json.dumps(won))
asyncio.run(main())
"""


def test_one_of_several_processes_that_claim_a_run_wins(lasting_url: str) -> None:
    won = processes.run_concurrently(SCRIPT + CLAIMER, [(lasting_url, f"p{n}", 40) for n in range(3)])
    winners = {run: f"p{n}" for n, heard in enumerate(won) for run in json.loads(heard)}
    assert sum(len(json.loads(heard)) for heard in won) == len(winners) == 40
    output_lines = [text.split(" ") for text in texts(loaded(lasting_url).messages)]
    assert {run: name for name, run in output_lines} == winners
    assert len(output_lines) == 40


# --- threads and tasks


def test_threads_with_loops_of_their_own_share_a_keep(url: str) -> None:
    counts = {f"thread{n}": 25 for n in range(6)}
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            asyncio.run(write(keep, name, counts[name]))
        except BaseException as error:  # noqa: BLE001 - the test tells
            failed.append(error)

    with threadkeep.open(url) as keep:
        threads = [threading.Thread(target=work, args=(name,)) for name in counts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        check_all_there(asyncio.run(keep.cube.load("t")), counts)
    if not url.startswith("memory"):
        check_all_there(loaded(url), counts)


async def test_one_of_several_tasks_that_claim_a_run_wins(url: str) -> None:
    async with threadkeep.open(url) as keep:
        for n in range(20):
            claims = [keep.cube.claim_run("t", f"r{n}") for _ in range(8)]
            outcomes = await asyncio.gather(*claims, return_exceptions=True)
            assert sorted(type(each).__name__ for each in outcomes) == ["NoneType", *["RunAlreadyClaimedError"] * 7]


async def test_a_change_that_cannot_be_made_at_once_stays_before_later_ones(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was cancelled, and the later ones came before a worker looked for them."""
    async with threadkeep.open(lasting_url) as keep:
        await keep.cube.append("t", [message("before")])
        transport, may_commit = keep._session.transport, threading.Event()
        try_commit, is_tried = transport.try_commit, threading.Event()

        def fail_once(_: Any) -> bool:
            monkeypatch.setattr(transport, "try_commit", try_commit)
            is_tried.set()
            return not may_commit.wait(30)

        monkeypatch.setattr(transport, "try_commit", fail_once)
        first = asyncio.create_task(keep.cube.append("t", [message("first")]))
        await asyncio.to_thread(is_tried.wait, 30)
        first.cancel()
        with monkeypatch.context() as patch:
            patch.setattr(keep._session.runner._state.workers, "have_more", lambda: True)  # so no other worker starts
            later = [asyncio.create_task(keep.cube.append("t", [message(text)])) for text in ("second", "third")]
            await asyncio.sleep(0.01)
        may_commit.set()
        await asyncio.gather(*later)
        assert texts((await keep.cube.load("t")).messages) == ["before", "first", "second", "third"]


async def test_one_of_several_tasks_that_fork_onto_a_thread_wins(lasting_url: str) -> None:
    async with threadkeep.open(lasting_url) as keep, threadkeep.open(lasting_url) as other:
        await keep.cube.claim_run("t", "r")
        await keep.cube.append("t", [message("hi", run="r")])
        await keep.cube.mark_run_complete("t", "r")
        for n in range(5):
            forks = [
                (keep, other)[k % 2].cube.fork("t", f"f{n}", after_run_id="r", metadata={"k": k}) for k in range(6)
            ]
            outcomes = await asyncio.gather(*forks, return_exceptions=True)
            assert Counter(type(each).__name__ for each in outcomes) == {"NoneType": 1, "ThreadAlreadyExistsError": 5}
            found = await keep.cube.load(f"f{n}")
            assert found is not None
            assert found.extra == {"fork": {"k": outcomes.index(None)}}


@pytest.mark.parametrize("keeps", [1, 2])
async def test_a_load_while_others_write_is_a_consistent_snapshot(lasting_url: str, keeps: int) -> None:
    opened = [threadkeep.open(lasting_url) for _ in range(keeps)]
    counts = {f"task{n}": 25 for n in range(4)}
    writing = asyncio.gather(*(write(opened[n % keeps], name, 25) for n, name in enumerate(counts)))
    seen = 0
    while not writing.done():
        found = await opened[-1].cube.load("t")
        if found is not None:
            numbers = by_writer(found.messages)
            for name, each in numbers.items():
                assert each == list(range(len(each)))
                assert len(each) - found.extra.get(name, 0) in (0, 1)
            assert len(found.messages) >= seen
            seen = len(found.messages)
    await writing
    for keep in opened:
        check_all_there(await keep.cube.load("t"), counts)
        await keep.aclose()


async def test_the_loop_is_not_blocked_while_many_messages_are_loaded(url: str) -> None:
    count, shares = 10_000, []
    async with threadkeep.open(url) as keep:
        many = [AssistantMessage(content=[TextContent(text=f"message {n} " * 8)], id=f"{n}") for n in range(count)]
        for n in range(0, count, 1000):
            await keep.cube.append("t", list(many[n : n + 1000]))
        for _ in range(4):
            async with nullcontext(keep) if url.startswith("memory") else threadkeep.open(url) as reader:
                shares.append(await _longest_gap(reader, count))
                if shares[-1] < 0.4:
                    break
    assert min(shares) < 0.4, "the loop stood still for most of the time"


async def _longest_gap(keep: Keep, count: int) -> float:
    """Return the largest share of a load's time during which the loop was blocked."""
    loading, gaps = asyncio.ensure_future(keep.cube.load("t")), []
    begun = last = time.perf_counter()
    while not loading.done():
        await asyncio.sleep(0)
        gaps.append(-last + (last := time.perf_counter()))
    found = await loading
    assert found is not None
    assert len(found.messages) == count
    return max(gaps) / (last - begun)


# --- cancelled calls


async def _storm(keep: Keep, chance: random.Random, first: int, count: int) -> set[int]:
    """Start calls and cancel most of them at random moments. Return which were acknowledged."""
    acknowledged = set()

    async def change(n: int) -> None:
        if n % 2:
            await keep.cube.append("t", [message(f"{n}", f"{n}" if n % 4 == 1 else "")])
        else:
            await keep.cube.save_extra("t", {f"{n}": n})
        acknowledged.add(n)

    tasks = [asyncio.ensure_future(change(n)) for n in range(first, first + count)]
    for task in chance.sample(tasks, len(tasks) - 10):
        for _ in range(chance.choice([0, 0, 0, 1, 5])):
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            await asyncio.sleep(chance.uniform(0, 0.002))
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return acknowledged


NEXT = """
async def main():
    async with threadkeep.open(url, timeout=20) as keep:
        await keep.cube.append("t", [message("from another process", name)])
        await keep.cube.save_extra("t", {name: number})
asyncio.run(main())
"""


async def test_calls_that_are_cancelled_at_any_moment_are_done_once_or_not_at_all(url: str) -> None:
    chance, done = random.Random(7), set()
    async with threadkeep.open(url) as keep:
        for round_ in range(6):
            done |= await _storm(keep, chance, round_ * 80, 80)
            await keep.cube.append("t", [message(f"after {round_}", f"after-{round_}")])
            found = await keep.cube.load("t")
            assert found is not None
            counted = Counter(texts(found.messages))
            assert set(counted.values()) == {1}
            assert all(counted[f"{n}"] == 1 if n % 2 else found.extra[f"{n}"] == n for n in done)
            assert counted[f"after {round_}"] == 1
        assert len(done) >= 60
        if not url.startswith("memory"):
            await asyncio.to_thread(processes.run_forked, SCRIPT + NEXT, url, "other", 1)
            found = await keep.cube.load("t")
            assert found is not None
            assert texts(found.messages)[-1] == "from another process"
            assert found.extra["other"] == 1
    if not url.startswith("memory"):
        assert await asyncio.to_thread(wrong_with, url) == []


async def test_claims_that_are_cancelled_at_any_moment_are_made_or_not(url: str) -> None:
    chance, claimed = random.Random(8), set()

    async def claim(run: str) -> None:
        await keep.cube.claim_run("t", run)
        claimed.add(run)

    async with threadkeep.open(url) as keep:
        tasks = [asyncio.ensure_future(claim(f"r{n}")) for n in range(150)]
        for task in chance.sample(tasks, 130):
            await asyncio.sleep(chance.choice([0, 0, 0, 0.0005]))
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for n in range(150):
            try:
                await keep.cube.claim_run("t", f"r{n}")
            except RunAlreadyClaimedError:
                continue
            assert f"r{n}" not in claimed
    assert len(claimed) >= 20


# --- killed processes

KILLED = """
import asyncio, os, sys, threadkeep
from test_cube_concurrency import message
url, n = sys.argv[1], int(sys.argv[2])
async def main():
    cube = threadkeep.open(url).cube
    for k in range(n, n + 100_000):
        long = message(f"q {k} " + "long " * (k % 7) * 200)
        await cube.append("t", [message(f"p {k}", f"{k}" if k % 2 else ""), long])
        os.write(1, f"append {k}\\n".encode())
        await cube.save_extra("t", {"n": k + 1, f"{k % 10}": "x" * (k % 5) * 300})
        os.write(1, f"extra {k}\\n".encode())
        if k % 5 == 0:
            await cube.claim_run("t", f"r{k}")
            await cube.mark_run_complete("t", f"r{k}")
            await cube.fork("t", f"fork {k}", after_run_id=f"r{k}")
            os.write(1, f"fork {k}\\n".encode())
asyncio.run(main())
"""


def test_what_was_acknowledged_survives_a_kill_and_nothing_half_written_is_seen(lasting_url: str) -> None:
    chance, n = random.Random(5), 0
    for _ in range(3):
        child = killed_writers.start(KILLED, lasting_url, n)
        assert child.stdout is not None
        heard = child.stdout.readline().decode()
        time.sleep(chance.uniform(0, 0.3))
        output_lines = [line.split() for line in (heard + killed_writers.kill(child)).splitlines()]
        found = loaded(lasting_url)
        stored_texts = texts(found.messages)
        assert len(stored_texts) % 2 == 0
        n = len(stored_texts) // 2
        assert [text.split()[:2] for text in stored_texts] == [[each, f"{k}"] for k in range(n) for each in "pq"]
        last = {verb: int(k) for verb, k in output_lines}
        assert n in (last["append"] + 1, last["append"] + 2)
        assert found.extra["n"] in (n, n - 1)
        assert found.extra["n"] > last.get("extra", -1)
        if "fork" in last:
            assert loaded(lasting_url, f"fork {last['fork']}").messages == found.messages[: 2 * last["fork"] + 2]


def test_a_process_that_is_killed_does_not_keep_others_from_writing(lasting_url: str) -> None:
    child = killed_writers.start(KILLED, lasting_url, 0)
    assert child.stdout is not None
    child.stdout.readline()
    with threadkeep.open(lasting_url) as keep:
        asyncio.run(write(keep, "before", 5))
        killed_writers.kill(child)
        asyncio.run(write(keep, "after", 5))
    numbers = by_writer([each for each in loaded(lasting_url).messages if each.content[0].text.count(" ") == 1])
    assert numbers["before"] == numbers["after"] == list(range(5))


# --- event loops


class Dumped(UserMessage):
    """A message that records which threads dump it."""

    def model_dump(self, **options: Any) -> dict[str, Any]:
        DUMPED_BY.append(threading.get_ident())
        return super().model_dump(**options)


DUMPED_BY: list[int] = []


async def test_messages_and_extra_are_dumped_on_a_worker(keep: Keep) -> None:
    DUMPED_BY.clear()
    await keep.cube.append("t", [Dumped(content=[TextContent(text="hi")], id="1")])
    await keep.cube.save_extra("t", {"last": Dumped(content=[TextContent(text="hi")])})
    await keep.cube.save_hitl_answer("t", "question", Dumped(content=[TextContent(text="hi")]))
    assert len(DUMPED_BY) == 3
    assert threading.get_ident() not in DUMPED_BY
    assert texts((await keep.cube.load("t")).messages) == ["hi"]
