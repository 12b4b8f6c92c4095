"""The branches of a thread: where each leaves the others, and how its state differs from the latest."""

from __future__ import annotations

from typing import Any

from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """List the branches, that with the newest head first. Up to six round trips."""
    place = await shown.place(query)
    found = await shown.keep.abranches(place.thread, ns=place.ns, kind=place.kind)
    latest = next((branch for branch in found if branch.is_latest), None)
    return {
        "place": place,
        "branches": found,
        "latest": latest,
        "snippet": shown.snippet("branches", place.thread, ns=place.ns, kind=place.kind),
    }
