"""What a Keep remembers of its threads between calls, so that a put needs no read first.

A `Head` is a thread at (epoch, rev). It is only trusted as the precondition of a commit or beside the thread row of a
read: another process's change makes the first a Conflict and the second drop what was remembered. Items never change
within an epoch, so their bytes may be kept; they are, up to a budget, least recently used threads going first.

Two calls that remember the same thread at once may drop each other's additions. Nothing is lost by that but a later
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from threadkeep.engine.identity import ThreadKey, from_bytes
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import unpack
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, NAMES, SHARED, ItemId, ItemRange
from threadkeep.engine.log.records import (
    CheckpointRecord,
    CheckpointRow,
    NameTable,
    SharedParts,
    TaskWrites,
    ThreadRow,
    WriteRow,
    unpack_checkpoint,
    unpack_writes,
)
from threadkeep.engine.requests import CachedItems, LoadedRows
from threadkeep.errors import Corrupt

_HEAD_SIZE, _SHRINK_EVERY = 4096, 16
_RECENT, _OF_ONE_SPACE = 32, 2
"""How many decoded checkpoints a head keeps, in all and of one namespace: the parents that the next puts will name."""


@dataclass(frozen=True, slots=True)
class Head:
    """A thread as this process last saw or made it; `row` is None if it is known not to exist."""

    key: ThreadKey
    row: ThreadRow | None
    names: tuple[str, ...] = ()
    recent: Mapping[tuple[str, str], CheckpointRecord] = field(default_factory=dict)
    cache: ItemCache = field(default_factory=ItemCache)

    @property
    def where(self) -> str:
        """The thread, for error messages."""
        return f"thread {self.key.id!r}"

    def cached_items(self) -> CachedItems | None:
        """What a read need not send again."""
        return CachedItems(self.row.epoch, len(self.names), self.cache) if self.row else None

    def reading(self) -> NameTable:
        """The names for unpacking rows."""
        return NameTable(self.names, _no_new_names)

    def with_recent(self, records: Iterable[CheckpointRecord]) -> dict[tuple[str, str], CheckpointRecord]:
        """The recent checkpoints with these added, oldest forgotten: fewer objects for Python's collector to look at."""
        recent = dict(self.recent)
        for record in records:
            place = (record.row.ns, record.row.id)
            recent.pop(place, None)
            recent[place] = record
        spaces: dict[str, int] = {}
        for place in reversed(list(recent)):
            spaces[place[0]] = count = spaces.get(place[0], 0) + 1
            if count > _OF_ONE_SPACE:
                del recent[place]
        return recent if len(recent) <= _RECENT else dict(list(recent.items())[-_RECENT:])

    def bytes_of(self, runs: Iterable[ItemRange]) -> bytes:
        """What these items hold, one after the other; Corrupt if the storage did not have one of them."""
        return self.cache.join(runs, self.where)

    def shared(self, n: int) -> bytes:
        """Packed labels, or a packed shape, of that number."""
        return self.bytes_of((ItemRange(SHARED, n, 1),))

    def checkpoint(self, row: CheckpointRow) -> CheckpointRecord:
        """A row, decoded."""
        return unpack_checkpoint(row, self.reading(), self.decoding(), self.where)

    def task(self, row: WriteRow) -> TaskWrites:
        """A row of writes, decoded."""
        return unpack_writes(row, self.reading(), self.decoding(), self.where)

    def decoding(self) -> SharedParts:
        """The run lists and shapes for unpacking rows."""
        return SharedParts(self.cache.range_lists, self._shape)

    def _shape(self, n: int) -> Any:
        """A shape, unpacked once."""
        if n not in self.cache.shapes:
            self.cache.shapes[n] = unpack(self.shared(n), f"shape {n} of {self.where}")
        return self.cache.shapes[n]

    def lean(self) -> Head:
        """The same head with only those items in its pool that its names and recent checkpoints use."""
        pool = ItemCache(self.cache.era)
        used = [run for record in self.recent.values() for slot in record.slots.values() for run in slot.ranges]
        used += [ItemRange(lane, n, 1) for lane in range(FIRST_CHANNEL) for n in list(self.cache.lanes.get(lane, ()))]
        for at in (at for run in itemlog.union(used) for at in run.ids()):
            item = self.cache.get(at)
            if item is not None:
                pool.add(at, item)
        return replace(self, cache=pool)


