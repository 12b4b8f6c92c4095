"""Verify: check everything that is stored, one thread at a time, without changing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep.engine.health import verify as engine_verify
from threadkeep.engine.health.requests import CATALOGUE, DATABASE, InspectMemories, IntegrityCheck
from threadkeep.engine.health.thread_scan import Problem
from threadkeep.engine.health.verify import (
    VerifyResult,
    checked_counts,
    memory_problems,
    storage_problems,
    verify_thread,
)
from threadkeep.engine.health.verify_search import page_problems, search_problem, verify_indexed_thread
from threadkeep.engine.identity import Kind, ThreadKey, as_id, as_kind
from threadkeep.engine.search.requests import InspectSearchIndex
from threadkeep.errors import Corrupt, Unavailable
from threadkeep.jobs.over_threads import list_stored_threads
from threadkeep.plan import Request, send
from threadkeep.session import Session
from threadkeep.work import OnProgress, Progress, Work, read, with_progress

_MEMORIES_PER_PAGE = 500
_INDEXED_THREADS = 16
"""Of so many threads, all that the search index has is in memory at once."""
_MAX_PROBLEMS = 10_000
"""More problems than this are not reported: such a storage is lost anyway."""


def verify(
    session: Session,
    thread_id: str | None = None,
    *,
    prefix: str = "",
    kind: Kind | None = None,
    on_progress: OnProgress | None = None,
) -> Work[VerifyResult]:
    """Check every checksum, reference, parent, value and count, in one thread, in some, or in everything stored.

    Problems are collected, never raised, and nothing is changed. Without arguments, the memories, the search index and
    the storage itself are checked too. Raise Missing if the named thread does not exist, ValueError if both a thread
    and a prefix are given. `on_progress` is called with (done, total, what) before each thread.
    """
    prefix, kind = as_id(prefix, "prefix"), as_kind(kind)
    if thread_id is None:
        return with_progress(_verify_all(session, prefix, kind), on_progress)
    if prefix:
        raise ValueError("give thread_id or prefix, not both")
    return with_progress(_verify_one(session, as_id(thread_id, "thread_id"), kind), on_progress)


@dataclass(slots=True)
class _Report:
    """What has been checked so far, and the problems found."""

    counts: list[int] = field(default_factory=lambda: [0] * 5)
    memories: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, problems: list[Problem]) -> None:
        self.problems += problems[: _MAX_PROBLEMS - len(self.problems)]

    def ask(self, request: Request[Any]) -> Work[Any]:
        """Make a request. If the storage cannot read its own data, add a problem and return None."""
        try:
            return (yield from read(lambda: send(request)))
        except Corrupt as error:
            self.add([Problem(DATABASE, str(error))])
            return None

    def result(self) -> VerifyResult:
        threads, checkpoints, writes, items, size = self.counts
        return VerifyResult(threads, checkpoints, writes, items, self.memories, size, self.problems)


def _verify_one(session: Session, id: str, kind: Kind | None) -> Work[VerifyResult]:
    key = yield from read(lambda: engine_verify.stored_thread_key(session.tenant, id, kind))
    report = _Report()
    yield Progress(0, 1, key.id)
    yield from _check_thread(key, report)
    return report.result()


def _verify_all(session: Session, prefix: str, kind: Kind | None) -> Work[VerifyResult]:
    """Check all matching threads; also the memories and the storage, unless threads were selected."""
    report = _Report()
    everything = not prefix and kind is None
    if everything:
        yield Progress(0, None, "the storage")
        report.add(storage_problems((yield from report.ask(IntegrityCheck(session.tenant))) or ()))
    try:
        yield from _check_threads(session.tenant, prefix, kind, report)
        if everything:
            yield from _check_memories(session, report)
            yield from _check_search_index(session, report)
    except Unavailable as error:
        if not any(problem.problem == DATABASE for problem in report.problems):
            raise
        report.add([Problem(DATABASE, f"the rest could not be read: {error}")])
    return report.result()


def _check_threads(tenant: str, prefix: str, kind: Kind | None, report: _Report) -> Work[None]:
    stored = yield from list_stored_threads(tenant, prefix, kind, report.ask)
    for done, thread in enumerate(stored):
        yield Progress(done, len(stored), thread.id)
        if thread.unreadable is not None:
            report.add([Problem(CATALOGUE, f"thread {thread.id!r}: {thread.unreadable}", thread.id, thread.kind)])
        else:
            yield from _check_thread(ThreadKey(tenant, thread.kind, thread.id), report)


def _check_thread(key: ThreadKey, report: _Report) -> Work[None]:
    try:
        scan = yield from read(partial(verify_thread, key))
    except Corrupt as error:
        report.counts[0] += 1
        report.add([Problem(DATABASE, str(error), key.id, key.kind)])
        return
    if scan is not None:
        report.counts = [a + b for a, b in zip(report.counts, checked_counts(scan), strict=True)]
        report.add(scan.problems)


def _check_memories(session: Session, report: _Report) -> Work[None]:
    dims = session.vectors.dims if session.vectors is not None else None
    after = None
    while True:
        yield Progress(report.memories, None, "memories")
        page = yield from report.ask(InspectMemories(session.tenant, _MEMORIES_PER_PAGE, after))
        if page is None:
            return
        report.memories += len(page.memories)
        report.add(list(memory_problems(page, dims)))
        after = page.cursor
        if after is None:
            return


def _check_search_index(session: Session, report: _Report) -> Work[None]:
    """Compare the search index with the threads, part by part. An encrypted tenant has none."""
    checked, after = 0, None
    while True:
        yield Progress(checked, None, "the search index")
        request = InspectSearchIndex(session.tenant, _INDEXED_THREADS, after)
        try:
            page = yield from read(partial(send, request))
        except Corrupt as error:
            report.add([search_problem(f"the search index cannot be read: {error}")])
            return
        if page is None:
            return
        if session.keys is not None:
            report.add([search_problem("an encrypted tenant has a search index, with words in clear")])
            return
        report.add(list(page_problems(page)))
        for thread in page.threads:
            report.add((yield from read(partial(verify_indexed_thread, session.heads, thread))))
        checked, after = checked + len(page.threads), page.cursor
        if after is None:
            return
