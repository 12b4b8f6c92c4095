"""Find the checkpoint, task and write that first set the value at a path: the verb blame.

Parents are followed as long as they hold the same value. A list element may have another position there: a message is
found by its id, any other element by its value. The writes on a checkpoint make its child, so the write is looked for
on the parent of the checkpoint in which the value appeared. A value that came with a copy or a fork from another thread
is looked for there, as long as the threads that it came from exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from threadkeep.engine.cube.channels import next_checkpoint_id
from threadkeep.engine.history.checkpoint_info import CheckpointInfo, ThreadReader, WriteInfo, read_thread
from threadkeep.engine.history.paths import Path, Token, format_path, resolve
from threadkeep.engine.history.value_diff import pair_elements, same
from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.plain import is_message, message_id
from threadkeep.engine.log.records import CheckpointRecord
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.origins import MAX_THREADS, Origin, read_origins
from threadkeep.engine.threads.thread_rows import find_checkpoint, lineage, resolve_ref
from threadkeep.errors import Corrupt, Missing
from threadkeep.short_repr import short_repr

_INPUT, _BY_HAND = "input", ("update", "fork")


@dataclass(frozen=True, slots=True)
class Blame:
    """Who set the value at `path` of `checkpoint`.

    The value appeared in the checkpoint `introduced_in`, at the path `origin`, by `write`, which is stored on the
    parent of that checkpoint. If it came from another thread with a copy or a fork, this is a checkpoint of that thread
    (`introduced_in.thread`). `write` is None if none is stored: for update_state, CubeLoop threads, and values as old
    as the thread. If `oldest`, older checkpoints were removed: the value may have been set before. If `damaged`, the
    search ended at damage, which it describes: again, the value may have been set before, or by another write.

    `source_missing` is the id of a thread that the value came from and that does not exist any more, or does not have
    that checkpoint any more. If threads were copied onto an existing one, the value may also be of that one.
    """

    thread: str
    kind: Kind
    ns: str
    checkpoint: str
    path: str
    value: Any
    introduced_in: CheckpointInfo
    origin: str
    write: WriteInfo | None
    oldest: bool
    damaged: str | None = None
    source_missing: str | None = None

    __repr__ = short_repr


class _BlameInThread(NamedTuple):
    """What was found in one thread: also the channel where the value appeared, its path there, the thread's origins."""

    key: ThreadKey
    blame: Blame
    channel: Any
    path: Path
    origins: list[Origin]


async def blame(heads: Heads, key: ThreadKey, path: Path, ref: str | None, ns: str) -> Blame:
    """Return who set the value at a path. Missing if there is nothing at it.

    Corrupt if the checkpoint's row or the channel cannot be read. Three round trips, and three for each thread that the
    value came from.
    """

    async def find(reader: ThreadReader) -> _BlameInThread:
        record, channel = find_checkpoint(reader.rows, ref, ns), str(path[0])
        if channel not in reader.channels(record):
            names = ", ".join(reader.channels(record)) or "none"
            raise Missing(f"channel {channel!r} not found in checkpoint {record.row.id!r}: its channels are {names}")
        return await _find_origin(reader, record, path)

    return await _follow_sources(heads, await read_thread(heads, key, find))


async def _find_origin(reader: ThreadReader, record: CheckpointRecord, path: Path) -> _BlameInThread:
    """Find who set a value, in one thread. Two round trips."""
    channel, ns = str(path[0]), record.row.ns
    ancestors = list(lineage(reader.rows, record, through_branches=True))
    holders = [one for one in ancestors if channel in reader.channels(one)]
    await reader.fetch([slot for one in holders for slot in reader.slots(one, channel)])
    exact_path, value = resolve(reader.value(record, channel), path[:1], path[1:])
    first, first_path, damage = _first_holder(reader, ancestors, exact_path)
    parent = (first.row.ns, first.row.parent or "")
    if parent in reader.rows.damaged_keys():
        damage = reader.info_at(parent).damaged
    write = await _find_write(reader, first, first_path)
    found = Blame(
        thread=reader.key.id,
        kind=reader.key.kind,
        ns=ns,
        checkpoint=record.row.id,
        path=format_path(exact_path),
        value=value,
        introduced_in=reader.info(first),
        origin=format_path(first_path),
        write=write,
        oldest=damage is None and reader.parent(first) is None and not _starts_thread(reader, first),
        damaged=damage,
    )
    return _BlameInThread(
        reader.key, found, reader.value(first, channel), first_path, read_origins(reader.rows.head.names)
    )


