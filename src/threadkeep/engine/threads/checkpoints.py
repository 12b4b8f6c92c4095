"""Putting checkpoints and writes, and getting them back: the heart.

`write` is one plan for any number of puts and put_writes on one thread: what waited while a commit was under way goes
into the next one. It drafts from what is remembered of the thread, or reads that first, and sends one batch:

    warm    Commit                      one round trip
    cold    Load, Commit                two
    lost    Conflict -> Load, Commit    again, until the tries run out

A repeated call is harmless: a checkpoint that exists is replaced and keeps its writes, a write that exists stays (or
is replaced, if its idx is negative), so a commit whose outcome got lost may be sent again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine.commit import TRIES, commit_ops
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import MSGPACK, Codec, unpack
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites
from threadkeep.engine.requests import CheckpointRef, CheckpointRows, LoadCheckpoints, LoadedRows
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.ops import Op, Put, PutWrites
from threadkeep.engine.threads.staging import CheckpointStaging, KnownCheckpoint
from threadkeep.plan import Outcome

__all__ = ["TRIES"]  # moving/ imports it from here


class CheckpointState(NamedTuple):
    """A checkpoint as it was given: LangGraph's checkpoint dict, metadata, parent id, and the writes on it in order."""

    key: ThreadKey
    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[tuple[str, str, Any]]


async def write(heads: Heads, key: ThreadKey, ops: Sequence[Op]) -> list[Outcome]:
    """Make all these changes in one commit; one outcome each, in order. One op's bad value fails that op only."""
    return await commit_ops(heads, key, ops, partial(_read_what_is_needed, heads, key, ops))


async def _read_what_is_needed(heads: Heads, key: ThreadKey, ops: Sequence[Op], head: Head | None) -> CheckpointStaging:
    wanted = _all_that_may_exist(ops) if head is None else _unknown(head, ops)
    if head is not None and not wanted:
        return CheckpointStaging(head, {})
    seen, loaded = await load_some(heads, key, wanted, head)
    found = loaded.checkpoints or (CheckpointRows(None, ()),) * len(wanted)
    return CheckpointStaging(seen, {(w.ns, w.id or ""): _known(seen, f) for w, f in zip(wanted, found, strict=True)})


async def load_some(
    heads: Heads, key: ThreadKey, wanted: tuple[CheckpointRef, ...], head: Head | None
) -> tuple[Head, LoadedRows]:
    """Some checkpoints, without the items that the head has; read again if those may not be believed any more."""
    loaded = await LoadCheckpoints(key, wanted, head.cached_items() if head else None)
    if head is not None and not heads.is_current(head):
        head, loaded = None, await LoadCheckpoints(key, wanted)
    return heads.seen(key, loaded, head), loaded


def _all_that_may_exist(ops: Iterable[Op]) -> tuple[CheckpointRef, ...]:
    """What the ops name, and the parents with their items."""
    wanted: dict[tuple[str, str], CheckpointRef] = {}
    for op in ops:
        if isinstance(op, PutWrites):
            wanted.setdefault((op.ns, op.checkpoint), CheckpointRef(op.ns, op.checkpoint, items=False))
            continue
        wanted.setdefault((op.ns, op.id), CheckpointRef(op.ns, op.id, items=False))
        if op.parent is not None:
            wanted[(op.ns, op.parent)] = CheckpointRef(op.ns, op.parent)
    return tuple(wanted.values())


def _unknown(head: Head, ops: Iterable[Op]) -> tuple[CheckpointRef, ...]:
    """What must be read in spite of the head: parents that it has not, and writes that a checkpoint may find there."""
    known = set(head.recent)
    wanted: dict[tuple[str, str], CheckpointRef] = {}
    for op in ops:
        if not isinstance(op, Put):
            continue
        if op.parent is not None and (op.ns, op.parent) not in known:
            wanted[(op.ns, op.parent)] = CheckpointRef(op.ns, op.parent)
        if (op.ns, op.id) in head.recent or _came_early(head, op):
            wanted.setdefault((op.ns, op.id), CheckpointRef(op.ns, op.id, items=False))
        known |= {(op.ns, op.id), (op.ns, op.parent or "")}
    return tuple(wanted.values())


