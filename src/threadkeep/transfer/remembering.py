"""Memories on their way into a Keep: those that it lacks, or has in an older form, are stored with the times they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from threadkeep.engine import remembering
from threadkeep.engine.memories import Memory, MemoryRow, Recall
from threadkeep.work import Change, Read, Work

Index: TypeAlias = Callable[[Sequence[MemoryRow]], list[Memory]]
"""Memories with their words, and with vectors where there is something to embed with."""
Vectors: TypeAlias = Mapping[MemoryRow, tuple[bytes, ...]]


def take_in(
    tenant: str, rows: Sequence[MemoryRow], index: Index, now: int, vectors: Vectors | None = None
) -> Work[int]:
    """Store these memories, but for those that are there and not older; how many were stored."""

    async def there() -> tuple[MemoryRow | None, ...]:
        return await Recall(tenant, tuple(row.place for row in rows), now)

    found: tuple[MemoryRow | None, ...] = yield Read(there)
    new = [row for row, old in zip(rows, found, strict=True) if old is None or old.updated < row.updated]
    if new:
        memories = [_with_vectors(memory, vectors or {}) for memory in index(new)]
        yield Change(None, lambda: remembering.remember(tenant, memories, (), now))
    return len(new)


def _with_vectors(memory: Memory, vectors: Vectors) -> Memory:
    return memory._replace(vectors=vectors[memory.row]) if memory.row in vectors else memory


def lacking(tenant: str, rows: Sequence[MemoryRow], now: int) -> Work[list[MemoryRow]]:
    """Those of these memories that are not there, or not so."""

    async def there() -> tuple[MemoryRow | None, ...]:
        return await Recall(tenant, tuple(row.place for row in rows), now)

    found: tuple[MemoryRow | None, ...] = yield Read(there)
    return [row for row, old in zip(rows, found, strict=True) if old is None or old.value != row.value]