def _starts_thread(reader: ThreadReader, record: CheckpointRecord) -> bool:
    """Whether a checkpoint is the first that the thread ever had, so none before it can have been removed."""
    if reader.is_cube:
        return record.row.id == next_checkpoint_id(None) and record.row.source not in _BY_HAND
    return record.row.source == _INPUT


# --- the thread


async def _follow_sources(heads: Heads, found: _BlameInThread) -> Blame:
    """Look for the value in the threads that it came from, one after the other."""
    asked, visited = found.blame, {found.key}
    try:
        while True:
            earlier, missing = await _find_earlier(heads, found, visited)
            if earlier is None:
                return _as_asked(asked, found.blame, source_missing=missing)
            found = earlier
    except Corrupt as error:
        return _as_asked(asked, found.blame, damaged=str(error))


async def _find_earlier(
    heads: Heads, found: _BlameInThread, visited: set[ThreadKey]
) -> tuple[_BlameInThread | None, str | None]:
    """Look for the value in the thread's origins, the latest first. If none has it: the id of one that is missing."""
    missing = None
    for origin in found.origins:
        source = found.key._replace(id=origin.thread)
        if not origin.covers(found.blame.introduced_in.id):
            continue
        if source in visited or len(visited) >= MAX_THREADS:
            missing = missing or source.id
            continue
        visited.add(source)
        try:
            earlier = await _find_in_source(heads, source, origin, found)
        except Missing:
            missing = missing or source.id
        else:
            if earlier is not None:
                return earlier, None
    return None, missing


def _as_asked(asked: Blame, found: Blame, *, damaged: str | None = None, source_missing: str | None = None) -> Blame:
    """Return what was found, as the answer to what was asked."""
    return replace(
        asked,
        introduced_in=found.introduced_in,
        origin=found.origin,
        write=found.write,
        oldest=found.oldest,
        damaged=damaged or found.damaged,
        source_missing=source_missing,
    )


async def _find_in_source(
    heads: Heads, source: ThreadKey, origin: Origin, later: _BlameInThread
) -> _BlameInThread | None:
    """Find who set a value, in a thread that was copied. None if it did not have the value.

    Missing if the thread does not exist, or not the checkpoint that was copied.
    """
    channel = str(later.path[0])

    async def find(reader: ThreadReader) -> _BlameInThread | None:
        at = (later.blame.introduced_in.ns, origin.start or later.blame.introduced_in.id)
        if origin.start is not None and at not in reader.rows.records:
            at = resolve_ref(reader.rows, None)
        if origin.until is None and at not in reader.rows.visible_keys():
            return None  # it was there before others were copied
        if at not in reader.rows.records and at not in reader.rows.damaged:
            raise Missing
        record = reader.rows.record(at)
        if channel not in reader.channels(record):
            return None
        await reader.fetch(reader.slots(record, channel))
        path = _follow(later.channel, reader.value(record, channel), later.path)
        return await _find_origin(reader, record, path) if path is not None else None

    return await read_thread(heads, source, find)


# --- the checkpoint


def _first_holder(
    reader: ThreadReader, ancestors: list[CheckpointRecord], path: Path
) -> tuple[CheckpointRecord, Path, str | None]:
    """The oldest of these checkpoints that has the value without a gap, its path there, and damage that was met."""
    channel, first = str(path[0]), ancestors[0]
    for parent in ancestors[1:]:
        if channel not in reader.channels(parent):
            break
        try:
            earlier = _earlier_path(reader, first, parent, path)
        except Corrupt as error:
            return first, path, f"checkpoint {parent.row.id!r}: {error}"
        if earlier is None:
            break
        first, path = parent, earlier
    return first, path, None


