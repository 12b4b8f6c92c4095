"""A thread as far as it can be read: rows that make sense, and for each that does not, what is wrong with it.

Everything else refuses a thread at its first damaged row. Checking and repairing start here: each row is unsealed and
decoded by itself, with the names, shapes and run lists that are left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from threadkeep.engine import itemlog
from threadkeep.engine.codec import unpack
from threadkeep.engine.health import Inspected
from threadkeep.engine.identity import ThreadKey, from_bytes
from threadkeep.engine.itemlog import NAMES, RUN_LISTS, SHARED, Item, ItemId, Run
from threadkeep.engine.records import (
    CheckpointRow,
    Names,
    Record,
    Shared,
    Slot,
    TaskWrites,
    ThreadRow,
    WriteRow,
    is_sealed,
    unpack_checkpoint,
    unpack_writes,
)
from threadkeep.engine.survey import Place
from threadkeep.errors import Corrupt

CHECKSUM, MISSING_ITEM, MISSING_PARENT, UNDECODABLE = "checksum", "missing item", "missing parent", "undecodable"
COUNTER = "counter"
TaskPlace = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with what is stored.

    `problem` is checksum, missing item, missing parent, undecodable, counter, catalogue, index, memory or database;
    `said` is a sentence about it. The others say where it is, as far as that is known; `item` is lane and number.
    """

    problem: str
    said: str
    thread: str | None = None
    kind: str | None = None
    ns: str | None = None
    checkpoint: str | None = None
    task: str | None = None
    item: str | None = None


