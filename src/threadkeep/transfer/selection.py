"""Which threads and memories are moved: all of a tenant, those whose ids begin so, or some by their ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from threadkeep.engine import catalogue
from threadkeep.engine.backend import Catalogue
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id, as_ids
from threadkeep.engine.memories import Browse, MemoryRow, Position, Spaces
from threadkeep.engine.spaces import Space
from threadkeep.work import Read, Work

T = TypeVar("T")
_PAGE = 1000
_FEW = 64


class Chosen(NamedTuple):
    """Threads: by their ids, or all whose ids begin with `prefix`; of a kind, or of both."""

    ids: tuple[str, ...] | None = None
    prefix: str = ""
    kind: str | None = None
    memories: bool = True

    def fits(self, kind: str, id: str) -> bool:
        """Whether a thread is among them."""
        named = id in self.ids if self.ids is not None else id.startswith(self.prefix)
        return named and self.kind in (None, kind)


def chosen(thread_id: Any, prefix: Any, kind: str | None, *, memories: bool | None) -> Chosen:
    """What was asked for, checked. Memories belong to no thread: unless it is said, they go along with all threads only."""
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    if thread_id is not None and prefix:
        raise ValueError("say thread_id or prefix, not both")
    if memories is not None and not isinstance(memories, bool):
        raise TypeError(f"memories must be True or False, not {memories!r}")
    named = isinstance(thread_id, (list, tuple, set, frozenset))
    ids = None if thread_id is None else as_ids(thread_id, "thread_id") if named else [as_id(thread_id, "thread_id")]
    all_of_them = thread_id is None and not prefix and kind is None
    return Chosen(
        None if ids is None else tuple(dict.fromkeys(ids)),
        as_id(prefix, "prefix"),
        kind,
        memories if memories is not None else all_of_them,
    )


def each_thread(tenant: str, of: Chosen, do: Callable[[ThreadKey, int, int], Work[T]]) -> Work[int]:
    """Do something with each thread, told as how manieth of how many; how many there were. Missing if one is not there."""
    total = yield from _count(tenant, of)
    done = 0
    if of.ids is not None:
        for id in of.ids:
            key = yield Read(partial(catalogue.known, tenant, id, of.kind))
            yield from do(key, done, total)
            done += 1
        return done
    after = None
    while True:
        keys = yield Read(partial(_page, tenant, of, after))
        for key in keys:
            yield from do(key, done, max(total, done + 1))
            done += 1
        if len(keys) < _PAGE:
            return done
        after = (keys[-1].id, keys[-1].kind, keys[-1].id)


def _count(tenant: str, of: Chosen) -> Work[int]:
    """How many threads it will be, for those who wait."""
    if of.ids is not None:
        return len(of.ids)
    total, after = 0, None
    while True:
        keys = yield Read(partial(_page, tenant, of, after))
        total += len(keys)
        if len(keys) < _PAGE:
            return total
        after = (keys[-1].id, keys[-1].kind, keys[-1].id)


async def _page(tenant: str, of: Chosen, after: tuple[str, str, str] | None) -> list[ThreadKey]:
    listed = await Catalogue(tenant, "id", _PAGE, after, of.prefix, of.kind)
    return [one.row.key for one in listed]


def each_memory(tenant: str, now: int, do: Callable[[str, list[MemoryRow]], Work[None]]) -> Work[int]:
    """Do something with the memories that live, partition by partition, some at a time; how many there were."""
    done, first = 0, None
    while True:
        first = yield Read(partial(_next_partition, tenant, now, first))
        if first is None:
            return done
        done += yield from _memories_of(tenant, first, now, do)


def _memories_of(tenant: str, first: str, now: int, do: Callable[[str, list[MemoryRow]], Work[None]]) -> Work[int]:
    done, after = 0, None
    while True:
        rows = yield Read(partial(_some_memories, tenant, first, now, after))
        if rows:
            yield from do(first, rows)
            done += len(rows)
        if len(rows) < _FEW:
            return done
        after = (rows[-1].updated, rows[-1].space, rows[-1].key)


async def _next_partition(tenant: str, now: int, after: str | None) -> str | None:
    """The first segment of the next namespaces, in order."""
    last: Space | None = (after,) if after is not None else None
    while True:
        spaces = await Spaces(tenant, (), now, _PAGE, last)
        found = next((space[0] for space in spaces if space[0] != after), None)
        if found is not None or len(spaces) < _PAGE:
            return found
        last = spaces[-1]


async def _some_memories(tenant: str, first: str, now: int, after: Position | None) -> list[MemoryRow]:
    return list(await Browse(tenant, (first,), now, _FEW, after=after))