def _no_new_names(name: str) -> int:
    raise KeyError(name)


class Heads:
    """The remembered heads of a Keep, within a budget of bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._era = 0
        self._remembered = 0
        self._heads: dict[ThreadKey, Head] = {}

    def get(self, key: ThreadKey) -> Head | None:
        """What is remembered, if anything."""
        return self._heads.get(key)

    def forget(self, key: ThreadKey) -> None:
        """Drop what is remembered of a thread."""
        self._heads.pop(key, None)

    def clear(self) -> None:
        """Drop everything, and trust nothing that others still have in their hands.

        After a lost connection the storage may be another server, which never had what this one acknowledged.
        """
        self._era += 1
        self._heads.clear()

    def is_current(self, head: Head) -> bool:
        """Whether what a head holds may be believed still."""
        return head.cache.era == self._era

    def remember(self, head: Head) -> Head:
        """Keep this head unless a newer one is kept, and drop the least recently used ones beyond the budget.

        That a thread is not there may be remembered too: its first put then needs no read.
        """
        kept = self._heads.pop(head.key, None)
        if kept is not None and _is_newer(kept.row, head.row):
            head = kept
        if head.cache.size > self._budget // 4:
            head = head.lean()
        if head.cache.size <= self._budget and self.is_current(head):
            self._heads[head.key] = head
            self._shrink()
        return head

    def _shrink(self) -> None:
        """Now and then, drop the oldest heads beyond the budget. Others may change the dict meanwhile: only keys are listed."""
        self._remembered += 1
        if self._remembered % max(_SHRINK_EVERY, len(self._heads) // 2):
            return
        heads = [head for key in list(self._heads) if (head := self._heads.get(key)) is not None]
        excess = sum(head.cache.size + _HEAD_SIZE for head in heads) - self._budget
        for head in heads[:-1]:
            if excess <= 0:
                break
            self._heads.pop(head.key, None)
            excess -= head.cache.size + _HEAD_SIZE

    def seen(self, key: ThreadKey, loaded: LoadedRows, old: Head | None) -> Head:
        """The head that a read shows; `old` is the one that said what need not be sent again."""
        if loaded.thread is None:
            self.forget(key)
            return Head(key, None, cache=ItemCache(self._era))
        if old is None or old.row is None or old.row.epoch != loaded.thread.epoch or not self.is_current(old):
            old = Head(key, loaded.thread, cache=ItemCache(self._era))
        old.cache.fill(loaded.items, old.where)
        same = old.row is not None and old.row.rev == loaded.thread.rev
        names = _named(old.names, loaded.thread, old.cache)
        return Head(key, loaded.thread, names, old.recent if same else {}, old.cache)


def _is_newer(row: ThreadRow | None, than: ThreadRow | None) -> bool:
    return row is not None and than is not None and row.epoch == than.epoch and row.rev > than.rev


def _named(known: tuple[str, ...], thread: ThreadRow, pool: ItemCache) -> tuple[str, ...]:
    """The names that this thread row counts, from what was known and what came along."""
    count = thread.nexts[NAMES] if thread.nexts else 0
    if len(known) >= count:
        return known[:count]
    fresh = []
    for n in range(len(known), count):
        item = pool.get(ItemId(NAMES, n))
        if item is None:
            raise Corrupt(f"name {n} of thread {thread.key.id!r} is not there")
        fresh.append(from_bytes(item.data))
    return known + tuple(fresh)
