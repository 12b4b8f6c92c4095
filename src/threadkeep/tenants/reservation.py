"""A reservation: what this process may still store of a tenant's quota, and how it gets more. See `quota`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from threadkeep.clock import nonce
from threadkeep.drivers import forks
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.engine.memories.requests import ChangeMemories, GetMemories, WriteMemories
from threadkeep.engine.requests import ForkThread, MeasureItems
from threadkeep.engine.tenants.requests import LoadTenant, StoreTenant, TenantRow
from threadkeep.errors import Conflict, QuotaExceeded, Unavailable
from threadkeep.plan import Request
from threadkeep.tenants import quota
from threadkeep.tenants.quota import QuotaRecord
from threadkeep.tenants.usage import measure

_TRIES = 100
_SECONDS_BETWEEN_MEASUREMENTS = 5.0
Execute = Callable[[Request[Any]], Any]


def store_limit(execute: Execute, tenant: str, limit: float | None, row: TenantRow | None) -> int | None:
    """Store the limit of a tenant's quota, `math.inf` for none; None leaves it. Return the limit that it has then."""
    for _ in range(_TRIES):
        record = record_of(row)
        stored = record.limit if record is not None else math.inf
        if limit is None or stored == limit:
            return record.limit if record is not None else None
        new = None if limit == math.inf else (record or QuotaRecord(0))._replace(limit=int(limit)).pack()
        old = row or TenantRow(tenant, 0, sealed=False, key=None, quota=None)
        try:
            execute(StoreTenant(old._replace(version=nonce(), quota=new), row.version if row is not None else None))
        except Conflict:
            row = execute(LoadTenant(tenant))
        else:
            return None if limit == math.inf else int(limit)
    raise Unavailable(f"others changed the row of tenant {tenant!r} at every try")


def record_of(row: TenantRow | None) -> QuotaRecord | None:
    """Return the quota in a tenant's row; None if it has none."""
    return QuotaRecord.unpack(row.tenant, row.quota) if row is not None and row.quota is not None else None


