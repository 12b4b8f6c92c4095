"""Letting go of what policies do not keep: long work over all threads of a tenant, one after the other.

Each thread is judged and changed in a commit of its own, so it may be ended at any time, and going on is starting again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from threadkeep import desk as clock
from threadkeep.desk import Desk, draw, now
from threadkeep.engine import catalogue, prune, remembering, retention
from threadkeep.engine.backend import Listed
from threadkeep.engine.commit import TRIES
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.prune import Loss
from threadkeep.engine.retention import Policy, Pruned, Swept
from threadkeep.errors import Conflict, Corrupt
from threadkeep.plan import Plan
from threadkeep.work import Change, Progress, Read, Work

_PAGE = 500
_TRIES = 5
"""A thread that others changed so often while it was judged is busy: it is left for the next time."""


def pruning(desk: Desk, policies: Sequence[Policy], *, kind: str | None, dry_run: bool) -> Work[Pruned]:
    """All threads, judged by these policies. One that others change all the time is left for the next time.

    A damaged one is left alone and told of: it must not keep the others from being pruned.
    """
    losses: list[tuple[ThreadKey, Loss]] = []
    skipped: list[str] = []
    looked_at, last = 0, None
    policies = [policy for policy in policies if policy.tenant in (None, desk.tenant)]
    moment = now()
    judge = retention.judged(policies, moment)
    while policies and (page := (yield Read(partial(_page, desk.tenant, policies, kind, last)))):
        for listed in page:
            key: ThreadKey = listed.row.key
            looked_at += 1
            if not retention.may_lose(policies, listed.row, moment):
                continue
            yield Progress(looked_at, None, key.id)
            try:
                loss = yield letting_go(desk, key, judge, dry_run=dry_run, tries=_TRIES)
            except Conflict:
                continue
            except Corrupt:
                skipped.append(key.id)
                continue
            if loss is not None:
                losses.append((key, loss))
        last = page[-1]
    return replace(retention.pruned(losses, looked_at=looked_at, dry_run=dry_run), skipped=tuple(skipped))


def pruning_one(
    desk: Desk, id: str, policies: Sequence[Policy] | None, *, kind: str | None, dry_run: bool
) -> Work[Pruned]:
    """One thread, judged by these policies; without any, only the latest of each namespace stays."""
    key = yield Read(lambda: catalogue.key_of(desk.tenant, id, kind))
    if key is None:
        return retention.pruned([], looked_at=0, dry_run=dry_run)
    judge = retention.judged(policies, now()) if policies is not None else prune.keep_latest
    loss = yield letting_go(desk, key, judge, dry_run=dry_run)
    return retention.pruned([(key, loss)] if loss is not None else [], looked_at=1, dry_run=dry_run)


def letting_go(desk: Desk, key: ThreadKey, judge: prune.Judge, *, dry_run: bool, tries: int = TRIES) -> Read | Change:
    """One thread."""

    def make() -> Plan[Loss | None]:
        return prune.let_go(desk.heads, key, judge, draw(), dry_run=dry_run, tries=tries)

    return Read(make) if dry_run else Change(key, make)


async def _page(tenant: str, policies: Sequence[Policy], kind: str | None, last: Listed | None) -> tuple[Listed, ...]:
    """Some threads by id; a lone policy says which."""
    only = policies[0] if len(policies) == 1 else Policy()
    return await catalogue.query(
        tenant, limit=_PAGE, after=catalogue.info(last) if last is not None else None, prefix=only.prefix,
        metadata=only.metadata, status=None, order="id", kind=kind or only.kind,
    )  # fmt: skip


def sweeping(desk: Desk, policies: Sequence[Policy], *, dry_run: bool = False) -> Work[Swept]:
    """Expired memories, of all tenants; then what these policies do not keep."""
    memories = None if dry_run else (yield Change(None, lambda: remembering.sweep(clock.now_exactly())))
    pruned = yield from pruning(desk, policies, kind=None, dry_run=dry_run)
    return Swept(memories, pruned.dropped, pruned.checkpoints, pruned.bytes, pruned)


def sweep_once(desk: Desk, policies: Sequence[Policy]) -> Swept:
    """The same, here and now."""
    return desk.work(sweeping(desk, policies))
