"""The row of a tenant, its data keys, and the requests about them. Guarantees as in `engine.requests`.

    read     LoadTenant, ListTenants, LoadDataKeys, ListDataKeys
    write    StoreTenant, DeleteTenant, StoreDataKey, DeleteDataKeys: each is atomic

Keys and quotas are bytes that a backend does not look into. As soon as a tenant's row is stored with `sealed`, no
process can store anything for the tenant that is not encrypted, or delete anything unless it knows that it is: a
Commit, CopyThread or ForkThread whose thread row has no `sealed`, and a DropThread, WriteMemories or ChangeMemories
that does not say `sealed`, raise WrongKey and change nothing. On PostgreSQL, a statement that started before may still
be executed; on Valkey, this holds when StoreTenant has returned.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from threadkeep.errors import WrongKey
from threadkeep.plan import IDEMPOTENT_WRITE, READ, READ_ONE_STATEMENT, WRITE, Access, Request


class TenantRow(NamedTuple):
    """The row of a tenant. `version` is chosen by whoever stores it; `key` and `quota` are opaque records."""

    tenant: str
    version: int
    sealed: bool
    key: bytes | None
    quota: bytes | None


class LoadTenant(Request[TenantRow | None]):
    """Load the row of a tenant; None if it has none."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str

    def says_nothing(self, reply: TenantRow | None) -> bool:  # noqa: ARG002
        """Return False: this is how a caller finds out."""
        return False


class StoreTenant(Request[None]):
    """Store the row of a tenant.

    Conflict, and nothing happens, unless the stored row has the version `expect`; if that is None, unless there is no
    row. If the outcome was lost, load the row to find out.
    """

    access: ClassVar[Access] = WRITE
    is_refused: ClassVar[bool] = True
    row: TenantRow
    expect: int | None


class DeleteTenant(Request[None]):
    """Delete the row of a tenant. Conflict unless it has the version `expect`. Threads, memories and keys stay."""

    access: ClassVar[Access] = WRITE
    is_refused: ClassVar[bool] = True
    tenant: str
    expect: int


class ListTenants(Request[tuple[str, ...]]):
    """List at most `limit` tenants that have a row, a thread or a memory, by name, after `after`.

    The cost depends on the number of tenants, not on how many threads and memories they have.
    """

    access: ClassVar[Access] = READ_ONE_STATEMENT
    limit: int
    after: str | None = None


class LoadDataKeys(Request[dict[bytes, bytes]]):
    """Load data keys of a tenant by name. Those that do not exist are missing from the reply."""

    access: ClassVar[Access] = READ
    tenant: str
    names: tuple[bytes, ...]

    def says_nothing(self, reply: dict[bytes, bytes]) -> bool:  # noqa: ARG002
        """Return False: it is about the keys themselves."""
        return False


class StoreDataKey(Request[bytes]):
    """Store a data key if there is none of this name, or if the stored one is `replaces`.

    Return the key that is stored afterwards.
    """

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    is_refused: ClassVar[bool] = True
    tenant: str
    name: bytes
    key: bytes
    replaces: bytes | None = None


class ListDataKeys(Request[tuple[tuple[bytes, bytes], ...]]):
    """List at most `limit` data keys of a tenant, each with its name, by name, after `after`."""

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    after: bytes | None
    limit: int

    def says_nothing(self, reply: tuple[tuple[bytes, bytes], ...]) -> bool:  # noqa: ARG002
        """Return False: it is about the keys themselves."""
        return False


class DeleteDataKeys(Request[None]):
    """Delete data keys of a tenant by name. Those that do not exist are ignored."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    is_refused: ClassVar[bool] = True
    tenant: str
    names: tuple[bytes, ...]


# --- for Keeps without keys: nobody may have encrypted the tenant since they were opened


async def refuse_encrypted_tenant(tenant: str) -> None:
    """Raise WrongKey if a tenant is encrypted, for plans that would take what they cannot find for nothing.

    To be used after they have looked: a tenant says that it is encrypted before any of its rows is. One round trip.
    """
    refuse_encrypted_row(await LoadTenant(tenant))


def refuse_encrypted_row(row: TenantRow | None) -> None:
    """Raise WrongKey if this is the row of an encrypted tenant."""
    if row is not None and row.sealed:
        raise WrongKey("the storage is encrypted: open it with keys=, or on the command line with --keys FILE")
