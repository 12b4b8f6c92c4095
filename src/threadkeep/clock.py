"""The clock and the randomness of a Keep. Engine and backends are given times and nonces; they never read a clock."""

from __future__ import annotations

import secrets
import time


def now_ms() -> int:
    """Milliseconds since 1970: the time of threads, checkpoints and writes."""
    return time.time_ns() // 1_000_000


def now_us() -> int:
    """Microseconds since 1970: the time of memories."""
    return time.time_ns() // 1_000


def nonce() -> int:
    """A random number of 62 bits, by which a commit is recognized when its outcome was lost."""
    return secrets.randbits(62)
