"""A clock that tests move instead of waiting: the times that threadkeep stores and compares come from it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from threadkeep.conformance.clock import Clock


class MovedClock(Clock):
    """Each `sleep` moves the clock of threadkeep in this process ahead, and returns at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_ns = 0
        monkeypatch.setattr("threadkeep.clock.time", SimpleNamespace(time_ns=lambda: time.time_ns() + self._ahead_ns))

    def sleep(self, seconds: float) -> None:
        self._ahead_ns += int(seconds * 1e9)

    def wait_for_start_of_second(self) -> None:
        """Return at once: threadkeep stores microseconds."""
