"""Sweep: remove expired memories, and what retention policies do not keep."""

from __future__ import annotations

from collections.abc import Sequence

from threadkeep import clock
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.threads.retention import Policy, SweepResult
from threadkeep.jobs.prune import prune_threads
from threadkeep.session import Session
from threadkeep.work import Work, change


def sweep(session: Session, policies: Sequence[Policy], *, dry_run: bool = False) -> Work[SweepResult]:
    """Remove expired memories of all tenants, then prune the threads of this one."""
    memories = None if dry_run else (yield from change(None, lambda: memory_plans.sweep(clock.now_us())))
    pruned = yield from prune_threads(session, policies, kind=None, dry_run=dry_run)
    return SweepResult(memories, pruned.dropped, pruned.checkpoints, pruned.bytes, pruned)


def sweep_now(session: Session, policies: Sequence[Policy]) -> SweepResult:
    """Sweep in the calling thread; for the background sweeper."""
    return session.work(sweep(session, policies))
