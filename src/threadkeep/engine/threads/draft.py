"""A draft: the next state of a thread while a batch is being made. Values are placed into the item log here.

Placing re-uses what the log has: elements that stand in the parent's list at the same place, then elements with the
same bytes anywhere in the lane (an edited, trimmed or reordered list, or the write that brought the message), and
stores only the rest. Elements are compared by their bytes, whole: what is re-used is what would have been stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.log import cut_points, itemlog
from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.itemlog import CHUNK, FIRST_CHANNEL, NAMES, RUN_LISTS, SHARED, Item, ItemId, ItemRange
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.records import NameTable, Slot
from threadkeep.engine.threads.heads import Head

_INLINE = 32
"""Values up to this many bytes stand in the row: an item and its reference would cost as much."""
_SMALL, _GROUP = 256, 1024
"""New elements smaller than _SMALL that come together are stored together, up to _GROUP bytes an item."""
_LONGEST = 16
"""More runs than this are moved into an item of their own, which later checkpoints share."""


class _ItemGroup(NamedTuple):
    """Consecutive items that hold whole elements: one, several small ones, or one that is too long for an item."""

    ids: tuple[ItemId, ...]
    data: bytes
    elements: int


class Draft:
    """Names, items and counters of a thread, growing from its head."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.nexts = list(head.row.nexts) if head.row else []
        self.names = list(head.names)
        self.new_items: dict[ItemId, Item] = {}
        self._numbers = _numbers(head.names)
        self._by_content: dict[tuple[int, int, bytes], ItemId] = {}

    def naming(self) -> NameTable:
        """The names for packing rows; unknown ones are added."""
        return NameTable(self.names, self.number)

    def number(self, name: str) -> int:
        """The number of a name."""
        n = self._numbers.get(name)
        if n is None:
            n = self._add(NAMES, Item(to_bytes(name))).n
            self._numbers = {**self._numbers, name: n}
            self.names.append(from_bytes(to_bytes(name)))
        return n

    def share(self, packed: bytes) -> int:
        """The number of something that many checkpoints have in common: labels, or a shape."""
        at = self._known(SHARED, packed)
        return at.n if at else self._add(SHARED, Item(packed)).n

    def place(self, channel: str, parts: Parts, like: Slot | None, *, early: bool = False) -> Slot:
        """Put a value into the log, or inline.

        `like` is how the parent holds the channel; `early` says that this is a write, whose messages may come again
        with an id.
        """
        if parts.size <= _INLINE and not parts.snapshot:
            return Slot(WHOLE, parts.tag, 1, False, parts.data)
        lane = self.lane(channel)
        if parts.kind == WHOLE:
            ids = self._place_whole(lane, parts.parts[0], early=early)
        else:
            old = like if like is not None and like.inline is None and like.kind == parts.kind else None
            if old is not None and (begin := self._beginning(old, parts.parts)):
                more = self._place_each(lane, parts.parts[begin:], [], early=early)
                return self._slot(parts, itemlog.add_to_ranges(old.ranges, more), like)
            ids = self._place_each(lane, parts.parts, list(self._pieces(old)) if old else [], early=early)
        return self._slot(parts, itemlog.join_ranges(ids), like)

    def append(self, lane: str, elements: Sequence[bytes]) -> tuple[ItemId, ...]:
        """Put elements at the end of a lane without looking for them in the log."""
        return tuple(self._store(self.lane(lane), list(elements)))

    def sealed(self) -> tuple[tuple[ItemId, bytes], ...]:
        """The new items as they are stored."""
        return tuple((at, itemlog.seal_item(at, item)) for at, item in self.new_items.items())

    def lane(self, name: str) -> int:
        """The lane of a name."""
        return FIRST_CHANNEL + self.number(name)

    def _slot(self, parts: Parts, runs: tuple[ItemRange, ...], like: Slot | None) -> Slot:
        return self.spilled(Slot(parts.kind, parts.tag, len(parts.parts), parts.snapshot, None, runs), like)

    def _beginning(self, old: Slot, parts: Sequence[bytes]) -> int:
        """How many elements the parent's list has, if the new one begins with all of them. Or 0."""
        held = self.head.cache.elements(old.ranges)
        return len(held) if held is not None and list(parts[: len(held)]) == held else 0

    def _place_whole(self, lane: int, data: bytes, *, early: bool) -> list[ItemId]:
        at = self._known(lane, data) if len(data) <= CHUNK else None
        return [at] if at else self._cut(lane, data, early=early) or self._store(lane, [data])

    def _place_each(self, lane: int, parts: Sequence[bytes], old: list[_ItemGroup], *, early: bool) -> list[ItemId]:
        ids: list[ItemId] = []
        fresh: list[bytes] = []
        position: dict[ItemId, int] | None = None
        i = j = 0
        while i < len(parts):
            piece = old[j] if j < len(old) and _matches(old[j], parts, i) else None
            if piece is None and (at := self._known(lane, parts[i])) is not None:
                piece = _ItemGroup((at,), parts[i], 1)
                if position is None:
                    position = {piece.ids[0]: k for k, piece in enumerate(old)}
                j = position.get(at, j - 1)
            elif piece is None and (cut := self._cut(lane, parts[i], early=early)):
                piece = _ItemGroup(tuple(cut), parts[i], 1)
                j -= 1
            if piece is None:
                fresh.append(parts[i])
                i += 1
                continue
            if fresh:
                ids += self._store(lane, fresh)
                fresh = []
            ids += piece.ids
            i += piece.elements
            j += 1
        return ids + self._store(lane, fresh) if fresh else ids

    def _cut(self, lane: int, element: bytes, *, early: bool) -> list[ItemId] | None:
        """An element in pieces: one that may come again with an id, or one whose long strings are here. Else None."""
        if not (cut_points.may_change(element) if early else len(element) >= cut_points.LONG):
            return None
        first, *rest = (
            piece[at : at + CHUNK] for piece in cut_points.cut(element) for at in range(0, len(piece), CHUNK)
        )
        known = [self._known(lane, piece, inner=True) for piece in rest]
        if not rest or not (early or any(known)):
            return None
        ids = [self._add(lane, Item(first))]
        return ids + [at or self._add(lane, Item(piece, 0)) for at, piece in zip(known, rest, strict=True)]

    def _pieces(self, slot: Slot) -> Iterator[_ItemGroup]:
        """The whole elements that a slot refers to, as far as their items are at hand."""
        ids: list[ItemId] = []
        held: list[Item] = []
        for at in (at for run in slot.ranges for at in run.ids()):
            item = self.new_items.get(at) or self.head.cache.get(at)
            if item is None:
                continue
            if item.elements and ids:
                yield _piece(ids, held)
                ids, held = [], []
            ids.append(at)
            held.append(item)
        if ids:
            yield _piece(ids, held)

    def _store(self, lane: int, elements: list[bytes]) -> list[ItemId]:
        return [self._add(lane, item) for item in _items(elements)]

    def _add(self, lane: int, item: Item) -> ItemId:
        self.nexts += [0] * (lane + 1 - len(self.nexts))
        at = ItemId(lane, self.nexts[lane])
        self.nexts[lane] += 1
        self.new_items[at] = item
        if item.elements <= 1:
            self._by_content[(lane, item.elements, item.data)] = at
        return at

    def _known(self, lane: int, data: bytes, *, inner: bool = False) -> ItemId | None:
        """An item that holds these bytes: one whole element, or the inner part of one."""
        return self._by_content.get((lane, 0 if inner else 1, data)) or self.head.cache.find(lane, data, inner=inner)

    def spilled(self, slot: Slot, like: Slot | None) -> Slot:
        """Move a long list of runs out of the row; the parent's run lists are shared while they are a prefix."""
        if like is not None and like.spill and slot.ranges[: like.covered] == like.ranges[: like.covered]:
            slot = slot._replace(spill=like.spill, covered=like.covered)
        if len(slot.ranges) - slot.covered <= _LONGEST:
            return slot
        covered = len(slot.ranges) - 1  # the last run is the one that grows
        at = self._add(RUN_LISTS, Item(itemlog.pack_ranges(slot.ranges[slot.covered : covered])))
        lists = itemlog.join_ranges([*(at for run in slot.spill for at in run.ids()), at])
        return slot._replace(spill=lists, covered=covered)


