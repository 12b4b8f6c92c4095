"""One connection pool for many short-lived Keeps, because opening a pool takes longer than most tests."""

from __future__ import annotations

import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import postgres_servers
import threadkeep
import valkey_servers
from threadkeep.drivers.runner import Transport
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.keep import Keep
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport

_FILE = "sqlite:///"


class SharedTransport:
    """A transport that stays open when a Keep closes."""

    def __init__(self, transport: Transport) -> None:
        self.writers, self.read, self.write = transport.writers, transport.read, transport.write
        self.commits_at_once, self.try_drop = transport.commits_at_once, transport.try_drop
        self.setup, self.read_only, self.try_commit = transport.setup, transport.read_only, transport.try_commit
        self.schema = transport.schema

    def close(self) -> None:
        """Do nothing: the owner closes it."""


@cache
def _owner(url: str, group: str | None, *, vectors: bool = False) -> Keep:
    index: Any = {"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]} if vectors else None
    return threadkeep.open(url, group=group, index=index)


@cache
def schema() -> str:
    """Return the URL of a schema that tests of this process share, each in its own tenant."""
    return postgres_servers.fresh_schema(postgres_servers.shared())


@cache
def cluster() -> str:
    """Return the URL of a Valkey prefix that tests of this process share, each in its own tenant."""
    return valkey_servers.shared().url()


@cache
def _empty_file() -> bytes:
    """Return the bytes of a SQLite file that has all tables and no rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        with threadkeep.open(f"{_FILE}{file}") as keep:
            keep.setup()
        return file.read_bytes()


def fresh_tenant() -> str:
    return uuid.uuid4().hex


def transport(group: str | None = None, *, url: str | None = None) -> SharedTransport:
    """Return a transport to the shared schema, or to another shared URL."""
    return SharedTransport(_owner(url or schema(), group)._session.transport.inner)


def keep(
    tenant: str,
    *,
    cache_bytes: int = 1 << 26,
    group: str | None = None,
    url: str | None = None,
    keys: threadkeep.Keys | None = None,
    hide_ids: bool | None = None,
) -> Keep:
    shared = TenantTransport(transport(group, url=url), tenant, keys, hide_ids=hide_ids)
    return Keep(Session(shared, tenant=tenant, caches=Caches(cache_bytes)), None)


def shared_url(url: str) -> str | None:
    """Return the URL that tests of this process share on the same kind of server; None if there is no server."""
    shared = {"postgresql": schema, "valkey": cluster}.get(url.partition(":")[0])
    return shared() if shared else None


def open_keep(
    url: str,
    *,
    tenant: str | None = None,
    index: Any = None,
    ttl: Any = None,
    keys: threadkeep.Keys | None = None,
    hide_ids: bool | None = None,
    group: str | None = None,
) -> Keep:
    """Open a Keep as `threadkeep.open` does, isolated from other tests. On a server, it is a tenant of shared tables.

    For tests that do not look at tables, set-up or closing. On a server, Keeps with the same tenant share data. A new
    SQLite file is a copy of one that has the tables: it takes longer to create them than to run most tests.
    """
    shared = shared_url(url)
    if url.startswith(_FILE) and not (file := Path(url.removeprefix(_FILE))).exists():
        file.write_bytes(_empty_file())
    if shared is None:
        return threadkeep.open(url, tenant=tenant or "", index=index, ttl=ttl, keys=keys, hide_ids=hide_ids)
    transport = SharedTransport(_owner(shared, group, vectors=index is not None)._session.transport.inner)
    tenant = fresh_tenant() if tenant is None else tenant
    encrypted = TenantTransport(transport, tenant, keys, hide_ids=hide_ids)
    session = Session(encrypted, tenant=tenant, caches=Caches(128 * 1024 * 1024))
    return Keep(session, KeepSerializer(allowed_types=()), index=index, ttl=ttl)
