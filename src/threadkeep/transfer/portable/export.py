"""`Keep.export`: threads and memories of a Keep as the lines of a portable file. Each thread is as of one moment.

The rows of a thread are read and checked at once, its items slice by slice after them. If the thread is pruned in
between, or if an item is damaged, the lines written so far are declared void; then the thread, or its intact part, is
written again, or left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from threadkeep.clock import now_us
from threadkeep.engine.health.salvage import IntactThread, load_intact, salvage
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import unpack
from threadkeep.engine.log.itemlog import Item, ItemId
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.records import Slot, TaskWrites, ThreadRow
from threadkeep.engine.requests import LoadedRows
from threadkeep.engine.threads.origins import Origin, noted_origins
from threadkeep.engine.threads.thread_rows import ThreadRows, thread_rows
from threadkeep.errors import Conflict, Corrupt
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
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
    origin_object,
    runs_line,
    writes_line,
)
from threadkeep.transfer.portable.redact import Redaction, ValueForm
from threadkeep.transfer.result import Damage
from threadkeep.transfer.selection import MemoryPages, Selection, ThreadPages, count_threads
from threadkeep.transfer.thread_builder import ItemSlices, is_unfinished
from threadkeep.work import Progress, Work, read, retry

WriteLine: TypeAlias = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an exported file holds. `bytes` is the size of its lines before compression.

    `skipped` are the ids of damaged threads, which were left out. `damage` names what is damaged, in threads and
    memories, and with `salvage` what was left out because of it.
    """

    threads: int
    checkpoints: int
    writes: int
    items: int
    memories: int
    bytes: int
    redacted: bool
    skipped: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    __repr__ = short_repr


def thread_line(row: ThreadRow, origins: Iterable[Origin] = ()) -> dict[str, Any]:
    """Return the first line of a thread. `origins` are in the order in which it notes them."""
    said: dict[str, Any] = {} if row.description is None else {"description": json.loads(row.description)}
    came_from = [origin_object(each) for each in origins]
    return said | ({"origins": came_from} if came_from else {}) | {
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
                if item.elements and waiting and slot.kind != WHOLE:
                    _write_redacted_items(
                        ValueForm(channel, slot.tag, slot.kind), waiting, written, redaction, lanes, write
                    )
                    waiting = []
                waiting.append((at, item))
        if waiting:
            _write_redacted_items(ValueForm(channel, slot.tag, slot.kind), waiting, written, redaction, lanes, write)
    return len(written)


def _unwritten(slot: Slot, written: Mapping[ItemId, int]) -> Iterator[ItemId]:
    """The items of a value that were not written yet, and items that continue them, which may have been.

    All items of a value that is whole, since they are redacted together, even if one is an element of another channel.
    """
    is_open = False
    if slot.kind == WHOLE:
        ids = [at for run in slot.ranges for at in run.ids()]
        yield from ids if any(at not in written for at in ids) else ()
        return
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
    salvages: bool = False
    _counts: Counter[str] = field(default_factory=Counter)
    _damage: Damage = field(default_factory=Damage)

    def work(self, about: Mapping[str, Any]) -> Work[ExportResult]:
        """Write the file. `about` goes into its header. Missing if a selected thread does not exist."""
        redacted = self.redaction is not None
        self.out.write({"type": HEADER, "format": FORMAT, "version": VERSION, **about, "redacted": redacted})
        total = yield from count_threads(self.session.tenant, self.selection)
        done, pages = 0, ThreadPages(self.session.tenant, self.selection)
        while pages:
            for key, unreadable in (yield from pages.next()):
                yield Progress(done, max(total, done + 1), key.id)
                if unreadable is None:
                    yield from self._thread(key)
                else:
                    self._damage.of_thread(key, [unreadable], skip=True)
                done += 1
        if self.selection.memories:
            yield Progress(done, done, "memories")
            yield from self._memories()
        names = ("threads", "checkpoints", "writes", "items", "memories")
        counts = {name: self._counts[name] for name in names}
        self.out.write({"type": END, "threads": counts["threads"], "memories": counts["memories"]})
        yield Progress(done, done, "")
        skipped, damage = tuple(self._damage.skipped), self._damage.named
        return ExportResult(**counts, bytes=self.out.bytes, redacted=redacted, skipped=skipped, damage=damage)

    def _thread(self, key: ThreadKey) -> Work[None]:
        """Write one thread, or what is intact of it."""
        pruned = f"thread {key.id!r} was pruned by others"
        try:
            try:
                yield from retry(partial(self._whole_thread, key), pruned)
            except Corrupt:
                if not self.salvages:
                    raise
                left_out = yield from retry(partial(self._intact_part, key), pruned)
                self._damage.of_thread(key, left_out, skip=False)
        except Corrupt as error:
            self._damage.of_thread(key, [str(error)], skip=True)

    def _whole_thread(self, key: ThreadKey) -> Work[None]:
        yield from self._write(IntactThread((yield from read(lambda: load_intact(key, items=False)))))

    def _intact_part(self, key: ThreadKey) -> Work[tuple[str, ...]]:
        """Write what is intact of a thread, and return what is left out."""
        part = yield from read(lambda: salvage(key))
        yield from self._write(part)
        return part.left_out

    def _write(self, part: IntactThread) -> Work[None]:
        """Write one thread. If that fails, its lines are declared void."""
        loaded = part.loaded
        if loaded.thread is None or is_unfinished(loaded):
            return
        head = self.session.heads.head_from(loaded.thread.key, loaded, None)
        self.out.write(self._redacted(thread_line(loaded.thread, noted_origins(head.names))))
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
            page = yield from pages.next()
            self._damage.add(*page.damage)
            for row in page.rows:
                self.out.write(self._redacted(memory_line(row)))
                self._counts["memories"] += 1
            yield Progress(0, None, "memories")
