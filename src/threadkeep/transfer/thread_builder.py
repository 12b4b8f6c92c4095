"""Making a thread whose items and rows are known, in several commits: items first, the rows with the last.

A thread without rows is one that somebody began to make and did not finish: nothing else leaves such a thread behind.
So whoever finds one may remove it. The last commit gives the thread a revision that is a hash of its epoch, and every
later change moves it on: as long as it stands there, nobody has changed the thread since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from threadkeep.engine.backend import Batch, Commit, Have, Items, Loaded
from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.itemlog import NAMES, ItemId, Run
from threadkeep.engine.pool import Pool
from threadkeep.engine.records import ThreadRow
from threadkeep.errors import Conflict, Corrupt
from threadkeep.work import Change, Read, Work

SLICE = 4 * 1024 * 1024
"""So many bytes of items are read, or sent, at a time."""
_FEWEST, _MOST = 16, 128
"""Items of a slice. What they hold is not known before: at worst 128 times half a MiB."""
_HIDDEN = "\0moving\0"
"""The tenant of threads that are only made to be merged into others: no Keep is opened for it."""


def hidden(key: ThreadKey) -> ThreadKey:
    """Where a thread is put that has to be merged into the one of that key."""
    return ThreadKey(_HIDDEN + key.tenant, key.kind, key.id)


def is_unfinished(loaded: Loaded) -> bool:
    """Whether the thread has no rows: nobody finished making it."""
    return loaded.thread is not None and not any(found.row or found.writes for found in loaded.found)


def is_older(row: ThreadRow, created: int) -> bool:
    """Whether a thread is an older state of one that began at that time: made here of it, and not changed since."""
    return row.created == created and row.rev == _mark(row.epoch)


def _mark(epoch: int) -> int:
    return int.from_bytes(blake2b(b"%d" % epoch, digest_size=6).digest(), "big")


@dataclass(slots=True)
class Making:
    """A thread that is being made. `row` is how it stands in the storage now; None if it is not there yet."""

    heads: Heads
    key: ThreadKey
    created: int
    updated: int
    epoch: int
    row: ThreadRow | None = None
    _waiting: list[tuple[ItemId, bytes]] = field(default_factory=list)
    _size: int = 0

    def add(self, items: Iterable[tuple[ItemId, bytes]], nexts: Sequence[int]) -> Work[None]:
        """Take stored items in; those that are waiting are sent when they are enough."""
        for at, stored in items:
            self._waiting.append((at, stored))
            self._size += len(stored)
            if self._size >= SLICE:
                yield from self._send(Batch(None, self._bare(nexts)))

    def finish(self, batch: Batch) -> Work[ThreadRow]:
        """Send the rows, and make it a thread that others see."""
        last = batch._replace(thread=batch.thread._replace(epoch=self.epoch, rev=_mark(self.epoch)))
        yield from self._send(last)
        assert self.row is not None
        return self.row

    def abandon(self) -> Work[None]:
        """Remove what was made, if it is still as it was made."""
        if self.row is not None:
            yield Change(self.key, lambda: _committed(self.heads, self._ending()))

    def _bare(self, nexts: Sequence[int]) -> ThreadRow:
        rev = self.row.rev + 1 if self.row else 0
        return ThreadRow(self.key, self.epoch, rev, tuple(nexts), self.created, self.updated)

    def _send(self, batch: Batch) -> Work[None]:
        """One commit of what waits and of this. Its bytes are counted here."""
        expect = (self.row.epoch, self.row.rev) if self.row else None
        thread = batch.thread._replace(bytes=batch.thread.bytes + self._size)
        batch = batch._replace(expect=expect, thread=thread, items=(*self._waiting, *batch.items))
        yield Change(self.key, lambda: _committed(self.heads, batch))
        self.row, self._waiting, self._size = thread, [], 0

    def _ending(self) -> Batch:
        assert self.row is not None
        return Batch((self.row.epoch, self.row.rev), self.row._replace(rev=self.row.rev + 1, bytes=0), ends=True)


async def _committed(heads: Heads, batch: Batch) -> None:
    """Commit. A Conflict may be with oneself, if the answer got lost: then it is done."""
    key, thread = batch.thread.key, batch.thread
    heads.forget(key)
    try:
        await Commit(batch)
    except Conflict:
        there = (await Items(key, ())).thread
        is_ours = there is not None and (there.epoch, there.rev) == (thread.epoch, thread.rev)
        if not is_ours and not (batch.ends and there is None):
            raise
    finally:
        heads.forget(key)


class Slices:
    """Reads items of a thread, some at a time, as it was at one epoch."""

    def __init__(self, thread: ThreadRow, runs: Iterable[Run]) -> None:
        self._thread = thread
        self._left = list(reversed(list(runs)))
        self._count = _FEWEST

    def __bool__(self) -> bool:
        return bool(self._left)

    def next(self) -> Work[list[tuple[ItemId, bytes]]]:
        """Some more items, in the order of the runs. Conflict if the thread was pruned or removed since: its items may be others."""
        runs, row = self._some(), self._thread
        names = row.nexts[NAMES] if row.nexts else 0
        loaded = yield Read(lambda: _read(Items(row.key, runs, Have(row.epoch, names, Pool()))))
        if loaded.thread is None or loaded.thread.epoch != row.epoch:
            raise Conflict(f"thread {row.key.id!r} was pruned while it was read")
        try:
            found = [(at, loaded.items[at]) for run in runs for at in run.ids()]
        except KeyError as error:
            lane, n = error.args[0]
            raise Corrupt(f"item {lane}:{n} of thread {row.key.id!r} is referred to but not there") from error
        size = sum(len(stored) for _, stored in found)
        self._count = max(_FEWEST, min(_MOST, SLICE * len(found) // size if size else _MOST))
        return found

    def _some(self) -> tuple[Run, ...]:
        """The next runs, of as many items as a slice may have."""
        runs: list[Run] = []
        count = self._count
        while self._left and count:
            lane, start, length = self._left.pop()
            taken = min(length, count)
            runs.append(Run(lane, start, taken))
            count -= taken
            if taken < length:
                self._left.append(Run(lane, start + taken, length - taken))
        return tuple(runs)


async def _read(request: Items) -> Loaded:
    return await request


def bytes_of_rows(loaded: Loaded) -> int:
    """What the rows of a thread take."""
    rows = [found.row for found in loaded.found if found.row is not None]
    return sum(row.size for row in rows) + sum(row.size for found in loaded.found for row in found.writes)
