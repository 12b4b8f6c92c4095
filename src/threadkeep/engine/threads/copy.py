"""Copying a thread. The copy stands on its own: it survives its source.

Onto a new thread the stored bytes are copied inside the database, ids and all. Onto a thread that exists, checkpoints
are added that it has not, value by value but without decoding any; those that are there stay, so a retry is harmless.
Metadata that names the source as its thread_id names the target afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from threadkeep.engine.commit import Decision, Seen, commit, copied_row
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import Codec, Parts, pack, unpack
from threadkeep.engine.log.itemlog import SHARED, Item, ItemId
from threadkeep.engine.log.msgpack import WHOLE, split_parts
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites
from threadkeep.engine.requests import CopyThread, LoadedRows, LoadItems, LoadThreadRows
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import metadata_of, write
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.ops import Op, Put, PutWrites
from threadkeep.errors import Conflict
from threadkeep.plan import result


async def copy(
    heads: Heads, source: ThreadKey, target: ThreadKey, time: int, nonce: int, *, keeps_times: bool = False
) -> None:
    """Copy all checkpoints and writes; nothing happens if there is no source, or if it is the target.

    Three round trips onto a new thread; onto an existing one the source's items are read and written too. What is
    added there has the time of now, or its own if it `keeps_times`.
    """
    if source == target:
        return

    async def read() -> Seen[_CopySource]:
        loaded, there = await LoadThreadRows(source), await LoadThreadRows(target)
        head = heads.seen(source, loaded, None)
        if loaded.thread is not None and there.thread is not None and target.kind != CUBE:
            head = await _with_items(heads, head, loaded)
        return Seen(_CopySource(head, loaded, there), there.thread)

    def decide(seen: Seen[_CopySource], attempt: int) -> Decision[list[Op]]:
        head, loaded, there = seen.state
        if loaded.thread is None:
            return Decision([])
        if seen.row is None:
            return Decision([], _duplicate(head, loaded, target, time, nonce + attempt))
        if target.kind == CUBE:
            raise ValueError(f"there is a thread {target.id!r} already: two talks cannot become one")
        return Decision(_merged(head, loaded, there, target, None if keeps_times else time, nonce))

    ops = await commit(heads, target, read, decide, source=source)
    for outcome in await write(heads, target, ops) if ops else []:
        result(outcome)


class _CopySource(NamedTuple):
    """What is copied, with its items if the target exists; and the target."""

    head: Head
    loaded: LoadedRows
    there: LoadedRows


def _duplicate(head: Head, loaded: LoadedRows, target: ThreadKey, time: int, epoch: int) -> CopyThread:
    row = loaded.thread
    assert row is not None
    labels = tuple(_repointed(head, loaded, target))
    size = row.bytes + sum(len(stored) - len(loaded.items[at]) for at, stored, _ in labels)
    thread = copied_row(row, target, time=time, epoch=epoch, size=size)
    return CopyThread(row.key, (row.epoch, row.rev), thread, labels)


def _repointed(head: Head, loaded: LoadedRows, target: ThreadKey) -> Iterator[tuple[ItemId, bytes, tuple[bytes, ...]]]:
    """The labels of the copy that differ: those that name the source as their thread."""
    for n in {found.row.labels for found in loaded.checkpoints if found.row is not None}:
        labels = about_target(unpack(head.shared(n), f"labels {n} of {head.where}") or {}, head.key, target)
        at = ItemId(SHARED, n)
        if pack(labels) != head.shared(n):
            yield at, itemlog.seal_item(at, Item(pack(labels))), metadata.tags(labels)


def about_target(about: dict[str, Any], source: ThreadKey, target: ThreadKey) -> dict[str, Any]:
    """Metadata or labels in a copy: where they name the source as their thread, they name the target."""
    return about | {"thread_id": target.id} if about.get("thread_id") == source.id else about


async def _with_items(heads: Heads, head: Head, loaded: LoadedRows) -> Head:
    """The head with all items of a surveyed thread; Conflict if it was pruned since."""
    records, tasks = _rows(head, loaded)
    runs = [run for record in records for slot in record.slots.values() for run in slot.ranges]
    runs += [run for task in tasks for entry in task.entries.values() for run in entry.slot.ranges]
    items = await LoadItems(head.key, tuple(itemlog.union(runs)))
    if items.thread is None or head.row is None or items.thread.epoch != head.row.epoch or not heads.is_current(head):
        raise Conflict(f"{head.where} was pruned while it was copied")
    return heads.seen(head.key, items, head)


def _rows(head: Head, loaded: LoadedRows) -> tuple[list[CheckpointRecord], list[TaskWrites]]:
    records = [head.checkpoint(f.row) for f in loaded.checkpoints if f.row is not None]
    return records, [head.task(row) for f in loaded.checkpoints for row in f.writes]


def _merged(
    head: Head, loaded: LoadedRows, there: LoadedRows, target: ThreadKey, time: int | None, nonce: int
) -> list[Op]:
    """The puts of what the target does not have."""
    have = {(f.row.ns, f.row.id) for f in there.checkpoints if f.row is not None}
    records, tasks = _rows(head, loaded)
    ops: list[Op] = [_put_again(head, record, target, time, nonce) for record in _parents_first(records, have)]
    return ops + [op for task in tasks for op in _writes_again(head, task, time, nonce)]


def _parents_first(records: Iterable[CheckpointRecord], have: set[tuple[str, str]]) -> list[CheckpointRecord]:
    return sorted((r for r in records if (r.row.ns, r.row.id) not in have), key=lambda r: (r.row.ns, r.row.id))


def _put_again(head: Head, record: CheckpointRecord, target: ThreadKey, time: int | None, nonce: int) -> Put:
    """A put of what is stored: encoded already. Of its own time if none is given."""
    row = record.row
    checkpoint = {**record.fields, "id": row.id, "channel_versions": record.versions, "versions_seen": record.seen}
    op = Put(
        codec=Codec(None), ns=row.ns, parent=row.parent, checkpoint=checkpoint,
        given_metadata=about_target(metadata_of(head, record), head.key, target), new_versions={},
        time=row.time if time is None else time, nonce=nonce,
        hidden=row.hidden, only_new=True,
    )  # fmt: skip
    op.values = dict.fromkeys(record.slots)
    op.encoded = {name: _parts(head, slot) for name, slot in record.slots.items()}
    op.rest = record.rest
    return op


def _writes_again(head: Head, task: TaskWrites, time: int | None, nonce: int) -> Iterator[PutWrites]:
    row = task.row
    for idx, entry in task.entries.items():
        path, run, own = entry.origin
        writes, at = [(idx, entry.channel, _parts(head, entry.slot))], own if time is None else time
        yield PutWrites(row.ns, row.checkpoint, row.task, path, run, writes, at, nonce, only_new=True)


def _parts(head: Head, slot: Slot) -> Parts:
    """A stored value as parts again."""
    if slot.inline is not None:
        return Parts(slot.kind, slot.tag, [slot.inline], slot.snapshot)
    data = head.bytes_of(slot.ranges)
    elements = [data] if slot.kind == WHOLE else list(split_parts(data, slot.elements))
    return Parts(slot.kind, slot.tag, elements, slot.snapshot)
