"""Check the items of a thread's state: that each can be read, matches its checksum, and decodes as its values do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from threadkeep.engine.health.requests import DATABASE
from threadkeep.engine.health.thread_scan import CHECKSUM, UNDECODABLE, ThreadScan
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, Item, ItemId, ItemRange, join_ranges, unseal_item
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.plain import plain_parts
from threadkeep.engine.log.records import Slot
from threadkeep.errors import Corrupt

T = TypeVar("T")
SLICE = 8 * 1024 * 1024
"""The number of bytes of items that are held at once."""
OnItem: TypeAlias = Callable[[ItemId, Item], None]


async def check_items(scan: ThreadScan) -> None:
    """Read all items of the state; add those that cannot be used to `scan.bad`.

    Conflict if the thread was pruned since it was inspected. One round trip per slice.
    """
    decoder = _ItemDecoder(scan)
    stored = scan.inspected.item_sizes
    for ids in in_slices((ItemId(lane, n), size) for lane, n, size in stored if lane >= FIRST_CHANNEL):
        await read_items(scan, ids, decoder.check_item)
    for elements in in_slices(split_elements(scan, decoder.slots, decoder.undecided)):
        data: dict[ItemId, bytes] = {}
        await read_items(scan, [id for element in elements for id in element.ids], partial(keep_data, data))
        for element in elements:
            decoder.check_element(element, data)


async def check_seals(scan: ThreadScan) -> None:
    """Read all items of the state as `check_items` does, but only compare their checksums."""
    stored = scan.inspected.item_sizes
    for ids in in_slices((ItemId(lane, n), size) for lane, n, size in stored if lane >= FIRST_CHANNEL):
        await read_items(scan, ids, lambda *_: None)


def keep_data(data: dict[ItemId, bytes], id: ItemId, item: Item) -> None:
    """Add what is in an item to `data`."""
    data[id] = item.data


def in_slices(sized: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Divide things with sizes into lists of about SLICE bytes."""
    some: list[T] = []
    total = 0
    for each, size in sized:
        if some and total + size > SLICE:
            yield some
            some, total = [], 0
        some.append(each)
        total += size
    if some:
        yield some


async def read_items(scan: ThreadScan, ids: list[ItemId], on_item: OnItem) -> None:
    """Read items and call `on_item` with each that is intact. If the storage cannot read them, try each half."""
    ids = sorted(set(ids))
    try:
        items = await scan.load_items(join_ranges(ids))
    except Corrupt as error:
        if len(ids) == 1:
            scan.bad_items[ids[0]] = (DATABASE, f"{_name(scan, ids[0])} cannot be read: {error}")
            return
        half = len(ids) // 2
        await read_items(scan, ids[:half], on_item)
        await read_items(scan, ids[half:], on_item)
        return
    for id in ids:
        if id not in items:
            scan.bad_items.setdefault(id, (DATABASE, f"{_name(scan, id)} is listed but not found"))
        elif id not in scan.bad_items:
            _check_seal(scan, id, items[id], on_item)


def _check_seal(scan: ThreadScan, id: ItemId, stored: bytes, on_item: OnItem) -> None:
    try:
        item = unseal_item(id, stored, scan.where, scan.family)
    except Corrupt as error:
        scan.bad_items[id] = (CHECKSUM, str(error))
        return
    if item.elements != 1:
        scan.element_counts[id] = item.elements
    on_item(id, item)


def _name(scan: ThreadScan, id: ItemId) -> str:
    return f"item {id.lane}:{id.n} of {scan.where}"


# --- elements that are split over several items


@dataclass(frozen=True, slots=True)
class SplitElement:
    """An element that is split over several items."""

    ids: tuple[ItemId, ...]
    kind: int
    tag: str


def split_elements(
    scan: ThreadScan, slots: Mapping[tuple[ItemRange, ...], Slot], undecided: set[ItemId]
) -> Iterator[tuple[SplitElement, int]]:
    """Yield the elements that begin with an item which does not decode alone, with their stored sizes.

    `slots` are all values by their ranges. `undecided` has these items, which are removed. The longest value comes
    first, because it has most of them; then the short ones, which are writes.
    """
    if not undecided:
        return
    sizes = {ItemId(lane, n): size for lane, n, size in scan.inspected.item_sizes}
    lanes = {id.lane for id in undecided}
    found = [slot for slot in slots.values() if slot.ranges[0].lane in lanes]
    found.sort(key=lambda slot: sum(each.length for each in slot.ranges))
    for slot in found[-1:] + found[:-1]:
        for ids in _split_elements_of(scan, slot, undecided) if undecided else ():
            yield SplitElement(ids, slot.kind, slot.tag), sum(sizes.get(id, 0) for id in ids)


def _split_elements_of(scan: ThreadScan, slot: Slot, undecided: set[ItemId]) -> Iterator[tuple[ItemId, ...]]:
    ids: tuple[ItemId, ...] = ()
    if slot.kind == WHOLE:  # one of its items may be an element of another channel
        ids = tuple(id for each in slot.ranges for id in each.ids())
        if not undecided.isdisjoint(ids):
            undecided.difference_update(ids)
            yield ids
        return
    for id in (id for each in slot.ranges for id in each.ids()):
        if ids and scan.element_counts.get(id, 1) == 0:  # it continues the element before
            ids = (*ids, id)
            continue
        if ids:
            yield ids
        ids = (id,) if id in undecided else ()
        undecided.discard(id)
    if ids:
        yield ids


# --- decoding


class _ItemDecoder:
    """Decodes the contents of items. Most items hold whole elements; split elements are put together at the end.

    `slots` are the values in items, by their ranges. `undecided` has the items that do not decode alone.
    """

    def __init__(self, scan: ThreadScan) -> None:
        self._scan = scan
        self._forms: dict[int, set[tuple[int, str]]] = {}
        self.slots: dict[tuple[ItemRange, ...], Slot] = {}
        self.undecided: set[ItemId] = set()
        for checkpoint, task, name, slot in scan.slots():
            if slot.inline is not None:
                if not decodes(WHOLE, slot.tag, 1, slot.inline):
                    message = f"channel {name!r} of checkpoint {checkpoint[1]!r} cannot be decoded"
                    scan.report(UNDECODABLE, message, checkpoint, task)
            elif slot.ranges:
                self._forms.setdefault(slot.ranges[0].lane, set()).add((slot.kind, slot.tag))
                self.slots[slot.ranges] = slot

    def check_item(self, id: ItemId, item: Item) -> None:
        """Decode an item in one of the forms that the values of its lane have."""
        forms = self._forms.get(id.lane, ())
        if item.elements and forms and not any(decodes(*form, item.elements, item.data) for form in forms):
            self.undecided.add(id)

    def check_element(self, element: SplitElement, data: dict[ItemId, bytes]) -> None:
        """Decode an element from the data of its items. If one of these is damaged, that is reported already."""
        if not all(id in data for id in element.ids):
            return
        first = element.ids[0]
        joined = b"".join(data[id] for id in element.ids)
        if not decodes(element.kind, element.tag, self._scan.element_counts.get(first, 1), joined):
            items = ", ".join(f"{id.lane}:{id.n}" for id in element.ids[:4])
            self._scan.bad_items[first] = (UNDECODABLE, f"items {items} of {self._scan.where} cannot be decoded")


def decodes(kind: int, tag: str, elements: int, data: bytes) -> bool:
    """Whether a value in joined parts can be decoded."""
    try:
        plain_parts(kind, tag, elements, data)
    except (Corrupt, ValueError, TypeError, IndexError, KeyError):
        return False
    return True
