"""How a talk is held, in the channels of its checkpoints.

    messages    as they were given, in order
    events      the ledger
    extra       the dict that is merged into
    pending     the question that a person has to answer, and its run; or who settled it
    answers     by run and question

All are JSON values, as msgpack.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import ormsgpack

from threadkeep.engine.cube.events import RunEvent, RunLog, unpack_events
from threadkeep.engine.log.codec import MSGPACK, Parts, unpack
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, header
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot, pack_checkpoint
from threadkeep.engine.threads.checkpoints import gc_paused
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head
from threadkeep.errors import Corrupt

T = TypeVar("T")
MESSAGES, EVENTS, EXTRA, PENDING, ANSWERS = "messages", "events", "extra", "pending", "answers"
FOLDED_EVENTS = "events, folded"
"""The lane of events that were stored again, together."""
PARENT_THREAD = "parent_thread_id"
"""The metadata of a fork: what it was forked from."""
_MESSAGES_PER_SLICE = 128
"""So many messages are decoded at a time; in between, other threads get their turn."""
_ID_DIGITS = 10
_MIN_SPLIT_BYTES = 1024


def packed(value: Any) -> bytes:
    """A JSON value as msgpack; as its JSON text where msgpack has no room for it (large integers, lone surrogates)."""
    try:
        return ormsgpack.packb(value)
    except ormsgpack.MsgpackEncodeError:
        return ormsgpack.packb(json.dumps(value))


def plain(value: Any) -> Any:
    """A decoded value that may be a JSON text."""
    return json.loads(value) if isinstance(value, str) else value


def encode_parts(value: Mapping[str, Any] | Sequence[Any]) -> Parts:
    """A dict or list to be placed; large dicts by entries, so that what does not change is not stored again."""
    try:
        if isinstance(value, Mapping) and len(value) > 1:
            entries = [ormsgpack.packb({key: entry})[1:] for key, entry in value.items()]
            if sum(map(len, entries)) >= _MIN_SPLIT_BYTES:
                return Parts(MAP, MSGPACK, entries)
    except ormsgpack.MsgpackEncodeError:
        pass
    return Parts(WHOLE, MSGPACK, [packed(value)])


def value(head: Head, record: CheckpointRecord | None, name: str) -> Any:
    """What a channel holds, or None."""
    slot = record.slots.get(name) if record is not None else None
    if slot is None:
        return None
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.ranges)
    return plain(
        unpack(data if slot.kind == WHOLE else header(slot.kind, slot.elements) + data, f"{name} of {head.where}")
    )


def is_cleared(pending: Sequence[Any]) -> bool:
    """Whether there is no question any more."""
    return pending[0] is None


def status(pending: Sequence[Any] | None, ledger: RunLog) -> str:
    """The status of a cube thread: a question waits; or a run is under way, or broke off; or neither."""
    if pending is not None and not is_cleared(pending):
        return "interrupted"
    return "pending" if ledger.open else "idle"


def status_at(head: Head, record: CheckpointRecord) -> str:
    """The status of a cube thread at a checkpoint. The items of the question and the events must be at hand."""
    pending = value(head, record, PENDING)
    try:
        return status(pending, RunLog(events(head, record)))
    except (KeyError, TypeError, IndexError) as error:
        raise Corrupt(f"{PENDING} of {head.where} does not make sense: {error!r}") from error


def events(head: Head, record: CheckpointRecord) -> list[RunEvent]:
    """The events of a talk, from the first on."""
    slot = record.slots.get(EVENTS)
    if slot is None:
        return []
    what = f"events of {head.where}"
    try:
        with gc_paused():
            return list(unpack_events(unpack(header(LIST, slot.elements) + head.bytes_of(slot.ranges), what)))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} do not make sense: {error!r}") from error


def count(slots: Mapping[str, Slot], name: str) -> int:
    """How many elements a list channel has."""
    return slots[name].elements if name in slots else 0


def read_messages(head: Head, runs: Iterable[ItemRange], build: Callable[[list[Any]], list[T]]) -> list[T]:
    """The messages that these items hold; `build` makes them of their plain forms, some at a time."""
    built: list[T] = []
    what = f"messages of {head.where}"
    try:
        with gc_paused():
            for number, data in head.cache.slices(runs, _MESSAGES_PER_SLICE):
                built += build(list(map(plain, unpack(header(LIST, number) + data, what))))
    except KeyError as error:
        raise Corrupt(f"{what}: item {error} is referred to but not there") from error
    return built


def after(row: CheckpointRow | None) -> str:
    """The id of the next checkpoint."""
    return f"{int(row.id) + 1 if row else 1:0{_ID_DIGITS}}"


def checkpoint(
    row: CheckpointRow, slots: Mapping[str, Slot], draft: Draft, own: Mapping[str, Any] | None = None
) -> CheckpointRecord:
    """A checkpoint of a talk, packed."""
    row = row._replace(step=count(slots, MESSAGES))
    record = CheckpointRecord(row, {}, {}, {}, dict(slots), dict(own or {}), None)
    return record._replace(row=pack_checkpoint(row, record, draft.naming(), draft.share))
