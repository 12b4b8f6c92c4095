"""The in-memory backend for threads: rows in dicts. It is private to its Keep, and the reference for the others.

Rows are immutable, so a reply shares them. A change is atomic because everything is checked before anything is changed,
and because the transport runs one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threadkeep.backends.handlers import Handlers
from threadkeep.backends.in_memory.memories import InMemoryMemories
from threadkeep.backends.in_memory.tenants import InMemoryTenants
from threadkeep.engine.health.requests import (
    CompactStorage,
    FixedColumns,
    InspectedThread,
    InspectThread,
    IntegrityCheck,
    ListStoredThreads,
    MeasureStorage,
    ThreadEntry,
)
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.log.itemlog import (
    NAMES,
    PREFIX_LENGTH,
    RANGE_LISTS,
    SHARED,
    ItemId,
    ItemRange,
    join_ranges,
    new_tuple,
    unpack_range_list,
)
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow, checked_thread, thread_checksum
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
    ItemsOf,
    ListedThread,
    ListThreads,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadSeveral,
    LoadSeveralItems,
    LoadThreadRows,
    MeasureItems,
    ScanCheckpoints,
    ScannedCheckpoint,
    ranges_of,
)
from threadkeep.errors import Conflict
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.in_memory.search import InMemorySearch


@dataclass(slots=True)
class _Thread:
    row: ThreadRow
    checkpoints: dict[tuple[str, str], CheckpointRow] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[str, WriteRow]] = field(default_factory=dict)
    items: dict[ItemId, bytes] = field(default_factory=dict)
    tags: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)

    def checkpoint(self, ns: str, id: str | None) -> CheckpointRows:
        """Return a checkpoint with its writes; without an id, nothing."""
        if id is None:
            return CheckpointRows(None, ())
        return CheckpointRows(self.checkpoints.get((ns, id)), tuple(self.writes.get((ns, id), {}).values()))

    def latest(self, ns: str) -> str | None:
        return max([id for (n, id), row in self.checkpoints.items() if n == ns and not row.hidden], default=None)


class InMemoryBackend:
    """All threads and memories of one Keep."""

    def __init__(self) -> None:
        self._threads: dict[ThreadKey, _Thread] = {}
        self._tenants = tenants = InMemoryTenants(self._tenants_in_use)
        self._memories = InMemoryMemories(tenants.check_plain)
        self._search: InMemorySearch | None = None
        handlers: dict[type[Request[Any]], Callable[[Any], Any]] = {
            LoadCheckpoints: self._load_checkpoints,
            LoadSeveral: lambda request: tuple(map(self._load_checkpoints, request.loads)),
            LoadItems: self._load_items,
            LoadSeveralItems: lambda request: tuple(map(self._items_of, request.loads)),
            MeasureItems: self._measure_items,
            LoadAncestors: self._load_ancestors,
            LoadThreadRows: self._load_thread_rows,
            ScanCheckpoints: self._scan_checkpoints,
            ListThreads: self._list_threads,
            FindThreadsOfRuns: self._find_threads_of_runs,
            Commit: self._commit,
            CopyThread: self._copy_thread,
            ForkThread: self._fork_thread,
            DropThread: self._drop_thread,
            ListStoredThreads: self._list_stored_threads,
            InspectThread: self._inspect_thread,
            IntegrityCheck: lambda _: (),
            CompactStorage: lambda _: (0, 0),
            MeasureStorage: lambda _: None,
            **self._memories.handlers,
            **tenants.handlers,
        }
        self._handlers = Handlers(handlers, self._search_handlers)

    def answer(self, request: Request[Any]) -> Any:
        """Execute one request."""
        return self._handlers[type(request)](request)

    def _tenants_in_use(self) -> list[str]:
        return [*(key.tenant for key in self._threads), *self._memories.tenants()]

    def _search_handlers(self) -> dict[type[Request[Any]], Callable[[Any], Any]]:
        from threadkeep.backends.in_memory.search import InMemorySearch  # noqa: PLC0415 - on use

        self._search = InMemorySearch(self._rows_of, self._tenants.check_plain)
        return self._search.handlers

    def _rows_of(self, tenant: str) -> Iterator[ThreadRow]:
        return (thread.row for key, thread in self._threads.items() if key.tenant == tenant)

    def _find(self, key: ThreadKey) -> _Thread | None:
        """Return a thread, or None if it does not exist. Corrupt if its row is damaged."""
        thread = self._threads.get(key)
        if thread is not None:
            thread.row = checked_thread(thread.row, key)
        return thread

    # --- reads of one thread

    def _load_checkpoints(self, request: LoadCheckpoints) -> LoadedRows:
        thread = self._find(request.key)
        if thread is None:
            return LoadedRows(None)
        keys = [(want.ns, want.id if want.id is not None else thread.latest(want.ns)) for want in request.wanted]
        found = tuple(thread.checkpoint(ns, id) for ns, id in keys)
        with_items = [rows for want, rows in zip(request.wanted, found, strict=True) if want.items]
        ranges = [each for rows in with_items for each in ranges_of(rows, thread.row.nexts)]
        return LoadedRows(thread.row, found, _items_of(thread, found, ranges, request.cached))

    def _load_items(self, request: LoadItems) -> LoadedRows:
        thread = self._threads.get(request.key) if request.unchecked else self._find(request.key)
        if thread is None:
            return LoadedRows(None)
        return LoadedRows(thread.row, (), _items_of(thread, (), request.ranges, request.cached))

    def _items_of(self, load: ItemsOf) -> dict[ItemId, bytes]:
        thread = self._threads.get(load.thread.key)
        if thread is None or thread.row.epoch != load.thread.epoch:
            return {}
        return {id: thread.items[id] for each in load.ranges for id in each.ids() if id in thread.items}

    def _measure_items(self, request: MeasureItems) -> ItemSizes:
        thread = self._find(request.key)
        if thread is None:
            return ItemSizes(None)
        found = ((id, thread.items[id]) for each in request.ranges for id in each.ids() if id in thread.items)
        return ItemSizes(thread.row, tuple((*id, len(stored), stored[:PREFIX_LENGTH]) for id, stored in found))

    def _load_ancestors(self, request: LoadAncestors) -> LoadedRows:
        thread = self._find(request.key)
        if thread is None:
            return LoadedRows(None)
        ancestors: dict[str, CheckpointRows] = {}
        id: str | None = request.id
        while id is not None and id not in ancestors and len(ancestors) < request.limit:
            rows = thread.checkpoint(request.ns, id)
            if rows.row is None:
                break
            ancestors[id] = rows
            id = rows.row.parent
        found = tuple(ancestors.values())
        return LoadedRows(thread.row, found, _items_of(thread, found, (), request.cached))

    def _load_thread_rows(self, request: LoadThreadRows) -> LoadedRows:
        thread = self._find(request.key)
        if thread is None:
            return LoadedRows(None)
        keys = dict.fromkeys([*thread.checkpoints, *thread.writes])
        found = tuple(thread.checkpoint(*key) for key in sorted(keys))
        return LoadedRows(thread.row, found, _items_of(thread, found, (), None), join_ranges(sorted(thread.items)))

    # --- lists over many threads

    def _scan_checkpoints(self, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        threads: Iterable[tuple[ThreadKey, _Thread]] = self._threads.items()
        if request.thread is not None:
            key = ThreadKey(request.tenant, request.kind, request.thread)
            threads = [(key, self._threads[key])] if key in self._threads else []
        found = [each for key, thread in threads for each in _matching(request, key, thread)]
        found.sort(key=lambda each: (each.key.id, each.row.ns))
        found.sort(key=lambda each: each.row.id, reverse=True)
        return tuple(each for each in found if _is_after(request.after, each))[: request.limit]

    def _list_threads(self, request: ListThreads) -> tuple[ListedThread, ...]:
        threads = [thread for thread in self._threads.values() if _is_listed(request, thread)]
        threads.sort(key=lambda thread: (thread.row.key.kind, to_bytes(thread.row.key.id)))
        threads.sort(key=lambda thread: _sort_value(request, thread.row), reverse=request.order != "id")
        page = [thread for thread in threads if _is_on_next_page(request, thread.row)][: request.limit]
        return tuple(
            ListedThread(each.row, each.items.get(ItemId(SHARED, each.row.labels)))
            if each.row.labels is not None
            else ListedThread(each.row, None)
            for each in page
        )

    def _find_threads_of_runs(self, request: FindThreadsOfRuns) -> tuple[ThreadKey, ...]:
        wanted = set(request.runs)
        keys = (key for key in self._threads if (key.tenant, key.kind) == (request.tenant, request.kind))
        return tuple(key for key in keys if wanted & self._threads[key].runs)

    # --- changes

    def _commit(self, request: Commit) -> None:
        self._apply(request.batch)

    def _apply(self, batch: Batch) -> _Thread:
        if batch.thread.sealed is None:
            self._tenants.check_plain(batch.thread.key.tenant)
        thread = self._threads.get(batch.thread.key)
        _check_expected(batch, thread)
        if thread is None:
            thread = self._threads[batch.thread.key] = _Thread(batch.thread._replace(bytes=0))
        if self._search is not None and batch.expect is not None and batch.expect[0] != batch.thread.epoch:
            self._search.forget(batch.thread.key)
        _change_rows(batch, thread)
        if batch.drops_thread:
            del self._threads[batch.thread.key]
        return thread

    def _expect(self, key: ThreadKey, version: tuple[int, int]) -> _Thread:
        thread = self._threads.get(key)
        if thread is None or (thread.row.epoch, thread.row.rev) != version:
            raise Conflict
        return thread

    def _fork_thread(self, request: ForkThread) -> None:
        source = self._expect(request.source, request.expect)
        target = self._apply(request.batch)
        copied = {id: source.items[id] for each in request.ranges for id in each.ids() if id in source.items}
        target.items.update(copied)
        target.row = _sealed(target.row._replace(bytes=target.row.bytes + sum(map(len, copied.values()))))

    def _copy_thread(self, request: CopyThread) -> None:
        if request.thread.sealed is None:
            self._tenants.check_plain(request.thread.key.tenant)
        source = self._expect(request.source, request.expect)
        if request.replaces is not None:
            self._expect(request.thread.key, request.replaces)
        elif request.thread.key in self._threads:
            raise Conflict
        copy = _Thread(
            row=_sealed(request.thread),
            checkpoints=dict(source.checkpoints),
            writes={key: dict(rows) for key, rows in source.writes.items()},
            items={**source.items, **dict(request.items)},
            tags=dict(source.tags),
            runs=set(source.runs),
        )
        for id, stored, tags in request.labels:
            copy.items[id] = stored
            copy.tags[id.n] = tags
        if self._search is not None:
            self._search.forget(request.thread.key)
        self._threads[request.thread.key] = copy

    def _drop_thread(self, request: DropThread) -> None:
        if not request.sealed:
            self._tenants.check_plain(request.key.tenant)
        thread = self._threads.get(request.key)
        if thread is not None and thread.row.lease is not None and not request.leased:
            raise Conflict
        if self._search is not None:
            self._search.forget(request.key)
        self._threads.pop(request.key, None)

    # --- health

    def _list_stored_threads(self, request: ListStoredThreads) -> tuple[ThreadEntry, ...]:
        keys = [key for key in self._threads if key.tenant == request.tenant and request.kind in (None, key.kind)]
        wanted = [(to_bytes(key.id), key.kind, key.id) for key in keys if key.id.startswith(request.prefix)]
        page = [each for each in sorted(wanted) if request.after is None or each[:2] > request.after]
        return tuple(ThreadEntry(kind, id, (raw, kind)) for raw, kind, id in page[: request.limit])

    def _inspect_thread(self, request: InspectThread) -> InspectedThread:
        thread = self._threads.get(request.key)
        if thread is None:
            return InspectedThread()
        return InspectedThread(
            exists=True,
            thread=thread.row,
            family=thread.row.family,
            checkpoints=tuple(thread.checkpoints.values()),
            writes=tuple(row for rows in thread.writes.values() for row in rows.values()),
            items={id: stored for id, stored in thread.items.items() if id.lane <= SHARED},
            item_sizes=tuple(sorted((id.lane, id.n, len(stored)) for id, stored in thread.items.items())),
            tags=frozenset((n, tag) for n, tags in thread.tags.items() for tag in tags),
            runs=frozenset(thread.runs),
            fixed=FixedColumns(thread.row.epoch, thread.row.rev, thread.row.created, thread.row.bytes),
            sealed=thread.row.sealed,
        )


def _items_of(
    thread: _Thread, found: Iterable[CheckpointRows], ranges: Iterable[ItemRange], cached: CachedItems | None
) -> dict[ItemId, bytes]:
    """Return the names, labels and range lists of some rows, and the items in `ranges`, except what is cached."""
    cached = cached if cached is not None and cached.epoch == thread.row.epoch else None
    nexts, stored = thread.row.nexts, thread.items
    names, known = (nexts[NAMES] if nexts else 0), (cached.names if cached else 0)
    wanted = [*ranges, ItemRange(NAMES, known, max(names - known, 0))]
    lists: list[ItemRange] = []
    for rows in found:
        if rows.row is not None:
            wanted.append(ItemRange(SHARED, rows.row.labels, 1))
        for each in ranges_of(rows, nexts):
            if each[0] == SHARED:
                wanted.append(each)
            elif each[0] == RANGE_LISTS:
                lists.append(each)
    if lists and any(each.lane == RANGE_LISTS for each in wanted):
        ids = [at for each in lists for at in each.ids() if at in stored]
        wanted += [each for at in ids for each in unpack_range_list(at, stored[at], thread.row.family)]
    items: dict[ItemId, bytes] = {}
    missing = [*wanted, *lists]
    for lane, start, length in cached.items.lacking(missing) if cached is not None else missing:
        for n in range(start, start + length):
            at = new_tuple(ItemId, (lane, n))
            if at in stored:
                items[at] = stored[at]
    return items


def _matching(request: ScanCheckpoints, key: ThreadKey, thread: _Thread) -> Iterator[ScannedCheckpoint]:
    if (key.tenant, key.kind) != (request.tenant, request.kind) or request.thread not in (None, key.id):
        return
    for row in thread.checkpoints.values():
        has_tags = set(request.tags) <= set(thread.tags.get(row.labels, ()))
        if (request.hidden or not row.hidden) and has_tags and _fits(request, row):
            labels = thread.items.get(ItemId(SHARED, row.labels))
            has_writes = bool(thread.writes.get((row.ns, row.id)))
            yield ScannedCheckpoint(
                key, row, labels, thread.row.family, None, thread.row, has_writes, thread.row.sealed
            )


def _fits(request: ScanCheckpoints, row: CheckpointRow) -> bool:
    step = row.step if row.step is not None else request.step  # not an integer: the engine compares it
    pairs = ((request.ns, row.ns), (request.id, row.id), (request.source, row.source), (request.step, step))
    same = all(wanted is None or wanted == stored for wanted, stored in (*pairs, (request.run, row.run)))
    return same and (request.before is None or row.id < request.before)


def _is_after(last: tuple[str, str, str] | None, each: ScannedCheckpoint) -> bool:
    if last is None:
        return True
    id, thread, ns = last
    return each.row.id < id or (each.row.id == id and (each.key.id, each.row.ns) > (thread, ns))


def _is_listed(request: ListThreads, thread: _Thread) -> bool:
    row = thread.row
    newest = thread.tags.get(row.labels, ()) if row.labels is not None else ()
    labels = thread.tags.values() if request.any_checkpoint else [newest]
    return (
        row.key.tenant == request.tenant
        and row.key.id.startswith(request.prefix)
        and request.kind in (None, row.key.kind)
        and request.status in (None, row.status)
        and (not request.tags or any(set(request.tags) <= set(tags) for tags in labels))
    )


def _sort_value(request: ListThreads, row: ThreadRow) -> Any:
    return to_bytes(row.key.id) if request.order == "id" else getattr(row, request.order)


def _is_on_next_page(request: ListThreads, row: ThreadRow) -> bool:
    if request.after is None:
        return True
    last_value, last_kind, last_id = request.after
    key, last_key = (row.key.kind, to_bytes(row.key.id)), (last_kind, to_bytes(last_id))
    if request.order == "id":
        return (to_bytes(row.key.id), *key) > (to_bytes(last_id), *last_key)
    value = getattr(row, request.order)
    return bool(value < last_value) or (value == last_value and key > last_key)


def _check_expected(batch: Batch, thread: _Thread | None) -> None:
    """Raise Conflict unless the thread is as the batch expects."""
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


def _change_rows(batch: Batch, thread: _Thread) -> None:
    freed = 0
    for ns, id in batch.removed_checkpoints:
        thread.checkpoints.pop((ns, id), None)
    for ns, id, task in batch.removed_writes:
        thread.writes.get((ns, id), {}).pop(task, None)
    for item in [each for each in thread.items if _is_in(each, batch.removed_items)] if batch.removed_items else ():
        freed += len(thread.items.pop(item))
    for n in [n for n in thread.tags if _is_in(ItemId(SHARED, n), batch.removed_items)]:
        del thread.tags[n]
    thread.items.update(batch.items)
    for row in (*batch.new_checkpoints, *batch.changed_checkpoints):
        thread.checkpoints[(row.ns, row.id)] = row
    for write in (*batch.new_writes, *batch.changed_writes):
        thread.writes.setdefault((write.ns, write.checkpoint), {})[write.task] = write
    for labels in batch.labels:
        thread.tags[labels.n] = labels.tags
    thread.runs |= set(batch.runs)
    thread.runs -= set(batch.removed_runs)
    thread.row = _sealed(batch.thread._replace(bytes=thread.row.bytes + batch.thread.bytes - freed))


def _sealed(row: ThreadRow) -> ThreadRow:
    return row._replace(bytes_check=row.bytes, checksum=thread_checksum(row))


def _is_in(item: ItemId, ranges: Iterable[ItemRange]) -> bool:
    return any(each.lane == item.lane and each.start <= item.n < each.start + each.length for each in ranges)
