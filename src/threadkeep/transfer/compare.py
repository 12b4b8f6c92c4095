"""Comparing two stored threads: their rows one by one, and a digest of their items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from threadkeep.engine.commit import check_complete
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import LoadedRows, LoadItems, LoadThreadRows
from threadkeep.transfer.thread_builder import ItemSlices
from threadkeep.work import Read, Work


class Digest:
    """A digest of items in their order."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def add(self, items: Iterable[tuple[ItemId, bytes]]) -> None:
        """Add items."""
        for (lane, n), stored in items:
            self._hash.update(b"%d:%d:%d:" % (lane, n, len(stored)))
            self._hash.update(stored)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self._hash.digest() == other._hash.digest()

    __hash__ = None  # type: ignore[assignment]  # it changes


def read_rows(key: ThreadKey) -> Work[LoadedRows]:
    """Return all rows of a thread. Corrupt if some are missing. One round trip."""

    async def plan() -> LoadedRows:
        loaded = await LoadThreadRows(key)
        check_complete(loaded)
        return loaded

    loaded: LoadedRows = yield Read(plan)
    return loaded


def read_thread_row(key: ThreadKey) -> Work[ThreadRow | None]:
    """Return the row of a thread, or None. One round trip."""

    async def plan() -> ThreadRow | None:
        return (await LoadItems(key, ())).thread

    row: ThreadRow | None = yield Read(plan)
    return row


def digest_items(loaded: LoadedRows) -> Work[Digest]:
    """Return the digest of all items of a thread whose rows were read. Conflict if it was pruned since."""
    assert loaded.thread is not None
    digest, slices = Digest(), ItemSlices(loaded.thread, loaded.stored)
    while slices:
        digest.add((yield from slices.next()))
    return digest


def same_thread(one: ThreadRow | None, other: ThreadRow | None) -> bool:
    """Whether two thread rows describe the same state. The threads then most likely hold the same, too.

    What people say about the threads may differ.
    """
    return one is not None and other is not None and _portable(one) == _portable(other)


def _portable(row: ThreadRow) -> ThreadRow:
    """A row without what differs between two storages."""
    key = row.key._replace(tenant="")
    own = row._replace(epoch=0, rev=0, lease=None, description=None, bytes=0, bytes_check=None, checksum=None)
    return own._replace(key=key, sealed=None)


def same_rows(one: LoadedRows, other: LoadedRows) -> bool:
    """Whether two threads have the same rows, of themselves, their checkpoints and writes, and as many items."""
    rows = [{*checkpoint_rows(each), *write_rows(each)} for each in (one, other)]
    return same_thread(one.thread, other.thread) and rows[0] == rows[1] and one.stored == other.stored


def checkpoint_rows(loaded: LoadedRows) -> Iterator[CheckpointRow]:
    """The rows of a thread's checkpoints."""
    return (found.row for found in loaded.checkpoints if found.row is not None)


def write_rows(loaded: LoadedRows) -> Iterator[WriteRow]:
    """The rows of a thread's writes, one for each task."""
    return (row for found in loaded.checkpoints for row in found.writes)
