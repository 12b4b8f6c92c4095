"""Repair a cube thread: a new checkpoint with every message that can be read, and a report of what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from threadkeep.engine.commit import next_batch, with_top
from threadkeep.engine.cube.channels import (
    EVENTS,
    FOLDED_EVENTS,
    MESSAGES,
    new_checkpoint_row,
    pack_cube_checkpoint,
    read_events,
    status_at,
)
from threadkeep.engine.cube.events import APPENDED, RunEvent, pack_events
from threadkeep.engine.health.rebuild import INTACT, LOST, Rebuilder
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import MSGPACK, pack
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot
from threadkeep.engine.requests import Batch, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.rollback import BranchStamp
from threadkeep.engine.threads.thread_rows import CheckpointKey
from threadkeep.errors import Corrupt


async def repair_cube(
    rebuilder: Rebuilder, target: CheckpointKey, id: str, stamp: BranchStamp
) -> tuple[CheckpointRow, dict[str, str], Batch]:
    """Return the new checkpoint's row, how each of its channels was obtained, and the batch that adds it.

    The checkpoint has what can be read of the damaged one, or else the state of the newest intact one before it.
    """
    scan = rebuilder.scan
    record = scan.records.get(target)
    if record is not None and (EVENTS not in record.slots or scan.is_intact(record.slots[EVENTS])):
        channels = {name: INTACT if scan.is_intact(slot) else LOST for name, slot in record.slots.items()}
    else:
        record = _newest_intact(rebuilder, target)
        channels = dict.fromkeys(record.slots, f"taken from {record.row.id}")
        rebuilder.assume(
            f"{target[1]} cannot be read: the thread continues from {record.row.id}; everything after that is lost"
        )
    await scan.fetch(record.slots.values())
    draft = Draft(rebuilder.head)
    slots = _readable_slots(rebuilder, draft, record, channels)
    row, batch = _repair_batch(rebuilder, draft, record, slots, target, id, stamp)
    return row, channels, batch


def _newest_intact(rebuilder: Rebuilder, target: CheckpointKey) -> CheckpointRecord:
    records = rebuilder.scan.records
    earlier = [key for key in records if key < target and key not in rebuilder.damaged]
    if not earlier:
        raise Corrupt(f"{rebuilder.scan.where} cannot be repaired: none of its checkpoints can be read")
    return records[max(earlier)]


def _readable_slots(
    rebuilder: Rebuilder, draft: Draft, record: CheckpointRecord, channels: dict[str, str]
) -> dict[str, Slot]:
    """Return the channels that can be read: messages one by one, the others only as a whole."""
    slots = {name: slot for name, slot in record.slots.items() if rebuilder.scan.is_intact(slot)}
    for name in record.slots.keys() - slots.keys() - {MESSAGES}:
        rebuilder.assume(f"{name} cannot be read and is left out")
    messages = record.slots.get(MESSAGES)
    if messages is None or MESSAGES in slots:
        return slots
    kept = list(_readable_events(rebuilder, read_events(draft.head, record), messages))
    ids = [item_id for _, items in kept for item_id in items]
    count = sum(len(event.ids) for event, _ in kept)
    slots[MESSAGES] = draft.spill_ranges(Slot(LIST, MSGPACK, count, False, None, itemlog.join_ranges(ids)), None)
    new_items = draft.append(FOLDED_EVENTS, pack_events(event for event, _ in kept))
    slots[EVENTS] = draft.spill_ranges(
        Slot(LIST, MSGPACK, len(kept), False, None, itemlog.join_ranges(new_items)), None
    )
    channels[MESSAGES] = f"what can be read of it: {count} of {messages.elements} messages"
    channels[EVENTS] = "rewritten without the lost messages"
    rebuilder.assume(f"{messages.elements - count} of {messages.elements} messages cannot be read and are left out")
    return slots


def _readable_events(
    rebuilder: Rebuilder, all_events: list[RunEvent], messages: Slot
) -> Iterator[tuple[RunEvent, list[ItemId]]]:
    """Yield events with their readable items. Of messages appended together, those in damaged items are dropped."""
    scan = rebuilder.scan
    item_ids = (item_id for each in messages.ranges for item_id in each.ids())
    for event in all_events:
        items = list(islice(item_ids, event.items))
        if event.kind != APPENDED or not any(item in scan.bad_items for item in items):
            yield event, items
        elif len(items) == len(event.ids):  # otherwise it is unknown which item holds which message
            pairs = zip(event.ids, items, strict=True)
            left = [
                (id, item) for id, item in pairs if item not in scan.bad_items and scan.element_counts.get(item, 1) == 1
            ]
            if left:
                yield event._replace(ids=tuple(id for id, _ in left), items=len(left)), [item for _, item in left]


def _repair_batch(
    rebuilder: Rebuilder,
    draft: Draft,
    record: CheckpointRecord,
    slots: dict[str, Slot],
    target: CheckpointKey,
    id: str,
    stamp: BranchStamp,
) -> tuple[CheckpointRow, Batch]:
    scan, row = rebuilder.scan, rebuilder.scan.row
    assert row is not None
    labels = {**(scan.labels(record.row.labels) or {}), "repaired": target[1]}
    label = draft.share(pack(labels))
    parent = record.row.id if record.row.id != target[1] else record.row.parent
    empty = new_checkpoint_row(id, parent, record.row.run, source="fork", labels=label, time=stamp.time)
    new = pack_cube_checkpoint(empty, slots, draft)
    for item_id, item in draft.new_items.items():
        draft.head.cache.add(item_id, item)
    thread = with_top(row, new.row, status_at(draft.head, new))
    thread = thread._replace(updated=stamp.time, checkpoints=row.checkpoints + 1)
    tagged = (NewLabels(label, metadata.tags(labels)),) if ItemId(SHARED, label) in draft.new_items else ()
    runs = (new.row.run,) if new.row.run is not None else ()
    batch = next_batch(draft, thread, nonce=stamp.nonce, grown=new.row.size)
    return new.row, batch._replace(new_checkpoints=(new.row,), labels=tagged, runs=runs)
