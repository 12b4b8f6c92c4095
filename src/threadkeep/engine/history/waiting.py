"""What a thread waits for a person to answer: interrupts of tasks, requests of a CubeLoop agent, or just to go on.

A question of a LangGraph thread is an interrupt on its newest root checkpoint. It is answered if its task has written
a result since, or if an answer was stored after it: then the process that was to use the answer has ended. A question
of a subgraph is also stored on the checkpoints of the subgraph; the deepest one tells where it was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED

from threadkeep.engine.cube import channels
from threadkeep.engine.cube.requests import open_request
from threadkeep.engine.history.answer_options import AnswerOption, options_of
from threadkeep.engine.history.checkpoint_info import ThreadReader, read_thread, utc_time
from threadkeep.engine.history.show import next_nodes, status_slots
from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log.records import CheckpointRecord, TaskWrites, WriteEntry
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.lease_plans import is_leased
from threadkeep.engine.threads.thread_rows import CheckpointKey
from threadkeep.errors import Corrupt
from threadkeep.short_repr import short_repr

INTERRUPTED, REQUEST, PAUSED = "interrupt", "request", "paused"
_NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task of writes that a caller made: an answer for whichever task has a question."""
_CONTROL = frozenset((ERROR, INTERRUPT, RESUME, SCHEDULED, "__error_source_node__"))
"""Writes that are no result of a task."""
_INPUT = "input"


@dataclass(frozen=True, slots=True)
class WaitingThread:
    """A thread that waits for a person; there is one for each open question.

    `reason` is `interrupt` for a question of a LangGraph node, `request` for one of a CubeLoop agent, `paused` for a
    thread with nodes to run and no question. `id` is that of the interrupt or of the question, `question` what was
    asked, as plain data, and `options` the answers that it offers. `node` asked it; `next` are the nodes that run when
    the thread goes on. `ns` and `checkpoint` say where it was asked, in a subgraph for one of a subgraph. `since` is
    when it was asked last: LangGraph asks again while other questions of the same step are answered.
    """

    thread: str
    kind: Kind
    reason: str
    id: str | None
    question: Any
    options: tuple[AnswerOption, ...]
    node: str | None
    next: tuple[str, ...]
    ns: str
    checkpoint: str
    since: datetime
    run: str | None = None

    __repr__ = short_repr

    @property
    def config(self) -> dict[str, Any]:
        """The config with which LangGraph goes on: that of the thread."""
        return {"configurable": {"thread_id": self.thread}}


async def open_questions(heads: Heads, key: ThreadKey, *, paused: bool) -> list[WaitingThread]:
    """Return what a thread waits for. Two round trips; two more for a paused thread with a lease.

    With `paused`, also that it has nodes to run and no question, unless somebody holds a lease of it.
    """

    async def read(reader: ThreadReader) -> list[WaitingThread]:
        keys = reader.rows.visible_keys("")
        if not keys:
            return []
        if keys[-1] in reader.rows.damaged_keys():
            raise Corrupt(f"checkpoint {keys[-1][1]!r} of {reader.rows.head.where}, or a write on it, is damaged")
        record = reader.rows.records[keys[-1]]
        if reader.is_cube:
            return await _requests(reader, record)
        return await _interrupts(reader, record) or (await _pause(reader, record) if paused else [])

    return await read_thread(heads, key, read)


# --- LangGraph's interrupts


class _Interrupt(NamedTuple):
    """The write of an unanswered interrupt."""

    at: CheckpointKey
    task: TaskWrites
    entry: WriteEntry


async def _interrupts(reader: ThreadReader, record: CheckpointRecord) -> list[WaitingThread]:
    top = (record.row.ns, record.row.id)
    asked = list(_unanswered(reader, top))
    if not asked:
        return []
    inner = [each for key in _newest_of_subgraphs(reader) for each in _unanswered(reader, key)]
    slots = [each.entry.slot for each in (*asked, *inner)]
    await reader.fetch([*slots, *status_slots(reader, record), *reader.send_slots(reader.rows.records.values())])
    deepest: dict[str, _Interrupt] = {}
    for each in sorted(inner, key=lambda one: len(one.at[0])):
        deepest |= {id: each for id in map(_id, _raised(reader, each)) if id is not None}
    nodes = next_nodes(reader, record)
    return [
        _waiting(reader, found, deepest.get(_id(found) or "", each), nodes)
        for each in asked
        for found in _raised(reader, each)
    ]


