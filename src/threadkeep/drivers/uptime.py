"""The clock of leases where there is no server: the time since this machine was started, which nobody can set.

All processes of a machine see the same clock. It goes on while the machine sleeps, where the system has such a clock.
Its name is that of the start, so a lease that was taken before the machine was started again has ended.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from threadkeep.engine.requests import NAMELESS_START, StorageClock


def machine_clock() -> StorageClock:
    """Return the time since the machine was started."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    seconds = time.clock_gettime(clock) if clock is not None else time.monotonic()
    return StorageClock(int(seconds * 1000), _start_id())


@cache
def _start_id() -> str:
    """Return the id that the system gave to its last start, if it does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return NAMELESS_START
