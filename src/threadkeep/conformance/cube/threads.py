"""Tests of threads: when they exist, which ids they may have, and that they do not mix."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import pytest
from cubeloop.checkpointer import base
from cubeloop.checkpointer.exceptions import ThreadNotFoundError

from threadkeep.conformance.cube.calls import Cube
from threadkeep.conformance.cube.samples import load, load_texts, user
from threadkeep.conformance.declarations import needs

IDS = [
    "a",
    "A",
    "a b",
    " a",
    "a.b",
    "a/b",
    "a:b",
    "a|b",
    "a%b",
    "a_b",
    "axb",
    "a*b",
    "a'b",
    'a"b',
    "a\\b",
    "a\nb",
    "0",
    "00",
    "None",
    "\u00e9",
    "e\u0301",
    "\U0001f99c",
    "{a}",
    "$1",
    "?",
    "a" * 200,
    "3c0d9a36-6a51-4f0e-9d0c-6f6c9f6f7a10",
    "3c0d9a366a514f0e9d0c6f6c9f6f7a10",
    "3C0D9A36-6A51-4F0E-9D0C-6F6C9F6F7A10",
]
DOUBTFUL_IDS = {"empty": "", "NUL": "a\0b", "lone surrogate": "a\ud800b", "very long": "a" * 10_000}


@needs("runs", "forks", "pending", "answers")
def test_it_is_a_checkpointer(my_cube: Cube) -> None:
    assert isinstance(my_cube.target, base.Checkpointer)


def test_an_unknown_thread_gives_none(my_cube: Cube) -> None:
    my_cube.append("other", [user("hello")])
    assert my_cube.load("t") is None


@needs("pending")
def test_an_unknown_thread_has_no_pending_request(my_cube: Cube) -> None:
    assert my_cube.load_pending("t") is None
    assert my_cube.load_pending_request("t") is None


@needs("answers")
def test_an_unknown_thread_has_no_answers(my_cube: Cube) -> None:
    assert my_cube.load_hitl_answer("t", "q") is None
    assert my_cube.load_hitl_answer("t", "q", run_id="r") is None


@needs("forks")
def test_a_snapshot_of_an_unknown_thread_is_an_error(my_cube: Cube) -> None:
    with pytest.raises(ThreadNotFoundError):
        my_cube.snapshot("t", after_run_id="r")


@needs("forks")
def test_a_fork_of_an_unknown_thread_is_an_error_and_makes_none(my_cube: Cube) -> None:
    with pytest.raises(ThreadNotFoundError):
        my_cube.fork("t", "new", after_run_id="r")
    assert my_cube.load("new") is None


def test_a_load_makes_no_thread(my_cube: Cube) -> None:
    my_cube.load("t")
    assert my_cube.load("t") is None


def test_an_append_of_nothing_makes_no_thread(my_cube: Cube) -> None:
    my_cube.append("t", [])
    assert my_cube.load("t") is None


def test_an_append_of_nothing_leaves_a_thread_as_it_is(my_cube: Cube) -> None:
    my_cube.append("t", [user("hello")])
    my_cube.append("t", [])
    assert load_texts(my_cube) == ["hello"]


def test_a_new_thread_has_no_extra_and_no_parent(my_cube: Cube) -> None:
    my_cube.append("t", [user("hello")])
    found = load(my_cube)
    assert (found.extra, found.parent_thread_id) == ({}, None)


def test_any_text_may_be_a_thread_id_and_means_itself(my_cube: Cube) -> None:
    for each in IDS:
        my_cube.append(each, [user(f"in {each}")])
        my_cube.save_extra(each, {"mine": each})
    assert {each: load_texts(my_cube, each) for each in IDS} == {each: [f"in {each}"] for each in IDS}
    assert {each: load(my_cube, each).extra for each in IDS} == {each: {"mine": each} for each in IDS}


@pytest.mark.parametrize("odd", DOUBTFUL_IDS.values(), ids=DOUBTFUL_IDS.keys())
def test_a_thread_id_that_databases_dislike_is_kept_or_refused(my_cube: Cube, odd: str) -> None:
    for plain in ("a", "ab"):
        my_cube.append(plain, [user(plain)])
    try:
        my_cube.append(odd, [user("odd")])
    except (ValueError, TypeError):
        pass
    else:
        assert load_texts(my_cube, odd) == ["odd"]
    assert [load_texts(my_cube, "a"), load_texts(my_cube, "ab")] == [["a"], ["ab"]]
