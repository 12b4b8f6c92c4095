"""What a LangGraph store must do. Import everything from here into a test file and give the fixture `store`.

`store` gives a BaseStore, empty and of its own for each test; or a context manager of one, or a function without
arguments that makes one, which are entered while an event loop runs. The fixtures below may be overridden, except those
that start with `my_`: these are what the tests use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.store.base import BaseStore

from threadkeep.conformance.colours import Colour, opened
from threadkeep.conformance.declared import colour, deviations, tests_of
from threadkeep.conformance.store import (
    batches,
    crowds,
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

__all__ = [
    "DIMS",
    "Capabilities",
    "capabilities",
    "colour",
    "deviations",
    "embed",
    "embedding_store",
    "index",
    "my_embedding_store",
    "my_store",
    "my_text_store",
    "my_ttl_store",
    "text_store",
    "ttl_store",
]
TESTS = tests_of(batches, crowds, expiry, filters, graphs, items, namespaces, searching, values, vectors, words)
globals().update(TESTS)
__all__ += list(TESTS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. All is demanded unless it is declared absent: then its tests are skipped, and say so."""

    sync_verbs: bool = True
    """`put`, `get`, `search` and the others."""
    async_verbs: bool = True
    """`aput`, `aget`, `asearch` and the others."""
    newest_first: bool = True
    """A search without a query gives what was updated last first, then by namespace and key."""
    more_operators: bool = True
    """Filters know `$in $nin $exists $contains $and $or $not`, which BaseStore does not name."""
    dotted_paths: bool = True
    """`"a.b"` in a filter is a path, unless a key of that name is there."""
    atomic_batches: bool = True
    """A batch within one first segment happens as a whole or not at all."""
    ttl: bool = True
    """Items expire; see `ttl_store`."""
    text: bool = True
    """A query finds items by their words; see `text_store`."""
    vectors: bool = True
    """A query finds items by nearness; see `embedding_store`."""


@pytest.fixture
def capabilities() -> Capabilities:
    """Override it to declare what a store lacks."""
    return Capabilities()


@pytest.fixture
def my_store(colour: str, store: Any) -> Iterator[Colour]:
    """The store, with each verb in one colour."""
    with opened(store, BaseStore, colour) as held:
        yield held


@pytest.fixture
def ttl_store(store: Any) -> Any:
    """A store that lets items expire and starts their time again on reads. Override it if `store` is none."""
    return store


@pytest.fixture
def my_ttl_store(colour: str, ttl_store: Any) -> Iterator[Colour]:
    """The store that expiry is tested on."""
    with opened(ttl_store, BaseStore, colour) as held:
        yield held


@pytest.fixture
def text_store(store: Any) -> Any:
    """A store that finds items by their words. Override it if `store` is none."""
    return store


@pytest.fixture
def my_text_store(colour: str, text_store: Any) -> Iterator[Colour]:
    """The store that words are searched in."""
    with opened(text_store, BaseStore, colour) as held:
        yield held


@pytest.fixture
def index() -> dict[str, Any]:
    """The index of `embedding_store`, which must take it as it is: some tests change it."""
    return {"dims": DIMS, "embed": embed, "fields": ["text", "about.title", "notes[*].text"]}


@pytest.fixture
def embedding_store(index: dict[str, Any]) -> Any:  # noqa: ARG001 - the one that replaces it needs it
    """A store with this index. There is none to fall back on."""
    pytest.fail("give the fixture `embedding_store(index)`, or declare Capabilities(vectors=False)")


@pytest.fixture
def my_embedding_store(colour: str, embedding_store: Any) -> Iterator[Colour]:
    """The store that nearness is searched in."""
    with opened(embedding_store, BaseStore, colour) as held:
        yield held
