"""The store passes its public suite with group="thread" on PostgreSQL, with statements that name their partition."""

from __future__ import annotations

from collections.abc import Iterator
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
def sync_or_async() -> str:
    """Only sync: both run the same plans."""
    return "sync"


def opened(**options: Any) -> threadkeep.Keep:
    return shared_pool.open_keep("postgresql://", group="thread", **options)


@pytest.fixture
def store() -> Iterator[threadkeep.KeepStore]:
    with opened() as keep:
        yield keep.store


@pytest.fixture
def embedding_store(index: Any) -> Iterator[threadkeep.KeepStore]:
    with opened(index=index) as keep:
        yield keep.store


@pytest.fixture
def ttl_store() -> Iterator[threadkeep.KeepStore]:
    with opened(ttl={"refresh_on_read": True}) as keep:
        yield keep.store


@pytest.fixture
def text_store() -> Iterator[threadkeep.KeepStore]:
    with opened(index={"search": "text"}) as keep:
        yield keep.store
