"""One connection pool for many short-lived Keeps: a pool for each would take most of a test's time."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

import postgres
import threadkeep
from threadkeep.keep import Desk, Keep
from threadkeep.transports.runner import Transport


class Lent:
    """A transport that stays open when a Keep closes it."""

    def __init__(self, transport: Transport) -> None:
        self.writers, self.read, self.write = transport.writers, transport.read, transport.write
        self.setup = transport.setup

    def close(self) -> None:
        """Not ours."""


@cache
def _lender(url: str, group: str | None) -> Keep:
    return threadkeep.open(url, group=group)


@cache
def schema() -> str:
    """A schema for all the tests of this process that keep to a tenant of their own."""
    return postgres.fresh_schema(postgres.shared())


def fresh_tenant() -> str:
    return uuid.uuid4().hex


def transport(group: str | None = None) -> Lent:
    return Lent(_lender(schema(), group)._desk.transport)


def keep(tenant: str, *, cache_bytes: int = 1 << 26, group: str | None = None) -> Any:
    return Keep(Desk(transport(group), tenant=tenant, cache_bytes=cache_bytes), None)
