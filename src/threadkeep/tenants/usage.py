"""How much a tenant stores: its threads and memories as they are stored, encrypted ones included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from threadkeep.engine.health.requests import InspectedMemory, InspectMemories
from threadkeep.engine.requests import ListThreads
from threadkeep.plan import Request
from threadkeep.tenants.quota import memory_bytes

_THREADS, _MEMORIES = 2048, 500
Execute = Callable[[Request[Any]], Any]


class Usage(NamedTuple):
    """What a tenant stores. Rows that cannot be read count as empty."""

    threads: int
    memories: int
    bytes: int


def measure(execute: Execute, tenant: str) -> Usage:
    """Measure what a tenant stores. One round trip for each 2,048 threads, and one for each 500 memories.

    It reads the rows of threads, and whole memories.
    """
    threads, thread_bytes = _threads(execute, tenant)
    memories, bytes_of_memories = _memories(execute, tenant)
    return Usage(threads, memories, thread_bytes + bytes_of_memories)


def _threads(execute: Execute, tenant: str) -> tuple[int, int]:
    count, total, after = 0, 0, None
    while True:
        page = execute(ListThreads(tenant, "id", _THREADS, after))
        count += len(page)
        total += sum(listed.row.bytes for listed in page if listed.unreadable is None)
        if len(page) < _THREADS:
            return count, total
        row = page[-1].row
        after = page[-1].cursor or (row.key.id, row.key.kind, row.key.id)


def _memories(execute: Execute, tenant: str) -> tuple[int, int]:
    count, total, after = 0, 0, None
    while True:
        page = execute(InspectMemories(tenant, _MEMORIES, after))
        count += len(page.memories)
        total += sum(map(_size, page.memories))
        after = page.cursor
        if after is None:
            return count, total


def _size(memory: InspectedMemory) -> int:
    return sum(map(len, memory.vectors.values())) + (memory_bytes(memory.row) if memory.row is not None else 0)
