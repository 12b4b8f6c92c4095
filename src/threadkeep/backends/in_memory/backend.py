"""The memory backend: rows in dicts. The reference that the others must agree with, and private to its Keep.

Rows are immutable, so a reply shares them. Atomicity comes from checking everything before changing anything, and
from the transport, which lets one request in at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from threadkeep.backends.in_memory.memories import InMemoryMemories
from threadkeep.engine.health.requests import (
    CompactStorage,
    InspectedThread,
    InspectThread,
    IntegrityCheck,
    ListStoredThreads,
    ThreadEntry,
)
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.log.itemlog import (
    BEGINNING,
    NAMES,
    RUN_LISTS,
    SHARED,
    ItemId,
    ItemRange,
    join_ranges,
    spilled,
    union,
)
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import (
    Batch,
    CachedItems,
    CheckpointRows,
    Commit,
    CopyThread,
    DropThread,
    FindThreadsOfRuns,
    ForkThread,
    ItemSizes,
    ListedThread,
    ListThreads,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadThreadRows,
    MeasureItems,
    MeasureStorage,
    ScanCheckpoints,
    ScannedCheckpoint,
    ranges_of,
)
from threadkeep.errors import Conflict
from threadkeep.plan import Request


@dataclass(slots=True)
class _Thread:
    row: ThreadRow
    checkpoints: dict[tuple[str, str], CheckpointRow] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[str, WriteRow]] = field(default_factory=dict)
    items: dict[ItemId, bytes] = field(default_factory=dict)
    tags: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)

    def found(self, ns: str, id: str) -> CheckpointRows:
        return CheckpointRows(self.checkpoints.get((ns, id)), tuple(self.writes.get((ns, id), {}).values()))

    def latest(self, ns: str) -> str | None:
        return max((id for (n, id), row in self.checkpoints.items() if n == ns and not row.hidden), default=None)


class InMemoryBackend:
    """All threads of one Keep."""

    def __init__(self) -> None:
        self._threads: dict[ThreadKey, _Thread] = {}
        self._verbs: dict[type[Request[Any]], Callable[[Any], Any]] = {
            LoadCheckpoints: self._load, LoadItems: self._items, LoadAncestors: self._ancestors, LoadThreadRows: self._survey,
            ScanCheckpoints: self._scan,
            ListThreads: self._catalogue, FindThreadsOfRuns: self._run_threads, Commit: self._commit,
            CopyThread: self._duplicate, ForkThread: self._fork, DropThread: self._drop, MeasureItems: self._measure,
            MeasureStorage: lambda _: None, **InMemoryMemories().verbs,
            ListStoredThreads: self._roster, InspectThread: self._inspect, IntegrityCheck: lambda _: (), CompactStorage: lambda _: (0, 0),
        }  # fmt: skip

    def answer(self, request: Request[Any]) -> Any:
        """Execute one request."""
        return self._verbs[type(request)](request)

    def _load(self, request: LoadCheckpoints) -> LoadedRows:
        thread = self._threads.get(request.key)
        if thread is None:
            return LoadedRows(None)
        places = [(want.ns, want.id if want.id is not None else thread.latest(want.ns)) for want in request.wanted]
        found = tuple(thread.found(ns, id) if id is not None else CheckpointRows(None, ()) for ns, id in places)
        runs = [run for want, f in zip(request.wanted, found, strict=True) if want.items for run in ranges_of(f)]
        return LoadedRows(thread.row, found, _sent(thread, found, runs, request.cached))

    def _items(self, request: LoadItems) -> LoadedRows:
        thread = self._threads.get(request.key)
        return (
            LoadedRows(thread.row, (), _sent(thread, (), request.ranges, request.cached))
            if thread
            else LoadedRows(None)
        )

    def _measure(self, request: MeasureItems) -> ItemSizes:
        thread = self._threads.get(request.key)
        if thread is None:
            return ItemSizes(None)
        held = ((at, thread.items[at]) for run in request.ranges for at in run.ids() if at in thread.items)
        return ItemSizes(thread.row, tuple((*at, len(stored), stored[:BEGINNING]) for at, stored in held))

    def _ancestors(self, request: LoadAncestors) -> LoadedRows:
        thread = self._threads.get(request.key)
        if thread is None:
            return LoadedRows(None)
        line: dict[str, CheckpointRows] = {}
        id: str | None = request.id
        while id is not None and id not in line and len(line) < request.limit:
            found = thread.found(request.ns, id)
            if found.row is None:
                break
            line[id] = found
            id = found.row.parent
        found_all = tuple(line.values())
        return LoadedRows(thread.row, found_all, _sent(thread, found_all, (), None))

    def _survey(self, request: LoadThreadRows) -> LoadedRows:
        thread = self._threads.get(request.key)
        if thread is None:
            return LoadedRows(None)
        places = dict.fromkeys([*thread.checkpoints, *thread.writes])
        found = tuple(thread.found(*place) for place in sorted(places))
        return LoadedRows(thread.row, found, _sent(thread, found, (), None), join_ranges(sorted(thread.items)))

    def _scan(self, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        hits = [hit for key, thread in self._threads.items() for hit in _hits(request, key, thread)]
        hits.sort(key=lambda hit: (hit.key.id, hit.row.ns))
        hits.sort(key=lambda hit: hit.row.id, reverse=True)
        return tuple(hit for hit in hits if _is_after(request.after, hit))[: request.limit]

    def _catalogue(self, request: ListThreads) -> tuple[ListedThread, ...]:
        threads = [thread for thread in self._threads.values() if _is_listed(request, thread)]
        descending = request.order != "id"
        threads.sort(key=lambda thread: (thread.row.key.kind, to_bytes(thread.row.key.id)))
        threads.sort(key=lambda thread: _order(request, thread.row), reverse=descending)
        rows = [thread for thread in threads if _comes_after(request, thread.row)][: request.limit]
        return tuple(
            ListedThread(t.row, t.items.get(ItemId(SHARED, t.row.labels)) if t.row.labels is not None else None)
            for t in rows
        )

    def _run_threads(self, request: FindThreadsOfRuns) -> tuple[ThreadKey, ...]:
        wanted = set(request.runs)
        ours = (key for key in self._threads if (key.tenant, key.kind) == (request.tenant, request.kind))
        return tuple(key for key in ours if wanted & self._threads[key].runs)

    def _commit(self, request: Commit) -> None:
        self._make(request.batch)

    def _make(self, batch: Batch) -> _Thread:
        thread = self._threads.get(batch.thread.key)
        _check(batch, thread)
        if thread is None:
            thread = self._threads[batch.thread.key] = _Thread(batch.thread._replace(bytes=0))
        _apply(batch, thread)
        if batch.drops_thread:
            del self._threads[batch.thread.key]
        return thread

    def _expected(self, key: ThreadKey, expect: tuple[int, int]) -> _Thread:
        thread = self._threads.get(key)
        if thread is None or (thread.row.epoch, thread.row.rev) != expect:
            raise Conflict
        return thread

    def _fork(self, request: ForkThread) -> None:
        source = self._expected(request.source, request.expect)
        made = self._make(request.batch)
        copied = {at: source.items[at] for run in request.ranges for at in run.ids() if at in source.items}
        made.items.update(copied)
        made.row = made.row._replace(bytes=made.row.bytes + sum(map(len, copied.values())))

    def _duplicate(self, request: CopyThread) -> None:
        source = self._expected(request.source, request.expect)
        if request.replaces is not None:
            self._expected(request.thread.key, request.replaces)
        elif request.thread.key in self._threads:
            raise Conflict
        copy = _Thread(
            request.thread, dict(source.checkpoints), {place: dict(rows) for place, rows in source.writes.items()},
            dict(source.items), dict(source.tags), set(source.runs),
        )  # fmt: skip
        for at, stored, tags in request.labels:
            copy.items[at] = stored
            copy.tags[at.n] = tags
        self._threads[request.thread.key] = copy

    def _drop(self, request: DropThread) -> None:
        self._threads.pop(request.key, None)

    def _roster(self, request: ListStoredThreads) -> tuple[ThreadEntry, ...]:
        ours = [key for key in self._threads if key.tenant == request.tenant and request.kind in (None, key.kind)]
        wanted = [(to_bytes(key.id), key.kind, key.id) for key in ours if key.id.startswith(request.prefix)]
        left = [each for each in sorted(wanted) if request.after is None or each[:2] > request.after]
        return tuple(ThreadEntry(kind, id, (raw, kind)) for raw, kind, id in left[: request.limit])

    def _inspect(self, request: InspectThread) -> InspectedThread:
        thread = self._threads.get(request.key)
        if thread is None:
            return InspectedThread()
        return InspectedThread(
            is_there=True,
            thread=thread.row,
            checkpoints=tuple(thread.checkpoints.values()),
            writes=tuple(row for rows in thread.writes.values() for row in rows.values()),
            items={at: stored for at, stored in thread.items.items() if at.lane <= SHARED},
            stored=tuple(sorted((at.lane, at.n, len(stored)) for at, stored in thread.items.items())),
            tags=frozenset((n, tag) for n, tags in thread.tags.items() for tag in tags),
            runs=frozenset(thread.runs),
        )


def _sent(
    thread: _Thread, found: Iterable[CheckpointRows], runs: Iterable[ItemRange], have: CachedItems | None
) -> dict[ItemId, bytes]:
    """Names, labels and run lists of these rows, and these items, but for what the asker has."""
    have = have if have is not None and have.epoch == thread.row.epoch else None
    names = thread.row.nexts[NAMES] if thread.row.nexts else 0
    found, wanted = list(found), list(runs)
    ids = [ItemId(NAMES, n) for n in range(have.names if have else 0, names)]
    ids += [ItemId(SHARED, f.row.labels) for f in found if f.row is not None]
    lists = [at for f in found for run in ranges_of(f) if run.lane in (RUN_LISTS, SHARED) for at in run.ids()]
    if any(run.lane == RUN_LISTS for run in wanted):
        spills = [at for at in lists if at.lane == RUN_LISTS and at in thread.items]
        wanted += [run for at in spills for run in spilled(at, thread.items[at])]
    ids += lists + [at for run in union(wanted) for at in run.ids()]
    return {at: thread.items[at] for at in ids if at in thread.items and not (have and have.items.has(at))}


def _hits(request: ScanCheckpoints, key: ThreadKey, thread: _Thread) -> Iterator[ScannedCheckpoint]:
    if (key.tenant, key.kind) != (request.tenant, request.kind) or request.thread not in (None, key.id):
        return
    for row in thread.checkpoints.values():
        tagged = set(request.tags) <= set(thread.tags.get(row.labels, ()))
        if not row.hidden and tagged and _fits(request, row):
            yield ScannedCheckpoint(key, row, thread.items.get(ItemId(SHARED, row.labels)))


def _fits(request: ScanCheckpoints, row: CheckpointRow) -> bool:
    step = row.step if row.step is not None else request.step  # an odd one stands elsewhere
    pairs = ((request.ns, row.ns), (request.id, row.id), (request.source, row.source), (request.step, step))
    same = all(wanted is None or wanted == held for wanted, held in (*pairs, (request.run, row.run)))
    return same and (request.before is None or row.id < request.before)


def _is_after(after: tuple[str, str, str] | None, hit: ScannedCheckpoint) -> bool:
    if after is None:
        return True
    id, thread, ns = after
    return hit.row.id < id or (hit.row.id == id and (hit.key.id, hit.row.ns) > (thread, ns))


def _is_listed(request: ListThreads, thread: _Thread) -> bool:
    row = thread.row
    tags = thread.tags.get(row.labels, ()) if row.labels is not None else ()
    return (
        row.key.tenant == request.tenant
        and row.key.id.startswith(request.prefix)
        and request.kind in (None, row.key.kind)
        and request.status in (None, row.status)
        and set(request.tags) <= set(tags)
    )


def _order(request: ListThreads, row: ThreadRow) -> Any:
    return to_bytes(row.key.id) if request.order == "id" else getattr(row, request.order)


def _comes_after(request: ListThreads, row: ThreadRow) -> bool:
    if request.after is None:
        return True
    value, kind, id = request.after
    place, cursor = (row.key.kind, to_bytes(row.key.id)), (kind, to_bytes(id))
    if request.order == "id":
        return (to_bytes(row.key.id), *place) > (to_bytes(id), *cursor)
    held = getattr(row, request.order)
    return bool(held < value) or (held == value and place > cursor)


def _check(batch: Batch, thread: _Thread | None) -> None:
    """Conflict unless everything is as the batch expects it."""
    if (thread is None) != (batch.expect is None):
        raise Conflict
    if thread is None:
        return
    if (thread.row.epoch, thread.row.rev) != batch.expect:
        raise Conflict
    if any((row.ns, row.id) in thread.checkpoints for row in batch.new_checkpoints):
        raise Conflict
    if any(row.task in thread.writes.get((row.ns, row.checkpoint), {}) for row in batch.new_writes):
        raise Conflict


def _apply(batch: Batch, thread: _Thread) -> None:
    freed = 0
    for ns, id in batch.removed_checkpoints:
        thread.checkpoints.pop((ns, id), None)
    for ns, id, task in batch.removed_writes:
        thread.writes.get((ns, id), {}).pop(task, None)
    for at in [at for at in thread.items if _is_in(at, batch.removed_items)] if batch.removed_items else ():
        freed += len(thread.items.pop(at))
        if at.lane == SHARED:
            thread.tags.pop(at.n, None)
    thread.items.update(batch.items)
    for row in (*batch.new_checkpoints, *batch.changed_checkpoints):
        thread.checkpoints[(row.ns, row.id)] = row
    for write in (*batch.new_writes, *batch.changed_writes):
        thread.writes.setdefault((write.ns, write.checkpoint), {})[write.task] = write
    for label in batch.labels:
        thread.tags[label.n] = label.tags
    thread.runs |= set(batch.runs)
    thread.runs -= set(batch.removed_runs)
    thread.row = batch.thread._replace(bytes=thread.row.bytes + batch.thread.bytes - freed)


def _is_in(at: ItemId, runs: Iterable[ItemRange]) -> bool:
    return any(run.lane == at.lane and run.start <= at.n < run.start + run.length for run in runs)
