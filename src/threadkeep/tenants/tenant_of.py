"""Which tenant a request is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import Commit, CopyThread, ForkThread, LoadSeveral, LoadSeveralItems
from threadkeep.plan import Request


def tenant_of(request: Request[Any]) -> str | None:
    """Return the tenant that a request is about; None if it is about the whole storage."""
    find = _TENANT_OF.get(type(request))
    if find is not None:
        return find(request)
    key = getattr(request, "key", None)
    tenant: str | None = key.tenant if isinstance(key, ThreadKey) else getattr(request, "tenant", None)
    return tenant


_TENANT_OF: Mapping[type, Callable[[Any], str | None]] = {
    Commit: lambda request: str(request.batch.thread.key.tenant),
    CopyThread: lambda request: str(request.thread.key.tenant),
    ForkThread: lambda request: str(request.batch.thread.key.tenant),
    LoadSeveral: lambda request: str(request.loads[0].key.tenant) if request.loads else None,
    LoadSeveralItems: lambda request: str(request.loads[0].thread.key.tenant) if request.loads else None,
}
