"""Building a thread from known items and rows in several commits. The items come first, the rows with the last commit.

Only an unfinished build leaves a thread without rows, so any process that finds such a thread may remove it. The last
commit sets the thread's revision to a hash of its epoch. Every later change moves the revision on, so a thread that
still has this revision was not changed since it was built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from threadkeep.engine.commit import commit_once, load_items, next_revision
from threadkeep.engine.identity import UNFINISHED, ThreadKey
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import NAMES, ItemId, ItemRange
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.requests import Batch, CachedItems, Commit, CopyThread, LoadedRows
from threadkeep.engine.threads.heads import Heads
from threadkeep.errors import Corrupt
from threadkeep.work import Change, Read, Work

SLICE = 4 * 1024 * 1024
"""Bytes of items that are read, or written, at a time."""
_FEWEST, _MOST = 16, 128
"""Items of a slice. Their size is not known beforehand: at worst 128 times half a MiB."""


def hidden(key: ThreadKey) -> ThreadKey:
    """Return the key under which a thread is built that will be merged into the one of this key, or replace it."""
    return ThreadKey(UNFINISHED + key.tenant, key.kind, key.id)


def is_unfinished(loaded: LoadedRows) -> bool:
    """Whether the thread has no rows and was not described: nobody finished building it."""
    thread = loaded.thread
    has_rows = any(found.row or found.writes for found in loaded.checkpoints)
    return thread is not None and thread.description is None and not has_rows


def is_untouched_copy(row: ThreadRow, created: int) -> bool:
    """Whether a thread was built here from one that was created at that time, and was not changed since."""
    return row.created == created and row.rev == _mark(row.epoch)


def _mark(epoch: int) -> int:
    return int.from_bytes(blake2b(b"%d" % epoch, digest_size=6).digest(), "big")


@dataclass(slots=True)
class ThreadBuilder:
    """A thread that is being built. `row` is its row in the storage; None if nothing was written yet."""

    heads: Heads
    key: ThreadKey
    created: int
    updated: int
    epoch: int
    family: int
    row: ThreadRow | None = None
    written: int = 0
    """Bytes that were written so far."""
    _waiting: list[tuple[ItemId, bytes]] = field(default_factory=list)
    _size: int = 0

    def add(self, items: Iterable[tuple[ItemId, bytes]], nexts: Sequence[int]) -> Work[None]:
        """Add stored items. They are written as soon as they fill a slice."""
        for at, stored in items:
            self._waiting.append((at, stored))
            self._size += len(stored)
            if self._size >= SLICE:
                yield from self._write(Batch(None, self._bare(nexts)))

    def finish(self, batch: Batch) -> Work[ThreadRow]:
        """Write the rows, which makes the thread visible."""
        last = batch._replace(thread=batch.thread._replace(epoch=self.epoch, rev=_mark(self.epoch)))
        yield from self._write(last)
        assert self.row is not None
        return self.row

    def abandon(self) -> Work[None]:
        """Remove what was written, unless somebody else changed it. Conflict if so."""
        if self.row is not None:
            yield from _send(self.heads, Commit(self._ending()))

    def _bare(self, nexts: Sequence[int]) -> ThreadRow:
        rev = self.row.rev + 1 if self.row else 0
        return ThreadRow(
            self.key, self.epoch, rev, tuple(nexts), self.created, self.updated, family=self.family, top_writes=0
        )

    def _write(self, batch: Batch) -> Work[None]:
        """Commit the waiting items together with a batch, whose bytes do not include them yet."""
        expect = (self.row.epoch, self.row.rev) if self.row else None
        thread = batch.thread._replace(bytes=batch.thread.bytes + self._size)
        batch = batch._replace(expect=expect, thread=thread, items=(*self._waiting, *batch.items))
        yield from _send(self.heads, Commit(batch))
        self.row, self._waiting, self._size = thread, [], 0
        self.written += thread.bytes

    def _ending(self) -> Batch:
        assert self.row is not None
        return Batch(
            (self.row.epoch, self.row.rev), self.row._replace(rev=self.row.rev + 1, bytes=0), drops_thread=True
        )


def _send(heads: Heads, request: Commit | CopyThread) -> Work[None]:
    thread = request.thread if isinstance(request, CopyThread) else request.batch.thread
    yield Change(thread.key, lambda: commit_once(heads, request))


def replace_thread(heads: Heads, old: ThreadRow, new: ThreadRow, epoch: int) -> Work[None]:
    """Put the thread of the row `new`, which was built elsewhere, in the place of `old`, in one step.

    Conflict if one of them is no longer as its row says. The thread that was built elsewhere stays.
    """
    thread = new._replace(key=old.key, epoch=epoch, rev=_mark(epoch), lease=old.lease)
    expect, replaces = (new.epoch, new.rev), (old.epoch, old.rev)
    yield from _send(heads, CopyThread(new.key, expect, thread, replaces=replaces))


def describe_thread(heads: Heads, row: ThreadRow, description: str | None, nonce: int) -> Work[None]:
    """Change what is said about the thread of this row. An untouched copy stays one. Conflict if the row changed."""
    is_copy = row.rev == _mark(row.epoch)
    epoch, rev = (nonce, _mark(nonce)) if is_copy else (row.epoch, next_revision(row, nonce))
    changed = row._replace(epoch=epoch, rev=rev, description=description, bytes=0)
    yield from _send(heads, Commit(Batch((row.epoch, row.rev), changed)))


class ItemSlices:
    """Reads the items of a thread slice by slice, as of one epoch. `replaced` are returned instead of stored ones."""

    def __init__(
        self, thread: ThreadRow, ranges: Iterable[ItemRange], replaced: Mapping[ItemId, bytes] | None = None
    ) -> None:
        self._thread = thread
        self._replaced = replaced or {}
        self._left = list(reversed(list(ranges)))
        self._count = _FEWEST

    def __bool__(self) -> bool:
        """Whether there is another slice."""
        return bool(self._left)

    def next(self) -> Work[list[tuple[ItemId, bytes]]]:
        """Return the next items, in the order of the ranges. Conflict if the thread was pruned or removed since."""
        ranges, row = self._next_ranges(), self._thread
        no_names = CachedItems(row.epoch, row.nexts[NAMES] if row.nexts else 0, ItemCache())
        loaded = yield Read(lambda: load_items(row, ranges, no_names, unchecked=True))
        try:
            items = {**loaded.items, **self._replaced}
            found = [(at, items[at]) for each in ranges for at in each.ids()]
        except KeyError as error:
            lane, n = error.args[0]
            raise Corrupt(f"item {lane}:{n} of thread {row.key.id!r} is referenced but missing") from error
        size = sum(len(stored) for _, stored in found)
        self._count = max(_FEWEST, min(_MOST, SLICE * len(found) // size if size else _MOST))
        return found

    def _next_ranges(self) -> tuple[ItemRange, ...]:
        ranges: list[ItemRange] = []
        count = self._count
        while self._left and count:
            lane, start, length = self._left.pop()
            taken = min(length, count)
            ranges.append(ItemRange(lane, start, taken))
            count -= taken
            if taken < length:
                self._left.append(ItemRange(lane, start + taken, length - taken))
        return tuple(ranges)


def remove_thread(heads: Heads, loaded: LoadedRows) -> Work[None]:
    """Remove a thread that is still as it was read. Conflict if it is not."""
    row = loaded.thread
    assert row is not None
    yield from ThreadBuilder(heads, row.key, row.created, row.updated, row.epoch, row.family, row).abandon()
