"""Origins of a thread: the threads that it was copied or forked from, so that blame and trace find who wrote a value.

A copy notes its source as one of the thread's names; no channel has such a name. Names are copied with a thread,
encrypted like every item, and never pruned. So the copy of a copy knows both its sources, and still knows the first if
the second was deleted. Puts and reads make no step more. Threads that were copied before there were notes have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

MAX_THREADS = 32
"""So many threads are searched for what was copied from one to the next."""
_NOTE = "\0copied from "


class Origin(NamedTuple):
    """A thread of the same tenant and kind that content came from.

    The checkpoints that came from it have ids up to `until`; None if checkpoints with greater ids may have, too: those
    of a copy onto an existing thread. They have the same ids there. If `start` is not None, only one checkpoint came,
    the one with the id `until`, and it has the state of the checkpoint `start` there: a fork of a CubeLoop thread.
    """

    thread: str
    until: str | None
    start: str | None = None

    def covers(self, checkpoint: str) -> bool:
        """Whether a checkpoint of the thread may have come from there."""
        return self.until is None or checkpoint <= self.until

    def note(self) -> str:
        """Return the name that notes this origin."""
        return _NOTE + json.dumps(self)


def read_origins(names: Iterable[str]) -> list[Origin]:
    """Return the origins among the names of a thread, the latest first.

    Checkpoints of a fork are numbered anew, so what its source had noted before does not hold for them.
    """
    found: list[Origin] = []
    for origin in noted_origins(names):
        found = [*([] if origin.start is not None else found), origin]
    return found[::-1]


def noted_origins(names: Iterable[str]) -> list[Origin]:
    """Return all origins that a thread notes, in the order in which they were noted."""
    read = (_read_note(name) for name in names if name.startswith(_NOTE))
    return [origin for origin in read if origin is not None]


def _read_note(name: str) -> Origin | None:
    """Read a note; None if it is not one of ours."""
    try:
        fields = json.loads(name.removeprefix(_NOTE))
    except (ValueError, RecursionError):
        return None
    if not (isinstance(fields, list) and len(fields) == len(Origin._fields) and isinstance(fields[0], str)):
        return None
    return Origin(*fields) if all(each is None or isinstance(each, str) for each in fields) else None
