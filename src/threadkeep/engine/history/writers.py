"""In which thread a write was made that came with a copy or a fork, so that trace can name it.

Copies have the writes of their source: those of LangGraph threads by checkpoint, task and idx, the messages of CubeLoop
threads by the events of their run log. The origins that a thread notes are followed as long as they exist.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeAlias

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.cube.channels import EVENTS, read_events
from threadkeep.engine.cube.events import RunEvent
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.records import CheckpointRecord, WriteEntry
from threadkeep.engine.threads.damaged_rows import load_thread_rows
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.origins import MAX_THREADS, Origin, read_origins
from threadkeep.engine.threads.thread_rows import ThreadRows, find_checkpoint, lineage, load_slots
from threadkeep.errors import Corrupt, Missing

Mark: TypeAlias = tuple[Hashable, ...]
"""What a write has in common with its copies: its task, idx, channel, size and time, or its run, messages and time."""
_LASTING = 3
"""So many parts of a mark stay the same in a copy onto an existing thread. Sizes may differ by some bytes there."""


class Writer(NamedTuple):
    """The thread in which a write was made, and one that it may have been copied from, but that cannot be read."""

    thread: str
    source_missing: str | None = None


class Writes(NamedTuple):
    """Writes of a thread: in which checkpoint each is, or first was, and where the thread was copied from."""

    key: ThreadKey
    ns: str
    places: Mapping[Mark, str]
    origins: list[Origin]


def mark_of(task: str, idx: int, entry: WriteEntry) -> Mark:
    """Return the mark of a write of a LangGraph thread."""
    return (task, idx, entry.channel, entry.size, entry.origin[2])


def mark_of_event(event: RunEvent) -> Mark:
    """Return the mark of messages that were appended together to a CubeLoop thread."""
    return (event.run, event.ids, event.time)


def writes_on(rows: ThreadRows, ns: str, id: str) -> Writes:
    """Return the writes on a checkpoint of a LangGraph thread."""
    entries = [(task.row.task, each) for task in rows.tasks.get((ns, id), ()) for each in task.entries.items()]
    marks = (mark_of(task, *each) for task, each in entries)
    return Writes(rows.key, ns, dict.fromkeys(marks, id), read_origins(rows.head.names))


def messages_of(rows: ThreadRows, record: CheckpointRecord) -> Writes:
    """Return the messages of a CubeLoop thread's checkpoint, whose events are loaded."""
    ancestors, places = list(lineage(rows, record))[::-1], dict[Mark, str]()
    counts = [(each.slots[EVENTS].elements if EVENTS in each.slots else 0, each.row.id) for each in ancestors]
    for n, event in enumerate(read_events(rows.head, record)):
        places[mark_of_event(event)] = next((id for count, id in counts if count > n), record.row.id)
    return Writes(rows.key, "", places, read_origins(rows.head.names))


async def find_writers(heads: Heads, writes: Writes) -> dict[Mark, Writer]:
    """Return by whom each write was made. One round trip for each origin, two for that of a CubeLoop thread."""
    return await _find(heads, writes, {writes.key})


async def _find(heads: Heads, writes: Writes, visited: set[ThreadKey]) -> dict[Mark, Writer]:
    found = dict.fromkeys(writes.places, Writer(writes.key.id))
    left = dict(writes.places)
    for origin in writes.origins:
        wanted = {mark: id for mark, id in left.items() if origin.covers(id)}
        source = writes.key._replace(id=origin.thread)
        if not wanted:
            continue
        there = await _load(heads, source, origin, writes.ns, next(iter(wanted.values())), visited)
        if there is None:
            found |= {mark: Writer(writes.key.id, found[mark].source_missing or source.id) for mark in wanted}
            continue
        parts = None if origin.until is not None else _LASTING
        marks = {mark[:parts]: mark for mark in there.places}
        same = {mark: marks[mark[:parts]] for mark in wanted if mark[:parts] in marks}
        places = {mark: there.places[mark] for mark in same.values()}
        makers = await _find(heads, there._replace(places=places), visited)
        found |= {mark: makers[original] for mark, original in same.items()}
        left = {mark: id for mark, id in left.items() if mark not in same}
    return found


async def _load(
    heads: Heads, source: ThreadKey, origin: Origin, ns: str, id: str, visited: set[ThreadKey]
) -> Writes | None:
    """Return the writes of a thread that was copied; None if it cannot be read or was read before."""
    if source in visited or len(visited) >= MAX_THREADS:
        return None
    visited.add(source)

    async def read() -> Writes | None:
        rows = await load_thread_rows(heads, source)
        if source.kind == CUBE:
            copied = rows.records.get(("", origin.start or origin.until or ""))
            record = find_checkpoint(rows, None) if copied is None else copied
            slots = [record.slots[EVENTS]] if EVENTS in record.slots else []
            return messages_of(await load_slots(heads, rows, slots), record)
        is_there = (ns, id) in rows.records or (ns, id) in rows.tasks
        return writes_on(rows, ns, id) if is_there or origin.until is None else None

    try:
        return await read_consistently(source, read)
    except (Missing, Corrupt):
        return None
