"""A cube thread's values as plain data, for people: messages, extra, pending request, answers, runs.

CubeLoop does not have to be installed.
"""

from __future__ import annotations

import json
from typing import Any

from threadkeep.engine.cube import channels
from threadkeep.engine.cube.events import RunLog
from threadkeep.engine.log.plain import jsonable
from threadkeep.engine.log.records import CheckpointRecord
from threadkeep.engine.threads.heads import Head
from threadkeep.engine.threads.thread_rows import slot_value
from threadkeep.errors import Corrupt, reason

RUNS = "runs"
CHANNELS = {
    channels.MESSAGES: channels.MESSAGES,
    channels.EXTRA: channels.EXTRA,
    channels.PENDING: channels.PENDING,
    channels.ANSWERS: channels.ANSWERS,
    RUNS: channels.EVENTS,
}
"""The values that people see, each with the channel that stores it."""
_EMPTY: dict[str, Any] = {
    channels.MESSAGES: (),
    channels.EXTRA: {},
    channels.PENDING: None,
    channels.ANSWERS: {},
    RUNS: (),
}


def value(head: Head, record: CheckpointRecord, name: str) -> Any:
    """Return one of `CHANNELS`, whose items must be cached in the head; None for any other name."""
    slot = record.slots.get(CHANNELS.get(name, ""))
    if slot is None:
        empty = _EMPTY.get(name)
        return list(empty) if isinstance(empty, tuple) else empty
    if name == RUNS:
        return _runs(head, record)
    found = slot_value(head, slot, f"{name} of {head.where}")
    try:
        if name == channels.MESSAGES:
            return [parse_json_text(message) for message in found]
        return _pending(parse_json_text(found)) if name == channels.PENDING else parse_json_text(found)
    except (TypeError, ValueError, IndexError) as error:
        raise Corrupt(f"{name} of {head.where} cannot be decoded: {reason(error)}") from error


def parse_json_text(value: Any) -> Any:
    """Decode a value that was stored as JSON text because msgpack cannot represent it."""
    return jsonable(json.loads(value)) if isinstance(value, str) else value


def _pending(pending: Any) -> dict[str, Any] | None:
    if pending is None or channels.is_cleared(pending):
        return None
    return {"request": pending[0], "run": pending[1]}


def _runs(head: Head, record: CheckpointRecord) -> list[dict[str, Any]]:
    """Return the runs in the order in which they started: whether each is completed, and its number of messages."""
    events = channels.read_events(head, record)
    counts: dict[str | None, int] = {}
    for event in events:
        counts[event.run] = counts.get(event.run, 0) + len(event.ids)
    return [
        {"run": name, "completed": run.completed is not None, "messages": counts.get(name, 0)}
        for name, run in RunLog(events).runs.items()
    ]
