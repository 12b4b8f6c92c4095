"""Requests about tenants and their data keys in SQL, on the blocks of `tenants.sql`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.rows import Row
from threadkeep.engine.identity import from_bytes, to_bytes
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
from threadkeep.errors import Conflict, Corrupt
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext


def _load_tenant(db: SqlContext, request: LoadTenant) -> TenantRow | None:
    row = db.one("tenant", tenant=to_bytes(request.tenant))
    return None if row is None else read_tenant_row(request.tenant, row)


def read_tenant_row(tenant: str, row: Row) -> TenantRow:
    """Read a row of the block `tenant`. Corrupt if it is damaged: SQLite does not check the types of what it reads."""
    version, sealed, *records = row
    if (
        type(version) is not int
        or sealed not in (0, 1)
        or any(type(each) not in (bytes, type(None)) for each in records)
    ):
        raise Corrupt(f"the row of tenant {tenant!r} cannot be read: a column has a value of another type")
    return TenantRow(tenant, version, bool(sealed), *records)


def _store_tenant(db: SqlContext, request: StoreTenant) -> None:
    tenant, version, sealed, key, quota = request.row
    values = {"tenant": to_bytes(tenant), "version": version, "sealed": int(sealed), "key": key, "quota": quota}
    if request.expect is None:
        stored = db.one("insert-tenant", **values)
    else:
        stored = db.one("update-tenant", **values, expect=request.expect)
    if stored is None:
        raise Conflict
    if sealed:
        db.dialect.refuse_plain(db)


def _delete_tenant(db: SqlContext, request: DeleteTenant) -> None:
    if db.one("delete-tenant", tenant=to_bytes(request.tenant), expect=request.expect) is None:
        raise Conflict


def _list_tenants(db: SqlContext, request: ListTenants) -> tuple[str, ...]:
    start = b"" if request.after is None else to_bytes(request.after) + b"\x00"
    lists = [db.rows(block, start=start, limit=request.limit) for block in db.dialect.tenant_lists]
    found = sorted({row[0] for rows in lists for row in rows})
    return tuple(from_bytes(tenant) for tenant in found[: request.limit])


def _load_data_keys(db: SqlContext, request: LoadDataKeys) -> dict[bytes, bytes]:
    tenant = to_bytes(request.tenant)
    found = {name: db.one("data-key", tenant=tenant, name=name) for name in dict.fromkeys(request.names)}
    return {name: row[0] for name, row in found.items() if row is not None}


def _store_data_key(db: SqlContext, request: StoreDataKey) -> bytes:
    at = {"tenant": to_bytes(request.tenant), "name": request.name}
    db.rows("insert-data-key", **at, key=request.key)
    if request.replaces is not None:
        db.rows("replace-data-key", **at, key=request.key, replaces=request.replaces)
    row = db.one("data-key", **at)
    if row is None:
        raise Conflict  # deleted meanwhile
    stored: bytes = row[0]
    return stored


def _list_data_keys(db: SqlContext, request: ListDataKeys) -> tuple[tuple[bytes, bytes], ...]:
    start = b"" if request.after is None else request.after + b"\x00"
    rows = db.rows("list-data-keys", tenant=to_bytes(request.tenant), start=start, limit=request.limit)
    return tuple((name, key) for name, key in rows)


def _delete_data_keys(db: SqlContext, request: DeleteDataKeys) -> None:
    tenant = to_bytes(request.tenant)
    db.many("delete-data-keys", ({"tenant": tenant, "name": name} for name in request.names))


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    LoadTenant: _load_tenant,
    StoreTenant: _store_tenant,
    DeleteTenant: _delete_tenant,
    ListTenants: _list_tenants,
    LoadDataKeys: _load_data_keys,
    StoreDataKey: _store_data_key,
    ListDataKeys: _list_data_keys,
    DeleteDataKeys: _delete_data_keys,
}
