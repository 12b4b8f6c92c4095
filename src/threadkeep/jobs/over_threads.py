"""Visit every thread of a tenant, one after the other, in pages. A verb may stop between two threads.

A thread that is deleted before its turn is left out; a damaged one is listed as skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from threadkeep.engine.health.requests import ListStoredThreads, ThreadEntry
from threadkeep.engine.identity import Kind
from threadkeep.engine.log.records import Status
from threadkeep.engine.requests import ListedThread
from threadkeep.engine.threads import catalogue
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.matching import MatchedThread, match_thread
from threadkeep.engine.threads.metadata import ANY, LATEST, Match, as_filter
from threadkeep.errors import Corrupt, Missing
from threadkeep.plan import Plan, Request
from threadkeep.work import Progress, Work, read

T = TypeVar("T")
_PAGE, _MATCHED_PAGE, _STORED_PAGE = 2048, 500, 5_000


def over_threads(
    tenant: str,
    prefix: str,
    kind: Kind | None,
    metadata: Mapping[str, Any],
    visit: Callable[[ThreadInfo], Work[None]],
    match: Match = LATEST,
    status: Status | None = None,
) -> Work[None]:
    """Visit the matching threads in the order of their ids. One round trip for each 2,048; more with `metadata`."""
    done, last = 0, None
    while True:
        query = catalogue.query(
            tenant,
            limit=_PAGE,
            after=last,
            prefix=prefix,
            metadata=metadata,
            status=status,
            order="id",
            kind=kind,
            match=match,
        )
        page = (yield from read(partial(catalogue.list_threads, query, metadata, None))).threads
        for info in page:
            yield from visit(info)
            done += 1
            yield Progress(done, None, info.id)
        if len(page) < _PAGE:
            return
        last = page[-1]


class MatchedThreads(NamedTuple):
    """Threads that match a selection, and the ids of damaged ones of which that is not known."""

    threads: list[MatchedThread]
    skipped: list[str]


def match_threads(
    tenant: str,
    *,
    prefix: str = "",
    kind: Kind | None = None,
    metadata: Mapping[str, Any] | None = None,
    match: Match = ANY,
) -> Work[MatchedThreads]:
    """List the threads whose id starts with `prefix` and whose metadata matches, in the order of their ids.

    `match` any compares `metadata` with all checkpoints of a thread, latest with its newest root checkpoint. Each
    thread says how many of its checkpoints match. One round trip for each 500 threads, and with `metadata` one for each
    candidate, more if it has more than 1,024 checkpoints.
    """
    wanted, found, last = as_filter(metadata), MatchedThreads([], []), None
    while page := (yield from read(partial(page_of_threads, tenant, prefix, kind, wanted, match, last))):
        for listed in page:
            try:
                matched = yield from read(partial(match_thread, listed, wanted, match))
            except Corrupt:
                found.skipped.append(listed.row.key.id)
                continue
            if matched is not None:
                found.threads.append(matched)
        last = page[-1]
        yield Progress(len(found.threads), None, last.row.key.id)
    return found


async def page_of_threads(
    tenant: str, prefix: str, kind: Kind | None, metadata: Mapping[str, Any], match: str, last: ListedThread | None
) -> tuple[ListedThread, ...]:
    """Return one page of threads by id, after `last`. Those that the index says do not match are left out."""
    return await catalogue.query(
        tenant,
        limit=_MATCHED_PAGE,
        after=catalogue.thread_info(last) if last is not None else None,
        prefix=prefix,
        metadata=metadata,
        status=None,
        order="id",
        kind=kind,
        match=match,
    )


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
    tenant: str, prefix: str, kind: Kind | None, ask: Callable[[Request[Any]], Work[Any]]
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
