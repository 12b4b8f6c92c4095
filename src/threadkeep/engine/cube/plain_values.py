"""A talk as plain data, for people: its messages, extra, question, answers and runs. CubeLoop is not needed."""

from __future__ import annotations

import json
from typing import Any

from threadkeep.engine.cube import channels
from threadkeep.engine.cube.events import RunLog
from threadkeep.engine.log.plain import jsonable
from threadkeep.engine.log.records import CheckpointRecord
from threadkeep.engine.threads.heads import Head
from threadkeep.engine.threads.thread_rows import value_of
from threadkeep.errors import Corrupt

RUNS = "runs"
CHANNELS = {
    channels.MESSAGES: channels.MESSAGES, channels.EXTRA: channels.EXTRA, channels.PENDING: channels.PENDING, channels.ANSWERS: channels.ANSWERS,
    RUNS: channels.EVENTS,
}  # fmt: skip
"""What a talk consists of for people, and the channel that tells it."""
_EMPTY: dict[str, Any] = {
    channels.MESSAGES: (),
    channels.EXTRA: {},
    channels.PENDING: None,
    channels.ANSWERS: {},
    RUNS: (),
}


def value(head: Head, record: CheckpointRecord, name: str) -> Any:
    """One of `CHANNELS`; its items must be at hand. None for any other name."""
    slot = record.slots.get(CHANNELS.get(name, ""))
    if slot is None:
        nothing = _EMPTY.get(name)
        return list(nothing) if isinstance(nothing, tuple) else nothing
    if name == RUNS:
        return _runs(head, record)
    found = value_of(head, slot, f"{name} of {head.where}")
    try:
        if name == channels.MESSAGES:
            return [_parse_json_text(message) for message in found]
        return _pending(_parse_json_text(found)) if name == channels.PENDING else _parse_json_text(found)
    except (TypeError, ValueError, IndexError) as error:
        raise Corrupt(f"{name} of {head.where} do not make sense: {error!r}") from error


def _parse_json_text(value: Any) -> Any:
    """What stands as its JSON text is such that msgpack has no room for."""
    return jsonable(json.loads(value)) if isinstance(value, str) else value


def _pending(found: Any) -> dict[str, Any] | None:
    if found is None or channels.is_cleared(found):
        return None
    return {"request": found[0], "run": found[1]}


def _runs(head: Head, record: CheckpointRecord) -> list[dict[str, Any]]:
    """Each run, in the order in which they began: whether it is done, and how many messages it brought."""
    events = channels.events(head, record)
    ledger = RunLog(events)
    counts: dict[str | None, int] = {}
    for event in events:
        counts[event.run] = counts.get(event.run, 0) + len(event.ids)
    return [
        {"run": name, "completed": run.completed is not None, "messages": counts.get(name, 0)}
        for name, run in ledger.runs.items()
    ]
