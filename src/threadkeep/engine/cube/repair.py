"""Repairing a CubeLoop thread: all messages that can be read, in a new checkpoint. What was lost is said."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from threadkeep.engine.commit import next_batch, with_top
from threadkeep.engine.cube.channels import EVENTS, FOLDED_EVENTS, MESSAGES, checkpoint, events, status_at
from threadkeep.engine.cube.events import APPENDED, RunEvent, pack_events
from threadkeep.engine.health.rebuild import INTACT, LOST, Rebuilder
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import MSGPACK, pack
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot
from threadkeep.engine.requests import Batch, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.branches import BranchStamp
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.thread_rows import CheckpointPlace
from threadkeep.errors import Corrupt


async def repair_cube(
    rebuilder: Rebuilder, target: CheckpointPlace, id: str, moment: BranchStamp
) -> tuple[CheckpointRow, dict[str, str], Batch]:
    """A new checkpoint, how its channels were obtained, and the batch.

    It has what can be read of the damaged checkpoint, or the state of the newest intact one before it.
    """
    scan = rebuilder.scan
    record = scan.records.get(target)
    if record is not None and (EVENTS not in record.slots or scan.is_intact(record.slots[EVENTS])):
        channels = {name: INTACT if scan.is_intact(slot) else LOST for name, slot in record.slots.items()}
    else:
        record = _newest_intact(rebuilder, target)
        channels = dict.fromkeys(record.slots, f"taken from {record.row.id}")
        rebuilder.assume(
            f"{target[1]} cannot be read: the talk goes on as it was at {record.row.id}; what came after it is lost"
        )
    await scan.fetch(record.slots.values())
    draft = Draft(rebuilder.head)
    slots = _readable_slots(rebuilder, draft, record, channels)
    row, batch = _repair_batch(rebuilder, draft, record, slots, target, id, moment)
    return row, channels, batch


def _newest_intact(rebuilder: Rebuilder, target: CheckpointPlace) -> CheckpointRecord:
    records = rebuilder.scan.records
    below = [place for place in records if place < target and place not in rebuilder.damaged]
    if not below:
        raise Corrupt(f"{rebuilder.scan.where} cannot be repaired: no checkpoint of it can be read")
    return records[max(below)]


def _readable_slots(rebuilder: Rebuilder, draft: Draft, record: CheckpointRecord, channels: dict[str, str]) -> dict[str, Slot]:
    """What of a checkpoint can be read: other channels whole or not at all, messages one by one."""
    slots = {name: slot for name, slot in record.slots.items() if rebuilder.scan.is_intact(slot)}
    for name in record.slots.keys() - slots.keys() - {MESSAGES}:
        rebuilder.assume(f"{name} cannot be read and is left out")
    messages = record.slots.get(MESSAGES)
    if messages is None or MESSAGES in slots:
        return slots
    kept = list(_readable_events(rebuilder, events(draft.head, record), messages))
    ids = [at for _, held in kept for at in held]
    count = sum(len(event.ids) for event, _ in kept)
    slots[MESSAGES] = draft.spilled(Slot(LIST, MSGPACK, count, False, None, itemlog.join_ranges(ids)), None)
    items = draft.append(FOLDED_EVENTS, pack_events(event for event, _ in kept))
    slots[EVENTS] = draft.spilled(Slot(LIST, MSGPACK, len(kept), False, None, itemlog.join_ranges(items)), None)
    channels[MESSAGES] = f"what can be read of it: {count} of {messages.elements} messages"
    channels[EVENTS] = "rewritten without the messages that are lost"
    rebuilder.assume(f"{messages.elements - count} of {messages.elements} messages cannot be read and are left out")
    return slots


def _readable_events(rebuilder: Rebuilder, told: list[RunEvent], messages: Slot) -> Iterator[tuple[RunEvent, list[ItemId]]]:
    """Events with the items that are left of them; of messages that came together, those in damaged items go."""
    scan = rebuilder.scan
    ids = (at for run in messages.ranges for at in run.ids())
    for event in told:
        held = list(islice(ids, event.items))
        if event.kind != APPENDED or not any(at in scan.bad for at in held):
            yield event, held
        elif len(held) == len(event.ids):  # else it is not known which message an item belongs to
            pairs = zip(event.ids, held, strict=True)
            left = [(id, at) for id, at in pairs if at not in scan.bad and scan.uneven.get(at, 1) == 1]
            if left:
                yield event._replace(ids=tuple(id for id, _ in left), items=len(left)), [at for _, at in left]


def _repair_batch(
    rebuilder: Rebuilder,
    draft: Draft,
    record: CheckpointRecord,
    slots: dict[str, Slot],
    target: CheckpointPlace,
    id: str,
    moment: BranchStamp,
) -> tuple[CheckpointRow, Batch]:
    scan, row = rebuilder.scan, rebuilder.scan.row
    assert row is not None
    labels = {**(scan.labels(record.row.labels) or {}), "repaired": target[1]}
    label = draft.share(pack(labels))
    parent = record.row.id if record.row.id != target[1] else record.row.parent
    made = CheckpointRow("", id, parent, record.row.run, None, "fork", label, moment.time, False, (), b"")
    new = checkpoint(made, slots, draft)
    for at, item in draft.new_items.items():
        draft.head.cache.add(at, item)
    thread = with_top(row, new.row, status_at(draft.head, new))
    thread = thread._replace(updated=moment.time, checkpoints=row.checkpoints + 1)
    tagged = (NewLabels(label, metadata.tags(labels)),) if ItemId(SHARED, label) in draft.new_items else ()
    runs = (new.row.run,) if new.row.run is not None else ()
    batch = next_batch(draft, thread, nonce=moment.nonce, grown=new.row.size)
    return new.row, batch._replace(new_checkpoints=(new.row,), labels=tagged, runs=runs)
