"""Free items that nothing refers to, then have the storage return unused space."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep.clock import nonce
from threadkeep.engine.health.requests import CompactStorage
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.threads import prune
from threadkeep.errors import Corrupt
from threadkeep.jobs.over_threads import present_threads
from threadkeep.plan import Plan, Request, ask
from threadkeep.session import Session
from threadkeep.work import Progress, Tell, Work, change, read, reporting


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What compacting freed. `skipped` are damaged threads, of which nothing was freed.

    The bytes are those of the storage where it knows them (SQLite, PostgreSQL), else those of the threads.
    """

    threads: int
    items: int
    bytes_before: int
    bytes_after: int
    skipped: list[str] = field(default_factory=list)


def compact(session: Session, *, on_progress: Tell | None = None) -> Work[CompactResult]:
    """Free items that nothing refers to, then have the storage return unused space.

    Other readers and writers may go on. SQLite raises Unavailable, with nothing changed, if they keep the file busy for
    longer than `timeout`. Two round trips for each thread, four if something is freed.
    """
    return reporting(_compact(session), on_progress)


def _compact(session: Session) -> Work[CompactResult]:
    present = yield from present_threads(session.tenant, "", None, _ask)
    items = before = after = 0
    skipped: list[str] = []
    for done, one in enumerate(present):
        yield Progress(done, len(present), one.id)
        if one.unreadable is not None:
            skipped.append(one.id)
            continue
        key = ThreadKey(session.tenant, one.kind, one.id)
        try:
            freed = yield from change(key, partial(_free, session, key))
        except Corrupt:
            skipped.append(one.id)
            continue
        items, before, after = items + freed.items, before + freed.before, after + freed.after
    yield Progress(len(present), len(present), "the storage")
    took, takes = yield from change(None, partial(ask, CompactStorage(session.tenant)))
    return CompactResult(len(present), items, took or before, takes if took else after, skipped)


def _ask(request: Request[Any]) -> Work[Any]:
    return read(partial(ask, request))


def _free(session: Session, key: ThreadKey) -> Plan[prune.Freed]:
    return prune.free_unused_items(session.heads, key, nonce())
