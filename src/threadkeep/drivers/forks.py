"""os.fork: no database connection may cross it, and no lock may be caught in the middle.

SQLite's connections must not be used, or even exist, in a forked child: the child's locks would be taken for granted
and its writes could vanish. So before a fork every transport comes to rest and lets its connections go; both sides
open new ones when they need them. This is the one piece of module-level state, since the hook is the interpreter's.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something that must not be caught in the middle."""

    def before_fork(self) -> None:
        """Come to rest, and stay so."""

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child, as if new."""


class _Watched:
    """All that must be told, and what has come to rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: WeakSet[Forkable] = WeakSet()
        self._resting: list[Forkable] = []

    def add(self, one: Forkable) -> None:
        with self._lock:
            self._alive.add(one)

    def before(self) -> None:
        self._lock.acquire()
        for one in list(self._alive):
            one.before_fork()
            self._resting.append(one)

    def after(self, *, child: bool) -> None:
        while self._resting:
            self._resting.pop().after_fork(child=child)
        self._lock.release()


_watched = _Watched()


def watch(one: Forkable) -> None:
    """Tell it of forks for as long as it lives."""
    _watched.add(one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_watched.before,
        after_in_parent=lambda: _watched.after(child=False),
        after_in_child=lambda: _watched.after(child=True),
    )
