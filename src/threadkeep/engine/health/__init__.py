"""Integrity of what is stored: verify checks every stored byte, repair rebuilds a damaged checkpoint as a new branch.

Both start from `thread_scan`, which reads a thread as far as it can be read. So does `salvage`, which reads what may be
copied. May import all other parts of the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.engine.health import requests

__all__ = ["requests"]


def __getattr__(name: str) -> Any:
    """Import the requests of verify, repair and doctor when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
