"""Tests of entries: set, get, replace and clear them; keys, namespaces and values."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.sync_async import Caller

ONE, TWO = ("a", "one"), ("a", "two")


def fill(cache: Caller, *namespaces: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    """Store an entry in each namespace. Return their keys."""
    keys = [(namespace, "k") for namespace in namespaces]
    cache.set({key: (str(key), None) for key in keys})
    return keys


def test_a_value_comes_back(my_cache: Caller) -> None:
    my_cache.set({(ONE, "k"): ({"n": 1}, None)})
    assert my_cache.get([(ONE, "k")]) == {(ONE, "k"): {"n": 1}}


def test_what_is_not_there_is_left_out(my_cache: Caller) -> None:
    my_cache.set({(ONE, "k"): (1, None)})
    assert my_cache.get([(ONE, "k"), (ONE, "other"), (TWO, "k")]) == {(ONE, "k"): 1}


def test_nothing_is_found_for_no_keys(my_cache: Caller) -> None:
    assert my_cache.get([]) == {}


def test_nothing_can_be_set(my_cache: Caller) -> None:
    my_cache.set({})
    assert my_cache.get([(ONE, "k")]) == {}


def test_a_second_set_replaces_the_value(my_cache: Caller) -> None:
    my_cache.set({(ONE, "k"): ("old", 60)})
    my_cache.set({(ONE, "k"): ("new", None)})
    assert my_cache.get([(ONE, "k")]) == {(ONE, "k"): "new"}


def test_many_entries_are_set_and_read_at_once(my_cache: Caller) -> None:
    entries = {((str(n % 7), "many"), f"k{n}"): ([n], None if n % 2 else 60) for n in range(300)}
    my_cache.set(entries)
    assert my_cache.get(list(entries)) == {key: value for key, (value, _) in entries.items()}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        b"bytes",
        [["messages", [AIMessage("hello", id="m1")]], ["n", 1]],
        {"at": datetime(2026, 1, 2, tzinfo=UTC), "tags": {"x"}},
        "x" * 1_500_000,
    ],
    ids=["none", "text", "bytes", "writes", "objects", "large"],
)
def test_a_value_of_any_serializable_type_comes_back(my_cache: Caller, value: Any) -> None:
    my_cache.set({(ONE, "k"): (value, None)})
    assert my_cache.get([(ONE, "k")]) == {(ONE, "k"): value}


def test_changing_a_value_changes_no_entry(my_cache: Caller) -> None:
    value = [1]
    my_cache.set({(ONE, "k"): (value, None)})
    value.append(2)
    my_cache.get([(ONE, "k")])[(ONE, "k")].append(3)
    assert my_cache.get([(ONE, "k")]) == {(ONE, "k"): [1]}


def test_clear_of_a_namespace_leaves_the_others(my_cache: Caller) -> None:
    one, two, other = fill(my_cache, ONE, TWO, ("b",))
    my_cache.clear([ONE, ("b",), ("unknown",)])
    assert my_cache.get([one, two, other]) == {two: str(two)}


def test_clear_of_no_namespaces_clears_nothing(my_cache: Caller) -> None:
    (key,) = fill(my_cache, ONE)
    my_cache.clear([])
    assert my_cache.get([key]) == {key: str(key)}


def test_clear_without_namespaces_clears_everything(my_cache: Caller) -> None:
    keys = fill(my_cache, ONE, TWO, ("b",))
    my_cache.clear()
    assert my_cache.get(keys) == {}
    my_cache.clear()


def test_clear_removes_every_entry_of_a_large_namespace(my_cache: Caller) -> None:
    keys = [(ONE, f"k{n}") for n in range(350)]
    my_cache.set({key: (1, None if key[1][-1] == "1" else 60) for key in keys})
    my_cache.clear([ONE])
    assert my_cache.get(keys) == {}


@needs("exact_namespaces")
def test_clear_of_a_namespace_leaves_those_below_it(my_cache: Caller) -> None:
    above, below, empty = fill(my_cache, ("a",), ("a", "b"), ())
    my_cache.clear([("a",)])
    assert my_cache.get([above, below, empty]) == {below: str(below), empty: str(empty)}
    my_cache.clear([()])
    assert my_cache.get([below, empty]) == {below: str(below)}


@needs("exact_namespaces")
def test_namespaces_and_keys_of_any_text_are_distinct(my_cache: Caller) -> None:
    keys = [
        (("a", "b"), "k"), (("a,b",), "k"), (("a:b",), "k"), (("a.b",), "k"), (("a", "b", ""), "k"), (("a",), "b:k"),
        ((), "k"), (("",), "k"), (("a\0", "b"), "k"), (("*",), "k"), (("é",), "\0"), (("a", "b"), "K"),
    ]  # fmt: skip
    my_cache.set({key: (str(key), None) for key in keys})
    assert my_cache.get(keys) == {key: str(key) for key in keys}


def test_concurrent_sets_lose_nothing(my_cache: Caller) -> None:
    calls = [({((f"n{n % 3}",), f"k{n}"): (n, None)},) for n in range(60)]
    my_cache.call_concurrently("set", calls)
    assert my_cache.get([key for (entry,) in calls for key in entry]) == {
        key: value for (entry,) in calls for key, (value, _) in entry.items()
    }
