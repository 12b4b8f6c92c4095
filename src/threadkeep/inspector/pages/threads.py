"""The first page: all threads, searched, filtered and sorted, a slice at a time."""

from __future__ import annotations

from typing import Any

from threadkeep.engine.threads.catalogue import ORDERS, ThreadInfo
from threadkeep.errors import Missing
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import Query

STATUSES = ("idle", "pending", "interrupted", "error")
_SLICE = 50
_ARCHIVED = {"hide": False, "only": True}


async def page(shown: Inspected, query: Query) -> dict[str, Any]:
    """List threads. Round trips as `Keep.threads`, two more for another slice."""
    if shown.foreign is not None:
        await shown.foreign.start()
    order, status, kind = query.text("order", ORDERS[0]), query.optional("status"), query.optional("kind")
    search, metadata = query.text("q"), query.conditions("metadata")
    label, archived = query.optional("label"), query.optional("archived")
    wanted: dict[str, Any] = {
        "order": order,
        "status": status,
        "kind": kind,
        "contains": search,
        "metadata": metadata or None,
        "labels": [label] if label is not None else None,
        "archived": _ARCHIVED.get(archived or ""),
    }
    found = await shown.keep.athreads(limit=_SLICE + 1, after=await _after(shown, query), **wanted)
    filters = {
        "q": search,
        "status": status,
        "kind": kind,
        "order": order,
        "metadata": query.text("metadata"),
        "label": label,
        "archived": archived,
    }
    last = found[_SLICE - 1] if len(found) > _SLICE else None
    return {
        "threads": found[:_SLICE],
        "filters": filters,
        "is_filtered": bool(search or status or kind or metadata or label or archived),
        "more": filters | {"after": last.id, "after_kind": last.kind} if last is not None else None,
        "orders": ORDERS,
        "statuses": STATUSES,
        "snippet": shown.snippet("threads", limit=_SLICE, **wanted),
    }


async def _after(shown: Inspected, query: Query) -> ThreadInfo | None:
    """The last thread of the slice before, as it is now."""
    id = query.id("after")
    if id is None:
        return None
    found = await shown.keep.athread(id, kind=query.optional("after_kind"), titles=False)
    if found is None:
        raise Missing(f"thread {id!r}, the last one of the list before, no longer exists: start from the top")
    return found
