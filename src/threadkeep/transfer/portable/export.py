"""Exporting: a thread as the lines of a portable file, as of one moment; and a file of many.

The rows of a thread are read at once, its items some at a time after them. Should the thread be pruned in between, its
lines are declared void, and it is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from threadkeep.desk import Desk, now_exactly
from threadkeep.engine import itemlog
from threadkeep.engine.backend import Loaded, Pause
from threadkeep.engine.checkpoints import TRIES
from threadkeep.engine.codec import unpack
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.itemlog import Item, ItemId
from threadkeep.engine.memories import MemoryRow
from threadkeep.engine.records import Slot, TaskWrites, ThreadRow
from threadkeep.engine.survey import Whole, whole
from threadkeep.errors import Conflict, Corrupt
from threadkeep.transfer import selection as choosing
from threadkeep.transfer.selection import Chosen
from threadkeep.transfer.compare import surveyed
from threadkeep.transfer.thread_builder import Slices, is_unfinished
from threadkeep.transfer.portable.format import (
    END,
    FORMAT,
    HEADER,
    THREAD,
    THREAD_END,
    THREAD_VOID,
    VERSION,
    Lanes,
    Writer,
    checkpoint_line,
    item_line,
    memory_line,
    runs_line,
    writes_line,
)
from threadkeep.work import Progress, Read, Work

Emit: TypeAlias = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """What a file holds. `bytes` are those of its lines, before they are compressed.

    `skipped` are damaged threads that were not named, and so left out.
    """

    threads: int
    checkpoints: int
    writes: int
    items: int
    memories: int
    bytes: int
    redacted: bool
    skipped: tuple[str, ...] = ()


class Pieces(NamedTuple):
    """Of what value some items are: its channel, tag and kind."""

    channel: str
    tag: str
    kind: int


class Redacting(Protocol):
    """What makes lines that nobody can recognise anybody by."""

    def begin(self, names: Iterable[str]) -> None:
        """The names of channels and nodes of the thread that comes."""

    def line(self, said: dict[str, Any]) -> dict[str, Any]:
        """A line of anything but an item."""

    def pieces(self, of: Pieces, items: list[Item]) -> list[Item]:
        """Items, each as long as it was."""


def thread_line(row: ThreadRow) -> dict[str, Any]:
    """What a file says of a thread first."""
    return {
        "type": THREAD, "kind": row.key.kind, "id": row.key.id, "created": row.created, "updated": row.updated,
        "status": row.status, "early": row.early, "early_status": row.early_status, "checkpoints": row.checkpoints,
        "writes": row.writes, "top": row.top,
    }  # fmt: skip


class Told(NamedTuple):
    """How much of a thread was told."""

    checkpoints: int
    writes: int
    items: int


def tell(desk: Desk, loaded: Loaded, emit: Emit, redacting: Redacting | None = None) -> Work[Told]:
    """The lines of a surveyed thread, but for the first and the last. Conflict if it is pruned meanwhile."""
    assert loaded.thread is not None
    thread = whole(desk.heads, loaded.thread.key, loaded)
    assert thread is not None
    lanes, lists = Lanes(thread.head.names), _numbered_lists(thread)
    items = yield from _tell_items(loaded.thread, thread, lanes, emit, redacting)
    for at, n in lists.items():
        emit(runs_line(n, thread.head.pool.run_lists[at], lanes))
    changed = redacting.line if redacting else _as_it_is
    labels: dict[int, dict[str, Any]] = {}
    for place in sorted(thread.records):
        record = thread.records[place]
        n = record.row.labels
        if n not in labels:
            labels[n] = unpack(thread.head.shared(n), f"labels {n} of {thread.head.where}") or {}
        emit(changed(checkpoint_line(record, labels[n], lanes, lists)))
    tasks = sorted((task for held in thread.tasks.values() for task in held), key=_place)
    for task in tasks:
        emit(changed(writes_line(task, lanes, lists)))
    return Told(len(thread.records), sum(len(task.entries) for task in tasks), items)


def _as_it_is(said: dict[str, Any]) -> dict[str, Any]:
    return said


def _place(task: TaskWrites) -> tuple[str, str, str]:
    return (task.row.ns, task.row.checkpoint, task.row.task)


def _slots(thread: Whole) -> Iterable[tuple[str, Slot]]:
    """All values of a thread, with their channels."""
    for record in thread.records.values():
        yield from record.slots.items()
    for held in thread.tasks.values():
        for task in held:
            yield from ((entry.channel, entry.slot) for entry in task.entries.values())


def _numbered_lists(thread: Whole) -> dict[int, int]:
    """The run lists that are used, by their number in the thread, with their number in the file."""
    used = {at.n for _, slot in _slots(thread) for run in slot.spill for at in run.ids()}
    return {at: n for n, at in enumerate(sorted(used))}


def _tell_items(row: ThreadRow, thread: Whole, lanes: Lanes, emit: Emit, redacting: Redacting | None) -> Work[int]:
    """The items that are used, by the names of their lanes; how many."""
    if redacting is not None:
        redacting.begin(thread.head.names)
        return (yield from _tell_redacted(row, thread, lanes, emit, redacting))
    used = itemlog.union(run for _, slot in _slots(thread) for run in slot.runs)
    slices, count = Slices(row, sorted(used, key=lambda run: (lanes.name(run.lane), run.start))), 0
    while slices:
        for at, stored in (yield from slices.next()):
            emit(item_line(lanes.name(at.lane), at.n, itemlog.unseal_item(at, stored, thread.head.where)))
            count += 1
    return count


def _tell_redacted(row: ThreadRow, thread: Whole, lanes: Lanes, emit: Emit, redacting: Redacting) -> Work[int]:
    """The same, element by element: what belongs together has to be seen together."""
    told: dict[ItemId, int] = {}
    for channel, slot in _slots(thread):
        slices = Slices(row, itemlog.join_runs(_untold(slot, told)))
        waiting: list[tuple[ItemId, Item]] = []
        while slices:
            for at, stored in (yield from slices.next()):
                item = itemlog.unseal_item(at, stored, thread.head.where)
                if item.elements and waiting:
                    _tell_pieces(Pieces(channel, slot.tag, slot.kind), waiting, told, redacting, lanes, emit)
                    waiting = []
                waiting.append((at, item))
        if waiting:
            _tell_pieces(Pieces(channel, slot.tag, slot.kind), waiting, told, redacting, lanes, emit)
    return len(told)


def _untold(slot: Slot, told: Mapping[ItemId, int]) -> Iterator[ItemId]:
    """The items of a value that were not told, and those that go on with one of them: they are shared, and told already."""
    is_open = False
    for at in (at for run in slot.runs for at in run.ids()):
        is_open = at not in told or (is_open and told[at] == 0)
        if is_open:
            yield at


def _tell_pieces(
    of: Pieces, held: list[tuple[ItemId, Item]], told: dict[ItemId, int], redacting: Redacting, lanes: Lanes, emit: Emit
) -> None:
    """Items that hold whole elements together."""
    for (at, _), item in zip(held, redacting.pieces(of, [item for _, item in held]), strict=True):
        if at not in told:
            told[at] = item.elements
            emit(item_line(lanes.name(at.lane), at.n, item))


@dataclass(slots=True)
class Export:
    """A file that is being written."""

    desk: Desk
    of: Chosen
    out: Writer
    redacting: Redacting | None = None
    _counts: dict[str, int] = field(default_factory=dict)
    _skipped: list[str] = field(default_factory=list)

    def work(self, about: Mapping[str, Any]) -> Work[Exported]:
        """All of it; `about` stands in the header."""
        redacted = self.redacting is not None
        self.out.write({"type": HEADER, "format": FORMAT, "version": VERSION, **about, "redacted": redacted})
        total = yield from choosing.each_thread(self.desk.tenant, self.of, self._thread)
        memories = 0
        if self.of.memories:
            yield Progress(total, total, "memories")
            memories = yield from choosing.each_memory(self.desk.tenant, now_exactly(), self._memories)
        threads = self._counts.get("threads", 0)
        self.out.write({"type": END, "threads": threads, "memories": memories})
        yield Progress(total, total, "")
        return Exported(
            threads=threads, memories=memories, bytes=self.out.bytes, redacted=redacted,
            skipped=tuple(self._skipped),
            **{name: self._counts.get(name, 0) for name in ("checkpoints", "writes", "items")},
        )  # fmt: skip

    def _thread(self, key: ThreadKey, done: int, total: int) -> Work[None]:
        yield Progress(done, total, key.id)
        try:
            yield from self._whole_thread(key)
        except Corrupt:
            if self.of.ids is not None:
                raise
            self._skipped.append(key.id)

    def _whole_thread(self, key: ThreadKey) -> Work[None]:
        for tried in range(TRIES):
            loaded = yield from surveyed(key)
            if loaded.thread is None or is_unfinished(loaded):
                return
            self.out.write(self._changed(thread_line(loaded.thread)))
            try:
                told = yield from tell(self.desk, loaded, self.out.write, self.redacting)
            except Corrupt:
                self.out.write({"type": THREAD_VOID})
                raise
            except Conflict:
                self.out.write({"type": THREAD_VOID})
                yield Read(partial(_pause, tried))
                continue
            self.out.write({"type": THREAD_END, **told._asdict()})
            for name, count in ({"threads": 1} | told._asdict()).items():
                self._counts[name] = self._counts.get(name, 0) + count
            return
        raise Conflict(f"thread {key.id!r} was pruned by others at each of {TRIES} tries")

    def _changed(self, said: dict[str, Any]) -> dict[str, Any]:
        return self.redacting.line(said) if self.redacting else said

    def _memories(self, first: str, rows: list[MemoryRow]) -> Work[None]:  # noqa: ARG002 - the partition does not matter
        for row in rows:
            self.out.write(self._changed(memory_line(row)))
        yield Progress(0, None, "memories")


async def _pause(tried: int) -> None:
    await Pause(tried)
