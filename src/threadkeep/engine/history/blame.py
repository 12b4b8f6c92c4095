"""Blame: which checkpoint, task and write first set the value that stands at a path.

Parents are followed as long as the value stands there too. A list element is followed to where it stood before, a
message by its id, another by its value. Writes on a checkpoint make its child, so the write is looked for on the parent
of the checkpoint where the value appeared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from threadkeep.engine.cube.channels import after
from threadkeep.engine.history.checkpoint_info import (
    CheckpointInfo,
    ThreadReader,
    WriteInfo,
    fetch,
    in_order,
    read,
    sends_of,
)
from threadkeep.engine.history.paths import Path, Token, is_message, message_id, resolve, written
from threadkeep.engine.history.value_diff import aligned, same
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.records import CheckpointRecord, TaskWrites, WriteEntry
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import find, lineage
from threadkeep.errors import Missing

_INPUT, _BY_HAND = "input", ("update", "fork")
_Write = tuple[TaskWrites, int, WriteEntry]


@dataclass(frozen=True, slots=True)
class Blame:
    """Who set the value at `path` of `checkpoint`: it appeared in `introduced_in`, by `write`, which stands on the parent of that.

    `write` is None where none is stored: update_state, CubeLoop, a value that is as old as the thread. `origin` is the
    path that the value had when it appeared. If `oldest`, no older checkpoint is there: it may have been set before.
    """

    thread: str
    kind: str
    ns: str
    checkpoint: str
    path: str
    value: Any
    introduced_in: CheckpointInfo
    origin: str
    write: WriteInfo | None
    oldest: bool


async def blame(heads: Heads, key: ThreadKey, path: Path, ref: str | None, ns: str) -> Blame:
    """Who set what stands at a path. Three round trips; Missing if there is nothing at it."""

    async def told(reading: ThreadReader) -> Blame:
        record = find(reading.thread, ref, ns)
        channel = str(path[0])
        if channel not in reading.names(record):
            raise Missing(f"there is no channel {channel!r} in checkpoint {record.row.id!r}: {_named(reading, record)}")
        past = list(lineage(reading.thread, record))
        await fetch(heads, reading, [slot for one in past for slot in _slots(reading, one, channel)])
        at, value = resolve(reading.value(record, channel), path[:1], path[1:])
        born, origin = _traced(reading, past, at)
        parent = reading.parent(born)
        writes = _candidates(reading, parent, channel)
        sent = sends_of(reading, [born, *([parent] if parent else [])])
        await fetch(heads, reading, [entry.slot for _, _, entry in writes] + sent)
        found = _chosen(reading, parent, writes, (born, origin))
        return Blame(
            thread=key.id, kind=key.kind, ns=ns, checkpoint=record.row.id, path=written(at), value=value,
            introduced_in=reading.step(born), origin=written(origin), write=found,
            oldest=parent is None and not _begins(reading, born),
        )  # fmt: skip

    return await read(heads, key, told)


def _begins(reading: ThreadReader, record: CheckpointRecord) -> bool:
    """Whether a thread begins with a checkpoint: nothing was before it that could have been removed."""
    if reading.is_talk:
        return record.row.id == after(None) and record.row.source not in _BY_HAND
    return record.row.source == _INPUT


def _named(reading: ThreadReader, record: CheckpointRecord) -> str:
    return "it has " + (", ".join(reading.names(record)) or "none")


def _slots(reading: ThreadReader, record: CheckpointRecord, channel: str) -> Iterator[Any]:
    if channel in reading.names(record):
        yield from reading.slots(record, channel)


def _traced(reading: ThreadReader, past: list[CheckpointRecord], at: Path) -> tuple[CheckpointRecord, Path]:
    """The oldest of these checkpoints, without a gap, that has the value; and its path there."""
    channel, born = str(at[0]), past[0]
    for before in past[1:]:
        if channel not in reading.names(before):
            break
        earlier = _earlier(reading, born, before, at)
        if earlier is None:
            break
        born, at = before, earlier
    return born, at


def _earlier(reading: ThreadReader, later: CheckpointRecord, before: CheckpointRecord, at: Path) -> Path | None:
    """Where in the checkpoint before the same value stood; None if it did not."""
    channel = str(at[0])
    if reading.is_unchanged(later, before, channel) or _begins_alike(reading, later, before, at):
        return at
    new, old = reading.value(later, channel), reading.value(before, channel)
    return _followed(new, old, at)


def _begins_alike(reading: ThreadReader, later: CheckpointRecord, before: CheckpointRecord, at: Path) -> bool:
    """Whether two lists have the same elements up to the one that the path names, told by their bytes."""
    slots = [record.slots.get(str(at[0])) for record in (later, before)]
    if len(at) < 2 or not isinstance(at[1], int) or any(s is None or s.kind != LIST or s.inline for s in slots):
        return False
    new, old = (reading.thread.head.cache.elements(slot.ranges) if slot else None for slot in slots)
    end = at[1] + 1
    return bool(new and old and len(old) >= end and new[:end] == old[:end])


def _followed(new: Any, old: Any, at: Path) -> Path | None:
    earlier: Path = at[:1]
    for token in at[1:]:
        place = _stood(new, old, token)
        if place is None:
            return None
        new, old, earlier = new[token], old[place], (*earlier, place)
    return earlier if same(new, old) else None


def _stood(new: Any, old: Any, token: Token) -> Token | None:
    """What an element's number, or a key, was before."""
    if isinstance(token, int):
        return aligned(old, new).get(token) if isinstance(old, list) else None
    return token if isinstance(old, Mapping) and token in old else None


