"""The ledger of a talk: which runs there were, and which messages came with which of them.

It is a list of events that only grows, kept beside the messages. What it tells is all that appending, claiming and
forking need to know, so that none of them reads a message:

    claimed     a run begins
    appended    messages of a run, or of none: their ids, and how many items of the log they took
    completed   a run is done; runs are done in the order of these events

A run is spelled out where it is first met and is a number afterwards, so events are read from the first on. Claims, and
appended messages without an id, carry the random number of whoever made them: it is known again if the answer got lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.engine.identity import pack_id, unpack_id

CLAIMED, APPENDED, COMPLETED = 0, 1, 2


class RunEvent(NamedTuple):
    """Something that happened in a talk. `time` is milliseconds."""

    kind: int
    time: int
    run: str | None
    ids: tuple[str, ...] = ()
    items: int = 0
    nonce: int = 0


@dataclass(slots=True)
class CubeRun:
    """A run of an agent: when it last did something, and as the how manieth it was completed."""

    number: int
    touched: int = 0
    completed: int | None = None


class RunLog:
    """What some events tell: the runs, those that are under way or broke off, the ids of all messages, and who was here."""

    def __init__(self, events: Iterable[RunEvent] = ()) -> None:
        self.count = 0
        self.runs: dict[str, CubeRun] = {}
        self.open: set[str] = set()
        self.ids: set[str] = set()
        self.draws: set[int] = set()
        self._completed = 0
        for event in events:
            self.add(event)

    def add(self, event: RunEvent) -> None:
        """One more event."""
        self.count += 1
        self.ids.update(filter(None, event.ids))
        if event.nonce:
            self.draws.add(event.nonce)
        if event.run is None:
            return
        run = self.runs.setdefault(event.run, CubeRun(len(self.runs)))
        run.touched = event.time
        if event.kind == CLAIMED:
            self.open.add(event.run)
        elif event.kind == COMPLETED:
            self.open.discard(event.run)
            self._completed += 1
            run.completed = self._completed

    def is_completed(self, run: str | None) -> bool:
        """Whether a run is done."""
        found = self.runs.get(run) if run is not None else None
        return found is not None and found.completed is not None

    def pack(self, event: RunEvent) -> bytes:
        """An event as it is stored after those that this ledger has."""
        run = self.runs.get(event.run) if event.run is not None else None
        named = run.number if run else pack_id(event.run) if event.run is not None else None
        body: list[Any] = [event.kind, event.time, named]
        if event.kind == APPENDED:
            body += ([*map(pack_id, event.ids)], event.items)
        return ormsgpack.packb([*body, event.nonce] if event.nonce else body)


def pack_events(events: Iterable[RunEvent]) -> list[bytes]:
    """Events from the first on, as they are stored."""
    ledger, stored = RunLog(), []
    for event in events:
        stored.append(ledger.pack(event))
        ledger.add(event)
    return stored


def unpack_events(elements: Sequence[Sequence[Any]]) -> Iterator[RunEvent]:
    """Decoded elements, from the first on, as events."""
    met: list[str] = []
    for kind, time, named, *rest in elements:
        if isinstance(named, bytes):
            met.append(unpack_id(named))
        run = met[named] if isinstance(named, int) else met[-1] if named is not None else None
        ids, items = rest[:2] if kind == APPENDED else ((), 0)
        nonce = rest[-1] if len(rest) == (3 if kind == APPENDED else 1) else 0
        yield RunEvent(kind, time, run, tuple(map(unpack_id, ids)), items, nonce)


def events_until(events: Sequence[RunEvent], run: str) -> list[RunEvent] | None:
    """The events of no run and of those that were completed up to this one; None if it is not completed."""
    ledger = RunLog(events)
    last = ledger.runs.get(run)
    if last is None or last.completed is None:
        return None
    done = {name for name, each in ledger.runs.items() if each.completed and each.completed <= last.completed}
    return [event for event in events if event.run is None or event.run in done]
