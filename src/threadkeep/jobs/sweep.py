"""Sweep: remove expired memories, and what retention policies do not keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from threadkeep import clock
from threadkeep.engine.cache import cache_tenant
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.threads.retention import Policy, SweepResult
from threadkeep.jobs.prune import prune_threads
from threadkeep.session import Session
from threadkeep.work import OnProgress, Work, change, with_progress

if TYPE_CHECKING:
    from threadkeep.keep import Keep


def sweep(keep: Keep, *, dry_run: bool = False, on_progress: OnProgress | None = None) -> Work[SweepResult]:
    """Remove expired memories and cache entries, then prune threads by the Keep's `retention` policies.

    `dry_run` changes nothing and does not count memories. Two round trips, and one more for each 1,000 memories and
    entries, which are counted together; then as for `prune`.
    """
    work = _sweep(keep._session, keep._retention, dry_run=dry_run)  # noqa: SLF001 - the same package
    return with_progress(work, on_progress)


def sweep_now(session: Session, policies: Sequence[Policy]) -> SweepResult:
    """Sweep in the calling thread; for the background sweeper."""
    with session.measure("keep.sweep"):
        return session.work(_sweep(session, policies, dry_run=False))


def _sweep(session: Session, policies: Sequence[Policy], *, dry_run: bool) -> Work[SweepResult]:
    memories = None
    if not dry_run:
        memories = yield from change(None, lambda: memory_plans.sweep(session.tenant, clock.now_us()))
        memories += yield from change(None, lambda: memory_plans.sweep(cache_tenant(session.tenant), clock.now_us()))
    pruned = yield from prune_threads(session, policies, kind=None, dry_run=dry_run)
    return SweepResult(memories, pruned.dropped, pruned.checkpoints, pruned.bytes, pruned)
