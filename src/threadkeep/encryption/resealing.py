"""A thread that is stored anew as a whole, because its rows must be sealed with another key.

Without keys, a database copies a thread by itself. With keys, every row and item is bound to its thread, so a copy is
read and sealed some items at a time. If there are many, or if it takes the place of an existing thread, they are stored
under a key that nobody reads, and the database copies them from there in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from threadkeep.clock import nonce
from threadkeep.engine.health.requests import InspectedThread, InspectThread
from threadkeep.engine.identity import SEALING, ThreadKey
from threadkeep.engine.log.itemlog import ItemId, ItemRange, expand_item, join_ranges
from threadkeep.engine.log.records import ThreadRow, expand
from threadkeep.engine.requests import Batch, Commit, CopyThread, DropThread, ForkThread, LoadItems, NewLabels
from threadkeep.errors import Conflict, Corrupt
from threadkeep.plan import Request

Execute = Callable[[Request[Any]], Any]
Items = tuple[tuple[ItemId, bytes], ...]
SLICE_BYTES = 4 * 1024 * 1024
_SLICE = 128
"""How many items are read at once, since their sizes are not known: at worst half a MiB each."""


class WholeThread:
    """Everything of a thread: a batch that makes it, without items, and the items, slice by slice.

    `batch.thread.bytes` does not include the items.
    """

    def __init__(self, batch: Batch, items: Iterator[Items]) -> None:
        self.batch = batch
        self.items = items


def copied_thread(read: Execute, request: CopyThread) -> WholeThread:
    """Return what a copy will have. Conflict if the source is not as expected."""
    found = inspect(read, request.source, request.expect)
    new = {id: stored for id, stored, _ in request.labels}
    batch = _all_rows(found, request.thread)
    labels = {each.n: each.tags for each in batch.labels} | {id.n: tags for id, _, tags in request.labels}
    batch = batch._replace(labels=tuple(NewLabels(n, tags) for n, tags in labels.items()))
    stored = _after(request.items, _replaced(_all_items(read, request.source, found), new))
    return WholeThread(batch, stored)


def forked_thread(read: Execute, request: ForkThread) -> WholeThread:
    """Return what a thread with items of another will have. Conflict if that is not as expected."""
    batch = request.batch
    own = sum(len(stored) for _, stored in batch.items)
    items = _load_items(read, request.source, request.expect[0], request.ranges)
    rows = batch._replace(items=(), thread=batch.thread._replace(bytes=batch.thread.bytes - own))
    return WholeThread(rows, _after(batch.items, items))


def plain_thread(read: Execute, key: ThreadKey) -> WholeThread | None:
    """Return everything of a plain thread. None if there is no plain one. `batch.expect` is its version."""
    row: ThreadRow | None = read(LoadItems(key, (), unchecked=True)).thread
    return None if row is None or row.sealed is not None else whole_thread(read, key)


def whole_thread(read: Execute, key: ThreadKey) -> WholeThread:
    """Return everything of a thread. `batch.expect` is its version."""
    found: InspectedThread = read(InspectThread(key))
    row = found.thread
    if not found.exists:
        raise Conflict
    if row is None or found.unreadable:
        raise Corrupt(f"thread {key.id!r} is damaged and cannot be encrypted: see `threadkeep verify` and `repair`")
    batch = _all_rows(found, row._replace(epoch=nonce(), rev=0))
    return WholeThread(batch._replace(expect=(row.epoch, row.rev)), _all_items(read, key, found))


def expanded_thread(whole: WholeThread) -> WholeThread:
    """Return the same thread with nothing compressed. Corrupt if one of its rows or items is damaged."""
    batch = whole.batch
    family = batch.thread.family
    checkpoints = tuple([expand(row, family) for row in batch.new_checkpoints])
    writes = tuple([expand(row, family) for row in batch.new_writes])
    before = sum(len(row.body) for row in batch.new_checkpoints) + sum(len(row.body) for row in batch.new_writes)
    after = sum(len(row.body) for row in checkpoints) + sum(len(row.body) for row in writes)
    thread = batch.thread._replace(bytes=batch.thread.bytes + after - before)
    items = (tuple([(at, expand_item(at, stored, family)) for at, stored in some]) for some in whole.items)
    return WholeThread(batch._replace(thread=thread, new_checkpoints=checkpoints, new_writes=writes), items)


def inspect(read: Execute, key: ThreadKey, expect: tuple[int, int]) -> InspectedThread:
    """Read all rows of a thread. Conflict if it is not at the expected version."""
    found: InspectedThread = read(InspectThread(key))
    row = found.thread
    if row is None or (row.epoch, row.rev) != expect:
        raise Conflict
    if found.unreadable:
        raise Corrupt(f"thread {key.id!r} has rows that cannot be read: see `threadkeep verify`")
    return found


def _all_rows(found: InspectedThread, thread: ThreadRow) -> Batch:
    """Return a batch with all rows of a thread, which makes a new one."""
    assert found.thread is not None
    tags: dict[int, list[bytes]] = {}
    for n, tag in found.tags or ():
        tags.setdefault(n, []).append(tag)
    stored = sum(size for _, _, size in found.item_sizes)
    return Batch(
        expect=None,
        thread=thread._replace(bytes=found.thread.bytes - stored),
        new_checkpoints=found.checkpoints,
        new_writes=found.writes,
        labels=tuple(NewLabels(n, tuple(each)) for n, each in tags.items()),
        runs=tuple(found.runs or ()),
    )


def _all_items(read: Execute, key: ThreadKey, found: InspectedThread) -> Iterator[Items]:
    assert found.thread is not None
    ranges = join_ranges(sorted((lane, n) for lane, n, _ in found.item_sizes))
    return _load_items(read, key, found.thread.epoch, ranges)


def _load_items(read: Execute, key: ThreadKey, epoch: int, ranges: Iterable[ItemRange]) -> Iterator[Items]:
    """Load items some at a time. Conflict if the thread was pruned meanwhile."""
    for lane, start, length in ranges:
        for at in range(start, start + length, _SLICE):
            some = ItemRange(lane, at, min(_SLICE, start + length - at))
            loaded = read(LoadItems(key, (some,)))
            if loaded.thread is None or loaded.thread.epoch != epoch:
                raise Conflict
            yield tuple([each for each in loaded.items.items() if each[0].lane == lane])


def _replaced(slices: Iterator[Items], new: dict[ItemId, bytes]) -> Iterator[Items]:
    for items in slices:
        yield tuple([(at, new.pop(at, stored)) for at, stored in items])
    if new:
        yield tuple(new.items())


def _after(items: Items, others: Iterator[Items]) -> Iterator[Items]:
    yield items
    yield from others


class Staging:
    """Stores sealed items and rows under a key that nobody reads, and then copies them to their place."""

    def __init__(self, execute: Execute, thread: ThreadRow) -> None:
        self._execute = execute
        self._key = thread.key._replace(tenant=SEALING + thread.key.tenant)
        self._thread = thread._replace(key=self._key, epoch=nonce(), rev=0, bytes=0)
        self.is_empty = True

    def add(self, batch: Batch) -> None:
        """Store items, or rows. What an interrupted process left there is removed first."""
        expect = None if self.is_empty else (self._thread.epoch, self._thread.rev)
        if self.is_empty:
            self._execute(DropThread(self._key, leased=True, sealed=True))
            self.is_empty = False
        else:
            self._thread = self._thread._replace(rev=self._thread.rev + 1)
        self._execute(Commit(batch._replace(expect=expect, thread=self._thread)))

    def move(self, thread: ThreadRow, replaces: tuple[int, int] | None) -> DropThread:
        """Copy everything to its place. Return the request that removes it here."""
        version = (self._thread.epoch, self._thread.rev)
        self._execute(CopyThread(self._key, version, thread, replaces=replaces))
        return DropThread(self._key, leased=True, sealed=True)
