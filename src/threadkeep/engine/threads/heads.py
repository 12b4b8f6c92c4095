"""Heads: what a Keep caches of its threads between calls, so that a put needs no read first.

A `Head` is a thread at one (epoch, rev). It is trusted only as the precondition of a commit, or next to the thread row
of a read: if another process changed the thread, the commit is a Conflict and the read drops the cached state. Items
never change within an epoch, so their bytes stay cached, up to a budget; the least recently used threads go first.

Two calls that cache the same thread at once may drop each other's additions. That costs a later read, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from threadkeep.engine.identity import ThreadKey, from_bytes
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import unpack
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, NAMES, SHARED, ItemId, ItemRange, new_tuple
from threadkeep.engine.log.records import (
    CheckpointRecord,
    CheckpointRow,
    NameTable,
    SharedParts,
    TaskWrites,
    ThreadRow,
    WriteRow,
    as_labels,
    unpack_checkpoint,
    unpack_writes,
)
from threadkeep.engine.requests import CachedItems, LoadedRows
from threadkeep.errors import Corrupt
from threadkeep.value import Value, field

if TYPE_CHECKING:
    from threadkeep.engine.threads.kept_rows import KeptRows

_HEAD_SIZE = 4096
"""What a head costs in memory besides its items, roughly."""
_SHRINK_EVERY = 16
_MAX_RECENT, _MAX_RECENT_OF_NAMESPACE = 32, 2
"""How many decoded checkpoints a head keeps: they are the parents that the next puts will name."""


class Head(Value):
    """A thread as this process last read or wrote it; `row` is None if the thread is known not to exist."""

    key: ThreadKey
    row: ThreadRow | None
    names: tuple[str, ...] = ()
    recent: Mapping[tuple[str, str], CheckpointRecord] = field(default_factory=dict)
    cache: ItemCache = field(default_factory=ItemCache)

    @property
    def where(self) -> str:
        """The thread, for error messages."""
        return f"thread {self.key.id!r}"

    @property
    def family(self) -> int:
        """The thread's family; 0 if the thread does not exist."""
        return self.row.family if self.row is not None else 0

    def cached_items(self) -> CachedItems | None:
        """Return what a read need not send again."""
        return CachedItems(self.row.epoch, len(self.names), self.cache) if self.row else None

    def has_epoch_of(self, row: ThreadRow | None) -> bool:
        """Return whether a thread row is of the same epoch: no item of this head was removed since."""
        return self.row is not None and row is not None and self.row.epoch == row.epoch

    def name_table(self) -> NameTable:
        """Return the names for unpacking rows."""
        family = self.row.family if self.row is not None else 0
        return new_tuple(NameTable, (self.names, _no_new_names, family, _NO_NUMBERS, None, 0, True))

    def with_recent(self, records: Iterable[CheckpointRecord]) -> dict[tuple[str, str], CheckpointRecord]:
        """Return the recent checkpoints with these added and the oldest dropped.

        Few are kept, because Python's garbage collector visits each of their objects.
        """
        recent = dict(self.recent)
        for record in records:
            key = (record.row.ns, record.row.id)
            recent.pop(key, None)
            recent[key] = record
        counts: dict[str, int] = {}
        for key in reversed(list(recent)):
            counts[key[0]] = count = counts.get(key[0], 0) + 1
            if count > _MAX_RECENT_OF_NAMESPACE:
                del recent[key]
        return recent if len(recent) <= _MAX_RECENT else dict(list(recent.items())[-_MAX_RECENT:])

    def bytes_of(self, ranges: Iterable[ItemRange]) -> bytes:
        """Return the bytes of these items, joined. Corrupt if the storage did not have one of them."""
        return self.cache.join(ranges, self.where)

    def shared(self, n: int) -> bytes:
        """Return the packed labels, or the packed shape, with this number."""
        return self.bytes_of((ItemRange(SHARED, n, 1),))

    def labels(self, n: int) -> dict[str, Any]:
        """Return the labels with this number: the metadata that many checkpoints share."""
        return dict(as_labels(self.shared(n), f"labels {n} of {self.where}"))

    def checkpoint(self, row: CheckpointRow) -> CheckpointRecord:
        """Decode a checkpoint row, except for its values."""
        return unpack_checkpoint(row, self.name_table(), self.shared_parts(), self.where)

    def task(self, row: WriteRow) -> TaskWrites:
        """Decode a row of writes, except for their values."""
        return unpack_writes(row, self.name_table(), self.shared_parts(), self.where)

    def shared_parts(self) -> SharedParts:
        """Return the range lists and shapes for unpacking rows."""
        return new_tuple(SharedParts, (self.cache.range_lists, self._shape))

    def _shape(self, n: int) -> Any:
        """Return a shape; it is unpacked only once."""
        shape = self.cache.shapes.get(n)
        if shape is None:
            shape = self.cache.shapes[n] = unpack(self.shared(n), f"shape {n} of {self.where}")
        return shape

    def trimmed(self) -> Head:
        """Return the same head whose cache has only the items that its names and recent checkpoints use."""
        cache = ItemCache(self.cache.era, compress=self.cache.compress)
        used = [each for record in self.recent.values() for slot in record.slots.values() for each in slot.ranges]
        used += [ItemRange(lane, n, 1) for lane in range(FIRST_CHANNEL) for n in list(self.cache.lanes.get(lane, ()))]
        for item_id in (item_id for each in itemlog.union(used) for item_id in each.ids()):
            item = self.cache.get(item_id)
            if item is not None:
                cache.add(item_id, item)
        return self._replace(cache=cache)


