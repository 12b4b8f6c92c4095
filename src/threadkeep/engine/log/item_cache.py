"""The pool: items of one epoch of a thread that this process has at hand, by id and by content.

It is kept lean, since there may be a hundred thousand: a lane is a dict from n to bytes, nothing else is made an item.
Grows only; it is shared by the heads of its epoch, and by the threads of this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from threadkeep.engine.cube.events import RunLog
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import RUN_LISTS, Item, ItemId, ItemRange
from threadkeep.engine.log.msgpack import split_parts
from threadkeep.errors import Corrupt

_OVERHEAD = 150
"""What an item costs in memory besides its bytes, roughly."""


class ItemCache:
    """Items at hand; also the run lists and shapes among them, unpacked.

    `ledger` is what the events of a talk tell, with the runs that hold them. `spans` has for each lane from where to
    where (not included) no item is missing; there may be others beside them.
    """

    def __init__(self, era: int = 0) -> None:
        self.era = era
        self.lanes: dict[int, dict[int, bytes]] = {}
        self.range_lists: dict[int, tuple[ItemRange, ...]] = {}
        self.shapes: dict[int, Any] = {}
        self.spans: dict[int, tuple[int, int]] = {}
        self.ledger: tuple[tuple[ItemRange, ...], RunLog] | None = None
        self.size = 0
        self._elements: dict[ItemId, int] = {}
        self._uneven: set[int] = set()
        self._wholes: dict[tuple[ItemId, ...], list[bytes]] = {}
        self._contents: dict[tuple[int, int], dict[bytes, int]] = {}

    def has(self, at: ItemId) -> bool:
        """Whether an item is here."""
        lane = self.lanes.get(at[0])
        return lane is not None and at[1] in lane

    def get(self, at: ItemId) -> Item | None:
        """An item, if it is here."""
        data = self.lanes.get(at[0], {}).get(at[1])
        return Item(data, self._elements.get(at, 1)) if data is not None else None

    def elements(self, runs: Iterable[ItemRange]) -> list[bytes] | None:
        """The elements that these items hold, if all are here and none is cut short."""
        held: list[bytes] = []
        try:
            if not any(run.lane in self._uneven for run in runs):
                for lane, start, length in runs:
                    items = self.lanes[lane]
                    held += [items[n] for n in range(start, start + length)]
                return held
            for ids in self._pieces(runs):
                held += self._whole(ids)
        except (KeyError, IndexError):
            return None
        return held

    def groups(self, runs: Iterable[ItemRange]) -> Iterator[list[bytes]]:
        """The elements that are stored together, one group after the other, without those of which an item is not here.

        The last item of an element may be missing: whether a group can be decoded is for the caller to find out.
        """
        for ids in self._pieces(runs):
            try:
                held = self._whole(ids)
            except (KeyError, IndexError, ValueError, ZeroDivisionError):
                continue
            yield held

    def slices(self, runs: Iterable[ItemRange], size: int) -> Iterator[tuple[int, bytes]]:
        """Some elements at a time, as their number and their bytes one after the other; KeyError if an item is not here."""
        for lane, start, length in runs:
            items, count, held = self.lanes[lane], 0, list[bytes]()
            for n in range(start, start + length):
                elements = self._elements.get((lane, n), 1) if lane in self._uneven else 1  # type: ignore[call-overload]
                if elements and count >= size:
                    yield count, b"".join(held)
                    count, held = 0, []
                count += elements
                held.append(items[n])
            yield count, b"".join(held)

    def _pieces(self, runs: Iterable[ItemRange]) -> Iterator[tuple[ItemId, ...]]:
        """The items of each element; of a group, the one that holds it."""
        ids: tuple[ItemId, ...] = ()
        for at in (at for run in runs for at in run.ids()):
            if ids and self._elements.get(at, 1):
                yield ids
                ids = ()
            ids = (*ids, at)
        if ids:
            yield ids

    def _whole(self, ids: tuple[ItemId, ...]) -> list[bytes]:
        """The elements in these items; joined or split once."""
        first = self.lanes[ids[0].lane][ids[0].n]
        count = self._elements.get(ids[0], 1)
        if count == 1 and len(ids) == 1:
            return [first]
        kept = self._wholes.get(ids)
        if kept is None:
            data = b"".join([self.lanes[lane][n] for lane, n in ids])
            kept = [data] if count == 1 else list(split_parts(data, count))
            if len(kept) != count:
                raise IndexError(f"{count} elements should be in {ids}")
            self._wholes[ids] = kept
        return kept

    def find(self, lane: int, data: bytes, *, inner: bool = False) -> ItemId | None:
        """An item of the lane that holds these bytes as one whole element, or as the inner part of one."""
        place = (lane, 0 if inner else 1)
        contents = self._contents.get(place)
        if contents is None:
            held = {self.lanes[lane][n]: n for n in list(self.lanes.get(lane, ())) if self._is(lane, n, place[1])}
            contents = self._contents.setdefault(place, held)
        n = contents.get(data)
        return ItemId(lane, n) if n is not None else None

    def _is(self, lane: int, n: int, elements: int) -> bool:
        return self._elements.get(ItemId(lane, n), 1) == elements

    def add(self, at: ItemId, item: Item) -> None:
        """Have an item at hand."""
        lane, n = at
        if item.elements != 1:
            self._elements[at] = item.elements
            self._uneven.add(lane)
        if (lane, item.elements) in self._contents:
            self._contents[(lane, item.elements)][item.data] = n
        self.lanes.setdefault(lane, {})[n] = item.data
        low, high = self.spans.get(lane, (n, n))
        if n == high:
            self.spans[lane] = (low, n + 1)
        elif n == low - 1:
            self.spans[lane] = (n, high)
        self.size += len(item.data) + _OVERHEAD
        if lane == RUN_LISTS:
            self.range_lists[n] = itemlog.unpack_ranges(item.data)

    def fill(self, stored: Mapping[ItemId, bytes], where: str) -> None:
        """Unseal what a read brought, but for what is here."""
        lane, held, low, high = -1, dict[int, bytes](), 0, 0
        for at, data, elements in itemlog.unseal_items(stored, self.has, where):
            if elements != 1 or at[0] == RUN_LISTS or (at[0], 1) in self._contents:
                self.add(at, Item(data, elements))
                lane = -1
                continue
            if at[0] != lane:  # what `add` does, with its look-ups once a lane
                lane, held = at[0], self.lanes.setdefault(at[0], {})
                low, high = self.spans.get(lane, (at[1], at[1]))
            n = at[1]
            held[n] = data
            if n == high:
                high = n + 1
            elif n == low - 1:
                low = n
            self.spans[lane] = (low, high)
            self.size += len(data) + _OVERHEAD

    def lacking(self, runs: Iterable[ItemRange]) -> tuple[ItemRange, ...]:
        """What of these runs is not here."""
        missing: list[ItemRange] = []
        for run in runs:
            lane = self.lanes.get(run.lane, {})
            ns = [n for n in range(run.start, run.start + run.length) if n not in lane]
            missing += itemlog.join_ranges((run.lane, n) for n in ns)
        return tuple(missing)

    def join(self, runs: Iterable[ItemRange], where: str) -> bytes:
        """The bytes of these items one after the other; Corrupt if the storage did not have one of them."""
        pieces: list[bytes] = []
        for lane, start, length in runs:
            held = self.lanes.get(lane, {})
            try:
                pieces += [held[n] for n in range(start, start + length)]
            except KeyError as error:
                raise Corrupt(f"item {lane}:{error} of {where} is referred to but not there") from error
        return b"".join(pieces)