@lru_cache(maxsize=1024)
def _numbers(names: tuple[str, ...]) -> Mapping[str, int]:
    """The number of each name; threads of one graph mostly have the same names."""
    return {name: n for n, name in enumerate(names)}


def _piece(ids: list[ItemId], held: list[Item]) -> _ItemGroup:
    if len(ids) == 1:
        return _ItemGroup((ids[0],), held[0].data, held[0].elements)
    return _ItemGroup(tuple(ids), b"".join(item.data for item in held), held[0].elements)


def _matches(piece: _ItemGroup, parts: Sequence[bytes], i: int) -> bool:
    if piece.elements == 1:
        return piece.data == parts[i]
    end = i + piece.elements
    return piece.elements > 1 and end <= len(parts) and piece.data == b"".join(parts[i:end])


def _items(elements: list[bytes]) -> Iterator[Item]:
    """New elements as items: long ones in chunks, small neighbours together, the others one by one."""
    small: list[bytes] = []
    size = 0
    for element in elements:
        if small and (len(element) >= _SMALL or size + len(element) > _GROUP):
            yield Item(b"".join(small), len(small))
            small, size = [], 0
        if len(element) < _SMALL:
            small.append(element)
            size += len(element)
        else:
            yield Item(element[:CHUNK])
            yield from (Item(element[at : at + CHUNK], 0) for at in range(CHUNK, len(element), CHUNK))
    if small:
        yield Item(b"".join(small), len(small))
