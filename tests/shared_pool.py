"""One connection pool for many short-lived Keeps: a pool for each would take most of a test's time."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

import postgres_servers
import threadkeep
import valkey_servers
from threadkeep.drivers.runner import Transport
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.keep import Keep
from threadkeep.session import Caches, Session


class Lent:
    """A transport that stays open when a Keep closes it."""

    def __init__(self, transport: Transport) -> None:
        self.writers, self.read, self.write = transport.writers, transport.read, transport.write
        self.setup, self.has_words, self.read_only = transport.setup, transport.has_words, transport.read_only

    def close(self) -> None:
        """Not ours."""


@cache
def _lender(url: str, group: str | None, *, vectors: bool = False) -> Keep:
    index: Any = {"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]} if vectors else None
    return threadkeep.open(url, group=group, index=index)


@cache
def schema() -> str:
    """A schema for all the tests of this process that keep to a tenant of their own."""
    return postgres_servers.fresh_schema(postgres_servers.shared())


@cache
def cluster() -> str:
    """The same on Valkey: a prefix."""
    return valkey_servers.shared().url()


def fresh_tenant() -> str:
    return uuid.uuid4().hex


def transport(group: str | None = None, *, url: str | None = None) -> Lent:
    """To the schema, or to the cluster."""
    return Lent(_lender(url or schema(), group)._session.transport)


def keep(tenant: str, *, cache_bytes: int = 1 << 26, group: str | None = None, url: str | None = None) -> Any:
    return Keep(Session(transport(group, url=url), tenant=tenant, caches=Caches(cache_bytes)), None)


def place(url: str) -> str | None:
    """What the tests of this process share on the server of that URL; None where there is no server."""
    shared = {"postgresql": schema, "valkey": cluster}.get(url.partition(":")[0])
    return shared() if shared else None


def opened(url: str, *, tenant: str | None = None, index: Any = None, ttl: Any = None) -> Keep:
    """A Keep as `threadkeep.open` gives it, of which no other test sees anything; on a server, a tenant of what is shared.

    For tests that look at neither tables nor set-up nor closing. Keeps that name the same tenant see the same there.
    """
    shared = place(url)
    if shared is None:
        return threadkeep.open(url, tenant=tenant or "", index=index, ttl=ttl)
    transport = Lent(_lender(shared, None, vectors=index is not None)._session.transport)
    session = Session(transport, tenant=tenant or fresh_tenant(), caches=Caches(128 * 1024 * 1024))
    return Keep(session, KeepSerializer(allowed_types=()), index=index, ttl=ttl)
