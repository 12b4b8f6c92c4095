"""Tenants on Valkey: their rows and data keys, and in each partition the set of its tenants.

    {n}:y:…     the row of a tenant
    {n}:z:…     its data keys by name; q: their names in order
    {n}:j:      the tenants that have a row in this slot
    {n}:a:      the tenants that have threads in this partition, after a `t`; the tenants that are sealed, after an `s`

The row and the keys of a tenant are in one slot. Scripts look into the set of tenants before they store what is not
encrypted. So a tenant is sealed by a change of the sets of all partitions; before that of its row, so that a row never
says more than what is enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from threadkeep.backends.valkey.calls import Call, CallExecutor
from threadkeep.backends.valkey.keys import PARTITIONS, key_of, keys_of_partitions, tenants_key
from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.memories.namespaces import decode, encode
from threadkeep.engine.tenants.requests import (
    DeleteDataKeys,
    DeleteTenant,
    ListDataKeys,
    ListTenants,
    LoadDataKeys,
    LoadTenant,
    StoreDataKey,
    StoreTenant,
    TenantRow,
)
from threadkeep.errors import Conflict
from threadkeep.plan import Request

_FIELDS = ("version", "sealed", "key", "quota")
_LOOK_FIRST = 8
"""In how many partitions a list first looks for threads of a tenant, before it looks in all."""
_DEFAULT = ""
"""The usual tenant. Others are not listed as long as all of their threads are as a version before 8 stored them."""


class ValkeyTenants:
    """The tenants below a prefix of keys."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self.handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            LoadTenant: self._load_tenant,
            StoreTenant: self._store_tenant,
            DeleteTenant: self._delete_tenant,
            ListTenants: self._list_tenants,
            LoadDataKeys: self._load_data_keys,
            StoreDataKey: self._store_data_key,
            ListDataKeys: self._list_data_keys,
            DeleteDataKeys: self._delete_data_keys,
        }

    def _key(self, what: bytes, tenant: str) -> bytes:
        return key_of(self._prefix, _slot(tenant), what, to_bytes(tenant))

    def _row_keys(self, tenant: str) -> tuple[bytes, bytes]:
        return self._key(b"y", tenant), key_of(self._prefix, _slot(tenant), b"j", b"")

    def _data_keys(self, tenant: str) -> tuple[bytes, bytes]:
        return self._key(b"z", tenant), self._key(b"q", tenant)

    # --- rows

    def _load_tenant(self, executor: CallExecutor, request: LoadTenant) -> TenantRow | None:
        return self._load(executor, request.tenant)

    def _load(self, executor: CallExecutor, tenant: str) -> TenantRow | None:
        version, sealed, key, quota = executor.call(Call("HMGET", (self._key(b"y", tenant),), _FIELDS))
        return None if version is None else TenantRow(tenant, int(version), bool(int(sealed)), key, quota)

    def _store_tenant(self, executor: CallExecutor, request: StoreTenant) -> None:
        """Store a row. If that changes whether the tenant is sealed, change the sets of all partitions too.

        One round trip to compare, one to store, and one more to seal.
        """
        row, stored = request.row, self._load(executor, request.row.tenant)
        if (stored.version if stored is not None else None) != request.expect:
            raise Conflict
        was_sealed = stored is not None and stored.sealed
        if row.sealed and not was_sealed:
            self._mark(executor, row.tenant, sealed=True)
        fields = zip(_FIELDS, (row.version, int(row.sealed), row.key, row.quota), strict=True)
        pieces = [piece for pair in fields if pair[1] is not None for piece in pair]
        if not self._change_row(executor, row.tenant, request.expect, pieces):
            current = self._load(executor, row.tenant)
            if current is None or not current.sealed:
                self._mark(executor, row.tenant, sealed=False)
            raise Conflict
        if was_sealed and not row.sealed:
            self._mark(executor, row.tenant, sealed=False)

    def _change_row(self, executor: CallExecutor, tenant: str, expect: int | None, pieces: Sequence[Any]) -> bool:
        args = ("" if expect is None else expect, to_bytes(tenant), *pieces)
        return bool(executor.call(Call("store_tenant", self._row_keys(tenant), args)))

    def _mark(self, executor: CallExecutor, tenant: str, *, sealed: bool) -> None:
        """Say in the set of each partition whether a tenant is sealed."""
        keys = [tenants_key(self._prefix, partition) for partition in range(PARTITIONS)]
        name, args = ("ZADD", (0, b"s" + to_bytes(tenant))) if sealed else ("ZREM", (b"s" + to_bytes(tenant),))
        executor.calls([Call(name, (key,), args) for key in keys])

    def _delete_tenant(self, executor: CallExecutor, request: DeleteTenant) -> None:
        """Delete a row. If the tenant was sealed, it is not any more."""
        stored = self._load(executor, request.tenant)
        if not self._change_row(executor, request.tenant, request.expect, ()):
            raise Conflict
        if stored is not None and stored.sealed:
            self._mark(executor, request.tenant, sealed=False)

    # --- lists

    def _list_tenants(self, executor: CallExecutor, request: ListTenants) -> tuple[str, ...]:
        """Return tenants by name, from the sets of all partitions. Two round trips, and more if tenants are gone."""
        found: list[str] = []
        after = request.after
        while len(found) < request.limit:
            page = self._candidates(executor, after, request.limit)
            found += self._existing(executor, page)
            if len(page) < request.limit:
                break
            after = max(page, key=to_bytes)
        return tuple(found[: request.limit])

    def _candidates(self, executor: CallExecutor, after: str | None, limit: int) -> dict[str, list[int]]:
        """Return tenants by name, each with the partitions where it may have threads; none if it exists in any case."""
        name = to_bytes(after or "")
        low = (b"[t", b"-", b"-") if after is None else (b"(t" + name, b"(" + name, b"(" + encode((after,)) + b"\xff")
        slots = [
            (tenants_key(self._prefix, slot), *(key_of(self._prefix, slot, what, b"") for what in (b"j", b"p")))
            for slot in range(PARTITIONS)
        ]
        replies = executor.calls([Call("list_tenants", keys, (*low, limit)) for keys in slots])
        names: dict[bytes, list[int]] = {}
        for slot, (with_threads, _, _) in enumerate(replies):
            for member in with_threads:
                names.setdefault(member[1:], []).append(slot)
        if after is None:  # its threads may have been stored before there was the set
            names[to_bytes(_DEFAULT)] = list(range(PARTITIONS))
        for _, with_row, parts in replies:
            names |= {each: [] for each in (*with_row, *(to_bytes(decode(part)[0]) for part in parts))}
        return {from_bytes(name): names[name] for name in sorted(names)[:limit]}

    def _existing(self, executor: CallExecutor, page: dict[str, list[int]]) -> list[str]:
        """Return the tenants that exist. All threads of the others have expired."""
        doubtful = {name: slots for name, slots in page.items() if slots}
        for first, last in ((0, _LOOK_FIRST), (_LOOK_FIRST, PARTITIONS)):
            asked: list[tuple[str, bytes]] = []
            for name, slots in doubtful.items():
                keys = keys_of_partitions(self._prefix, b"n", name)
                asked += [(name, keys[slot]) for slot in slots[first:last]]
            replies = executor.calls([Call("EXISTS", (key,)) for _, key in asked])
            there = {name for (name, _), reply in zip(asked, replies, strict=True) if reply}
            doubtful = {name: slots for name, slots in doubtful.items() if name not in there}
        return [name for name in page if name not in doubtful]

    # --- data keys

    def _load_data_keys(self, executor: CallExecutor, request: LoadDataKeys) -> dict[bytes, bytes]:
        if not request.names:
            return {}
        found = executor.call(Call("HMGET", self._data_keys(request.tenant)[:1], request.names))
        return {name: key for name, key in zip(request.names, found, strict=True) if key is not None}

    def _store_data_key(self, executor: CallExecutor, request: StoreDataKey) -> bytes:
        args = (request.name, request.key, request.replaces or b"")
        stored: bytes = executor.call(Call("store_data_key", self._data_keys(request.tenant), args))
        return stored

    def _list_data_keys(self, executor: CallExecutor, request: ListDataKeys) -> tuple[tuple[bytes, bytes], ...]:
        low = b"-" if request.after is None else b"(" + request.after
        found = executor.call(Call("list_data_keys", self._data_keys(request.tenant), (low, request.limit)))
        return tuple(zip(found[::2], found[1::2], strict=True))

    def _delete_data_keys(self, executor: CallExecutor, request: DeleteDataKeys) -> None:
        if request.names:
            executor.call(Call("delete_data_keys", self._data_keys(request.tenant), request.names))


def _slot(tenant: str) -> int:
    return int.from_bytes(blake2b(to_bytes(tenant), digest_size=8).digest(), "big") % PARTITIONS
