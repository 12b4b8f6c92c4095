"""Events of a cube thread, and the run log: which runs there are, and which messages belong to which run.

Events are an append-only list, stored beside the messages. They are all that appending, claiming and forking need to
know, so none of them reads a message:

    claimed     a run starts
    appended    messages of a run, or of no run: their ids, and the number of log items they take
    completed   a run is done; the order of these events is the completion order of the runs

The first event of a run contains its id, later ones a number, so events are always decoded from the first one on.
Claims, and appended messages without ids, carry the nonce of the call that made them. A call whose reply was lost
recognizes its own event by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.engine.identity import pack_id, unpack_id

CLAIMED, APPENDED, COMPLETED = 0, 1, 2


class RunEvent(NamedTuple):
    """Something that happened in a cube thread. `time` is in milliseconds."""

    kind: int
    time: int
    run: str | None
    ids: tuple[str, ...] = ()
    items: int = 0
    nonce: int = 0


@dataclass(slots=True)
class CubeRun:
    """A run of an agent: the time of its last event, and its position in completion order (None while it is open)."""

    number: int
    touched: int = 0
    completed: int | None = None


class RunLog:
    """What the events of a thread add up to.

    `runs` has all runs, `open` those that are claimed and not completed, `ids` the ids of all messages, and `nonces`
    the nonces of the calls that left one.
    """

    def __init__(self, events: Iterable[RunEvent] = ()) -> None:
        self.runs: dict[str, CubeRun] = {}
        self.open: set[str] = set()
        self.ids: set[str] = set()
        self.nonces: set[int] = set()
        self._completed = 0
        for event in events:
            self.add(event)

    def add(self, event: RunEvent) -> None:
        """Add one event."""
        self.ids.update(filter(None, event.ids))
        if event.nonce:
            self.nonces.add(event.nonce)
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

    def is_completed(self, run_id: str | None) -> bool:
        """Whether a run is completed."""
        run = self.runs.get(run_id) if run_id is not None else None
        return run is not None and run.completed is not None

    def pack(self, event: RunEvent) -> bytes:
        """Return the bytes of an event that is stored after the events of this log."""
        run = self.runs.get(event.run) if event.run is not None else None
        run_ref = run.number if run else pack_id(event.run) if event.run is not None else None
        body: list[Any] = [event.kind, event.time, run_ref]
        if event.kind == APPENDED:
            body += ([*map(pack_id, event.ids)], event.items)
        return ormsgpack.packb([*body, event.nonce] if event.nonce else body)


def pack_events(events: Iterable[RunEvent]) -> list[bytes]:
    """Return the bytes of a thread's events, from the first one on."""
    run_log, stored = RunLog(), []
    for event in events:
        stored.append(run_log.pack(event))
        run_log.add(event)
    return stored


def unpack_events(elements: Sequence[Sequence[Any]]) -> Iterator[RunEvent]:
    """Yield the events of decoded elements, which must start with the first one of the thread."""
    run_ids: list[str] = []
    for kind, time, run_ref, *rest in elements:
        if isinstance(run_ref, bytes):
            run_ids.append(unpack_id(run_ref))
        run = run_ids[run_ref] if isinstance(run_ref, int) else run_ids[-1] if run_ref is not None else None
        ids, items = rest[:2] if kind == APPENDED else ((), 0)
        nonce = rest[-1] if len(rest) == (3 if kind == APPENDED else 1) else 0
        yield RunEvent(kind, time, run, tuple(map(unpack_id, ids)), items, nonce)


def events_until(events: Sequence[RunEvent], run: str) -> list[RunEvent] | None:
    """Return the events without a run and those of the runs completed up to this one; None if it is not completed."""
    runs = RunLog(events).runs
    last = runs.get(run)
    if last is None or last.completed is None:
        return None
    done = {name for name, each in runs.items() if each.completed and each.completed <= last.completed}
    return [event for event in events if event.run is None or event.run in done]
