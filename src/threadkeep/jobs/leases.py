"""Show who holds the lease of a thread, and break it. `Keep.lease` takes one."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep.clock import nonce
from threadkeep.engine.identity import GRAPH, Kind, ThreadKey, as_id, as_kind
from threadkeep.engine.threads import lease_plans
from threadkeep.errors import Corrupt, Leased
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import Work, change, read


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """The lease of a thread: who took it (host and process), and how many seconds it lasts unless it is renewed.

    `seconds` is 0 if it has expired: then anybody may write the thread, or take another lease.
    """

    thread: str
    kind: Kind
    holder: str
    seconds: float

    __repr__ = short_repr


async def lease_info(session: Session, thread_id: str, *, kind: Kind | None = None) -> LeaseInfo | None:
    """Return the lease of a thread, None if it has none. `kind` is `graph`, the default, or `cube`. Two round trips."""
    key = _key(session, thread_id, kind)
    found = await lease_plans.show(key)
    return LeaseInfo(key.id, key.kind, found.lease.holder, found.left / 1000) if found is not None else None


def break_lease(session: Session, thread_id: str, *, kind: Kind | None = None) -> Work[bool]:
    """Take the lease of a thread away from whoever holds it. Return whether there was one.

    What its holder tries to write from now on raises LeaseLost. Three round trips.
    """
    key = _key(session, thread_id, kind)
    return (yield from change(key, lambda: lease_plans.release(session.heads, key, None, nonce())))


def check_lease(session: Session, key: ThreadKey) -> Work[None]:
    """Raise Leased if somebody else holds the lease of a thread: a dry run commits nothing that would find out.

    A lease in a damaged row does not count.
    """
    try:
        found = yield from read(lambda: lease_plans.show(key))
    except Corrupt:
        return
    if found is not None and found.left and found.lease.digest != session.leases.digest(key):
        raise Leased(f"thread {key.id!r} is leased by {found.lease.holder}, for {found.left / 1000:.1f} seconds more")


def _key(session: Session, thread_id: str, kind: Kind | None) -> ThreadKey:
    return session.key(as_kind(kind) or GRAPH, as_id(thread_id, "thread_id"))
