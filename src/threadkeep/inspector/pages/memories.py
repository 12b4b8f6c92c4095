"""The memories of the store: the tree of namespaces, and the items of one, searched and filtered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from threadkeep.adapters.langgraph_store import StoredMemory
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.json_tree import JsonNode, nodes
from threadkeep.inspector.query import QueryParameters

_SLICE = 50
_NAMESPACES = 1000


class NamespaceNode(NamedTuple):
    """A segment of namespaces: the prefix that ends with it, whether memories are right in it, and what is below."""

    prefix: tuple[str, ...]
    is_namespace: bool
    below: tuple[NamespaceNode, ...]


class ShownMemory(NamedTuple):
    """A memory, its value as a tree, and how many seconds it has left to live; None if it lives on."""

    memory: StoredMemory
    value: JsonNode
    left: float | None


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show the namespaces, and the memories below one. No memory's time to live is restarted. Three round trips."""
    if shown.foreign is not None:
        await shown.foreign.start()
    prefix = tuple(query.fields.get("ns", ()))
    search, filter, offset = query.optional("q"), query.conditions("filter"), query.number("offset")
    namespaces = await shown.keep.store.alist_namespaces(limit=_NAMESPACES)

    def find() -> list[StoredMemory]:
        store = shown.keep.store
        return store.search_stored(prefix, query=search, filter=filter or None, limit=_SLICE + 1, offset=offset)

    found = [each for each in await run_in_threadpool(find) if search is None or each.score is not None]
    return {
        "branches": _branches(namespaces, ()),
        "is_cut": len(namespaces) == _NAMESPACES,
        "prefix": prefix,
        "filters": {"q": search or "", "filter": query.text("filter")},
        "memories": [_shown(shown, each) for each in found[:_SLICE]],
        "offset": offset,
        "more": offset + _SLICE if len(found) > _SLICE else None,
    }


def _branches(namespaces: Sequence[tuple[str, ...]], prefix: tuple[str, ...]) -> tuple[NamespaceNode, ...]:
    """The segments that follow a prefix."""
    depth = len(prefix)
    below: dict[str, list[tuple[str, ...]]] = {}
    for namespace in namespaces:
        if len(namespace) > depth:
            below.setdefault(namespace[depth], []).append(namespace)
    return tuple(
        NamespaceNode((*prefix, name), (*prefix, name) in found, _branches(found, (*prefix, name)))
        for name, found in below.items()
    )


def _shown(shown: Inspected, memory: StoredMemory) -> ShownMemory:
    expires = memory.expires_at
    left = (expires - datetime.now(UTC)).total_seconds() if expires is not None else None
    return ShownMemory(memory, nodes(shown.redaction.value(memory.value), ("value",)), left)
