"""`Keep.export`: threads and memories of a Keep as the lines of a portable file. Each thread is as of one moment.

The rows of a thread are read at once, its items slice by slice after them. If the thread is pruned in between, the
lines written so far are declared void and the thread is written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from threadkeep.clock import now_us
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import unpack
from threadkeep.engine.log.itemlog import Item, ItemId
from threadkeep.engine.log.records import Slot, TaskWrites, ThreadRow
from threadkeep.engine.requests import LoadedRows
from threadkeep.engine.threads.thread_rows import ThreadRows, thread_rows
from threadkeep.errors import Conflict, Corrupt
from threadkeep.session import Session
from threadkeep.transfer.compare import read_rows
from threadkeep.transfer.portable.files import LineWriter
from threadkeep.transfer.portable.format import (
    END,
    FORMAT,
    HEADER,
    THREAD,
    THREAD_END,
    THREAD_VOID,
    VERSION,
    LaneNames,
    checkpoint_line,
    item_line,
    memory_line,
    runs_line,
    writes_line,
)
from threadkeep.transfer.portable.redact import Redaction, ValueForm
from threadkeep.transfer.selection import MemoryPages, Selection, ThreadPages, count_threads
from threadkeep.transfer.thread_builder import ItemSlices, is_unfinished
from threadkeep.work import Progress, Work, retry

WriteLine: TypeAlias = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an exported file holds. `bytes` is the size of its lines before compression.

    `skipped` lists damaged threads, which were left out; a damaged thread that was selected by id is an error instead.
    """

    threads: int
    checkpoints: int
    writes: int
    items: int
    memories: int
    bytes: int
    redacted: bool
    skipped: tuple[str, ...] = ()


def thread_line(row: ThreadRow) -> dict[str, Any]:
    """Return the first line of a thread."""
    return {
        "type": THREAD, "kind": row.key.kind, "id": row.key.id, "created": row.created, "updated": row.updated,
        "status": row.status, "early": row.early, "early_status": row.early_status, "checkpoints": row.checkpoints,
        "writes": row.writes, "top": row.top,
    }  # fmt: skip


class LineCounts(NamedTuple):
    """What the lines of a thread hold."""

    checkpoints: int
    writes: int
    items: int


def write_thread(
    session: Session, loaded: LoadedRows, write: WriteLine, redaction: Redaction | None = None
) -> Work[LineCounts]:
    """Write the lines of a thread except the first and the last. Conflict if it is pruned meanwhile."""
    assert loaded.thread is not None
    thread = thread_rows(session.heads, loaded.thread.key, loaded)
    assert thread is not None
    lanes, lists = LaneNames(thread.head.names), _numbered_lists(thread)
    items = yield from _write_items(loaded.thread, thread, lanes, write, redaction)
    for at, n in lists.items():
        write(runs_line(n, thread.head.cache.range_lists[at], lanes))
    changed = redaction.line if redaction else _unchanged
    labels: dict[int, dict[str, Any]] = {}
    for place in sorted(thread.records):
        record = thread.records[place]
        n = record.row.labels
        if n not in labels:
            labels[n] = unpack(thread.head.shared(n), f"labels {n} of {thread.head.where}") or {}
        write(changed(checkpoint_line(record, labels[n], lanes, lists)))
    tasks = sorted((task for held in thread.tasks.values() for task in held), key=_place)
    for task in tasks:
        write(changed(writes_line(task, lanes, lists)))
    return LineCounts(len(thread.records), sum(len(task.entries) for task in tasks), items)


