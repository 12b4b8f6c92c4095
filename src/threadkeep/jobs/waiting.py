"""List the threads that wait for a person, with their questions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from threadkeep.clock import now_ms
from threadkeep.engine.history.checkpoint_info import utc_time
from threadkeep.engine.history.waiting import WaitingThread, open_questions
from threadkeep.engine.identity import Kind, ThreadKey, as_count, as_id, as_kind
from threadkeep.engine.tenants.requests import refuse_encrypted_tenant
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.metadata import LATEST, Match, as_filter, as_match
from threadkeep.engine.when import When, as_time
from threadkeep.jobs.over_threads import over_threads, read_thread
from threadkeep.session import Session
from threadkeep.work import OnProgress, Work, read, with_progress

_damage_logger = logging.getLogger("threadkeep.damage")
_QUESTIONS, _PAUSED = ("interrupted", "error"), ("pending",)
"""The statuses of threads that may have questions, and of those that may be paused."""


def waiting(
    session: Session,
    *,
    prefix: str = "",
    metadata: Mapping[str, Any] | None = None,
    match: Match = LATEST,
    kind: Kind | None = None,
    before: When | None = None,
    limit: int | None = None,
    paused: bool = True,
    on_progress: OnProgress | None = None,
) -> Work[list[WaitingThread]]:
    """Return the threads that wait for a person, one entry for each open question, those that wait longest first.

    With `before`, only what was asked before this time: `before="1h"` has waited for more than an hour. `limit` is the
    greatest number of entries; the other parameters select threads as in `threads`.

    A thread that a static interrupt stopped (`interrupt_before`, `interrupt_after`) has no question. It is stored like
    one whose process works on it, or has ended, between two steps. All of them are `paused`, except those that somebody
    holds a lease of; `paused=False` leaves them out.

    Questions are plain data; the application's classes are not needed. A damaged thread is left out, and a warning on
    the logger `threadkeep.damage` names it. Four round trips, more for many threads, and two for each that may wait.
    """
    until, wanted, match = as_time(before, "before", now_ms()), as_filter(metadata), as_match(match)
    prefix, kind = as_id(prefix, "prefix"), as_kind(kind)
    count = None if limit is None else as_count(limit, "limit")

    def work() -> Work[list[WaitingThread]]:
        found: dict[tuple[str, str], list[WaitingThread]] = {}
        skipped: list[str] = []

        def visit(info: ThreadInfo) -> Work[None]:
            key = ThreadKey(session.tenant, info.kind, info.id)
            plan = partial(open_questions, session.heads, key, paused=paused)
            yield from read_thread(info, plan, partial(found.__setitem__, (info.kind, info.id)), skipped)

        for status in (*_QUESTIONS, *(_PAUSED if paused else ())):
            yield from over_threads(session.tenant, prefix, kind, wanted, visit, match, status)
        if session.keys is None:  # an encrypted row has no status that could be searched for
            yield from read(partial(refuse_encrypted_tenant, session.tenant))
        for id in skipped:
            _damage_logger.warning("thread %r is damaged and left out; see `threadkeep verify`", id)
        questions = [each for of_thread in found.values() for each in of_thread]
        asked = [each for each in questions if until is None or each.since < utc_time(until)]
        return sorted(asked, key=lambda each: (each.since, each.thread, each.kind, each.id or ""))[:count]

    return with_progress(work(), on_progress)
