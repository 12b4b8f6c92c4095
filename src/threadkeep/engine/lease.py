"""Who may write a thread: whoever holds its lease, or everybody if it has none.

The row of a thread has its lease. A commit names the (epoch, rev) that it was decided on, and taking a lease is a
commit too. So nobody can write because of what the row was before: the commit is a Conflict, and the next try reads the
row with the lease. Here it is only compared with that of the caller, and no backend needs another precondition.

    the row has      the caller has    the change
    no lease         no lease          is made
    a lease          the same one      is made, even if the lease has expired: nobody has written or taken it since
    a lease          no lease          raises Leased; if the lease has expired, it is made and removes the lease
    no, or another   a lease           raises LeaseLost
    any              FORCED            is made and leaves the lease alone

The clock is read in the third case only.

The row has a digest of the token by which the holder is recognized: the token cannot be read from the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import pack, unpack
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.requests import NAMELESS_START, Commit, CopyThread, ForkThread, ReadClock, StorageClock
from threadkeep.errors import Corrupt, Leased, LeaseLost

DIGEST_BYTES = 16
FORCED = b"forced"
"""The lease of a caller who may change every thread."""
LEASE_ERRORS = (Leased, LeaseLost)
"""What is raised here: Conflicts that are not tried again."""


# --- as the row stores it


def digest_of(token: str) -> bytes:
    """Return the digest of a token, by which it is recognized."""
    from hashlib import blake2b  # noqa: PLC0415 - few programs need it

    data = token.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=DIGEST_BYTES, person=b"threadkeep lease").digest()


class StoredLease(NamedTuple):
    """A lease: who holds it, and until when by the clock of the storage. `ttl` is in milliseconds."""

    digest: bytes
    expires: int
    ttl: int
    clock: str
    holder: str

    def left(self, clock: StorageClock) -> int:
        """Return how many milliseconds it lasts; 0 if it has expired."""
        left = self.expires - clock.now
        if self.clock != clock.name or left < 0:
            return 0
        return 0 if self.clock == NAMELESS_START and left > self.ttl else left


def pack_lease(lease: StoredLease) -> bytes:
    """Return a lease as a row stores it."""
    return lease.digest + pack([lease.expires, lease.ttl, lease.clock, lease.holder])


def unpack_lease(stored: bytes, where: str) -> StoredLease:
    """Read a lease. Corrupt if it is none."""
    what = f"the lease of {where}"
    found = unpack(stored[DIGEST_BYTES:], what)
    try:
        expires, ttl, clock, holder = found
    except (TypeError, ValueError):
        raise Corrupt(f"{what} cannot be read: break it with `threadkeep lease break`") from None
    if not (type(expires) is type(ttl) is int and type(clock) is type(holder) is str):
        raise Corrupt(f"{what} cannot be read: break it with `threadkeep lease break`")
    return StoredLease(stored[:DIGEST_BYTES], expires, ttl, clock, holder)


# --- who may write


def is_held(stored: bytes | None, lease: bytes | None) -> bool:
    """Return whether a caller with this lease may write a row with that one, as far as no clock is needed to know."""
    if stored is None or lease is None:
        return stored is lease
    return stored[:DIGEST_BYTES] == lease


def hold(row: ThreadRow | None, ops: Iterable[Any]) -> bool:
    """Return whether the callers of all ops may write a thread with this row, as far as no clock is needed to know."""
    stored = row.lease if row is not None else None
    return all(is_held(stored, op.lease) for op in ops)


async def admit(key: ThreadKey, stored: bytes | None, lease: bytes | None) -> bytes | None:
    """Return the lease that a thread has after a change by a caller. Raise Leased or LeaseLost if it may not be made.

    `stored` is the lease in the row as it was read just now. At most one round trip.
    """
    if lease == FORCED or is_held(stored, lease):
        return stored
    if lease is not None:
        raise LeaseLost(
            f"the lease on thread {key.id!r} was lost: it ended, or it expired and another writer took the thread"
        )
    assert stored is not None
    found = unpack_lease(stored, f"thread {key.id!r}")
    clock = await ReadClock(key)
    if found.left(clock):
        raise leased_error(key, found, clock)
    return None


def leased_error(key: ThreadKey, lease: StoredLease, clock: StorageClock) -> Leased:
    """Return the error that says who holds a lease."""
    seconds = lease.left(clock) / 1000
    return Leased(
        f"thread {key.id!r} is leased by {lease.holder}, for {seconds:.1f} seconds more unless it renews the lease"
    )


def is_empty(row: ThreadRow) -> bool:
    """Return whether a thread has nothing but its row, as after its lease was taken before anything was stored.

    A thread that was described has that.
    """
    return not (row.nexts or row.checkpoints or row.writes or row.description)


def with_lease(request: Commit | ForkThread | CopyThread, lease: bytes | None) -> Commit | ForkThread | CopyThread:
    """Return a change after which the thread has this lease."""
    if isinstance(request, CopyThread):
        return request._replace(thread=request.thread._replace(lease=lease))
    batch = request.batch
    return request._replace(batch=batch._replace(thread=batch.thread._replace(lease=lease)))
