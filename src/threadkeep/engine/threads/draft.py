"""Drafts: add values to a thread's item log while a batch is being made, and reuse the items that it has.

Reused are the elements at the same position in the parent's list, then elements with the same bytes anywhere in the
lane: of an edited, trimmed or reordered list, or of the write that brought the message. Only the rest is stored.
A message that is the whole input of a run is stored in the lane of the channel that it is for: the input's value and
the write that passes it on refer to one item. Elements are compared byte by byte, so a reused item is exactly what
would have been stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.log import cut_points, itemlog
from threadkeep.engine.log.codec import EXTENSIONS, MSGPACK, Parts
from threadkeep.engine.log.cut_points import LONG, NO_ID
from threadkeep.engine.log.itemlog import (
    CHUNK,
    FIRST_CHANNEL,
    NAMES,
    RANGE_LISTS,
    SHARED,
    Item,
    ItemId,
    ItemRange,
    new_tuple,
)
from threadkeep.engine.log.msgpack import WHOLE, read_header, split_parts
from threadkeep.engine.log.records import NameTable, Slot
from threadkeep.engine.threads.heads import Head

MAX_INLINE = 32
"""Values up to this many bytes are stored in the row: an item and its reference would cost as much."""
_SMALL, _MAX_GROUP = 256, 1024
"""Consecutive new elements smaller than _SMALL are stored in one item, up to _MAX_GROUP bytes."""
_START = "__start__"
"""The channel of the input."""
_ONE_ENTRY, _ONE_ELEMENT = 0x81, b"\x91"
"""The first bytes of a dict of one entry, and of a list of one element."""
_FEW = 64
"""Up to this many elements at the end of a list are looked up one by one: writes may have brought them."""
_MAX_ONE_ITEM = 8 * 1024
"""More bytes of many small elements than this are stored in chunks."""
_MAX_COMPRESSED = 128 * 1024
"""More new chunks than this are not compressed: that would take several times as long as encoding the value."""
_MAX_RANGES = 16
"""If a slot has more ranges than this, they move into an item of their own, which later checkpoints share."""


class _ItemGroup(NamedTuple):
    """Consecutive items with whole elements: one, several small ones, or one that is too long for a single item."""

    ids: tuple[ItemId, ...]
    data: bytes
    elements: int


class Draft:
    """The names, items and counters of a thread: those of its head and the new ones."""

    def __init__(self, head: Head) -> None:
        self.head = head
        row = head.row
        self.nexts = list(row.nexts) if row is not None else []
        self.names = head.names
        self.family = row.family if row is not None else 0
        """The thread's family. The caller sets that of a new thread."""
        self.is_quick = False
        """Whether short items are compressed in less time, to somewhat more bytes."""
        self.new_items: dict[ItemId, Item] = {}
        self._numbers = _numbers(head.names)
        self._by_content: dict[tuple[int, int, bytes], ItemId] = {}
        self._chunks: set[ItemId] = set()
        self._pieces: set[int] = set()

    def name_table(self) -> NameTable:
        """Return the names for packing rows; new names are added."""
        row = self.head.row
        stored = row.nexts[SHARED] if row is not None and len(row.nexts) > SHARED else 0
        shapes = self.head.cache.shape_numbers
        return new_tuple(
            NameTable, (self.names, self.number, self.family, self._numbers, shapes, stored, self.head.cache.compress)
        )

    def number(self, name: str) -> int:
        """Return the number of a name; add the name if it is new."""
        n = self._numbers.get(name)
        if n is None:
            n = self._add(NAMES, Item(to_bytes(name))).n
            self._numbers = {**self._numbers, name: n}
            self.names += (from_bytes(to_bytes(name)),)
        return n

    def share(self, packed: bytes) -> int:
        """Return the number of something that many checkpoints share, labels or a shape; add it if it is new."""
        item_id = self._by_content.get((SHARED, 1, packed))
        n = item_id.n if item_id else self.head.cache.contents(SHARED).get(packed)
        return self._add(SHARED, Item(packed)).n if n is None else n

    def store_value(self, channel: str, parts: Parts, like: Slot | None, *, early: bool = False) -> Slot:
        """Store a value, in the log or inline, and return its slot.

        `like` is the parent's slot of the channel. `early` says that this is a write: its messages may come again in
        a checkpoint, then with an id.
        """
        kind, tag, pieces, snapshot, joined = parts
        if len(pieces) <= MAX_INLINE and not snapshot and sum(map(len, pieces)) <= MAX_INLINE:
            data = pieces[0] if kind == WHOLE or joined else parts.data
            return new_tuple(Slot, (WHOLE, tag, 1, False, data, (), (), 0))
        number = self._numbers.get(channel)
        lane = FIRST_CHANNEL + (self.number(channel) if number is None else number)
        if kind == WHOLE:
            given = self._store_input(lane, pieces[0]) if channel == _START and tag == MSGPACK else None
            ids = given or self._store_whole(lane, pieces[0], early=early)
        else:
            old = like if like is not None and like.inline is None and like.kind == kind else None
            if joined:
                return self._slot(parts, self._store_joined(lane, parts, old, early=early), like)
            if old is not None and (begin := self._common_prefix(old, pieces)):
                if begin == len(pieces) and tag == old.tag and not (snapshot or old.snapshot):
                    return old
                more = self._store_elements(lane, pieces[begin:], early=early)
                return self._slot(parts, itemlog.add_to_ranges(old.ranges, more), like)
            if old is not None:
                ids = self._store_each(lane, pieces, list(self._groups(old)), early=early)
            else:
                ids = self._store_elements(lane, pieces, early=early)
        return self._slot(parts, itemlog.add_to_ranges((), ids), like)

    def append(self, lane: str, elements: Sequence[bytes]) -> tuple[ItemId, ...]:
        """Store elements at the end of a lane, without looking for equal ones."""
        return tuple(self._store_new(self.lane(lane), list(elements)))

    def sealed_items(self) -> tuple[tuple[ItemId, bytes], ...]:
        """Return the new items as they are stored."""
        items, compress = self.new_items.items(), self.head.cache.compress
        if not self._chunks:
            return itemlog.seal_items(items, self.family, compress=compress, quick=self.is_quick)
        raw: Collection[ItemId] = ()
        if sum(len(self.new_items[each].data) for each in self._chunks) > _MAX_COMPRESSED:
            raw = self._chunks
        return itemlog.seal_items(items, self.family, raw, compress=compress)

    def lane(self, name: str) -> int:
        """Return the lane of a name."""
        return FIRST_CHANNEL + self.number(name)

    def _slot(self, parts: Parts, ranges: tuple[ItemRange, ...], like: Slot | None) -> Slot:
        kind, tag, pieces, snapshot, joined = parts
        slot = new_tuple(Slot, (kind, tag, joined or len(pieces), snapshot, None, ranges, (), 0))
        if len(ranges) <= _MAX_RANGES and (like is None or not like.spill):
            return slot
        return self.spill_ranges(slot, like)

    def _store_joined(self, lane: int, parts: Parts, old: Slot | None, *, early: bool) -> tuple[ItemRange, ...]:
        """Store many small elements. If the parent's are the first of them, only the rest is new; else chunk by chunk.

        Of the parent's elements nothing is reused unless all of their items are cached.
        """
        data, count = parts.parts[0], parts.joined
        first = read_header(data, 0)[2]
        items = list(self._items(old)) if old is not None else []
        if old is None or len(items) != sum(each.length for each in old.ranges):
            return itemlog.join_ranges(self._store_group(lane, data, first, count, []))
        before = b"".join([item.data for _, item in items])
        if old.elements > count or not data.startswith(before, first):
            chunks = [(at, item.data) for at, item in items if item.elements == 0]
            return itemlog.join_ranges(self._store_group(lane, data, first, count, chunks))
        first, count = first + len(before), count - old.elements
        if count > _FEW:
            return itemlog.add_to_ranges(old.ranges, self._store_group(lane, data, first, count, []))
        new = self._store_elements(lane, list(split_parts(data[first:], count)), early=early) if count else []
        return itemlog.add_to_ranges(old.ranges, new)

    def _store_group(
        self, lane: int, data: bytes, start: int, count: int, chunks: list[tuple[ItemId, bytes]]
    ) -> list[ItemId]:
        """Store joined elements as one item, or as an item that has their number and others that have chunks of them.

        They begin at `start`. `chunks` are those of the parent's value; the first and the last ones are reused as far
        as they are equal.
        """
        end, first, last = len(data), 0, len(chunks)
        if end - start <= _MAX_ONE_ITEM:
            data = data[start:]
            return [self._find_item(lane, data, elements=count) or self._add(lane, Item(data, count))]
        while first < last and data.startswith(chunks[first][1], start):
            start += len(chunks[first][1])
            first += 1
        while first < last and data.endswith(chunks[last - 1][1], start, end):
            last -= 1
            end -= len(chunks[last][1])
        ids = [self._add(lane, Item(b"", count)), *(at for at, _ in chunks[:first])]
        for chunk in cut_points.chunks(data, start, end):
            found = self._find_item(lane, chunk, elements=0)
            if found is None:
                found = self._add(lane, Item(chunk, 0))
                self._chunks.add(found)
            ids.append(found)
        return ids + [at for at, _ in chunks[last:]]

    def _items(self, slot: Slot) -> Iterator[tuple[ItemId, Item]]:
        """The items that a slot refers to, as far as they are cached."""
        for item_id in (item_id for each in slot.ranges for item_id in each.ids()):
            item = self.new_items.get(item_id) or self.head.cache.get(item_id)
            if item is not None:
                yield item_id, item

    def _common_prefix(self, old: Slot, parts: Sequence[bytes]) -> int:
        """The length of the parent's list if the new one starts with all of it, else 0."""
        elements = self.head.cache.elements(old.ranges)
        return len(elements) if elements is not None and list(parts[: len(elements)]) == elements else 0

    def _store_whole(self, lane: int, data: bytes, *, early: bool) -> list[ItemId]:
        item_id = self._find_item(lane, data) if len(data) <= CHUNK else None
        return [item_id] if item_id else self._store_cut(lane, data, early=early) or self._store_new(lane, [data])

    def _store_input(self, lane: int, data: bytes) -> list[ItemId] | None:
        """Store the input of a run, if it is one message with an id for one channel; None if it is anything else.

        LangGraph puts the input into the channel __start__, and then writes its message to that channel. So the message
        is stored where the write will find it, and only what is before it, the name, in the lane of __start__.
        """
        end = 2 + (data[1] & 0x1F)
        name = data[2:end]
        is_one = data[0] == _ONE_ENTRY and 0xA0 <= data[1] < 0xC0 and data[end : end + 1] == _ONE_ELEMENT
        is_message = data[end + 1 : end + 2] in EXTENSIONS and NO_ID not in data
        if not (is_one and is_message and name.isascii() and len(data) <= CHUNK):
            return None
        beginning, message = data[: end + 1], data[end + 1 :]
        first = self._find_item(lane, beginning) or self._add(lane, Item(beginning))
        return [first, *self._store_elements(self.lane(name.decode()), (message,), early=True)]

    def _store_elements(self, lane: int, elements: Sequence[bytes], *, early: bool) -> list[ItemId]:
        """Store elements; reuse items of the lane that have the same bytes. Makes about 3 calls per new element."""
        ids: list[ItemId] = []
        new: list[bytes] = []
        drafted, stored = self._by_content, self.head.cache.contents(lane)
        has_pieces = lane in self._pieces or not self.head.cache.has_only_elements(lane)
        for element in elements:
            found = drafted.get((lane, 1, element))
            if found is None and (n := stored.get(element)) is not None:
                found = new_tuple(ItemId, (lane, n))
            reused: Sequence[ItemId] | None = (found,) if found is not None else None
            if reused is None and len(element) >= LONG and (NO_ID in element if early else has_pieces):
                reused = self._store_cut(lane, element, early=early)
            if reused is None:
                new.append(element)
                continue
            if new:
                ids += self._store_new(lane, new)
                new = []
            ids += reused
        return ids + self._store_new(lane, new) if new else ids

    def _store_each(self, lane: int, parts: Sequence[bytes], old: list[_ItemGroup], *, early: bool) -> list[ItemId]:
        ids: list[ItemId] = []
        new: list[bytes] = []
        position: dict[ItemId, int] | None = None
        i = j = 0
        while i < len(parts):
            group = old[j] if j < len(old) and _matches(old[j], parts, i) else None
            if group is None and (item_id := self._find_item(lane, parts[i])) is not None:
                group = _ItemGroup((item_id,), parts[i], 1)
                if position is None:
                    position = {each.ids[0]: k for k, each in enumerate(old)}
                j = position.get(item_id, j - 1)
            elif group is None and (cut := self._store_cut(lane, parts[i], early=early)):
                group = _ItemGroup(tuple(cut), parts[i], 1)
                j -= 1
            if group is None:
                new.append(parts[i])
                i += 1
                continue
            if new:
                ids += self._store_new(lane, new)
                new = []
            ids += group.ids
            i += group.elements
            j += 1
        return ids + self._store_new(lane, new) if new else ids

    def _store_cut(self, lane: int, element: bytes, *, early: bool) -> list[ItemId] | None:
        """Store an element in pieces, if it may come again with an id or the lane has its long strings. Else None."""
        if not (cut_points.may_change(element) if early else len(element) >= LONG):
            return None
        first, *rest = (
            piece[start : start + CHUNK] for piece in cut_points.cut(element) for start in range(0, len(piece), CHUNK)
        )
        known = [self._find_item(lane, piece, elements=0) for piece in rest]
        if not rest or not (early or any(known)):
            return None
        ids = [self._add(lane, Item(first))]
        return ids + [found or self._add(lane, Item(piece, 0)) for found, piece in zip(known, rest, strict=True)]

    def _groups(self, slot: Slot) -> Iterator[_ItemGroup]:
        """The whole elements that a slot refers to, as far as their items are cached."""
        ids: list[ItemId] = []
        items: list[Item] = []
        for item_id, item in self._items(slot):
            if item.elements and ids:
                yield _group(ids, items)
                ids, items = [], []
            ids.append(item_id)
            items.append(item)
        if ids:
            yield _group(ids, items)

    def _store_new(self, lane: int, elements: list[bytes]) -> list[ItemId]:
        if len(elements) == 1 and len(elements[0]) <= CHUNK:
            return [self._add(lane, new_tuple(Item, (elements[0], 1)))]
        return [self._add(lane, item) for item in _split_into_items(elements)]

    def _add(self, lane: int, item: Item) -> ItemId:
        nexts = self.nexts
        if lane >= len(nexts):
            nexts += [0] * (lane + 1 - len(nexts))
        item_id = new_tuple(ItemId, (lane, nexts[lane]))
        nexts[lane] += 1
        self.new_items[item_id] = item
        data, elements = item
        self._by_content[(lane, elements, data)] = item_id
        if not elements:
            self._pieces.add(lane)
        return item_id

    def _find_item(self, lane: int, data: bytes, elements: int = 1) -> ItemId | None:
        """An item with these bytes: so many whole elements, or a later piece of some (0)."""
        return self._by_content.get((lane, elements, data)) or self.head.cache.find(lane, data, elements)

    def spill_ranges(self, slot: Slot, like: Slot | None) -> Slot:
        """Move a long list of ranges out of the row. The parent's range lists are shared while they are a prefix."""
        if like is not None and like.spill and slot.ranges[: like.covered] == like.ranges[: like.covered]:
            slot = slot._replace(spill=like.spill, covered=like.covered)
        if len(slot.ranges) - slot.covered <= _MAX_RANGES:
            return slot
        covered = len(slot.ranges) - 1  # the last range is the one that grows
        new_list = self._add(RANGE_LISTS, Item(itemlog.pack_ranges(slot.ranges[slot.covered : covered])))
        lists = itemlog.join_ranges([*(item_id for each in slot.spill for item_id in each.ids()), new_list])
        return slot._replace(spill=lists, covered=covered)