def _earlier_path(reader: ThreadReader, later: CheckpointRecord, earlier: CheckpointRecord, path: Path) -> Path | None:
    """The path of the same value in the checkpoint before; None if it is not there."""
    channel = str(path[0])
    if reader.is_unchanged(later, earlier, channel) or _have_same_start(reader, later, earlier, path):
        return path
    return _follow(reader.value(later, channel), reader.value(earlier, channel), path)


def _have_same_start(reader: ThreadReader, later: CheckpointRecord, earlier: CheckpointRecord, path: Path) -> bool:
    """Whether two lists have the same elements, byte for byte, up to the one that the path names."""
    slots = [record.slots.get(str(path[0])) for record in (later, earlier)]
    if len(path) < 2 or not isinstance(path[1], int) or any(s is None or s.kind != LIST or s.inline for s in slots):
        return False
    new, old = (reader.rows.head.cache.elements(slot.ranges) if slot else None for slot in slots)
    end = path[1] + 1
    return bool(new and old and len(old) >= end and new[:end] == old[:end])


def _follow(new: Any, old: Any, path: Path) -> Path | None:
    """The path in `old` of what is at a path in `new`; None if it is not there, or another value is."""
    earlier: Path = path[:1]
    for token in path[1:]:
        previous = _earlier_token(new, old, token)
        if previous is None:
            return None
        new, old, earlier = new[token], old[previous], (*earlier, previous)
    return earlier if same(new, old) else None


def _earlier_token(new: Any, old: Any, token: Token) -> Token | None:
    if isinstance(token, int):
        return pair_elements(old, new).get(token) if isinstance(old, list) else None
    return token if isinstance(old, Mapping) and token in old else None


# --- the write


async def _find_write(reader: ThreadReader, record: CheckpointRecord, path: Path) -> WriteInfo | None:
    """The write that set the value in the checkpoint where it appeared; None if none is stored.

    Of several that may have set it, the last. If none has the value, it is the last write to the channel, since a
    reducer may have turned it into something else. One round trip, which also loads what `info(record)` needs.
    """
    parent, channel = reader.parent(record), str(path[0])
    stored = reader.channel_writes(parent, channel) if parent is not None else []
    sends = reader.send_slots([record, *([parent] if parent is not None else [])])
    await reader.fetch([entry.slot for _, _, entry in stored] + sends)
    if parent is None:
        return None
    writes = _same_origin(record, reader.write_infos((parent.row.ns, parent.row.id), reversed(stored)))
    whole = reader.value(record, channel)
    found = [write for write in writes if _has_at_path(write.value, whole, path)]
    found += [write for value in _values_along(whole, path) for write in writes if _contains(write.value, value)]
    return next(iter(found or writes), None)


def _same_origin(record: CheckpointRecord, writes: list[WriteInfo]) -> list[WriteInfo]:
    """The writes on the parent that belong to this child: update_state's, or those of nodes.

    A parent can have children of both.
    """
    if record.row.source in _BY_HAND:
        return [write for write in writes if write.node is None]
    return [write for write in writes if write.node is not None] or writes


def _has_at_path(value: Any, whole: Any, path: Path) -> bool:
    """Whether a write has the channel's value at the same keys."""
    for token in path[1:]:
        if isinstance(token, int) or not (isinstance(value, Mapping) and token in value):
            return False
        value, whole = value[token], whole[token]
    return same(value, whole)


def _values_along(whole: Any, path: Path) -> list[Any]:
    """The values on the way to the one at a path, from the whole channel to that value itself."""
    found = [whole]
    for token in path[1:]:
        found.append(found[-1][token])
    return found


def _contains(written_value: Any, value: Any) -> bool:
    """Whether a write contains a value: an equal one, a message with its id, or its content before it had an id."""
    if same(written_value, value):
        return True
    if is_message(value):
        id = message_id(written_value)
        if id is not None and id == message_id(value):
            return True
        if value.get("content") and same(written_value, value["content"]):
            return True
    if isinstance(written_value, Mapping):
        return any(_contains(each, value) for each in written_value.values())
    return isinstance(written_value, list) and any(_contains(each, value) for each in written_value)
