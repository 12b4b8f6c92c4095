"""The pytest suite for LangGraph caches. Import everything from here and define the fixture `cache`.

`cache` returns an empty BaseCache, a new one for each test; or a context manager of one, or a function without
arguments that makes one. Those are opened while an event loop runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.cache.base import BaseCache

from threadkeep.conformance.cache import entries, expiry, graphs
from threadkeep.conformance.clock import clock
from threadkeep.conformance.collect import tests_of
from threadkeep.conformance.declarations import deviations, sync_or_async
from threadkeep.conformance.sync_async import Caller, open_caller

__all__ = ["Capabilities", "capabilities", "clock", "deviations", "my_cache", "sync_or_async"]
TESTS = tests_of(entries, expiry, graphs)
globals().update(TESTS)
__all__ += list(TESTS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a cache supports. Everything is tested unless declared absent; tests of absent capabilities are skipped."""

    sync_verbs: bool = True
    """`get`, `set` and `clear`."""
    async_verbs: bool = True
    """`aget`, `aset` and `aclear`."""
    exact_namespaces: bool = True
    """Any text may be a segment, and `clear` of a namespace leaves those below it alone."""


@pytest.fixture
def capabilities() -> Capabilities:
    """Override this to declare what your cache lacks."""
    return Capabilities()


@pytest.fixture
def my_cache(sync_or_async: str, cache: Any) -> Iterator[Caller]:
    """The cache under test, called sync or async."""
    with open_caller(cache, BaseCache, sync_or_async) as caller:
        yield caller
