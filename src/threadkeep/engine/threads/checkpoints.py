"""Put checkpoints and writes, and get them back: the read and write path of LangGraph threads.

`write` is one plan for any number of puts and put_writes on one thread: ops that waited during a commit go into the
next one together. It drafts the change on the thread's cached head, or loads the thread first, and sends one batch:

    cached head      Commit                                      one round trip
    no cached head   LoadCheckpoints, Commit                     two
    Conflict         LoadCheckpoints, Commit                     again, until the tries run out

Calls may be repeated. A checkpoint that exists is replaced and keeps its writes. A write that exists stays, or is
replaced if its idx is negative. So a commit whose outcome was lost may be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.collector import gc_paused
from threadkeep.engine.commit import commit_ops
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import EXTENSIONS, MSGPACK, Codec, unpack, unpack_plain
from threadkeep.engine.log.item_cache import ItemCache
from threadkeep.engine.log.itemlog import SHARED, new_tuple
from threadkeep.engine.log.msgpack import LIST, WHOLE, header
from threadkeep.engine.log.records import (
    CheckpointRecord,
    Slot,
    TaskWrites,
    WriteEntry,
    unpack_checkpoint,
    unpack_writes,
)
from threadkeep.engine.requests import CheckpointRef, CheckpointRows, LoadCheckpoints, LoadedRows, LoadSeveral
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.metadata import LARGE_METADATA
from threadkeep.engine.threads.ops import Op, Put, PutWrites
from threadkeep.engine.threads.staging import CheckpointStaging, KnownCheckpoint
from threadkeep.errors import Corrupt
from threadkeep.plan import Failure, Outcome


class CheckpointState(NamedTuple):
    """A checkpoint with its values: LangGraph's checkpoint dict, metadata, parent id, and its writes in order."""

    key: ThreadKey
    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[tuple[str, str, Any]]


async def write(heads: Heads, key: ThreadKey, ops: Sequence[Op]) -> list[Outcome]:
    """Make all these changes in one commit. Return one outcome for each op, in order.

    An op whose value cannot be stored fails alone, and so does one that needs a damaged checkpoint. One round trip with
    a current head, else two; these for each op if one of them meets damage.
    """
    try:
        return await commit_ops(heads, key, ops, partial(_start_staging, heads, key, ops))
    except Corrupt:
        if len(ops) == 1:
            raise
    return [await _write_alone(heads, key, op) for op in ops]


async def _write_alone(heads: Heads, key: ThreadKey, op: Op) -> Outcome:
    try:
        return (await write(heads, key, [op]))[0]
    except Corrupt as error:
        return Failure(error)


async def _start_staging(heads: Heads, key: ThreadKey, ops: Sequence[Op], head: Head | None) -> CheckpointStaging:
    """Load what the ops need and the head does not have."""
    wanted = _refs_of_ops(ops) if head is None else _refs_missing_in(head, ops)
    if head is not None and not wanted:
        return CheckpointStaging(head, {})
    head, loaded = await load_checkpoints(heads, key, wanted, head)
    found = loaded.checkpoints or (CheckpointRows(None, ()),) * len(wanted)
    known = {(ref.ns, ref.id or ""): _known(head, rows) for ref, rows in zip(wanted, found, strict=True)}
    return CheckpointStaging(head, known)


async def load_and_stage(heads: Heads, key: ThreadKey, op: Op, head: Head | None) -> CheckpointStaging:
    """Load what an op needs and the head does not have, and stage it. One round trip."""
    staging = await _start_staging(heads, key, (op,), head)
    staging.apply(op)
    return staging


def stage_cached(head: Head, *ops: Op) -> CheckpointStaging | None:
    """Stage ops on the cached head. None if something must be loaded first. Raises what makes an op fail.

    Does what `_start_staging` does if nothing is to be loaded.
    """
    if len(ops) > 1 and _refs_missing_in(head, ops):
        return None
    op = ops[0]
    if len(ops) == 1 and type(op) is Put:
        here = (op.ns, op.id)
        if (op.parent is not None and (op.ns, op.parent) not in head.recent) or here in head.recent:
            return None
        if op.ns == "" and head.row is not None and head.row.early not in (None, op.id):
            return None
    staging = CheckpointStaging(head, _NOTHING_KNOWN)
    for op in ops:
        staging.apply(op)
    return staging


_NOTHING_KNOWN: Mapping[tuple[str, str], KnownCheckpoint] = {}