class Reservation:
    """What this process may still store for a tenant. `limit` is the quota as it was last read; None if there is none.

    `execute` sends a request as it is. May be used from any thread.
    """

    def __init__(self, tenant: str, execute: Execute) -> None:
        self.tenant = tenant
        self.limit: int | None = None
        self._execute = execute
        self._left = 0
        self._under_way = 0
        """Bytes of changes that are being made: what is stored may include them or not."""
        self._measured = 0
        self._lock = threading.Lock()
        """Guards `_left` and `_under_way`. Nobody waits for the storage while holding it."""
        self._taking = threading.Lock()
        """Held by whoever takes a slice: others of this tenant wait for that."""
        self._measure_at = 0.0
        self._may_have_freed = False
        forks.watch(self)

    def spend_at_once(self, added: int) -> bool:
        """Spend bytes of what is reserved already, without a request. Return whether there were enough."""
        with self._lock:
            if added > self._left:
                return added == 0
            self._left -= added
            self._under_way += added
            return True

    def spend(self, request: Request[Any]) -> int:
        """Spend what a change adds, and return how much that is. QuotaExceeded if there is not so much left.

        Call `settle` with it after the change.

        Usually no round trip; two for each slice. If the quota seems to be used up, those of `measure`, at most every
        five seconds, unless this process has deleted something meanwhile.
        """
        added = quota.added_bytes(request)
        if isinstance(request, ForkThread) and added:
            measured = self._execute(MeasureItems(request.source, request.ranges))
            added += sum(size for _, _, size, _ in measured.items)
        if not self.spend_at_once(added):
            with self._taking:
                if not self.spend_at_once(added) and not self._take(added):
                    if not self._makes_smaller(request):
                        raise QuotaExceeded(self._message(added))
                    return 0
        return added

    def settle(self, added: int, request: Request[Any], *, is_made: bool) -> None:
        """Note whether a change was made. If it was not, take back what was spent on it.

        If it freed something, what is stored is measured again before QuotaExceeded is raised.
        """
        with self._lock:
            self._under_way -= added
            if not is_made:
                self._left += added
        if is_made and quota.may_free(request):
            self._may_have_freed = True

    def note_drop(self) -> None:
        """Note that a thread was deleted."""
        self._may_have_freed = True

    def before_fork(self) -> None:
        """Do nothing: a lock that is held by then is replaced in the child."""

    def after_fork(self, *, child: bool) -> None:
        """In the child, start without a slice: that is the parent's."""
        if child:
            self._lock, self._taking = threading.Lock(), threading.Lock()
            self._left = self._under_way = 0

    def end(self) -> None:
        """Return what is left to the tenant. It can be used again afterwards."""
        with self._taking:
            with self._lock:
                left, self._left = self._left, 0
            for _ in range(_TRIES if left else 0):
                row, record = self._load()
                if row is None or record is None:
                    return
                if self._store(row, quota.give_back(record, left, self._measured)):
                    return

    # --- requests, while `_taking` is held

    def _take(self, added: int) -> bool:
        """Take a slice, and spend `added` of it. Return whether there was so much."""
        stored: int | None = None
        is_anew = False
        for _ in range(_TRIES):
            row, record = self._load()
            if row is None or record is None:  # there is no quota any more
                return True
            with self._lock:
                if record.measured != self._measured:
                    self._left, self._measured = 0, record.measured
                left = self._left
            taken = quota.take(record, added - left)
            if taken is not None:
                if self._store(row, taken[0]):
                    with self._lock:
                        self._left += taken[1] - added
                        self._under_way += added
                    return True
            elif is_anew or (stored is None and record.taken is not None and not self._may_measure()):
                return False
            else:
                if stored is None:
                    stored = self._measure()
                is_anew = self._store(row, quota.start_anew(record, stored))
        raise Unavailable(f"others took slices of the quota of tenant {self.tenant!r} at every try")

    def _measure(self) -> int:
        """Return what is stored, or about to be: nobody spends anything meanwhile."""
        self._may_have_freed = False
        with self._lock:
            self._left, under_way = 0, self._under_way
        stored = measure(self._execute, self.tenant).bytes
        self._measure_at = monotonic() + _SECONDS_BETWEEN_MEASUREMENTS
        return stored + under_way

    def _may_measure(self) -> bool:
        return self._may_have_freed or monotonic() >= self._measure_at

    def _load(self) -> tuple[TenantRow | None, QuotaRecord | None]:
        row: TenantRow | None = self._execute(LoadTenant(self.tenant))
        record = record_of(row)
        self.limit = record.limit if record is not None else None
        return row, record

    def _store(self, row: TenantRow, record: QuotaRecord) -> bool:
        """Store a record. Return whether nobody else was first."""
        try:
            self._execute(StoreTenant(row._replace(version=nonce(), quota=record.pack()), row.version))
        except Conflict:
            return False
        return True

    def _makes_smaller(self, request: Request[Any]) -> bool:
        """Return whether the values of a change of memories are not larger than those that it replaces or deletes.

        Vectors are not compared: nearly always, they are replaced by as many.
        """
        if isinstance(request, ChangeMemories):
            request = request.write
        if not isinstance(request, WriteMemories):
            return False
        keys = {*(MemoryKey(put.row.namespace, put.row.key) for put in request.puts), *request.deletes}
        stored = self._execute(GetMemories(request.tenant, tuple(keys), request.now))
        old = sum(quota.memory_bytes(row) for row in stored if row is not None)
        return sum(quota.memory_bytes(put.row) for put in request.puts) <= old

    def _message(self, added: int) -> str:
        return (
            f"tenant {self.tenant!r} has a quota of {self.limit:,} bytes, which leaves no room for {added:,} more: "
            "delete or prune something, or raise the quota"
        )
