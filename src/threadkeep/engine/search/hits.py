"""What a search returns, and the best of many hits."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, overload

from threadkeep.engine.history.checkpoint_info import utc_time
from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.search.documents import Document
from threadkeep.engine.search.query import RANK_SCALE, Query, rank, snippet
from threadkeep.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message or a string value that matches, and the oldest visible checkpoint that has it.

    `time` is that checkpoint's. `place` is the path of the text in its state, such as `messages[3].content`. `role` and
    `message_id` are those of a message; the role is LangChain's name of it, so `user` is `human`, and `assistant` is
    `ai`. `snippet` is a part of the text on one line; `marks` has the (start, end) of each match in it.
    """

    thread: str
    kind: Kind
    ns: str
    checkpoint: str
    time: datetime
    place: str
    role: str | None
    message_id: str | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
    rank: float

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class SearchResult(Sequence[SearchHit]):
    """The hits of a search, best first: a sequence of `SearchHit`.

    `scanned` is the number of threads that were read, because there is no index or because they changed since it was
    brought up to date. `complete` is False if something was not searched: the scan stopped at its limit, or threads are
    damaged. Those are listed in `skipped`; what could be read of them was searched.
    """

    hits: tuple[SearchHit, ...]
    scanned: int = 0
    complete: bool = True
    skipped: tuple[str, ...] = ()

    __repr__ = short_repr

    @overload
    def __getitem__(self, index: int) -> SearchHit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SearchHit, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)


class Condition(NamedTuple):
    """Which documents are searched, besides by their words.

    `since` and `until` are in milliseconds; `until` itself is not included. `threads` are (kind, id) of the only ones.
    """

    prefix: str = ""
    kind: Kind | None = None
    role: str | None = None
    since: int | None = None
    until: int | None = None
    current: bool = False
    threads: frozenset[tuple[str, str]] | None = None

    def has_thread(self, key: ThreadKey) -> bool:
        """Return whether documents of this thread are searched."""
        return (
            key.id.startswith(self.prefix)
            and self.kind in (None, key.kind)
            and (self.threads is None or (key.kind, key.id) in self.threads)
        )

    def has(self, document: Document) -> bool:
        """Return whether this document is searched, if its thread is."""
        return (
            self.role in (None, document.role)
            and (self.since is None or document.time >= self.since)
            and (self.until is None or document.time < self.until)
            and (document.current or not self.current)
        )


class Ranked(NamedTuple):
    """A document that matches. The order of these tuples is the order of the hits; no two of them are equal."""

    order: tuple[int, int, str, str, int]
    key: ThreadKey
    document: Document


def ranked(query: Query, key: ThreadKey, document: Document) -> Ranked | None:
    """Return a document with its place in the order: by rank, then newest first. None if it does not match."""
    found = rank(query, document.words, document.length)
    if found is None:
        return None
    return new_tuple(Ranked, ((-found, -document.time, key.id, key.kind, -document.n), key, document))


def best(query: Query, condition: Condition, key: ThreadKey, documents: Iterable[Document]) -> list[Ranked]:
    """Return the documents of a thread that match, in no order."""
    if not condition.has_thread(key):
        return []
    matches = (ranked(query, key, each) for each in documents if condition.has(each))
    return [each for each in matches if each is not None]


def first(found: Iterable[Ranked], limit: int) -> list[Ranked]:
    """Return the first `limit` of these in the order of hits."""
    return heapq.nsmallest(limit, found)


def hit(query: Query, found: Ranked) -> SearchHit:
    """Return what users see of a match."""
    document, shown = found.document, snippet(query, found.document.text)
    return SearchHit(
        thread=found.key.id,
        kind=found.key.kind,
        ns=document.ns,
        checkpoint=document.checkpoint,
        time=utc_time(document.time),
        place=document.place,
        role=document.role,
        message_id=document.message_id,
        snippet=shown.text,
        marks=shown.marks,
        rank=-found.order[0] / RANK_SCALE,
    )
