"""Tests of extra: entries are merged by name, a value is replaced as a whole."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest

from threadkeep.conformance.cube.calls import Cube
from threadkeep.conformance.cube.samples import load, load_texts, user
from threadkeep.conformance.json_values import EXACT, EXACT_OR_REFUSED, exact


def test_entries_are_merged_by_name(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"a": 1, "b": 1})
    my_cube.save_extra("t", {"b": 2, "c": 2})
    my_cube.save_extra("t", {"d": 3})
    assert load(my_cube).extra == {"a": 1, "b": 2, "c": 2, "d": 3}


def test_a_dict_is_replaced_as_a_whole(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"deep": {"a": 1, "b": {"c": 1}}, "list": [1, 2]})
    my_cube.save_extra("t", {"deep": {"b": {"d": 2}}, "list": [3]})
    assert load(my_cube).extra == {"deep": {"b": {"d": 2}}, "list": [3]}


def test_none_is_a_value(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"a": 1, "b": None})
    my_cube.save_extra("t", {"a": None})
    assert load(my_cube).extra == {"a": None, "b": None}


def test_an_entry_may_change_its_type(my_cube: Cube) -> None:
    for value in ({"a": 1}, [1], "text", 1, None, {"b": 2}):
        my_cube.save_extra("t", {"x": value})
        assert load(my_cube).extra == {"x": value}


def test_an_empty_extra_makes_the_thread(my_cube: Cube) -> None:
    my_cube.save_extra("t", {})
    found = load(my_cube)
    assert (found.messages, found.extra, found.parent_thread_id) == ([], {}, None)


def test_an_empty_extra_leaves_the_entries_that_are_there(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"a": 1})
    my_cube.save_extra("t", {})
    assert load(my_cube).extra == {"a": 1}


def test_extra_and_messages_leave_each_other_alone(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"a": 1})
    my_cube.append("t", [user("hello")])
    my_cube.save_extra("t", {"messages": []})
    my_cube.append("t", [user("again")])
    assert load_texts(my_cube) == ["hello", "again"]
    assert load(my_cube).extra == {"a": 1, "messages": []}


def test_the_extra_of_one_thread_is_not_that_of_another(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"a": 1})
    my_cube.save_extra("other", {"b": 2})
    assert [load(my_cube).extra, load(my_cube, "other").extra] == [{"a": 1}, {"b": 2}]


def test_many_entries_are_kept_while_one_changes_often(my_cube: Cube) -> None:
    my_cube.save_extra("t", {f"field {n}": {"n": n, "text": "x" * 100} for n in range(200)})
    for n in range(30):
        my_cube.save_extra("t", {"count": n})
    expected = {f"field {n}": {"n": n, "text": "x" * 100} for n in range(200)} | {"count": 29}
    assert load(my_cube).extra == expected


@pytest.mark.parametrize("given", EXACT.values(), ids=EXACT.keys())
def test_a_value_in_extra_comes_back_exactly(my_cube: Cube, given: Any) -> None:
    my_cube.save_extra("t", {"held": given})
    my_cube.save_extra("t", {"other": 1})
    assert exact(load(my_cube).extra) == exact({"held": given, "other": 1})


@pytest.mark.parametrize("given", EXACT_OR_REFUSED.values(), ids=EXACT_OR_REFUSED.keys())
def test_a_value_in_extra_that_json_dislikes_comes_back_exactly_or_is_refused(my_cube: Cube, given: Any) -> None:
    my_cube.save_extra("t", {"before": 1})
    try:
        my_cube.save_extra("t", {"held": given})
    except (ValueError, TypeError):
        assert load(my_cube).extra == {"before": 1}
    else:
        assert exact(load(my_cube).extra) == exact({"before": 1, "held": given})


def test_a_value_in_extra_that_is_not_json_is_refused_and_changes_nothing(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"a": 1})
    with pytest.raises((TypeError, ValueError)):
        my_cube.save_extra("t", {"a": 2, "held": [{"here": object()}]})
    assert load(my_cube).extra == {"a": 1}


def test_changing_extra_after_it_was_saved_changes_nothing(my_cube: Cube) -> None:
    given: dict[str, Any] = {"list": [1], "deep": {"x": [1]}}
    my_cube.save_extra("t", given)
    given["new"] = 1
    given["list"].append(2)
    given["deep"]["x"].append(2)
    assert load(my_cube).extra == {"list": [1], "deep": {"x": [1]}}


def test_changing_loaded_extra_changes_nothing(my_cube: Cube) -> None:
    my_cube.save_extra("t", {"list": [1], "deep": {"x": [1]}})
    got: Any = load(my_cube).extra
    got["new"] = 1
    got["list"].append(2)
    got["deep"]["x"].append(2)
    assert load(my_cube).extra == {"list": [1], "deep": {"x": [1]}}
