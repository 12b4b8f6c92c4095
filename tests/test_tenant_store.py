"""The store of a tenant passes the public suite, on every backend, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import shared_pool
import threadkeep
from moved_clock import MovedClock
from threadkeep.conformance.store_suite import *  # noqa: F403

pytestmark = pytest.mark.sampled(4)


@pytest.fixture
def clock(moved_clock: MovedClock) -> MovedClock:
    return moved_clock


Open = Callable[..., threadkeep.KeepStore]


@pytest.fixture
def opened(fresh_url: Callable[[], str]) -> Iterator[Open]:
    """Return a function that returns the store of a new tenant."""
    with ExitStack() as closing:

        def open(*, quota_bytes: int | None = None, **options: Any) -> threadkeep.KeepStore:
            keep = closing.enter_context(shared_pool.open_keep(fresh_url(), tenant="", **options))
            return keep.tenant(shared_pool.fresh_tenant(), quota_bytes=quota_bytes).store

        yield open


@pytest.fixture
def store(opened: Open) -> threadkeep.KeepStore:
    return opened(quota_bytes=1 << 40)


@pytest.fixture
def embedding_store(opened: Open, index: Any) -> threadkeep.KeepStore:
    return opened(index=index)


@pytest.fixture
def ttl_store(opened: Open) -> threadkeep.KeepStore:
    return opened(ttl={"refresh_on_read": True})


@pytest.fixture
def text_store(opened: Open) -> threadkeep.KeepStore:
    return opened(index={"search": "text"})
