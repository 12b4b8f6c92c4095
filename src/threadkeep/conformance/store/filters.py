"""Tests of search filters: which values match an operator, what a key means, what is refused."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.store.contents import HOME, put_all
from threadkeep.conformance.sync_async import Caller

MISSING = object()
BIG = 2**53


def put_values(store: Caller, **values: Any) -> None:
    """Put an item {"x": value} for each name. MISSING omits `x`."""
    put_all(store, {name: {} if value is MISSING else {"x": value} for name, value in values.items()})


def find(store: Caller, filter: dict[str, Any]) -> set[str]:
    """Return the keys of the items that match a filter."""
    return {item.key for item in store.search(HOME, filter=filter, limit=1000)}


def find_by_x(store: Caller, *conditions: Any) -> list[set[str]]:
    """Return, for each of these conditions on `x`, the keys that match."""
    return [find(store, {"x": condition}) for condition in conditions]


def test_no_condition_finds_everything(my_store: Caller) -> None:
    put_values(my_store, a=1, b=MISSING)
    assert find(my_store, {}) == {"a", "b"}


def test_a_value_finds_its_equals(my_store: Caller) -> None:
    put_values(my_store, text="red", other="blue", upper="RED", long="reddish", number=5, float=0.5, empty="")
    assert find_by_x(my_store, "red", 5, 0.5, "") == [{"text"}, {"number"}, {"float"}, {"empty"}]
    assert find_by_x(my_store, {"$eq": "red"}, {"$eq": 5}, {"$eq": 0.5}) == [{"text"}, {"number"}, {"float"}]


def test_any_text_may_be_a_value_and_means_itself(my_store: Caller) -> None:
    texts = {
        "percent": "a%b",
        "underscore": "a_b",
        "other": "axb",
        "quotes": "a'b\"c",
        "sql": "'; DROP TABLE store; --",
    }
    texts |= {"bird": "\U0001f99c", "composed": "\u00e9", "decomposed": "e\u0301", "backslash": "a\\b", "star": "a*b"}
    put_values(my_store, **texts)
    assert {name: find(my_store, {"x": text}) for name, text in texts.items()} == {name: {name} for name in texts}


def test_ne_finds_all_others(my_store: Caller) -> None:
    put_values(my_store, red="red", blue="blue", number=5)
    assert find_by_x(my_store, {"$ne": "red"}, {"$ne": 5}) == [{"blue", "number"}, {"red", "blue"}]


def test_all_conditions_must_hold(my_store: Caller) -> None:
    put_all(my_store, {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 2, "y": 1}})
    assert find(my_store, {"x": 1, "y": 1}) == {"a"}
    assert find(my_store, {"x": 1, "y": {"$gt": 1}}) == {"b"}
    assert find(my_store, {"x": {"$gte": 1, "$lt": 2}}) == {"a", "b"}


# --- numbers


def test_numbers_compare_as_numbers(my_store: Caller) -> None:
    put_values(my_store, minus=-1, nine=9, nine_and_a_half=9.5, ten=10, hundred=100)
    assert find_by_x(my_store, {"$gt": 9}, {"$gte": 10}) == [{"nine_and_a_half", "ten", "hundred"}, {"ten", "hundred"}]
    assert find_by_x(my_store, {"$lt": 9.5}, {"$lte": 9.5}) == [{"minus", "nine"}, {"minus", "nine", "nine_and_a_half"}]
    assert find_by_x(my_store, {"$gt": -1.5, "$lt": 9}) == [{"minus"}]


def test_integers_beyond_float_precision_are_distinct(my_store: Caller) -> None:
    put_values(my_store, at=BIG, above=BIG + 1, below=-BIG - 1, huge=10**30 + 1)
    assert find_by_x(my_store, BIG, BIG + 1, -BIG - 1, 10**30) == [{"at"}, {"above"}, {"below"}, set()]
    assert find_by_x(my_store, {"$gt": BIG}, {"$lt": -BIG}) == [{"above", "huge"}, {"below"}]
    assert find_by_x(my_store, {"$ne": BIG + 1}, {"$gte": 10**30 + 1}) == [{"at", "below", "huge"}, {"huge"}]


def test_an_integer_equals_the_float_of_its_size(my_store: Caller) -> None:
    put_values(my_store, int=1, float=1.0, other=1.5)
    assert find_by_x(my_store, 1, 1.0, {"$ne": 1}, {"$lte": 1.0}) == [
        {"int", "float"},
        {"int", "float"},
        {"other"},
        {"int", "float"},
    ]


def test_a_bool_is_no_number(my_store: Caller) -> None:
    put_values(my_store, one=1, true=True, zero=0, false=False)
    assert find_by_x(my_store, 1, True, 0, False) == [{"one"}, {"true"}, {"zero"}, {"false"}]
    assert find_by_x(my_store, {"$ne": True}, {"$gte": 0}) == [{"one", "zero", "false"}, {"one", "zero"}]


def test_a_text_of_digits_is_no_number(my_store: Caller) -> None:
    put_values(my_store, number=10, text="10")
    assert find_by_x(my_store, 10, "10", {"$gt": 9}, {"$ne": 10}) == [{"number"}, {"text"}, {"number"}, {"text"}]


def test_texts_compare_as_texts(my_store: Caller) -> None:
    put_values(my_store, old="2024-09-30", new="2024-10-01", number=3000)
    assert find_by_x(my_store, {"$gt": "2024-09-30"}, {"$lte": "2024-09-30"}) == [{"new"}, {"old"}]


def test_a_range_finds_no_other_type_and_does_not_fail_on_it(my_store: Caller) -> None:
    put_values(my_store, text="red", list=[5], dict={"n": 5}, null=None, missing=MISSING, true=True, number=5)
    assert find_by_x(my_store, {"$gt": 1}, {"$gte": 1}, {"$lt": 9}, {"$lte": 9}) == [{"number"}] * 4


# --- missing values


def test_what_is_missing_equals_none(my_store: Caller) -> None:
    put_values(my_store, null=None, missing=MISSING, zero=0, empty="", false=False)
    assert find_by_x(my_store, None, {"$eq": None}) == [{"null", "missing"}] * 2
    assert find_by_x(my_store, {"$ne": None}) == [{"zero", "empty", "false"}]


def test_what_is_missing_is_not_equal_to_a_value(my_store: Caller) -> None:
    put_values(my_store, null=None, missing=MISSING, one=1)
    assert find_by_x(my_store, {"$ne": 1}, {"$ne": "one"}) == [{"null", "missing"}, {"null", "missing", "one"}]


# --- nested values and keys


def test_a_dict_finds_what_has_at_least_its_entries(my_store: Caller) -> None:
    put_values(my_store, more={"a": 1, "b": {"c": 2, "d": 3}}, less={"a": 1}, other={"a": 2, "b": {"c": 2}}, number=1)
    assert find_by_x(my_store, {"a": 1}, {"b": {"c": 2}}, {"a": 1, "b": {"d": 3}}) == [
        {"more", "less"},
        {"more", "other"},
        {"more"},
    ]
    assert find_by_x(my_store, {"b": {"c": 3}}) == [set()]


def test_an_operator_works_within_a_dict(my_store: Caller) -> None:
    put_values(my_store, low={"n": {"m": 9}}, high={"n": {"m": 10}}, none={"n": 10}, missing=MISSING)
    assert find_by_x(my_store, {"n": {"m": {"$gt": 9}}}) == [{"high"}]


def test_a_list_finds_its_equals_in_its_order(my_store: Caller) -> None:
    put_values(my_store, list=[1, "a"], other=["a", 1], longer=[1, "a", 2], shorter=[1], element=1, empty=[])
    assert find_by_x(my_store, [1, "a"], [1], []) == [{"list"}, {"shorter"}, {"empty"}]


ODD_KEYS = [
    "a b",
    "$.a",
    "a$b",
    "a'b",
    'a"b',
    "a%b",
    "a[0]",
    "a\\b",
    "\u00e9",
    "e\u0301",
    "\U0001f99c",
    "A",
    "a-b",
    "a:b",
    "a/b",
]


def test_a_key_is_literal(my_store: Caller) -> None:
    put_all(my_store, {key: {key: "here", "a": "plain"} for key in ODD_KEYS})
    assert {key: find(my_store, {key: "here"}) for key in ODD_KEYS} == {key: {key} for key in ODD_KEYS}


@needs("dotted_paths")
def test_a_dotted_key_is_a_path(my_store: Caller) -> None:
    put_all(my_store, {"deep": {"a": {"b": {"c": 5}}}, "other": {"a": {"b": {"c": 4}}}, "flat": {"a": 5}})
    assert find(my_store, {"a.b.c": 5}) == {"deep"}
    assert find(my_store, {"a.b.c": {"$gte": 4}}) == {"deep", "other"}
    assert find(my_store, {"a.b.c": {"$ne": 5}}) == {"other", "flat"}


@needs("dotted_paths")
def test_a_literal_key_wins_over_a_path(my_store: Caller) -> None:
    put_all(my_store, {"literal": {"a.b": 1}, "path": {"a": {"b": 1}}, "both": {"a.b": 2, "a": {"b": 1}}})
    assert find(my_store, {"a.b": 1}) == {"literal"}
    assert find(my_store, {"a.b": 2}) == {"both"}
    assert find(my_store, {"a.b": {"$ne": 1}}) == {"path", "both"}
    assert find(my_store, {"a.b": None}) == {"path"}
    assert find(my_store, {"$or": [{"a.b": 1}, {"a": {"b": 1}}]}) == {"literal", "path", "both"}


@needs("dotted_paths")
def test_a_nested_literal_key_wins_over_a_path(my_store: Caller) -> None:
    put_all(my_store, {"literal": {"x": {"a.b": 1}}, "path": {"x": {"a": {"b": 1}}}, "other": {"a": {"b": 1}}})
    assert find(my_store, {"x": {"a.b": 1}}) == {"literal"}
    assert find(my_store, {"a.b": 1}) == {"other"}


# --- more operators


@needs("more_operators")
def test_in_finds_one_of_several(my_store: Caller) -> None:
    put_values(my_store, one=1, float=2.0, true=True, text="1", null=None, missing=MISSING)
    assert find_by_x(my_store, {"$in": [1, 2]}, {"$in": ["1", True]}) == [{"one", "float"}, {"text", "true"}]
    assert find_by_x(my_store, {"$in": []}, {"$in": [None]}) == [set(), {"null", "missing"}]


@needs("more_operators")
def test_nin_finds_what_in_does_not(my_store: Caller) -> None:
    put_values(my_store, one=1, true=True, text="1", null=None, missing=MISSING)
    assert find_by_x(my_store, {"$nin": [1, "1"]}, {"$nin": [None, 1, "1"]}) == [{"true", "null", "missing"}, {"true"}]


@needs("more_operators")
def test_exists_tells_a_none_from_what_is_missing(my_store: Caller) -> None:
    put_values(my_store, one=1, null=None, missing=MISSING)
    assert find_by_x(my_store, {"$exists": True}, {"$exists": False}) == [{"one", "null"}, {"missing"}]


@needs("more_operators")
def test_contains_finds_lists_with_an_element_and_texts_with_a_part(my_store: Caller) -> None:
    put_values(my_store, list=[1, "red", {"n": 1}], true=[True], text="a red one", number=1, empty=[], missing=MISSING)
    assert find_by_x(my_store, {"$contains": 1}, {"$contains": 7}, {"$contains": True}) == [{"list"}, set(), {"true"}]
    assert find_by_x(my_store, {"$contains": "red"}, {"$contains": "one"}) == [{"list", "text"}, {"text"}]


@needs("more_operators")
def test_and_or_and_not_combine_filters(my_store: Caller) -> None:
    put_all(my_store, {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 2, "y": 1}, "d": {}})
    assert find(my_store, {"$and": [{"x": 1}, {"y": {"$lt": 2}}]}) == {"a"}
    assert find(my_store, {"$or": [{"x": 2}, {"y": 2}]}) == {"b", "c"}
    assert find(my_store, {"$not": {"x": 1}}) == {"c", "d"}
    assert find(my_store, {"x": 1, "$or": [{"y": 2}, {"y": 3}]}) == {"b"}


@needs("more_operators")
def test_combined_filters_may_be_combined_again(my_store: Caller) -> None:
    put_all(my_store, {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 2, "y": 1}, "d": {}})
    assert find(my_store, {"$and": [{"$or": [{"x": 1}, {"x": 2}]}, {"$not": {"y": 2}}]}) == {"a", "c"}
    assert find(my_store, {"$not": {"$or": [{"x": 1}, {"x": {"$gt": 1}}]}}) == {"d"}


@needs("more_operators")
def test_not_inverts_a_condition(my_store: Caller) -> None:
    put_values(my_store, low=1, high=9, text="red", missing=MISSING)
    assert find_by_x(my_store, {"$not": {"$gt": 5}}) == [{"low", "text", "missing"}]


# --- what is refused


def test_an_unknown_operator_is_a_value_error(my_store: Caller) -> None:
    put_values(my_store, one=1)
    with pytest.raises(ValueError):  # noqa: PT011 - each store has its own words
        my_store.search(HOME, filter={"x": {"$near": 1}})


@needs("more_operators")
def test_an_unknown_combination_is_a_value_error(my_store: Caller) -> None:
    put_values(my_store, one=1)
    with pytest.raises(ValueError):  # noqa: PT011 - each store has its own words
        my_store.search(HOME, filter={"$nor": [{"x": 1}]})
