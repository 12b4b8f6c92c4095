"""Distribute the tables of a PostgreSQL storage over the machines of Citus."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

from threadkeep.jobs.migrate import migrate
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import Work, read


@dataclass(frozen=True, slots=True)
class DistributeResult:
    """How each table is distributed: by which column, or `reference` if each machine has a copy.

    `distributed` names the tables that were distributed now, or would be.
    """

    tables: dict[str, str]
    distributed: tuple[str, ...]
    dry_run: bool

    __repr__ = short_repr


def distribute(session: Session, *, dry_run: bool = False) -> Work[DistributeResult]:
    """Create the tables if there are none, and distribute those that are not distributed yet over the nodes of Citus.

    Tables are distributed one by one: repeat it if it was interrupted, and after a migration that added tables. With
    `dry_run`, change nothing; the tables must exist. Raise ValueError if the storage is not one of PostgreSQL, or was
    opened without `group="thread"`; Unavailable if the database has no Citus, the server is one of its workers, a table
    is distributed in another way, or there is a search index.
    """
    start = getattr(session.transport, "distribute", None)
    if start is None:
        raise ValueError("only a PostgreSQL database can be distributed, by Citus")
    if not dry_run:
        yield from migrate(session)
    tables, distributed = yield from read(partial(_distribute, session, dry_run=dry_run))
    return DistributeResult(tables, tuple(distributed), dry_run)


async def _distribute(session: Session, *, dry_run: bool) -> tuple[dict[str, str], list[str]]:
    transport: object = session.transport
    return cast("tuple[dict[str, str], list[str]]", transport.distribute(dry_run=dry_run))  # type: ignore[attr-defined]
