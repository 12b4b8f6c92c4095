"""Check one thread, a page of memories, or the storage itself, and report every problem. Nothing is changed.

Checking never stops at a problem. A thread is checked as it was at one moment, while others may write it. All its rows
are held in memory, its items in slices of a few megabytes. If it is pruned before its items were read, checking starts
over. `verify_items` checks the items, `verify_rows` the rows against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.health.requests import (
    INDEX,
    MEMORY,
    WRONG_WORDS,
    InspectedMemory,
    InspectedMemoryPage,
    InspectThread,
    IntegrityProblem,
)
from threadkeep.engine.health.thread_scan import Problem, ThreadScan, scan_thread
from threadkeep.engine.health.verify_items import check_items
from threadkeep.engine.health.verify_rows import check_cube, check_rows, rows_size
from threadkeep.engine.health.verify_search import search_problem
from threadkeep.engine.identity import CUBE, GRAPH, Kind, ThreadKey
from threadkeep.engine.memories.checksums import memory_name
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.words import words_check
from threadkeep.errors import Missing
from threadkeep.short_repr import short_repr

_TRIES = 8
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was checked, and the problems found. `bytes` is the stored size of the threads."""

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    items: int = 0
    memories: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    __repr__ = short_repr

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


# --- threads


async def verify_thread(key: ThreadKey) -> ThreadScan | None:
    """Read a thread and check all of it; None if nothing of it is stored.

    One round trip, one more for each slice of items, one more for a cube thread.
    """
    return await read_consistently(key, partial(_verify_once, key), tries=_TRIES)


async def _verify_once(key: ThreadKey) -> ThreadScan | None:
    found = await InspectThread(key)
    scan = scan_thread(key, found)
    for message in found.index_errors:
        scan.report(INDEX, f"{scan.where}: {message}")
    if not found.exists:
        return scan if scan.problems else None
    if scan.row is not None:
        await check_items(scan)
    check_rows(scan)
    if key.kind == CUBE:
        await check_cube(scan)
    return scan


def checked_counts(scan: ThreadScan) -> tuple[int, int, int, int, int]:
    """Return how much of a thread was checked: threads (0 or 1), checkpoints, writes, items and bytes."""
    found = scan.inspected
    size = sum(size for _, _, size in found.item_sizes) + rows_size(found)
    writes = sum(len(row.index) // 3 for row in found.writes)
    return int(found.exists), len(found.checkpoints), writes, len(found.item_sizes), size


async def stored_thread_key(tenant: str, id: str, kind: Kind | None) -> ThreadKey:
    """Return the key of a stored thread, even if its row cannot be read. Without `kind`, both kinds are tried.

    Missing if there is none, ValueError if there are two. One round trip for each kind.
    """
    keys = [ThreadKey(tenant, each, id) for each in (GRAPH, CUBE) if kind in (None, each)]
    found = [key for key in keys if (await InspectThread(key)).exists]
    if len(found) > 1:
        raise ValueError(f"there are two threads {id!r}: pass the kind, {GRAPH} or {CUBE}")
    if not found:
        raise Missing(f"thread {id!r} not found")
    return found[0]


# --- memories


def memory_problems(page: InspectedMemoryPage, dims: int | None) -> Iterator[Problem]:
    """Check a page of memories. `dims` is the number of dimensions of the store's index, if it has one."""
    for message in page.problems:
        yield Problem(MEMORY, message)
    for memory in page.memories:
        for message in (
            *memory.problems, *_value_problems(memory), *_vector_problems(memory, dims), *_word_problems(memory)
        ):  # fmt: skip
            yield Problem(MEMORY, f"{_name(memory)}: {message}")


def _name(memory: InspectedMemory) -> str:
    return f"memory number {memory.number}" if memory.key is None else memory_name(*memory.key)


def _value_problems(memory: InspectedMemory) -> Iterator[str]:
    try:
        load(memory.row.value) if memory.row is not None else None
    except (ValueError, RecursionError) as error:
        yield f"its value cannot be decoded: {error}"


def _vector_problems(memory: InspectedMemory, dims: int | None) -> Iterator[str]:
    """Vectors are numbered from 0, consist of whole floats, and have the dimensions of the store's index."""
    count = len(memory.vectors) if memory.vector_count is None else memory.vector_count
    if len(memory.vectors) != count or sorted(memory.vectors) != list(range(len(memory.vectors))):
        yield f"some of its vectors are missing: it has {sorted(memory.vectors)}, and should have {count}"
    sizes = set(map(len, memory.vectors.values()))
    if any(size % _FLOAT or size <= 0 for size in sizes):
        yield "one of its vectors is truncated"
    elif len(sizes) > 1:
        yield f"its vectors have different dimensions: {sorted(size // _FLOAT for size in sizes)}"
    elif dims and sizes and sizes != {dims * _FLOAT}:
        yield f"its vectors have {sizes.pop() // _FLOAT} dimensions, not {dims}"


def _word_problems(memory: InspectedMemory) -> Iterator[str]:
    """The words in the index are those that the memory was stored with. Older versions stored no checksum of them."""
    if memory.words is not None and memory.words_check not in (None, words_check(memory.words)):
        yield WRONG_WORDS


# --- the storage as a whole


def storage_problems(found: Iterable[IntegrityProblem]) -> list[Problem]:
    """Return the problems that the storage found in itself. Those of the search index are no loss of data."""
    return [
        search_problem(each.message) if "tk_search" in each.message else Problem(each.kind, each.message)
        for each in found
    ]
