"""Quotas: how many bytes a tenant may store, and who may store how much of that. Decisions only, no I/O.

A tenant's row has a record of its quota: the limit, and how much of it is taken. Each process takes a slice of 1 %, and
stores so many bytes before it takes the next one; so commits share no row. A process that ends returns what is left of
its slice; one that is killed does not, and what is deleted is not returned either. So when the limit seems to be
reached, what is really stored is measured, and the record starts anew from there.

    taken = stored bytes + what is left of the slices

Slices that others hold are forgotten when it starts anew. So a tenant may exceed its quota by one slice for each
process that is writing at the time, and by what others store while it is measured.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.engine.identity import CACHE, UNFINISHED, to_bytes
from threadkeep.engine.memories.requests import ChangeMemories, MemoryRow, SweepMemories, WriteMemories
from threadkeep.engine.requests import Batch, Commit, CopyThread, DropThread, ForkThread
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

_SLICES = 100
_FORM = 1


class QuotaRecord(NamedTuple):
    """The quota of a tenant, as it is stored. `taken` is None until what is stored was measured for the first time."""

    limit: int
    taken: int | None = None
    measured: int = 0
    """How often what is stored was measured. A slice that was taken before is forgotten."""

    def pack(self) -> bytes:
        """Return the record as bytes."""
        return ormsgpack.packb([_FORM, *self])

    @classmethod
    def unpack(cls, tenant: str, packed: bytes) -> QuotaRecord:
        """Reverse `pack`. Corrupt if it cannot be read."""
        try:
            form, limit, taken, measured = ormsgpack.unpackb(packed)
        except (ValueError, TypeError) as error:
            raise Corrupt(f"the quota of tenant {tenant!r} cannot be read") from error
        if form != _FORM:
            raise Corrupt(f"the quota of tenant {tenant!r} has the unknown form {form!r}: upgrade threadkeep")
        return cls(limit, taken, measured)


def as_quota(value: Any) -> float | None:
    """Return a quota in bytes, `math.inf` for no limit, None for none given. Otherwise TypeError or ValueError."""
    if value is None or value == math.inf:
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"quota_bytes must be an int, math.inf or None, not {value!r}")
    if not 0 <= value < 1 << 62:
        raise ValueError(f"quota_bytes must be a number of bytes, 0 or more, not {value!r}")
    return value


def take(record: QuotaRecord, needed: int) -> tuple[QuotaRecord, int] | None:
    """Take at least `needed` bytes, a slice if there is as much. None if there seems to be less than needed."""
    if record.taken is None or needed > record.limit - record.taken:
        return None
    slice_bytes = min(max(record.limit // _SLICES, needed), record.limit - record.taken)
    return record._replace(taken=record.taken + slice_bytes), slice_bytes


def start_anew(record: QuotaRecord, stored: int) -> QuotaRecord:
    """Return the record after what is stored was measured."""
    return record._replace(taken=stored, measured=record.measured + 1)


def give_back(record: QuotaRecord, left: int, measured: int) -> QuotaRecord:
    """Return what is left of a slice, unless it was forgotten."""
    if record.taken is None or record.measured != measured:
        return record
    return record._replace(taken=max(record.taken - left, 0))


def memory_bytes(row: MemoryRow) -> int:
    """Return how much of a quota a memory takes, without its vectors: its value, namespace and key, as UTF-8."""
    return len(to_bytes(row.value)) + len(to_bytes(row.key)) + sum(len(to_bytes(each)) for each in row.namespace)


def added_bytes(request: Request[Any]) -> int:
    """Return how many bytes a change adds. 0 if it may always be made: it frees something, or changes no rows.

    A change that removes checkpoints may also add some bytes, for rows that it stores again. Those are not counted, and
    neither are the entries of a cache.
    """
    if isinstance(request, Commit):
        return batch_bytes(request.batch)
    if isinstance(request, ForkThread):  # without the items that it copies
        return batch_bytes(request.batch)
    if isinstance(request, CopyThread):
        return 0 if request.thread.key.tenant.startswith(UNFINISHED) else max(request.thread.bytes, 0)
    if isinstance(request, ChangeMemories):
        return added_bytes(request.write)
    if isinstance(request, WriteMemories):
        if request.tenant.startswith(CACHE):
            return 0
        return sum(memory_bytes(put.row) + sum(map(len, put.vectors)) for put in request.puts)
    return 0


def batch_bytes(batch: Batch) -> int:
    """Return how many bytes a batch adds; see `added_bytes`. What a transfer builds counts when it takes its place."""
    if removes_rows(batch) or batch.thread.key.tenant.startswith(UNFINISHED):
        return 0
    return max(batch.thread.bytes, 0)


def removes_rows(batch: Batch) -> bool:
    """Return whether a batch removes something."""
    return bool(batch.drops_thread or batch.removed_checkpoints or batch.removed_writes or batch.removed_items)


def may_free(request: Request[Any]) -> bool:
    """Return whether less may be stored after a change than before."""
    if isinstance(request, Commit):
        return removes_rows(request.batch)
    if isinstance(request, (WriteMemories, ChangeMemories)):
        return True  # of a memory that is replaced, the old value is freed
    return isinstance(request, (DropThread, SweepMemories, CopyThread))
