"""Whether the storage is well: doctor at once, verify on demand."""

from __future__ import annotations

from typing import Any

from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters

_OF_ALL_TENANTS = ("contents",)
"""Findings about all tenants, which an inspector of one does not show."""


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show doctor's findings; with `verify`, check everything that is stored, or one thread."""
    place = await shown.place_of_thread(query)
    thread, kind = query.id("thread"), query.kind()
    verified = None
    if query.flag("verify"):
        verified = await shown.keep.averify(thread, kind=kind) if thread else await shown.keep.averify()
    return {
        "findings": [
            each for each in await shown.keep.adoctor() if not (shown.tenant and each.name in _OF_ALL_TENANTS)
        ],
        "place": place,
        "verified": verified,
        "snippet": shown.snippet("verify", *([thread] if thread else []), kind=kind),
    }
