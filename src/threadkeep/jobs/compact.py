"""Compact the storage: free items that nothing refers to, then return unused space to the system."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep.clock import nonce
from threadkeep.engine.health.requests import CompactStorage
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.threads import prune
from threadkeep.errors import Corrupt
from threadkeep.jobs.over_threads import list_stored_threads
from threadkeep.plan import Plan, Request, send
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import OnProgress, Progress, Work, change, read, with_progress


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What `compact` freed.

    `damaged` lists threads with damaged checkpoints: of these, nothing is freed before `repair` has run. `skipped`
    lists threads whose own row is damaged.

    The bytes are those of the whole storage if it reports them (SQLite, PostgreSQL), otherwise those of the threads.
    """

    threads: int
    items: int
    bytes_before: int
    bytes_after: int
    skipped: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    __repr__ = short_repr


def compact(session: Session, *, on_progress: OnProgress | None = None) -> Work[CompactResult]:
    """Free items that nothing refers to, then have the storage return unused space to the system.

    Others may read and write meanwhile. SQLite raises Unavailable if they keep the file busy for longer than `timeout`;
    the file is then unchanged. Two round trips for each thread, four if something is freed.
    """
    return with_progress(_compact(session), on_progress)


def _compact(session: Session) -> Work[CompactResult]:
    stored = yield from list_stored_threads(session.tenant, "", None, _read)
    items = before = after = 0
    skipped: list[str] = []
    damaged: list[str] = []
    for done, thread in enumerate(stored):
        yield Progress(done, len(stored), thread.id)
        if thread.unreadable is not None:
            skipped.append(thread.id)
            continue
        key = ThreadKey(session.tenant, thread.kind, thread.id)
        try:
            freed = yield from change(key, partial(_free, session, key))
        except Corrupt:
            skipped.append(thread.id)
            continue
        items, before, after = items + freed.items, before + freed.before, after + freed.after
        damaged += [thread.id] * freed.damaged
    yield Progress(len(stored), len(stored), "the storage")
    bytes_before, bytes_after = yield from change(None, partial(send, CompactStorage(session.tenant)))
    before, after = (bytes_before, bytes_after) if bytes_before else (before, after)
    return CompactResult(len(stored), items, before, after, skipped, damaged)


def _read(request: Request[Any]) -> Work[Any]:
    return read(partial(send, request))


def _free(session: Session, key: ThreadKey) -> Plan[prune.Freed]:
    return prune.free_unused_items(session.heads, key, nonce())
