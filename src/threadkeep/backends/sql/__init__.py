"""What all SQL backends share: requests become statements from named SQL blocks, and rows become records.

    backend.py     SqlBackend, the base class of the dialects
    reads.py, lists.py, commits.py, memories.py, health.py, tenants.py, search.py   one function for each request
    filters.py, json_sql.py   filters on memories as SQL conditions
    setup.py       schema versions and migrations
    *.sql          the statements; `blocks.py` reads them

A dialect (`backends.sqlite`, `backends.postgres`) states only what differs. A new SQL database starts as a subclass of
`SqlBackend` with its own schema file; the abstract methods are what it must say.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.backends.sql import filters, health, memories, search, search_health, tenants

__all__ = ["filters", "health", "memories", "search", "search_health", "tenants"]


def __getattr__(name: str) -> Any:
    """Import what answers requests about memories, tenants, the search index or the storage when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
