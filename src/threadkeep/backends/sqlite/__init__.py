"""The SQLite dialect: its schema, its set-up, and the few SQL blocks that differ from the shared ones.

It is the smallest dialect. A dialect for another SQL database can start as a copy of this folder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.backends.sqlite import filters, memories

__all__ = ["filters", "memories"]


def __getattr__(name: str) -> Any:
    """Import what answers requests about memories when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