@lru_cache(maxsize=1024)
def _numbers(names: tuple[str, ...]) -> Mapping[str, int]:
    """The number of each name. It is cached, because threads of one graph mostly have the same names."""
    return {name: n for n, name in enumerate(names)}


def _group(ids: list[ItemId], items: list[Item]) -> _ItemGroup:
    if len(ids) == 1:
        return _ItemGroup((ids[0],), items[0].data, items[0].elements)
    return _ItemGroup(tuple(ids), b"".join(item.data for item in items), items[0].elements)


def _matches(group: _ItemGroup, parts: Sequence[bytes], i: int) -> bool:
    if group.elements == 1:
        return group.data == parts[i]
    end = i + group.elements
    return group.elements > 1 and end <= len(parts) and group.data == b"".join(parts[i:end])


def _split_into_items(elements: list[bytes]) -> Iterator[Item]:
    """New elements as items: long ones in chunks, small neighbours together, the others one by one."""
    small: list[bytes] = []
    size = 0
    for element in elements:
        if small and (len(element) >= _SMALL or size + len(element) > _MAX_GROUP):
            yield Item(b"".join(small), len(small))
            small, size = [], 0
        if len(element) < _SMALL:
            small.append(element)
            size += len(element)
        else:
            yield Item(element[:CHUNK])
            yield from (Item(element[start : start + CHUNK], 0) for start in range(CHUNK, len(element), CHUNK))
    if small:
        yield Item(b"".join(small), len(small))
