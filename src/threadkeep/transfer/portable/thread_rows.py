"""The lines of a thread in a portable file, turned into items and rows while they are read.

Only the rows stay in memory. Items are handed over as they come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from threadkeep.engine.cube.channels import MESSAGES, count_elements
from threadkeep.engine.identity import CUBE, ThreadKey, to_bytes
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import pack
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, NAMES, RANGE_LISTS, SHARED, Item, ItemId, ItemRange
from threadkeep.engine.log.records import (
    STATUSES,
    CheckpointRow,
    NameTable,
    ThreadRow,
    WriteRow,
    pack_checkpoint,
    pack_writes,
)
from threadkeep.engine.requests import Batch, NewLabels
from threadkeep.engine.threads import description, metadata
from threadkeep.transfer.portable import format as lines
from threadkeep.transfer.portable.format import LaneNames, Line, brief


class LineSum:
    """A checksum of lines that does not depend on their order."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, fields: dict[str, Any]) -> None:
        """Add a line."""
        digest = blake2b(lines.encoded(fields), digest_size=16).digest()
        self.total = (self.total + int.from_bytes(digest, "big")) % (1 << 128)


class _Spans:
    """The numbers of items that a lane has."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, n: int) -> bool:
        """Add a number; return whether it is new."""
        at = bisect_right(self._starts, n) - 1
        if at >= 0 and n < self._ends[at]:
            return False
        goes_on = at >= 0 and self._ends[at] == n
        meets = at + 1 < len(self._starts) and self._starts[at + 1] == n + 1
        if goes_on:
            self._ends[at] = self._ends.pop(at + 1) if meets else n + 1
        elif not meets:
            self._ends.insert(at + 1, n + 1)
        if meets:
            del self._starts[at + 1]
        if not goes_on:
            self._starts.insert(at + 1, n)
        return True

    def has(self, start: int, end: int) -> bool:
        """Whether the lane has all numbers from `start` to before `end`."""
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and end <= self._ends[at]


@dataclass(slots=True)
class PortableThreadRows:
    """The rows of a thread as far as its lines were read, and the items that were not handed over yet."""

    first: Line
    key: ThreadKey
    family: int
    _new_items: list[tuple[ItemId, bytes]] = field(default_factory=list)
    nexts: list[int] = field(default_factory=lambda: [0] * FIRST_CHANNEL)
    checkpoints: dict[tuple[str, str], CheckpointRow] = field(default_factory=dict)
    writes: dict[tuple[str, str, str], WriteRow] = field(default_factory=dict)
    sum: LineSum = field(default_factory=LineSum)
    items: int = 0
    entries: int = 0
    messages: int = 0
    """Of a CubeLoop thread, at its newest checkpoint."""
    _newest: str = ""
    _names: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _spans: dict[int, _Spans] = field(default_factory=dict)
    _lists: dict[int, tuple[ItemRange, ...]] = field(default_factory=dict)
    _shared: dict[bytes, int] = field(default_factory=dict)
    _labels: dict[int, NewLabels] = field(default_factory=dict)
    _runs: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in self.first.listed("origins"):
            self._number(lines.read_origin(self.first.inner(each)).note())

    def take(self, line: Line) -> None:
        """Read a line."""
        takes = {
            lines.ITEM: self._item,
            lines.RUNS: self._run_list,
            lines.CHECKPOINT: self._checkpoint,
            lines.WRITES: self._writes,
        }
        take = takes.get(line.line_type)
        if take is None:
            raise line.error(f"{brief(line.line_type)} is not expected inside a thread")
        take(line)

    def _item(self, line: Line) -> None:
        lane, n, item = lines.read_item(line)
        if self.checkpoints or self.writes or self._lists:
            raise line.error("items must come before what refers to them")
        number = FIRST_CHANNEL + self._number(lane)
        if not self._spans.setdefault(number, _Spans()).add(n):
            raise line.error(f"item {n} comes twice in {brief(lane)}")
        self._store(ItemId(number, n), item)
        self.items += 1
        self.sum.add(lines.item_line(lane, n, item))

    def _run_list(self, line: Line) -> None:
        runs, n = self._checked(line, lines.read_runs(line, self._lane)), line.count("n")
        if n != len(self._lists):
            raise line.error(f"expected list of runs {len(self._lists)}, not {n}")
        self._lists[n] = runs
        self._store(ItemId(RANGE_LISTS, n), Item(itemlog.pack_ranges(runs)))
        self.sum.add(lines.runs_line(n, runs, LaneNames(self._names)))

    def _checkpoint(self, line: Line) -> None:
        record, given = lines.read_checkpoint(line, self._lane, self._lists)
        row = record.row
        if (row.ns, row.id) in self.checkpoints:
            raise line.error(f"checkpoint {brief(row.id)} comes twice")
        if self.key.kind == CUBE and not (row.ns == "" and row.id.isascii() and row.id.isdecimal()):
            raise line.error(f"a CubeLoop thread cannot have a checkpoint {brief(row.id)}")
        self._check_slots(line, record.slots.values())
        columns = {"source": row.source, "step": row.step, "run_id": row.run}
        kept = metadata.without_private(given)
        parts = metadata.split({name: value for name, value in columns.items() if value is not None} | kept)
        try:
            label = self._share(pack(parts.labels))
            row = row._replace(source=parts.source, step=parts.step, run=parts.run, labels=label)
            record = record._replace(row=row, own_metadata=parts.own)
            packed = pack_checkpoint(row, record, self._naming(), self._share)
        except (TypeError, ValueError, RecursionError) as error:
            raise line.error(f"checkpoint {brief(row.id)}: {error}") from error
        self._labels.setdefault(label, NewLabels(label, metadata.tags(parts.labels)))
        self.checkpoints[(row.ns, row.id)] = packed
        if self.key.kind == CUBE and row.id >= self._newest:
            self._newest = row.id
            self.messages = count_elements(record.slots, MESSAGES)
        self._count_run(row.run)
        self.sum.add(lines.checkpoint_line(record, parts.labels, LaneNames(self._names), _SameNumbers()))

    def _writes(self, line: Line) -> None:
        task = lines.read_writes(line, self._lane, self._lists)
        place = (task.row.ns, task.row.checkpoint, task.row.task)
        if place in self.writes:
            raise line.error(f"the writes of task {brief(place[2])} come twice")
        self._check_slots(line, [entry.slot for entry in task.entries.values()])
        try:
            self.writes[place] = pack_writes(task.row, task.entries, self._naming())
        except (TypeError, ValueError, RecursionError) as error:
            raise line.error(f"writes of task {brief(place[2])}: {error}") from error
        self.entries += len(task.entries)
        for entry in task.entries.values():
            self._count_run(entry.origin[1])
        self.sum.add(lines.writes_line(task, LaneNames(self._names), _SameNumbers()))

    def _check_slots(self, line: Line, slots: Any) -> None:
        for slot in slots:
            self._checked(line, slot.ranges[slot.covered :])

    def _checked(self, line: Line, runs: tuple[ItemRange, ...]) -> tuple[ItemRange, ...]:
        for lane, start, length in runs:
            if not self._spans[lane].has(start, start + length):
                name = self._names[lane - FIRST_CHANNEL]
                raise line.error(f"items {start} to {start + length - 1} of {brief(name)} are missing")
        return runs

    def _lane(self, name: str) -> int:
        """The lane of a name. KeyError if it has no items."""
        lane = FIRST_CHANNEL + self._numbers[name]
        if lane not in self._spans:
            raise KeyError(name)
        return lane

    def _naming(self) -> NameTable:
        return NameTable(self._names, self._number, self.family)

    def _number(self, name: str) -> int:
        n = self._numbers.get(name)
        if n is None:
            n = self._numbers[name] = len(self._names)
            self._names.append(name)
            self._store(ItemId(NAMES, n), Item(to_bytes(name)))
        return n

    def _share(self, packed: bytes) -> int:
        n = self._shared.get(packed)
        if n is None:
            n = self._shared[packed] = len(self._shared)
            self._store(ItemId(SHARED, n), Item(packed))
        return n

    def _store(self, at: ItemId, item: Item) -> None:
        self.nexts += [0] * (at.lane + 1 - len(self.nexts))
        self.nexts[at.lane] = max(self.nexts[at.lane], at.n + 1)
        self._new_items.append((at, itemlog.seal_item(at, item, self.family)))

    def _count_run(self, run: str | None) -> None:
        if run is not None:
            self._runs[run] = None

    def new_items(self) -> list[tuple[ItemId, bytes]]:
        """Return the items that were read since the last call."""
        new, self._new_items = self._new_items, []
        return new

    def batch(self) -> Batch:
        """Return all rows, as a batch that adds them."""
        rows, tasks = tuple(self.checkpoints.values()), tuple(self.writes.values())
        visible = [row for row in rows if not row.hidden]
        top = max((row for row in visible if row.ns == ""), key=lambda row: row.id, default=None)
        early, rows_on = self.first.maybe_text("early"), Counter(task.checkpoint for task in tasks if task.ns == "")
        thread = ThreadRow(
            self.key, 0, 0, tuple(self.nexts), self.first.count("created"), self.first.count("updated"),
            checkpoints=len(visible), writes=self.entries,
            bytes=sum(row.size for row in rows) + sum(task.size for task in tasks),
            top=top.id if top else None, run=top.run if top else None, step=top.step if top else None,
            source=top.source if top else None, status=_status(self.first, "status") or "idle",
            labels=top.labels if top else None, early=early, early_status=_status(self.first, "early_status"),
            family=self.family, top_writes=rows_on[top.id] if top else 0,
            early_writes=rows_on[early] if early is not None else None, description=description_of(self.first),
        )  # fmt: skip
        return Batch(
            None, thread, new_checkpoints=rows, new_writes=tasks, labels=tuple(self._labels.values()),
            runs=tuple(self._runs),
        )  # fmt: skip


class _SameNumbers(dict[int, int]):
    """Run lists keep the numbers that they have in the file."""

    def __missing__(self, n: int) -> int:
        return n


def description_of(line: Line) -> str | None:
    """Return what the first line of a thread says about it, as a row stores it."""
    try:
        return description.pack(description.read(line.table("description")))
    except (TypeError, ValueError) as error:
        raise line.error(f"the description of the thread: {error}") from error


def _status(line: Line, name: str) -> str | None:
    status = line.maybe_text(name)
    if status is not None and status not in STATUSES:
        raise line.error(f"{name} is {brief(status)}")
    return status
