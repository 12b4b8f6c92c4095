"""The data flow of a thread: which node wrote what, and what came next."""

from __future__ import annotations

from typing import Any

from threadkeep.inspector.flow_picture import WIDTH, picture
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Draw the flow of a thread. Up to six round trips; hardly any value is read."""
    place = await shown.place(query)
    flow = await shown.keep.aflow(place.thread, kind=place.kind)
    return {
        "place": place,
        "flow": flow,
        "picture": picture(flow),
        "width": WIDTH,
        "snippet": shown.snippet("flow", place.thread, kind=place.kind),
    }
