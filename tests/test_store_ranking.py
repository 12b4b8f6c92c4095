"""The order of search results: the same on every backend, in every process, before and after a sweep, by any plan."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from langgraph.store.base import PutOp

import postgres_servers
import threadkeep
from memory_batches import HOME, INDEX, NEAR, WORDS, keys
from threadkeep.backends.postgres import memories as postgres_memories
from threadkeep.engine.memories import plans
from threadkeep.engine.memories.namespaces import MemoryKey, memory_number
from threadkeep.engine.memories.words import MAX_COUNT, index_words, unmark

MINUTE = 60_000_000
DIMS = 384
ROWS = np.random.default_rng(1).normal(size=(6, DIMS)).astype(np.float32)


def embed_rows(texts: Sequence[str]) -> list[list[float]]:
    """Texts are numbers of rows."""
    return [ROWS[int(text)].tolist() for text in texts]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock whose only number is the time."""
    now = [1_800_000_000_000_000]
    monkeypatch.setattr("threadkeep.clock.now_us", lambda: now[0])
    return now


def by_number(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: memory_number("", MemoryKey(HOME, name)))


def pages(search: Callable[..., Any], step: int) -> list[str]:
    offsets = itertools.count(0, step)
    full = iter(lambda: keys(search(limit=step, offset=next(offsets))), [])
    return [key for page in full for key in page]


# --- vectors


def test_equal_vectors_are_in_the_order_of_their_numbers_in_every_keep(lasting_url: str) -> None:
    """A Keep that cached vectors one by one has them in other blocks than one that loaded all of them at once."""
    index: Any = {"dims": DIMS, "embed": embed_rows, "fields": ["row"]}
    with threadkeep.open(lasting_url, index=index) as keep:
        for n in range(40):
            keep.store.put(HOME, f"k{n}", {"row": str(n % 4)})
            found = keys(keep.store.search(HOME, query="1", limit=100))
            if n % 8 == 7:
                with threadkeep.open(lasting_url, index=index) as other:
                    assert keys(other.store.search(HOME, query="1", limit=100)) == found
                    assert pages(lambda **page: other.store.search(HOME, query="1", **page), 3) == found
        assert found[:10] == by_number([f"k{n}" for n in range(1, 40, 4)])


@pytest.mark.parametrize("cache_bytes", [1 << 26, 0], ids=["by numpy", "by pgvector if it is there"])
@pytest.mark.parametrize("measure", ["cosine", "inner_product", "l2"])
def test_a_vector_of_zeros_has_a_score_that_is_a_number(url: str, measure: str, cache_bytes: int) -> None:
    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[0.0, 0.0] if text == "zero" else [1.0, float(len(text))] for text in texts]

    index: Any = {"dims": 2, "embed": embed, "fields": ["text"], "distance_type": measure}
    with threadkeep.open(url, index=index, cache_bytes=cache_bytes) as keep:
        for text in ("zero", "one", "eleven"):
            keep.store.put(HOME, text, {"text": text})
        for query in ("zero", "one"):
            found = keep.store.search(HOME, query=query)
            scores = [item.score for item in found]
            assert sorted(keys(found)) == ["eleven", "one", "zero"]
            assert all(score is not None and math.isfinite(score) for score in scores)
            assert scores == sorted(scores, reverse=True)
        if measure == "cosine":
            assert {item.score for item in keep.store.search(HOME, query="zero")} == {0.0}


# --- hybrid


def test_expired_memories_take_no_rank_swept_or_not(url: str, clock: list[int]) -> None:
    with threadkeep.open(url, index=INDEX) as keep:
        keep.store.batch([PutOp(HOME, f"over {n}", {"text": "apple"}, ttl=1) for n in range(3)])
        keep.store.batch([PutOp(HOME, f"k{n}", {"text": "apple pear " * n}) for n in range(1, 4)])
        clock[0] += 2 * MINUTE
        before = [(item.key, item.score) for item in keep.store.search(HOME, query="apple")]
        assert keep.sweep().memories == 3
        assert [(item.key, item.score) for item in keep.store.search(HOME, query="apple")] == before
        assert sorted(key for key, _ in before) == ["k1", "k2", "k3"]


def test_what_a_filter_leaves_out_takes_no_rank(url: str) -> None:
    with threadkeep.open(url, index=INDEX) as keep:
        keep.store.batch([PutOp(HOME, f"k{n}", {"text": "apple", "more": "rain " * n, "n": n}) for n in range(10)])
        found = keep.store.search(HOME, query="apple", filter={"n": 7})
        assert keys(found) == ["k7"]
        assert found[0].score == pytest.approx(2 / 61), "the first of both rankings"