def _came_early(head: Head, op: Put) -> bool:
    """Whether writes on this checkpoint may be there already, other than those that the thread row tells of."""
    return op.ns == "" and head.row is not None and head.row.early not in (None, op.id)


def _known(head: Head, found: CheckpointRows) -> KnownCheckpoint:
    record = head.checkpoint(found.row) if found.row else None
    return KnownCheckpoint(record, {row.task: head.task(row) for row in found.writes})


async def get(heads: Heads, codec: Codec, key: ThreadKey, ns: str, id: str | None) -> CheckpointState | None:
    """A checkpoint by id, hidden or not, or the latest visible one of the namespace. One round trip."""
    states = await get_all(heads, codec, key, (CheckpointRef(ns, id),))
    return states[0] if states else None


async def get_all(
    heads: Heads, codec: Codec, key: ThreadKey, wanted: tuple[CheckpointRef, ...]
) -> list[CheckpointState]:
    """Several checkpoints of a thread; those that are not there are left out. One round trip."""
    head, loaded = await load_some(heads, key, wanted, heads.get(key))
    found = [(head.checkpoint(f.row), [head.task(row) for row in f.writes]) for f in loaded.checkpoints if f.row]
    heads.remember(with_recent_checkpoints(head, [record for record, _ in reversed(found)]))
    with gc_paused():
        return [decode_state(head, codec, record, tasks) for record, tasks in found]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Decoding makes many objects that all stay; the cyclic collector would look at each of them several times for nothing.

    In a process with some objects of its own that took a third of the time of a page. It goes on if it was on before.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def with_recent_checkpoints(head: Head, records: Iterable[CheckpointRecord]) -> Head:
    """The head with these checkpoints among its recent ones."""
    return Head(head.key, head.row, head.names, head.with_recent(records), head.cache)


def decode_state(head: Head, codec: Codec, record: CheckpointRecord, tasks: Iterable[TaskWrites]) -> CheckpointState:
    """A checkpoint with its values decoded."""
    row = record.row
    where = f"of checkpoint {row.id!r} in {head.where}"
    checkpoint = {
        **record.fields,
        **(codec.loads(*record.rest, f"the rest {where}") if record.rest else {}),
        "id": row.id,
        "channel_values": {
            name: decode_value(head, codec, slot, f"channel {name!r} {where}") for name, slot in record.slots.items()
        },
        "channel_versions": dict(record.versions),
        "versions_seen": {node: dict(seen) for node, seen in record.seen.items()},
    }
    return CheckpointState(
        head.key, row.ns, row.id, row.parent, checkpoint, metadata_of(head, record), decode_writes(head, codec, tasks)
    )


def metadata_of(head: Head, record: CheckpointRecord) -> dict[str, Any]:
    """A checkpoint's metadata as it was given."""
    row = record.row
    labels = unpack(head.shared(row.labels), f"labels {row.labels} of {head.where}") or {}
    return metadata.join(metadata.SplitMetadata(row.source, row.step, row.run, labels, record.own))


def decode_writes(head: Head, codec: Codec, tasks: Iterable[TaskWrites]) -> list[tuple[str, str, Any]]:
    """The writes of several tasks as (task, channel, value), in LangGraph's order: path, task, idx."""
    ordered = sorted(
        (entry.origin[0], task.row.task, idx, entry) for task in tasks for idx, entry in task.entries.items()
    )
    return [
        (task, entry.channel, decode_value(head, codec, entry.slot, f"a write of task {task!r} in {head.where}"))
        for _, task, _, entry in ordered
    ]


def decode_value(head: Head, codec: Codec, slot: Slot, what: str) -> Any:
    """What a slot holds."""
    if slot.kind == LIST and slot.tag == MSGPACK and slot.inline is None:
        parts = head.cache.elements(slot.ranges)
        found = codec.decode_list(parts, what) if parts is not None and len(parts) == slot.elements > 0 else None
        if found is not None:
            return _DeltaSnapshot(found) if slot.snapshot else found
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.ranges)
    return codec.decode(slot.kind, slot.tag, slot.elements, data, snapshot=slot.snapshot, what=what)
