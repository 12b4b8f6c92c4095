"""What takes how much space: totals, the largest threads, channels on demand, and what a policy would free."""

from __future__ import annotations

from typing import Any

from threadkeep import Policy
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters

_LARGEST = 15
_RULES = ("keep_last", "keep_for", "drop_idle")


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show sizes of everything, of one thread, or of a checkpoint.

    Reads all thread rows; with `measure` or a policy, all threads.
    """
    thread, kind = query.id("thread"), query.kind()
    keep, policy = shown.keep, policy_of(query)
    if shown.foreign is not None:
        await shown.foreign.start()
    place = await shown.place_of_thread(query)
    one, id = thread is not None, query.id("id")
    measured = None
    if one or query.flag("measure"):
        measured = await keep.asizes(thread_id=thread, kind=kind, checkpoint_id=id, ns=query.text("ns"))
    return {
        "place": place,
        "stats": None if one else await keep.astats(),
        "largest": [] if one else await keep.athreads(order="bytes", limit=_LARGEST),
        "sizes": measured,
        "checkpoint": measured.checkpoint if measured is not None else None,
        "rules": {name: query.text(name) for name in _RULES},
        "freed": await keep.aprune(thread, policy=policy, kind=kind, dry_run=True) if policy is not None else None,
        "snippet": None if one else shown.snippet("stats"),
    }


def policy_of(query: QueryParameters) -> Policy | None:
    """Return the retention policy that a form describes; None if it has no rule."""
    rules = {
        "keep_last": query.optional_number("keep_last"),
        "keep_for": query.optional("keep_for"),
        "drop_idle": query.optional("drop_idle"),
    }
    given: dict[str, Any] = {name: rule for name, rule in rules.items() if rule is not None}
    return Policy(**given) if given else None