def test_the_ranking_by_words_is_one_of_the_two_that_are_fused(url: str) -> None:
    angles = {"tea, tea": 0.2, "green tea": 0.3, "water": 0.1, "green": 0.0}

    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[math.cos(angles.get(text, 0.0)), math.sin(angles.get(text, 0.0))] for text in texts]

    with threadkeep.open(url, index={"dims": 2, "embed": embed, "fields": ["text"], "search": "hybrid"}) as keep:
        for text in ("tea, tea", "green tea", "water"):
            keep.store.put(HOME, text, {"text": text})
        found = keep.store.search(HOME, query="tea?")
        expected = {"tea, tea": 1 / 61 + 1 / 62, "green tea": 1 / 62 + 1 / 63, "water": 1 / 61}
        assert {item.key: item.score for item in found} == pytest.approx(expected)
        assert keys(found) == ["tea, tea", "green tea", "water"]


# --- words


def put_each(store: threadkeep.KeepStore, clock: list[int], texts: dict[str, str]) -> None:
    for key, text in texts.items():
        clock[0] += 1
        store.put(HOME, key, {"text": text})


@pytest.mark.parametrize("index", [None, WORDS], ids=["no index", "words"])
def test_scores_are_the_words_found_and_how_often_they_occur(url: str, index: Any, clock: list[int]) -> None:
    texts = {"a": "tea " * 300, "b": "Tea green", "c": "tea tea green", "d": "tea " * 254, "e": "tea", "f": "a TEA"}
    with threadkeep.open(url, index=index) as keep:
        put_each(keep.store, clock, texts)
        found = [(item.key, item.score) for item in keep.store.search(HOME, query="green tea, green tea")]
    assert found == [
        ("c", 2 + 3 / 4), ("b", 2 + 2 / 3), ("a", 1 + 255 / 256), ("d", 1 + 254 / 255), ("f", 1.5), ("e", 1.5)
    ]  # fmt: skip


def test_postgres_gets_each_word_with_as_many_positions_as_its_count() -> None:
    texts = ["tea", "tea and tea, 99 % tea", "x " * 300 + "it's größe 茶茶", "a " * 255 + "a_b"]
    for marked in map(index_words, ([text] for text in texts)):
        lexemes = postgres_memories._lexemes(marked)
        assert postgres_memories.marked_words(lexemes) == marked
        positions = [int(each) for each in re.findall(r"[:,](\d+)", lexemes)]
        assert positions == list(range(1, sum(unmark(marked).values()) + 1))
    assert unmark(index_words(["x " * 300])) == {"x": MAX_COUNT}
    assert postgres_memories._lexemes(index_words(["tea, tea for two"])) == "'for':1 'tea':2,3 'two':4"


