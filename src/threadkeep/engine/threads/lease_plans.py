"""Take, renew, release, break and show the lease of a thread: plans of three round trips.

Each reads the thread's row and the clock, and commits the row with another lease. They may be repeated: whoever takes a
lease recognizes it by its digest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.lease import StoredLease, is_held, pack_lease, unpack_lease
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.requests import LoadItems, ReadClock, StorageClock
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.row_changes import change_row


class Grant(NamedTuple):
    """A lease that is to be taken or renewed: the digest of its token, its ttl in milliseconds, and who takes it."""

    digest: bytes
    ttl: int
    holder: str


class FoundLease(NamedTuple):
    """A lease that a thread has, and how many milliseconds it lasts; 0 if it has expired."""

    lease: StoredLease
    left: int


class _LeaseDecision(NamedTuple):
    """What becomes of the lease, if anything, and the plan's result."""

    changes: bool
    lease: bytes | None = None
    result: FoundLease | bool | None = None


async def take(heads: Heads, key: ThreadKey, grant: Grant, time: int, nonce: int) -> FoundLease | None:
    """Take the lease of a thread, which need not exist. Return None, or the lease that somebody else holds."""

    def decide(row: ThreadRow | None, clock: StorageClock) -> _LeaseDecision:
        held = _found(row, clock) if row is not None else None
        if held is not None and held.left and held.lease.digest != grant.digest:
            return _LeaseDecision(changes=False, result=held)
        return _LeaseDecision(changes=True, lease=_packed(grant, clock))

    found = await _change(heads, key, decide, time, nonce)
    return found if isinstance(found, FoundLease) else None


async def renew(heads: Heads, key: ThreadKey, grant: Grant, nonce: int) -> bool:
    """Let a lease last for its ttl again, even if it has expired. Return False if the thread has it no more."""

    def decide(row: ThreadRow | None, clock: StorageClock) -> _LeaseDecision:
        if row is None or row.lease is None or not is_held(row.lease, grant.digest):
            return _LeaseDecision(changes=False, result=False)
        return _LeaseDecision(changes=True, lease=_packed(grant, clock), result=True)

    return bool(await _change(heads, key, decide, 0, nonce))


async def release(heads: Heads, key: ThreadKey, digest: bytes | None, nonce: int) -> bool:
    """Remove a lease, or with None that of whoever has it. A thread that has nothing else is deleted.

    Return False if the thread does not have the lease.
    """

    def decide(row: ThreadRow | None, _: StorageClock) -> _LeaseDecision:
        if row is None or row.lease is None or not (digest is None or is_held(row.lease, digest)):
            return _LeaseDecision(changes=False, result=False)
        return _LeaseDecision(changes=True, result=True)

    return bool(await _change(heads, key, decide, 0, nonce))


async def show(key: ThreadKey) -> FoundLease | None:
    """Return the lease of a thread, None if it has none. One round trip, or two."""
    row = (await LoadItems(key, ())).thread
    return None if row is None or row.lease is None else _found(row, await ReadClock(key))


async def is_leased(key: ThreadKey) -> bool:
    """Return whether somebody holds a lease of a thread. One round trip, or two."""
    found = await show(key)
    return found is not None and found.left > 0


def _found(row: ThreadRow, clock: StorageClock) -> FoundLease | None:
    if row.lease is None:
        return None
    lease = unpack_lease(row.lease, f"thread {row.key.id!r}")
    return FoundLease(lease, lease.left(clock))


def _packed(grant: Grant, clock: StorageClock) -> bytes:
    return pack_lease(StoredLease(grant.digest, clock.now + grant.ttl, grant.ttl, clock.name, grant.holder))


async def _change(
    heads: Heads,
    key: ThreadKey,
    decide: Callable[[ThreadRow | None, StorageClock], _LeaseDecision],
    time: int,
    nonce: int,
) -> FoundLease | bool | None:
    async def with_clock(row: ThreadRow | None) -> tuple[dict[str, bytes | None] | None, FoundLease | bool | None]:
        changes, lease, result = decide(row, await ReadClock(key))
        return {"lease": lease} if changes else None, result

    return await change_row(heads, key, with_clock, time, nonce)
