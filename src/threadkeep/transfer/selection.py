"""Which threads and memories are transferred: all of a tenant, those whose id starts with a prefix, or some by id."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id, as_ids
from threadkeep.engine.memories.namespaces import Namespace
from threadkeep.engine.memories.requests import ListMemories, ListNamespaces, MemoryRow, Position
from threadkeep.engine.requests import ListThreads
from threadkeep.engine.threads import catalogue
from threadkeep.work import Read, Work

_THREADS = 1000
_MEMORIES = 64
"""Rows that are read at a time."""


class Selection(NamedTuple):
    """Threads by id, or all whose id starts with `prefix`; of one kind or both; with memories or without."""

    ids: tuple[str, ...] | None = None
    prefix: str = ""
    kind: str | None = None
    memories: bool = True

    def includes(self, kind: str, id: str) -> bool:
        """Whether a thread is selected."""
        named = id in self.ids if self.ids is not None else id.startswith(self.prefix)
        return named and self.kind in (None, kind)


def select(thread_id: Any, prefix: Any, kind: str | None, *, memories: bool | None) -> Selection:
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


class ThreadPages:
    """The selected threads of a tenant, page by page."""

    def __init__(self, tenant: str, selection: Selection) -> None:
        self._tenant = tenant
        self._selection = selection
        self._ids = None if selection.ids is None else list(reversed(selection.ids))
        self._after: tuple[str, str, str] | None = None
        self._more = True

    def __bool__(self) -> bool:
        """Whether there may be another page."""
        return self._more if self._ids is None else bool(self._ids)

    def next(self) -> Work[list[ThreadKey]]:
        """Return the next page. Missing if a thread was selected by id and does not exist."""
        if self._ids is not None:
            return [(yield Read(partial(catalogue.require_key, self._tenant, self._ids.pop(), self._selection.kind)))]
        keys: list[ThreadKey] = yield Read(self._page)
        self._more = len(keys) == _THREADS
        if keys:
            self._after = (keys[-1].id, keys[-1].kind, keys[-1].id)
        return keys

    async def _page(self) -> list[ThreadKey]:
        chosen = self._selection
        listed = await ListThreads(self._tenant, "id", _THREADS, self._after, chosen.prefix, chosen.kind)
        return [one.row.key for one in listed]


def count_threads(tenant: str, selection: Selection) -> Work[int]:
    """Return the number of selected threads, for the progress."""
    if selection.ids is not None:
        return len(selection.ids)
    total, pages = 0, ThreadPages(tenant, selection)
    while pages:
        total += len((yield from pages.next()))
    return total


class MemoryPage(NamedTuple):
    """Some memories of one partition: namespaces with the same first segment."""

    partition: str
    rows: list[MemoryRow]


class MemoryPages:
    """The memories of a tenant that have not expired at the time `now`, page by page."""

    def __init__(self, tenant: str, now: int) -> None:
        self._tenant = tenant
        self._now = now
        self._partition: str | None = None
        self._after: Position | None = None
        self._is_last_page = True
        self._more = True

    def __bool__(self) -> bool:
        """Whether there may be another page."""
        return self._more

    def next(self) -> Work[MemoryPage]:
        """Return the next page; it may be empty."""
        if self._is_last_page:
            self._partition, self._after = (yield Read(self._next_partition)), None
        if self._partition is None:
            self._more = False
            return MemoryPage("", [])
        rows: list[MemoryRow] = yield Read(self._page)
        self._is_last_page = len(rows) < _MEMORIES
        if rows:
            self._after = (rows[-1].updated, rows[-1].namespace, rows[-1].key)
        return MemoryPage(self._partition, rows)

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