def _candidates(reading: ThreadReader, parent: CheckpointRecord | None, channel: str) -> list[_Write]:
    tasks = reading.tasks(parent) if parent is not None else []
    return [(task, idx, entry) for task, idx, entry in in_order(tasks) if entry.channel == channel]


def _chosen(
    reading: ThreadReader, parent: CheckpointRecord | None, writes: list[_Write], born: tuple[CheckpointRecord, Path]
) -> WriteInfo | None:
    """The write that brought the value; of several that may have, the last. None if none is stored.

    Without a match it is the last of all, since a reducer may have made something else of it.
    """
    if parent is None:
        return None
    record, at = born
    made = _of_its_kind(record, [reading.one_written(parent, *one) for one in reversed(writes)])
    whole = reading.value(record, str(at[0]))
    found = [one for one in made if _has_at(one.value, whole, at)]
    found += [one for value in _on_the_way(whole, at) for one in made if _brought(one.value, value)]
    return next(iter(found or made), None)


def _of_its_kind(record: CheckpointRecord, writes: list[WriteInfo]) -> list[WriteInfo]:
    """Of the writes on a parent, those of nodes or those of update_state: its children by both are brothers."""
    if record.row.source in _BY_HAND:
        return [write for write in writes if write.node is None]
    return [write for write in writes if write.node is not None] or writes


def _has_at(given: Any, whole: Any, at: Path) -> bool:
    """Whether a write has the value at the same keys."""
    for token in at[1:]:
        if isinstance(token, int) or not (isinstance(given, Mapping) and token in given):
            return False
        given, whole = given[token], whole[token]
    return same(given, whole)


def _on_the_way(value: Any, at: Path) -> list[Any]:
    """What the value at a path is in, from outside to inside, and itself."""
    found = [value]
    for token in at[1:]:
        found.append(found[-1][token])
    return found


def _brought(given: Any, value: Any) -> bool:
    """Whether a write has a value: the same, a message with its id, or one that says the same and had no id yet."""
    if same(given, value):
        return True
    if is_message(value):
        if message_id(given) is not None and message_id(given) == message_id(value):
            return True
        if value.get("content") and same(given, value["content"]):
            return True
    inner = given.values() if isinstance(given, Mapping) else given if isinstance(given, list) else ()
    return any(_brought(each, value) for each in inner)
