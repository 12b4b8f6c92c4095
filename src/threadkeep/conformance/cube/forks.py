"""Snapshots and forks: what was there when a run was completed, and how a thread goes on from there apart."""
# ruff: noqa: D103 - the name of a test says what it demands

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

from threadkeep.conformance.cube.messages import ASSISTANT, RESULT, USER, alike, change
from threadkeep.conformance.cube.talking import Cube, everything, loaded, question, run, said, texts, told
from threadkeep.conformance.declared import needs

NEEDS = ("runs", "forks")


def interleaved(cube: Cube) -> None:
    """Two runs whose messages alternate: `a` is claimed first, `b` is completed first, `open` is not."""
    cube.append("t", [said("start")])
    for name in ("a", "b", "open"):
        cube.claim_run("t", name)
    cube.append("t", [said("a1", "a"), said("b1", "b")])
    cube.append("t", [said("o1", "open")])
    cube.append("t", [said("b2", "b"), said("between"), said("a2", "a")])
    cube.mark_run_complete("t", "b")
    cube.append("t", [said("a3", "a"), said("o2", "open")])
    cube.mark_run_complete("t", "a")
    cube.append("t", [said("end")])


UNTIL = {
    "b": ["start", "b1", "b2", "between", "end"],
    "a": ["start", "a1", "b1", "b2", "between", "a2", "a3", "end"],
}
"""What is left of it, by the run up to which."""


# --- snapshots


def test_a_snapshot_has_the_runs_that_were_completed_up_to_one(my_cube: Cube) -> None:
    for n in range(5):
        run(my_cube, f"run {n}", f"{n}", f"{n} again")
    for n in range(5):
        found = my_cube.snapshot("t", after_run_id=f"run {n}")
        assert texts(found) == [text for k in range(n + 1) for text in (f"{k}", f"{k} again")]


@pytest.mark.parametrize("until", UNTIL)
def test_a_snapshot_goes_by_the_order_of_completion_and_keeps_that_of_messages(my_cube: Cube, until: str) -> None:
    interleaved(my_cube)
    assert texts(my_cube.snapshot("t", after_run_id=until)) == UNTIL[until]


def test_a_snapshot_leaves_out_runs_that_were_never_claimed(my_cube: Cube) -> None:
    my_cube.append("t", [said("stray", "stray"), said("free")])
    run(my_cube, "r", "a")
    assert texts(my_cube.snapshot("t", after_run_id="r")) == ["free", "a"]


def test_completing_a_run_again_does_not_move_it(my_cube: Cube) -> None:
    run(my_cube, "a", "1")
    run(my_cube, "b", "2")
    my_cube.mark_run_complete("t", "a")
    assert texts(my_cube.snapshot("t", after_run_id="a")) == ["1"]


def test_a_snapshot_of_a_run_that_is_not_completed_is_an_error(my_cube: Cube) -> None:
    run(my_cube, "done", "a")
    my_cube.claim_run("t", "open")
    my_cube.append("t", [said("b", "open"), said("c", "stray")])
    run(my_cube, "elsewhere", thread="other")
    for name in ("open", "stray", "unknown", "elsewhere", ""):
        with pytest.raises(RunNotCompletedError):
            my_cube.snapshot("t", after_run_id=name)


def test_a_snapshot_may_be_empty(my_cube: Cube) -> None:
    run(my_cube, "r")
    my_cube.append("t", [said("late", "open")])
    assert my_cube.snapshot("t", after_run_id="r") == []


def test_a_snapshot_changes_nothing(my_cube: Cube) -> None:
    interleaved(my_cube)
    before = everything(my_cube)
    first = my_cube.snapshot("t", after_run_id="a")
    assert my_cube.snapshot("t", after_run_id="a") == first
    assert everything(my_cube) == before


def test_a_snapshot_gives_messages_with_their_classes_and_all_fields(my_cube: Cube) -> None:
    given = [each.model_copy(deep=True) for each in (USER, ASSISTANT, RESULT)]
    my_cube.claim_run("t", "r")
    my_cube.append("t", given)
    my_cube.mark_run_complete("t", "r")
    found = my_cube.snapshot("t", after_run_id="r")
    assert len(found) == 3
    assert all(map(alike, found, given))


def test_what_is_done_to_a_message_that_snapshot_gave_is_not_kept(my_cube: Cube) -> None:
    my_cube.claim_run("t", "r")
    my_cube.append("t", [USER.model_copy(deep=True), RESULT.model_copy(deep=True)])
    my_cube.mark_run_complete("t", "r")
    before = everything(my_cube)
    change(my_cube.snapshot("t", after_run_id="r"))
    assert everything(my_cube) == before
    assert len(my_cube.snapshot("t", after_run_id="r")) == 2


# --- forks


@pytest.mark.parametrize("until", UNTIL)
def test_a_fork_has_the_messages_of_the_snapshot(my_cube: Cube, until: str) -> None:
    interleaved(my_cube)
    my_cube.fork("t", "new", after_run_id=until)
    assert told(my_cube, "new") == UNTIL[until]
    assert loaded(my_cube, "new").messages == my_cube.snapshot("t", after_run_id=until)


