"""Tests of concurrent calls, by tasks of one loop and by two handles: nothing is lost, no half state is seen."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from threadkeep.conformance.cube.calls import Cube, run_both
from threadkeep.conformance.cube.samples import do_run, load, load_texts, question, texts_of, user
from threadkeep.conformance.declarations import needs

MANY = 50
ROUNDS = 12


def test_many_appends_at_once_lose_nothing(my_cube: Cube) -> None:
    my_cube.call_concurrently("append", [("t", [user(f"{n} a"), user(f"{n} b")]) for n in range(MANY)])
    found = load_texts(my_cube)
    assert sorted(found) == sorted(f"{n} {half}" for n in range(MANY) for half in "ab")


def test_the_messages_of_an_append_stay_together(my_cube: Cube) -> None:
    my_cube.call_concurrently("append", [("t", [user(f"{n} a"), user(f"{n} b"), user(f"{n} c")]) for n in range(MANY)])
    found = load_texts(my_cube)
    assert [found[start : start + 3] for start in range(0, len(found), 3)] == [
        [f"{text.split()[0]} {part}" for part in "abc"] for text in found[::3]
    ]


def test_many_extras_at_once_lose_nothing(my_cube: Cube) -> None:
    my_cube.call_concurrently("save_extra", [("t", {f"key {n}": n, "same": n}) for n in range(MANY)])
    extra = load(my_cube).extra
    assert {name: value for name, value in extra.items() if name != "same"} == {f"key {n}": n for n in range(MANY)}
    assert extra["same"] in range(MANY)


def test_many_threads_at_once_do_not_mix(my_cube: Cube) -> None:
    my_cube.call_concurrently("append", [(f"thread {n % 10}", [user(f"{n}")]) for n in range(MANY)])
    for k in range(10):
        assert sorted(load_texts(my_cube, f"thread {k}")) == sorted(f"{n}" for n in range(k, MANY, 10))


@needs("runs", "pending", "answers")
def test_all_verbs_at_once_lose_nothing(my_cube: Cube) -> None:
    async def scenario(cube: Any) -> None:
        async def one(n: int) -> None:
            await cube.claim_run("t", f"run {n}")
            await cube.append("t", [user(f"{n}", f"run {n}")])
            await cube.save_extra("t", {f"key {n}": n})
            await cube.save_pending_request("t", question(f"q{n}"), run_id=f"run {n}")
            await cube.save_hitl_answer("t", f"q{n}", n, run_id=f"run {n}")
            await cube.append("t", [user(f"{n} again", f"run {n}")])
            await cube.mark_run_complete("t", f"run {n}")

        await asyncio.gather(*(one(n) for n in range(ROUNDS)))

    my_cube.run_on_target(scenario)
    assert sorted(load_texts(my_cube)) == sorted(text for n in range(ROUNDS) for text in (f"{n}", f"{n} again"))
    assert load(my_cube).extra == {f"key {n}": n for n in range(ROUNDS)}
    assert [my_cube.load_hitl_answer("t", f"q{n}", run_id=f"run {n}") for n in range(ROUNDS)] == list(range(ROUNDS))
    request, name = my_cube.load_pending("t")
    assert name == request.question_id.replace("q", "run ")


def test_a_load_is_a_consistent_snapshot(my_cube: Cube) -> None:
    """A writer appends message n, then saves n: a load sees as many messages as extra says, or one more."""

    async def scenario(cube: Any) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        ended = asyncio.Event()

        async def write() -> None:
            for n in range(1, 26):
                await cube.append("t", [user(f"{n}")])
                await cube.save_extra("t", {"n": n})
            ended.set()

        async def read() -> None:
            while not ended.is_set():
                found = await cube.load("t")
                if found is not None:
                    seen.append((len(found.messages), found.extra.get("n", 0)))
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())
        return seen

    seen = my_cube.run_on_target(scenario)
    assert [(messages, n) for messages, n in seen if messages - n not in (0, 1)] == []


def test_a_load_sees_all_or_nothing_of_an_append(my_cube: Cube) -> None:
    async def scenario(cube: Any) -> list[list[str]]:
        seen: list[list[str]] = []
        ended = asyncio.Event()

        async def write() -> None:
            for n in range(20):
                await cube.append("t", [user(f"{n}")] * 5)
            ended.set()

        async def read() -> None:
            while not ended.is_set():
                found = await cube.load("t")
                seen.append(texts_of(found.messages) if found is not None else [])
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())
        return seen

    assert {count for found in my_cube.run_on_target(scenario) for count in Counter(found).values()} <= {5}


# --- cancelled calls

CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "append": lambda cube, n: cube.append("t", [user(f"{n}")]),
    "save_extra": lambda cube, n: cube.save_extra("t", {f"key {n}": n}),
    "load": lambda cube, n: cube.load("t"),  # noqa: ARG005 - the same signature for all
}


async def cancel_after(call: Coroutine[Any, Any, Any], turns: int) -> bool:
    """Cancel a call after some turns of the loop. Return whether it had ended before."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return ended


