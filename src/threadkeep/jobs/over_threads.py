"""Visit every thread of a tenant, one after the other, in pages. A verb may stop between two threads.

A thread that is deleted before its turn is left out; a damaged one is listed as skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from threadkeep.engine.health.requests import ListStoredThreads, ThreadEntry
from threadkeep.engine.threads import catalogue
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.errors import Corrupt, Missing
from threadkeep.plan import Plan, Request
from threadkeep.work import Progress, Work, read

T = TypeVar("T")
_PAGE, _STORED_PAGE = 2048, 5_000


def over_threads(
    tenant: str,
    prefix: str,
    kind: str | None,
    metadata: Mapping[str, Any],
    visit: Callable[[ThreadInfo], Work[None]],
) -> Work[None]:
    """Visit the matching threads in the order of their ids. One round trip for each 2,048."""
    done, last = 0, None
    while True:
        query = catalogue.query(
            tenant, limit=_PAGE, after=last, prefix=prefix, metadata=metadata, status=None, order="id", kind=kind
        )
        page = yield from read(partial(catalogue.list_threads, query, metadata, None))
        for info in page:
            yield from visit(info)
            done += 1
            yield Progress(done, None, info.id)
        if len(page) < _PAGE:
            return
        last = page[-1]


def read_thread(
    info: ThreadInfo, plan: Callable[[], Plan[T]], take: Callable[[T], object], skipped: list[str]
) -> Work[None]:
    """Read a thread and pass the result to `take`. Do nothing if it is gone; add it to `skipped` if it is damaged."""
    try:
        value = yield from read(plan)
    except Missing:
        return
    except Corrupt:
        skipped.append(info.id)
        return
    take(value)


def list_stored_threads(
    tenant: str, prefix: str, kind: str | None, ask: Callable[[Request[Any]], Work[Any]]
) -> Work[list[ThreadEntry]]:
    """List the threads, including those whose row cannot be read. One round trip for each 5,000.

    `ask` makes the requests; the list ends where it returns None.
    """
    found: list[ThreadEntry] = []
    while True:
        after = found[-1].cursor if found else None
        page = yield from ask(ListStoredThreads(tenant, _STORED_PAGE, after, prefix, kind))
        if not page:
            return found
        found += page