def _unchanged(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


def _place(task: TaskWrites) -> tuple[str, str, str]:
    return (task.row.ns, task.row.checkpoint, task.row.task)


def _slots(thread: ThreadRows) -> Iterable[tuple[str, Slot]]:
    """All values of a thread with their channels."""
    for record in thread.records.values():
        yield from record.slots.items()
    for held in thread.tasks.values():
        for task in held:
            yield from ((entry.channel, entry.slot) for entry in task.entries.values())


def _numbered_lists(thread: ThreadRows) -> dict[int, int]:
    """The run lists that are used: their numbers in the thread, mapped to those in the file."""
    used = {at.n for _, slot in _slots(thread) for run in slot.spill for at in run.ids()}
    return {at: n for n, at in enumerate(sorted(used))}


def _write_items(
    row: ThreadRow, thread: ThreadRows, lanes: LaneNames, write: WriteLine, redaction: Redaction | None
) -> Work[int]:
    """Write the items that are used, in the order of their lanes' names; return their number."""
    if redaction is not None:
        redaction.begin(thread.head.names)
        return (yield from _write_redacted(row, thread, lanes, write, redaction))
    used = itemlog.union(run for _, slot in _slots(thread) for run in slot.ranges)
    slices, count = ItemSlices(row, sorted(used, key=lambda run: (lanes.name(run.lane), run.start))), 0
    while slices:
        for at, stored in (yield from slices.next()):
            item = itemlog.unseal_item(at, stored, thread.head.where, thread.head.family)
            write(item_line(lanes.name(at.lane), at.n, item))
            count += 1
    return count


def _write_redacted(
    row: ThreadRow, thread: ThreadRows, lanes: LaneNames, write: WriteLine, redaction: Redaction
) -> Work[int]:
    """The same, element by element: all items of an element are redacted together."""
    written: dict[ItemId, int] = {}
    for channel, slot in _slots(thread):
        slices = ItemSlices(row, itemlog.join_ranges(_unwritten(slot, written)))
        waiting: list[tuple[ItemId, Item]] = []
        while slices:
            for at, stored in (yield from slices.next()):
                item = itemlog.unseal_item(at, stored, thread.head.where, thread.head.family)
                if item.elements and waiting:
                    _write_redacted_items(
                        ValueForm(channel, slot.tag, slot.kind), waiting, written, redaction, lanes, write
                    )
                    waiting = []
                waiting.append((at, item))
        if waiting:
            _write_redacted_items(ValueForm(channel, slot.tag, slot.kind), waiting, written, redaction, lanes, write)
    return len(written)


def _unwritten(slot: Slot, written: Mapping[ItemId, int]) -> Iterator[ItemId]:
    """The items of a value that were not written yet, and items that continue them, which may have been."""
    is_open = False
    for at in (at for run in slot.ranges for at in run.ids()):
        is_open = at not in written or (is_open and written[at] == 0)
        if is_open:
            yield at


def _write_redacted_items(
    form: ValueForm,
    held: list[tuple[ItemId, Item]],
    written: dict[ItemId, int],
    redaction: Redaction,
    lanes: LaneNames,
    write: WriteLine,
) -> None:
    """Write items that together hold whole elements."""
    for (at, _), item in zip(held, redaction.items(form, [item for _, item in held]), strict=True):
        if at not in written:
            written[at] = item.elements
            write(item_line(lanes.name(at.lane), at.n, item))


@dataclass(slots=True)
class Export:
    """A file that is being written."""

    session: Session
    selection: Selection
    out: LineWriter
    redaction: Redaction | None = None
    _counts: Counter[str] = field(default_factory=Counter)
    _skipped: list[str] = field(default_factory=list)

    def work(self, about: Mapping[str, Any]) -> Work[ExportResult]:
        """Write the file. `about` goes into its header. Missing if a selected thread does not exist."""
        redacted = self.redaction is not None
        self.out.write({"type": HEADER, "format": FORMAT, "version": VERSION, **about, "redacted": redacted})
        total = yield from count_threads(self.session.tenant, self.selection)
        done, pages = 0, ThreadPages(self.session.tenant, self.selection)
        while pages:
            for key in (yield from pages.next()):
                yield Progress(done, max(total, done + 1), key.id)
                yield from self._thread(key)
                done += 1
        if self.selection.memories:
            yield Progress(done, done, "memories")
            yield from self._memories()
        names = ("threads", "checkpoints", "writes", "items", "memories")
        counts = {name: self._counts[name] for name in names}
        self.out.write({"type": END, "threads": counts["threads"], "memories": counts["memories"]})
        yield Progress(done, done, "")
        return ExportResult(**counts, bytes=self.out.bytes, redacted=redacted, skipped=tuple(self._skipped))

    def _thread(self, key: ThreadKey) -> Work[None]:
        try:
            pruned = f"thread {key.id!r} was pruned by others"
            yield from retry(partial(self._whole_thread, key), pruned)
        except Corrupt:
            if self.selection.ids is not None:
                raise
            self._skipped.append(key.id)

    def _whole_thread(self, key: ThreadKey) -> Work[None]:
        """Write one thread. If that fails, its lines are declared void."""
        loaded = yield from read_rows(key)
        if loaded.thread is None or is_unfinished(loaded):
            return
        self.out.write(self._redacted(thread_line(loaded.thread)))
        try:
            counts = yield from write_thread(self.session, loaded, self.out.write, self.redaction)
        except (Conflict, Corrupt):
            self.out.write({"type": THREAD_VOID})
            raise
        self.out.write({"type": THREAD_END, **counts._asdict()})
        self._counts.update({"threads": 1, **counts._asdict()})

    def _redacted(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self.redaction.line(fields) if self.redaction else fields

    def _memories(self) -> Work[None]:
        pages = MemoryPages(self.session.tenant, now_us())
        while pages:
            for row in (yield from pages.next()).rows:
                self.out.write(self._redacted(memory_line(row)))
                self._counts["memories"] += 1
            yield Progress(0, None, "memories")
