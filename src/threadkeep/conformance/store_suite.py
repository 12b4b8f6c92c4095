"""The pytest suite for LangGraph stores. Import everything from here and define the fixture `store`.

`store` returns an empty BaseStore, a new one for each test; or a context manager of one, or a function without
arguments that makes one. Those are opened while an event loop runs. The fixtures below may be overridden, except those
that start with `my_`, which the tests use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.store.base import BaseStore

from threadkeep.conformance.clock import clock
from threadkeep.conformance.collect import tests_of
from threadkeep.conformance.declarations import deviations, sync_or_async
from threadkeep.conformance.store import (
    batches,
    concurrency,
    expiry,
    filters,
    graphs,
    items,
    namespaces,
    searching,
    values,
    vectors,
    words,
)
from threadkeep.conformance.store.embedder import DIMS, embed
from threadkeep.conformance.sync_async import Caller, open_caller

__all__ = [
    "DIMS",
    "Capabilities",
    "capabilities",
    "clock",
    "deviations",
    "embed",
    "embedding_store",
    "index",
    "my_embedding_store",
    "my_store",
    "my_text_store",
    "my_ttl_store",
    "sync_or_async",
    "text_store",
    "ttl_store",
]
TESTS = tests_of(batches, concurrency, expiry, filters, graphs, items, namespaces, searching, values, vectors, words)
globals().update(TESTS)
__all__ += list(TESTS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store supports. Everything is tested unless declared absent; tests of absent capabilities are skipped."""

    sync_verbs: bool = True
    """`put`, `get`, `search` and the others."""
    async_verbs: bool = True
    """`aput`, `aget`, `asearch` and the others."""
    newest_first: bool = True
    """A search without a query is ordered by update time, newest first, then by namespace and key."""
    more_operators: bool = True
    """Filters support `$in $nin $exists $contains $and $or $not`, which BaseStore does not mention."""
    dotted_paths: bool = True
    """`"a.b"` in a filter is a path, unless there is a key of that name."""
    atomic_batches: bool = True
    """A batch whose namespaces share the first segment is stored as a whole or not at all."""
    ttl: bool = True
    """Items expire; see `ttl_store`."""
    ranks_by_words: bool = True
    """Without an index, items with words of a query come first, with scores. The others follow in any case."""
    text: bool = True
    """With an index of words, a query finds only items that have some of its words; see `text_store`."""
    vectors: bool = True
    """A query finds items by vector similarity; see `embedding_store`."""


@pytest.fixture
def capabilities() -> Capabilities:
    """Override this to declare what your store lacks."""
    return Capabilities()


@pytest.fixture
def my_store(sync_or_async: str, store: Any) -> Iterator[Caller]:
    """The store under test, called sync or async."""
    with open_caller(store, BaseStore, sync_or_async) as caller:
        yield caller


@pytest.fixture
def ttl_store(store: Any) -> Any:
    """A store whose items expire and whose reads restart their TTL. Override this if `store` is not one."""
    return store


@pytest.fixture
def my_ttl_store(sync_or_async: str, ttl_store: Any) -> Iterator[Caller]:
    """The store for tests of expiry, called sync or async."""
    with open_caller(ttl_store, BaseStore, sync_or_async) as caller:
        yield caller


@pytest.fixture
def text_store(store: Any) -> Any:
    """A store with an index of words: a query finds only items that have some. Override this if `store` is not one."""
    return store


@pytest.fixture
def my_text_store(sync_or_async: str, text_store: Any) -> Iterator[Caller]:
    """The store for tests of word search, called sync or async."""
    with open_caller(text_store, BaseStore, sync_or_async) as caller:
        yield caller


@pytest.fixture
def index() -> dict[str, Any]:
    """The index of `embedding_store`, which must use it unchanged: some tests override it."""
    return {"dims": DIMS, "embed": embed, "fields": ["text", "about.title", "notes[*].text"]}


@pytest.fixture
def embedding_store(index: dict[str, Any]) -> Any:  # noqa: ARG001 - overrides of this fixture use it
    """A store with this index. There is no default."""
    pytest.fail("define the fixture `embedding_store(index)`, or declare Capabilities(vectors=False)")


@pytest.fixture
def my_embedding_store(sync_or_async: str, embedding_store: Any) -> Iterator[Caller]:
    """The store for tests of vector search, called sync or async."""
    with open_caller(embedding_store, BaseStore, sync_or_async) as caller:
        yield caller
