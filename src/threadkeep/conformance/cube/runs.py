"""Tests of runs: claimed once, completed once or again, and closed to messages afterwards."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from functools import partial

import pytest
from cubeloop.checkpointer.exceptions import RunAlreadyClaimedError, RunAlreadyCompletedError, RunNotClaimedError

from threadkeep.conformance.cube.calls import Cube, run_both
from threadkeep.conformance.cube.samples import do_run, dump_thread, load, load_texts, user

NEEDS = ("runs",)


def test_a_run_is_claimed_once(my_cube: Cube) -> None:
    my_cube.claim_run("t", "r")
    with pytest.raises(RunAlreadyClaimedError):
        my_cube.claim_run("t", "r")
    my_cube.claim_run("t", "other")


def test_a_completed_run_is_not_claimed_again(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.claim_run("t", "r")


def test_a_run_without_messages_is_completed_too(my_cube: Cube) -> None:
    do_run(my_cube, "r")
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.claim_run("t", "r")


def test_a_run_may_be_completed_again(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.mark_run_complete("t", "r")
    my_cube.mark_run_complete("t", "r")
    assert load_texts(my_cube) == ["a"]


def test_a_run_that_was_not_claimed_is_not_completed(my_cube: Cube) -> None:
    with pytest.raises(RunNotClaimedError):
        my_cube.mark_run_complete("t", "r")
    my_cube.claim_run("t", "other")
    with pytest.raises(RunNotClaimedError):
        my_cube.mark_run_complete("t", "r")
    my_cube.claim_run("t", "r")


def test_messages_do_not_claim_their_run(my_cube: Cube) -> None:
    my_cube.append("t", [user("a", "r")])
    with pytest.raises(RunNotClaimedError):
        my_cube.mark_run_complete("t", "r")
    my_cube.claim_run("t", "r")
    my_cube.mark_run_complete("t", "r")
    assert load_texts(my_cube) == ["a"]


def test_an_append_to_a_completed_run_is_refused(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.append("t", [user("late", "r")])
    assert load_texts(my_cube) == ["a"]


def test_an_append_that_is_refused_stores_none_of_its_messages(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.claim_run("t", "open")
    before = dump_thread(my_cube)
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.append("t", [user("b"), user("c", "open"), user("late", "r"), user("d")])
    assert dump_thread(my_cube) == before
    my_cube.append("t", [user("b"), user("c", "open")])
    assert load_texts(my_cube) == ["a", "b", "c"]


def test_messages_of_no_run_and_of_others_are_taken_after_a_run_is_completed(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.append("t", [user("b")])
    my_cube.claim_run("t", "next")
    my_cube.append("t", [user("c", "next"), user("d")])
    assert load_texts(my_cube) == ["a", "b", "c", "d"]
    assert [message.run_id for message in load(my_cube).messages] == ["r", None, "next", None]


def test_the_same_run_id_on_two_threads_is_two_runs(my_cube: Cube) -> None:
    do_run(my_cube, "r", "a")
    my_cube.claim_run("other", "r")
    my_cube.append("other", [user("b", "r")])
    with pytest.raises(RunAlreadyClaimedError):
        my_cube.claim_run("other", "r")
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.append("t", [user("late", "r")])
    my_cube.mark_run_complete("other", "r")
    assert [load_texts(my_cube), load_texts(my_cube, "other")] == [["a"], ["b"]]


def test_any_text_may_be_a_run_id_and_means_itself(my_cube: Cube) -> None:
    names = ["r", "R", "r ", "r.1", "r:1", "r%", "r_", "rx", "r'", "r\\", "\u00e9", "e\u0301", "\U0001f99c", "0", "00"]
    for name in names:
        do_run(my_cube, name, f"of {name}")
    for name in names:
        with pytest.raises(RunAlreadyCompletedError):
            my_cube.claim_run("t", name)
    assert load_texts(my_cube) == [f"of {name}" for name in names]


def test_a_thread_may_have_many_runs(my_cube: Cube) -> None:
    for n in range(80):
        do_run(my_cube, f"run {n}", f"{n}")
    assert load_texts(my_cube) == [f"{n}" for n in range(80)]
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.append("t", [user("late", "run 0")])
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.claim_run("t", "run 40")


def test_runs_leave_messages_and_extra_alone(my_cube: Cube) -> None:
    my_cube.append("t", [user("hello")])
    my_cube.save_extra("t", {"a": 1})
    before = dump_thread(my_cube)
    my_cube.claim_run("t", "r")
    assert dump_thread(my_cube) == before
    my_cube.mark_run_complete("t", "r")
    assert dump_thread(my_cube) == before


def test_one_of_many_claims_of_a_run_wins(my_cube: Cube) -> None:
    answers = my_cube.try_concurrently("claim_run", [("t", "r")] * 50)
    assert answers.count(None) == 1
    assert {type(answer) for answer in answers if answer is not None} == {RunAlreadyClaimedError}


def test_one_of_many_claims_by_two_handles_wins(my_cube: Cube, my_other_cube: Cube) -> None:
    my_cube.append("t", [user("hello")])
    for n in range(10):
        calls = [("t", f"run {n}")] * 3
        one, other = run_both(
            partial(my_cube.try_concurrently, "claim_run", calls),
            partial(my_other_cube.try_concurrently, "claim_run", calls),
        )
        assert [*one, *other].count(None) == 1


def test_another_handle_knows_the_runs(my_cube: Cube, my_other_cube: Cube) -> None:
    my_other_cube.load("t")
    do_run(my_cube, "r", "a")
    my_cube.claim_run("t", "open")
    with pytest.raises(RunAlreadyCompletedError):
        my_other_cube.append("t", [user("late", "r")])
    with pytest.raises(RunAlreadyClaimedError):
        my_other_cube.claim_run("t", "open")
    my_other_cube.mark_run_complete("t", "open")
    with pytest.raises(RunAlreadyCompletedError):
        my_cube.append("t", [user("late", "open")])
    assert load_texts(my_cube) == ["a"]


def test_many_completions_at_once_are_all_stored(my_cube: Cube) -> None:
    for n in range(20):
        my_cube.claim_run("t", f"run {n}")
    my_cube.call_concurrently("mark_run_complete", [("t", f"run {n}") for n in range(20)] * 2)
    for n in range(20):
        with pytest.raises(RunAlreadyCompletedError):
            my_cube.claim_run("t", f"run {n}")