_NO_NUMBERS: Mapping[str, int] = MappingProxyType({})


def _no_new_names(name: str) -> int:
    raise KeyError(name)


class Heads:
    """The cached heads of a Keep, within a budget of bytes. `compress`: whether what is stored is compressed."""

    def __init__(self, budget: int, *, compress: bool = True) -> None:
        self._budget = budget
        self._compress = compress
        self.era = 0
        """The number of times that all heads were dropped. A cache of another era is not current."""
        self.has_leases = False
        """Whether callers may have leases of threads: then each change asks for that of its caller."""
        self.kept_rows: KeptRows | None = None
        """Rows of threads that verbs which only show something need not read again; None to read them each time."""
        self._cached_since_start = 0
        self._heads: dict[ThreadKey, Head] = {}
        self.get: Callable[[ThreadKey], Head | None] = self._heads.get
        """Returns the cached head of a thread, if any."""

    def new_cache(self) -> ItemCache:
        """Return an empty cache of a thread's items."""
        return ItemCache(self.era, compress=self._compress)

    def drop(self, key: ThreadKey) -> None:
        """Drop the cached head of a thread."""
        self._heads.pop(key, None)

    def clear(self) -> None:
        """Drop all heads; those that callers still hold are not current any more.

        After a lost connection the storage may be another server, which never had what this one acknowledged.
        """
        self.era += 1
        self._heads.clear()

    def usage(self) -> tuple[int, int]:
        """Return how many threads are cached, and how many bytes they take."""
        heads = [head for key in list(self._heads) if (head := self._heads.get(key)) is not None]
        return len(heads), sum(head.cache.size + _HEAD_SIZE for head in heads)

    def is_current(self, head: Head) -> bool:
        """Return whether a head may still be trusted: `clear` was not called since it was read."""
        return head.cache.era == self.era

    def store(self, head: Head) -> Head:
        """Cache this head unless a newer one is cached; return the one that is.

        The least recently used heads beyond the budget are dropped. A head without a row is cached too: the first put
        of a new thread then needs no read.
        """
        cached, row = self._heads.pop(head.key, None), head.row
        if cached is not None and _is_newer(cached.row, row):
            head = cached
        cache = head.cache
        if cache.size > self._budget // 4:
            head = head.trimmed()
            cache = head.cache
        if self._budget and cache.size <= self._budget and cache.era == self.era:
            self._heads[head.key] = head
            self._cached_since_start += 1
            if not self._cached_since_start % max(_SHRINK_EVERY, len(self._heads) // 2):
                self._shrink()
        return head

    def _shrink(self) -> None:
        """Drop the oldest heads beyond the budget. Others may change the dict meanwhile: only its keys are listed."""
        heads = [head for key in list(self._heads) if (head := self._heads.get(key)) is not None]
        excess = sum(head.cache.size + _HEAD_SIZE for head in heads) - self._budget
        for head in heads[:-1]:
            if excess <= 0:
                break
            self._heads.pop(head.key, None)
            excess -= head.cache.size + _HEAD_SIZE

    def head_from(self, key: ThreadKey, loaded: LoadedRows, old: Head | None) -> Head:
        """Return the head that a read shows. `old` is the head whose cached items the read did not send again."""
        if loaded.thread is None:
            self.drop(key)
            return Head(key, None, cache=self.new_cache())
        if old is None or old.row is None or old.row.epoch != loaded.thread.epoch or not self.is_current(old):
            old = Head(key, loaded.thread, cache=self.new_cache())
        old.cache.fill(loaded.items, old.where, loaded.thread.family)
        same = old.row is not None and old.row.rev == loaded.thread.rev
        names = _read_names(old.names, loaded.thread, old.cache)
        return Head(key, loaded.thread, names, old.recent if same else {}, old.cache)


def _is_newer(row: ThreadRow | None, than: ThreadRow | None) -> bool:
    return row is not None and than is not None and row.rev > than.rev and row.epoch == than.epoch


def _read_names(known: tuple[str, ...], thread: ThreadRow, cache: ItemCache) -> tuple[str, ...]:
    """Return as many names as the thread row counts: the known ones, then those in the cache."""
    count = thread.nexts[NAMES] if thread.nexts else 0
    if len(known) >= count:
        return known[:count]
    new = []
    for n in range(len(known), count):
        item = cache.get(ItemId(NAMES, n))
        if item is None:
            raise Corrupt(f"name {n} of thread {thread.key.id!r} is missing")
        try:
            new.append(from_bytes(item.data))
        except UnicodeDecodeError as error:
            raise Corrupt(f"name {n} of thread {thread.key.id!r} cannot be decoded: {error}") from error
    return known + tuple(new)