@pytest.mark.parametrize("verb", CHANGES)
def test_a_cancelled_call_leaves_the_handle_usable(my_cube: Cube, verb: str) -> None:
    async def scenario(cube: Any) -> None:
        await cube.append("t", [user("before")])
        for n in range(32):
            await cancel_after(CHANGES[verb](cube, n), n % 8)
        await cube.append("t", [user("after")])
        await cube.save_extra("t", {"after": 1})

    my_cube.run_on_target(scenario)
    assert load_texts(my_cube)[0] == "before"
    assert load_texts(my_cube)[-1] == "after"
    assert load(my_cube).extra["after"] == 1


def test_a_cancelled_append_is_stored_as_a_whole_or_not_at_all(my_cube: Cube) -> None:
    async def scenario(cube: Any) -> list[int]:
        ended = [n for n in range(32) if await cancel_after(cube.append("t", [user(f"{n}")] * 4), n % 8)]
        await cube.append("t", [user("after")] * 4)
        return ended

    ended = my_cube.run_on_target(scenario)
    found = Counter(load_texts(my_cube))
    assert set(found.values()) == {4}
    assert {f"{n}" for n in ended} <= set(found)


def test_other_calls_succeed_while_calls_are_cancelled(my_cube: Cube) -> None:
    async def scenario(cube: Any) -> None:
        async def disturb() -> None:
            for n in range(MANY):
                await cancel_after(cube.save_extra("t", {"disturbed": n}), n % 7)

        writes = [cube.append("t", [user(f"{n}")]) for n in range(MANY)]
        await asyncio.gather(disturb(), *writes)

    my_cube.run_on_target(scenario)
    assert sorted(load_texts(my_cube)) == sorted(f"{n}" for n in range(MANY))


# --- two handles


def test_another_handle_sees_what_was_stored(my_cube: Cube, my_other_cube: Cube) -> None:
    for n in range(5):
        for cube, name in ((my_cube, "one"), (my_other_cube, "other")):
            cube.append("t", [user(f"{name} {n}")])
            cube.save_extra("t", {name: n})
            assert load_texts(my_cube) == load_texts(my_other_cube)
            assert load(my_cube).extra == load(my_other_cube).extra
    assert load_texts(my_cube) == [f"{name} {n}" for n in range(5) for name in ("one", "other")]
    assert load(my_cube).extra == {"one": 4, "other": 4}


def test_two_handles_at_once_lose_nothing(my_cube: Cube, my_other_cube: Cube) -> None:
    def write(cube: Cube, name: str) -> None:
        cube.call_concurrently("append", [("t", [user(f"{name} {n} a"), user(f"{name} {n} b")]) for n in range(ROUNDS)])
        cube.call_concurrently("save_extra", [("t", {f"{name} {n}": n}) for n in range(ROUNDS)])

    run_both(lambda: write(my_cube, "one"), lambda: write(my_other_cube, "other"))
    assert load_texts(my_cube) == load_texts(my_other_cube)
    names = [(name, n) for name in ("one", "other") for n in range(ROUNDS)]
    assert sorted(load_texts(my_cube)) == sorted(f"{name} {n} {half}" for name, n in names for half in "ab")
    assert load(my_cube).extra == {f"{name} {n}": n for name, n in names}


@needs("runs", "forks")
def test_two_handles_may_run_and_fork_at_once(my_cube: Cube, my_other_cube: Cube) -> None:
    def work(cube: Cube, name: str) -> None:
        for n in range(6):
            do_run(cube, f"{name} {n}", f"{name} {n} a", f"{name} {n} b")
            cube.fork("t", f"fork {name} {n}", after_run_id=f"{name} {n}")

    run_both(lambda: work(my_cube, "one"), lambda: work(my_other_cube, "other"))
    whole = load_texts(my_cube)
    assert sorted(whole) == sorted(f"{name} {n} {half}" for name in ("one", "other") for n in range(6) for half in "ab")
    for cube, name in ((my_other_cube, "one"), (my_cube, "other")):
        for n in range(6):
            assert [text for text in load_texts(cube, f"fork {name} {n}") if text.startswith(name)] == [
                f"{name} {k} {half}" for k in range(n + 1) for half in "ab"
            ]
