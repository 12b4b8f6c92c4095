"""The import as a whole: every thread, talk and memory of the sources, one after the other.

It may be ended at any point and begun again: what is here is not brought in twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey
from threadkeep.errors import Missing
from threadkeep.transfer.sources.source import Source
from threadkeep.transfer.graph_threads import GraphThread
from threadkeep.transfer.memories import Indexing, Shelf
from threadkeep.transfer.sources.detect import recognise
from threadkeep.transfer.cube_threads import CubeThread
from threadkeep.transfer.result import Imported, Tally
from threadkeep.work import Aside, Progress, Work


@dataclass(frozen=True, slots=True)
class Target:
    """Where things go: whose they become, what is remembered of threads, and how memories are indexed."""

    tenant: str
    heads: Heads
    index: Callable[[], Indexing]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be imported: from where, taken as what, which threads; and whether to compare, or only to count."""

    source: Any
    kind: str | None = None
    thread: str | None = None
    prefix: str = ""
    verify: bool = True
    dry_run: bool = False

    @property
    def is_all(self) -> bool:
        """Whether no thread was named: then memories come along, which belong to none."""
        return self.thread is None and not self.prefix

    def wants(self, thread: str) -> bool:
        """Whether a thread is to be imported."""
        return thread == self.thread if self.thread is not None else thread.startswith(self.prefix)


def importing(wish: Wish, target: Target) -> Work[Imported]:
    """Import. Missing if a thread was named that there is not; what `recognise` raises if there is no such source."""
    sources: list[Source] = yield Aside(lambda: recognise(wish.source, wish.kind))
    with closing(_All(sources)):
        tally = Tally()
        threads = yield Aside(lambda: [_threads(source, wish) for source in sources])
        if wish.thread is not None and not any(map(any, threads)):
            raise Missing(f"there is no thread {wish.thread!r} in the source")
        tally.total = yield Aside(lambda: sum(map(partial(_count, wish), sources, threads)))
        yield Progress(0, tally.total, "")
        for source, (graphs, talks) in zip(sources, threads, strict=True):
            for mover in _movers(source, graphs, talks, wish, target, tally):
                yield from mover.counted() if wish.dry_run else mover.moved(verify=wish.verify)
        yield Progress(tally.total, tally.total, "")
        return tally.imported(tuple(source.kind for source in sources))


class _All:
    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def close(self) -> None:
        """Let go of all of them."""
        for source in self._sources:
            source.close()


def _threads(source: Source, wish: Wish) -> tuple[list[str], list[str]]:
    graphs = source.graphs.threads() if source.graphs is not None else ()
    talks = source.talks.threads() if source.talks is not None else ()
    return list(filter(wish.wants, graphs)), list(filter(wish.wants, talks))


def _count(wish: Wish, source: Source, threads: tuple[Sequence[str], Sequence[str]]) -> int:
    """How much there is, for the progress."""
    total = 0
    for each, chosen in zip((source.graphs, source.talks), threads, strict=True):
        if each is not None:
            total += each.count(None) if wish.is_all else sum(map(each.count, chosen))
    return total + (source.memories.count() if source.memories is not None and wish.is_all else 0)


def _movers(
    source: Source, graphs: Sequence[str], talks: Sequence[str], wish: Wish, target: Target, tally: Tally
) -> Iterator[GraphThread | CubeThread | Shelf]:
    for id in graphs:
        assert source.graphs is not None
        yield GraphThread(source.graphs, id, ThreadKey(target.tenant, GRAPH, id), target.heads, tally)
    for id in talks:
        assert source.talks is not None
        yield CubeThread(source.talks, id, ThreadKey(target.tenant, CUBE, id), target.heads, tally)
    if source.memories is not None and wish.is_all:
        yield Shelf(source.memories, target.tenant, target.index(), tally)
