"""Search what was said: by an index that is brought up to date at each search, or by reading the threads.

The index is made by the first search of a Keep that may write. What changed since is found by the versions of threads,
which the database compares, so it does not matter which clock a writer had. Only these threads are read. A put does
nothing for the index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep.clock import now_ms
from threadkeep.engine.identity import Kind, ThreadKey, as_count, as_id, as_kind
from threadkeep.engine.search.documents import ThreadDocuments, as_role, thread_documents, unsaid
from threadkeep.engine.search.hits import Condition, Ranked, SearchResult, best, first, hit
from threadkeep.engine.search.query import Query, parse_query
from threadkeep.engine.search.requests import (
    REMEDY,
    ChangedThreads,
    CreateSearchIndex,
    DropSearchIndex,
    FindChangedThreads,
    IndexThreads,
    SearchIndex,
)
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.metadata import LATEST, Match, as_filter, as_match
from threadkeep.engine.when import When, as_time
from threadkeep.errors import Corrupt, Missing
from threadkeep.jobs.over_threads import over_threads
from threadkeep.plan import send
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import OnProgress, Progress, Work, change, read, with_progress

_PAGE = 1000
"""The number of changed threads that are listed at once."""
_SLICE_THREADS, _SLICE_BYTES = 64, 4_000_000
"""What is stored in the index at once: so many threads, or so much text."""
_NEVER = -1
"""The version in the index of a damaged thread: it is read at each search, so that each says that it is damaged."""
_damage_logger = logging.getLogger("threadkeep.damage")


@dataclass(frozen=True, slots=True)
class SearchIndexResult:
    """What `build_search_index` read: the number of threads, and of the messages and string values in them.

    `skipped` has the ids of damaged threads. What can be read of them is in the index.
    """

    threads: int
    documents: int
    skipped: tuple[str, ...] = ()

    __repr__ = short_repr


def search(
    session: Session,
    query: str,
    *,
    limit: int = 20,
    prefix: str = "",
    kind: Kind | None = None,
    metadata: Mapping[str, Any] | None = None,
    match: Match = LATEST,
    role: str | None = None,
    since: When | None = None,
    until: When | None = None,
    all_branches: bool = True,
    scan: bool = False,
    scan_limit: int | None = None,
    on_progress: OnProgress | None = None,
) -> Work[SearchResult]:
    """Find messages, and other text in the state of threads, that have all words of a query. Return the best hits.

    Words are compared without case and accents; "words in quotation marks" have to follow one another. A text is found
    once, in the oldest visible checkpoint that has it, even if later ones do not have it any more; with
    `all_branches=False` only if the latest checkpoint of its namespace still has it. Threads are selected by the start
    of their id, by kind, and by `metadata` and `match` as in `threads`; hits by `role` (that of a message: `human` or
    `user`, `ai` or `assistant`, `tool`, `system`) and by the time of the checkpoint: at or after `since`, before
    `until`, as in `activity`. Best match first, newest first among equals.

    The first search of a Keep that may write creates an index. Each search brings it up to date: threads that changed
    since are read. A read-only Keep reads them at each search, and all threads if there is no index. Nothing is ever
    indexed of an encrypted storage, and `scan` does without the index: then all selected threads are read, at most
    `scan_limit`. The hits are the same; `scanned` says how many threads were read.

    With an index that is current: one round trip if nothing was committed since the last search on this connection,
    else three; always three on Valkey. For `metadata`, those of `threads`. For each thread that is read: two, and one
    for each 64 that are stored in the index. Raise ValueError if the query has no words.
    """
    parsed, now = parse_query(query), now_ms()
    wanted = _Wanted(
        parsed,
        Condition(
            as_id(prefix, "prefix"),
            as_kind(kind),
            as_role(role) if role is not None else None,
            as_time(since, "since", now),
            as_time(until, "until", now),
            current=not all_branches,
        ),
        as_filter(metadata),
        as_match(match),
        as_count(limit, "limit"),
        as_count(scan_limit, "scan_limit") if scan_limit is not None else None,
    )
    return with_progress(_search(session, wanted, uses_index=not scan and session.keys is None), on_progress)


def build_search_index(
    session: Session, *, rebuild: bool = False, on_progress: OnProgress | None = None
) -> Work[SearchIndexResult]:
    """Create the search index of this tenant, or bring it up to date, as a search does. With `rebuild`, drop it before.

    Raise ValueError if this Keep has keys: the index would hold words in clear. Round trips as in `search`.
    """
    _check_plain(session)
    return with_progress(_build(session, rebuild=rebuild), on_progress)


def drop_search_index(session: Session) -> Work[bool]:
    """Delete the search index of this tenant, and return whether there was one. The next search creates it again.

    One round trip; on Valkey more.
    """
    dropped: bool = yield from change(None, partial(send, DropSearchIndex(session.tenant)))
    return dropped


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a search is for."""

    query: Query
    condition: Condition
    metadata: Mapping[str, Any]
    match: Match
    limit: int
    scan_limit: int | None


