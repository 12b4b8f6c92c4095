"""Valkey: how rows become bytes and come back, and the fields and places that they have in a thread's keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import ormsgpack

from threadkeep.engine.identity import ThreadKey, from_bytes, to_bytes
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.memories.namespaces import decode, encode


def segments(member: bytes, count: int) -> tuple[str, ...]:
    """Encoded segments, and the rest as it is."""
    *encoded, rest = member.split(b"\x00\x01", count)
    return (*(decode(each + b"\x00\x01")[0] for each in encoded), from_bytes(rest))


def space_place(ns: str) -> bytes:
    """How the place of a checkpoint of a namespace begins."""
    return b"c" + encode((ns,))


def row_place(ns: str, id: str) -> bytes:
    """The field of a checkpoint; its place, if it is visible."""
    return b"c" + encode((ns, id))[:-2]


def visible_place(row: CheckpointRow) -> bytes:
    """The place of a checkpoint in the order."""
    place = row_place(row.ns, row.id)
    return b"h" + place[1:] if row.hidden else place


def task_place(ns: str, checkpoint: str, task: str) -> bytes:
    """The field, and the place, of a task's writes."""
    return b"w" + encode((ns, checkpoint)) + to_bytes(task)


def write_place(row: WriteRow) -> bytes:
    """The field, and the place, of a row of writes."""
    return task_place(row.ns, row.checkpoint, row.task)


def item_field(at: tuple[int, int]) -> bytes:
    """The field of an item."""
    return b"i%d:%d" % at


def item_id(field: bytes) -> ItemId:
    """The id of an item, by its field."""
    lane, _, n = field[1:].partition(b":")
    return ItemId(int(lane), int(n))


def _bytes(text: str | None) -> bytes | None:
    return to_bytes(text) if text is not None else None


def _text(data: bytes | None) -> str | None:
    return from_bytes(data) if data is not None else None


def pack_thread(row: ThreadRow) -> bytes:
    """A thread's row, without its bytes. In clear, for scripts: how many names it has."""
    texts = (row.top, row.run, row.source, row.status, row.early, row.early_status)
    packed = ormsgpack.packb(
        [*map(to_bytes, row.key), row.epoch, row.rev, row.nexts, row.created, row.updated, row.checkpoints, row.writes,
         row.step, row.labels, row.lease, *map(_bytes, texts)]
    )  # fmt: skip
    return b"%d\n%s" % (row.nexts[0] if row.nexts else 0, packed)


def thread_row(stored: bytes, size: bytes) -> ThreadRow:
    """The row that `pack_thread` was given."""
    tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, step, labels, lease, *texts = (
        ormsgpack.unpackb(stored.partition(b"\n")[2])
    )
    top, run, source, status, early, early_status = map(_text, texts)
    return ThreadRow(
        key=ThreadKey(*map(from_bytes, (tenant, kind, id))), epoch=epoch, rev=rev, nexts=tuple(nexts), created=created,
        updated=updated, checkpoints=checkpoints, writes=writes, bytes=int(size), top=top, run=run, step=step,
        source=source, status=status or "idle", labels=labels, early=early, early_status=early_status, lease=lease,
    )  # fmt: skip


def pack_checkpoint(row: CheckpointRow) -> bytes:
    """A checkpoint's row. In clear, for scripts: its labels and refs, and its parent's id, escaped, with its length."""
    parent = encode((row.parent,))[:-2] if row.parent is not None else None
    packed = ormsgpack.packb(
        [to_bytes(row.ns), to_bytes(row.id), _bytes(row.run), row.step, _bytes(row.source), row.time, row.hidden, row.body]
    )  # fmt: skip
    said = (b"%d" % len(parent), parent) if parent is not None else (b"", b"")
    return b"%s\n%s:%s%s" % (_numbers((row.labels, *_flat(row.refs))), *said, packed)


def checkpoint_row(stored: bytes) -> CheckpointRow:
    """The row that `pack_checkpoint` was given."""
    numbers, _, rest = stored.partition(b"\n")
    length, _, rest = rest.partition(b":")
    end = int(length or 0)
    parent = decode(rest[:end] + b"\x00\x01")[0] if length else None
    labels, *refs = map(int, numbers.split(b","))
    ns, id, run, step, source, time, hidden, body = ormsgpack.unpackb(rest[end:])
    return CheckpointRow(
        from_bytes(ns), from_bytes(id), parent, _text(run), step, _text(source), labels, time, hidden, _runs(refs), body
    )


def pack_write(row: WriteRow) -> bytes:
    """A row of writes. In clear, for scripts: its refs."""
    packed = ormsgpack.packb(
        [*map(to_bytes, (row.ns, row.checkpoint, row.task, row.path)), _bytes(row.run), row.time, row.index, row.body]
    )
    return _numbers(_flat(row.refs)) + b"\n" + packed


def write_row(stored: bytes) -> WriteRow:
    """The row that `pack_write` was given."""
    numbers, _, packed = stored.partition(b"\n")
    ns, checkpoint, task, path, run, time, index, body = ormsgpack.unpackb(packed)
    refs = _runs(list(map(int, numbers.split(b",")))) if numbers else ()
    texts = (from_bytes(ns), from_bytes(checkpoint), from_bytes(task), from_bytes(path))
    return WriteRow(*texts, _text(run), time, tuple(index), refs, body)


def _numbers(numbers: Iterable[int]) -> bytes:
    return b",".join([b"%d" % number for number in numbers])


def _flat(runs: Iterable[ItemRange]) -> list[int]:
    return [number for run in runs for number in run]


def _runs(flat: Sequence[int]) -> tuple[ItemRange, ...]:
    return tuple(ItemRange(*flat[i : i + 3]) for i in range(0, len(flat), 3))
