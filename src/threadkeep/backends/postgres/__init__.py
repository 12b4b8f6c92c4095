"""The PostgreSQL dialect: its schema and set-up, loads and commits in one statement, and pgvector.

`dialect.py` lists what differs from `backends.sql`. A database that speaks PostgreSQL's protocol but lacks something
starts with the shared statements, which work here too: the one-statement requests only save round trips.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.backends.postgres import by_partition, filters, memories, pgvector

__all__ = ["by_partition", "filters", "memories", "pgvector"]


def __getattr__(name: str) -> Any:
    """Import what answers requests about memories when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