@dataclass(slots=True)
class _BestMatches:
    """The best matches so far, and what was read for them."""

    wanted: _Wanted
    matches: list[Ranked] = field(default_factory=list)
    scanned: int = 0
    skipped: list[str] = field(default_factory=list)
    is_complete: bool = True

    def add(self, key: ThreadKey, found: ThreadDocuments) -> None:
        matches = best(self.wanted.query, self.wanted.condition, key, found.documents)
        self.matches = first([*self.matches, *matches], self.wanted.limit)

    def result(self) -> SearchResult:
        hits = tuple(hit(self.wanted.query, each) for each in self.matches)
        complete = self.is_complete and not self.skipped
        return SearchResult(hits, self.scanned, complete, tuple(sorted(self.skipped)))


def _search(session: Session, wanted: _Wanted, *, uses_index: bool) -> Work[SearchResult]:
    if uses_index:
        try:
            found = yield from _search_index(session, wanted)
        except Corrupt as error:
            found = yield from _search_damaged_index(session, wanted, error)
        if found is not None:
            return found.result()
    return (yield from _scan_threads(session, wanted)).result()


def _search_damaged_index(session: Session, wanted: _Wanted, error: Corrupt) -> Work[_BestMatches | None]:
    """Build a damaged index anew, and search it. None if this Keep may not write."""
    if session.transport.read_only:
        _damage_logger.warning("the search index is damaged, so threads are scanned: %s; %s", error, REMEDY)
        return None
    _damage_logger.warning("the search index is damaged, and is built anew: %s", error)
    yield from drop_search_index(session)
    return (yield from _search_index(session, wanted))


def _search_index(session: Session, wanted: _Wanted) -> Work[_BestMatches | None]:
    """Search the index. None if there is none and this Keep may not write."""
    found = _BestMatches(wanted)
    condition, reads_only = wanted.condition, session.transport.read_only
    if wanted.metadata:
        condition = condition._replace(threads=(yield from _matching_threads(session, wanted)))
    request = SearchIndex(session.tenant, wanted.query, condition, wanted.limit, exact=reads_only)
    indexed = yield from read(partial(send, request._replace(if_current=True)))
    if indexed is None:
        if reads_only:
            changed = yield from _list_changed(session)
            if changed is None:
                return None
            yield from _scan_changed(session, changed, condition, found)
        else:
            found.skipped += (yield from _update(session)).skipped
        indexed = yield from read(partial(send, request))
    if indexed is None:
        return None  # it was dropped meanwhile
    found.matches = first([*found.matches, *indexed], wanted.limit) if found.matches else [*indexed]
    return found


def _matching_threads(session: Session, wanted: _Wanted) -> Work[frozenset[tuple[str, str]]]:
    found: set[tuple[str, str]] = set()

    def visit(info: ThreadInfo) -> Work[None]:
        found.add((info.kind, info.id))
        yield from ()

    yield from _over_threads(session, wanted, visit)
    return frozenset(found)


def _over_threads(session: Session, wanted: _Wanted, visit: Callable[[ThreadInfo], Work[None]]) -> Work[None]:
    prefix, kind = wanted.condition.prefix, wanted.condition.kind
    return over_threads(session.tenant, prefix, kind, wanted.metadata, visit, match=wanted.match)


