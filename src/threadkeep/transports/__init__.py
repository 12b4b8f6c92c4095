"""Transports: connections to databases, and all their I/O. They execute requests and translate drivers' errors.

    direct.py             the in-memory backend, under a lock
    sqlite.py             a SQLite file
    postgres.py           a PostgreSQL server: requests, groups of commits, retries
      postgres_pool.py    its connections; postgres_cursor.py, postgres_arrays.py and postgres_errors.py serve both
      postgres_citus.py   distributes its tables over the nodes of Citus
    valkey.py             a Valkey or Redis server or cluster: requests, redirections
      valkey_nodes.py     its servers and slots; valkey_pipeline.py sends calls to one server
      valkey_contact.py   the first contact; valkey_outages.py waits for servers that are down
      valkey_unfinished.py  changes that a slow server has not answered
    *_health.py           what a storage reports about itself (`doctor`), integrity checks, and compacting

Each implements `drivers.runner.Transport`. They make no decisions about data: a request declares what it is
(`plan.Access`), and `backends` decide what it and set-up do. They may import `drivers`, `backends`, `engine`, `plan`
and `errors`. Each database driver is imported in its own transport only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.transports import postgres_citus, postgres_health, sqlite_health

__all__ = ["postgres_citus", "postgres_health", "sqlite_health"]


def __getattr__(name: str) -> Any:
    """Import what is about the storage as a whole when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
