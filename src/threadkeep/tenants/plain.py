"""Tenants without keys, which another process may encrypt while this one uses them.

A tenant says that it is encrypted before any of its rows is, and rows that are encrypted cannot be decoded. What is
left are replies that say nothing, such as that a thread is not there, whose id is hidden now, or that no memory matches
a filter; and rows of which nothing is decoded. After these it is asked whether the tenant is encrypted: one round trip,
and none after any other reply. While `encrypt` is under way, a list with a filter may lack what is encrypted already.

Changes are refused by the storage, see `engine.tenants.requests`. Before the few that are not, it is asked too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from threadkeep.engine.identity import CACHE, UNFINISHED, ThreadKey
from threadkeep.engine.requests import Commit, CopyThread, ForkThread, LoadedRows, LoadSeveral, LoadSeveralItems
from threadkeep.engine.tenants.requests import TenantRow, refuse_encrypted_row
from threadkeep.plan import Failure, Outcome, Request, try_call

if TYPE_CHECKING:
    from threadkeep.drivers.runner import Transport


class PlainTenants:
    """Executes requests of tenants without keys. WrongKey if a reply says nothing because the tenant has keys now."""

    def __init__(self, inner: Transport, load_row: Callable[[str], TenantRow | None]) -> None:
        self._inner = inner
        self._load_row = load_row

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""
        reply = self._inner.read(request)
        if type(reply) is LoadedRows:  # `is_hidden`, without a call
            if reply.thread is None or reply.thread.sealed is not None:
                self._ask(request)
        elif request.says_nothing(reply):
            self._ask(request)
        return reply

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes. One that is refused undoes only itself."""
        for request in requests:
            if not request.is_refused:
                return self._write_after_asking(requests)
        return self._inner.write(requests)

    def _write_after_asking(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        asked = [try_call(partial(self.ask_before, request)) for request in requests]
        allowed = [request for request, each in zip(requests, asked, strict=True) if not isinstance(each, Failure)]
        made = iter(self._inner.write(allowed) if allowed else ())
        return [each if isinstance(each, Failure) else next(made) for each in asked]

    def ask_before(self, request: Request[Any]) -> None:
        """Raise WrongKey before a change that the storage would not refuse, if the tenant is encrypted."""
        if not request.is_refused:
            self._ask(request)

    def _ask(self, request: Request[Any]) -> None:
        """Raise WrongKey if the tenant that a request is about is encrypted. One round trip."""
        name = tenant_of(request)
        if name is not None:
            refuse_encrypted_row(self._load_row(name.removeprefix(UNFINISHED).removeprefix(CACHE)))


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