# --- without an index


class _Enough(Exception):
    """A scan has read as many threads as it may."""


def _scan_threads(session: Session, wanted: _Wanted) -> Work[_BestMatches]:
    """Read all selected threads, in the order of their ids."""
    found = _BestMatches(wanted)

    def visit(info: ThreadInfo) -> Work[None]:
        if found.scanned == wanted.scan_limit:
            raise _Enough
        yield from _scan(session, session.key(info.kind, info.id), found)

    try:
        yield from _over_threads(session, wanted, visit)
    except _Enough:
        found.is_complete = False
    return found


def _scan(session: Session, key: ThreadKey, found: _BestMatches) -> Work[None]:
    said = yield from _read_thread(session, key, found.skipped)
    found.scanned += 1
    if said is not None:
        found.add(key, said)


def _read_thread(session: Session, key: ThreadKey, skipped: list[str]) -> Work[ThreadDocuments | None]:
    """Return what a thread says; None if it is gone or cannot be read at all. Add it to `skipped` if it is damaged."""
    try:
        said = yield from read(partial(thread_documents, session.heads, key))
    except Missing:
        return None
    except Corrupt:
        skipped.append(key.id)
        return None
    skipped += [key.id] * said.damaged
    return said


def _list_changed(session: Session) -> Work[list[ThreadKey] | None]:
    """List the threads that the index does not have as they are; None if there is no index."""
    found, after = list[ThreadKey](), None
    while True:
        page: ChangedThreads | None = yield from read(partial(send, FindChangedThreads(session.tenant, _PAGE, after)))
        if page is None:
            return None
        found += page.threads
        if len(page.threads) < _PAGE:
            return found
        after = page.threads[-1]


def _scan_changed(
    session: Session, changed: Sequence[ThreadKey], condition: Condition, found: _BestMatches
) -> Work[None]:
    """Read the threads that the index does not have as they are, as far as they are searched."""
    searched = [key for key in changed if condition.has_thread(key)]
    for n, key in enumerate(searched):
        if found.scanned == found.wanted.scan_limit:
            found.is_complete = False
            return
        yield from _scan(session, key, found)
        yield Progress(n + 1, len(searched), key.id)


# --- the index


def _check_plain(session: Session) -> None:
    if session.keys is not None:
        raise ValueError("an encrypted storage has no search index, which would hold words in clear: search scans it")


def _build(session: Session, *, rebuild: bool) -> Work[SearchIndexResult]:
    if rebuild:
        yield from drop_search_index(session)
    return (yield from _update(session))


def _update(session: Session) -> Work[SearchIndexResult]:
    """Bring the index up to date: read the threads that changed, and store what they say. Create it if needed."""
    threads = documents = 0
    skipped: list[str] = []
    after: ThreadKey | None = None
    while True:
        request = FindChangedThreads(session.tenant, _PAGE, after)
        page: ChangedThreads | None = yield from read(partial(send, request))
        if page is None:
            yield from change(None, partial(send, CreateSearchIndex(session.tenant)))
            continue
        waiting, size = list[ThreadDocuments](), 0
        for left, key in enumerate(page.threads, start=1 - page.total):
            said = yield from _read_thread(session, key, skipped)
            threads += 1
            if said is None:
                said = unsaid(key)
            documents += len(said.documents)
            waiting.append(said._replace(rev=_NEVER) if said.damaged else said)
            size += sum(len(each.text) for each in said.documents)
            if len(waiting) == _SLICE_THREADS or size > _SLICE_BYTES:
                yield from _store(session, waiting)
                waiting, size = [], 0
            yield Progress(threads, threads - left, key.id)
        if waiting:
            yield from _store(session, waiting)
        if len(page.threads) < _PAGE:
            return SearchIndexResult(threads, documents, tuple(sorted(skipped)))
        after = page.threads[-1]


def _store(session: Session, said: Sequence[ThreadDocuments]) -> Work[None]:
    yield from change(None, partial(send, IndexThreads(session.tenant, tuple(said))))
