"""Sweep: remove expired memories, and what retention policies do not keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from threadkeep import clock
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.threads.retention import Policy, SweepResult
from threadkeep.jobs.prune import prune_threads
from threadkeep.session import Session
from threadkeep.work import OnProgress, Work, change, with_progress

if TYPE_CHECKING:
    from threadkeep.keep import Keep


def sweep(keep: Keep, *, dry_run: bool = False, on_progress: OnProgress | None = None) -> Work[SweepResult]:
    """Remove expired memories of all tenants, then prune this tenant's threads by the Keep's `retention` policies.

    `dry_run` changes nothing and does not count memories. One round trip for 1,000 memories, then as for `prune`.
    """
    work = _sweep(keep._session, keep._retention, dry_run=dry_run)  # noqa: SLF001 - the same package
    return with_progress(work, on_progress)


def sweep_now(session: Session, policies: Sequence[Policy]) -> SweepResult:
    """Sweep in the calling thread; for the background sweeper."""
    return session.work(_sweep(session, policies, dry_run=False))


def _sweep(session: Session, policies: Sequence[Policy], *, dry_run: bool) -> Work[SweepResult]:
    memories = None if dry_run else (yield from change(None, lambda: memory_plans.sweep(clock.now_us())))
    pruned = yield from prune_threads(session, policies, kind=None, dry_run=dry_run)
    return SweepResult(memories, pruned.dropped, pruned.checkpoints, pruned.bytes, pruned)
