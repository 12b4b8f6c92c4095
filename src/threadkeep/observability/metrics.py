"""What `Keep.metrics` returns: numbers of this process since the Keep was opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.session import Session


@dataclass(frozen=True, slots=True)
class VerbMetrics:
    """The calls of one verb: how many ended, failed, and were slow, how long they took, and what they needed.

    `seconds` is the sum over all calls, `longest` the longest one. Bytes are those of rows, before encryption.
    """

    calls: int = 0
    errors: int = 0
    slow: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    round_trips: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    retries: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class Metrics:
    """Numbers of this process since the Keep was opened. Those from `cache_hits` on are 0 unless it is `measured`.

    Requests that were sent again because the storage was away are `retries`; changes that were decided anew because
    others had changed the same thread are `conflicts`. `lost_connections` says how often caches were dropped because a
    connection was lost. `pool_waits` and `pool_wait_seconds` are about callers that waited for a connection to
    PostgreSQL while all were in use.

    `commits` are transactions that changed threads, and `changes` what callers asked for: several may share a commit.
    """

    backend: str
    measured: bool
    cached_threads: int
    cached_bytes: int
    retries: int
    conflicts: int
    lost_connections: int
    pool_waits: int
    pool_wait_seconds: float
    cache_hits: int = 0
    cache_misses: int = 0
    commits: int = 0
    changes: int = 0
    items_stored: int = 0
    items_referenced: int = 0
    verbs: Mapping[str, VerbMetrics] = field(default_factory=dict)

    @property
    def sharing(self) -> float:
        """The part of the items in new checkpoints that was stored before: 0.9 if nine of ten were. 0 without items."""
        if not self.items_referenced:
            return 0.0
        return max(0.0, 1 - self.items_stored / self.items_referenced)


def backend_of(transport: Any) -> str:
    """Return the name of the backend that a transport uses."""
    module = type(transport).__module__.rpartition(".")[2]
    return {"direct": "memory", "postgres": "postgresql"}.get(module, module)


def collect(session: Session) -> Metrics:
    """Return the numbers of a Keep. No I/O."""
    observer = session.observer
    threads, size = session.heads.usage()
    counted = observer.counted() if observer is not None else {}
    return Metrics(
        backend=backend_of(session.transport.inner),
        measured=observer is not None,
        cached_threads=threads,
        cached_bytes=size,
        verbs=observer.verbs() if observer is not None else {},
        **storage_counts(session),
        **counted,
    )


def storage_counts(session: Session) -> dict[str, Any]:
    """Return what is counted whether a Keep is measured or not."""
    waits, seconds = session.transport.pool_waits() if hasattr(session.transport, "pool_waits") else (0, 0.0)
    return {
        "retries": session.root.runner.retries,
        "conflicts": session.root.runner.conflicts,
        "lost_connections": session.root.caches.losses,
        "pool_waits": waits,
        "pool_wait_seconds": seconds,
    }
