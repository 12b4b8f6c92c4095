"""Search what threads say: messages and other text in their states, by words."""

from __future__ import annotations

from typing import Any, NamedTuple

from threadkeep import SearchHit
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters

ROLES = ("human", "ai", "tool", "system")
_MOST, _SCANNED = 50, 2_000
"""How many hits are shown, and how many threads are read at most if there is no index."""


class ShownHit(NamedTuple):
    """A hit, and its snippet in parts: texts, and whether each is what was searched for."""

    hit: SearchHit
    parts: tuple[tuple[str, bool], ...]


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show the best hits. Round trips as `Keep.search`."""
    if shown.foreign is not None:
        await shown.foreign.start()
    words, role, since = query.text("q").strip(), query.optional("role"), query.optional("since")
    found = None
    if words:
        found = await shown.keep.asearch(words, limit=_MOST, role=role, since=since, scan_limit=_SCANNED)
    return {
        "filters": {"q": query.text("q"), "role": role, "since": since or ""},
        "roles": ROLES,
        "result": found,
        "hits": [ShownHit(hit, _parts(shown, hit)) for hit in found or ()],
        "most": _MOST,
        "snippet": shown.snippet("search", words, role=role, since=since) if words else None,
    }


def _parts(shown: Inspected, hit: SearchHit) -> tuple[tuple[str, bool], ...]:
    """The snippet, cut at its marks. What is to be hidden may go over a mark: then nothing is marked."""
    if shown.redaction.is_on:
        return ((shown.redaction.text(hit.snippet), False),)
    parts, end = list[tuple[str, bool]](), 0
    for start, stop in hit.marks:
        parts += [(hit.snippet[end:start], False), (hit.snippet[start:stop], True)]
        end = stop
    return (*parts, (hit.snippet[end:], False))
