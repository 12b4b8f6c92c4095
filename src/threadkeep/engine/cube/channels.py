"""The channels that store a cube thread in its checkpoints.

    messages    the messages, in the order in which they were appended
    events      the events of the run log
    extra       a dict that callers merge entries into
    pending     the request that waits for a person, and its run; once cleared, the nonce of the call that cleared it
    answers     answers by run and question

All are JSON values, encoded as msgpack.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import ormsgpack

from threadkeep.collector import gc_paused
from threadkeep.engine.cube.events import RunEvent, RunLog, RunLogDraft, unpack_events
from threadkeep.engine.log.codec import MSGPACK, Parts, is_joined, joined_parts, unpack
from threadkeep.engine.log.itemlog import ItemRange, new_tuple
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, header
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot, pack_checkpoint
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head
from threadkeep.errors import Corrupt, reason

T = TypeVar("T")
MESSAGES, EVENTS, EXTRA, PENDING, ANSWERS = "messages", "events", "extra", "pending", "answers"
FOLDED_EVENTS = "events, folded"
"""The lane of events that were stored again as one item."""
PARENT_THREAD = "parent_thread_id"
"""The metadata key of the thread that a fork was made from."""
_MESSAGES_PER_SLICE = 128
"""The number of messages decoded at a time; other Python threads can run in between."""
_ID_DIGITS = 10
_MIN_SPLIT_BYTES = 1024


def pack_json(value: Any) -> bytes:
    """Return a JSON value as msgpack, or as JSON text if msgpack cannot hold it (large integers, lone surrogates)."""
    try:
        return ormsgpack.packb(value)
    except ormsgpack.MsgpackEncodeError:
        return ormsgpack.packb(json.dumps(value))


def decode_json_text(value: Any) -> Any:
    """Return a decoded value; if `pack_json` stored it as JSON text, parse that."""
    return json.loads(value) if isinstance(value, str) else value


def encode_parts(value: Mapping[str, Any] | Sequence[Any]) -> Parts:
    """Encode a dict or list for the log. Large dicts are split by entry, so unchanged entries are not stored again."""
    try:
        if isinstance(value, Mapping) and len(value) > 1:
            value = dict(value)  # the caller may change it meanwhile
            data = ormsgpack.packb(value)
            if is_joined(len(value), len(data) / len(value)):
                return joined_parts(data)
            if len(data) >= _MIN_SPLIT_BYTES:
                return Parts(MAP, MSGPACK, [ormsgpack.packb({key: entry})[1:] for key, entry in value.items()])
    except ormsgpack.MsgpackEncodeError:
        pass
    return Parts(WHOLE, MSGPACK, [pack_json(value)])


def read_channel(head: Head, record: CheckpointRecord | None, name: str) -> Any:
    """Return the value of a channel, or None if it has none. Its items must be cached in the head."""
    slot = record.slots.get(name) if record is not None else None
    if slot is None:
        return None
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.ranges)
    if slot.kind != WHOLE:
        data = header(slot.kind, slot.elements) + data
    return decode_json_text(unpack(data, f"{name} of {head.where}"))


def is_cleared(pending: Sequence[Any]) -> bool:
    """Whether the pending request was cleared."""
    return pending[0] is None


def asks(slot: Slot | None) -> bool:
    """Whether a checkpoint with this pending request has one that waits. No items are needed: what clears is small."""
    return slot is not None and (slot.inline is None or not is_cleared(decode_json_text(unpack(slot.inline, PENDING))))


def status(pending: Sequence[Any] | None, run_log: RunLog | RunLogDraft) -> str:
    """Return a cube thread's status.

    It is `interrupted` if a request is pending, else `pending` if a run is open (in progress, or broken off), else
    `idle`.
    """
    if pending is not None and not is_cleared(pending):
        return "interrupted"
    return "pending" if run_log.has_open else "idle"


def status_at(head: Head, record: CheckpointRecord) -> str:
    """Return a cube thread's status at a checkpoint. The items of its request and events must be cached in the head."""
    pending = read_channel(head, record, PENDING)
    try:
        return status(pending, RunLog(read_events(head, record)))
    except (KeyError, TypeError, IndexError) as error:
        raise Corrupt(f"{PENDING} of {head.where} cannot be decoded: {reason(error)}") from error


def read_events(head: Head, record: CheckpointRecord) -> list[RunEvent]:
    """Return the events of a cube thread, from the first one on. Their items must be cached in the head."""
    slot = record.slots.get(EVENTS)
    if slot is None:
        return []
    what = f"events of {head.where}"
    try:
        with gc_paused():
            return list(unpack_events(unpack(header(LIST, slot.elements) + head.bytes_of(slot.ranges), what)))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} cannot be decoded: {reason(error)}") from error


def count_elements(slots: Mapping[str, Slot], name: str) -> int:
    """Return the number of elements of a list channel."""
    return slots[name].elements if name in slots else 0


def read_messages(head: Head, ranges: Iterable[ItemRange], build: Callable[[list[Any]], list[T]]) -> list[T]:
    """Return the messages in these items. `build` turns a slice of plain messages into the caller's objects."""
    built: list[T] = []
    what = f"messages of {head.where}"
    try:
        with gc_paused():
            for number, data in head.cache.slices(ranges, _MESSAGES_PER_SLICE):
                found = unpack(header(LIST, number) + data, what)
                built += build([decode_json_text(each) if type(each) is str else each for each in found])
    except KeyError as error:
        raise Corrupt(f"{what}: item {error} is referenced but missing") from error
    return built


def next_checkpoint_id(row: CheckpointRow | None) -> str:
    """Return the id of the checkpoint after this one, or of the first one."""
    return f"{int(row.id) + 1 if row else 1:0{_ID_DIGITS}}"


def new_checkpoint_row(
    id: str, parent: str | None, run: str | None, *, source: str, labels: int, time: int
) -> CheckpointRow:
    """Return the row of a new cube checkpoint, still without its state; `pack_cube_checkpoint` packs that into it."""
    return CheckpointRow("", id, parent, run, None, source, labels, time, hidden=False, refs=(), body=b"")


def pack_cube_checkpoint(
    row: CheckpointRow, slots: Mapping[str, Slot], draft: Draft, own: Mapping[str, Any] | None = None
) -> CheckpointRecord:
    """Return the packed record of a cube checkpoint. This runs for every change; see `CubeStaging`."""
    messages = slots.get(MESSAGES)
    row = new_tuple(CheckpointRow, (*row[:4], messages.elements if messages is not None else 0, *row[5:]))
    record = new_tuple(CheckpointRecord, (row, {}, {}, {}, dict(slots), dict(own or {}), None))
    row = pack_checkpoint(row, record, draft.name_table(), draft.share)
    return new_tuple(CheckpointRecord, (row, *record[1:]))
