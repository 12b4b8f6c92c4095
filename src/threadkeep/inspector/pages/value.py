"""One value of a checkpoint by its path: a part of a large one, or a long text as a whole."""

from __future__ import annotations

from typing import Any

from threadkeep.engine.history import paths
from threadkeep.errors import Corrupt, Missing
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.json_tree import nodes
from threadkeep.inspector.query import QueryParameters


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show the value at a path, from an element on. Up to five round trips."""
    place = await shown.place(query)
    view = await shown.keep.ashow(place.thread, place.id, ns=place.ns, kind=place.kind)
    path = paths.parse(query.required("path"))
    channel = str(path[0])
    if channel in view.damaged:
        raise Corrupt(view.damaged[channel])
    if channel not in view.values:
        raise Missing(f"channel {channel!r} not found in checkpoint {view.checkpoint.id!r}")
    found, value = paths.resolve(view.values[channel], path[:1], path[1:])
    tree = nodes(shown.redaction.value(value), found, start=query.number("from"), whole=True)
    return {"place": place._replace(id=view.checkpoint.id), "node": tree._replace(is_open=True)}
