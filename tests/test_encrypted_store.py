"""The store of an encrypted Keep passes the public suite, on every backend, with visible and hidden ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import shared_pool
import threadkeep
from moved_clock import MovedClock
from sealed_storages import KEYS
from threadkeep.conformance.store_suite import *  # noqa: F403

pytestmark = pytest.mark.sampled(4)
VISIBLE = pytest.param(False, marks=pytest.mark.long)
Open = Callable[..., threadkeep.KeepStore]


@pytest.fixture
def clock(moved_clock: MovedClock) -> MovedClock:
    return moved_clock


@pytest.fixture(params=[True, VISIBLE], ids=["ids hidden", "ids visible"])
def opened(request: pytest.FixtureRequest, fresh_url: Callable[[], str]) -> Iterator[Open]:
    """Return a function that opens an encrypted Keep and returns its store."""
    with ExitStack() as closing:

        def open(**options: Any) -> threadkeep.KeepStore:
            keep = shared_pool.open_keep(fresh_url(), keys=KEYS, hide_ids=request.param, **options)
            return closing.enter_context(keep).store

        yield open


@pytest.fixture
def store(opened: Open) -> threadkeep.KeepStore:
    return opened()


@pytest.fixture
def embedding_store(opened: Open, index: Any) -> threadkeep.KeepStore:
    return opened(index=index)


@pytest.fixture
def ttl_store(opened: Open) -> threadkeep.KeepStore:
    return opened(ttl={"refresh_on_read": True})


@pytest.fixture
def text_store(opened: Open) -> threadkeep.KeepStore:
    return opened(index={"search": "text"})
