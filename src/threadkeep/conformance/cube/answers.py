"""Tests of human-in-the-loop answers, which are stored by run and question."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cubeloop.hitl.types import ApproveAnswer

from threadkeep.conformance.cube.calls import Cube
from threadkeep.conformance.cube.samples import dump_thread, question, user
from threadkeep.conformance.declarations import needs
from threadkeep.conformance.json_values import EXACT, exact

NEEDS = ("answers",)
FALSY: list[Any] = [False, 0, 0.0, "", [], {}]
APPROVED = {"decision": "edit", "edited_args": {"a": [1]}, "reason": None}


def load_answers(cube: Cube, runs: tuple[str | None, ...], names: str, thread: str = "t") -> dict[Any, Any]:
    """Return the stored answers by run and question."""
    found = {(run, name): cube.load_hitl_answer(thread, name, run_id=run) for run in runs for name in names}
    return {key: answer for key, answer in found.items() if answer is not None}


def test_an_answer_comes_back(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", {"a": [1, {"b": None}]}, run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == {"a": [1, {"b": None}]}


def test_answers_are_separate_by_thread_run_and_question(my_cube: Cube) -> None:
    keys = [(t, r, q) for t in ("t", "other") for r in ("r", "s", None) for q in ("q", "p")]
    for thread, run, name in keys:
        my_cube.save_hitl_answer(thread, name, f"{thread} {run} {name}", run_id=run)
    for thread, run, name in keys:
        assert my_cube.load_hitl_answer(thread, name, run_id=run) == f"{thread} {run} {name}"
    assert my_cube.load_hitl_answer("t", "unknown", run_id="r") is None
    assert my_cube.load_hitl_answer("t", "q", run_id="unknown") is None


def test_no_run_and_the_empty_run_are_the_same(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", 1)
    assert my_cube.load_hitl_answer("t", "q", run_id="") == 1
    my_cube.save_hitl_answer("t", "q", 2, run_id="")
    assert my_cube.load_hitl_answer("t", "q") == 2
    my_cube.clear_hitl_answers("t", run_id="")
    assert my_cube.load_hitl_answer("t", "q") is None


def test_any_text_may_be_a_question_id_and_means_itself(my_cube: Cube) -> None:
    names = [
        "q",
        "Q",
        "q.a",
        "q:a",
        "q/a",
        "q%",
        "q_",
        "qx",
        "q'",
        'q"',
        "q\\",
        "",
        " ",
        "\u00e9",
        "e\u0301",
        "\U0001f99c",
    ]
    for run in ("r", "r:q"):
        for name in names:
            my_cube.save_hitl_answer("t", name, f"{run} {name}", run_id=run)
    for run in ("r", "r:q"):
        assert [my_cube.load_hitl_answer("t", name, run_id=run) for name in names] == [
            f"{run} {name}" for name in names
        ]


def test_a_later_answer_replaces_the_one_before(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", {"a": 1, "b": 1}, run_id="r")
    my_cube.save_hitl_answer("t", "q", {"b": 2}, run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == {"b": 2}


def test_a_falsy_answer_is_an_answer(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", "before", run_id="r")
    for answer in FALSY:
        my_cube.save_hitl_answer("t", "q", answer, run_id="r")
        assert exact(my_cube.load_hitl_answer("t", "q", run_id="r")) == exact(answer)


def test_none_replaces_an_answer(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", "before", run_id="r")
    my_cube.save_hitl_answer("t", "q", None, run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") is None


def test_an_answer_may_be_any_json(my_cube: Cube) -> None:
    given = {name: EXACT[name] for name in ("texts", "unicode", "emoji", "constants", "empty", "deep", "odd names")}
    given |= {"a number": -1, "another": 2**53 + 1, "a float": 1.5, "whole": 1.0, "large": "0123456789abcdef" * 65_536}
    for name, answer in given.items():
        my_cube.save_hitl_answer("t", name, answer, run_id="r")
    for name, answer in given.items():
        assert exact(my_cube.load_hitl_answer("t", name, run_id="r")) == exact(answer)


def test_a_model_comes_back_as_a_dict(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", ApproveAnswer(decision="edit", edited_args={"a": [1]}), run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == APPROVED


def test_models_within_an_answer_come_back_as_dicts(my_cube: Cube) -> None:
    model = ApproveAnswer(decision="edit", edited_args={"a": [1]})
    my_cube.save_hitl_answer("t", "q", {"all": [model, {"deep": model}]}, run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == {"all": [APPROVED, {"deep": APPROVED}]}


def test_changing_an_answer_changes_nothing(my_cube: Cube) -> None:
    given: Any = {"list": [1]}
    my_cube.save_hitl_answer("t", "q", given, run_id="r")
    given["list"].append(2)
    my_cube.load_hitl_answer("t", "q", run_id="r")["list"].append(3)
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == {"list": [1]}


def test_answers_leave_messages_and_extra_alone(my_cube: Cube) -> None:
    my_cube.append("t", [user("hello")])
    my_cube.save_extra("t", {"a": 1})
    before = dump_thread(my_cube)
    my_cube.save_hitl_answer("t", "q", "yes", run_id="r")
    my_cube.clear_hitl_answers("t", ["p"], run_id="r")
    assert dump_thread(my_cube) == before
    my_cube.append("t", [user("again")])
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == "yes"


@needs("pending")
def test_an_answer_leaves_the_request_alone(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question("q"), run_id="r")
    my_cube.save_hitl_answer("t", "q", "yes", run_id="r")
    my_cube.clear_hitl_answers("t", run_id="r")
    assert my_cube.load_pending("t") == (question("q"), "r")


# --- clear_hitl_answers


def save_answers(cube: Cube) -> dict[Any, Any]:
    """Save answers to three questions in each of three runs, and return them."""
    answers = {(run, name): f"{run} {name}" for run in ("r", "s", None) for name in "abc"}
    for (run, name), answer in answers.items():
        cube.save_hitl_answer("t", name, answer, run_id=run)
    return answers


@pytest.mark.parametrize("run", ["r", None])
def test_all_answers_of_a_run_are_cleared_and_no_others(my_cube: Cube, run: str | None) -> None:
    answers = save_answers(my_cube)
    my_cube.clear_hitl_answers("t", run_id=run)
    assert load_answers(my_cube, ("r", "s", None), "abc") == {key: answers[key] for key in answers if key[0] != run}


def test_the_answers_that_are_named_are_cleared_and_no_others(my_cube: Cube) -> None:
    answers = save_answers(my_cube)
    my_cube.clear_hitl_answers("t", ["a", "c", "unknown"], run_id="r")
    left = {key: answers[key] for key in answers if key not in (("r", "a"), ("r", "c"))}
    assert load_answers(my_cube, ("r", "s", None), "abc") == left


def test_answers_to_be_cleared_may_be_named_by_any_iterable(my_cube: Cube) -> None:
    makers: list[Callable[[Any], Any]] = [list, tuple, set, iter, dict.fromkeys]
    for made in makers:
        my_cube.save_hitl_answer("t", "a", 1, run_id="r")
        my_cube.save_hitl_answer("t", "b", 2, run_id="r")
        my_cube.clear_hitl_answers("t", made(["a", "a"]), run_id="r")
        assert load_answers(my_cube, ("r",), "ab") == {("r", "b"): 2}


def test_clearing_no_questions_clears_nothing(my_cube: Cube) -> None:
    answers = save_answers(my_cube)
    my_cube.clear_hitl_answers("t", [], run_id="r")
    assert load_answers(my_cube, ("r", "s", None), "abc") == answers


def test_clearing_where_there_are_no_answers_is_no_error(my_cube: Cube) -> None:
    my_cube.clear_hitl_answers("t")
    my_cube.clear_hitl_answers("t", ["q"], run_id="r")
    assert my_cube.load("t") is None


def test_an_answer_may_be_given_again_after_it_was_cleared(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", 1, run_id="r")
    my_cube.clear_hitl_answers("t", run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") is None
    my_cube.save_hitl_answer("t", "q", 2, run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == 2


def test_many_answers_at_once_lose_nothing(my_cube: Cube) -> None:
    my_cube.call_concurrently("save_hitl_answer", [("t", f"q{n}", n) for n in range(50)], run_id="r")
    assert [my_cube.load_hitl_answer("t", f"q{n}", run_id="r") for n in range(50)] == list(range(50))


def test_another_handle_sees_answers(my_cube: Cube, my_other_cube: Cube) -> None:
    assert my_other_cube.load_hitl_answer("t", "q", run_id="r") is None
    my_cube.save_hitl_answer("t", "q", 1, run_id="r")
    assert my_other_cube.load_hitl_answer("t", "q", run_id="r") == 1
    my_other_cube.clear_hitl_answers("t", run_id="r")
    assert my_cube.load_hitl_answer("t", "q", run_id="r") is None
