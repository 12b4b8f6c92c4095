"""Whether the storage is well: doctor at once, verify on demand."""

from __future__ import annotations

from typing import Any

from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show doctor's findings; with `verify`, check everything that is stored, or one thread."""
    place = await shown.place_of_thread(query)
    thread, kind = query.id("thread"), query.kind()
    verified = None
    if query.flag("verify"):
        verified = await shown.keep.averify(thread, kind=kind) if thread else await shown.keep.averify()
    return {
        "findings": await shown.keep.adoctor(),
        "place": place,
        "verified": verified,
        "snippet": shown.snippet("verify", *([thread] if thread else []), kind=kind),
    }