@dataclass(slots=True)
class ThreadScan:
    """What can be read of a thread. `bad` has the items that cannot be used; `uneven` how many elements items have, but 1."""

    key: ThreadKey
    found: Inspected
    names: dict[int, str] = field(default_factory=dict)
    shared: dict[int, bytes] = field(default_factory=dict)
    run_lists: dict[int, tuple[Run, ...]] = field(default_factory=dict)
    records: dict[Place, Record] = field(default_factory=dict)
    tasks: dict[Place, list[TaskWrites]] = field(default_factory=dict)
    broken: dict[Place, str] = field(default_factory=dict)
    broken_writes: dict[TaskPlace, str] = field(default_factory=dict)
    bad: dict[ItemId, tuple[str, str]] = field(default_factory=dict)
    uneven: dict[ItemId, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _shapes: dict[int, Any] = field(default_factory=dict)

    @property
    def row(self) -> ThreadRow | None:
        """The thread's row, if it can be read."""
        return self.found.thread

    @property
    def where(self) -> str:
        """The thread, for sentences."""
        return f"thread {self.key.id!r}"

    def tell(
        self, problem: str, said: str, place: Place | None = None, task: str | None = None, item: ItemId | None = None
    ) -> None:
        """Note a problem."""
        ns, checkpoint = place or (None, None)
        at = f"{item.lane}:{item.n}" if item is not None else None
        self.problems.append(Problem(problem, said, self.key.id, self.key.kind, ns, checkpoint, task, at))

    def reading(self) -> Names:
        """The names for unpacking rows."""
        return Names(self.names, _no_new_names)

    def decoding(self) -> Shared:
        """What rows are understood by."""
        return Shared(self.run_lists, self._shape)

    def _shape(self, n: int) -> Any:
        if n not in self._shapes:
            if n not in self.shared:
                raise Corrupt(f"its shape, item {SHARED}:{n}, is not there or damaged")
            self._shapes[n] = unpack(self.shared[n], f"shape {n} of {self.where}")
        return self._shapes[n]

    def labels(self, n: int) -> dict[str, Any] | None:
        """A set of labels, if it can be read."""
        if n not in self.shared:
            return None
        try:
            return dict(unpack(self.shared[n], f"labels {n} of {self.where}") or {})
        except (Corrupt, TypeError, ValueError):
            return None

    def slots(self) -> Iterator[tuple[Place, str | None, str, Slot]]:
        """Every value that a row holds: its checkpoint, its task if it is a write, and its channel."""
        for place, record in self.records.items():
            for name, slot in record.slots.items():
                yield place, None, name, slot
        for place, tasks in self.tasks.items():
            for task in tasks:
                for entry in task.entries.values():
                    yield place, task.row.task, entry.channel, entry.slot


def _no_new_names(name: str) -> int:
    raise KeyError(name)


def look(key: ThreadKey, found: Inspected) -> ThreadScan:
    """A thread as far as its rows can be read. The items of its state were not looked at yet."""
    scan = ThreadScan(key, found)
    for at, stored in sorted(found.items.items()):
        _take_item(scan, at, stored)
    for n in range(scan.row.nexts[NAMES] if scan.row and scan.row.nexts else 0):
        if ItemId(NAMES, n) not in found.items:
            scan.bad[ItemId(NAMES, n)] = (MISSING_ITEM, "a name of a channel or node is not there")
    for row in found.checkpoints:
        _take_checkpoint(scan, row)
    for task in found.writes:
        _take_writes(scan, task)
    for odd in found.unreadable:
        _take_odd(scan, odd)
    return scan


def _take_item(scan: ThreadScan, at: ItemId, stored: bytes) -> None:
    try:
        item = itemlog.unseal_item(at, stored, scan.where)
        _keep_item(scan, at, item)
    except Corrupt as error:
        scan.bad[at] = (CHECKSUM, str(error))
    except (ValueError, IndexError) as error:
        scan.bad[at] = (UNDECODABLE, f"item {at.lane}:{at.n} of {scan.where} does not make sense: {error!r}")


def _keep_item(scan: ThreadScan, at: ItemId, item: Item) -> None:
    if at.lane == NAMES:
        scan.names[at.n] = from_bytes(item.data)
    elif at.lane == RUN_LISTS:
        scan.run_lists[at.n] = itemlog.unpack_runs(item.data)
    else:
        scan.shared[at.n] = item.data


def _take_checkpoint(scan: ThreadScan, row: CheckpointRow) -> None:
    place = (row.ns, row.id)
    if not is_sealed(row):
        scan.broken[place] = "its checksum does not fit"
        scan.tell(CHECKSUM, f"checkpoint {row.id!r}: the checksum does not fit its row", place)
        return
    try:
        scan.records[place] = unpack_checkpoint(row, scan.reading(), scan.decoding(), scan.where)
    except Corrupt as error:
        scan.broken[place] = "it cannot be decoded"
        scan.tell(UNDECODABLE, str(error), place)


def _take_writes(scan: ThreadScan, row: WriteRow) -> None:
    place, at = (row.ns, row.checkpoint), (row.ns, row.checkpoint, row.task)
    if not is_sealed(row):
        scan.broken_writes[at] = "the checksum does not fit"
        scan.tell(
            CHECKSUM,
            f"writes of task {row.task!r} on checkpoint {row.checkpoint!r}: the checksum does not fit their row",
            place,
            row.task,
        )
        return
    try:
        scan.tasks.setdefault(place, []).append(unpack_writes(row, scan.reading(), scan.decoding(), scan.where))
    except Corrupt as error:
        scan.broken_writes[at] = "they cannot be decoded"
        scan.tell(UNDECODABLE, str(error), place, row.task)


def _take_odd(scan: ThreadScan, odd: Any) -> None:
    if odd.checkpoint is None:
        scan.tell("catalogue", f"the row of {scan.where} cannot be read: {odd.said}")
        return
    place = (odd.ns or "", odd.checkpoint)
    if odd.task is None:
        scan.broken[place] = odd.said
        scan.tell(UNDECODABLE, f"the row of checkpoint {odd.checkpoint!r} cannot be read: {odd.said}", place)
    else:
        scan.broken_writes[(*place, odd.task)] = odd.said
        scan.tell(
            UNDECODABLE,
            f"writes of task {odd.task!r} on checkpoint {odd.checkpoint!r} cannot be read: {odd.said}",
            place,
            odd.task,
        )


class Among:
    """Some items, and which runs meet them."""

    def __init__(self, items: Iterable[ItemId]) -> None:
        self._lanes: dict[int, list[int]] = {}
        for lane, n in sorted(items):
            self._lanes.setdefault(lane, []).append(n)

    def met(self, runs: Iterable[Run]) -> list[ItemId]:
        """The items that are in these runs."""
        found = []
        for lane, start, length in runs:
            held = self._lanes.get(lane)
            if held:
                at = bisect_left(held, start)
                while at < len(held) and held[at] < start + length:
                    found.append(ItemId(lane, held[at]))
                    at += 1
        return found


def affected(scan: ThreadScan) -> Mapping[ItemId, list[tuple[Place, str | None]]]:
    """Who refers to each item that cannot be used: checkpoints, and tasks on them."""
    bad = Among(scan.bad)
    who: dict[ItemId, list[tuple[Place, str | None]]] = {at: [] for at in scan.bad}
    for place, record in scan.records.items():
        runs = [
            *record.row.refs,
            Run(SHARED, record.row.labels, 1),
            *(run for slot in record.slots.values() for run in slot.runs),
        ]
        for at in dict.fromkeys(bad.met(runs)):
            who[at].append((place, None))
    for place, tasks in scan.tasks.items():
        for task in tasks:
            runs = [*task.row.refs, *(run for entry in task.entries.values() for run in entry.slot.runs)]
            for at in dict.fromkeys(bad.met(runs)):
                who[at].append((place, task.row.task))
    return who
