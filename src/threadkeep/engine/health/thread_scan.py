"""Read a damaged thread as far as possible: its intact rows, and the problems of the others.

Verify and repair start here. Everything else refuses a thread at its first damaged row. Here each row is unsealed and
decoded by itself, with the names, shapes and range lists that are left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

from threadkeep.engine.commit import check_epoch
from threadkeep.engine.health.requests import CATALOGUE, InspectedThread
from threadkeep.engine.identity import Kind, ThreadKey, from_bytes
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
    current_facts,
    is_plausible,
    is_sealed,
    thread_problem,
    unpack_checkpoint,
    unpack_writes,
)
from threadkeep.engine.requests import CachedItems, LoadItems
from threadkeep.engine.threads.heads import Head
from threadkeep.engine.threads.thread_rows import CheckpointKey
from threadkeep.errors import Corrupt
from threadkeep.short_repr import short_repr

CHECKSUM, MISSING_ITEM, MISSING_PARENT, UNDECODABLE = "checksum", "missing item", "missing parent", "undecodable"
COUNTER = "counter"
_PLAUSIBLE_LANES = 1 << 16
"""Lanes up to this many after the last known one are plausible: the thread may have grown since its names were read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with what is stored.

    `problem` is checksum, missing item, missing parent, undecodable, counter, catalogue, index, memory, search index or
    database.
    `message` describes it in a sentence. The other fields say where it is, as far as that is known; `item` is written
    as lane:number.
    """

    problem: str
    message: str
    thread: str | None = None
    kind: Kind | None = None
    ns: str | None = None
    checkpoint: str | None = None
    task: str | None = None
    item: str | None = None

    __repr__ = short_repr


@dataclass(slots=True)
class ThreadScan:
    """What can be read of a thread. Checkpoints are identified by (ns, id).

    `broken` and `broken_writes` (with the task) are rows that cannot be read. `bad_items` has the items that cannot be
    used, with the kind of problem and a message; `needed_by` says which checkpoints, and which tasks on them, refer to
    each. `element_counts` has the number of elements of items that do not hold exactly one. `cache` has the intact
    items that were read. `is_row_damaged` is whether the thread's own row is damaged.
    """

    key: ThreadKey
    inspected: InspectedThread
    cache: ItemCache = field(default_factory=ItemCache)
    names: dict[int, str] = field(default_factory=dict)
    records: dict[CheckpointKey, CheckpointRecord] = field(default_factory=dict)
    tasks: dict[CheckpointKey, list[TaskWrites]] = field(default_factory=dict)
    broken: set[CheckpointKey] = field(default_factory=set)
    broken_writes: set[tuple[str, str, str]] = field(default_factory=set)
    bad_items: dict[ItemId, tuple[str, str]] = field(default_factory=dict)
    needed_by: dict[ItemId, list[tuple[CheckpointKey, str | None]]] = field(default_factory=dict)
    element_counts: dict[ItemId, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    is_row_damaged: bool = False
    _bad_by_lane: dict[int, list[int]] = field(default_factory=dict)

    @property
    def row(self) -> ThreadRow | None:
        """The thread's row, if it can be read."""
        return self.inspected.thread

    @property
    def family(self) -> int:
        """The thread's family."""
        return self.inspected.family

    @property
    def where(self) -> str:
        """The thread, for messages."""
        return f"thread {self.key.id!r}"

    def report(
        self,
        problem: str,
        message: str,
        checkpoint: CheckpointKey | None = None,
        task: str | None = None,
        item: ItemId | None = None,
    ) -> None:
        """Add a problem."""
        ns, id = checkpoint or (None, None)
        position = f"{item.lane}:{item.n}" if item is not None else None
        self.problems.append(Problem(problem, message, self.key.id, self.key.kind, ns, id, task, position))

    # --- what is stored

    def head(self) -> Head:
        """The thread for code that reads and writes intact threads. New items come after all stored ones.

        Its names end at the first damaged one.
        """
        names = tuple(self.names[n] for n in takewhile(self.names.__contains__, count()))
        row = self.row and self.row._replace(nexts=self._next_numbers(self.row))
        return Head(self.key, row, names, {}, self.cache)

    def _next_numbers(self, row: ThreadRow) -> tuple[int, ...]:
        nexts = list(row.nexts)
        for lane, end in self.lane_ends().items():
            if 0 <= lane < FIRST_CHANNEL + len(self.names) + _PLAUSIBLE_LANES:  # else the lane's number is damaged
                nexts += [0] * (lane + 1 - len(nexts))
                nexts[lane] = max(nexts[lane], end)
        return tuple(nexts)

    def count_of_names(self) -> int:
        """The number of names: what the thread row counts, or if it is damaged, what is stored."""
        if self.is_row_damaged:
            return 1 + max((id.n for id in self.inspected.items if id.lane == NAMES), default=-1)
        return self.row.nexts[NAMES] if self.row and self.row.nexts else 0

    def lane_ends(self) -> dict[int, int]:
        """The number after the last item of each lane."""
        ends: dict[int, int] = {}
        for lane, n, _ in self.inspected.item_sizes:
            ends[lane] = max(ends.get(lane, 0), n + 1)
        return ends

    def labels(self, n: int) -> dict[str, Any] | None:
        """Return a set of labels; None if it cannot be read."""
        item = self.cache.get(ItemId(SHARED, n))
        try:
            return dict(unpack(item.data, f"labels {n} of {self.where}") or {}) if item is not None else None
        except (Corrupt, TypeError, ValueError):
            return None

    def slots(self) -> Iterator[tuple[CheckpointKey, str | None, str, Slot]]:
        """Every value in a readable row: its checkpoint, its task if it is a write, its channel and its slot."""
        for checkpoint, record in self.records.items():
            for name, slot in record.slots.items():
                yield checkpoint, None, name, slot
        for checkpoint, tasks in self.tasks.items():
            for task in tasks:
                for entry in task.entries.values():
                    yield checkpoint, task.row.task, entry.channel, entry.slot

    def references(self) -> Iterator[tuple[CheckpointKey, str | None, list[ItemRange]]]:
        """Every readable row, by checkpoint and task, with all items that it needs."""
        for checkpoint, record in self.records.items():
            ranges = (each for slot in record.slots.values() for each in slot.ranges)
            yield checkpoint, None, [*record.row.refs, ItemRange(SHARED, record.row.labels, 1), *ranges]
        for checkpoint, tasks in self.tasks.items():
            for task in tasks:
                ranges = (each for entry in task.entries.values() for each in entry.slot.ranges)
                yield checkpoint, task.row.task, [*task.row.refs, *ranges]

    # --- what is damaged

    def index_bad_items(self) -> None:
        """Find out which rows need the bad items. Call it when all bad items are known."""
        for lane, n in sorted(self.bad_items):
            self._bad_by_lane.setdefault(lane, []).append(n)
        self.needed_by = {item: [] for item in self.bad_items}
        for checkpoint, task, ranges in self.references() if self.bad_items else ():
            for item in dict.fromkeys(self._bad_in(ranges)):
                self.needed_by[item].append((checkpoint, task))

    def _bad_in(self, ranges: Iterable[ItemRange]) -> list[ItemId]:
        found = []
        for lane, start, length in ranges:
            bad = self._bad_by_lane.get(lane)
            if bad:
                found += [ItemId(lane, n) for n in bad[bisect_left(bad, start) : bisect_left(bad, start + length)]]
        return found

    def is_intact(self, slot: Slot) -> bool:
        """Whether all items of a value can be used. Needs `index_bad_items`."""
        return not self._bad_in((*slot.ranges, *slot.spill))

    # --- reading items

    async def fetch(self, slots: Iterable[Slot]) -> None:
        """Read the intact items of these values into the cache. Conflict if the thread was pruned. One round trip."""
        lacking = self.cache.lacking(itemlog.union(each for slot in slots for each in slot.ranges))
        wanted = itemlog.join_ranges(id for each in lacking for id in each.ids() if id not in self.bad_items)
        if not wanted or self.row is None:
            return
        items = await self.load_items(wanted)
        intact = {id: item for id, item in items.items() if id.lane >= FIRST_CHANNEL and id not in self.bad_items}
        self.cache.fill(intact, self.where, self.family)

    async def load_items(self, ranges: tuple[ItemRange, ...]) -> Mapping[ItemId, bytes]:
        """Load items as they are stored. Conflict if the thread was pruned since it was inspected. One round trip."""
        assert self.row is not None
        cached = CachedItems(self.row.epoch, len(self.names), ItemCache())
        loaded = await LoadItems(self.key, ranges, cached, unchecked=True)
        check_epoch(self.row, loaded.thread)
        return loaded.items


