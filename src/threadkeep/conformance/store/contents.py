"""Putting many items at once, and reading what is there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.store.base import PutOp

from threadkeep.conformance.colours import Colour

HOME = ("home",)
"""The namespace of tests that need only one."""


def put_all(store: Colour, values: Mapping[str, Mapping[str, Any]], namespace: tuple[str, ...] = HOME) -> None:
    """Put one item for each key, in one batch."""
    store.batch([PutOp(namespace, key, value) for key, value in values.items()])


def put_in(store: Colour, namespaces: Iterable[tuple[str, ...]]) -> None:
    """Put one item into each of these namespaces."""
    store.batch([PutOp(namespace, "key", {"in": list(namespace)}) for namespace in namespaces])


def keys(found: Iterable[Any]) -> list[str]:
    """The keys of items, in their order."""
    return [item.key for item in found]


def value(store: Colour, key: str, namespace: tuple[str, ...] = HOME) -> Any:
    """The value of an item that must be there."""
    item = store.get(namespace, key)
    assert item is not None, f"{key!r} is not there"
    return item.value


def within_a_second() -> None:
    """Wait until a second has just begun: a store that counts whole seconds then shows it, and not by chance."""
    past = time.time() % 1
    if past > 0.5:
        time.sleep(1 - past)
