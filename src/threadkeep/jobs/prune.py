"""Prune: remove the checkpoints and threads that retention policies do not keep.

Each thread is decided and changed in a commit of its own. A prune that stops between two threads leaves both
consistent, and the next one continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from threadkeep.clock import nonce, now_ms
from threadkeep.engine.commit import TRIES
from threadkeep.engine.identity import Kind, ThreadKey, as_id, as_kind
from threadkeep.engine.requests import ListedThread
from threadkeep.engine.threads import catalogue, retention
from threadkeep.engine.threads import prune as engine_prune
from threadkeep.engine.threads.retention import Policy, PrunedThread, PruneResult
from threadkeep.errors import Conflict, Corrupt, Leased
from threadkeep.jobs.leases import check_lease
from threadkeep.jobs.over_threads import page_of_threads
from threadkeep.jobs.policies import Retention, policies
from threadkeep.plan import Plan
from threadkeep.session import Session
from threadkeep.work import Blocking, OnProgress, Progress, Work, change, read, with_progress

_TRIES = 5
"""A prune of all threads leaves a busy thread for the next time after so many conflicts."""


def prune(
    session: Session,
    thread_id: str | None = None,
    *,
    policy: Retention = None,
    dry_run: bool = False,
    force: bool = False,
    kind: Kind | None = None,
    on_progress: OnProgress | None = None,
) -> Work[PruneResult]:
    """Remove checkpoints that a policy does not keep, in one thread or in all. Return what was removed.

    Without a policy, keep only the latest checkpoint of each namespace. `dry_run` changes nothing and returns exactly
    what would be removed. If the thread does not exist, `examined` is 0. Raise ValueError if neither a thread nor a
    policy is given, or if there is a thread of each kind with this id and `kind` is not given. Each thread is one
    commit. A damaged checkpoint stays, and no items of its thread are freed before `repair` has run; such threads are
    listed in `damaged`. A prune of all threads leaves out those that others keep changing, and lists those whose own
    row is damaged in `skipped`. A thread that somebody else holds a lease of stays as it is and is listed in `leased`,
    unless `force` is given. Up to five round trips for one thread; for all threads, three for each that may change.
    """
    if thread_id is None and policy is None:
        raise ValueError("prune needs a thread_id or a policy: without both it would prune every thread")
    id, kind = None if thread_id is None else as_id(thread_id, "thread_id"), as_kind(kind)
    return with_progress(_prune(session, id, policy, kind, dry_run=dry_run, force=force), on_progress)


def _prune(
    session: Session, id: str | None, policy: Retention, kind: Kind | None, *, dry_run: bool, force: bool
) -> Work[PruneResult]:
    given = (yield Blocking(lambda: policies(policy, "policy"))) if policy is not None else None  # may read a file
    if id is None:
        return (yield from prune_threads(session, given or (), kind=kind, dry_run=dry_run, force=force))
    return (yield from prune_thread(session, id, given, kind=kind, dry_run=dry_run, force=force))


def prune_threads(
    session: Session, policies: Sequence[Policy], *, kind: Kind | None, dry_run: bool, force: bool = False
) -> Work[PruneResult]:
    """Prune all threads of the tenant by these policies."""
    pruned: list[PrunedThread] = []
    skipped: list[str] = []
    damaged: list[str] = []
    leased: list[str] = []
    examined, last = 0, None
    policies = [policy for policy in policies if policy.tenant in (None, session.tenant)]
    now = now_ms()
    judge = retention.selector(policies, now)
    while policies and (page := (yield from read(partial(_page, session.tenant, policies, kind, last)))):
        for listed in page:
            examined += 1
            if not retention.may_prune(policies, listed.row, now):
                continue
            yield Progress(examined, None, listed.row.key.id)
            try:
                pruned += yield from _prune_one(
                    session, listed.row.key, judge, damaged, dry_run=dry_run, force=force, tries=_TRIES
                )
            except Leased:
                leased.append(listed.row.key.id)
            except Conflict:
                continue
            except Corrupt:
                skipped.append(listed.row.key.id)
        last = page[-1]
    return retention.prune_result(
        pruned, examined=examined, dry_run=dry_run, skipped=skipped, damaged=damaged, leased=leased
    )


def prune_thread(
    session: Session, id: str, policies: Sequence[Policy] | None, *, kind: Kind | None, dry_run: bool, force: bool
) -> Work[PruneResult]:
    """Prune one thread by these policies; with None, keep only the latest checkpoint of each namespace."""
    key = yield from read(lambda: catalogue.find_key(session.tenant, id, kind))
    if key is None:
        return retention.prune_result((), examined=0, dry_run=dry_run)
    judge = retention.selector(policies, now_ms()) if policies is not None else engine_prune.keep_latest
    damaged: list[str] = []
    try:
        pruned = yield from _prune_one(session, key, judge, damaged, dry_run=dry_run, force=force, tries=TRIES)
    except Leased:
        return retention.prune_result((), examined=1, dry_run=dry_run, leased=(key.id,))
    return retention.prune_result(pruned, examined=1, dry_run=dry_run, damaged=damaged)


def _prune_one(
    session: Session,
    key: ThreadKey,
    judge: engine_prune.Selector,
    damaged: list[str],
    *,
    dry_run: bool,
    force: bool,
    tries: int,
) -> Work[list[PrunedThread]]:
    """Prune a thread. Return an empty list if nothing changes; add the thread to `damaged` if it has damaged rows.

    Raise Conflict if others change it at each try, Leased if somebody else holds its lease.
    """

    def plan() -> Plan[engine_prune.ThreadLoss | None]:
        return engine_prune.prune_thread(session.heads, key, judge, nonce(), dry_run=dry_run, tries=tries)

    loss = yield from read(plan) if dry_run else change(key, plan, force=force)
    if loss is None:
        return []
    if dry_run and not force and not loss.is_empty:
        yield from check_lease(session, key)
    if loss.damaged:
        damaged.append(key.id)
    return [] if loss.is_empty else [PrunedThread(key.id, key.kind, *loss)]


def _page(
    tenant: str, policies: Sequence[Policy], kind: Kind | None, last: ListedThread | None
) -> Plan[tuple[ListedThread, ...]]:
    """Return one page of threads by id; if there is only one policy, only threads that it may apply to."""
    only = policies[0] if len(policies) == 1 else Policy()
    return page_of_threads(tenant, only.prefix, kind or only.kind, only.metadata or {}, only.match, last)
