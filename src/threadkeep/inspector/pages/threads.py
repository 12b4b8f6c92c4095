"""The first page: all threads, searched, filtered and sorted, a slice at a time."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from threadkeep.engine.threads.catalogue import ORDERS, ThreadInfo
from threadkeep.errors import Missing
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters

STATUSES = ("idle", "pending", "interrupted", "error")
_SLICE = 50
_ARCHIVED = {"hide": False, "only": True}


class User(NamedTuple):
    """Whose thread it is, and the filter for this user's threads."""

    name: str
    filter: str


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """List threads. Round trips as `Keep.threads`, two more for another slice."""
    if shown.foreign is not None:
        await shown.foreign.start()
    order, status, kind = query.text("order", ORDERS[0]), query.optional("status"), query.kind()
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
    after = await _after(shown, query)
    found = await shown.keep.athreads(limit=_SLICE + 1, after=after, columns=shown.user_keys, **wanted)
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
        "threads": [(thread, _user(shown, thread)) for thread in found[:_SLICE]],
        "has_users": any(thread.metadata for thread in found),
        "filters": filters,
        "is_filtered": bool(search or status or kind or metadata or label or archived),
        "more": filters | {"after": last.id, "after_kind": last.kind} if last is not None else None,
        "orders": ORDERS,
        "statuses": STATUSES,
        "snippet": shown.snippet("threads", limit=_SLICE, **wanted),
    }


def _user(shown: Inspected, thread: ThreadInfo) -> User | None:
    key = next((key for key in shown.user_keys if thread.metadata.get(key) not in (None, "")), None)
    if key is None:
        return None
    value = thread.metadata[key]
    return User(str(value), json.dumps({key: value}, default=str))


async def _after(shown: Inspected, query: QueryParameters) -> ThreadInfo | None:
    """The last thread of the slice before, as it is now."""
    id = query.id("after")
    if id is None:
        return None
    found = await shown.keep.athread(id, kind=query.kind("after_kind"), titles=False)
    if found is None:
        raise Missing(f"thread {id!r}, the last one of the list before, no longer exists: start from the top")
    return found
