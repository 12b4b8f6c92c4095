"""Checking a thread: every checksum, every reference, every parent, every value, every count. Nothing is changed.

It never stops at what is wrong. A thread's rows are held at once, its items in slices of some megabytes. A thread that
others write meanwhile is checked as it was at one moment; if it was pruned before its items were read, once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.cube import channels
from threadkeep.engine.cube.events import RunLog
from threadkeep.engine.health.requests import (
    CATALOGUE,
    DATABASE,
    INDEX,
    MEMORY,
    InspectedThread,
    InspectThread,
    IntegrityProblem,
    StoredMemory,
    StoredMemoryPage,
)
from threadkeep.engine.health.thread_scan import (
    COUNTER,
    MISSING_ITEM,
    MISSING_PARENT,
    UNDECODABLE,
    Problem,
    ThreadScan,
    scan_thread,
)
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, ItemId, ItemRange
from threadkeep.engine.log.plain import plain_parts
from threadkeep.engine.log.records import CheckpointRecord, Slot, ThreadRow
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.requests import CachedItems, LoadItems
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.heads import Head
from threadkeep.engine.threads.status import of_checkpoint, of_writes, worse
from threadkeep.errors import Conflict, Corrupt, Missing

SLICE = 8 * 1024 * 1024
"""So many bytes of items are held at once."""
_TRIES = 8
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was looked at, and what is wrong. `bytes` are stored bytes of threads."""

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    items: int = 0
    memories: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


async def examined(key: ThreadKey) -> ThreadScan | None:
    """A thread with all that is wrong with it, its items too; None if there is no such thread and nothing tells of it."""
    return await read_consistently(key, partial(_examined, key), tries=_TRIES)


async def _examined(key: ThreadKey) -> ThreadScan | None:
    found = await InspectThread(key)
    scan = scan_thread(key, found)
    for said in found.reported:
        scan.tell(INDEX, f"{scan.where}: {said}")
    if not found.is_there:
        return scan if scan.problems else None
    if scan.row is not None:
        await _read_items(scan)
    _judge(scan)
    return scan