def _unanswered(reader: ThreadReader, key: CheckpointKey) -> Iterator[_Interrupt]:
    """Yield the unanswered interrupts on a checkpoint."""
    tasks = reader.rows.tasks.get(key, [])
    answers = [
        entry.origin[2]
        for task in tasks
        if task.row.task == _NO_TASK
        for entry in task.entries.values()
        if entry.channel == RESUME
    ]
    for task in tasks:
        entries = {entry.channel: entry for entry in task.entries.values()}
        interrupt, resume = entries.get(INTERRUPT), entries.get(RESUME)
        if interrupt is None or entries.keys() - _CONTROL:
            continue
        given = [*answers, *([resume.origin[2]] if resume is not None else [])]
        if all(time <= interrupt.origin[2] for time in given):
            yield _Interrupt(key, task, interrupt)


def _newest_of_subgraphs(reader: ThreadReader) -> list[CheckpointKey]:
    newest = {key[0]: key for key in reader.rows.visible_keys() if key[0]}
    return list(newest.values())


def _raised(reader: ThreadReader, interrupt: _Interrupt) -> list[Any]:
    """The interrupts that a write holds: one, or several of a subgraph. Corrupt if it cannot be read."""
    value = reader.entry_value(interrupt.task, interrupt.entry)
    return value if isinstance(value, list) else [value]


def _id(interrupt: Any) -> str | None:
    id = interrupt.get("id") if isinstance(interrupt, Mapping) else None
    return id if isinstance(id, str) else None


def _waiting(reader: ThreadReader, found: Any, asked: _Interrupt, nodes: tuple[str, ...]) -> WaitingThread:
    fields = found if isinstance(found, Mapping) else {"value": found}
    path, run, time = asked.entry.origin
    record = reader.rows.records.get(asked.at)
    return WaitingThread(
        reader.key.id,
        reader.key.kind,
        INTERRUPTED,
        _id(found),
        fields.get("value"),
        options_of(fields.get("value"), fields.get("response_schema")),
        reader.node(record, path) if record is not None else None,
        nodes,
        *asked.at,
        utc_time(time),
        run,
    )


# --- threads that were stopped before or after a node


async def _pause(reader: ThreadReader, record: CheckpointRecord) -> list[WaitingThread]:
    """Say that a thread is paused if it has nodes to run, none of which has begun."""
    begun = any(task.row.task != _NO_TASK for task in reader.tasks(record))
    if begun or record.row.source == _INPUT:
        return []
    await reader.fetch(status_slots(reader, record))
    nodes, row = next_nodes(reader, record), reader.rows.head.row
    if not nodes or (row is not None and row.lease is not None and await is_leased(reader.key)):
        return []
    time = utc_time(record.row.time)
    return [
        WaitingThread(
            reader.key.id,
            reader.key.kind,
            PAUSED,
            None,
            None,
            (),
            None,
            nodes,
            record.row.ns,
            record.row.id,
            time,
            record.row.run,
        )
    ]


# --- CubeLoop's requests


async def _requests(reader: ThreadReader, record: CheckpointRecord) -> list[WaitingThread]:
    names = [name for name in (channels.PENDING, channels.ANSWERS) if name in record.slots]
    await reader.fetch(record.slots[name] for name in names)
    pending = reader.value(record, channels.PENDING)
    request = open_request(pending, reader.value(record, channels.ANSWERS)) if pending else None
    if request is None:
        return []
    return [
        WaitingThread(
            reader.key.id,
            reader.key.kind,
            REQUEST,
            request.id,
            request.question,
            options_of(request.question),
            None,
            (),
            "",
            record.row.id,
            _asked_at(request.created_at, record.row.time),
            request.run,
        )
    ]


def _asked_at(seconds: Any, stored: int) -> datetime:
    """The time that a request says it was made, or else when it was stored."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return utc_time(stored)
