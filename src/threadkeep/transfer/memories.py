"""Putting memories into a Keep: those that it lacks, or has in an older form. They keep their times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from threadkeep.clock import now_us
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.plans import write
from threadkeep.engine.memories.requests import GetMemories, MemoryRow, NewMemory
from threadkeep.transfer.pipeline import MemoryIndex, Transfer
from threadkeep.work import Blocking, Change, Read, Work


class IncomingMemory(NamedTuple):
    """A memory on its way into a Keep. Its texts are embedded there if `vectors` is None."""

    row: MemoryRow
    vectors: tuple[bytes, ...] | None = None


def put_memories(into: Transfer, memories: Sequence[IncomingMemory]) -> Work[None]:
    """Put the memories that are missing or older in the target, compare them, and count. Two round trips, or three.

    Memories that have expired are left out. One that is newer in the target stays, and is no difference.
    """
    time = now_us()
    alive = [memory for memory in memories if memory.row.expires is None or memory.row.expires > time]
    wanted = yield from _missing(into.session.tenant, alive)
    into.tally.add("expired", len(memories) - len(alive))
    into.tally.add("already_there", len(alive) - len(wanted))
    if wanted and not into.dry_run:
        indexed = yield Blocking(lambda: list(_indexed(into.index(), wanted)))
        yield Change(None, lambda: write(into.session.tenant, indexed, (), now_us()))
        into.tally.add("bytes", sum(len(memory.row.value) for memory in wanted))
        if into.verify:
            yield from _compare(into, wanted)
    into.tally.add("memories", len(wanted))


def _missing(tenant: str, memories: Sequence[IncomingMemory]) -> Work[list[IncomingMemory]]:
    """Those that the target lacks or has in an older form."""

    async def recall() -> tuple[MemoryRow | None, ...]:
        return (
            await GetMemories(tenant, tuple(memory.row.memory_key for memory in memories), now_us()) if memories else ()
        )

    held: tuple[MemoryRow | None, ...] = yield Read(recall)
    return [
        memory
        for memory, row in zip(memories, held, strict=True)
        if row is None or (row.updated <= memory.row.updated and not _is_same(row, memory.row))
    ]


def _is_same(one: MemoryRow, other: MemoryRow) -> bool:
    """Whether two memories are the same. The order of keys does not count: databases change it."""
    if (one.updated, one.ttl) != (other.updated, other.ttl):
        return False
    return one.value == other.value or _sorted(one) == _sorted(other)


def _sorted(row: MemoryRow) -> str:
    return json.dumps(load(row.value), sort_keys=True)


def _indexed(index: MemoryIndex, memories: Sequence[IncomingMemory]) -> Iterator[NewMemory]:
    """Memories with their vectors and words. All texts are embedded at once."""
    values = [load(memory.row.value) for memory in memories]
    texts = [
        index.texts(value, None) if memory.vectors is None else ()
        for memory, value in zip(memories, values, strict=True)
    ]
    embedded = index.embed([text for some in texts for text in some], []).texts
    for memory, value, some in zip(memories, values, texts, strict=True):
        vectors = memory.vectors if memory.vectors is not None else tuple(embedded[text] for text in some)
        yield NewMemory(memory.row, vectors, index.words(value, None))


def _compare(into: Transfer, memories: Sequence[IncomingMemory]) -> Work[None]:
    """Read the target again and report what it does not hold, unless it expired meanwhile."""
    for row, _ in (yield from _missing(into.session.tenant, memories)):
        if row.expires is None or row.expires > now_us():
            into.tally.differs(f"memory {row.key!r} of {'.'.join(row.namespace)!r}: the target does not hold it")
