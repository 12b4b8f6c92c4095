"""One connection pool for many short-lived Keeps: a pool for each would take most of a test's time."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

import postgres
import threadkeep
import valkeys
from threadkeep.keep import Desk, Keep
from threadkeep.transports.runner import Transport


class Lent:
    """A transport that stays open when a Keep closes it."""

    def __init__(self, transport: Transport) -> None:
        self.writers, self.read, self.write = transport.writers, transport.read, transport.write
        self.setup, self.has_words = transport.setup, transport.has_words

    def close(self) -> None:
        """Not ours."""


@cache
def _lender(url: str, group: str | None) -> Keep:
    return threadkeep.open(url, group=group)


@cache
def schema() -> str:
    """A schema for all the tests of this process that keep to a tenant of their own."""
    return postgres.fresh_schema(postgres.shared())


@cache
def cluster() -> str:
    """The same on Valkey: a prefix."""
    return valkeys.shared().url()


def fresh_tenant() -> str:
    return uuid.uuid4().hex


def transport(group: str | None = None, *, url: str | None = None) -> Lent:
    """To the schema, or to the cluster."""
    return Lent(_lender(url or schema(), group)._desk.transport)


def keep(tenant: str, *, cache_bytes: int = 1 << 26, group: str | None = None, url: str | None = None) -> Any:
    return Keep(Desk(transport(group, url=url), tenant=tenant, cache_bytes=cache_bytes), None)
