"""Which threads and memories are transferred: all of a tenant, those whose id starts with a prefix, or some by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from threadkeep.engine.health.requests import InspectedMemoryPage, InspectMemories, ListStoredThreads
from threadkeep.engine.health.verify import memory_problems, stored_thread_key
from threadkeep.engine.identity import CUBE, GRAPH, Kind, ThreadKey, as_id, as_ids, to_bytes
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace
from threadkeep.engine.memories.requests import GetMemories, ListMemories, ListNamespaces, MemoryRow, Position
from threadkeep.engine.threads import catalogue
from threadkeep.errors import Corrupt
from threadkeep.plan import send
from threadkeep.work import Work, read

_THREADS = 1000
_MEMORIES, _STORED_MEMORIES = 64, 500
"""Rows that are read at a time."""


class Selection(NamedTuple):
    """Threads by id, or all whose id starts with `prefix`; of one kind or both; with memories or without."""

    ids: tuple[str, ...] | None = None
    prefix: str = ""
    kind: Kind | None = None
    memories: bool = True

    def includes(self, kind: Kind, id: str) -> bool:
        """Whether a thread is selected."""
        named = id in self.ids if self.ids is not None else id.startswith(self.prefix)
        return named and self.kind in (None, kind)


def select(thread_id: Any, prefix: Any, kind: Kind | None, *, memories: bool | None) -> Selection:
    """Check a selection. Memories belong to no thread: by default they are included only with all threads."""
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    if thread_id is not None and prefix:
        raise ValueError("pass thread_id or prefix, not both")
    if memories is not None and not isinstance(memories, bool):
        raise TypeError(f"memories must be True or False, not {memories!r}")
    several = isinstance(thread_id, (list, tuple, set, frozenset))
    ids = None if thread_id is None else as_ids(thread_id, "thread_id") if several else [as_id(thread_id, "thread_id")]
    everything = thread_id is None and not prefix and kind is None
    return Selection(
        None if ids is None else tuple(dict.fromkeys(ids)),
        as_id(prefix, "prefix"),
        kind,
        memories if memories is not None else everything,
    )


class SelectedThread(NamedTuple):
    """A selected thread. `unreadable` says why it cannot be read at all; None if it can."""

    key: ThreadKey
    unreadable: str | None = None


class ThreadPages:
    """The selected threads of a tenant, page by page, damaged ones included."""

    def __init__(self, tenant: str, selection: Selection) -> None:
        self._tenant = tenant
        self._selection = selection
        self._ids = None if selection.ids is None else list(reversed(selection.ids))
        self._after: Any = None
        self._more = True

    def __bool__(self) -> bool:
        """Whether there may be another page."""
        return self._more if self._ids is None else bool(self._ids)

    def next(self) -> Work[list[SelectedThread]]:
        """Return the next page. Missing if a thread was selected by id and does not exist."""
        if self._ids is not None:
            id = self._ids.pop()
            return [SelectedThread((yield from read(lambda: self._named(id))))]
        chosen = self._selection
        request = ListStoredThreads(self._tenant, _THREADS, self._after, chosen.prefix, chosen.kind)
        found = yield from read(lambda: send(request))
        self._more = bool(found)
        self._after = found[-1].cursor if found else None
        return [SelectedThread(ThreadKey(self._tenant, each.kind, each.id), each.unreadable) for each in found]

    async def _named(self, id: str) -> ThreadKey:
        """The key of a thread, even if its row is damaged."""
        try:
            return await catalogue.require_key(self._tenant, id, self._selection.kind)
        except Corrupt:
            return await stored_thread_key(self._tenant, id, self._selection.kind)


def count_threads(tenant: str, selection: Selection) -> Work[int]:
    """Return the number of selected threads, for the progress."""
    if selection.ids is not None:
        return len(selection.ids)
    total, pages = 0, ThreadPages(tenant, selection)
    while pages:
        total += len((yield from pages.next()))
    return total


class MemoryPage(NamedTuple):
    """Some memories of one partition: namespaces with the same first segment. `damage` names those that are damaged."""

    partition: str
    rows: list[MemoryRow]
    damage: tuple[str, ...] = ()


class MemoryPages:
    """The memories of a tenant that are not expired at the time `now`, page by page.

    At the end all are read as they are stored, as `verify` does, to name those that are damaged. If a page cannot be
    read because of damage, the rest is read by key then.
    """

    def __init__(self, tenant: str, now: int) -> None:
        self._tenant = tenant
        self._now = now
        self._partition: str | None = None
        self._after: Position | None = None
        self._is_last_page = True
        self._seen: set[MemoryKey] = set()
        """Those of the current partition that were read."""
        self._undecodable: set[MemoryKey] = set()
        self._stored: _StoredMemories | None = None

    def __bool__(self) -> bool:
        """Whether there may be another page."""
        return self._stored is None or bool(self._stored)

    def next(self) -> Work[MemoryPage]:
        """Return the next page; it may be empty."""
        if self._stored is not None:
            return (yield from self._stored.next())
        try:
            page = yield from self._next_in_order()
        except Corrupt:
            page = None
            self._stored = _StoredMemories(self._tenant, self._now, self._undecodable, self._was_read)
        if self._stored is None and self._partition is None:
            self._stored = _StoredMemories(self._tenant, self._now, self._undecodable, lambda _: True)
        return page or MemoryPage("", [])

    def _next_in_order(self) -> Work[MemoryPage]:
        if self._is_last_page:
            following = yield from read(self._next_partition)
            self._partition, self._after, self._seen = following, None, set()
            self._is_last_page = False
        if self._partition is None:
            return MemoryPage("", [])
        rows = yield from read(self._page)
        self._is_last_page = len(rows) < _MEMORIES
        if rows:
            self._after = (rows[-1].updated, rows[-1].namespace, rows[-1].key)
        self._seen.update(row.memory_key for row in rows)
        return _decodable(self._partition, rows, self._undecodable)

    def _was_read(self, key: MemoryKey) -> bool:
        """Whether a memory came in an earlier page. Partitions come in their order."""
        if self._partition is None:
            return False
        this, current = to_bytes(key.namespace[0]), to_bytes(self._partition)
        return this < current or (this == current and (self._is_last_page or key in self._seen))

    async def _next_partition(self) -> str | None:
        """The first segment of the next namespaces, in order."""
        last: Namespace | None = (self._partition,) if self._partition is not None else None
        while True:
            spaces = await ListNamespaces(self._tenant, (), self._now, _THREADS, last)
            found = next((space[0] for space in spaces if space[0] != self._partition), None)
            if found is not None or len(spaces) < _THREADS:
                return found
            last = spaces[-1]

    async def _page(self) -> list[MemoryRow]:
        assert self._partition is not None
        return list(await ListMemories(self._tenant, (self._partition,), self._now, _MEMORIES, after=self._after))


class _StoredMemories:
    """The memories of a tenant as they are stored: names those that are damaged, and reads those not read before.

    `named` are those that need not be named again.
    """

    def __init__(self, tenant: str, now: int, named: set[MemoryKey], was_read: Callable[[MemoryKey], bool]) -> None:
        self._tenant = tenant
        self._now = now
        self._named = named
        self._was_read = was_read
        self._after: Any = None
        self._is_last_page = False
        self._groups: list[list[MemoryKey]] = []
        self._damaged: set[MemoryKey] = set()
        """Those of the current page that were named."""

    def __bool__(self) -> bool:
        """Whether there may be another page."""
        return bool(self._groups) or not self._is_last_page

    def next(self) -> Work[MemoryPage]:
        """Return the next page; it may be empty. Corrupt if the storage cannot list its memories at all."""
        if self._groups:
            return (yield from self._read(self._groups.pop()))
        request = InspectMemories(self._tenant, _STORED_MEMORIES, self._after)
        page = yield from read(lambda: send(request))
        self._after = page.cursor
        self._is_last_page = page.cursor is None
        self._damaged = set()
        partitions: dict[str, list[MemoryKey]] = {}
        damage = list(page.problems)
        for memory in page.memories:
            problems = [each.message for each in memory_problems(InspectedMemoryPage((memory,)), None)]
            if problems and memory.key not in self._named:
                damage += problems
            if memory.key is not None and problems:
                self._damaged.add(memory.key)
            if memory.key is not None and not self._was_read(memory.key):
                partitions.setdefault(memory.key.namespace[0], []).append(memory.key)
        self._groups = list(partitions.values())
        return MemoryPage("", [], tuple(damage))

    def _read(self, keys: list[MemoryKey]) -> Work[MemoryPage]:
        """Read some memories of one partition: at once, or one by one if that fails."""
        request = GetMemories(self._tenant, tuple(keys), self._now)
        try:
            found = yield from read(lambda: send(request))
        except Corrupt as error:
            if len(keys) > 1:
                self._groups += [[key] for key in keys]
                return MemoryPage("", [])
            return MemoryPage("", [], () if keys[0] in self._damaged else (str(error),))
        page = _decodable(keys[0].namespace[0], (row for row in found if row is not None), set())
        return page._replace(damage=())  # a value that cannot be decoded was named with the page


def _decodable(partition: str, rows: Iterable[MemoryRow], undecodable: set[MemoryKey]) -> MemoryPage:
    """A page of the memories whose values can be decoded. The others are named, and added to `undecodable`."""
    intact, damage = [], []
    for row in rows:
        try:
            load(row.value)
            intact.append(row)
        except (ValueError, RecursionError) as error:
            undecodable.add(row.memory_key)
            name = f"memory {row.key!r} in {'/'.join(row.namespace)}"
            damage.append(f"{name}: its value cannot be decoded: {error}")
    return MemoryPage(partition, intact, tuple(damage))
