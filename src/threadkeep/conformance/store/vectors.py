"""Tests of vector search: scores, order, pages, which fields are embedded, and that old vectors leave no trace."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langgraph.store.base import PutOp, SearchOp

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.store.contents import HOME, keys, put_all
from threadkeep.conformance.store.embedder import DIMS, UNEMBEDDABLE, Embedder, cosine, embed
from threadkeep.conformance.sync_async import Caller

FRUIT = {
    "apple": {"text": "apple"},
    "mixed": {"text": "apple pear"},
    "pear": {"text": "pear"},
    "rain": {"text": "rain"},
}
PRECISION = 1e-3
"""Scores may come from half-precision vectors."""

LADDER = {f"step {n:02}": {"text": "apple " * (30 - n) + "pear " * n, "n": n} for n in range(25)}
"""Twenty-five items, each a little farther from "apple" than the one before."""


def scores(store: Caller, query: str, **options: Any) -> dict[str, float]:
    """Return the scores of a query by key. Each item may occur only once."""
    found = store.search(HOME, query=query, limit=100, **options)
    assert len(found) == len(set(keys(found)))
    assert all(isinstance(item.score, float) for item in found)
    return {item.key: item.score for item in found}


def near(store: Caller, query: str) -> set[str]:
    """Return the keys of items that point in the direction of a query."""
    return {key for key, score in scores(store, query).items() if score > 1 - PRECISION}


def put_indexed(store: Caller, key: str, value: Mapping[str, Any], *fields: str) -> None:
    """Put an item and embed these of its fields."""
    store.put(HOME, key, value, index=list(fields))


# --- scores, order and pages


def test_the_nearest_comes_first(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    assert keys(my_embedding_store.search(HOME, query="apple"))[:2] == ["apple", "mixed"]
    assert keys(my_embedding_store.search(HOME, query="pear"))[:2] == ["pear", "mixed"]


def test_the_score_is_the_cosine(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    expected = {key: cosine("apple pear pear", value["text"]) for key, value in FRUIT.items()}
    assert scores(my_embedding_store, "apple pear pear") == pytest.approx(expected, abs=PRECISION)


def test_scores_descend(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, LADDER)
    found = list(scores(my_embedding_store, "apple").values())
    assert len(found) == 25
    assert found == sorted(found, reverse=True)


def test_a_query_gives_at_most_limit_items(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, LADDER)
    assert keys(my_embedding_store.search(HOME, query="apple")) == list(LADDER)[:10]
    assert keys(my_embedding_store.search(HOME, query="apple", limit=3)) == list(LADDER)[:3]


def test_pages_of_a_query_have_no_gaps_and_no_duplicates(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, LADDER)
    pages = [my_embedding_store.search(HOME, query="apple", limit=4, offset=offset) for offset in range(0, 32, 4)]
    assert [key for page in pages for key in keys(page)] == list(LADDER)


def test_items_with_many_vectors_still_fill_a_page(my_embedding_store: Caller) -> None:
    notes = [{"text": "apple " * n} for n in range(1, 9)]
    for n in range(6):
        my_embedding_store.put(HOME, f"item {n}", {"notes": notes})
    assert len(my_embedding_store.search(HOME, query="apple", limit=3)) == 3
    assert len(my_embedding_store.search(HOME, query="apple", limit=3, offset=3)) == 3


def test_a_filter_is_applied_before_the_ranking(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, LADDER)
    assert keys(my_embedding_store.search(HOME, query="apple", filter={"n": 24}, limit=1)) == ["step 24"]
    odd = my_embedding_store.search(HOME, query="apple", filter={"n": {"$gte": 20}}, limit=3)
    assert keys(odd) == ["step 20", "step 21", "step 22"]


def test_a_prefix_is_applied_before_the_ranking(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, LADDER, ("other",))
    put_all(my_embedding_store, LADDER, ("homes",))
    my_embedding_store.put((*HOME, "room"), "far", {"text": "rain"})
    assert keys(my_embedding_store.search(HOME, query="apple", limit=1)) == ["far"]


def test_queries_of_one_batch_are_answered_separately(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    options = ["rain", None, "pear", "rain"]
    answers = my_embedding_store.batch([SearchOp(HOME, query=query, limit=1 if query else 9) for query in options])
    assert [len(answer) for answer in answers] == [1, 4, 1, 1]
    assert [keys(answers[n]) for n in (0, 2, 3)] == [["rain"], ["pear"], ["rain"]]


def test_without_a_query_there_is_no_score(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    assert {item.score for item in my_embedding_store.search(HOME)} == {None}


# --- what is embedded


def test_an_item_that_is_not_indexed_is_not_found_by_a_query(my_embedding_store: Caller) -> None:
    my_embedding_store.put(HOME, "hidden", {"text": "apple"}, index=False)
    my_embedding_store.put(HOME, "seen", {"text": "rain"})
    assert set(scores(my_embedding_store, "apple")) == {"seen"}
    assert sorted(keys(my_embedding_store.search(HOME))) == ["hidden", "seen"]
    assert my_embedding_store.get(HOME, "hidden").value == {"text": "apple"}


def test_an_item_without_the_fields_is_not_found_by_a_query(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, {"without": {"other": "apple"}, "none": {"text": None}, "with": {"text": "rain"}})
    assert set(scores(my_embedding_store, "apple")) == {"with"}


def test_the_fields_of_the_store_are_embedded(my_embedding_store: Caller) -> None:
    my_embedding_store.put(HOME, "text", {"text": "plum", "other": "sea"})
    my_embedding_store.put(HOME, "title", {"about": {"title": "plum"}})
    my_embedding_store.put(HOME, "notes", {"notes": [{"text": "rain"}, {"text": "plum"}]})
    assert near(my_embedding_store, "sea") == set()
    assert near(my_embedding_store, "plum") == {"text", "title", "notes"}


def test_the_best_of_several_fields_counts(my_embedding_store: Caller) -> None:
    my_embedding_store.put(HOME, "k", {"text": "rain", "about": {"title": "plum"}, "notes": [{"text": "sea"}]})
    my_embedding_store.put(HOME, "other", {"text": "rain plum sea"})
    for query in ("rain", "plum", "sea"):
        assert scores(my_embedding_store, query) == pytest.approx({"k": 1, "other": 3**-0.5}, abs=PRECISION)


def test_fields_given_to_a_put_replace_those_of_the_store(my_embedding_store: Caller) -> None:
    put_indexed(my_embedding_store, "k", {"text": "apple", "other": "rain"}, "other")
    assert scores(my_embedding_store, "rain") == pytest.approx({"k": 1}, abs=PRECISION)
    assert scores(my_embedding_store, "apple") == pytest.approx({"k": 0}, abs=PRECISION)


PATHS: dict[str, Any] = {
    "a": {"a": "plum", "b": "rain"},
    "a.b": {"a": {"b": "plum", "c": "rain"}},
    "a.b.c": {"a": {"b": {"c": "plum"}}},
    "d[0]": {"d": ["plum", "rain"]},
    "d[-1]": {"d": ["rain", "plum"]},
    "d[*]": {"d": ["rain", "plum", "sea"]},
    "d[*].e": {"d": [{"e": "rain"}, {"e": "plum"}, {"f": "sea"}]},
    "d[*].e[*].f": {"d": [{"e": [{"f": "rain"}]}, {"e": [{"f": "sea"}, {"f": "plum"}]}]},
    "g.*": {"g": {"x": "rain", "y": "plum"}},
    "{h,i}": {"h": "rain", "i": "plum"},
    "whole": {"whole": {"of": ["plum"]}},
}


def test_paths_mean_what_they_mean_to_langgraph(my_embedding_store: Caller) -> None:
    for path, value in PATHS.items():
        put_indexed(my_embedding_store, path, value, path)
    assert near(my_embedding_store, "plum") == set(PATHS)


def test_a_put_may_name_the_whole_value(my_embedding_store: Caller) -> None:
    put_indexed(my_embedding_store, "k", {"text": "rain", "other": ["plum"]}, "$")
    assert scores(my_embedding_store, "rain plum") == pytest.approx({"k": 1}, abs=PRECISION)


@pytest.mark.parametrize(
    "index", [{"dims": DIMS, "embed": embed}, {"dims": DIMS, "embed": embed, "fields": ["$"]}], ids=["not given", "$"]
)
def test_the_whole_value_is_embedded_where_no_fields_are_named(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, {"deep": {"any": {"thing": ["plum"]}}, "other": {"any": "rain"}})
    assert near(my_embedding_store, "plum") == {"deep"}


@pytest.mark.parametrize("index", [{"dims": DIMS, "embed": Embedder(), "fields": ["text"]}], ids=["Embeddings"])
def test_the_embedder_may_be_an_object_of_langchain(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    assert keys(my_embedding_store.search(HOME, query="pear"))[:2] == ["pear", "mixed"]


def test_items_of_a_batch_may_have_the_same_text(my_embedding_store: Caller) -> None:
    put_all(
        my_embedding_store, {"a": {"text": "plum"}, "b": {"text": "rain"}, "c": {"text": "plum"}, "d": {"text": "sea"}}
    )
    assert near(my_embedding_store, "plum") == {"a", "c"}
    assert near(my_embedding_store, "sea") == {"d"}


def test_fields_of_an_item_may_have_the_same_text(my_embedding_store: Caller) -> None:
    my_embedding_store.put(HOME, "k", {"text": "plum", "about": {"title": "plum"}})
    my_embedding_store.put(HOME, "other", {"text": "rain"})
    assert near(my_embedding_store, "plum") == {"k"}


# --- old vectors are gone


def test_an_overwrite_replaces_what_was_embedded(my_embedding_store: Caller) -> None:
    my_embedding_store.put(HOME, "k", {"text": "apple"})
    my_embedding_store.put(HOME, "k", {"text": "rain"})
    assert (near(my_embedding_store, "apple"), near(my_embedding_store, "rain")) == (set(), {"k"})


def test_an_overwrite_with_fewer_texts_leaves_none_of_the_old(my_embedding_store: Caller) -> None:
    my_embedding_store.put(HOME, "k", {"text": "apple", "notes": [{"text": "pear"}, {"text": "plum"}]})
    my_embedding_store.put(HOME, "k", {"notes": [{"text": "rain"}]})
    assert [near(my_embedding_store, word) for word in ("apple", "pear", "plum", "rain")] == [
        set(),
        set(),
        set(),
        {"k"},
    ]


def test_an_overwrite_that_is_not_indexed_is_not_found_any_more(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, {"k": {"text": "apple"}, "other": {"text": "apple"}})
    my_embedding_store.put(HOME, "k", {"text": "apple"}, index=False)
    assert set(scores(my_embedding_store, "apple")) == {"other"}


def test_a_deleted_item_is_not_found(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    my_embedding_store.delete(HOME, "apple")
    assert set(scores(my_embedding_store, "apple")) == {"mixed", "pear", "rain"}


def test_an_item_that_is_put_again_has_nothing_of_the_deleted(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    my_embedding_store.delete(HOME, "apple")
    my_embedding_store.put(HOME, "apple", {"text": "apple"}, index=False)
    assert set(scores(my_embedding_store, "apple")) == {"mixed", "pear", "rain"}


@needs("atomic_batches")
def test_a_text_that_cannot_be_embedded_leaves_nothing_half_written(my_embedding_store: Caller) -> None:
    put_all(my_embedding_store, FRUIT)
    wrong = [
        PutOp(HOME, "pear", {"text": "sea"}),
        PutOp(HOME, "wrong", {"text": UNEMBEDDABLE}),
        PutOp(HOME, "rain", None),
    ]
    with pytest.raises(Exception, match="cannot be embedded"):
        my_embedding_store.batch(wrong)
    assert {item.key: item.value for item in my_embedding_store.search(HOME)} == FRUIT
    assert near(my_embedding_store, "pear") == {"pear"}
