"""Tests of put, get and delete: values, times, and that stored items cannot be changed from outside."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.store.base import Item, PutOp, SearchItem

from threadkeep.conformance.clock import Clock
from threadkeep.conformance.store.contents import HOME, keys, put_all, value
from threadkeep.conformance.sync_async import Caller

ADA, BOB = ("users", "ada"), ("users", "bob")


def test_an_item_comes_back_as_it_was_put(my_store: Caller) -> None:
    my_store.put(ADA, "mood", {"text": "good", "days": [1, 2]})
    item = my_store.get(ADA, "mood")
    assert isinstance(item, Item)
    assert isinstance(item.namespace, tuple)
    assert (item.namespace, item.key, item.value) == (ADA, "mood", {"text": "good", "days": [1, 2]})


def test_a_key_that_is_not_there_gives_none(my_store: Caller) -> None:
    my_store.put(ADA, "mood", {})
    assert my_store.get(ADA, "other") is None
    assert my_store.get(BOB, "mood") is None
    assert my_store.get(("users",), "mood") is None


def test_a_put_replaces_the_whole_value(my_store: Caller) -> None:
    my_store.put(HOME, "k", {"a": 1, "b": 2})
    my_store.put(HOME, "k", {"b": 3})
    assert value(my_store, "k") == {"b": 3}
    assert keys(my_store.search(HOME)) == ["k"]


def test_a_delete_removes_the_item_and_no_other(my_store: Caller) -> None:
    put_all(my_store, {"k": {"n": 1}, "kk": {"n": 2}})
    my_store.put(ADA, "k", {"n": 3})
    my_store.delete(HOME, "k")
    assert my_store.get(HOME, "k") is None
    assert keys(my_store.search(HOME)) == ["kk"]
    assert value(my_store, "k", ADA) == {"n": 3}


def test_a_delete_of_what_is_not_there_is_no_error(my_store: Caller) -> None:
    my_store.delete(HOME, "k")
    assert my_store.search(HOME) == []


def test_a_put_of_none_deletes(my_store: Caller) -> None:
    put_all(my_store, {"a": {}, "b": {}, "c": {}})
    my_store.put(HOME, "a", None)
    my_store.batch([PutOp(HOME, "b", None)])
    assert keys(my_store.search(HOME)) == ["c"]


def test_an_empty_value_is_an_item(my_store: Caller) -> None:
    my_store.put(HOME, "k", {})
    assert value(my_store, "k") == {}


def test_the_same_key_in_another_namespace_is_another_item(my_store: Caller) -> None:
    for namespace in (ADA, BOB, ("users",), ("users", "ada", "deep")):
        my_store.put(namespace, "k", {"in": list(namespace)})
    assert value(my_store, "k", ("users",)) == {"in": ["users"]}
    assert value(my_store, "k", ADA) == {"in": ["users", "ada"]}


# --- times


def test_times_know_their_zone(my_store: Caller) -> None:
    my_store.put(HOME, "k", {})
    for item in (my_store.get(HOME, "k"), *my_store.search(HOME)):
        assert item.created_at.utcoffset() is not None
        assert item.updated_at.utcoffset() is not None


def test_times_are_those_of_the_put(my_store: Caller) -> None:
    my_store.put(HOME, "k", {})
    item = my_store.get(HOME, "k")
    for time_of_put in (item.created_at, item.updated_at):
        assert abs(_in_utc(time_of_put) - datetime.now(UTC)) < timedelta(minutes=1)


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def test_an_overwrite_keeps_created_at(my_store: Caller, clock: Clock) -> None:
    put_all(my_store, {"alone": {"n": 1}, "in a batch": {"n": 1}})
    first = {item.key: item.created_at for item in my_store.search(HOME)}
    clock.sleep(1.1)  # some stores store whole seconds
    my_store.put(HOME, "alone", {"n": 2})
    put_all(my_store, {"in a batch": {"n": 2}, "new": {}})
    assert {key: my_store.get(HOME, key).created_at for key in first} == first


def test_an_overwrite_moves_updated_at(my_store: Caller, clock: Clock) -> None:
    clock.wait_for_start_of_second()
    my_store.put(HOME, "k", {"n": 1})
    first = my_store.get(HOME, "k")
    clock.sleep(0.01)
    my_store.put(HOME, "k", {"n": 2})
    assert my_store.get(HOME, "k").updated_at > first.updated_at


def test_a_read_leaves_the_times_alone(my_store: Caller, clock: Clock) -> None:
    my_store.put(HOME, "k", {})
    first = my_store.get(HOME, "k")
    clock.sleep(0.01)
    my_store.search(HOME)
    again = my_store.get(HOME, "k")
    assert (again.created_at, again.updated_at) == (first.created_at, first.updated_at)


def test_an_item_that_was_deleted_and_put_again_is_new(my_store: Caller, clock: Clock) -> None:
    clock.wait_for_start_of_second()
    my_store.put(HOME, "k", {})
    first = my_store.get(HOME, "k")
    clock.sleep(0.01)
    my_store.delete(HOME, "k")
    my_store.put(HOME, "k", {})
    assert my_store.get(HOME, "k").created_at > first.created_at


# --- values are copied on the way in and out


def test_dict_of_an_item_is_json(my_store: Caller) -> None:
    my_store.put(ADA, "k", {"a": [1, None]})
    item = my_store.get(ADA, "k")
    assert json.loads(json.dumps(item.dict())) == {
        "namespace": ["users", "ada"],
        "key": "k",
        "value": {"a": [1, None]},
        "created_at": item.created_at.isoformat(),
        "updated_at": item.updated_at.isoformat(),
    }


def test_search_gives_search_items_that_equal_those_of_get(my_store: Caller) -> None:
    my_store.put(ADA, "k", {"a": 1})
    (found,) = my_store.search(("users",))
    assert isinstance(found, SearchItem)
    assert found == my_store.get(ADA, "k")
    assert found.dict() == my_store.get(ADA, "k").dict() | {"score": None}


def test_changing_a_value_after_its_put_changes_nothing(my_store: Caller) -> None:
    given: dict[str, Any] = {"list": [1], "deep": {"x": [1]}}
    my_store.put(HOME, "k", given)
    given["new"] = 1
    given["list"].append(2)
    given["deep"]["x"].append(2)
    assert value(my_store, "k") == {"list": [1], "deep": {"x": [1]}}


def test_changing_a_value_from_get_changes_nothing(my_store: Caller) -> None:
    my_store.put(HOME, "k", {"list": [1]})
    got = value(my_store, "k")
    got["new"] = 1
    got["list"].append(2)
    assert value(my_store, "k") == {"list": [1]}


def test_changing_a_value_from_search_changes_nothing(my_store: Caller) -> None:
    my_store.put(HOME, "k", {"list": [1]})
    (found,) = my_store.search(HOME)
    found.value["new"] = 1
    found.value["list"].append(2)
    assert value(my_store, "k") == {"list": [1]}
