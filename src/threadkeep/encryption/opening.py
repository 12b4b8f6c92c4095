"""The first use of an encrypted storage: unwrap the keys of the tenant, or make them if nothing is stored."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

from threadkeep.clock import nonce, now_ms
from threadkeep.encryption.keys import Keys
from threadkeep.encryption.tenant_key import ENCRYPTING, NEW, REENCRYPTING, SEALED, TenantKey, TenantState
from threadkeep.engine.memories.requests import CountMemories
from threadkeep.engine.requests import ListThreads
from threadkeep.engine.tenants.requests import DeleteTenant, LoadTenant, StoreTenant, TenantRow
from threadkeep.errors import Conflict, Unavailable, WrongKey
from threadkeep.plan import Request

Execute = Callable[[Request[Any]], Any]
_UNNOTICED_MS = 600_000
"""A process reads a tenant's row again once a minute before it writes. Until then it may wrap data keys by a key that
`rotate` has replaced; this is ten times as long, because processes may stop and clocks differ."""


def open_tenant(
    execute: Execute,
    keys: Keys,
    tenant: str,
    *,
    hide_ids: bool | None,
    hides_new: Callable[[], bool],
    read_only: bool,
) -> TenantKey:
    """Return the keys of a tenant. If nothing of it is stored, make them; their state is NEW if nothing may be stored.

    Without `hide_ids`, `hides_new` says whether the ids of a new tenant are hidden.

    WrongKey if the master keys do not fit, or if the tenant has plain data: that must be encrypted first. Unavailable
    while `reencrypt` runs. ValueError if `hide_ids` is not what the tenant was made with.
    """
    again = partial(open_tenant, execute, keys, tenant, hide_ids=hide_ids, hides_new=hides_new, read_only=read_only)
    row: TenantRow | None = execute(LoadTenant(tenant))
    if row is None or not row.sealed:
        if _has_data(execute, tenant):
            if execute(LoadTenant(tenant)) == row:
                raise _has_plain_data(tenant)
            return again()  # another process was first
        key = TenantKey.new(tenant, TenantState(NEW, hides_new() if hide_ids is None else hide_ids))
        if read_only:
            return key
        try:
            row = store_tenant(execute, key, keys, row)
        except Conflict:  # another process was first
            return again()
    else:
        key = TenantKey.from_row(row, keys)
    if key.state.state == REENCRYPTING:
        raise Unavailable(
            "everything is being encrypted anew: wait until `threadkeep reencrypt` has ended, or run it again "
            "if it was interrupted"
        )
    if hide_ids is not None and hide_ids != key.state.hides_ids:
        kind = "hidden" if key.state.hides_ids else "visible"
        raise ValueError(f"hide_ids={hide_ids}: this storage was encrypted with {kind} ids")
    if key.state.state != NEW or read_only:
        return key
    try:
        return _seal_new_tenant(execute, keys, row, key)
    except Conflict:  # another process was first
        return again()


def _seal_new_tenant(execute: Execute, keys: Keys, row: TenantRow, key: TenantKey) -> TenantKey:
    """State that a new tenant has no plain data: since its keys were stored, by whomever, nobody can add any.

    Conflict if its row was changed meanwhile.
    """
    if _has_data(execute, key.tenant):  # it is plain, or this is a Conflict
        if row.quota is None:
            execute(DeleteTenant(key.tenant, row.version))
        else:
            execute(StoreTenant(row._replace(version=nonce(), sealed=False, key=None), row.version))
        raise _has_plain_data(key.tenant)
    key = key.with_state(SEALED)
    store_tenant(execute, key, keys, row)
    return key


def store_tenant(execute: Execute, key: TenantKey, keys: Keys, replaces: TenantRow | None) -> TenantRow:
    """Store the keys of a tenant. Conflict if its row is not `replaces` any more."""
    row = key.row(keys, nonce(), replaces.quota if replaces is not None else None)
    try:
        execute(StoreTenant(row, replaces.version if replaces is not None else None))
    except Conflict:
        if execute(LoadTenant(row.tenant)) != row:  # it is if a reply was lost, and the request was repeated
            raise
    return row


def _has_data(execute: Execute, tenant: str) -> bool:
    return bool(execute(ListThreads(tenant, "created", 1)) or execute(CountMemories(tenant, 0)))


def _has_plain_data(tenant: str) -> WrongKey:
    owner, option = (f"tenant {tenant!r}", f" --tenant {shlex.quote(tenant)}") if tenant else ("the storage", "")
    return WrongKey(
        f"{owner} has data that is not encrypted: run `threadkeep encrypt{option}` before it is used with keys"
    )


def start_encryption(execute: Execute, keys: Keys, tenant: str, *, hide_ids: bool) -> bool:
    """Make the keys of a tenant that has plain data. From now on, nobody can add any without them.

    Return whether there is something to do: False if everything is encrypted already.
    """
    row: TenantRow | None = execute(LoadTenant(tenant))
    if row is None or not row.sealed:
        key = TenantKey.new(tenant, TenantState(NEW, hide_ids))
    else:
        key = TenantKey.from_row(row, keys)
    if key.state.state == NEW:
        key = key.with_state(ENCRYPTING)
        store_tenant(execute, key, keys, row)
    return key.state.state == ENCRYPTING


def finish_encryption(execute: Execute, keys: Keys, tenant: str) -> None:
    """State that a tenant has no plain data any more: from now on it is refused."""
    row = _encrypted_row(execute, tenant)
    store_tenant(execute, TenantKey.from_row(row, keys).with_state(SEALED), keys, row)


def start_reencryption(execute: Execute, keys: Keys, tenant: str) -> TenantKey:
    """Make new keys for everything of a tenant, or return those that an interrupted call made."""
    row = _encrypted_row(execute, tenant)
    key = TenantKey.from_row(row, keys)
    if key.state.state in (NEW, ENCRYPTING):
        raise ValueError("the storage is not encrypted wholly: run `threadkeep encrypt` first")
    if key.state.state == SEALED:
        key = key.renewed()
        store_tenant(execute, key, keys, row)
    return key


def finish_reencryption(execute: Execute, keys: Keys, tenant: str) -> None:
    """Remove the keys before: everything is encrypted with the new ones."""
    row = _encrypted_row(execute, tenant)
    store_tenant(execute, TenantKey.from_row(row, keys).without_before(), keys, row)


def add_tenant_key(execute: Execute, keys: Keys, tenant: str) -> None:
    """Give a tenant a new key, which wraps data keys from now on; the earlier ones still unwrap theirs."""
    row = _encrypted_row(execute, tenant)
    store_tenant(execute, TenantKey.from_row(row, keys).with_new_key(now_ms()), keys, row)


def drop_old_tenant_keys(execute: Execute, keys: Keys, tenant: str) -> None:
    """Remove the earlier keys of a tenant, by which no data key may be wrapped.

    The one before the current one stays, and those which other processes may not know to be replaced.
    """
    row = _encrypted_row(execute, tenant)
    key = TenantKey.from_row(row, keys).with_last_keys(now_ms() - _UNNOTICED_MS)
    store_tenant(execute, key, keys, row)


def _encrypted_row(execute: Execute, tenant: str) -> TenantRow:
    row: TenantRow | None = execute(LoadTenant(tenant))
    if row is None or not row.sealed:
        raise WrongKey("the storage is not encrypted: run `threadkeep encrypt` first")
    return row
