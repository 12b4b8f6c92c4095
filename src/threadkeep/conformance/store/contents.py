"""Puts many items at once, and reads items back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.store.base import PutOp

from threadkeep.conformance.sync_async import Caller

HOME = ("home",)
"""The namespace for tests that need only one."""


def put_all(store: Caller, values: Mapping[str, Mapping[str, Any]], namespace: tuple[str, ...] = HOME) -> None:
    """Put one item per key, in one batch."""
    store.batch([PutOp(namespace, key, value) for key, value in values.items()])


def put_one_in_each(store: Caller, namespaces: Iterable[tuple[str, ...]]) -> None:
    """Put one item, `key`, into each of these namespaces."""
    store.batch([PutOp(namespace, "key", {"in": list(namespace)}) for namespace in namespaces])


def keys(found: Iterable[Any]) -> list[str]:
    """Return the keys of items, in order."""
    return [item.key for item in found]


def value(store: Caller, key: str, namespace: tuple[str, ...] = HOME) -> Any:
    """Return the value of an item that must exist."""
    item = store.get(namespace, key)
    assert item is not None, f"no item {key!r}"
    return item.value
