"""Long work: many plans one after the other, with a word on how far it is in between. Nothing is held between two of them.

A work is a generator that decides what comes next and is given what it gave; `Session.work` and `Session.awork` carry it out,
so it is written once for both colours, and ending it between two plans leaves nothing half done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from threadkeep.engine.identity import ThreadKey
from threadkeep.plan import Plan

T = TypeVar("T")


class Read(NamedTuple):
    """A plan that changes nothing."""

    make: Callable[[], Plan[Any]]


class Change(NamedTuple):
    """A plan that changes a thread, while no other change of it is under way here; or something else, if `key` is None."""

    key: ThreadKey | None
    make: Callable[[], Plan[Any]]


class Aside(NamedTuple):
    """Something that blocks and is no plan, such as reading a file: done where no event loop waits for it."""

    make: Callable[[], Any]


class Progress(NamedTuple):
    """How far it is: so many of so many (None where nobody knows), and at what."""

    done: int
    total: int | None
    what: str = ""


Step: TypeAlias = Read | Change | Aside | Progress
Work: TypeAlias = Generator[Step, Any, T]
Tell: TypeAlias = Callable[[int, int | None, str], Any]
"""Called with (done, total, what) now and then."""
