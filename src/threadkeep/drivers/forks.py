"""Fork safety: pause everything before os.fork, so no connection is shared and no lock is held in the child.

SQLite connections must not be used, or even exist, in a forked child: its locks would not count, and its writes could
vanish. So before a fork every transport pauses and closes what must not be shared; both sides open new connections when
they need them. This is the only module-level state, because the hook belongs to the interpreter.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something that must not be interrupted by a fork."""

    def before_fork(self) -> None:
        """Pause, and stay paused until `after_fork`."""

    def after_fork(self, *, child: bool) -> None:
        """Continue; in the child, start anew."""


class _ForkHooks:
    """Everything that a fork concerns, and what is paused for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: WeakSet[Forkable] = WeakSet()
        self._paused: list[Forkable] = []

    def add(self, one: Forkable) -> None:
        with self._lock:
            self._alive.add(one)

    def before(self) -> None:
        self._lock.acquire()
        for one in list(self._alive):
            one.before_fork()
            self._paused.append(one)
        _finish_imports()

    def after(self, *, child: bool) -> None:
        while self._paused:
            self._paused.pop().after_fork(child=child)
        self._lock.release()


def _finish_imports() -> None:
    """Wait for imports of our modules that other threads have begun: in the child, their locks would stay locked.

    Much is imported on use. An import that begins after this, in the moment before the fork, is not guarded.
    """
    imports: Any = importlib._bootstrap  # noqa: SLF001 - nothing public knows the locks; a later Python may rename them
    wait = getattr(imports, "_lock_unlock_module", None)
    for name in list(getattr(imports, "_module_locks", ())):
        if wait is not None and name.startswith("threadkeep."):
            wait(name)


_hooks = _ForkHooks()


def watch(one: Forkable) -> None:
    """Call its hooks at each fork, for as long as it lives."""
    _hooks.add(one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hooks.before,
        after_in_parent=lambda: _hooks.after(child=False),
        after_in_child=lambda: _hooks.after(child=True),
    )
