"""Bringing a portable file into a Keep: threads are made of its lines, in bounded memory, and read again to be compared.

A thread that is not there is made; one that was brought here before and that nobody has changed since is made anew if the
file's is newer. Any other thread that is there stays: checkpoints are added that it has not, and a talk that differs is
told of. So a file may be brought in again, and what was interrupted is begun again by the same call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from threadkeep.desk import Desk, draw, now_exactly
from threadkeep.engine import itemlog, metadata
from threadkeep.engine.backend import Batch, Label, Loaded
from threadkeep.engine.codec import pack
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, to_bytes
from threadkeep.engine.itemlog import FIRST_CHANNEL, NAMES, RUN_LISTS, SHARED, Item, ItemId, Run
from threadkeep.engine.memories import MemoryRow
from threadkeep.engine.records import (
    CheckpointRow,
    Names,
    ThreadRow,
    WriteRow,
    pack_checkpoint,
    pack_writes,
)
from threadkeep.engine.status import STATUSES
from threadkeep.errors import Conflict, Missing, ThreadkeepError
from threadkeep.transfer import remembering
from threadkeep.transfer.portable import format as portable
from threadkeep.transfer.selection import Chosen
from threadkeep.transfer.compare import places, surveyed
from threadkeep.transfer.portable.export import tell
from threadkeep.transfer.thread_builder import Making, hidden, is_older, is_unfinished
from threadkeep.transfer.merging import merged, removed
from threadkeep.transfer.portable.format import Lanes, Line
from threadkeep.transfer.remembering import Index
from threadkeep.work import Progress, Work

_FEW = 64
MADE, SAME, RENEWED, MERGED, LEFT = "made", "same", "renewed", "merged", "left"


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of the threads of a file.

    `made` are new; `same` were there already; `renewed` had been brought here before and the file's are newer; `merged`
    had checkpoints of their own, which stayed. `differing` tells of those that are not as the file's now. A file that is
    not `complete` was cut off.
    """

    threads: int
    made: int
    same: int
    renewed: int
    merged: int
    memories: int
    differing: tuple[str, ...]
    complete: bool


class _Sum:
    """Of lines, in whatever order."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, said: dict[str, Any]) -> None:
        digest = blake2b(portable.encoded(said), digest_size=16).digest()
        self.total = (self.total + int.from_bytes(digest, "big")) % (1 << 128)


class _Spans:
    """Which items of a lane there are."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, n: int) -> bool:
        """One more; whether it is new."""
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
        """Whether all of these are there."""
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and end <= self._ends[at]


