"""Tests of word search, for a store with an index of words: which items match, and which come first."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest

from threadkeep.conformance.clock import Clock
from threadkeep.conformance.store.contents import HOME, keys, put_all
from threadkeep.conformance.sync_async import Caller

NOTES: dict[str, Any] = {
    "both": {"text": "Ada likes green tea, and tea with milk."},
    "tea": {"text": "The tea is cold."},
    "green": {"text": "Her door is green."},
    "none": {"text": "Bob sails at night.", "n": 5},
}


def find(store: Caller, query: str, **options: Any) -> set[str]:
    """Return the keys of the items that a query finds."""
    return set(keys(store.search(HOME, query=query, limit=100, **options)))


def test_a_word_finds_the_items_that_have_it(my_text_store: Caller) -> None:
    put_all(my_text_store, NOTES)
    assert find(my_text_store, "tea") == {"both", "tea"}
    assert find(my_text_store, "sails") == {"none"}
    assert find(my_text_store, "coffee") == set()


def test_several_words_find_what_has_any_of_them_and_most_comes_first(my_text_store: Caller) -> None:
    put_all(my_text_store, NOTES)
    found = keys(my_text_store.search(HOME, query="green tea"))
    assert found[0] == "both"
    assert set(found) == {"both", "tea", "green"}


def test_scores_of_words_are_numbers_and_descend(my_text_store: Caller) -> None:
    put_all(my_text_store, NOTES)
    found = [item.score for item in my_text_store.search(HOME, query="green tea")]
    assert all(isinstance(score, float) for score in found)
    assert found == sorted(found, reverse=True)


def test_more_words_come_before_occurrences_and_these_before_newer_items(my_text_store: Caller, clock: Clock) -> None:
    clock.wait_for_start_of_second()
    texts = {"often": "tea tea tea", "twice": "tea, tea", "two": "green tea", "old": "tea", "new": "a long text of tea"}
    for key, text in texts.items():
        my_text_store.put(HOME, key, {"text": text})
        clock.sleep(0.01)
    assert keys(my_text_store.search(HOME, query="green tea")) == ["two", "often", "twice", "new", "old"]


def test_case_does_not_matter_in_a_query(my_text_store: Caller) -> None:
    put_all(my_text_store, NOTES)
    assert find(my_text_store, "TEA") == find(my_text_store, "Tea") == {"both", "tea"}


def test_words_are_whole(my_text_store: Caller) -> None:
    put_all(my_text_store, {"tea": {"text": "tea"}, "team": {"text": "team"}, "steam": {"text": "steam"}})
    assert find(my_text_store, "tea") == {"tea"}


def test_words_are_found_anywhere_in_a_value(my_text_store: Caller) -> None:
    put_all(
        my_text_store,
        {"list": {"a": [{"b": ["x", "deep words"]}]}, "dict": {"a": {"b": {"c": "deep"}}}, "no": {"a": 1}},
    )
    assert find(my_text_store, "deep") == {"list", "dict"}


def test_words_of_other_alphabets_are_found(my_text_store: Caller) -> None:
    put_all(
        my_text_store, {"latin": {"text": "caf\u00e9 ol\u00e9"}, "greek": {"text": "\u03bb\u03cc\u03b3\u03bf\u03c2"}}
    )
    put_all(my_text_store, {"cyrillic": {"text": "\u0440\u0435\u0447\u044c \u0438 \u0434\u0435\u043b\u043e"}})
    assert find(my_text_store, "caf\u00e9") == {"latin"}
    assert find(my_text_store, "\u03bb\u03cc\u03b3\u03bf\u03c2") == {"greek"}
    assert find(my_text_store, "\u0434\u0435\u043b\u043e") == {"cyrillic"}


@pytest.mark.parametrize(
    "query",
    ['tea"', "tea'", "tea AND", "(tea", "tea*", "-tea", "tea:milk OR", "^tea", "tea & | !", "NEAR(tea"],
    ids=str,
)
def test_a_query_has_no_syntax(my_text_store: Caller, query: str) -> None:
    put_all(my_text_store, NOTES)
    assert find(my_text_store, query) >= {"both", "tea"}


def test_a_query_without_words_finds_nothing(my_text_store: Caller) -> None:
    put_all(my_text_store, NOTES)
    assert find(my_text_store, "?!") == set()


def test_words_are_searched_within_filter_and_prefix(my_text_store: Caller) -> None:
    put_all(my_text_store, NOTES | {"other": {"text": "tea", "n": 5}})
    put_all(my_text_store, NOTES, ("elsewhere",))
    assert find(my_text_store, "tea", filter={"n": 5}) == {"other"}
    assert {item.namespace for item in my_text_store.search(HOME, query="tea")} == {HOME}
    assert keys(my_text_store.search(("nowhere",), query="tea")) == []


def test_pages_of_a_word_search_have_no_gaps_and_no_duplicates(my_text_store: Caller) -> None:
    put_all(my_text_store, {f"key {n:02}": {"text": "tea " * (1 + n % 3) + f"number{n}"} for n in range(25)})
    put_all(my_text_store, {f"other {n}": {"text": "water"} for n in range(5)})
    pages = [keys(my_text_store.search(HOME, query="tea", limit=4, offset=offset)) for offset in range(0, 32, 4)]
    assert sorted(key for page in pages for key in page) == [f"key {n:02}" for n in range(25)]


def test_words_that_were_replaced_or_deleted_are_not_found(my_text_store: Caller) -> None:
    put_all(my_text_store, NOTES)
    my_text_store.put(HOME, "tea", {"text": "The coffee is hot."})
    my_text_store.delete(HOME, "both")
    assert (find(my_text_store, "tea"), find(my_text_store, "coffee")) == (set(), {"tea"})


def test_an_item_that_is_not_indexed_is_not_found_by_its_words(my_text_store: Caller) -> None:
    my_text_store.put(HOME, "hidden", {"text": "tea"}, index=False)
    my_text_store.put(HOME, "seen", {"text": "tea"})
    assert find(my_text_store, "tea") == {"seen"}
    assert sorted(keys(my_text_store.search(HOME))) == ["hidden", "seen"]