# --- scanning


def scan_thread(key: ThreadKey, found: InspectedThread) -> ThreadScan:
    """Decode the rows of a thread, without the items of its state, and report those that cannot be read."""
    scan = ThreadScan(key, found)
    if found.thread is not None:
        _scan_thread_row(scan, found.thread)
    found = scan.inspected
    for id, stored in sorted(found.items.items()):
        _scan_item(scan, id, stored)
    for n in range(scan.count_of_names()):
        if ItemId(NAMES, n) not in found.items:
            scan.bad_items[ItemId(NAMES, n)] = (
                MISSING_ITEM,
                f"name {n} of a channel or node of {scan.where} is missing",
            )
    head = scan.head()
    rows: list[CheckpointRow | WriteRow] = [*found.checkpoints, *found.writes]
    for row in rows:
        _scan_row(scan, head, row)
    for unreadable in found.unreadable:
        message = f"cannot be read: {unreadable.message}"
        if unreadable.checkpoint is None:
            scan.report(CATALOGUE, f"the row of {scan.where} {message}")
        else:
            checkpoint = (unreadable.ns or "", unreadable.checkpoint)
            _add_broken(scan, checkpoint, unreadable.task, UNDECODABLE, message)
    return scan


def _scan_thread_row(scan: ThreadScan, row: ThreadRow) -> None:
    """Report a damaged row. One that cannot be used is left out; of another thread's row, nothing is used."""
    problem = thread_problem(row, scan.key)
    if problem is not None:
        scan.is_row_damaged = True
        scan.report(CHECKSUM, f"the row of {scan.where} {problem}")
    if row.key != scan.key:
        scan.inspected = InspectedThread(exists=True)
    else:
        scan.inspected = scan.inspected._replace(thread=current_facts(row) if is_plausible(row) else None)


