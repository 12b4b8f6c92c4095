"""Memories: the values of LangGraph's store, found by key, filter, full text or vectors.

`plans` has the verbs, `requests` what they request from a backend. May import `engine.identity`, `plan` and `errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.engine.memories import merging, plans, requests, vectors

__all__ = ["merging", "plans", "requests", "vectors"]


def __getattr__(name: str) -> Any:
    """Import the plans and requests of the store when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
