"""threadkeep's cache passes its own public suite, on every backend, sync and async; and so do LangGraph's caches."""

from __future__ import annotations

from pathlib import Path

import pytest

import threadkeep
from test_conformance_suites import assert_as_listed, run_suite
from threadkeep.adapters.langgraph_cache import KeepCache
from threadkeep.conformance.cache_suite import *  # noqa: F403

CACHE = """
import pytest
from threadkeep.conformance.cache_suite import *
{imported}

@pytest.fixture
def clock(moved_clock: MovedClock) -> MovedClock:
    return moved_clock


@pytest.fixture
def cache():
    return {maker}

@pytest.fixture
def capabilities():
    return Capabilities({lacking})

@pytest.fixture
def deviations():
    return {deviations}
"""
MEMORY = "from langgraph.cache.memory import InMemoryCache"
SQLITE = "from langgraph.cache.sqlite import SqliteCache"


@pytest.fixture
def cache(keep: threadkeep.Keep) -> KeepCache:
    return keep.cache


@pytest.mark.parametrize(
    ("imported", "maker", "lacking"),
    [
        (MEMORY, "InMemoryCache()", ""),
        (SQLITE, "SqliteCache(path=':memory:')", "exact_namespaces=False"),
    ],
    ids=["memory", "sqlite"],
)
@pytest.mark.long
def test_caches_of_langgraph_pass_the_suite(tmp_path: Path, imported: str, maker: str, lacking: str) -> None:
    text = CACHE.format(imported=imported, maker=maker, lacking=lacking, deviations={})
    assert_as_listed(run_suite(tmp_path, text))
