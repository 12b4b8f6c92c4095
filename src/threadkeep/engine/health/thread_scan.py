"""A thread as far as it can be read: the rows that make sense, and what is wrong with those that do not.

Everything else refuses a thread at its first damaged row. Verify and repair start here. Each row is unsealed and
decoded by itself, with the names, shapes and run lists that are left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

from threadkeep.engine.health.requests import CATALOGUE, InspectedThread
from threadkeep.engine.identity import ThreadKey, from_bytes
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import unpack
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, NAMES, SHARED, ItemId, ItemRange
from threadkeep.engine.log.records import (
    CheckpointRecord,
    CheckpointRow,
    Slot,
    TaskWrites,
    ThreadRow,
    WriteRow,
    is_sealed,
    unpack_checkpoint,
    unpack_writes,
)
from threadkeep.engine.requests import CachedItems, LoadItems
from threadkeep.engine.threads.heads import Head
from threadkeep.engine.threads.thread_rows import CheckpointPlace
from threadkeep.errors import Conflict, Corrupt

CHECKSUM, MISSING_ITEM, MISSING_PARENT, UNDECODABLE = "checksum", "missing item", "missing parent", "undecodable"
COUNTER = "counter"
_NEAR = 1 << 16
"""So many lanes after the last are counted: a thread that grows may get to have them."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with what is stored.

    `problem` is checksum, missing item, missing parent, undecodable, counter, catalogue, index, memory or database;
    `message` is a sentence about it. The others say where it is, as far as that is known; `item` is lane and number.
    """

    problem: str
    message: str
    thread: str | None = None
    kind: str | None = None
    ns: str | None = None
    checkpoint: str | None = None
    task: str | None = None
    item: str | None = None


@dataclass(slots=True)
class ThreadScan:
    """What can be read of a thread.

    `broken` and `broken_writes` (with the task) are rows that cannot be read. `bad` are items that cannot be used, with
    the problem and a sentence; `needing` says which checkpoints, and which tasks on them, refer to each. `uneven` says
    how many elements items hold, where it is not one. `cache` has the intact items that were read.
    """

    key: ThreadKey
    found: InspectedThread
    cache: ItemCache = field(default_factory=ItemCache)
    names: dict[int, str] = field(default_factory=dict)
    records: dict[CheckpointPlace, CheckpointRecord] = field(default_factory=dict)
    tasks: dict[CheckpointPlace, list[TaskWrites]] = field(default_factory=dict)
    broken: set[CheckpointPlace] = field(default_factory=set)
    broken_writes: set[tuple[str, str, str]] = field(default_factory=set)
    bad: dict[ItemId, tuple[str, str]] = field(default_factory=dict)
    needing: dict[ItemId, list[tuple[CheckpointPlace, str | None]]] = field(default_factory=dict)
    uneven: dict[ItemId, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _bad: _ItemIndex | None = None

    @property
    def row(self) -> ThreadRow | None:
        """The thread's row, if it can be read."""
        return self.found.thread

    @property
    def where(self) -> str:
        """The thread, for messages."""
        return f"thread {self.key.id!r}"

    def head(self) -> Head:
        """The thread for what reads and writes intact ones: new items come after all that are there.

        Its names end at the first damaged one.
        """
        names = tuple(self.names[n] for n in takewhile(self.names.__contains__, count()))
        row = self.row and self.row._replace(nexts=self._nexts(self.row))
        return Head(self.key, row, names, {}, self.cache)

    def _nexts(self, row: ThreadRow) -> tuple[int, ...]:
        nexts = list(row.nexts)
        for lane, end in self.ends().items():
            if 0 <= lane < FIRST_CHANNEL + len(self.names) + _NEAR:  # else its number is damaged
                nexts += [0] * (lane + 1 - len(nexts))
                nexts[lane] = max(nexts[lane], end)
        return tuple(nexts)

    def tell(
        self,
        problem: str,
        said: str,
        place: CheckpointPlace | None = None,
        task: str | None = None,
        item: ItemId | None = None,
    ) -> None:
        """Note a problem."""
        ns, checkpoint = place or (None, None)
        at = f"{item.lane}:{item.n}" if item is not None else None
        self.problems.append(Problem(problem, said, self.key.id, self.key.kind, ns, checkpoint, task, at))

    def labels(self, n: int) -> dict[str, Any] | None:
        """A set of labels, if it can be read."""
        item = self.cache.get(ItemId(SHARED, n))
        try:
            return dict(unpack(item.data, f"labels {n} of {self.where}") or {}) if item is not None else None
        except (Corrupt, TypeError, ValueError):
            return None

    def ends(self) -> dict[int, int]:
        """The number after the last item of each lane."""
        found: dict[int, int] = {}
        for lane, n, _ in self.found.stored:
            found[lane] = max(found.get(lane, 0), n + 1)
        return found

    def slots(self) -> Iterator[tuple[CheckpointPlace, str | None, str, Slot]]:
        """Every value that a row holds: its checkpoint, its task if it is a write, and its channel."""
        for place, record in self.records.items():
            for name, slot in record.slots.items():
                yield place, None, name, slot
        for place, tasks in self.tasks.items():
            for task in tasks:
                for entry in task.entries.values():
                    yield place, task.row.task, entry.channel, entry.slot

    def references(self) -> Iterator[tuple[CheckpointPlace, str | None, list[ItemRange]]]:
        """Every row that can be read, by checkpoint and task, with all items that it needs."""
        for place, record in self.records.items():
            runs = (run for slot in record.slots.values() for run in slot.ranges)
            yield place, None, [*record.row.refs, ItemRange(SHARED, record.row.labels, 1), *runs]
        for place, tasks in self.tasks.items():
            for task in tasks:
                runs = (run for entry in task.entries.values() for run in entry.slot.ranges)
                yield place, task.row.task, [*task.row.refs, *runs]

    def find_needing(self) -> None:
        """Find out who needs the bad items; call it when all are known."""
        self._bad = _ItemIndex(self.bad)
        self.needing = {at: [] for at in self.bad}
        for place, task, runs in self.references() if self.bad else ():
            for at in dict.fromkeys(self._bad.among(runs)):
                self.needing[at].append((place, task))

    def is_intact(self, slot: Slot) -> bool:
        """Whether all items of a value can be used."""
        assert self._bad is not None
        return not self._bad.among((*slot.ranges, *slot.spill))

    async def fetch(self, slots: Iterable[Slot]) -> None:
        """Read the intact items of these values into the pool. Conflict if the thread was pruned. One round trip."""
        lacking = self.cache.lacking(itemlog.union(run for slot in slots for run in slot.ranges))
        wanted = itemlog.join_ranges(at for run in lacking for at in run.ids() if at not in self.bad)
        if not wanted or self.row is None:
            return
        loaded = await LoadItems(self.key, wanted, CachedItems(self.row.epoch, len(self.names), ItemCache()))
        if loaded.thread is None or loaded.thread.epoch != self.row.epoch:
            raise Conflict(f"{self.where} was pruned while it was read")
        intact = {at: held for at, held in loaded.items.items() if at.lane >= FIRST_CHANNEL and at not in self.bad}
        self.cache.fill(intact, self.where)


