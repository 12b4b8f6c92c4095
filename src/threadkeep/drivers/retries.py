"""Retries: what a transport raises while the storage is away, and when the request is sent again.

A transport tries a request once and raises TryLater if the reason may pass. The runner sends it again after a pause.
Nothing is held meanwhile: no worker, no connection, no turn to commit. When `timeout` has passed, the caller gets
Unavailable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from random import random
from typing import TypeVar

from threadkeep.errors import ThreadkeepError, Unavailable

T = TypeVar("T")
LOGGER = "threadkeep.retry"
_log = logging.getLogger(LOGGER)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.4
"""Seconds; each pause is 0.5 to 1.5 times as long, so that many callers do not come back at once."""
_LOG_AFTER = 1.0


class TryLater(ThreadkeepError):
    """The storage is away for the moment. Only transports raise this, and only the runner catches it."""

    def __init__(self, error: Unavailable, *, started: float, timeout: float) -> None:
        """`error` is raised `timeout` seconds after the time `started`, which is one of `time.monotonic()`."""
        super().__init__(str(error))
        self.error = error
        self.started = started
        self.timeout = timeout


class Retries:
    """The retries of one request, or of several requests of a call. Call `next_pause` at each TryLater."""

    __slots__ = ("_deadline", "_has_logged", "_pause", "_started")

    def __init__(self, first: TryLater) -> None:
        self._has_logged = False
        self._start(first)

    def _start(self, first: TryLater) -> None:
        self._started: float | None = first.started
        self._deadline = first.started + first.timeout
        self._pause = _FIRST_PAUSE

    def next_pause(self, again: TryLater) -> float | None:
        """Return how many seconds to wait before the next try; None if the time is over. Log once, after a second."""
        if self._started is None:
            self._start(again)
        now = time.monotonic()
        pause = min(self._pause * (0.5 + random()), self._deadline - now)  # noqa: S311 - no secret
        if pause <= 0:
            return None
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if not self._has_logged and self._started is not None and now - self._started > _LOG_AFTER:
            self._has_logged = True
            _log.warning("trying again for up to %g s: %s", again.timeout, again)
        return pause

    def end(self) -> None:
        """Start a new count with the next request of the same call. It is not logged again."""
        self._started = None


def repeat(call: Callable[[], T], first: TryLater) -> T:
    """Call a function again that raised `first`, after pauses, for as long as it raises TryLater."""
    retries, last = Retries(first), first
    while (pause := retries.next_pause(last)) is not None:
        time.sleep(pause)
        try:
            return call()
        except TryLater as error:
            last = error
    raise last.error
