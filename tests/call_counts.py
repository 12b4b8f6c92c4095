"""Counts the calls that a piece of work makes, in its own thread and in every thread that takes part.

What counts: each event `call` and each event `c_call` of `sys.setprofile`. A `call` is a Python function that starts, or
a generator or coroutine that continues. A `c_call` is a function written in C that Python code calls by name; operators
and `with` on objects written in C are not calls. asyncio, LangGraph and the database drivers count as well as
threadkeep: the caller waits for all of them. List, dict and set comprehensions count apart: in Python 3.11 each is a
call, from 3.12 on it is not.

What does not count: frames of the modules named in `own`, that is, of the counting itself and of what it hooks into.

Threads that were started before a `CallCounts` was installed are not seen. So install it first, then open the Keep.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

_LOOK_SECONDS = 0.001
_QUIET_LOOKS = 3
"""Threads are idle if they were waiting at so many looks, and nothing happened in between."""
_TIMEOUT = 10.0
_COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})


@dataclass(slots=True)
class _ThreadCounts:
    python: int = 0
    comprehensions: int = 0
    c: int = 0
    events: int = 0
    waits: bool = True
    """Whether its last event was the call of a function written in C, from which it has not returned."""


@dataclass(slots=True)
class CallCounts:
    """Counts calls between `start` and `stop`."""

    own: frozenset[str]
    functions: Counter[str] = field(default_factory=Counter)
    """How often each Python function was called since the last `start`."""
    _threads: dict[int, _ThreadCounts] = field(default_factory=dict)
    _is_counting: bool = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch every thread that is started meanwhile."""
        threading.setprofile(self._watch)
        try:
            yield
        finally:
            threading.setprofile(None)

    def start(self) -> None:
        """Count from now on, in this thread and in those that were started since `installed`."""
        self._threads.clear()
        self.functions.clear()
        self._is_counting = True
        sys.setprofile(self._watch)

    def stop(self) -> dict[str, int]:
        """Stop counting in this thread at once, in the others when they have nothing more to do. Return the counts."""
        sys.setprofile(None)
        main = self._threads.pop(threading.get_ident(), _ThreadCounts())
        self._wait_until_idle()
        self._is_counting = False
        counted = [main, *self._threads.values()]
        return {
            "python_calls": sum(each.python for each in counted),
            "comprehensions": sum(each.comprehensions for each in counted),
            "c_calls": sum(each.c for each in counted),
        }

    def _watch(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self._is_counting:
            return
        thread = self._threads.setdefault(threading.get_ident(), _ThreadCounts())
        thread.events += 1
        thread.waits = event == "c_call"
        if frame.f_code.co_filename in self.own:
            return
        if event == "call":
            self.functions[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
        if event == "c_call":
            thread.c += 1
        elif event == "call" and frame.f_code.co_name in _COMPREHENSIONS:
            thread.comprehensions += 1
        elif event == "call":
            thread.python += 1

    def _wait_until_idle(self) -> None:
        deadline, quiet, last = time.monotonic() + _TIMEOUT, 0, -1
        while quiet < _QUIET_LOOKS:
            assert time.monotonic() < deadline, "other threads do not come to rest"
            time.sleep(_LOOK_SECONDS)
            alive = {thread.ident for thread in threading.enumerate()}
            now = [counts for ident, counts in list(self._threads.items()) if ident in alive]
            events = sum(counts.events for counts in list(self._threads.values()))
            quiet = quiet + 1 if events == last and all(counts.waits for counts in now) else 0
            last = events
