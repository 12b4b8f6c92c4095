"""Copy a thread. The copy does not depend on its source and survives it.

Onto a new thread, the stored bytes are copied inside the database with their ids. Onto a thread that exists, the
checkpoints that it does not have are added, without decoding their values; those that it has stay, so a copy may be
repeated. Metadata that names the source as its `thread_id` names the target in the copy. Everything in the source is
checked before anything is copied. A copy notes its source, see `origins`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from threadkeep.engine.commit import Decision, Seen, commit, copied_row, fill_cache, next_batch
from threadkeep.engine.health.salvage import IntactThread, load_intact, salvage
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import Codec, pack
from threadkeep.engine.log.itemlog import SHARED, Item, ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRecord, TaskWrites, ThreadRow
from threadkeep.engine.requests import Batch, Commit, CopyThread, ForkThread, LoadedRows, LoadThreadRows, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import metadata_of, write
from threadkeep.engine.threads.damaged_rows import load_to_change
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.ops import Op, Put, PutWrites
from threadkeep.engine.threads.origins import Origin, noted_origins
from threadkeep.engine.threads.row_changes import change_row
from threadkeep.engine.threads.thread_rows import ThreadRows, stored_parts
from threadkeep.errors import Corrupt
from threadkeep.plan import result


async def copy(
    heads: Heads,
    source: ThreadKey,
    target: ThreadKey,
    time: int,
    nonce: int,
    *,
    keeps_times: bool = False,
    salvages: bool = False,
) -> tuple[str, ...]:
    """Copy all checkpoints and writes. Nothing happens if the source does not exist, or if it is the target.

    What is added to an existing thread gets the given time, or keeps its own with `keeps_times`. The description of the
    source is added if the target has none: two round trips more. Corrupt, and nothing happens, if anything in the
    source is damaged. With `salvages`, its intact part is copied instead; the result says what was left out. ValueError
    if a CubeLoop thread would be copied onto an existing one. The target notes the source as its origin if they have
    the same tenant.

    All items of the source are read, to check them. Three round trips, and one for each slice of items, onto a new
    thread, to which they are copied inside the database; onto an existing one, they are written too.
    """
    if source == target:
        return ()

    async def read() -> Seen[_Threads]:
        existing = await LoadThreadRows(target)
        merges = existing.thread is not None and target.kind != CUBE
        try:
            part = IntactThread(await load_intact(source, items=not merges, indexes=True))
            head = await _read_head(heads, source, part.loaded, with_items=merges)
        except Corrupt:
            if not salvages:
                raise
            part = await salvage(source, indexes=True)
            head = await _read_head(heads, source, part.loaded, with_items=merges)
        return Seen(_Threads(head, part, existing), existing.thread)

    def decide(seen: Seen[_Threads], attempt: int) -> Decision[_Copied]:
        head, part, existing = seen.state
        if part.loaded.thread is None:
            return Decision(_Copied([], ()))
        if seen.row is None:
            copy_to_new = _copy_part_to_new if part.left_out else _copy_to_new
            return Decision(_Copied([], part.left_out), copy_to_new(head, part, target, time, nonce + attempt))
        if target.kind == CUBE:
            raise ValueError(f"thread {target.id!r} already exists: a CubeLoop thread can only be copied to a new id")
        ops = _missing_ops(head, part.loaded, existing, target, None if keeps_times else time, nonce)
        assert existing.thread is not None
        is_described = existing.thread.description is not None
        description = None if is_described else part.loaded.thread.description
        return Decision(_Copied(ops, part.left_out, description, _origins_of_merged(head, target)))

    copied = await commit(heads, target, read, decide, source=source)
    if copied.ops:
        await _merge(heads, target, copied, nonce)
    await _describe_too(heads, target, copied.description, time, nonce)
    return copied.left_out


def _origins_of_merged(head: Head, target: ThreadKey) -> list[Origin]:
    """Return where checkpoints that are added to a thread come from: the thread that has them, in the same tenant.

    A transfer builds a thread under another key first, which is gone later: then those that this thread notes.
    """
    threads = [head.key.id] if head.key.tenant == target.tenant else [each.thread for each in noted_origins(head.names)]
    return [Origin(thread, None) for thread in threads]


async def _merge(heads: Heads, target: ThreadKey, copied: _Copied, nonce: int) -> None:
    """Add to a thread what it lacks, and note where that comes from."""
    for outcome in await write(heads, target, copied.ops):
        result(outcome)
    await _note_origins(heads, target, copied.origins, nonce)


async def _note_origins(heads: Heads, key: ThreadKey, origins: Sequence[Origin], nonce: int) -> None:
    """Note the origins of a part of a thread. Two round trips; one if they are noted already, none without any."""
    notes = [origin.note() for origin in origins]

    def decide(seen: Seen[ThreadRows], _: int) -> Decision[None]:
        draft = Draft(seen.state.head)
        new = [note for note in notes if note not in draft.names]
        if not new:
            return Decision(None)
        assert seen.row is not None
        for note in new:
            draft.number(note)
        return Decision(None, Commit(next_batch(draft, seen.row, nonce=nonce, grown=0)))

    if notes:
        await commit(heads, key, partial(load_to_change, heads, key), decide)


class _Threads(NamedTuple):
    """The source, with its items if the target exists; and the rows of the target."""

    head: Head
    part: IntactThread
    existing: LoadedRows


class _Copied(NamedTuple):
    """The ops that are still to be made, what is left out of the copy, what is said about the source, its origins."""

    ops: list[Op]
    left_out: tuple[str, ...]
    description: str | None = None
    origins: Sequence[Origin] = ()


async def _describe_too(heads: Heads, target: ThreadKey, description: str | None, time: int, nonce: int) -> None:
    """Say about a thread that existed what is said about the source, unless something is said about it already."""
    if description is None:
        return

    async def decide(row: ThreadRow | None) -> tuple[dict[str, str] | None, None]:
        return {"description": description} if row is not None and row.description is None else None, None

    await change_row(heads, target, decide, time, nonce)


async def _read_head(heads: Heads, source: ThreadKey, loaded: LoadedRows, *, with_items: bool) -> Head:
    head = heads.head_from(source, loaded, None)
    if with_items and loaded.thread is not None:
        await _load_all_items(heads, head, loaded)
    return head


def _copy_to_new(head: Head, part: IntactThread, target: ThreadKey, time: int, epoch: int) -> CopyThread:
    """Copy a thread as it is, with its index entries."""
    loaded, row = part.loaded, part.loaded.thread
    assert row is not None
    labels = [(each.id, each.stored, each.tags) for each in copy_labels(head, _labels(loaded), target) if each.stored]
    draft = _with_origin(head, loaded, target)
    items = draft.sealed_items()
    size = row.bytes + sum(len(stored) - len(loaded.items[id]) for id, stored, _ in labels)
    size += sum(len(stored) for _, stored in items)
    thread = copied_row(row, target, time=time, epoch=epoch, size=size)._replace(nexts=tuple(draft.nexts))
    return CopyThread(row.key, (row.epoch, row.rev), thread, tuple(labels), items)


def _with_origin(head: Head, loaded: LoadedRows, target: ThreadKey) -> Draft:
    """Return a draft of a new thread with the content of this one, which notes its origin."""
    draft = Draft(head)
    if head.key.tenant == target.tenant:
        ids = [found.row.id for found in loaded.checkpoints if found.row is not None]
        ids += [row.checkpoint for found in loaded.checkpoints for row in found.writes]
        draft.number(Origin(head.key.id, max(ids, default="")).note())
    return draft


def _copy_part_to_new(head: Head, part: IntactThread, target: ThreadKey, time: int, epoch: int) -> ForkThread:
    """Copy the intact part of a thread."""
    loaded, row = part.loaded, part.loaded.thread
    assert row is not None
    labels = list(copy_labels(head, _labels(loaded), target))
    draft = _with_origin(head, loaded, target)
    items = {**part.replaced, **{each.id: each.stored for each in labels if each.stored}, **dict(draft.sealed_items())}
    batch = batch_of_rows(head, loaded, (NewLabels(each.id.n, each.tags) for each in labels))
    size = batch.thread.bytes + sum(map(len, items.values()))
    thread = copied_row(row, target, time=time, epoch=epoch, size=size)._replace(nexts=tuple(draft.nexts))
    ranges = itemlog.subtract(loaded.stored, [ItemRange(*id, 1) for id in items])
    return ForkThread(row.key, (row.epoch, row.rev), ranges, batch._replace(thread=thread, items=tuple(items.items())))


def batch_of_rows(head: Head, loaded: LoadedRows, labels: Iterable[NewLabels]) -> Batch:
    """Return all rows of a thread as a batch that makes a new one of them. Its bytes are those of the rows."""
    assert loaded.thread is not None
    rows = tuple(found.row for found in loaded.checkpoints if found.row is not None)
    writes = tuple(row for found in loaded.checkpoints for row in found.writes)
    runs = [row.run for row in rows]
    runs += [entry.origin[1] for row in writes for entry in head.task(row).entries.values()]
    size = sum(row.size for row in rows) + sum(row.size for row in writes)
    return Batch(
        expect=None,
        thread=loaded.thread._replace(bytes=size, lease=None),
        new_checkpoints=rows,
        new_writes=writes,
        labels=tuple(labels),
        runs=tuple(dict.fromkeys(run for run in runs if run is not None)),
    )


def _labels(loaded: LoadedRows) -> set[int]:
    return {found.row.labels for found in loaded.checkpoints if found.row is not None}


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
        is_same, compress = packed == head.shared(n), head.cache.compress
        stored = None if is_same else itemlog.seal_item(id, Item(packed), head.family, compress=compress)
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
