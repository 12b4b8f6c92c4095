"""What a Keep without keys must know: that nobody has encrypted its tenant since it was opened."""

from __future__ import annotations

from threadkeep.engine.tenants.requests import LoadTenant, TenantRow
from threadkeep.errors import WrongKey


async def refuse_encrypted_tenant(tenant: str) -> None:
    """Raise WrongKey if a tenant is encrypted, for plans that would take what they cannot find for nothing.

    To be used after they have looked: a tenant says that it is encrypted before any of its rows is. One round trip.
    """
    refuse_encrypted_row(await LoadTenant(tenant))


def refuse_encrypted_row(row: TenantRow | None) -> None:
    """Raise WrongKey if this is the row of an encrypted tenant."""
    if row is not None and row.sealed:
        raise WrongKey("the storage is encrypted: open it with keys=, or on the command line with --keys FILE")
