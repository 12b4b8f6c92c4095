"""CubeLoop threads ("cube threads"): append-only messages, extra data, pending requests, answers and runs.

A cube thread is a thread of the kind `cube`, in the same log and tables as LangGraph threads. Its newest checkpoint is
its state. Each run starts a new checkpoint (without runs, each user turn does), so older checkpoints show the thread as
it was. May import `engine.commit`, `engine.threads`, `engine.log` and, for `repair`, `engine.health`.

    ops.py            the changes that callers request: append, merge, claim, …
    events.py         events and the run log: runs, and the messages that belong to them
    channels.py       the channels that store a cube thread
    json_types.py     whether a value has only JSON types
    staging.py        applies ops to a draft and builds the batch
    plans.py          write, load, snapshot, fork
    rollback.py       the operator's rollback and fork
    plain_values.py   values as plain data, for people
    repair.py         a new checkpoint with everything that can be read
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.engine.cube import plans

__all__ = ["plans"]


def __getattr__(name: str) -> Any:
    """Import the plans of CubeLoop threads when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
