"""Which checkpoint, task and write first set a value."""

from __future__ import annotations

from typing import Any

from threadkeep.engine.history import paths
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.json_tree import nodes
from threadkeep.inspector.query import QueryParameters


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show who set the value at a path. Up to six round trips."""
    place = await shown.place(query)
    path = query.required("path")
    found = await shown.keep.ablame(place.thread, path, checkpoint_id=place.id, ns=place.ns, kind=place.kind)
    return {
        "place": place._replace(id=found.checkpoint),
        "blame": found,
        "value": nodes(shown.redaction.value(found.value), paths.parse(found.path)),
        "snippet": shown.snippet(
            "blame", place.thread, path, checkpoint_id=found.checkpoint, ns=place.ns, kind=place.kind
        ),
    }
