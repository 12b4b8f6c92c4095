"""The clock and the random numbers of a Keep. The engine and the backends get times and nonces as arguments."""

from __future__ import annotations

import os
import time


def now_ms() -> int:
    """Return milliseconds since 1970: the unit of threads, checkpoints and writes."""
    return time.time_ns() // 1_000_000


def now_us() -> int:
    """Return microseconds since 1970: the unit of memories."""
    return time.time_ns() // 1_000


def nonce() -> int:
    """Return a random number of 62 bits. A commit is recognized by it if its reply was lost."""
    return int.from_bytes(os.urandom(8)) >> 2
