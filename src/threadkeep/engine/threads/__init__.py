"""LangGraph threads: put, get, list, prune, copy, branch and tag checkpoints.

`checkpoints` is the read and write path; it uses `ops`, `staging`, `draft` and `heads`. The other modules are named
after their verbs or after what they compute. May import `engine.commit`, `engine.requests`, `engine.log`,
`engine.identity` and `engine.when`; `tags`, which serves both kinds of threads, also imports `engine.cube`, and
`damaged_rows`, which reads a damaged thread as `verify` does, imports `engine.health`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.engine.threads import copy, prune

__all__ = ["copy", "prune"]


def __getattr__(name: str) -> Any:
    """Import the module of a verb that few calls need when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