@pytest.mark.parametrize("index", [None, WORDS], ids=["no index", "words"])
def test_a_search_by_words_has_no_last_rank(url: str, index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the rankings that a hybrid search fuses is not one of other searches."""
    monkeypatch.setattr("threadkeep.engine.memories.plans._MAX_RANKED", 10)
    values = {f"k{n:03}": {"text": "tea " * (1 + n % 7), "n": n} for n in range(150)}
    ranked = sorted(values, key=lambda key: (-(values[key]["n"] % 7), key))
    with threadkeep.open(url, index=index) as keep:
        keep.store.batch([PutOp(HOME, key, value) for key, value in values.items()])
        assert pages(lambda **page: keep.store.search(HOME, query="tea", **page), 40) == ranked
        filter = {"n": {"$gte": 100}}
        found = pages(lambda **page: keep.store.search(HOME, query="tea", filter=filter, **page), 7)
        assert found == [key for key in ranked if values[key]["n"] >= 100]


def test_expired_memories_are_in_no_part_of_the_list(url: str, clock: list[int]) -> None:
    with threadkeep.open(url) as keep:
        keep.store.put(HOME, "tea over", {"text": "tea"}, ttl=1)
        keep.store.put(HOME, "over", {"text": "water"}, ttl=1)
        put_each(keep.store, clock, {"water": "water", "tea": "tea", "milk": "milk"})
        clock[0] += 2 * MINUTE
        for _ in range(2):
            assert pages(lambda **page: keep.store.search(HOME, query="tea", **page), 2) == ["tea", "milk", "water"]
            keep.sweep()


def test_a_query_without_an_index_spans_partitions_and_tenants_are_apart(url: str, clock: list[int]) -> None:
    with threadkeep.open(url) as keep:
        for n in range(30):
            clock[0] += 1
            keep.store.put((f"part {n % 5}", f"{n % 3}"), f"k{n}", {"text": "tea" if n % 2 else "milk"})
        with threadkeep.open(url, tenant="other") as other:
            other.store.put(("part 1",), "k", {"text": "tea"})
        found = keys(keep.store.search((), query="tea", limit=100))
        assert found == [f"k{n}" for n in (*range(29, 0, -2), *range(28, -1, -2))]


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "two that overlap": ({"text": "tea", "more": {"text": "tea"}}, "tea"),
    "JSON in a text": ({"text": '["caf\\u00e9", true]', "more": "x"}, "caf\u00e9"),
    "a bool": ({"text": True, "more": False}, "true"),
    "a number": ({"text": 1.5e300, "more": [1]}, "1 5e 300"),
}


@pytest.mark.parametrize("what", FIELDS)
@pytest.mark.parametrize("fields", [["$", "text", "more"], ["text", "text", "more.text"], ["text"], ["more", "$"]])
def test_a_text_in_several_fields_counts_once(url: str, what: str, fields: list[str]) -> None:
    value, query = FIELDS[what]
    with threadkeep.open(url, index={"search": "text", "fields": fields}) as keep:
        keep.store.put(HOME, "k", value)
        found = keep.store.search(HOME, query=query)
        if what == "two that overlap":
            assert [item.score for item in found] == [1.5 if fields == ["text"] else 1 + 2 / 3]
        assert keep.verify().ok


def test_a_memory_that_changes_during_a_search_is_not_taken_for_damage(
    url: str, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with threadkeep.open(url) as keep, threadkeep.open(url) as other:
        writer = keep if url == "memory://" else other
        keep.store.put(HOME, "k", {"text": "tea"})
        load = plans._load_ranked

        async def change_first(*args: Any) -> Any:
            clock[0] += 1
            writer.store.put(HOME, "k", {"text": "milk"})
            return await load(*args)

        monkeypatch.setattr(plans, "_load_ranked", change_first)
        assert [item.value for item in keep.store.search(HOME, query="tea")] == [{"text": "milk"}]


# --- PostgreSQL: the result does not depend on the query plan


PLANS = ["nestloop mergejoin", "nestloop hashjoin", "indexscan bitmapscan indexonlyscan", "seqscan sort"]


@pytest.mark.parametrize("off", PLANS)
def test_answers_are_in_order_whatever_the_planner_does(off: str) -> None:
    settings = " ".join(f"-cenable_{way}=off" for way in off.split())
    url = f"{postgres_servers.fresh_schema(postgres_servers.shared())}&options={quote(settings)}"
    spaces = [(f"a{n % 7}", f"b{n}") for n in range(60)]
    with threadkeep.open(url, index=NEAR) as keep:
        keep.store.batch([PutOp(space, "k", {"text": "apple", "n": n}) for n, space in enumerate(spaces)])
        assert keep.store.list_namespaces(limit=100) == sorted(spaces)
        assert keep.store.list_namespaces(limit=5, offset=20) == sorted(spaces)[20:25]
        assert [item.namespace for item in keep.store.search((), limit=100)] == sorted(spaces)
        found = keep.store.search((), query="apple", filter={"n": {"$gte": 0}}, limit=100)
        assert [item.namespace for item in found] == sorted(
            spaces, key=lambda at: memory_number("", MemoryKey(at, "k"))
        )


# --- pages


@pytest.mark.parametrize("size", [2**31, 2**62, 2**63 - 1, 2**63, 2**70])
def test_a_page_of_any_size_is_answered(url: str, size: int) -> None:
    with threadkeep.open(url, index=INDEX) as keep:
        keep.store.batch([PutOp(HOME, f"k{n}", {"text": "apple", "n": n}) for n in range(5)])
        for options in ({}, {"query": "apple"}, {"filter": {"n": {"$gte": 0}}}, {"query": "apple", "filter": {"n": 1}}):
            whole = keys(keep.store.search(HOME, **options, limit=100))
            assert keys(keep.store.search(HOME, **options, limit=size)) == whole
            assert keep.store.search(HOME, **options, offset=size) == []
        assert keep.store.list_namespaces(limit=size) == [HOME]
        assert keep.store.list_namespaces(offset=size) == []