async def load_checkpoints(
    heads: Heads, key: ThreadKey, wanted: tuple[CheckpointRef, ...], head: Head | None
) -> tuple[Head, LoadedRows]:
    """Load some checkpoints, without the items that the head has. One round trip.

    Two if the heads were cleared meanwhile: then the cached items cannot be trusted, and everything is loaded.
    """
    loaded = await LoadCheckpoints(key, wanted, head.cached_items() if head else None)
    if head is not None and not heads.is_current(head):
        head, loaded = None, await LoadCheckpoints(key, wanted)
    check_newest(key, wanted, loaded)
    return heads.head_from(key, loaded, head), loaded


def check_newest(key: ThreadKey, wanted: tuple[CheckpointRef, ...], loaded: LoadedRows) -> None:
    """Raise Corrupt if the newest root checkpoint, or a row of its writes, is missing although the thread's row has it.

    Older checkpoints and those of subgraphs are not counted one by one: `verify` finds what is missing there.
    """
    thread = loaded.thread
    if thread is None:
        return
    for want, found in zip(wanted, loaded.checkpoints, strict=True):
        if want.ns != "" or (want.id is not None and want.id != thread.top):
            continue
        id = found.row.id if found.row is not None else None
        if id != thread.top and thread.top is None:
            raise Corrupt(f"the row of thread {key.id!r} does not name its newest checkpoint {id!r}")
        if id != thread.top:
            raise Corrupt(
                f"checkpoint {thread.top!r} of thread {key.id!r} is missing although the thread's row names it"
            )
        if thread.top_writes is not None and len(found.writes) < thread.top_writes:
            raise Corrupt(
                f"writes on checkpoint {id!r} of thread {key.id!r} are missing: of {thread.top_writes} tasks "
                f"{len(found.writes)} are there"
            )


def _refs_of_ops(ops: Iterable[Op]) -> tuple[CheckpointRef, ...]:
    """The checkpoints that the ops name, which may exist, and their parents with items."""
    wanted: dict[tuple[str, str], CheckpointRef] = {}
    for op in ops:
        if isinstance(op, PutWrites):
            wanted.setdefault((op.ns, op.checkpoint), CheckpointRef(op.ns, op.checkpoint, items=False))
            continue
        wanted.setdefault((op.ns, op.id), CheckpointRef(op.ns, op.id, items=False))
        if op.parent is not None:
            wanted[(op.ns, op.parent)] = CheckpointRef(op.ns, op.parent)
    return tuple(wanted.values())


def _refs_missing_in(head: Head, ops: Iterable[Op]) -> tuple[CheckpointRef, ...]:
    """The checkpoints to load in spite of the head: parents that it does not have, and those that may have writes."""
    known = set(head.recent)
    wanted: dict[tuple[str, str], CheckpointRef] = {}
    for op in ops:
        if not isinstance(op, Put):
            continue
        if op.parent is not None and (op.ns, op.parent) not in known:
            wanted[(op.ns, op.parent)] = CheckpointRef(op.ns, op.parent)
        if (op.ns, op.id) in head.recent or _may_have_early_writes(head, op):
            wanted.setdefault((op.ns, op.id), CheckpointRef(op.ns, op.id, items=False))
        known |= {(op.ns, op.id), (op.ns, op.parent or "")}
    return tuple(wanted.values())


def _may_have_early_writes(head: Head, op: Put) -> bool:
    """Whether this checkpoint may have writes already, other than those that the thread row counts."""
    return op.ns == "" and head.row is not None and head.row.early not in (None, op.id)


def _known(head: Head, found: CheckpointRows) -> KnownCheckpoint:
    record = head.checkpoint(found.row) if found.row else None
    return KnownCheckpoint(record, {row.task: head.task(row) for row in found.writes})


async def get(heads: Heads, codec: Codec, key: ThreadKey, ns: str, id: str | None) -> CheckpointState | None:
    """Return a checkpoint by id, hidden or not, or the latest visible one of the namespace. One round trip."""
    head, wanted = heads.get(key), (CheckpointRef(ns, id),)
    loaded = await LoadCheckpoints(key, wanted, head.cached_items() if head is not None else None)
    if head is not None and not heads.is_current(head):  # as in `load_checkpoints`
        head, loaded = None, await LoadCheckpoints(key, wanted)
    check_newest(key, wanted, loaded)
    states = _decode_states(heads, codec, heads.head_from(key, loaded, head), loaded)
    return states[0] if states else None


async def get_many(
    heads: Heads, codec: Codec, key: ThreadKey, wanted: tuple[CheckpointRef, ...]
) -> list[CheckpointState]:
    """Return several checkpoints of a thread, without those that do not exist. One round trip."""
    head, loaded = await load_checkpoints(heads, key, wanted, heads.get(key))
    return _decode_states(heads, codec, head, loaded)


