"""Tests of pending writes: which of two is kept, in which order they come back, and where they belong."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED

from threadkeep.conformance.saver.chains import config_for, put, put_chain, writes_of
from threadkeep.conformance.sync_async import Caller


def test_writes_come_back_with_their_task_and_channel(my_saver: Caller) -> None:
    put(my_saver, "1")
    my_saver.put_writes(config_for("t", "1"), [("a", 1), ("b", [2]), ("a", 3)], "task")
    assert writes_of(my_saver) == [("task", "a", 1), ("task", "b", [2]), ("task", "a", 3)]


def test_falsy_values_are_writes_too(my_saver: Caller) -> None:
    put(my_saver, "1")
    my_saver.put_writes(config_for("t", "1"), [("a", None), ("b", 0), ("c", ""), ("d", [])], "task")
    assert [write[2] for write in writes_of(my_saver)] == [None, 0, "", []]


def test_no_writes_are_no_error(my_saver: Caller) -> None:
    put(my_saver, "1")
    my_saver.put_writes(config_for("t", "1"), [], "task")
    assert writes_of(my_saver) == []


def test_a_write_that_is_sent_again_keeps_the_first_value(my_saver: Caller) -> None:
    put(my_saver, "1")
    for n in (1, 2):
        my_saver.put_writes(config_for("t", "1"), [("a", n), ("b", n)], "task")
    assert writes_of(my_saver) == [("task", "a", 1), ("task", "b", 1)]


def test_a_longer_list_adds_what_is_new(my_saver: Caller) -> None:
    put(my_saver, "1")
    my_saver.put_writes(config_for("t", "1"), [("a", 1)], "task")
    my_saver.put_writes(config_for("t", "1"), [("a", 2), ("b", 2)], "task")
    assert writes_of(my_saver) == [("task", "a", 1), ("task", "b", 2)]


@pytest.mark.parametrize("channel", [ERROR, SCHEDULED, INTERRUPT, RESUME])
def test_a_special_write_that_is_sent_again_keeps_the_last_value(my_saver: Caller, channel: str) -> None:
    put(my_saver, "1")
    for n in (1, 2):
        my_saver.put_writes(config_for("t", "1"), [(channel, n)], "task")
    assert writes_of(my_saver) == [("task", channel, 2)]


def test_special_writes_do_not_replace_others(my_saver: Caller) -> None:
    put(my_saver, "1")
    my_saver.put_writes(config_for("t", "1"), [("a", 1), ("b", 1)], "task")
    my_saver.put_writes(config_for("t", "1"), [(INTERRUPT, "wait"), (ERROR, "bad")], "task")
    my_saver.put_writes(config_for("t", "1"), [(RESUME, "go"), ("b", 9), ("c", 9)], "task")
    expected = [("a", 1), ("b", 1), ("c", 9), (ERROR, "bad"), (INTERRUPT, "wait"), (RESUME, "go")]
    assert sorted(write[1:] for write in writes_of(my_saver)) == sorted(expected)


def test_writes_of_two_tasks_are_separate(my_saver: Caller) -> None:
    put(my_saver, "1")
    for task in ("one", "two"):
        my_saver.put_writes(config_for("t", "1"), [("a", task)], task)
    assert sorted(writes_of(my_saver)) == [("one", "a", "one"), ("two", "a", "two")]


def test_writes_are_ordered_by_path_task_and_index(my_saver: Caller) -> None:
    put(my_saver, "1")
    for task, path in (("0", "~__pregel_pull, z"), ("9", "~__pregel_pull, m"), ("b", ""), ("a", "")):
        my_saver.put_writes(config_for("t", "1"), [("x", 0), ("x", 1)], task, path)
    assert [(write[0], write[2]) for write in writes_of(my_saver)] == [(task, n) for task in "ab90" for n in (0, 1)]


def test_writes_belong_to_one_checkpoint(my_saver: Caller) -> None:
    put_chain(my_saver, "1", "2")
    for thread, ns in (("t", "child:1"), ("other", "")):
        put(my_saver, "1", thread=thread, ns=ns)
    my_saver.put_writes(config_for("t", "1"), [("a", 1)], "task")
    assert writes_of(my_saver, "t", "1") == [("task", "a", 1)]
    assert (
        writes_of(my_saver, "t", "2")
        == writes_of(my_saver, "t", "1", "child:1")
        == writes_of(my_saver, "other", "1")
        == []
    )


def test_writes_may_come_before_their_checkpoint(my_saver: Caller) -> None:
    my_saver.put_writes(config_for("t", "1"), [("a", "early")], "task")
    assert my_saver.get_tuple(config_for()) is None
    put(my_saver, "1")
    assert writes_of(my_saver) == [("task", "a", "early")]


def test_many_writes_at_once_lose_nothing(my_saver: Caller) -> None:
    put(my_saver, "1")
    calls: list[tuple[Any, ...]] = [(config_for("t", "1"), [("a", n), ("b", n)], f"task {n:02}") for n in range(50)]
    my_saver.call_concurrently("put_writes", calls)
    assert writes_of(my_saver) == [(f"task {n:02}", channel, n) for n in range(50) for channel in "ab"]
