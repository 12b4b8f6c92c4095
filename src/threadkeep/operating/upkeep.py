"""Long work for a storage's health: verify all of it, compact it. A thread at a time; it can be ended at any point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from threadkeep.engine import prune
from threadkeep.engine.heads import Heads
from threadkeep.engine.health import CATALOGUE, DATABASE, Compact, InspectMemories, IntegrityCheck, Present, Roster
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.thread_scan import Problem
from threadkeep.engine.verify import Verified, asked, counted, memory_problems, storage_problems, thread_examined
from threadkeep.errors import Corrupt, Unavailable
from threadkeep.plan import Request
from threadkeep.work import Change, Progress, Read, Work

_PAGE = 5_000
_MEMORIES = 500
_MOST = 10_000
"""So many problems are told; a storage with more is lost anyway."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compacting gave back. `skipped` are threads that are damaged: nothing of them was freed.

    The bytes are those that the storage takes where it can tell (SQLite, PostgreSQL), else the threads' own.
    """

    threads: int
    items: int
    bytes_before: int
    bytes_after: int
    skipped: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Count:
    """What was looked at until now."""

    numbers: list[int] = field(default_factory=lambda: [0] * 5)
    memories: int = 0
    problems: list[Problem] = field(default_factory=list)

    def tell(self, problems: list[Problem]) -> None:
        self.problems += problems[: _MOST - len(self.problems)]

    def verified(self) -> Verified:
        threads, checkpoints, writes, items, size = self.numbers
        return Verified(threads, checkpoints, writes, items, self.memories, size, self.problems)


def verifying_thread(key: ThreadKey) -> Work[Verified]:
    """Check one thread."""
    count = _Count()
    yield Progress(0, 1, key.id)
    yield from _thread(key, count)
    return count.verified()


def verifying(tenant: str, prefix: str, kind: str | None, dims: int | None) -> Work[Verified]:
    """Check all threads of a tenant that begin so; all there is, memories and the storage itself, if none is said."""
    count = _Count()
    everything = not prefix and kind is None
    if everything:
        yield Progress(0, None, "the storage")
        count.tell(storage_problems((yield from _told(IntegrityCheck(), count)) or ()))
    try:
        present = yield from _present(tenant, prefix, kind, count)
        for done, one in enumerate(present):
            yield Progress(done, len(present), one.id)
            if one.odd is not None:
                count.tell([Problem(CATALOGUE, f"thread {one.id!r}: {one.odd}", one.id, one.kind)])
            else:
                yield from _thread(ThreadKey(tenant, one.kind, one.id), count)
        if everything:
            yield from _memories(tenant, dims, count)
    except Unavailable as error:
        if not any(problem.problem == DATABASE for problem in count.problems):
            raise
        count.tell([Problem(DATABASE, f"the rest could not be read: {error}")])
    return count.verified()


def _told(request: Request[Any], count: _Count) -> Work[Any]:
    """What a request gives; None, and a problem, if the storage cannot read itself."""
    try:
        return (yield Read(lambda: asked(request)))
    except Corrupt as error:
        count.tell([Problem(DATABASE, str(error))])
        return None


def _present(tenant: str, prefix: str, kind: str | None, count: _Count) -> Work[list[Present]]:
    """The threads that there are."""
    found: list[Present] = []
    while True:
        after = found[-1].at if found else None
        page = yield from _told(Roster(tenant, _PAGE, after, prefix, kind), count)
        if not page:
            return found
        found += page


def _thread(key: ThreadKey, count: _Count) -> Work[None]:
    try:
        scan = yield Read(lambda: thread_examined(key))
    except Corrupt as error:
        count.numbers[0] += 1
        count.tell([Problem(DATABASE, str(error), key.id, key.kind)])
        return
    if scan is not None:
        count.numbers = [one + other for one, other in zip(count.numbers, counted(scan), strict=True)]
        count.tell(scan.problems)


def _memories(tenant: str, dims: int | None, count: _Count) -> Work[None]:
    after = None
    while True:
        yield Progress(count.memories, None, "memories")
        seen = yield from _told(InspectMemories(tenant, _MEMORIES, after), count)
        if seen is None:
            return
        count.memories += len(seen.memories)
        count.tell(list(memory_problems(seen, dims)))
        after = seen.last
        if after is None:
            return


def compacting(heads: Heads, tenant: str, draw: Callable[[], int]) -> Work[Compacted]:
    """Free the items of all threads that nothing refers to, then have the storage give its space back."""
    count = _Count()
    present = yield from _present(tenant, "", None, count)
    items = before = after = 0
    skipped = [one.id for one in present if one.odd is not None]
    for done, one in enumerate(present):
        yield Progress(done, len(present), one.id)
        key = ThreadKey(tenant, one.kind, one.id)
        try:
            freed = (yield Change(key, lambda key=key: prune.free(heads, key, draw()))) if one.odd is None else None  # type: ignore[misc]
        except Corrupt:
            skipped.append(one.id)
            continue
        if freed is not None:
            items, before, after = items + freed.items, before + freed.before, after + freed.after
    yield Progress(len(present), len(present), "the storage")
    took, takes = yield Change(None, lambda: asked(Compact(tenant)))
    return Compacted(len(present), items, took or before, takes if took else after, skipped)
