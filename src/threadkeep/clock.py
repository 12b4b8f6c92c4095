"""The clock and the random numbers of a Keep. The engine and the backends get times and nonces as arguments."""

from __future__ import annotations

import os
import random
import time

_random = random.Random()  # noqa: S311 - a nonce is no secret; it must differ, also in a forked child
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def now_ms() -> int:
    """Return milliseconds since 1970: the unit of threads, checkpoints and writes."""
    return time.time_ns() // 1_000_000


def now_us() -> int:
    """Return microseconds since 1970: the unit of memories."""
    return time.time_ns() // 1_000


def nonce() -> int:
    """Return a random number of 62 bits. A commit is recognized by it if its reply was lost.

    Unlike os.urandom, this does not release the interpreter's lock, which a busy worker would have to wait for again.
    """
    return _random.getrandbits(62)
