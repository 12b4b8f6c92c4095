"""The rows and data keys of tenants in dicts, for the in-memory backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from threadkeep.engine.identity import to_bytes
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
from threadkeep.errors import Conflict, WrongKey
from threadkeep.plan import Request


class InMemoryTenants:
    """All tenants of one Keep. `in_use` returns the tenants that have threads or memories."""

    def __init__(self, in_use: Callable[[], Iterable[str]]) -> None:
        self._in_use = in_use
        self._rows: dict[str, TenantRow] = {}
        self._keys: dict[tuple[str, bytes], bytes] = {}
        self.handlers: dict[type[Request[Any]], Callable[[Any], Any]] = {
            LoadTenant: lambda request: self._rows.get(request.tenant),
            StoreTenant: self._store,
            DeleteTenant: self._delete,
            ListTenants: self._list,
            LoadDataKeys: self._load_keys,
            StoreDataKey: self._store_key,
            ListDataKeys: self._list_keys,
            DeleteDataKeys: self._delete_keys,
        }

    def check_plain(self, tenant: str) -> None:
        """Raise WrongKey if a tenant is encrypted."""
        row = self._rows.get(tenant)
        if row is not None and row.sealed:
            raise WrongKey

    def _expect(self, tenant: str, version: int | None) -> None:
        row = self._rows.get(tenant)
        if (row.version if row is not None else None) != version:
            raise Conflict

    def _store(self, request: StoreTenant) -> None:
        self._expect(request.row.tenant, request.expect)
        self._rows[request.row.tenant] = request.row

    def _delete(self, request: DeleteTenant) -> None:
        self._expect(request.tenant, request.expect)
        del self._rows[request.tenant]

    def _list(self, request: ListTenants) -> tuple[str, ...]:
        names = sorted({*self._rows, *self._in_use()}, key=to_bytes)
        after = request.after
        return tuple(name for name in names if after is None or to_bytes(name) > to_bytes(after))[: request.limit]

    def _load_keys(self, request: LoadDataKeys) -> dict[bytes, bytes]:
        names = {name: (request.tenant, name) for name in request.names}
        return {name: self._keys[at] for name, at in names.items() if at in self._keys}

    def _store_key(self, request: StoreDataKey) -> bytes:
        at = (request.tenant, request.name)
        if at not in self._keys or self._keys[at] == request.replaces:
            self._keys[at] = request.key
        return self._keys[at]

    def _list_keys(self, request: ListDataKeys) -> tuple[tuple[bytes, bytes], ...]:
        own = sorted((name, key) for (tenant, name), key in self._keys.items() if tenant == request.tenant)
        return tuple(each for each in own if request.after is None or each[0] > request.after)[: request.limit]

    def _delete_keys(self, request: DeleteDataKeys) -> None:
        for name in request.names:
            self._keys.pop((request.tenant, name), None)
