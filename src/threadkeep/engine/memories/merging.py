"""Merge changes of memories that wait together into few requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from threadkeep.engine.memories.requests import WriteMemories

_MAX_PUTS = 500
"""The number of puts in a request. SQLite stores as many in one call."""


def merge_puts(requests: Sequence[WriteMemories]) -> Iterator[tuple[WriteMemories, Sequence[WriteMemories]]]:
    """Yield requests that make the same changes in the same order, each with the requests that it was made from.

    Consecutive requests are merged if they store memories without vectors, all with words or all without, and none of
    them twice: a second put of a memory must see the first one.
    """
    parts: list[WriteMemories] = []
    taken: set[object] = set()
    words = False
    for request in requests:
        keys = [memory.row[:2] for memory in request.puts]
        may_merge = bool(keys) and not request.deletes and not any(memory.vectors for memory in request.puts)
        has_words = bool(keys) and bool(request.puts[0].words)
        fits = may_merge and parts and words == has_words and _same_kind(parts[0], request)
        if not (fits and len(taken) + len(keys) <= _MAX_PUTS and taken.isdisjoint(keys)):
            if parts:
                yield _merged(parts), parts
            parts, taken, words = [], set(), has_words
        if may_merge:
            parts.append(request)
            taken.update(keys)
        else:
            yield request, (request,)
    if parts:
        yield _merged(parts), parts


def _merged(parts: Sequence[WriteMemories]) -> WriteMemories:
    if len(parts) == 1:
        return parts[0]
    puts = tuple([memory for part in parts for memory in part.puts])
    return WriteMemories(parts[0].tenant, puts, (), max([part.now for part in parts]), sealed=parts[0].sealed)


def _same_kind(one: WriteMemories, other: WriteMemories) -> bool:
    return one.tenant == other.tenant and one.sealed == other.sealed