async def get_several(
    heads: Heads, codec: Codec, wanted: Mapping[ThreadKey, Sequence[CheckpointRef]]
) -> dict[ThreadKey, list[CheckpointState]]:
    """Return checkpoints of several threads, without those that do not exist. One round trip.

    A thread is left out if the heads were cleared meanwhile, or if it is damaged: load it with `get_many`. Corrupt if
    a row of one of them cannot be read.
    """
    cached = {key: heads.get(key) for key in wanted}
    loads = [
        LoadCheckpoints(key, tuple(refs), head.cached_items() if (head := cached[key]) is not None else None)
        for key, refs in wanted.items()
    ]
    found: dict[ThreadKey, list[CheckpointState]] = {}
    for load, loaded in zip(loads, await LoadSeveral(tuple(loads)), strict=True):
        head = cached[load.key]
        if head is not None and not heads.is_current(head):
            continue
        try:
            check_newest(load.key, load.wanted, loaded)
            found[load.key] = _decode_states(heads, codec, heads.head_from(load.key, loaded, head), loaded)
        except Corrupt:
            continue
    return found


def _decode_states(heads: Heads, codec: Codec, head: Head, loaded: LoadedRows) -> list[CheckpointState]:
    """Return the checkpoints that were loaded, with their values, and cache the newest of them.

    This runs for every get_tuple and list. It makes about 20 calls for a checkpoint and 4 for each row of writes;
    `tests/test_budgets.py` counts them.
    """
    names, shared, where = head.name_table(), head.shared_parts(), head.where
    found: list[tuple[CheckpointRecord, list[TaskWrites]]] = []
    records: list[CheckpointRecord] = []
    elements = 0
    for rows in loaded.checkpoints:
        if rows.row is not None:
            tasks = [unpack_writes(row, names, shared, where) for row in rows.writes]
            record = unpack_checkpoint(rows.row, names, shared, where)
            for slot in record.slots.values():
                elements += slot.elements
            found.append((record, tasks))
            records.append(record)
    records.reverse()
    heads.store(with_recent_checkpoints(head, records))
    states: list[CheckpointState] = []
    with gc_paused() if elements >= _MANY_ELEMENTS else _NOT_PAUSED:
        for record, tasks in found:
            states.append(decode_state(head, codec, record, tasks))
    return states


_NOT_PAUSED = nullcontext()
_MANY_ELEMENTS = 256
"""With fewer elements, pausing the collector only delays the collection of what they need."""


def with_recent_checkpoints(head: Head, records: Iterable[CheckpointRecord]) -> Head:
    """Return the head with these checkpoints among its recent ones."""
    return Head(head.key, head.row, head.names, head.with_recent(records), head.cache)


def decode_state(
    head: Head,
    codec: Codec,
    record: CheckpointRecord,
    tasks: Sequence[TaskWrites],
    values: dict[str, Any] | None = None,
) -> CheckpointState:
    """Return a checkpoint with its values decoded; the head must have their items. `values` is its metadata, if known.

    About fifteen calls, however many messages there are if they were read before; `tests/test_budgets.py` counts them.
    """
    row = record.row
    slots = record.slots
    if LARGE_METADATA in slots:
        slots = {name: slot for name, slot in slots.items() if name != LARGE_METADATA}
    writes, pending = in_order(tasks) if tasks else [], list[tuple[str, str, Any]]()
    try:
        channels = dict(zip(slots, decode_slots(head.cache, codec, slots.values()), strict=True))
        if writes:
            written = decode_slots(head.cache, codec, [entry.slot for _, _, _, entry in writes])
            pending = [(task, entry.channel, value) for (_, task, _, entry), value in zip(writes, written, strict=True)]
    except Exception:  # noqa: BLE001 - decoding them one by one names the value that is wrong
        where = f"of checkpoint {row.id!r} in {head.where}"
        channels = {name: decode_value(head, codec, slot, f"channel {name!r} {where}") for name, slot in slots.items()}
        pending = decode_writes(head, codec, tasks)
    checkpoint = {
        **record.fields,
        **(_decode_rest(head, codec, record) if record.rest else {}),
        "id": row.id,
        "channel_values": channels,
        "channel_versions": record.versions.copy(),
        "versions_seen": dict(zip(record.seen, map(dict, record.seen.values()), strict=True)),
    }
    if values is None:
        values = metadata_of(head, record, complete=True)
    return new_tuple(CheckpointState, (head.key, row.ns, row.id, row.parent, checkpoint, values, pending))


