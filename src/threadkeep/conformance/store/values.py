"""Tests of values and keys: what must come back exactly, what may be refused, and what must be refused."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import threading
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from threadkeep.conformance import json_values
from threadkeep.conformance.json_values import EXACT, exact
from threadkeep.conformance.store.contents import HOME, keys, value
from threadkeep.conformance.sync_async import Caller

EXACT_OR_REFUSED: dict[str, Any] = {
    **json_values.EXACT_OR_REFUSED,
    "names that are numbers": {1: "a"},
    "name that is none": {None: "a"},
}
REFUSED: dict[str, Any] = {
    "datetime": datetime(2024, 1, 1, tzinfo=UTC),
    "bytes": b"abc",
    "set": {1, 2},
    "object": object(),
    "function": len,
    "decimal": Decimal("1.5"),
    "complex": 1j,
}


@pytest.mark.parametrize("given", EXACT.values(), ids=EXACT.keys())
def test_a_value_comes_back_exactly(my_store: Caller, given: Any) -> None:
    my_store.put(HOME, "k", {"held": given})
    assert exact(value(my_store, "k")) == exact({"held": given})
    (found,) = my_store.search(HOME)
    assert exact(found.value) == exact({"held": given})


@pytest.mark.parametrize("given", EXACT_OR_REFUSED.values(), ids=EXACT_OR_REFUSED.keys())
def test_a_value_that_json_dislikes_comes_back_exactly_or_is_refused(my_store: Caller, given: Any) -> None:
    try:
        my_store.put(HOME, "k", {"held": given})
    except (ValueError, TypeError):
        assert my_store.get(HOME, "k") is None
    else:
        assert exact(value(my_store, "k")) == exact({"held": given})


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_is_not_json_is_refused(my_store: Caller, given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        my_store.put(HOME, "k", {"list": [{"here": given}]})
    assert my_store.get(HOME, "k") is None


def test_an_error_names_the_path_of_the_refused_value(my_store: Caller) -> None:
    with pytest.raises((TypeError, ValueError), match="where_it_is"):
        my_store.put(HOME, "k", {"list": [{"where_it_is": object()}]})


@pytest.mark.parametrize("given", ["text", ["list"], 5, True, b"bytes"], ids=lambda given: type(given).__name__)
def test_a_value_that_is_no_mapping_is_refused(my_store: Caller, given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        my_store.put(HOME, "k", given)
    assert my_store.search(HOME) == []


def test_any_mapping_may_be_a_value(my_store: Caller) -> None:
    my_store.put(HOME, "k", MappingProxyType({"a": {"b": 1}}))
    assert value(my_store, "k") == {"a": {"b": 1}}


def test_a_tuple_comes_back_as_the_same_elements(my_store: Caller) -> None:
    my_store.put(HOME, "k", {"pair": (1, 2)})
    assert list(value(my_store, "k")["pair"]) == [1, 2]


# --- keys

KEYS = [
    "a", "A", "a b", " a", "a.b", "a/b", "a:b", "a|b", "a%b", "a_b", "axb", "a*b", "a'b", 'a"b', "a\\b",
    "a\nb", "$", "0",
    "00", "None", "\u00e9", "e\u0301", "\U0001f99c", "6f1b2c", "a" * 255,
]  # fmt: skip
DOUBTFUL_KEYS = {"empty": "", "NUL": "a\0b", "lone surrogate": "a\ud800b", "very long": "a" * 10_000}


def test_any_text_may_be_a_key_and_means_itself(my_store: Caller) -> None:
    for key in KEYS:
        my_store.put(HOME, key, {"mine": key})
    assert {key: value(my_store, key) for key in KEYS} == {key: {"mine": key} for key in KEYS}
    assert sorted(keys(my_store.search(HOME, limit=100))) == sorted(KEYS)


@pytest.mark.parametrize("key", DOUBTFUL_KEYS.values(), ids=DOUBTFUL_KEYS.keys())
def test_a_key_that_databases_dislike_is_kept_or_refused(my_store: Caller, key: str) -> None:
    my_store.put(HOME, "ab", {"mine": "ab"})
    my_store.put(HOME, "a", {"mine": "a"})
    try:
        my_store.put(HOME, key, {"mine": "odd"})
    except (ValueError, TypeError):
        pass
    else:
        assert my_store.get(HOME, key).key == key
        assert value(my_store, key) == {"mine": "odd"}
    assert [value(my_store, "ab"), value(my_store, "a")] == [{"mine": "ab"}, {"mine": "a"}]


def test_a_key_that_is_a_number_is_its_text_or_is_refused(my_store: Caller) -> None:
    try:
        my_store.put(HOME, 5, {"mine": 5})
    except (ValueError, TypeError):
        assert my_store.search(HOME) == []
    else:
        assert keys(my_store.search(HOME)) == ["5"]
        assert value(my_store, "5") == {"mine": 5}


def test_a_value_may_change_while_it_is_put(my_store: Caller) -> None:
    value = {f"key {n}": n for n in range(3_000)}
    done = threading.Event()

    def change() -> None:
        n = 0
        while not done.is_set():
            value[f"new {n % 50}"] = n
            value.pop(f"new {(n + 25) % 50}", None)
            n += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(15):
            my_store.put(HOME, "k", {"held": value, "also": [value]})
            assert my_store.get(HOME, "k").value["held"]["key 2999"] == 2999
    finally:
        done.set()
        thread.join()
