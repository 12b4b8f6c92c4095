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

    @property
    def has_open(self) -> bool:
        """Whether a run is claimed and not completed."""
        return bool(self.open)

    def is_completed(self, run_id: str | None) -> bool:
        """Whether a run is completed."""
        run = self.runs.get(run_id) if run_id is not None else None
        return run is not None and run.completed is not None


class RunLogDraft:
    """A run log, and events after it that are not committed yet. The log may be cached; only `commit` changes it.

    `ids`, `nonces` and `runs` have what the new events add or change.
    """

    __slots__ = ("_new_runs", "_opened", "events", "ids", "log", "nonces", "runs")

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.events: list[RunEvent] = []
        self.ids: set[str] = set()
        self.nonces: set[int] = set()
        self.runs: dict[str, CubeRun] = {}
        self._opened: dict[str, bool] = {}
        self._new_runs = 0

    @property
    def has_open(self) -> bool:
        """Whether a run is claimed and not completed."""
        stored = self.log.open
        if not self._opened:
            return bool(stored)
        return any(self._opened.values()) or len(stored) > sum(run in stored for run in self._opened)

    def has_nonce(self, nonce: int) -> bool:
        """Whether the call with this nonce has left an event."""
        return nonce in self.log.nonces or nonce in self.nonces

    def is_open(self, run_id: str) -> bool:
        """Whether a run is claimed and not completed."""
        return self._opened.get(run_id, run_id in self.log.open)

    def is_completed(self, run_id: str | None) -> bool:
        """Whether a run is completed."""
        run = self.run(run_id)
        return run is not None and run.completed is not None

    def run(self, run_id: str | None) -> CubeRun | None:
        """Return a run, or None if there is no event of it."""
        if run_id is None:
            return None
        return self.runs.get(run_id) or self.log.runs.get(run_id)

    def add(self, event: RunEvent) -> bytes:
        """Add one event and return its bytes. Makes one call, and one for each id."""
        kind, time, run_id, ids, items, nonce = event
        run = None if run_id is None else self.runs.get(run_id) or self.log.runs.get(run_id)
        run_ref = run.number if run is not None else None if run_id is None else pack_id(run_id)
        body: list[Any] = [kind, time, run_ref]
        if kind == APPENDED:
            body += (list(map(pack_id, ids)), items)
        if nonce:
            body.append(nonce)
            self.nonces.add(nonce)
        self.ids.update(filter(None, ids))
        self.events.append(event)
        if run_id is not None:
            if run is None:
                run = CubeRun(len(self.log.runs) + self._new_runs)
                self._new_runs += 1
            self.runs[run_id] = CubeRun(run.number, time, 1 if kind == COMPLETED else run.completed)
            if kind != APPENDED:
                self._opened[run_id] = kind == CLAIMED
        return ormsgpack.packb(body)

    def commit(self) -> RunLog:
        """Add the new events to the log and return it."""
        events, self.events = self.events, []
        for event in events:
            self.log.add(event)
        return self.log


def pack_events(events: Iterable[RunEvent]) -> list[bytes]:
    """Return the bytes of a thread's events, from the first one on."""
    return list(map(RunLogDraft(RunLog()).add, events))


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
