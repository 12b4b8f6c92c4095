"""Tests of search without an index: which items, in which order, page by page. A query leaves no item out."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import PutOp

from threadkeep.conformance.clock import Clock
from threadkeep.conformance.declarations import needs
from threadkeep.conformance.store.contents import HOME, keys, put_all
from threadkeep.conformance.sync_async import Caller

MANY: dict[str, dict[str, Any]] = {f"key {n:02}": {"n": n, "even": n % 2 == 0} for n in range(25)}


def pages(store: Caller, size: int, **options: Any) -> list[Any]:
    """Return the items of all pages of a search."""
    found: list[Any] = []
    while page := store.search(HOME, limit=size, offset=len(found), **options):
        assert len(page) <= size
        found += page
        assert len(found) <= 2 * len(MANY), "the pages do not end"
    return found


def test_a_search_gives_ten_items_unless_told_otherwise(my_store: Caller) -> None:
    put_all(my_store, MANY)
    assert len(my_store.search(HOME)) == 10
    assert len(my_store.search(HOME, limit=7)) == 7
    assert len(my_store.search(HOME, limit=1000)) == 25


def test_a_search_that_finds_nothing_gives_an_empty_list(my_store: Caller) -> None:
    assert my_store.search(HOME) == []
    put_all(my_store, MANY)
    assert my_store.search(("elsewhere",)) == []
    assert my_store.search(HOME, offset=25) == []
    assert my_store.search(HOME, limit=0) == []


def test_an_item_found_without_a_query_has_no_score(my_store: Caller) -> None:
    put_all(my_store, MANY)
    assert {item.score for item in my_store.search(HOME)} == {None}


@pytest.mark.parametrize("size", [1, 7, 25, 26])
def test_pages_have_no_gaps_and_no_duplicates(my_store: Caller, size: int) -> None:
    put_all(my_store, MANY)
    assert sorted(keys(pages(my_store, size))) == sorted(MANY)


def test_pages_of_a_filter_count_only_what_it_finds(my_store: Caller) -> None:
    put_all(my_store, MANY)
    even = [key for key, value in MANY.items() if value["even"]]
    assert sorted(keys(pages(my_store, 4, filter={"even": True}))) == even


def test_pages_go_across_namespaces(my_store: Caller) -> None:
    my_store.batch([PutOp((*HOME, f"room {n % 3}"), key, {"n": n}) for n, key in enumerate(MANY)])
    assert sorted(keys(pages(my_store, 4))) == sorted(MANY)


@pytest.mark.parametrize("options", [{"limit": -1}, {"offset": -1}], ids=["limit", "offset"])
def test_a_negative_number_is_a_value_error(my_store: Caller, options: dict[str, int]) -> None:
    put_all(my_store, MANY)
    with pytest.raises(ValueError):  # noqa: PT011 - each store has its own words
        my_store.search(HOME, **options)


@needs("newest_first")
def test_what_was_updated_last_comes_first(my_store: Caller, clock: Clock) -> None:
    clock.wait_for_start_of_second()
    for key in ("a", "c", "b", "d"):
        my_store.put(HOME, key, {})
        clock.sleep(0.01)
    my_store.put(HOME, "c", {"again": True})
    assert keys(my_store.search(HOME)) == ["c", "d", "b", "a"]


@needs("newest_first")
def test_items_with_equal_times_are_ordered_by_namespace_and_key(my_store: Caller) -> None:
    rooms = [(*HOME, room) for room in ("b", "a", "a!", "c")] + [(*HOME, "a", "b")]
    my_store.batch([PutOp(room, key, {}) for key in ("y", "x", "z") for room in rooms])
    found = my_store.search(HOME, limit=100)
    by_key = sorted(found, key=lambda item: (item.namespace, item.key))
    assert found == sorted(by_key, key=lambda item: item.updated_at, reverse=True)


@needs("newest_first")
def test_pages_are_in_the_order_of_one_large_search(my_store: Caller) -> None:
    put_all(my_store, MANY)
    assert keys(pages(my_store, 4)) == keys(my_store.search(HOME, limit=100))


# --- a query, in a store without an index

TEXTS = {
    "none": "Bob sails at night.",
    "one": "The tea is cold.",
    "often": "Tea, tea and tea.",
    "both": "Ada likes green tea.",
    "never": "Nobody reads this.",
}
TEA = ["both", "often", "one"]
"""The order by the query "green tea" of the items that have one of its words."""


def put_texts(store: Caller, clock: Clock, namespace: tuple[str, ...] = HOME) -> None:
    """Put the texts one after the other."""
    clock.wait_for_start_of_second()
    for n, (key, text) in enumerate(TEXTS.items()):
        store.put(namespace, key, {"text": text, "n": n})
        clock.sleep(0.01)


@pytest.mark.parametrize("query", ["green tea", "coffee", "?!", " ", 'tea" OR', "n"], ids=str)
def test_a_query_leaves_nothing_out(my_store: Caller, query: str) -> None:
    put_all(my_store, {key: {"text": text, "n": n} for n, (key, text) in enumerate(TEXTS.items())})
    put_all(my_store, {"elsewhere": {"text": "tea"}}, ("elsewhere",))
    assert sorted(keys(my_store.search(HOME, query=query))) == sorted(TEXTS)
    assert sorted(keys(my_store.search(HOME, query=query, filter={"n": {"$gt": 1}}))) == ["both", "never", "often"]
    assert sorted(keys(my_store.search((), query=query))) == sorted([*TEXTS, "elsewhere"])
    assert my_store.search(("nowhere",), query=query) == []


def test_a_query_finds_items_that_were_put_without_index(my_store: Caller) -> None:
    my_store.put(HOME, "hidden", {"text": "tea"}, index=False)
    my_store.put(HOME, "other", {"text": "water"})
    assert sorted(keys(my_store.search(HOME, query="tea"))) == ["hidden", "other"]


@needs("ranks_by_words", "newest_first")
def test_items_with_words_of_the_query_come_first_and_the_newest_others_follow(my_store: Caller, clock: Clock) -> None:
    put_texts(my_store, clock)
    found = my_store.search(HOME, query="green tea")
    assert keys(found) == [*TEA, "never", "none"]
    scores = [item.score for item in found[:3]]
    assert all(isinstance(score, float) for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert [item.score for item in found[3:]] == [None, None]


@needs("ranks_by_words", "newest_first")
def test_items_without_index_follow_those_with_words(my_store: Caller, clock: Clock) -> None:
    my_store.put(HOME, "hidden", {"text": "tea"}, index=False)
    put_texts(my_store, clock)
    my_store.put(HOME, "one", {"text": "tea"}, index=False)
    found = [(item.key, item.score is None) for item in my_store.search(HOME, query="tea")]
    assert found[2:] == [("one", True), ("never", True), ("none", True), ("hidden", True)]
    assert found[:2] == [("often", False), ("both", False)]


@needs("ranks_by_words", "newest_first")
@pytest.mark.parametrize("query", ["coffee", "?!"])
def test_a_query_whose_words_no_item_has_changes_nothing(my_store: Caller, query: str, clock: Clock) -> None:
    put_texts(my_store, clock)
    assert my_store.search(HOME, query=query) == my_store.search(HOME)


@needs("ranks_by_words", "newest_first")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("filter", [None, {"even": True}], ids=["all", "even"])
def test_pages_of_a_query_go_through_one_list(my_store: Caller, size: int, filter: Any, clock: Clock) -> None:
    clock.wait_for_start_of_second()
    values = {key: value | {"text": "tea " * (value["n"] % 4) + "water"} for key, value in MANY.items()}
    put_all(my_store, values)
    found = pages(my_store, size, query="tea", filter=filter)
    wanted = [key for key, value in values.items() if filter is None or value["even"]]
    assert keys(found) == sorted(wanted, key=lambda key: (-(values[key]["n"] % 4), key))
    assert [item.score is None for item in found] == [values[item.key]["n"] % 4 == 0 for item in found]
    assert found == my_store.search(HOME, query="tea", filter=filter, limit=100)


@needs("ranks_by_words", "newest_first")
def test_a_word_that_was_replaced_does_not_rank(my_store: Caller, clock: Clock) -> None:
    put_texts(my_store, clock)
    my_store.put(HOME, "both", {"text": "Ada likes water."})
    my_store.delete(HOME, "often")
    assert keys(my_store.search(HOME, query="green tea")) == ["one", "both", "never", "none"]