def counted(scan: ThreadScan) -> tuple[int, int, int, int, int]:
    """What was looked at in a thread: it, its checkpoints, writes and items, and their bytes."""
    found = scan.found
    size = sum(size for _, _, size in found.stored) + _rows_size(found)
    writes = sum(len(row.index) // 3 for row in found.writes)
    return int(found.is_there), len(found.checkpoints), writes, len(found.stored), size


def _rows_size(found: InspectedThread) -> int:
    return sum(row.size for row in found.checkpoints) + sum(row.size for row in found.writes)


# --- items


async def _read_items(scan: ThreadScan) -> None:
    """Unseal and decode all items of the state; Conflict if the thread was pruned meanwhile."""
    values = _ValueDecoder(scan)
    for some in _slices(each for each in scan.found.stored if each[0] >= FIRST_CHANNEL):
        await _read_slice(scan, some, values.take)
    for pieces in values.unfinished():
        held: dict[ItemId, bytes] = {}
        wanted = [(*at, 0) for piece in pieces for at in piece.ids]
        await _read_slice(scan, wanted, partial(_hold, held))
        for piece in pieces:
            values.finish(piece, held)


def _hold(held: dict[ItemId, bytes], at: ItemId, item: itemlog.Item) -> None:
    held[at] = item.data


def _slices(stored: Iterable[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    some: list[tuple[int, int, int]] = []
    size = 0
    for each in stored:
        if some and size + each[2] > SLICE:
            yield some
            some, size = [], 0
        some.append(each)
        size += each[2]
    if some:
        yield some


async def _read_slice(scan: ThreadScan, some: list[tuple[int, int, int]], take: Any) -> None:
    """Read some items, give each that is intact to `take`; what cannot be read is looked for by halves."""
    row = scan.row
    assert row is not None
    ids = sorted({ItemId(lane, n) for lane, n, _ in some})
    try:
        loaded = await LoadItems(
            scan.key, itemlog.join_ranges(ids), CachedItems(row.epoch, len(scan.names), ItemCache())
        )
    except Corrupt as error:
        if len(some) == 1:
            scan.bad[ids[0]] = (DATABASE, f"item {ids[0].lane}:{ids[0].n} of {scan.where} cannot be read: {error}")
            return
        half = len(some) // 2
        await _read_slice(scan, some[:half], take)
        await _read_slice(scan, some[half:], take)
        return
    if loaded.thread is None or loaded.thread.epoch != row.epoch:
        raise Conflict(f"{scan.where} was pruned while it was read")
    for at in ids:
        if at not in loaded.items:
            scan.bad.setdefault(at, (DATABASE, f"item {at.lane}:{at.n} of {scan.where} is listed but not found"))
        elif at not in scan.bad:
            _unsealed(scan, at, loaded.items[at], take)


def _unsealed(scan: ThreadScan, at: ItemId, stored: bytes, take: Any) -> None:
    try:
        item = itemlog.unseal_item(at, stored, scan.where)
    except Corrupt as error:
        scan.bad[at] = ("checksum", str(error))
        return
    if item.elements != 1:
        scan.uneven[at] = item.elements
    take(at, item)


@dataclass(frozen=True, slots=True)
class _PartialElement:
    """An element that takes several items."""

    ids: tuple[ItemId, ...]
    kind: int
    tag: str


class _ValueDecoder:
    """Decodes what items hold: most hold whole elements; those that do not are put together later."""

    def __init__(self, scan: ThreadScan) -> None:
        self._scan = scan
        self._forms: dict[int, set[tuple[int, str]]] = {}
        self._slots: dict[tuple[ItemRange, ...], Slot] = {}
        self._open: set[ItemId] = set()
        for place, task, name, slot in scan.slots():
            if slot.inline is not None:
                _decoded_inline(scan, place, task, name, slot)
            elif slot.ranges:
                self._forms.setdefault(slot.ranges[0].lane, set()).add((slot.kind, slot.tag))
                self._slots[slot.ranges] = slot

    def take(self, at: ItemId, item: itemlog.Item) -> None:
        """Decode an item, in one of the forms that values of its lane have."""
        forms = self._forms.get(at.lane, ())
        if item.elements and forms and not any(decodes(*form, item.elements, item.data) for form in forms):
            self._open.add(at)

    def unfinished(self) -> Iterator[list[_PartialElement]]:
        """The elements that take several items, some at a time."""
        sizes = {ItemId(lane, n): size for lane, n, size in self._scan.found.stored}
        some: list[_PartialElement] = []
        held = 0
        for piece in self._pieces():
            size = sum(sizes.get(at, 0) for at in piece.ids)
            if some and held + size > SLICE:
                yield some
                some, held = [], 0
            some.append(piece)
            held += size
        if some:
            yield some

    def _pieces(self) -> Iterator[_PartialElement]:
        """The longest list first: it has most of them; then the short ones, which are writes."""
        lanes = {at.lane for at in self._open}
        slots = sorted(
            (slot for slot in self._slots.values() if slot.ranges[0].lane in lanes), key=lambda slot: sum(run.length for run in slot.ranges)
        )  # fmt: skip
        for slot in slots[-1:] + slots[:-1]:
            if not self._open:
                return
            yield from self._pieces_of(slot)

    def _pieces_of(self, slot: Slot) -> Iterator[_PartialElement]:
        ids: list[ItemId] = []
        for at in (at for run in slot.ranges for at in run.ids()):
            if self._scan.uneven.get(at, 1) == 0 and ids:
                ids.append(at)
                continue
            if ids:
                yield _PartialElement(tuple(ids), slot.kind, slot.tag)
            ids = []
            if at in self._open:
                self._open.discard(at)
                ids = [at]
        if ids:
            yield _PartialElement(tuple(ids), slot.kind, slot.tag)

    def finish(self, piece: _PartialElement, held: dict[ItemId, bytes]) -> None:
        """Decode an element whose items were read."""
        if not all(at in held for at in piece.ids):
            return  # one of them is damaged, which is told already
        first = piece.ids[0]
        elements = self._scan.uneven.get(first, 1)
        if not decodes(piece.kind, piece.tag, elements, b"".join(held[at] for at in piece.ids)):
            said = f"what items {', '.join(f'{at.lane}:{at.n}' for at in piece.ids[:4])} of {self._scan.where} hold cannot be decoded"
            self._scan.bad[first] = (UNDECODABLE, said)


def decodes(kind: int, tag: str, elements: int, data: bytes) -> bool:
    """Whether a value in joined parts can be decoded."""
    try:
        plain_parts(kind, tag, elements, data)
    except (Corrupt, ValueError, TypeError, IndexError, KeyError):
        return False
    return True


def _decoded_inline(scan: ThreadScan, place: tuple[str, str], task: str | None, name: str, slot: Slot) -> None:
    if slot.inline is None or not decodes(0, slot.tag, 1, slot.inline):
        scan.tell(UNDECODABLE, f"channel {name!r} of checkpoint {place[1]!r} cannot be decoded", place, task)


# --- what is said of each other


def _judge(scan: ThreadScan) -> None:
    """Note what is wrong between rows, and with items."""
    _find_missing(scan)
    _find_undecodable_labels(scan)
    scan.find_needing()
    for at, (problem, said) in sorted(scan.bad.items()):
        _tell_item(scan, at, problem, said, scan.needing[at])
    places = {*scan.records, *scan.broken}
    for (ns, id), record in scan.records.items():
        parent = record.row.parent
        if parent is not None and (ns, parent) not in places:
            scan.tell(
                MISSING_PARENT, f"checkpoint {id!r} says that {parent!r} is its parent, which is not there", (ns, id)
            )
    _judge_labels(scan)
    if scan.row is not None:
        _judge_counts(scan, scan.row)
        _judge_catalogue(scan, scan.row)
    _judge_runs(scan)


def _find_missing(scan: ThreadScan) -> None:
    stored = itemlog.join_ranges((lane, n) for lane, n, _ in scan.found.stored)
    used = {run for _, _, runs in scan.references() for run in runs}
    for run in itemlog.minus(used, stored):
        for at in run.ids():
            scan.bad.setdefault(at, (MISSING_ITEM, f"item {at.lane}:{at.n} of {scan.where} is not there"))


def _find_undecodable_labels(scan: ThreadScan) -> None:
    for n in {record.row.labels for record in scan.records.values()}:
        if scan.labels(n) is None:
            said = f"labels {n} of {scan.where} cannot be decoded"
            scan.bad.setdefault(ItemId(itemlog.SHARED, n), (UNDECODABLE, said))


def _tell_item(
    scan: ThreadScan, at: ItemId, problem: str, said: str, who: list[tuple[tuple[str, str], str | None]]
) -> None:
    checkpoints = sorted({place for place, task in who if task is None}, key=lambda place: place[1])
    tasks = sum(task is not None for _, task in who)
    told = [f"{len(checkpoints)} checkpoints"] * bool(checkpoints) + [f"writes of {tasks} tasks"] * bool(tasks)
    refer = f"; {' and '.join(told)} need it" if told else "; nothing that can be read needs it" if at.lane else ""
    first = next((task for place, task in who if place not in checkpoints), None)
    place = checkpoints[-1] if checkpoints else who[0][0] if who else None
    scan.tell(problem, said + refer, place, first if not checkpoints else None, at)


def _judge_labels(scan: ThreadScan) -> None:
    """The index has exactly the tags of the labels."""
    tags: dict[int, set[bytes]] = {}
    for n, tag in scan.found.tags or ():
        tags.setdefault(n, set()).add(tag)
    for n in {record.row.labels for record in scan.records.values()}:
        labels = scan.labels(n)
        if labels is not None and scan.found.tags is not None and set(metadata.tags(labels)) != tags.get(n, set()):
            scan.tell(
                INDEX,
                f"the index of metadata does not have what labels {n} of {scan.where} say: filters may not find it",
                item=ItemId(itemlog.SHARED, n),
            )
    stored = {n for lane, n, _ in scan.found.stored if lane == itemlog.SHARED}
    for n in sorted(tags.keys() - stored):
        scan.tell(INDEX, f"the index of metadata of {scan.where} tells of labels {n}, which are not there")


def _judge_runs(scan: ThreadScan) -> None:
    if scan.found.runs is None:
        return
    runs = {record.row.run for record in scan.records.values()}
    runs |= {entry.origin[1] for tasks in scan.tasks.values() for task in tasks for entry in task.entries.values()}
    for run in sorted(run for run in runs if run is not None and run not in (scan.found.runs or ())):
        scan.tell(
            INDEX,
            f"run {run!r} left something in {scan.where}, but the index of runs does not know: delete_for_runs will not find it",
        )


def _judge_counts(scan: ThreadScan, row: ThreadRow) -> None:
    """The counters of the thread's row. With rows that cannot be read, they cannot be compared."""
    found = scan.found
    for lane, end in sorted(scan.ends().items()):
        if lane >= len(row.nexts) or row.nexts[lane] < end:
            scan.tell(
                COUNTER,
                f"lane {lane} of {scan.where} has item {end - 1}, which is not counted yet: the next put would meet it",
            )
    if found.unreadable:
        return
    size = sum(size for _, _, size in found.stored) + _rows_size(found)
    counts = {
        "checkpoints": sum(not each.hidden for each in found.checkpoints),
        "writes": sum(len(each.index) // 3 for each in found.writes),
        "bytes": size,
    }
    for name, count in counts.items():
        if getattr(row, name) != count:
            scan.tell(COUNTER, f"{scan.where} counts {getattr(row, name)} {name}, but there are {count}")


def _judge_catalogue(scan: ThreadScan, row: ThreadRow) -> None:
    """What the thread's row says of the newest root checkpoint."""
    if scan.found.unreadable or any(ns == "" for ns, _ in scan.broken):
        visible = [row.id for row in scan.found.checkpoints if row.ns == "" and not row.hidden]
        if not scan.found.unreadable and (row.top or "") != max(visible, default=""):
            scan.tell(
                CATALOGUE,
                f"{scan.where} says that its newest checkpoint is {row.top!r}, not {max(visible, default=None)!r}",
            )
        return
    tops = [r for (ns, _), r in scan.records.items() if ns == "" and not r.row.hidden]
    top = max(tops, key=lambda record: record.row.id, default=None)
    wanted: dict[str, Any] = dict.fromkeys(("top", "run", "step", "source", "labels"))
    if top is not None:
        at = top.row
        wanted = {"top": at.id, "run": at.run, "step": at.step, "source": at.source, "labels": at.labels}
    if not any(ns == "" for ns, _, _ in scan.broken_writes) and row.key.kind != CUBE:
        wanted |= _statuses(scan, top)
    for name, value in wanted.items():
        if getattr(row, name) != value:
            scan.tell(CATALOGUE, f"{scan.where} says that its {name} is {getattr(row, name)!r}, not {value!r}")


def _statuses(scan: ThreadScan, top: CheckpointRecord | None) -> dict[str, Any]:
    status = of_checkpoint(top) if top else "idle"
    newest = top.row.id if top else ""
    for task in scan.tasks.get(("", newest), ()) if top else ():
        status = worse(status, of_writes(entry.channel for entry in task.entries.values()))
    waiting = [id for ns, id in scan.tasks if ns == "" and id > newest and ("", id) not in scan.records]
    early = max(waiting, default=None)
    channels = [entry.channel for task in scan.tasks.get(("", early or ""), ()) for entry in task.entries.values()]
    return {"status": status, "early": early, "early_status": of_writes(channels) if early is not None else None}


# --- talks


async def examine_talk(scan: ThreadScan) -> None:
    """Whether the ledger of a talk makes sense, and the thread's status is what it tells."""
    row = scan.row
    record = scan.records.get(("", row.top or "")) if row is not None else None
    if row is None or record is None:
        return
    slots = [record.slots[name] for name in (channels.EVENTS, channels.PENDING) if name in record.slots]
    if not all(map(scan.is_intact, slots)):
        return
    try:
        await scan.fetch(slots)
        _judge_talk(scan, scan.head(), record, row)
    except Conflict:
        return  # it was pruned since: what it was then cannot be read any more
    except (Corrupt, ValueError, TypeError, IndexError, KeyError) as error:
        scan.tell(
            UNDECODABLE, f"the events or the question of {scan.where} do not make sense: {error}", ("", record.row.id)
        )


def _judge_talk(scan: ThreadScan, head: Head, record: CheckpointRecord, row: ThreadRow) -> None:
    events, pending = channels.events(head, record), channels.value(head, record, channels.PENDING)
    status = channels.status(pending, RunLog(events))
    if row.status != status:
        scan.tell(CATALOGUE, f"{scan.where} says that its status is {row.status!r}, not {status!r}")
    messages = record.slots.get(channels.MESSAGES)
    held = (messages.elements, sum(run.length for run in messages.ranges)) if messages else (0, 0)
    told = (sum(len(event.ids) for event in events), sum(event.items for event in events))
    if held != told:
        scan.tell(
            COUNTER,
            f"the ledger of {scan.where} tells of {told[0]} messages in {told[1]} items, but there are {held[0]} in {held[1]}",
        )


# --- memories, and the storage as a whole


def memory_problems(seen: StoredMemoryPage, dims: int | None) -> Iterator[Problem]:
    """What is wrong with some memories."""
    for said in seen.problems:
        yield Problem(MEMORY, said)
    for memory in seen.memories:
        for said in (*memory.problem, *_wrong_value(memory), *_wrong_vectors(memory, dims)):
            where = (
                f"memory {memory.place.key!r} in {'/'.join(memory.place.namespace)}"
                if memory.place
                else f"memory number {memory.number}"
            )
            yield Problem(MEMORY, f"{where}: {said}")


def _wrong_value(memory: StoredMemory) -> Iterator[str]:
    try:
        load(memory.value)
    except (ValueError, RecursionError) as error:
        if memory.place is not None:
            yield f"its value cannot be decoded: {error}"


def _wrong_vectors(memory: StoredMemory, dims: int | None) -> Iterator[str]:
    """Vectors are numbered from 0, are whole numbers of floats, and have the dimensions that the store has."""
    if sorted(memory.vectors) != list(range(len(memory.vectors))):
        yield f"some of its vectors are missing: there are {sorted(memory.vectors)}"
    sizes = set(memory.vectors.values())
    if any(size % _FLOAT or size <= 0 for size in sizes):
        yield "a vector of it is cut short"
    elif len(sizes) > 1:
        yield f"its vectors have different dimensions: {sorted(size // _FLOAT for size in sizes)}"
    elif dims and sizes and sizes != {dims * _FLOAT}:
        yield f"its vectors have {sizes.pop() // _FLOAT} dimensions, not {dims}"


def storage_problems(unsound: Iterable[IntegrityProblem]) -> list[Problem]:
    """What the storage finds wrong with itself."""
    return [Problem(each.kind, each.message) for each in unsound]


async def known(tenant: str, id: str, kind: str | None) -> ThreadKey:
    """The thread of that id, even if its row cannot be read; of the kind that there is, if none is said.

    Missing if there is none, ValueError if there are two.
    """
    keys = [ThreadKey(tenant, each, id) for each in (GRAPH, CUBE) if kind in (None, each)]
    found = [key for key in keys if (await InspectThread(key)).is_there]
    if len(found) > 1:
        raise ValueError(f"there are two threads {id!r}: say which by its kind, {GRAPH} or {CUBE}")
    if not found:
        raise Missing(f"there is no thread {id!r}")
    return found[0]


async def thread_examined(key: ThreadKey) -> ThreadScan | None:
    """`examined`, and of a talk, its ledger."""
    scan = await examined(key)
    if scan is not None and scan.found.is_there and key.kind == CUBE:
        await examine_talk(scan)
    return scan
