"""How many times less than the official saver or store each row should take: on SQLite and on PostgreSQL."""

from __future__ import annotations

GOALS: dict[str, tuple[float, float]] = {
    "saver time, strict": (6, 12),
    "saver time, relaxed": (12, 15),
    "bytes": (900, 300),
    "delta, time": (2, 3),
    "delta, bytes": (40, 8),
    "delta, both, time": (2, 3),
    "delta, both, bytes": (40, 8),
    "put, long": (15, 50),
    "get": (6, 10),
    "get in a new process": (1.5, 3),
    "list(10)": (50, 10),
    "async threads": (5, 8),
    "parallel tasks, sync, saver": (4, 4),
    "parallel tasks, async, saver": (4, 4),
    "small checkpoints": (1.3, 1.5),
    "list(filter), across threads, by metadata": (20, 10),
    "list(filter), across threads, by step": (20, 10),
    "list(filter), within a thread": (20, 10),
    "store put": (1.2, 1.2),
    "store get": (1.2, 1.2),
    "store batch put": (1.2, 1.2),
    "store search, prefix, equality": (1.2, 1.2),
    "store search, prefix, range": (1.2, 1.2),
    "store search, prefix, both": (1.2, 1.2),
    "store search, both": (1.2, 1.2),
    "store search, equality, one matches": (1.2, 1.2),
    "store vector search": (10, 1),
    "cube append, to 1,000 messages": (1.5, 1.5),
}
VALKEY_GOAL = 1.5
"""Of 200 async threads: how many times less on Valkey than on PostgreSQL."""
MOST_WITH_KEYS = {"keys, bytes": 1.15, "keys, saver time, strict": 1.3, "keys, saver time, relaxed": 1.3}
"""How many times more a row may take with keys than without."""
NEVER_BELOW = 1.0
"""No row may be below this ratio."""
GROWTH_GOAL = 1.1
"""Total time and bytes grow with at most this power of the number of messages."""


def goal(storage: str, key: str) -> float | None:
    """Return the goal of a row, if it has one."""
    if storage == "valkey":
        return VALKEY_GOAL
    return GOALS[key][("sqlite", "postgres").index(storage)] if key in GOALS else None
