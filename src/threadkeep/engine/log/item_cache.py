"""The item cache: items of one epoch of a thread in this process's memory, found by id or by content.

A cache may hold a hundred thousand items, so it is lean: a lane is a dict from n to bytes, with no object per item.
It only grows. All heads of an epoch share it, and so do the threads of this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import RANGE_LISTS, Item, ItemId, ItemRange
from threadkeep.engine.log.msgpack import split_parts
from threadkeep.errors import Corrupt

if TYPE_CHECKING:
    from threadkeep.engine.cube.events import RunLog

_OVERHEAD = 150
"""Bytes of memory that an item takes besides its data, roughly."""
_MAX_DECODED, _DECODED_SIZE = 1024, 3000
"""How many checkpoints stay decoded for delta histories, and roughly how many bytes each takes with its writes."""
_GROUP = 2
"""Items with this many elements or more are found by content in one index."""


class ItemCache:
    """Cached items; also the range lists and shapes among them, unpacked, and the numbers of shapes.

    `run_log` is the run log of a cube thread, with the ranges of the items that hold its events. `spans` has for each
    lane a (start, end) between which no item is missing; there may be more items outside of it. `decoded` is what delta
    histories decoded of some rows, with these rows. `era` is that of the `Heads` that made the cache, and `compress`
    says whether what is stored after it is compressed.
    """

    def __init__(self, era: int = 0, *, compress: bool = True) -> None:
        self.era = era
        self.compress = compress
        self.lanes: dict[int, dict[int, bytes]] = {}
        self.range_lists: dict[int, tuple[ItemRange, ...]] = {}
        self.shapes: dict[int, Any] = {}
        self.shape_numbers: dict[Any, int] = {}
        self.spans: dict[int, tuple[int, int]] = {}
        self.run_log: tuple[tuple[ItemRange, ...], RunLog] | None = None
        self.decoded: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
        self.size = 0
        self._elements: dict[tuple[int, int], int] = {}
        self._uneven: set[int] = set()
        self._split_elements: dict[tuple[ItemId, ...], list[bytes]] = {}
        self._contents: dict[tuple[int, int], dict[bytes, int]] = {}

    def add_decoded(self, place: tuple[Any, ...], value: tuple[Any, Any, Any]) -> None:
        """Keep what was decoded of a checkpoint and its writes. If there is too much, all else is dropped."""
        if len(self.decoded) >= _MAX_DECODED:
            self.size -= _DECODED_SIZE * len(self.decoded)
            self.decoded = {}  # not cleared: another thread may be using it
        self.decoded[place] = value
        self.size += _DECODED_SIZE

    def has(self, at: ItemId) -> bool:
        """Whether an item is cached."""
        lane = self.lanes.get(at[0])
        return lane is not None and at[1] in lane

    def get(self, at: ItemId) -> Item | None:
        """Return an item, or None."""
        data = self.lanes.get(at[0], {}).get(at[1])
        return Item(data, self._elements.get(at, 1)) if data is not None else None

    def starts_with(self, each: ItemRange, beginnings: frozenset[bytes]) -> bool:
        """Whether the first byte of a range is one of these; False if its first item is not cached, or is empty."""
        return self.lanes.get(each.lane, {}).get(each.start, b"")[:1] in beginnings

    def elements(self, ranges: Iterable[ItemRange]) -> list[bytes] | None:
        """Return the elements that these items hold; None if an item is not cached, or an element is cut off."""
        elements: list[bytes] = []
        try:
            for lane, start, length in ranges:
                if lane in self._uneven:
                    break
                elements += map(self.lanes[lane].__getitem__, range(start, start + length))
            else:
                return elements
            elements.clear()
            for ids in self._items_by_element(ranges):
                elements += self._split(ids)
        except (KeyError, IndexError):
            return None
        return elements

    def groups(self, ranges: Iterable[ItemRange]) -> Iterator[list[bytes]]:
        """Return the elements that are stored together, group by group. Groups that lack an item are left out.

        The last item of an element may be missing without notice: the caller finds out when it decodes the group.
        """
        for ids in self._items_by_element(ranges):
            try:
                elements = self._split(ids)
            except (KeyError, IndexError, ValueError, ZeroDivisionError):
                continue
            yield elements

    def slices(self, ranges: Iterable[ItemRange], size: int) -> Iterator[tuple[int, bytes]]:
        """Return at least `size` elements at a time, as (count, joined bytes). KeyError if an item is not cached."""
        for lane, start, length in ranges:
            items, count, data = self.lanes[lane], 0, list[bytes]()
            for n in range(start, start + length):
                elements = self._elements.get((lane, n), 1) if lane in self._uneven else 1
                if elements and count >= size:
                    yield count, b"".join(data)
                    count, data = 0, []
                count += elements
                data.append(items[n])
            yield count, b"".join(data)

    def _items_by_element(self, ranges: Iterable[ItemRange]) -> Iterator[tuple[ItemId, ...]]:
        """Return the items of each element; of a group of elements, the one item that holds it."""
        ids: tuple[ItemId, ...] = ()
        for at in (at for each in ranges for at in each.ids()):
            if ids and self._elements.get(at, 1):
                yield ids
                ids = ()
            ids = (*ids, at)
        if ids:
            yield ids

    def _split(self, ids: tuple[ItemId, ...]) -> list[bytes]:
        """Return the elements in these items, which are joined or split only once."""
        first = self.lanes[ids[0].lane][ids[0].n]
        count = self._elements.get(ids[0], 1)
        if count == 1 and len(ids) == 1:
            return [first]
        elements = self._split_elements.get(ids)
        if elements is None:
            data = b"".join([self.lanes[lane][n] for lane, n in ids])
            elements = [data] if count == 1 else list(split_parts(data, count))
            if len(elements) != count:
                raise IndexError(f"{count} elements should be in {ids}")
            self._split_elements[ids] = elements
        return elements

    def find(self, lane: int, data: bytes, elements: int = 1) -> ItemId | None:
        """Return an item of the lane that holds these bytes as so many elements; as a later piece of some, if 0."""
        n = self.contents(lane, min(elements, _GROUP)).get(data)
        return ItemId(lane, n) if n is not None and self._elements.get((lane, n), 1) == elements else None

    def contents(self, lane: int, elements: int = 1) -> dict[bytes, int]:
        """Return the numbers of a lane's items by content: of items with one element, of later pieces if 0.

        All items with more elements are in one dict.
        """
        contents = self._contents.get((lane, elements))
        if contents is None:
            ns = [
                n for n in list(self.lanes.get(lane, ())) if min(self._elements.get((lane, n), 1), _GROUP) == elements
            ]
            contents = self._contents.setdefault((lane, elements), {self.lanes[lane][n]: n for n in ns})
        return contents

    def has_only_elements(self, lane: int) -> bool:
        """Whether each cached item of a lane is one element."""
        return lane not in self._uneven

    def add(self, at: ItemId, item: Item) -> None:
        """Cache an item."""
        lane, n = at
        if lane == RANGE_LISTS:  # before the item itself: another thread that finds the item needs its ranges
            self.range_lists[n] = itemlog.unpack_ranges(item.data)
        if item.elements != 1:
            self._elements[at] = item.elements
            self._uneven.add(lane)
        if (lane, kind := min(item.elements, _GROUP)) in self._contents:
            self._contents[(lane, kind)][item.data] = n
        self.lanes.setdefault(lane, {})[n] = item.data
        low, high = self.spans.get(lane, (n, n))
        if n == high:
            self.spans[lane] = (low, n + 1)
        elif n == low - 1:
            self.spans[lane] = (n, high)
        self.size += len(item.data) + _OVERHEAD

    def fill(self, stored: Mapping[ItemId, bytes], where: str, family: int) -> None:
        """Unseal and cache stored items, except those that are cached already.

        `where` names the thread in errors, `family` is that of the thread.
        """
        if not stored:
            return
        lane, items, low, high = -1, dict[int, bytes](), 0, 0
        for at, data, elements in itemlog.unseal_items(stored, self.lanes, where, family):
            if elements != 1 or at[0] == RANGE_LISTS or (at[0], 1) in self._contents:
                self.add(at, Item(data, elements))
                lane = -1
                continue
            if at[0] != lane:  # does what `add` does, but looks things up once per lane
                lane, items = at[0], self.lanes.setdefault(at[0], {})
                low, high = self.spans.get(lane, (at[1], at[1]))
            n = at[1]
            items[n] = data
            if n == high:
                high = n + 1
            elif n == low - 1:
                low = n
            self.spans[lane] = (low, high)
            self.size += len(data) + _OVERHEAD

    def fill_intact(self, stored: Mapping[ItemId, bytes], where: str, family: int) -> dict[ItemId, str]:
        """Cache the items that can be unsealed. Return the others, with what is wrong with each."""
        damaged: dict[ItemId, str] = {}
        try:
            self.fill(stored, where, family)
        except Corrupt:
            for at, payload in stored.items():
                try:
                    self.fill({at: payload}, where, family)
                except Corrupt as error:
                    damaged[at] = str(error)
        return damaged

    def lacking(self, ranges: Iterable[ItemRange]) -> tuple[ItemRange, ...]:
        """Return the items of these ranges that are not cached."""
        missing: list[ItemRange] = []
        for lane, start, length in ranges:
            low, high = self.spans.get(lane, (0, 0))
            if low <= start and start + length <= high:
                continue
            items = self.lanes.get(lane, {})
            missing += itemlog.join_ranges((lane, n) for n in range(start, start + length) if n not in items)
        return tuple(missing)

    def join(self, ranges: Iterable[ItemRange], where: str) -> bytes:
        """Return the joined bytes of these items. Corrupt if one is missing: the storage did not have it."""
        pieces: list[bytes] = []
        for lane, start, length in ranges:
            try:
                pieces.extend(map(self.lanes.get(lane, {}).__getitem__, range(start, start + length)))
            except KeyError as error:
                raise Corrupt(f"item {lane}:{error} of {where} is referenced but missing") from error
        return b"".join(pieces)