def _decode_rest(head: Head, codec: Codec, record: CheckpointRecord) -> Any:
    tag, data = record.rest or ("", b"")
    if tag == MSGPACK and codec.unpack is not None:
        try:
            return codec.unpack(data)
        except Exception:  # noqa: BLE001, S110 - what follows raises what is wrong
            pass
    return codec.loads(tag, data, f"the rest of checkpoint {record.row.id!r} in {head.where}")


def in_order(tasks: Iterable[TaskWrites]) -> list[tuple[str, str, int, WriteEntry]]:
    """Return writes as (path, task, idx, entry), in LangGraph's order."""
    found: list[tuple[str, str, int, WriteEntry]] = []
    for row, entries in tasks:
        task = row.task
        for idx, entry in entries.items():
            found.append((entry.origin[0], task, idx, entry))
    found.sort(key=_PLACE)
    return found


_PLACE = itemgetter(0, 1, 2)


def decode_slots(cache: ItemCache, codec: Codec, slots: Iterable[Slot]) -> list[Any]:  # noqa: C901 - one straight loop
    """Return the values of slots. Two calls for all of them, and one more for each list or large value.

    The messages of all lists are decoded together. Any exception if a value cannot be decoded: `decode_value` says
    which one it is, and what is wrong.
    """
    unpack, lanes = codec.unpack, cache.lanes
    if unpack is None:
        raise TypeError("another serializer")
    values: list[Any] = []
    parts: list[bytes] = []
    lists: list[tuple[int, int, int, bool]] = []
    for kind, tag, elements, snapshot, inline, ranges, _, _ in slots:
        if inline is not None:
            data = inline
        else:
            lane, start, length = ranges[0]
            data = lanes[lane][start]
            is_one = length == 1 and len(ranges) == 1
            if kind == LIST and tag == MSGPACK and data[:1] in EXTENSIONS and elements > 0:
                own = [data] if is_one and elements == 1 else cache.elements(ranges)
                if own is not None and len(own) == elements:
                    lists.append((len(values), len(parts), elements, snapshot))
                    parts += own
                    values.append(None)
                    continue
            if not is_one:
                data = cache.join(ranges, "")
        if tag == MSGPACK:
            value = unpack(data if kind == WHOLE else header(kind, elements) + data)
        elif tag == "null":
            value = None
        else:
            value = codec.loads(tag, data if kind == WHOLE else header(kind, elements) + data, "")
        values.append(_DeltaSnapshot(value) if snapshot else value)
    if lists:
        messages = codec.decode_list(parts, "") or []
        for at, first, elements, snapshot in lists:
            value = messages[first : first + elements]
            values[at] = _DeltaSnapshot(value) if snapshot else value
    return values


def metadata_of(head: Head, record: CheckpointRecord, *, complete: bool = False) -> dict[str, Any]:
    """Return a checkpoint's metadata as it was put.

    Unless it must be `complete`, a `LargeValue` stands for a large value whose items are not cached.
    """
    row = record.row
    packed = head.cache.lanes.get(SHARED, {}).get(row.labels)
    labels = unpack_plain(packed) if packed else None
    found = metadata.of_row(row, labels if type(labels) is dict else head.labels(row.labels), record.own_metadata)
    slot = record.slots.get(LARGE_METADATA)
    if slot is None or (not complete and head.cache.lacking(slot.ranges)):
        return found
    beginning = b"" if slot.kind == WHOLE else header(slot.kind, slot.elements)
    what = f"metadata of checkpoint {row.id!r} in {head.where}"
    return metadata.with_large(found, unpack(beginning + head.bytes_of(slot.ranges), what))


def decode_writes(head: Head, codec: Codec, tasks: Iterable[TaskWrites]) -> list[tuple[str, str, Any]]:
    """Return the writes of several tasks as (task, channel, value), in LangGraph's order: path, task, idx."""
    return [
        (task, entry.channel, decode_value(head, codec, entry.slot, f"a write of task {task!r} in {head.where}"))
        for _, task, _, entry in in_order(tasks)
    ]


def decode_value(head: Head, codec: Codec, slot: Slot, what: str) -> Any:
    """Return the value of a slot. `what` names it in errors."""
    if slot.kind == LIST and slot.tag == MSGPACK and slot.ranges and head.cache.starts_with(slot.ranges[0], EXTENSIONS):
        parts = head.cache.elements(slot.ranges)
        found = codec.decode_list(parts, what) if parts is not None and len(parts) == slot.elements > 0 else None
        if found is not None:
            return _DeltaSnapshot(found) if slot.snapshot else found
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.ranges)
    return codec.decode(slot.kind, slot.tag, slot.elements, data, snapshot=slot.snapshot, what=what)
