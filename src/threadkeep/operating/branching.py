"""Rollback, fork and tag as work: which thread is meant, then the change. Both kinds of threads."""

from __future__ import annotations

from collections.abc import Callable

from threadkeep.clock import nonce, now_us
from threadkeep.engine import branch, catalogue, tag
from threadkeep.engine.branch import Branch, Moment
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.talks import branches as talks
from threadkeep.plan import Plan
from threadkeep.session import Session
from threadkeep.work import Change, Read, Work


def rolling_back(session: Session, id: str, ref: str, ns: str, kind: str | None, *, dry_run: bool) -> Work[Branch]:
    """Go back, or say what would become."""
    key: ThreadKey = yield Read(lambda: catalogue.known(session.tenant, id, kind))
    _check_namespace(key, ns)

    def plan() -> Plan[Branch]:
        if key.kind == CUBE:
            return talks.rollback(session.heads, key, ref, _moment(), dry_run=dry_run)
        return branch.rollback(session.heads, key, ref, ns, _moment(), dry_run=dry_run)

    made: Branch = yield Read(plan) if dry_run else Change(key, plan)
    return made


def forking(session: Session, id: str, ref: str | None, ns: str, kind: str | None, *, to: str | None) -> Work[Branch]:
    """One more branch, or a new thread."""
    if to is not None and ns:
        raise ValueError("a new thread begins with a checkpoint of the root namespace: leave out ns, or to")
    key: ThreadKey = yield Read(lambda: catalogue.known(session.tenant, id, kind))
    _check_namespace(key, ns)
    if to is not None:
        target = session.key(key.kind, to)
        made: Branch = yield Change(target, _to(session, key, ref, target))
        return made
    made = yield Change(key, _beside(session, key, ref, ns))
    return made


def tagging(session: Session, id: str, ref: str, ns: str, kind: str | None, *, name: str | None) -> Work[str]:
    """Tag a checkpoint, or take its tag away."""
    key: ThreadKey = yield Read(lambda: catalogue.known(session.tenant, id, kind))
    _check_namespace(key, ns)
    tagged: str = yield Change(key, lambda: tag.tag(session.heads, key, ref, ns, name, nonce()))
    return tagged


def _to(session: Session, key: ThreadKey, ref: str | None, target: ThreadKey) -> Callable[[], Plan[Branch]]:
    fork_to = talks.fork_to if key.kind == CUBE else branch.fork_to
    return lambda: fork_to(session.heads, key, ref, target, _moment())


def _beside(session: Session, key: ThreadKey, ref: str | None, ns: str) -> Callable[[], Plan[Branch]]:
    if key.kind == CUBE:
        return lambda: talks.fork(session.heads, key, ref, _moment())
    return lambda: branch.fork(session.heads, key, ref, ns, _moment())


def _check_namespace(key: ThreadKey, ns: str) -> None:
    if key.kind == CUBE and ns:
        raise ValueError(f"thread {key.id!r} is CubeLoop's: it has no namespaces")


def _moment() -> Moment:
    return Moment(now_us(), nonce())
