"""Count the classes that the values of a thread name, and find an example of each.

Stored bytes are walked; nothing is built or imported. Rows and items that cannot be read are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.health.thread_scan import ThreadScan, scan_thread
from threadkeep.engine.health.verify_items import in_slices, keep_data, read_items, split_elements
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import MSGPACK
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, Item, ItemId, ItemRange, union
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.records import Slot
from threadkeep.engine.log.type_names import StoredClass, classes_in

_TRIES = 8
_REST = ""
"""The channel that stands for what a checkpoint has besides its channels."""


class StoredAt(NamedTuple):
    """Where a value is: its checkpoint, its channel, and its task if it is a write."""

    ns: str
    checkpoint: str
    channel: str
    task: str | None


@dataclass(slots=True)
class ThreadTypes:
    """The classes of one thread: how many objects of each are stored, in which channels, and where one is.

    An object that checkpoints share counts once. `is_damaged` is whether something could not be read.
    """

    counts: Counter[StoredClass] = field(default_factory=Counter)
    channels: dict[StoredClass, set[str]] = field(default_factory=dict)
    examples: dict[StoredClass, StoredAt] = field(default_factory=dict)
    is_damaged: bool = False

    def add(self, found: Counter[StoredClass], channel: str) -> None:
        """Add the objects in a value of this channel."""
        self.counts += found
        for each in found:
            self.channels.setdefault(each, set()).add(channel)


async def types_of_thread(key: ThreadKey) -> ThreadTypes | None:
    """Walk a thread; None if nothing of it is stored. One round trip, and one for each slice of its items.

    If it is pruned meanwhile, it is walked again.
    """
    return await read_consistently(key, partial(_walk, key), tries=_TRIES)


async def _walk(key: ThreadKey) -> ThreadTypes | None:
    inspected = await InspectThread(key)
    if not inspected.exists:
        return None
    scan = scan_thread(key, inspected)
    walk = _Walk(scan)
    for at, slot in _values(scan):
        walk.add_slot(at, slot)
    if scan.row is not None:
        await walk.read_items()
    walk.find_examples()
    walk.found.is_damaged = bool(scan.problems or scan.bad_items)
    return walk.found


def _values(scan: ThreadScan) -> Iterator[tuple[StoredAt, Slot]]:
    """Yield every value in a readable row; the newest checkpoints, which people know best, first."""
    places = [(StoredAt(ns, id, name, task), slot) for (ns, id), task, name, slot in scan.slots()]
    for (ns, id), record in scan.records.items():
        if record.rest is not None:
            tag, data = record.rest
            places.append((StoredAt(ns, id, _REST, None), Slot(WHOLE, tag, 1, snapshot=False, inline=data)))
    places.sort(key=lambda place: (place[0].checkpoint, place[0].task is None), reverse=True)
    yield from places


class _Walk:
    """One thread while it is walked. `_first` has the first item of each class that was found in an item."""

    def __init__(self, scan: ThreadScan) -> None:
        self.found = ThreadTypes()
        self._scan = scan
        self._places: dict[tuple[ItemRange, ...], StoredAt] = {}
        self._slots: dict[tuple[ItemRange, ...], Slot] = {}
        self._forms: dict[int, set[tuple[int, str]]] = {}
        self._undecided: set[ItemId] = set()
        self._first: dict[StoredClass, ItemId] = {}

    def add_slot(self, at: StoredAt, slot: Slot) -> None:
        """Add a value: count what is in it if it is in the row, else remember its items."""
        if slot.inline is None:
            if slot.ranges and slot.ranges not in self._slots:
                self._slots[slot.ranges], self._places[slot.ranges] = slot, at
                self._forms.setdefault(slot.ranges[0].lane, set()).add((slot.kind, slot.tag))
            return
        found = classes_in(WHOLE, slot.tag, 1, slot.inline) or Counter()
        for each in found:
            self.found.examples.setdefault(each, at)
        self.found.add(found, at.channel)

    async def read_items(self) -> None:
        """Count what is in the items of all values, each item once."""
        wanted = {id for each in union(each for ranges in self._slots for each in ranges) for id in each.ids()}
        sizes = ((ItemId(lane, n), size) for lane, n, size in self._scan.inspected.item_sizes)
        for ids in in_slices((id, size) for id, size in sizes if id in wanted):
            await read_items(self._scan, ids, self._count_item)
        for elements in in_slices(split_elements(self._scan, self._slots, self._undecided)):
            data: dict[ItemId, bytes] = {}
            await read_items(self._scan, [id for each in elements for id in each.ids], partial(keep_data, data))
            for each in elements:
                if all(id in data for id in each.ids):
                    count = self._scan.element_counts.get(each.ids[0], 1)
                    joined = b"".join(data[id] for id in each.ids)
                    self._add(each.ids[0], classes_in(each.kind, each.tag, count, joined) or Counter())

    def _count_item(self, id: ItemId, item: Item) -> None:
        """Count what is in an item, in the first form of its lane in which it can be decoded."""
        forms = self._forms.get(id.lane, ())
        if not item.elements or not forms:
            return
        for kind, tag in sorted(forms, key=lambda form: form[1] != MSGPACK):
            found = classes_in(kind, tag, item.elements, item.data)
            if found is not None:
                self._add(id, found)
                return
        self._undecided.add(id)

    def _add(self, id: ItemId, found: Counter[StoredClass]) -> None:
        for each in found:
            self._first.setdefault(each, id)
        self.found.add(found, self._scan.names.get(id.lane - FIRST_CHANNEL, "?"))

    def find_examples(self) -> None:
        """Find an example of each class that was found in items only."""
        for each, item in self._first.items():
            if each not in self.found.examples:
                self.found.examples[each] = next(at for ranges, at in self._places.items() if _has(ranges, item))


def _has(ranges: tuple[ItemRange, ...], item: ItemId) -> bool:
    return any(lane == item.lane and start <= item.n < start + length for lane, start, length in ranges)
