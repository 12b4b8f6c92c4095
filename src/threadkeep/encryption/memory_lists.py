"""Lists of memories whose namespaces and keys are hidden, in the order of the real ones.

The storage orders memories by time of update and namespaces by name, as it stores them. So a page of memories costs all
that were updated at the same time as its first and its last one, and all before its `offset`. A page of namespaces
costs all namespaces below the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from threadkeep.engine.memories.namespaces import Namespace
from threadkeep.engine.memories.requests import (
    GetMemoriesByNumber,
    ListMemories,
    ListNamespaces,
    MemoryRow,
    Position,
    SearchFullText,
    WordMatch,
    WordMatches,
)
from threadkeep.plan import Request

_TIES = 8
"""How many more memories than wanted are read at once, so that mostly all are read that were updated at one time."""
_PAGE = 1000
_GROWTH = 4
_LAST = ((chr(0x10FFFF),), "")


class HiddenLists:
    """Lists for `MemoryTranslation`, whose functions say where memories are stored, and reveal their names."""

    def __init__(
        self,
        execute: Callable[[Request[Any]], Any],
        prefixes: Callable[[Namespace], tuple[Namespace, ...]],
        revealed: Callable[[MemoryRow], MemoryRow],
        real_namespace: Callable[[Namespace], Namespace],
    ) -> None:
        self._execute = execute
        self._prefixes = prefixes
        self._revealed = revealed
        self._real_namespace = real_namespace

    def page(self, request: ListMemories) -> list[MemoryRow]:
        """Return a page of memories, their values as they are stored."""
        wanted = count = request.offset + request.limit
        while True:
            found, until, is_all = self._first(request, count)
            rows = sorted((row for row in found if row.updated >= until), key=_position)
            if request.after is not None:
                updated, *name = request.after
                rows = [row for row in rows if _position(row) > (-updated, *name)]
            if is_all or len(rows) >= wanted:
                return rows[request.offset : wanted]
            count *= _GROWTH

    def _first(self, request: ListMemories, count: int) -> tuple[Iterable[MemoryRow], int, bool]:
        """Return memories, the time up to which they are all that there are, and whether there are no others."""
        found: dict[tuple[Namespace, str], MemoryRow] = {}
        until, is_all = -(1 << 63), True
        for prefix in self._prefixes(request.prefix):
            rows, is_end = self._by_time(prefix, request, count)
            if not is_end:
                until, is_all = max(until, rows[-1].updated), False
            found.update((row.memory_key, row) for row in map(self._revealed, rows))
        return found.values(), until, is_all

    def _by_time(self, prefix: Namespace, request: ListMemories, count: int) -> tuple[list[MemoryRow], bool]:
        """Return at least `count` stored memories and all of the same time, or all; and whether there are no others."""
        after: Position | None = None if request.after is None else (request.after[0], (), "")
        limit, rows = min(count + _TIES, _PAGE), list[MemoryRow]()
        while True:
            listing = ListMemories(request.tenant, prefix, request.now, limit, 0, after)
            page: Sequence[MemoryRow] = self._execute(listing)
            rows += page
            if len(page) < limit:
                return rows, True
            last = rows[-1].updated
            complete = next((n for n in range(len(rows) - 1, -1, -1) if rows[n].updated != last), -1) + 1
            if complete >= max(count, 1):
                return rows[:complete], False
            after = (last, rows[-1].namespace, rows[-1].key)
            limit = min(_GROWTH * limit, _PAGE)

    def namespaces(self, request: ListNamespaces) -> tuple[Namespace, ...]:
        """List namespaces in the order of their real names."""
        found: set[Namespace] = set()
        for prefix in self._prefixes(request.prefix):
            after: Namespace | None = None
            while True:
                page = self._execute(ListNamespaces(request.tenant, prefix, request.now, _PAGE, after))
                found.update(map(self._real_namespace, page))
                if len(page) < _PAGE:
                    break
                after = page[-1]
        start = request.after
        return tuple(sorted(each for each in found if start is None or each > start)[: request.limit])

    def search(self, request: SearchFullText) -> WordMatches:
        """Find memories by words, those of equal rank in the order of their real names."""
        limit = request.limit + _TIES
        while True:
            matches, bounds = dict[int, WordMatch](), list[tuple[int, ...]]()
            for prefix in self._prefixes(request.prefix):
                found: WordMatches = self._execute(request._replace(prefix=prefix, limit=limit))
                matches.update((match.memory, match) for match in found.matches)
                if not found.is_all:  # the storage may have left out others of the last one's rank
                    bounds.append(_rank(found.matches[-1]))
            ranked = sorted(matches.values(), key=_rank)
            if bounds:
                ranked = [match for match in ranked if _rank(match) < min(bounds)]
            if not bounds or len(ranked) >= request.limit:
                return WordMatches(tuple(self._in_order(request, ranked)), is_all=not bounds)
            limit *= _GROWTH

    def _in_order(self, request: SearchFullText, ranked: Sequence[WordMatch]) -> list[WordMatch]:
        groups = [list(group) for _, group in groupby(ranked, key=_rank)]
        tied = tuple([match.memory for group in groups if len(group) > 1 for match in group])
        if not tied:
            return list(ranked)
        rows: dict[int, MemoryRow] = {}
        for prefix in self._prefixes(request.prefix):
            rows |= self._execute(GetMemoriesByNumber(request.tenant, prefix, tied, request.now))
        names = {number: self._revealed(row)[:2] for number, row in rows.items()}
        return [match for group in groups for match in sorted(group, key=lambda each: names.get(each.memory, _LAST))]


def _position(row: MemoryRow) -> tuple[Any, ...]:
    return (-row.updated, row.namespace, row.key)


def _rank(match: WordMatch) -> tuple[int, ...]:
    return (-match.distinct, -match.frequency, -match.updated)