def test_a_fork_leaves_its_source_as_it_was(my_cube: Cube) -> None:
    interleaved(my_cube)
    my_cube.save_extra("t", {"a": [1]})
    before = everything(my_cube)
    my_cube.fork("t", "new", after_run_id="b", metadata={"why": "a try"})
    assert everything(my_cube) == before
    my_cube.mark_run_complete("t", "open")


def test_a_fork_names_its_parent(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.fork("t", "new", after_run_id="r")
    assert loaded(my_cube, "new").parent_thread_id == "t"
    my_cube.append("new", [said("b")])
    my_cube.save_extra("new", {"a": 1})
    run(my_cube, "next", "c", thread="new")
    assert loaded(my_cube, "new").parent_thread_id == "t"
    assert loaded(my_cube).parent_thread_id is None


def test_a_fork_takes_extra_along(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.save_extra("t", {"a": {"b": [1]}, "c": None})
    my_cube.fork("t", "new", after_run_id="r")
    assert loaded(my_cube, "new").extra == {"a": {"b": [1]}, "c": None}


def test_the_metadata_of_a_fork_stands_in_its_extra(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.save_extra("t", {"a": 1, "fork": "an older one"})
    about: dict[str, Any] = {"why": "a try", "deep": {"x": [1, None]}}
    my_cube.fork("t", "new", after_run_id="r", metadata=about)
    about["deep"]["x"].append(2)
    assert loaded(my_cube, "new").extra == {"a": 1, "fork": {"why": "a try", "deep": {"x": [1, None]}}}
    assert loaded(my_cube).extra == {"a": 1, "fork": "an older one"}


def test_the_metadata_of_a_fork_may_be_empty(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.fork("t", "new", after_run_id="r", metadata={})
    assert loaded(my_cube, "new").extra == {"fork": {}}


def test_a_fork_without_metadata_and_extra_has_no_extra(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.fork("t", "new", after_run_id="r")
    assert loaded(my_cube, "new").extra == {}


def test_a_fork_may_have_no_messages(my_cube: Cube) -> None:
    run(my_cube, "r")
    my_cube.append("t", [said("open", "open")])
    my_cube.fork("t", "new", after_run_id="r")
    assert told(my_cube, "new") == []
    my_cube.append("new", [said("first")])
    assert told(my_cube, "new") == ["first"]


def test_a_fork_carries_the_completed_runs(my_cube: Cube) -> None:
    interleaved(my_cube)
    my_cube.fork("t", "new", after_run_id="a")
    for name in ("a", "b"):
        with pytest.raises(RunAlreadyCompletedError):
            my_cube.claim_run("new", name)
        with pytest.raises(RunAlreadyCompletedError):
            my_cube.append("new", [said("late", name)])
        my_cube.mark_run_complete("new", name)
        assert texts(my_cube.snapshot("new", after_run_id=name)) == UNTIL[name]


def test_a_fork_carries_no_other_runs(my_cube: Cube) -> None:
    interleaved(my_cube)
    my_cube.fork("t", "new", after_run_id="b")
    for name in ("a", "open"):
        with pytest.raises(RunNotCompletedError):
            my_cube.snapshot("new", after_run_id=name)
        run(my_cube, name, f"{name} anew", thread="new")
    assert told(my_cube, "new") == [*UNTIL["b"], "a anew", "open anew"]
    with pytest.raises(RunAlreadyClaimedError):
        my_cube.claim_run("t", "open")


def test_a_fork_after_a_run_that_is_not_completed_is_an_error_and_makes_none(my_cube: Cube) -> None:
    run(my_cube, "done", "a")
    my_cube.claim_run("t", "open")
    my_cube.append("t", [said("b", "open")])
    for name in ("open", "unknown"):
        with pytest.raises(RunNotCompletedError):
            my_cube.fork("t", "new", after_run_id=name)
    assert my_cube.load("new") is None
    my_cube.fork("t", "new", after_run_id="done")
    assert told(my_cube, "new") == ["a"]


def test_a_fork_onto_a_thread_that_exists_is_an_error_and_leaves_it_as_it_is(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.append("messages", [said("mine")])
    my_cube.save_extra("extra", {"mine": 1})
    before = [everything(my_cube, name) for name in ("t", "messages", "extra")]
    for name in ("messages", "extra", "t"):
        with pytest.raises(ThreadAlreadyExistsError):
            my_cube.fork("t", name, after_run_id="r", metadata={"why": "a try"})
    assert [everything(my_cube, name) for name in ("t", "messages", "extra")] == before


def test_a_run_that_was_claimed_makes_its_thread(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.claim_run("claimed", "r")
    with pytest.raises(RunNotCompletedError):
        my_cube.snapshot("claimed", after_run_id="r")
    with pytest.raises(ThreadAlreadyExistsError):
        my_cube.fork("t", "claimed", after_run_id="r")


def test_a_fork_and_its_source_go_separate_ways(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    my_cube.save_extra("t", {"x": {"y": 1}})
    my_cube.fork("t", "new", after_run_id="r")
    for thread, word in (("t", "old way"), ("new", "new way")):
        run(my_cube, "next", word, thread=thread)
        my_cube.append(thread, [said(f"{word} on")])
        my_cube.save_extra(thread, {"x": word})
    assert [told(my_cube), told(my_cube, "new")] == [["a", "old way", "old way on"], ["a", "new way", "new way on"]]
    assert [loaded(my_cube).extra, loaded(my_cube, "new").extra] == [{"x": "old way"}, {"x": "new way"}]
    assert texts(my_cube.snapshot("new", after_run_id="next")) == ["a", "new way", "new way on"]


def test_runs_of_a_fork_are_completed_after_those_that_it_took_over(my_cube: Cube) -> None:
    for name in ("a", "b"):
        run(my_cube, name, name)
    my_cube.fork("t", "new", after_run_id="b")
    run(my_cube, "c", "c", thread="new")
    assert [texts(my_cube.snapshot("new", after_run_id=name)) for name in "abc"] == [["a"], ["a", "b"], ["a", "b", "c"]]


def test_a_fork_may_be_forked(my_cube: Cube) -> None:
    run(my_cube, "a", "1")
    run(my_cube, "b", "2")
    my_cube.save_extra("t", {"x": 1})
    my_cube.fork("t", "second", after_run_id="b", metadata={"n": 2})
    run(my_cube, "c", "3", thread="second")
    my_cube.fork("second", "third", after_run_id="c", metadata={"n": 3})
    my_cube.fork("third", "fourth", after_run_id="a")
    my_cube.append("fourth", [said("4")])
    assert [told(my_cube, name) for name in ("second", "third", "fourth")] == [
        ["1", "2", "3"],
        ["1", "2", "3"],
        ["1", "4"],
    ]
    assert [loaded(my_cube, name).parent_thread_id for name in ("second", "third", "fourth")] == [
        "t",
        "second",
        "third",
    ]
    assert [loaded(my_cube, name).extra for name in ("second", "third")] == [
        {"x": 1, "fork": {"n": 2}},
        {"x": 1, "fork": {"n": 3}},
    ]


def test_a_thread_may_be_forked_often(my_cube: Cube) -> None:
    for n in range(5):
        run(my_cube, f"run {n}", f"{n}")
    for n in range(5):
        my_cube.fork("t", f"fork {n}", after_run_id=f"run {n}")
        my_cube.append(f"fork {n}", [said("own")])
    assert [told(my_cube, f"fork {n}") for n in range(5)] == [
        [*(f"{k}" for k in range(n + 1)), "own"] for n in range(5)
    ]


def test_a_long_thread_may_be_forked(my_cube: Cube) -> None:
    for n in range(40):
        run(my_cube, f"run {n}", *(f"{n}.{k}" for k in range(10)))
    my_cube.fork("t", "new", after_run_id="run 20")
    assert told(my_cube, "new") == [f"{n}.{k}" for n in range(21) for k in range(10)]


def test_messages_of_a_fork_have_their_classes_and_all_fields(my_cube: Cube) -> None:
    given = [each.model_copy(deep=True) for each in (USER, ASSISTANT, RESULT)]
    my_cube.claim_run("t", "r")
    my_cube.append("t", given)
    my_cube.mark_run_complete("t", "r")
    my_cube.fork("t", "new", after_run_id="r")
    found = loaded(my_cube, "new").messages
    assert len(found) == 3
    assert all(map(alike, found, given))


@needs("pending", "answers")
def test_pending_requests_and_answers_are_not_taken_along(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
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


def test_of_many_forks_onto_one_thread_one_wins(my_cube: Cube) -> None:
    run(my_cube, "r", "a")
    answers = my_cube.attempts("fork", [("t", "new")] * 10, after_run_id="r")
    assert answers.count(None) == 1
    assert {type(answer) for answer in answers if answer is not None} == {ThreadAlreadyExistsError}
    assert told(my_cube, "new") == ["a"]


def test_a_thread_may_be_forked_while_it_goes_on(my_cube: Cube) -> None:
    run(my_cube, "r", "a")

    async def story(cube: Any) -> None:
        async def grow() -> None:
            for n in range(40):
                await cube.append("t", [said(f"{n}")])

        async def fork() -> None:
            for n in range(8):
                await cube.fork("t", f"fork {n}", after_run_id="r")

        await asyncio.gather(grow(), fork())

    my_cube.play(story)
    whole = told(my_cube)
    assert whole == ["a", *(f"{n}" for n in range(40))]
    for n in range(8):
        found = told(my_cube, f"fork {n}")
        assert found == whole[: len(found)]


def test_another_handle_sees_a_fork(my_cube: Cube, my_other_cube: Cube) -> None:
    run(my_cube, "r", "a")
    assert my_other_cube.load("new") is None
    my_cube.fork("t", "new", after_run_id="r")
    my_other_cube.append("new", [said("b")])
    assert told(my_cube, "new") == told(my_other_cube, "new") == ["a", "b"]
    with pytest.raises(ThreadAlreadyExistsError):
        my_other_cube.fork("t", "new", after_run_id="r")
