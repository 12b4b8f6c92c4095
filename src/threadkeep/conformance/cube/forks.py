"""Tests of snapshot and fork: the messages up to a completed run, and a new thread that starts from them."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cubeloop.checkpointer.exceptions import (
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotCompletedError,
    ThreadAlreadyExistsError,
)

from threadkeep.conformance.cube.calls import Cube
from threadkeep.conformance.cube.messages import ASSISTANT, RESULT, USER, change_messages, same_message
from threadkeep.conformance.cube.samples import do_run, dump_thread, load, load_texts, question, texts_of, user
from threadkeep.conformance.declarations import needs

NEEDS = ("runs", "forks")


def interleave_runs(cube: Cube) -> None:
    """Alternate the messages of two runs. `a` is claimed first, `b` is completed first, `open` is never completed."""
    cube.append("t", [user("start")])
    for name in ("a", "b", "open"):
        cube.claim_run("t", name)
    cube.append("t", [user("a1", "a"), user("b1", "b")])
    cube.append("t", [user("o1", "open")])
    cube.append("t", [user("b2", "b"), user("between"), user("a2", "a")])
    cube.mark_run_complete("t", "b")
    cube.append("t", [user("a3", "a"), user("o2", "open")])
    cube.mark_run_complete("t", "a")
    cube.append("t", [user("end")])


UNTIL = {
    "b": ["start", "b1", "b2", "between", "end"],
    "a": ["start", "a1", "b1", "b2", "between", "a2", "a3", "end"],
}
"""The texts of a snapshot of `interleave_runs`, by its last run."""


# --- snapshots


def test_a_snapshot_has_the_runs_that_were_completed_up_to_one(my_cube: Cube) -> None:
    for n in range(5):
        do_run(my_cube, f"run {n}", f"{n}", f"{n} again")
    for n in range(5):
        found = my_cube.snapshot("t", after_run_id=f"run {n}")
        assert texts_of(found) == [text for k in range(n + 1) for text in (f"{k}", f"{k} again")]


@pytest.mark.parametrize("until", UNTIL)
def test_a_snapshot_goes_by_the_order_of_completion_and_keeps_that_of_messages(my_cube: Cube, until: str) -> None:
    interleave_runs(my_cube)
    assert texts_of(my_cube.snapshot("t", after_run_id=until)) == UNTIL[until]


def test_a_snapshot_leaves_out_runs_that_were_never_claimed(my_cube: Cube) -> None:
    my_cube.append("t", [user("stray", "stray"), user("free")])
    do_run(my_cube, "r", "a")
    assert texts_of(my_cube.snapshot("t", after_run_id="r")) == ["free", "a"]


def test_completing_a_run_again_does_not_move_it(my_cube: Cube) -> None:
    do_run(my_cube, "a", "1")
    do_run(my_cube, "b", "2")
    my_cube.mark_run_complete("t", "a")
    assert texts_of(my_cube.snapshot("t", after_run_id="a")) == ["1"]


def test_a_snapshot_of_a_run_that_is_not_completed_is_an_error(my_cube: Cube) -> None:
    do_run(my_cube, "done", "a")
    my_cube.claim_run("t", "open")
    my_cube.append("t", [user("b", "open"), user("c", "stray")])
    do_run(my_cube, "elsewhere", thread="other")
    for name in ("open", "stray", "unknown", "elsewhere", ""):
        with pytest.raises(RunNotCompletedError):
            my_cube.snapshot("t", after_run_id=name)


def test_a_snapshot_may_be_empty(my_cube: Cube) -> None:
    do_run(my_cube, "r")
    my_cube.append("t", [user("late", "open")])
    assert my_cube.snapshot("t", after_run_id="r") == []


def test_a_snapshot_changes_nothing(my_cube: Cube) -> None:
    interleave_runs(my_cube)
    before = dump_thread(my_cube)
    first = my_cube.snapshot("t", after_run_id="a")
    assert my_cube.snapshot("t", after_run_id="a") == first
    assert dump_thread(my_cube) == before


def test_a_snapshot_gives_messages_with_their_classes_and_all_fields(my_cube: Cube) -> None:
    given = [each.model_copy(deep=True) for each in (USER, ASSISTANT, RESULT)]
    my_cube.claim_run("t", "r")
    my_cube.append("t", given)
    my_cube.mark_run_complete("t", "r")
    found = my_cube.snapshot("t", after_run_id="r")
    assert len(found) == 3
    assert all(map(same_message, found, given))


def test_changing_a_message_from_snapshot_changes_nothing(my_cube: Cube) -> None:
    my_cube.claim_run("t", "r")
    my_cube.append("t", [USER.model_copy(deep=True), RESULT.model_copy(deep=True)])
    my_cube.mark_run_complete("t", "r")
    before = dump_thread(my_cube)
    change_messages(my_cube.snapshot("t", after_run_id="r"))
    assert dump_thread(my_cube) == before
    assert len(my_cube.snapshot("t", after_run_id="r")) == 2


# --- forks


@pytest.mark.parametrize("until", UNTIL)
def test_a_fork_has_the_messages_of_the_snapshot(my_cube: Cube, until: str) -> None:
    interleave_runs(my_cube)
    my_cube.fork("t", "new", after_run_id=until)
    assert load_texts(my_cube, "new") == UNTIL[until]
    assert load(my_cube, "new").messages == my_cube.snapshot("t", after_run_id=until)


def test_a_fork_leaves_its_source_as_it_was(my_cube: Cube) -> None:
    interleave_runs(my_cube)
    my_cube.save_extra("t", {"a": [1]})
    before = dump_thread(my_cube)
    my_cube.fork("t", "new", after_run_id="b", metadata={"why": "a try"})
    assert dump_thread(my_cube) == before
    my_cube.mark_run_complete("t", "open")


def test_a_fork_names_its_parent(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.fork("t", "new", after_run_id="r")
    assert load(my_cube, "new").parent_thread_id == "t"
    my_cube.append("new", [user("b")])
    my_cube.save_extra("new", {"a": 1})
    do_run(my_cube, "next", "c", thread="new")
    assert load(my_cube, "new").parent_thread_id == "t"
    assert load(my_cube).parent_thread_id is None


def test_a_fork_copies_extra(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.save_extra("t", {"a": {"b": [1]}, "c": None})
    my_cube.fork("t", "new", after_run_id="r")
    assert load(my_cube, "new").extra == {"a": {"b": [1]}, "c": None}


def test_the_metadata_of_a_fork_is_in_its_extra(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.save_extra("t", {"a": 1, "fork": "an older one"})
    about: dict[str, Any] = {"why": "a try", "deep": {"x": [1, None]}}
    my_cube.fork("t", "new", after_run_id="r", metadata=about)
    about["deep"]["x"].append(2)
    assert load(my_cube, "new").extra == {"a": 1, "fork": {"why": "a try", "deep": {"x": [1, None]}}}
    assert load(my_cube).extra == {"a": 1, "fork": "an older one"}


def test_the_metadata_of_a_fork_may_be_empty(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.fork("t", "new", after_run_id="r", metadata={})
    assert load(my_cube, "new").extra == {"fork": {}}


def test_a_fork_without_metadata_and_extra_has_no_extra(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.fork("t", "new", after_run_id="r")
    assert load(my_cube, "new").extra == {}


def test_a_fork_may_have_no_messages(my_cube: Cube) -> None:
    do_run(my_cube, "r")
    my_cube.append("t", [user("open", "open")])
    my_cube.fork("t", "new", after_run_id="r")
    assert load_texts(my_cube, "new") == []
    my_cube.append("new", [user("first")])
    assert load_texts(my_cube, "new") == ["first"]


def test_a_fork_carries_the_completed_runs(my_cube: Cube) -> None:
    interleave_runs(my_cube)
    my_cube.fork("t", "new", after_run_id="a")
    for name in ("a", "b"):
        with pytest.raises(RunAlreadyCompletedError):
            my_cube.claim_run("new", name)
        with pytest.raises(RunAlreadyCompletedError):
            my_cube.append("new", [user("late", name)])
        my_cube.mark_run_complete("new", name)
        assert texts_of(my_cube.snapshot("new", after_run_id=name)) == UNTIL[name]


def test_a_fork_carries_no_other_runs(my_cube: Cube) -> None:
    interleave_runs(my_cube)
    my_cube.fork("t", "new", after_run_id="b")
    for name in ("a", "open"):
        with pytest.raises(RunNotCompletedError):
            my_cube.snapshot("new", after_run_id=name)
        do_run(my_cube, name, f"{name} anew", thread="new")
    assert load_texts(my_cube, "new") == [*UNTIL["b"], "a anew", "open anew"]
    with pytest.raises(RunAlreadyClaimedError):
        my_cube.claim_run("t", "open")


def test_a_fork_after_a_run_that_is_not_completed_is_an_error_and_makes_none(my_cube: Cube) -> None:
    do_run(my_cube, "done", "a")
    my_cube.claim_run("t", "open")
    my_cube.append("t", [user("b", "open")])
    for name in ("open", "unknown"):
        with pytest.raises(RunNotCompletedError):
            my_cube.fork("t", "new", after_run_id=name)
    assert my_cube.load("new") is None
    my_cube.fork("t", "new", after_run_id="done")
    assert load_texts(my_cube, "new") == ["a"]


def test_a_fork_onto_a_thread_that_exists_is_an_error_and_leaves_it_as_it_is(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.append("messages", [user("mine")])
    my_cube.save_extra("extra", {"mine": 1})
    before = [dump_thread(my_cube, name) for name in ("t", "messages", "extra")]
    for name in ("messages", "extra", "t"):
        with pytest.raises(ThreadAlreadyExistsError):
            my_cube.fork("t", name, after_run_id="r", metadata={"why": "a try"})
    assert [dump_thread(my_cube, name) for name in ("t", "messages", "extra")] == before


def test_a_run_that_was_claimed_makes_its_thread(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.claim_run("claimed", "r")
    with pytest.raises(RunNotCompletedError):
        my_cube.snapshot("claimed", after_run_id="r")
    with pytest.raises(ThreadAlreadyExistsError):
        my_cube.fork("t", "claimed", after_run_id="r")


def test_a_fork_and_its_source_change_independently(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.save_extra("t", {"x": {"y": 1}})
    my_cube.fork("t", "new", after_run_id="r")
    for thread, word in (("t", "old way"), ("new", "new way")):
        do_run(my_cube, "next", word, thread=thread)
        my_cube.append(thread, [user(f"{word} on")])
        my_cube.save_extra(thread, {"x": word})
    assert [load_texts(my_cube), load_texts(my_cube, "new")] == [
        ["a", "old way", "old way on"],
        ["a", "new way", "new way on"],
    ]
    assert [load(my_cube).extra, load(my_cube, "new").extra] == [{"x": "old way"}, {"x": "new way"}]
    assert texts_of(my_cube.snapshot("new", after_run_id="next")) == ["a", "new way", "new way on"]


def test_runs_of_a_fork_come_after_the_runs_it_inherited(my_cube: Cube) -> None:
    for name in ("a", "b"):
        do_run(my_cube, name, name)
    my_cube.fork("t", "new", after_run_id="b")
    do_run(my_cube, "c", "c", thread="new")
    assert [texts_of(my_cube.snapshot("new", after_run_id=name)) for name in "abc"] == [
        ["a"],
        ["a", "b"],
        ["a", "b", "c"],
    ]


def test_a_fork_may_be_forked(my_cube: Cube) -> None:
    do_run(my_cube, "a", "1")
    do_run(my_cube, "b", "2")
    my_cube.save_extra("t", {"x": 1})
    my_cube.fork("t", "second", after_run_id="b", metadata={"n": 2})
    do_run(my_cube, "c", "3", thread="second")
    my_cube.fork("second", "third", after_run_id="c", metadata={"n": 3})
    my_cube.fork("third", "fourth", after_run_id="a")
    my_cube.append("fourth", [user("4")])
    assert [load_texts(my_cube, name) for name in ("second", "third", "fourth")] == [
        ["1", "2", "3"],
        ["1", "2", "3"],
        ["1", "4"],
    ]
    assert [load(my_cube, name).parent_thread_id for name in ("second", "third", "fourth")] == [
        "t",
        "second",
        "third",
    ]
    assert [load(my_cube, name).extra for name in ("second", "third")] == [
        {"x": 1, "fork": {"n": 2}},
        {"x": 1, "fork": {"n": 3}},
    ]


def test_a_thread_may_be_forked_often(my_cube: Cube) -> None:
    for n in range(5):
        do_run(my_cube, f"run {n}", f"{n}")
    for n in range(5):
        my_cube.fork("t", f"fork {n}", after_run_id=f"run {n}")
        my_cube.append(f"fork {n}", [user("own")])
    assert [load_texts(my_cube, f"fork {n}") for n in range(5)] == [
        [*(f"{k}" for k in range(n + 1)), "own"] for n in range(5)
    ]


def test_a_long_thread_may_be_forked(my_cube: Cube) -> None:
    for n in range(40):
        do_run(my_cube, f"run {n}", *(f"{n}.{k}" for k in range(10)))
    my_cube.fork("t", "new", after_run_id="run 20")
    assert load_texts(my_cube, "new") == [f"{n}.{k}" for n in range(21) for k in range(10)]


def test_messages_of_a_fork_have_their_classes_and_all_fields(my_cube: Cube) -> None:
    given = [each.model_copy(deep=True) for each in (USER, ASSISTANT, RESULT)]
    my_cube.claim_run("t", "r")
    my_cube.append("t", given)
    my_cube.mark_run_complete("t", "r")
    my_cube.fork("t", "new", after_run_id="r")
    found = load(my_cube, "new").messages
    assert len(found) == 3
    assert all(map(same_message, found, given))


@needs("pending", "answers")
def test_pending_requests_and_answers_are_not_copied_to_a_fork(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.save_pending_request("t", question(), run_id="r")
    my_cube.save_hitl_answer("t", "q", "yes", run_id="r")
    my_cube.save_hitl_answer("t", "q", "yes")
    my_cube.fork("t", "new", after_run_id="r")
    assert my_cube.load_pending("new") is None
    assert my_cube.load_pending_request("new") is None
    assert my_cube.load_hitl_answer("new", "q", run_id="r") is None
    assert my_cube.load_hitl_answer("new", "q") is None
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == "yes"
    assert my_cube.load_pending("t") == (question(), "r")


def test_one_of_many_forks_onto_a_thread_wins(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    answers = my_cube.try_concurrently("fork", [("t", "new")] * 10, after_run_id="r")
    assert answers.count(None) == 1
    assert {type(answer) for answer in answers if answer is not None} == {ThreadAlreadyExistsError}
    assert load_texts(my_cube, "new") == ["a"]


def test_a_thread_may_be_forked_while_it_goes_on(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")

    async def scenario(cube: Any) -> None:
        async def grow() -> None:
            for n in range(40):
                await cube.append("t", [user(f"{n}")])

        async def fork() -> None:
            for n in range(8):
                await cube.fork("t", f"fork {n}", after_run_id="r")

        await asyncio.gather(grow(), fork())

    my_cube.run_on_target(scenario)
    whole = load_texts(my_cube)
    assert whole == ["a", *(f"{n}" for n in range(40))]
    for n in range(8):
        found = load_texts(my_cube, f"fork {n}")
        assert found == whole[: len(found)]


def test_another_handle_sees_a_fork(my_cube: Cube, my_other_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    assert my_other_cube.load("new") is None
    my_cube.fork("t", "new", after_run_id="r")
    my_other_cube.append("new", [user("b")])
    assert load_texts(my_cube, "new") == load_texts(my_other_cube, "new") == ["a", "b"]
    with pytest.raises(ThreadAlreadyExistsError):
        my_other_cube.fork("t", "new", after_run_id="r")
