"""How tests let time pass: by waiting, unless a project has a clock that it can move."""

from __future__ import annotations

import time

import pytest


class Clock:
    """The time of the machine: it passes only while one waits."""

    def sleep(self, seconds: float) -> None:
        """Return when this many seconds have passed for what is tested."""
        time.sleep(seconds)

    def wait_for_start_of_second(self) -> None:
        """Wait until a new second has begun, so that a store that stores whole seconds fails reliably."""
        past = time.time() % 1
        if past > 0.5:
            time.sleep(1 - past)


@pytest.fixture
def clock() -> Clock:
    """Override this if the clock of what you test can be moved, to wait less."""
    return Clock()
