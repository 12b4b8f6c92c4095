"""os.fork: no database connection may cross it, and no lock may be caught in the middle.

SQLite's connections must not be used, or even exist, in a forked child: the child's locks would be taken for granted
and its writes could vanish. So before a fork every transport comes to rest and lets its connections go; both sides
open new ones when they need them. This is the one piece of module-level state, since the hook is the interpreter's.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something that must not be caught in the middle."""

    def before_fork(self) -> None:
        """Come to rest, and stay so."""

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child, as if new."""


_alive: WeakSet[Forkable] = WeakSet()
_resting: list[Forkable] = []


def watch(one: Forkable) -> None:
    """Tell it of forks for as long as it lives."""
    _alive.add(one)


def _before() -> None:
    for one in list(_alive):
        one.before_fork()
        _resting.append(one)


def _after(*, child: bool) -> None:
    while _resting:
        _resting.pop().after_fork(child=child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=lambda: _after(child=False), after_in_child=lambda: _after(child=True)
    )
