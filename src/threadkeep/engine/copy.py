"""Copying a thread. The copy stands on its own: it survives its source.

Onto a new thread the stored bytes are copied inside the database, ids and all. Onto a thread that exists, checkpoints
are added that it has not, value by value but without decoding any; those that are there stay, so a retry is harmless.
Metadata that names the source as its thread_id names the target afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from threadkeep.engine import itemlog, metadata
from threadkeep.engine.backend import Duplicate, Items, Loaded, Pause, Survey
from threadkeep.engine.checkpoints import TRIES, about, write
from threadkeep.engine.codec import Codec, Parts, pack, unpack
from threadkeep.engine.heads import Head, Heads
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.itemlog import SHARED, Item, ItemId
from threadkeep.engine.ops import Put, PutWrites
from threadkeep.engine.records import Record, Slot, TaskWrites
from threadkeep.engine.wire import WHOLE, split_parts
from threadkeep.errors import Conflict
from threadkeep.plan import result


async def copy(
    heads: Heads, source: ThreadKey, target: ThreadKey, time: int, draw: int, *, keeps_times: bool = False
) -> None:
    """Copy all checkpoints and writes; nothing happens if there is no source, or if it is the target.

    Three round trips onto a new thread; onto an existing one the source's items are read and written too. What is
    added there has the time of now, or its own if it `keeps_times`.
    """
    if source == target:
        return
    for attempt in range(TRIES):
        loaded, there = await Survey(source), await Survey(target)
        if loaded.thread is None:
            return
        try:
            if there.thread is not None and draw <= there.thread.epoch < draw + attempt:
                return  # the answer to an earlier try got lost
            if there.thread is not None and target.kind == CUBE:
                raise ValueError(f"there is a thread {target.id!r} already: two talks cannot become one")
            if there.thread is None:
                await _duplicate(heads.seen(source, loaded, None), loaded, target, time, draw + attempt)
            else:
                await _merge(heads, source, loaded, target, there, None if keeps_times else time, draw)
        except Conflict:
            await Pause(attempt)
            continue
        return
    raise Conflict(f"thread {source.id!r} or {target.id!r} was changed by others at each of {TRIES} tries")


async def _duplicate(head: Head, loaded: Loaded, target: ThreadKey, time: int, draw: int) -> None:
    row = loaded.thread
    assert row is not None
    labels = tuple(_repointed(head, loaded, target))
    size = row.bytes + sum(len(stored) - len(loaded.items[at]) for at, stored, _ in labels)
    thread = row._replace(key=target, epoch=draw, rev=0, created=time, updated=time, bytes=size, lease=None)
    await Duplicate(row.key, (row.epoch, row.rev), thread, labels)


def _repointed(head: Head, loaded: Loaded, target: ThreadKey) -> Iterator[tuple[ItemId, bytes, tuple[bytes, ...]]]:
    """The labels of the copy that differ: those that name the source as their thread."""
    for n in {found.row.labels for found in loaded.found if found.row is not None}:
        labels = about_target(unpack(head.shared(n), f"labels {n} of {head.where}") or {}, head.key, target)
        at = ItemId(SHARED, n)
        if pack(labels) != head.shared(n):
            yield at, itemlog.seal_item(at, Item(pack(labels))), metadata.tags(labels)


def about_target(about: dict[str, Any], source: ThreadKey, target: ThreadKey) -> dict[str, Any]:
    """Metadata or labels in a copy: where they name the source as their thread, they name the target."""
    return about | {"thread_id": target.id} if about.get("thread_id") == source.id else about


async def _merge(
    heads: Heads, source: ThreadKey, loaded: Loaded, target: ThreadKey, there: Loaded, time: int | None, draw: int
) -> None:
    head = heads.seen(source, loaded, None)
    have = {(f.row.ns, f.row.id) for f in there.found if f.row is not None}
    records = [head.checkpoint(f.row) for f in loaded.found if f.row is not None]
    tasks = [head.task(row) for f in loaded.found for row in f.writes]
    runs = [run for record in records for slot in record.slots.values() for run in slot.runs]
    runs += [run for task in tasks for entry in task.entries.values() for run in entry.slot.runs]
    items = await Items(source, tuple(itemlog.union(runs)))
    if items.thread is None or head.row is None or items.thread.epoch != head.row.epoch or not heads.is_current(head):
        raise Conflict(f"thread {source.id!r} was pruned while it was copied")
    head = heads.seen(source, items, head)
    ops: list[Put | PutWrites] = [
        _put_again(head, record, target, time, draw) for record in _parents_first(records, have)
    ]
    ops += [op for task in tasks for op in _writes_again(head, task, time, draw)]
    for outcome in await write(heads, target, ops) if ops else []:
        result(outcome)


def _parents_first(records: Iterable[Record], have: set[tuple[str, str]]) -> list[Record]:
    return sorted((r for r in records if (r.row.ns, r.row.id) not in have), key=lambda r: (r.row.ns, r.row.id))


def _put_again(head: Head, record: Record, target: ThreadKey, time: int | None, draw: int) -> Put:
    """A put of what is stored: encoded already. Of its own time if none is given."""
    row = record.row
    checkpoint = {**record.fields, "id": row.id, "channel_versions": record.versions, "versions_seen": record.seen}
    op = Put(
        codec=Codec(None), ns=row.ns, parent=row.parent, checkpoint=checkpoint,
        given_metadata=about_target(about(head, record), head.key, target), new_versions={},
        time=row.time if time is None else time, draw=draw,
        hidden=row.hidden, only_new=True,
    )  # fmt: skip
    op.values = dict.fromkeys(record.slots)
    op.encoded = {name: _parts(head, slot) for name, slot in record.slots.items()}
    op.rest = record.rest
    return op


def _writes_again(head: Head, task: TaskWrites, time: int | None, draw: int) -> Iterator[PutWrites]:
    row = task.row
    for idx, entry in task.entries.items():
        path, run, own = entry.origin
        writes, at = [(idx, entry.channel, _parts(head, entry.slot))], own if time is None else time
        yield PutWrites(row.ns, row.checkpoint, row.task, path, run, writes, at, draw, only_new=True)


def _parts(head: Head, slot: Slot) -> Parts:
    """A stored value as parts again."""
    if slot.inline is not None:
        return Parts(slot.kind, slot.tag, [slot.inline], slot.snapshot)
    data = head.bytes_of(slot.runs)
    elements = [data] if slot.kind == WHOLE else list(split_parts(data, slot.elements))
    return Parts(slot.kind, slot.tag, elements, slot.snapshot)