def _scan_item(scan: ThreadScan, id: ItemId, stored: bytes) -> None:
    try:
        item = itemlog.unseal_item(id, stored, scan.where, scan.family)
        if id.lane == NAMES:
            scan.names[id.n] = from_bytes(item.data)
        else:
            scan.cache.add(id, item)
    except Corrupt as error:
        scan.bad_items[id] = (CHECKSUM, str(error))
    except (ValueError, IndexError) as error:
        scan.bad_items[id] = (UNDECODABLE, f"item {id.lane}:{id.n} of {scan.where} is malformed: {error!r}")


def _scan_row(scan: ThreadScan, head: Head, row: CheckpointRow | WriteRow) -> None:
    names, shared = head.name_table()._replace(of=scan.names, family=scan.family), head.shared_parts()
    task = row.task if isinstance(row, WriteRow) else None
    checkpoint = (row.ns, row.checkpoint if isinstance(row, WriteRow) else row.id)
    if not is_sealed(row, scan.family):
        _add_broken(scan, checkpoint, task, CHECKSUM, "does not match its checksum")
        return
    try:
        if isinstance(row, WriteRow):
            scan.tasks.setdefault(checkpoint, []).append(unpack_writes(row, names, shared, scan.where))
        else:
            scan.records[checkpoint] = unpack_checkpoint(row, names, shared, scan.where)
    except Corrupt as error:
        _add_broken(scan, checkpoint, task, UNDECODABLE, f"cannot be decoded: {error}")


def _add_broken(scan: ThreadScan, checkpoint: CheckpointKey, task: str | None, problem: str, message: str) -> None:
    """Report a row that cannot be read."""
    row = f"the row of checkpoint {checkpoint[1]!r}"
    if task is None:
        scan.broken.add(checkpoint)
    else:
        scan.broken_writes.add((*checkpoint, task))
        row = f"the row of the writes of task {task!r} on checkpoint {checkpoint[1]!r}"
    scan.report(problem, f"{row} {message}", checkpoint, task)