class _ItemIndex:
    """Some items, to be found in runs."""

    def __init__(self, items: Iterable[ItemId]) -> None:
        self._lanes: dict[int, list[int]] = {}
        for lane, n in sorted(items):
            self._lanes.setdefault(lane, []).append(n)

    def among(self, runs: Iterable[ItemRange]) -> list[ItemId]:
        """The items that are in these runs."""
        found = []
        for lane, start, length in runs:
            held = self._lanes.get(lane)
            if held:
                begin, end = bisect_left(held, start), bisect_left(held, start + length)
                found += [ItemId(lane, n) for n in held[begin:end]]
        return found


def scan_thread(key: ThreadKey, found: InspectedThread) -> ThreadScan:
    """Scan the rows of a thread. The items of its state are not looked at yet."""
    scan = ThreadScan(key, found)
    for at, stored in sorted(found.items.items()):
        _take_item(scan, at, stored)
    for n in range(scan.row.nexts[NAMES] if scan.row and scan.row.nexts else 0):
        if ItemId(NAMES, n) not in found.items:
            scan.bad[ItemId(NAMES, n)] = (MISSING_ITEM, "a name of a channel or node is not there")
    head = scan.head()
    rows: list[CheckpointRow | WriteRow] = [*found.checkpoints, *found.writes]
    for row in rows:
        _take_row(scan, head, row)
    for odd in found.unreadable:
        if odd.checkpoint is None:
            scan.tell(CATALOGUE, f"the row of {scan.where} cannot be read: {odd.message}")
        else:
            _note_broken(scan, (odd.ns or "", odd.checkpoint), odd.task, UNDECODABLE, f"cannot be read: {odd.message}")
    return scan


def _take_item(scan: ThreadScan, at: ItemId, stored: bytes) -> None:
    try:
        item = itemlog.unseal_item(at, stored, scan.where)
        if at.lane == NAMES:
            scan.names[at.n] = from_bytes(item.data)
        else:
            scan.cache.add(at, item)
    except Corrupt as error:
        scan.bad[at] = (CHECKSUM, str(error))
    except (ValueError, IndexError) as error:
        scan.bad[at] = (UNDECODABLE, f"item {at.lane}:{at.n} of {scan.where} does not make sense: {error!r}")


def _take_row(scan: ThreadScan, head: Head, row: CheckpointRow | WriteRow) -> None:
    names, shared = head.reading()._replace(of=scan.names), head.decoding()
    task = row.task if isinstance(row, WriteRow) else None
    place = (row.ns, row.checkpoint if isinstance(row, WriteRow) else row.id)
    if not is_sealed(row):
        _note_broken(scan, place, task, CHECKSUM, "has a checksum that does not fit")
        return
    try:
        if isinstance(row, WriteRow):
            scan.tasks.setdefault(place, []).append(unpack_writes(row, names, shared, scan.where))
        else:
            scan.records[place] = unpack_checkpoint(row, names, shared, scan.where)
    except Corrupt as error:
        _note_broken(scan, place, task, UNDECODABLE, f"cannot be decoded: {error}")


def _note_broken(scan: ThreadScan, place: CheckpointPlace, task: str | None, problem: str, said: str) -> None:
    """Note a row that cannot be read."""
    if task is None:
        scan.broken.add(place)
        scan.tell(problem, f"the row of checkpoint {place[1]!r} {said}", place)
    else:
        scan.broken_writes.add((*place, task))
        scan.tell(problem, f"the row of the writes of task {task!r} on checkpoint {place[1]!r} {said}", place, task)
