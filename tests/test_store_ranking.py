"""The order of search results: equal ones by number in every process, before and after a sweep, for any query plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from langgraph.store.base import PutOp

import postgres_servers
import threadkeep
from memory_batches import HOME, INDEX, NEAR, keys
from threadkeep.engine.memories.namespaces import MemoryKey, memory_number

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
