"""Visit every thread of a tenant, one after the other, in pages. A verb may end between two threads.

A thread that is deleted before its turn is left out; one that is damaged is noted as skipped.
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
_PAGE, _ROSTER = 2048, 5_000


def over_threads(
    tenant: str,
    prefix: str,
    kind: str | None,
    metadata: Mapping[str, Any],
    visit: Callable[[ThreadInfo], Work[None]],
) -> Work[None]:
    """Visit the matching threads in the order of their ids. One round trip for 2,048 of them."""
    done, last = 0, None
    while True:
        query = catalogue.query(
            tenant, limit=_PAGE, after=last, prefix=prefix, metadata=metadata, status=None, order="id", kind=kind
        )
        page = yield from read(partial(catalogue.threads, query, metadata, None))
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
    """Read a thread and take the result. Do nothing if it is gone; note it in `skipped` if it is damaged."""
    try:
        found = yield from read(plan)
    except Missing:
        return
    except Corrupt:
        skipped.append(info.id)
        return
    take(found)


def present_threads(
    tenant: str, prefix: str, kind: str | None, ask: Callable[[Request[Any]], Work[Any]]
) -> Work[list[ThreadEntry]]:
    """List the threads, even those whose row cannot be read. `ask` makes the requests; None from it ends the list."""
    found: list[ThreadEntry] = []
    while True:
        after = found[-1].at if found else None
        page = yield from ask(ListStoredThreads(tenant, _ROSTER, after, prefix, kind))
        if not page:
            return found
        found += page