@dataclass(slots=True)
class Unpacked:
    """A thread as far as its lines were read: numbers for names, items to be stored, rows that are packed."""

    first: Line
    key: ThreadKey
    new_items: list[tuple[ItemId, bytes]] = field(default_factory=list)
    nexts: list[int] = field(default_factory=lambda: [0] * FIRST_CHANNEL)
    checkpoints: dict[tuple[str, str], CheckpointRow] = field(default_factory=dict)
    writes: dict[tuple[str, str, str], WriteRow] = field(default_factory=dict)
    sum: _Sum = field(default_factory=_Sum)
    items: int = 0
    entries: int = 0
    _names: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _spans: dict[int, _Spans] = field(default_factory=dict)
    _lists: dict[int, tuple[Run, ...]] = field(default_factory=dict)
    _shared: dict[bytes, int] = field(default_factory=dict)
    _labels: dict[int, Label] = field(default_factory=dict)
    _runs: dict[str, None] = field(default_factory=dict)

    def take(self, line: Line) -> None:
        """One more line."""
        kind = line.what
        if kind == portable.ITEM:
            self._item(line)
        elif kind == portable.RUNS:
            self._run_list(line)
        elif kind == portable.CHECKPOINT:
            self._checkpoint(line)
        elif kind == portable.WRITES:
            self._task(line)
        else:
            raise line.wrong(f"{portable.brief(kind)} is not expected inside a thread")

    def _item(self, line: Line) -> None:
        lane, n, item = portable.read_item(line)
        if self.checkpoints or self.writes or self._lists:
            raise line.wrong("items come before what refers to them")
        number = FIRST_CHANNEL + self._number(lane)
        if not self._spans.setdefault(number, _Spans()).add(n):
            raise line.wrong(f"there are two items {n} of {portable.brief(lane)}")
        self._store(ItemId(number, n), item)
        self.items += 1
        self.sum.add(portable.item_line(lane, n, item))

    def _run_list(self, line: Line) -> None:
        runs, n = self._checked(line, portable.read_runs(line, self._lane)), line.count("n")
        if n != len(self._lists):
            raise line.wrong(f"the list of runs {len(self._lists)} was expected, not {n}")
        self._lists[n] = runs
        self._store(ItemId(RUN_LISTS, n), Item(itemlog.pack_runs(runs)))
        self.sum.add(portable.runs_line(n, runs, Lanes(self._names)))

    def _checkpoint(self, line: Line) -> None:
        record, told = portable.read_checkpoint(line, self._lane, self._lists)
        row = record.row
        if (row.ns, row.id) in self.checkpoints:
            raise line.wrong(f"there are two checkpoints {portable.brief(row.id)}")
        if self.key.kind == CUBE and not (row.ns == "" and row.id.isascii() and row.id.isdecimal()):
            raise line.wrong(f"a talk has no checkpoint {portable.brief(row.id)}")
        self._check_slots(line, record.slots.values())
        columns = {"source": row.source, "step": row.step, "run_id": row.run}
        parts = metadata.split({name: value for name, value in columns.items() if value is not None} | told)
        try:
            label = self._share(pack(parts.labels))
            row = row._replace(source=parts.source, step=parts.step, run=parts.run, labels=label)
            record = record._replace(row=row, own=parts.own)
            packed = pack_checkpoint(row, record, self._naming(), self._share)
        except (TypeError, ValueError, RecursionError) as error:
            raise line.wrong(f"checkpoint {portable.brief(row.id)}: {error}") from error
        self._labels.setdefault(label, Label(label, metadata.tags(parts.labels)))
        self.checkpoints[(row.ns, row.id)] = packed
        self._count_run(row.run)
        self.sum.add(portable.checkpoint_line(record, parts.labels, Lanes(self._names), _Same()))

    def _task(self, line: Line) -> None:
        task = portable.read_writes(line, self._lane, self._lists)
        place = (task.row.ns, task.row.checkpoint, task.row.task)
        if place in self.writes:
            raise line.wrong(f"there are two lines of task {portable.brief(place[2])}")
        self._check_slots(line, [entry.slot for entry in task.entries.values()])
        try:
            self.writes[place] = pack_writes(task.row, task.entries, self._naming())
        except (TypeError, ValueError, RecursionError) as error:
            raise line.wrong(f"writes of task {portable.brief(place[2])}: {error}") from error
        self.entries += len(task.entries)
        for entry in task.entries.values():
            self._count_run(entry.origin[1])
        self.sum.add(portable.writes_line(task, Lanes(self._names), _Same()))

    def _check_slots(self, line: Line, slots: Any) -> None:
        for slot in slots:
            self._checked(line, slot.runs[slot.covered :])

    def _checked(self, line: Line, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        for lane, start, length in runs:
            if not self._spans[lane].has(start, start + length):
                name = self._names[lane - FIRST_CHANNEL]
                raise line.wrong(f"items {start} to {start + length - 1} of {portable.brief(name)} are not there")
        return runs

    def _lane(self, name: str) -> int:
        """The lane of a name that has items."""
        lane = FIRST_CHANNEL + self._numbers[name]
        if lane not in self._spans:
            raise KeyError(name)
        return lane

    def _naming(self) -> Names:
        return Names(self._names, self._number)

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
        self.new_items.append((at, itemlog.seal_item(at, item)))

    def _count_run(self, run: str | None) -> None:
        if run is not None:
            self._runs[run] = None

    def taken(self) -> list[tuple[ItemId, bytes]]:
        """The items that are to be stored since the last time."""
        new, self.new_items = self.new_items, []
        return new

    def batch(self) -> Batch:
        """All rows, as a change that adds them."""
        rows, tasks = tuple(self.checkpoints.values()), tuple(self.writes.values())
        visible = [row for row in rows if not row.hidden]
        top = max((row for row in visible if row.ns == ""), key=lambda row: row.id, default=None)
        thread = ThreadRow(
            self.key, 0, 0, tuple(self.nexts), self.first.count("created"), self.first.count("updated"),
            checkpoints=len(visible), writes=self.entries,
            bytes=sum(row.size for row in rows) + sum(task.size for task in tasks),
            top=top.id if top else None, run=top.run if top else None, step=top.step if top else None,
            source=top.source if top else None, status=_status(self.first, "status") or "idle",
            labels=top.labels if top else None, early=self.first.maybe_text("early"),
            early_status=_status(self.first, "early_status"),
        )  # fmt: skip
        return Batch(
            None, thread, new_checkpoints=rows, new_writes=tasks, labels=tuple(self._labels.values()),
            runs=tuple(self._runs),
        )  # fmt: skip


class _Same(dict[int, int]):
    """Run lists have the number here that they have in the file."""

    def __missing__(self, n: int) -> int:
        return n


def _status(line: Line, name: str) -> str | None:
    status = line.maybe_text(name)
    if status is not None and status not in STATUSES:
        raise line.wrong(f"{name} is {portable.brief(status)}")
    return status


class _Way(NamedTuple):
    """What is to become of a thread of the file, and the key under which it is made for that; None if it is not."""

    becomes: str
    made_as: ThreadKey | None
    there: Loaded


@dataclass(slots=True)
class Bringing:
    """A file on its way into a Keep."""

    desk: Desk
    lines: Iterator[Line]
    of: Chosen
    index: Index
    partial: bool = False
    _counts: dict[str, int] = field(default_factory=dict)
    _differing: list[str] = field(default_factory=list)
    _memories: list[MemoryRow] = field(default_factory=list)
    _seen: dict[str, int] = field(default_factory=dict)
    _met: set[str] = field(default_factory=set)

    def work(self) -> Work[Brought]:
        """All of it. A thread is there, whole, or not at all; what was cut off is an error unless `partial` is said.

        Missing, in the end, if a thread was named that the file has not.
        """
        end = None
        for line in self.lines:
            kind = line.what
            if end is not None:
                raise line.wrong("there is something after the end")
            if kind == portable.THREAD:
                if not (yield from self._thread(line)):
                    break
            elif kind == portable.MEMORY:
                yield from self._memory(line)
            elif kind == portable.END:
                end = line
            elif kind != portable.HEADER:
                raise line.wrong(f"{portable.brief(kind)} is not expected here")
        yield from self._store_memories()
        self._check_end(end)
        for id in self.of.ids or ():
            if id not in self._met:
                raise Missing(f"there is no thread {id!r} in the file")
        return self._brought(complete=end is not None)

    def _check_end(self, end: Line | None) -> None:
        if end is None and not self.partial:
            raise ValueError(
                f"the file is cut off: {self._seen.get('threads', 0)} threads of it are whole and were imported; "
                "partial=True (--partial) takes it for all"
            )
        for name in ("threads", "memories") if end is not None else ():
            if end is not None and end.count(name) != self._seen.get(name, 0):
                raise end.wrong(f"{end.count(name)} {name} were announced, but {self._seen.get(name, 0)} are there")

    def _brought(self, *, complete: bool) -> Brought:
        counts = {name: self._counts.get(name, 0) for name in (MADE, SAME, RENEWED, MERGED)}
        return Brought(
            threads=self._counts.get("threads", 0), memories=self._counts.get("memories", 0),
            differing=tuple(self._differing), complete=complete, **counts,
        )  # fmt: skip

    # -- threads

    def _thread(self, first: Line) -> Work[bool]:
        """One thread; whether the file goes on after it."""
        kind, id = first.text("kind"), first.text("id")
        if kind not in (GRAPH, CUBE):
            raise first.wrong(f"there are no threads of the kind {portable.brief(kind)}")
        yield Progress(self._seen.get("threads", 0), None, id)
        if not self.of.fits(kind, id):
            return self._skipped()
        self._met.add(id)
        key = self.desk.key(kind, id)
        way = yield from self._way(first, key)
        if way.becomes == LEFT:
            self._counts["threads"] = self._counts.get("threads", 0) + 1
            return self._skipped()
        return (yield from self._carried(first, key, way))

    def _skipped(self) -> bool:
        for line in self.lines:
            if line.what in (portable.THREAD_END, portable.THREAD_VOID):
                self._seen["threads"] = self._seen.get("threads", 0) + (line.what == portable.THREAD_END)
                return True
        return False

    def _way(self, first: Line, key: ThreadKey) -> Work[_Way]:
        """What is to be done, as the thread of that id stands here now."""
        there = yield from surveyed(key)
        row = there.thread
        if row is None or is_unfinished(there):
            return _Way(MADE, key, there)
        if _says_the_same(first, row):
            return _Way(SAME, None, there)
        if is_older(row, first.count("created")) and first.count("updated") > row.updated:
            return _Way(RENEWED, key, there)
        if key.kind == CUBE:
            self._differing.append(f"cube {key.id}: there is another talk of this id; it was left alone")
            return _Way(LEFT, None, there)
        return _Way(MERGED, hidden(key), there)

    def _carried(self, first: Line, key: ThreadKey, way: _Way) -> Work[bool]:
        """Read a thread's lines, make it of them, and compare; whether the file goes on after it."""
        unpacked, end = Unpacked(first, way.made_as or key), None
        making: Making | None = None
        try:
            for line in self.lines:
                if line.what in (portable.THREAD_END, portable.THREAD_VOID):
                    end = line
                    break
                unpacked.take(line)
                items = unpacked.taken()
                if way.made_as is not None:
                    making = making or (yield from self._begun(first, way))
                    yield from making.add(items, unpacked.nexts)
            if end is not None and end.what == portable.THREAD_END:
                _check_counts(end, unpacked)
                self._seen["threads"] = self._seen.get("threads", 0) + 1
                yield from self._finished(unpacked, making, key, way)
                return True
            yield from self._abandoned(making)
        except GeneratorExit:
            raise
        except Conflict:
            yield from self._abandoned(making)
            self._differing.append(f"{key.kind} {key.id}: it was changed by others meanwhile; import it again")
            return end is not None or self._skipped()
        except BaseException:
            yield from self._abandoned(making)
            raise
        return end is not None

    def _begun(self, first: Line, way: _Way) -> Work[Making]:
        """Begin to make a thread, where nothing is in the way any more."""
        assert way.made_as is not None
        old = way.there if way.made_as == self.desk.key(way.made_as.kind, way.made_as.id) else None
        found = old if old is not None else (yield from surveyed(way.made_as))
        if found.thread is not None:
            yield from removed(self.desk, found)
        return Making(self.desk.heads, way.made_as, first.count("created"), first.count("updated"), draw())

    def _abandoned(self, making: Making | None) -> Work[None]:
        if making is not None:
            with suppress(ThreadkeepError):  # what is left has no rows: the next one who comes removes it
                yield from making.abandon()

    def _finished(self, unpacked: Unpacked, making: Making | None, key: ThreadKey, way: _Way) -> Work[None]:
        became = way.becomes
        batch = unpacked.batch()
        if way.made_as is not None:
            if not (batch.new_checkpoints or batch.new_writes):
                raise unpacked.first.wrong(f"thread {portable.brief(key.id)} has neither checkpoints nor writes")
            making = making or (yield from self._begun(unpacked.first, way))
            yield from making.add(unpacked.taken(), unpacked.nexts)
            yield from making.finish(batch)
        if became == MERGED:
            yield from merged(self.desk, unpacked.key, key)
        yield from self._compared(unpacked, key, became)
        self._counts[became] = self._counts.get(became, 0) + 1
        self._counts["threads"] = self._counts.get("threads", 0) + 1

    def _compared(self, unpacked: Unpacked, key: ThreadKey, became: str) -> Work[None]:
        """Read the thread as it is here now, and tell if it is not as the file has it."""
        found = yield from surveyed(key)
        if became == MERGED:
            wanted = {*unpacked.checkpoints, *unpacked.writes}
            if lost := wanted - places(found):
                self._differing.append(f"{key.kind} {key.id}: {len(lost)} checkpoints or writes are not there")
            return
        here = _Sum()
        if found.thread is not None:
            yield from tell(self.desk, found, here.add)
        if here.total != unpacked.sum.total:
            self._differing.append(f"{key.kind} {key.id}: the thread is not as the file has it")

    # -- memories

    def _memory(self, line: Line) -> Work[None]:
        self._seen["memories"] = self._seen.get("memories", 0) + 1
        if self.of.memories:
            self._memories.append(portable.read_memory(line))
            if len(self._memories) >= _FEW:
                yield from self._store_memories()

    def _store_memories(self) -> Work[None]:
        time = now_exactly()
        rows = [row for row in self._memories if row.expires is None or row.expires > time]
        self._memories = []
        if rows:
            stored = yield from remembering.take_in(self.desk.tenant, rows, self.index, time)
            self._counts["memories"] = self._counts.get("memories", 0) + stored


def _says_the_same(first: Line, row: ThreadRow) -> bool:
    """Whether a thread's line and its row here tell of the same state."""
    told = (first.count("created"), first.count("updated"), first.said.get("checkpoints"), first.said.get("writes"))
    return (*told, first.said.get("top"), first.said.get("status")) == (
        row.created, row.updated, row.checkpoints, row.writes, row.top, row.status,
    )  # fmt: skip


def _check_counts(end: Line, unpacked: Unpacked) -> None:
    found = {"checkpoints": len(unpacked.checkpoints), "writes": unpacked.entries, "items": unpacked.items}
    for name, count in found.items():
        if end.count(name) != count:
            raise end.wrong(f"{end.count(name)} {name} were announced, but {count} are there")
