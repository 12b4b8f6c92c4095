"""Copy a thread. The copy does not depend on its source and survives it.

Onto a new thread, the stored bytes are copied inside the database with their ids. Onto a thread that exists, the
checkpoints that it does not have are added, without decoding their values; those that it has stay, so a copy may be
repeated. Metadata that names the source as its `thread_id` names the target in the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from threadkeep.engine.commit import Decision, Seen, check_complete, commit, copied_row, fill_cache
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import Codec, pack
from threadkeep.engine.log.itemlog import SHARED, Item, ItemId
from threadkeep.engine.log.records import CheckpointRecord, TaskWrites
from threadkeep.engine.requests import CopyThread, LoadedRows, LoadThreadRows
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import metadata_of, write
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.ops import Op, Put, PutWrites
from threadkeep.engine.threads.thread_rows import stored_parts
from threadkeep.plan import result


async def copy(
    heads: Heads, source: ThreadKey, target: ThreadKey, time: int, nonce: int, *, keeps_times: bool = False
) -> None:
    """Copy all checkpoints and writes. Nothing happens if the source does not exist, or if it is the target.

    Three round trips onto a new thread; onto an existing one, the items of the source are read and written too. What
    is added there gets the given time, or keeps its own with `keeps_times`. ValueError if a CubeLoop thread would be
    copied onto an existing one.
    """
    if source == target:
        return

    async def read() -> Seen[_Threads]:
        loaded, existing = await LoadThreadRows(source), await LoadThreadRows(target)
        check_complete(loaded)
        head = heads.head_from(source, loaded, None)
        if loaded.thread is not None and existing.thread is not None and target.kind != CUBE:
            await _load_all_items(heads, head, loaded)
        return Seen(_Threads(head, loaded, existing), existing.thread)

    def decide(seen: Seen[_Threads], attempt: int) -> Decision[list[Op]]:
        head, loaded, existing = seen.state
        if loaded.thread is None:
            return Decision([])
        if seen.row is None:
            return Decision([], _copy_to_new(head, loaded, target, time, nonce + attempt))
        if target.kind == CUBE:
            raise ValueError(f"thread {target.id!r} already exists: a CubeLoop thread can only be copied to a new id")
        return Decision(_missing_ops(head, loaded, existing, target, None if keeps_times else time, nonce))

    ops = await commit(heads, target, read, decide, source=source)
    for outcome in await write(heads, target, ops) if ops else []:
        result(outcome)


class _Threads(NamedTuple):
    """The source, with its items if the target exists; and the rows of the target."""

    head: Head
    loaded: LoadedRows
    existing: LoadedRows


def _copy_to_new(head: Head, loaded: LoadedRows, target: ThreadKey, time: int, epoch: int) -> CopyThread:
    row = loaded.thread
    assert row is not None
    numbers = {found.row.labels for found in loaded.checkpoints if found.row is not None}
    labels = [(each.id, each.stored, each.tags) for each in copy_labels(head, numbers, target) if each.stored]
    size = row.bytes + sum(len(stored) - len(loaded.items[id]) for id, stored, _ in labels)
    thread = copied_row(row, target, time=time, epoch=epoch, size=size)
    return CopyThread(row.key, (row.epoch, row.rev), thread, tuple(labels))


class CopiedLabels(NamedTuple):
    """A set of labels in a copy: its item, its index entries, and its stored bytes if they differ from the source's."""

    id: ItemId
    tags: tuple[bytes, ...]
    stored: bytes | None


def copy_labels(head: Head, numbers: Iterable[int], target: ThreadKey) -> Iterator[CopiedLabels]:
    """Yield sets of labels as a copy has them: those that name the source as their thread name the target."""
    for n in numbers:
        id, labels = ItemId(SHARED, n), _with_target(head.labels(n), head.key, target)
        packed = pack(labels)
        stored = itemlog.seal_item(id, Item(packed), head.family) if packed != head.shared(n) else None
        yield CopiedLabels(id, metadata.tags(labels), stored)


def _with_target(metadata: dict[str, Any], source: ThreadKey, target: ThreadKey) -> dict[str, Any]:
    return metadata | {"thread_id": target.id} if metadata.get("thread_id") == source.id else metadata


async def _load_all_items(heads: Heads, head: Head, loaded: LoadedRows) -> None:
    """Load the items of all values of a thread. Conflict if it was pruned since its rows were loaded."""
    records, tasks = _decode_rows(head, loaded)
    slots = [slot for record in records for slot in record.slots.values()]
    slots += [entry.slot for task in tasks for entry in task.entries.values()]
    await fill_cache(heads, head, (each for slot in slots for each in slot.ranges))


def _decode_rows(head: Head, loaded: LoadedRows) -> tuple[list[CheckpointRecord], list[TaskWrites]]:
    records = [head.checkpoint(found.row) for found in loaded.checkpoints if found.row is not None]
    return records, [head.task(row) for found in loaded.checkpoints for row in found.writes]


def _missing_ops(
    head: Head, loaded: LoadedRows, existing: LoadedRows, target: ThreadKey, time: int | None, nonce: int
) -> list[Op]:
    """The ops that store what the target does not have, parents first."""
    known = {(found.row.ns, found.row.id) for found in existing.checkpoints if found.row is not None}
    records, tasks = _decode_rows(head, loaded)
    missing = [record for record in records if (record.row.ns, record.row.id) not in known]
    missing.sort(key=lambda record: (record.row.ns, record.row.id))
    puts: list[Op] = [_put_of(head, record, target, time, nonce) for record in missing]
    return puts + [op for task in tasks for op in _put_writes_of(head, task, time, nonce)]


def _put_of(head: Head, record: CheckpointRecord, target: ThreadKey, time: int | None, nonce: int) -> Put:
    """A put of a stored checkpoint, without encoding its values again. It keeps its time if none is given."""
    row = record.row
    op = Put(
        codec=Codec(None),
        ns=row.ns,
        parent=row.parent,
        checkpoint={
            **record.fields,
            "id": row.id,
            "channel_versions": record.versions,
            "versions_seen": record.seen,
        },
        given_metadata=_with_target(metadata_of(head, record), head.key, target),
        new_versions={},
        time=row.time if time is None else time,
        nonce=nonce,
        hidden=row.hidden,
        only_new=True,
    )
    op.values = dict.fromkeys(record.slots)
    op.encoded = {name: stored_parts(head, slot) for name, slot in record.slots.items()}
    op.rest = record.rest
    return op


def _put_writes_of(head: Head, task: TaskWrites, time: int | None, nonce: int) -> Iterator[PutWrites]:
    """One op for each write, because each has its own path, run and time."""
    row = task.row
    for idx, entry in task.entries.items():
        path, run, own_time = entry.origin
        writes = [(idx, entry.channel, stored_parts(head, entry.slot))]
        op_time = own_time if time is None else time
        yield PutWrites(row.ns, row.checkpoint, row.task, path, run, writes, op_time, nonce, only_new=True)
