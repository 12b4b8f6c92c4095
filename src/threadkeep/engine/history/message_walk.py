"""Find the messages in the values of a thread, without building more of a value than one element at a time.

Items are read in slices and dropped again. An item that was seen before is not read again, so the checkpoints of a
conversation cost what was added in each. An element may be stored in several items, the first of which says that it
starts there; so a list is read on from its first new item that starts an element.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

from threadkeep.engine.commit import load_items
from threadkeep.engine.cube.channels import decode_json_text
from threadkeep.engine.identity import CUBE
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import Item, ItemId, ItemRange, subtract, union
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.plain import is_message, message_id, plain_parts
from threadkeep.engine.log.records import Slot
from threadkeep.engine.threads.thread_rows import ThreadRows
from threadkeep.errors import Corrupt

Take: TypeAlias = Callable[[Hashable, Mapping[str, Any]], None]
"""Gets a message, as plain data, and its key: its id, or where it is stored if it has none."""
_SLICE = 256
"""The number of items that are held at a time. An item is seldom larger than a message."""


class MessageWalk:
    """Walks over the values of one thread. Values without one of the bytes in `marks` are not decoded.

    Values wait until there are enough items to read at once: `flush` after the last one. `is_damaged` becomes True if
    something cannot be read; the rest is walked over.
    """

    def __init__(self, rows: ThreadRows, marks: tuple[bytes, ...]) -> None:
        self.is_damaged = False
        self._rows = rows
        self._marks = marks
        self._seen: list[ItemRange] = []
        self._seen_inline: set[tuple[str, bytes]] = set()
        self._pending: list[tuple[Slot, list[ItemId], Take]] = []
        self._pending_items = 0

    async def walk(self, slot: Slot, take: Take) -> None:
        """Pass the messages of a value to `take`, now or later, except those in items that were seen before.

        One round trip for each 256 new items. Conflict if the thread was pruned since its rows were loaded.
        """
        if slot.inline is not None:
            if (slot.tag, slot.inline) not in self._seen_inline:
                self._seen_inline.add((slot.tag, slot.inline))
                self._pending.append((slot, [], take))
            return
        new = subtract(slot.ranges, self._seen)
        if not new:
            return
        self._seen = union((*self._seen, *new))
        ids = [
            at
            for each in (slot.ranges if slot.kind == WHOLE else _from_first_of(slot.ranges, new))
            for at in each.ids()
        ]
        if len(ids) > _SLICE:
            await self.flush()
        self._pending.append((slot, ids, take))
        self._pending_items += len(ids)
        if self._pending_items >= _SLICE:
            await self.flush()

    async def flush(self) -> None:
        """Pass on the messages of all values that wait. One round trip; more for a value of more than 256 items."""
        pending, self._pending, self._pending_items = self._pending, [], 0
        first = dict(await self._load(at for _, ids, _ in pending for at in ids[:_SLICE]))
        for slot, ids, take in pending:
            if slot.inline is not None:
                self._take_value(slot.tag, slot.inline, take)
            elif slot.kind == WHOLE:
                items = [first[at] for at in ids[:_SLICE]]
                items += [item for _, item in await self._load(ids[_SLICE:])]
                self._take_whole(slot, items, take)
            else:
                await self._walk_elements(slot, ids, [(at, first[at]) for at in ids[:_SLICE]], take)

    def _take_whole(self, slot: Slot, items: list[Item | None], take: Take) -> None:
        if None in items:
            self.is_damaged = True
        else:
            self._take_value(slot.tag, b"".join(item.data for item in items if item is not None), take)

    async def _walk_elements(
        self, slot: Slot, ids: list[ItemId], part: list[tuple[ItemId, Item | None]], take: Take
    ) -> None:
        """Take the messages of these items of a list or dict, `part` of which is read already.

        If they start amid an element, walk over the whole value.
        """
        if part and part[0][1] is not None and not part[0][1].elements:
            every = [at for each in slot.ranges for at in each.ids()]
            if len(every) == len(ids):
                self.is_damaged = True
            else:
                await self._walk_elements(slot, every, await self._load(every[:_SLICE]), take)
            return
        group: list[tuple[ItemId, Item | None]] = []
        done = len(part)
        while part:
            for at, item in part:
                if group and (item is None or item.elements):
                    self._take_elements(slot, group, take)
                    group = []
                group.append((at, item))
            part = await self._load(ids[done : done + _SLICE])
            done += len(part)
        if group:
            self._take_elements(slot, group, take)

    def _take_value(self, tag: str, data: bytes, take: Take) -> None:
        """Take the messages of a value that is stored in one part. Equal ones without an id are told apart by order."""
        counts = Counter[bytes]()
        for message in self._messages(WHOLE, tag, 1, data):
            digest = blake2b(json.dumps(message, sort_keys=True).encode(), digest_size=16).digest()
            counts[digest] += 1
            take(message_id(message) or (digest, counts[digest]), message)

    def _take_elements(self, slot: Slot, group: list[tuple[ItemId, Item | None]], take: Take) -> None:
        """Take the messages of one element, or of several that are stored as one item."""
        items = [item for _, item in group if item is not None]
        if len(items) < len(group):
            self.is_damaged = True
            return
        data = b"".join(item.data for item in items)
        for n, message in enumerate(self._messages(slot.kind, slot.tag, items[0].elements, data)):
            take(message_id(message) or (group[0][0], n), message)

    def _messages(self, kind: int, tag: str, elements: int, data: bytes) -> Iterator[Mapping[str, Any]]:
        if not any(mark in data for mark in self._marks):
            return
        try:
            value = plain_parts(kind, tag, elements, data, what=f"a value of {self._rows.head.where}")
        except Corrupt:
            self.is_damaged = True
            return
        yield from _messages_in(value, texts=self._rows.key.kind == CUBE)

    async def _load(self, ids: Iterable[ItemId]) -> list[tuple[ItemId, Item | None]]:
        """Read items; None in place of one that cannot be read."""
        wanted, head = list(ids), self._rows.head
        if not wanted:
            return []
        assert head.row is not None
        cache = ItemCache()
        loaded = await load_items(head.row, union(ItemRange(lane, n, 1) for lane, n in wanted))
        cache.fill_intact(loaded.items, head.where, head.family)
        return [(at, cache.get(at)) for at in wanted]


def _from_first_of(ranges: Iterable[ItemRange], new: Iterable[ItemRange]) -> Iterator[ItemRange]:
    """The part of these ranges from the first item on that is new."""
    found = False
    for each in ranges:
        fresh = [] if found else [one for one in new if _overlaps(each, one)]
        if fresh:
            found = True
            start = max(each.start, min(one.start for one in fresh))
            yield ItemRange(each.lane, start, each.start + each.length - start)
        elif found:
            yield each


def _overlaps(one: ItemRange, other: ItemRange) -> bool:
    return one.lane == other.lane and one.start < other.start + other.length and other.start < one.start + one.length


def _messages_in(value: Any, *, texts: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the messages in a plain value, in order; with `texts`, also those that are stored as JSON text."""
    if is_message(value):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _messages_in(each, texts=texts)
    elif isinstance(value, list):
        for each in value:
            yield from _messages_in(decode_json_text(each) if texts else each, texts=texts)
