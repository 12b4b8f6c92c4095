"""Whether two threads are the same: their rows, one by one, and a digest of their items."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from threadkeep.engine.backend import Items, Loaded, Survey
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.itemlog import ItemId
from threadkeep.engine.records import ThreadRow
from threadkeep.transfer.thread_builder import Slices
from threadkeep.work import Read, Work


class Digest:
    """Of items in their order."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def add(self, items: Iterable[tuple[ItemId, bytes]]) -> None:
        """More of them."""
        for (lane, n), stored in items:
            self._hash.update(b"%d:%d:%d:" % (lane, n, len(stored)))
            self._hash.update(stored)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self._hash.digest() == other._hash.digest()

    __hash__ = None  # type: ignore[assignment]  # it changes


def surveyed(key: ThreadKey) -> Work[Loaded]:
    """All rows of a thread."""

    async def plan() -> Loaded:
        return await Survey(key)

    loaded: Loaded = yield Read(plan)
    return loaded


def row_of(key: ThreadKey) -> Work[ThreadRow | None]:
    """The row of a thread, if it is there."""

    async def plan() -> ThreadRow | None:
        return (await Items(key, ())).thread

    row: ThreadRow | None = yield Read(plan)
    return row


def digest_of(loaded: Loaded) -> Work[Digest]:
    """Of all items of a surveyed thread. Conflict if it was pruned since."""
    assert loaded.thread is not None
    digest, slices = Digest(), Slices(loaded.thread, loaded.stored)
    while slices:
        digest.add((yield from slices.next()))
    return digest


def same_thread(one: ThreadRow | None, other: ThreadRow | None) -> bool:
    """Whether two rows of threads say the same: most likely the threads hold the same, too."""
    return one is not None and other is not None and _told(one) == _told(other)


def _told(row: ThreadRow) -> ThreadRow:
    """A row without what is not the same on two storages."""
    return row._replace(key=row.key._replace(tenant=""), epoch=0, rev=0, lease=None, bytes=0)


def same_rows(one: Loaded, other: Loaded) -> bool:
    """Whether two threads have the same rows: of the thread, its checkpoints and writes; and as many items."""
    rows = [
        {found.row for found in each.found if found.row is not None} | {row for f in each.found for row in f.writes}
        for each in (one, other)
    ]
    return same_thread(one.thread, other.thread) and rows[0] == rows[1] and one.stored == other.stored


def places(loaded: Loaded) -> set[tuple[str, ...]]:
    """Where a thread has checkpoints and writes."""
    return {(f.row.ns, f.row.id) for f in loaded.found if f.row is not None} | {
        (row.ns, row.checkpoint, row.task) for found in loaded.found for row in found.writes
    }
