"""The tokens that messages took: by thread, model, node or metadata."""

from __future__ import annotations

from typing import Any

from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters

_GROUPS = ("model", "thread", "node")
_METADATA = "metadata:"
_MOST = 100


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show the tokens of all threads, or of one. Reads the messages of each thread."""
    if shown.foreign is not None:
        await shown.foreign.start()
    place = await shown.place_of_thread(query)
    thread, by, since = query.id("thread"), query.text("by", _GROUPS[0]), query.optional("since")
    key = query.optional("key")
    group = f"{_METADATA}{key}" if by == "metadata" and key else by if by in _GROUPS else _GROUPS[0]
    found = await shown.keep.ausage(thread, by=group, since=since, kind=query.kind())
    return {
        "place": place,
        "usage": found,
        "rows": found.rows[:_MOST],
        "group": group,
        "groups": (*_GROUPS, "metadata"),
        "filters": {"by": by, "key": key or "", "since": since or ""},
        "snippet": shown.snippet("usage", *([thread] if thread else []), by=group, since=since),
    }
