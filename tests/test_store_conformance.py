"""threadkeep's store passes its own public suite, on every backend, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shared_pool
import threadkeep
from moved_clock import MovedClock
from threadkeep.conformance.store_suite import *  # noqa: F403


@pytest.fixture
def clock(moved_clock: MovedClock) -> MovedClock:
    return moved_clock


@pytest.fixture
def store(keep: threadkeep.Keep) -> threadkeep.KeepStore:
    return keep.store


@pytest.fixture
def embedding_store(fresh_url: Callable[[], str], index: Any) -> Iterator[threadkeep.KeepStore]:
    with shared_pool.open_keep(fresh_url(), index=index) as keep:
        yield keep.store


@pytest.fixture
def ttl_store(fresh_url: Callable[[], str]) -> Iterator[threadkeep.KeepStore]:
    with shared_pool.open_keep(fresh_url(), ttl={"refresh_on_read": True}) as keep:
        yield keep.store


@pytest.fixture
def text_store(fresh_url: Callable[[], str]) -> Iterator[threadkeep.KeepStore]:
    with shared_pool.open_keep(fresh_url(), index={"search": "text"}) as keep:
        yield keep.store
