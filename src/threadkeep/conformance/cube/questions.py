"""Tests of pending requests, the questions to a person: one waits at a time, and its answer clears it."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from cubeloop.hitl.types import ApproveRequest, AskRequest, ConfirmRequest, HitlRequest, Option, Question

from threadkeep.conformance.cube.calls import Cube, run_both
from threadkeep.conformance.cube.samples import dump_thread, question, user
from threadkeep.conformance.declarations import needs

NEEDS = ("pending",)
DETAILS: dict[str, Any] = {"a": [1, 2.5, None, {"b": True}], "text": "\U0001f99c '\""}
PAYLOADS: dict[str, ConfirmRequest | ApproveRequest | AskRequest] = {
    "confirm": ConfirmRequest(prompt="Shall I?", details=DETAILS),
    "approve": ApproveRequest(tool_name="rm", tool_call_id="c-1", args={"path": "/", "deep": DETAILS}, details=DETAILS),
    "ask": AskRequest(
        questions=[
            Question(key="k", prompt="Which?", options=[Option(label="A", value="a", description="the first")]),
            Question(key="l", prompt="Else?", multi_select=True, required=False),
        ]
    ),
}


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_request_comes_back_with_all_fields(my_cube: Cube, kind: str) -> None:
    given = HitlRequest(
        question_id="q", thread_id=None, payload=PAYLOADS[kind], created_at=1_700_000_000.25, timeout_seconds=60.0
    )
    my_cube.save_pending_request("t", given, run_id="r")
    found, run = my_cube.load_pending("t")
    assert (found, run) == (given, "r")
    assert type(found.payload) is type(given.payload)
    assert my_cube.load_pending_request("t") == given


def test_a_request_may_have_no_run(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question())
    assert my_cube.load_pending("t") == (question(), None)


def test_a_later_request_replaces_the_one_before(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question("first"), run_id="r")
    my_cube.save_pending_request("t", question("second"), run_id="s")
    assert my_cube.load_pending("t") == (question("second"), "s")
    my_cube.save_pending_request("t", question("third"))
    assert my_cube.load_pending("t") == (question("third"), None)


def test_none_clears_the_request_and_its_run(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question(), run_id="r")
    my_cube.save_pending_request("t", None)
    assert my_cube.load_pending("t") is None
    assert my_cube.load_pending_request("t") is None
    my_cube.save_pending_request("t", question())
    assert my_cube.load_pending("t") == (question(), None)


def test_none_clears_the_request_whatever_the_run(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question(), run_id="r")
    my_cube.save_pending_request("t", None, run_id="other")
    assert my_cube.load_pending("t") is None


def test_clearing_where_nothing_waits_is_no_error(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", None)
    my_cube.append("known", [user("hello")])
    my_cube.save_pending_request("known", None)
    assert my_cube.load_pending("t") is my_cube.load_pending("known") is None


def test_each_thread_has_a_request_of_its_own(my_cube: Cube) -> None:
    for thread in ("t", "other"):
        my_cube.save_pending_request(thread, question(f"of {thread}"), run_id="r")
    my_cube.save_pending_request("t", None)
    assert my_cube.load_pending("t") is None
    assert my_cube.load_pending("other") == (question("of other"), "r")


def test_a_request_leaves_messages_and_extra_alone(my_cube: Cube) -> None:
    my_cube.append("t", [user("hello")])
    my_cube.save_extra("t", {"a": 1})
    before = dump_thread(my_cube)
    my_cube.save_pending_request("t", question(), run_id="r")
    assert dump_thread(my_cube) == before
    my_cube.append("t", [user("again")])
    my_cube.save_extra("t", {"a": 2})
    assert my_cube.load_pending("t") == (question(), "r")


def test_changing_a_request_after_it_was_saved_changes_nothing(my_cube: Cube) -> None:
    given = question()
    my_cube.save_pending_request("t", given, run_id="r")
    given.question_id = "changed"
    assert my_cube.load_pending("t") == (question(), "r")


def test_changing_a_loaded_request_changes_nothing(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question(), run_id="r")
    my_cube.load_pending_request("t").question_id = "changed"
    my_cube.load_pending("t")[0].question_id = "changed"
    assert my_cube.load_pending("t") == (question(), "r")


# --- clear_pending_request_if_matches


def test_a_request_is_cleared_by_its_question_and_run(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question("q"), run_id="r")
    assert my_cube.clear_pending_request_if_matches("t", question_id="q", run_id="r") is True
    assert my_cube.load_pending("t") is None
    assert my_cube.load_pending_request("t") is None
    assert my_cube.clear_pending_request_if_matches("t", question_id="q", run_id="r") is False


def test_a_request_is_not_cleared_by_another_question_or_run(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question("q"), run_id="r")
    others = [
        ("other", "r"),
        ("q", "other"),
        ("other", "other"),
        ("r", "q"),
        ("", "r"),
        ("q", ""),
        ("Q", "r"),
        ("q%", "r"),
    ]
    for name, run in others:
        assert my_cube.clear_pending_request_if_matches("t", question_id=name, run_id=run) is False
    assert my_cube.load_pending("t") == (question("q"), "r")


def test_a_request_without_a_run_is_not_cleared_by_any(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question("q"))
    for run in ("r", "", "None"):
        assert my_cube.clear_pending_request_if_matches("t", question_id="q", run_id=run) is False
    assert my_cube.load_pending("t") == (question("q"), None)


def test_nothing_is_cleared_where_nothing_waits(my_cube: Cube) -> None:
    assert my_cube.clear_pending_request_if_matches("unknown", question_id="q", run_id="r") is False
    assert my_cube.load("unknown") is None
    my_cube.append("t", [user("hello")])
    my_cube.save_pending_request("other", question("q"), run_id="r")
    assert my_cube.clear_pending_request_if_matches("t", question_id="q", run_id="r") is False
    assert my_cube.load_pending("other") == (question("q"), "r")


def test_a_request_that_was_replaced_is_not_cleared_by_the_answer_to_the_first(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question("q"), run_id="r")
    my_cube.save_pending_request("t", question("q"), run_id="s")
    assert my_cube.clear_pending_request_if_matches("t", question_id="q", run_id="r") is False
    assert my_cube.clear_pending_request_if_matches("t", question_id="q", run_id="s") is True


def test_only_one_of_many_calls_clears_a_request(my_cube: Cube) -> None:
    my_cube.save_pending_request("t", question("q"), run_id="r")
    answers = my_cube.call_concurrently("clear_pending_request_if_matches", [("t",)] * 50, question_id="q", run_id="r")
    assert sorted(answers) == [False] * 49 + [True]
    assert my_cube.load_pending("t") is None


def test_only_one_of_two_handles_clears_a_request(my_cube: Cube, my_other_cube: Cube) -> None:
    clears = [cube.clear_pending_request_if_matches for cube in (my_cube, my_other_cube)]
    for n in range(10):
        my_cube.save_pending_request("t", question(f"q{n}"), run_id="r")
        assert my_other_cube.load_pending("t") == (question(f"q{n}"), "r")
        answers = run_both(*(partial(clear, "t", question_id=f"q{n}", run_id="r") for clear in clears))
        assert sorted(answers) == [False, True]
        assert my_cube.load_pending("t") is my_other_cube.load_pending("t") is None


@needs("answers")
def test_clearing_a_request_leaves_answers_alone(my_cube: Cube) -> None:
    my_cube.save_hitl_answer("t", "q", "yes", run_id="r")
    my_cube.save_pending_request("t", question("q"), run_id="r")
    assert my_cube.clear_pending_request_if_matches("t", question_id="q", run_id="r") is True
    assert my_cube.load_hitl_answer("t", "q", run_id="r") == "yes"
