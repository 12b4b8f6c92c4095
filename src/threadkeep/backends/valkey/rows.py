"""How rows become bytes on Valkey and back, and their fields in a thread's hash and members in its order.

A row starts with the numbers that scripts read, in plain decimal; the rest is msgpack.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import ormsgpack

from threadkeep.engine.identity import ThreadKey, from_bytes
from threadkeep.engine.log.itemlog import ItemId, ItemRange, new_tuple
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow, checked_thread, thread_checksum
from threadkeep.engine.memories.namespaces import END, decode, encode, encode_segment
from threadkeep.engine.requests import CheckpointRows
from threadkeep.errors import Corrupt, reason

_UTF8 = ("utf-8", "surrogatepass")
"""How `identity.to_bytes` and `from_bytes` convert. Rows do it without them, because each call counts there."""
_TEXTS = 7
"""How many texts follow the other values of a thread's row; the last one may be missing."""
_TASK = attrgetter("task")
_FACTS = 4
"""How many plain numbers follow the first one in a thread's row, if the thread is not encrypted."""


def segments(member: bytes, count: int) -> tuple[Any, ...]:
    """Split a member of a set: `count` encoded segments, and the rest as plain text."""
    *encoded, rest = member.split(b"\x00\x01", count)
    return (*(decode(each + b"\x00\x01")[0] for each in encoded), from_bytes(rest))


def namespace_prefix(ns: str) -> bytes:
    """Return the start of the fields and members of a namespace's visible checkpoints."""
    return b"c" + encode((ns,))


def checkpoint_field(ns: str, id: str) -> bytes:
    """Return the field of a checkpoint, which is also its member in the order if it is visible."""
    return b"c%b%b%b" % (encode_segment(ns), END, encode_segment(id))


def checkpoint_id(field: bytes) -> str:
    """Return the id of the checkpoint with a field."""
    return field.partition(END)[2].replace(b"\x00\xff", b"\x00").decode(*_UTF8)


def order_member(row: CheckpointRow) -> bytes:
    """Return the member of a checkpoint in the order."""
    field = checkpoint_field(row.ns, row.id)
    return b"h" + field[1:] if row.hidden else field


def task_field(ns: str, checkpoint: str, task: str) -> bytes:
    """Return the field of a task's writes, which is also their member in the order."""
    return b"w%b%b%b%b%b" % (encode_segment(ns), END, encode_segment(checkpoint), END, task.encode(*_UTF8))


def write_field(row: WriteRow) -> bytes:
    """Return the field of a row of writes, which is also its member in the order."""
    return task_field(row.ns, row.checkpoint, row.task)


def item_field(id: tuple[int, int]) -> bytes:
    """Return the field of an item."""
    return b"i%d:%d" % id


def item_id(field: bytes) -> ItemId:
    """Return the id of the item with a field."""
    lane, _, n = field[1:].partition(b":")
    return ItemId(int(lane), int(n))


def _maybe_text(data: bytes | None) -> str | None:
    return from_bytes(data) if data is not None else None


def pack_thread(row: ThreadRow) -> bytes:
    """Return a thread's row as bytes, without its size.

    The plain numbers are how many names it has, its checksum, family, and numbers of writes; these may be empty. In an
    encrypted thread the length of `sealed` follows, which then comes before the rest. In a thread with a lease a 1
    comes after that, for scripts.
    """
    texts = (*row.key, row.top, row.run, row.source, row.status, row.early, row.early_status)
    encoded = [text.encode(*_UTF8) if text is not None else None for text in texts]
    if row.description is not None:  # only then is there another text
        encoded.append(row.description.encode())
    counts = (row.created, row.updated, row.checkpoints, row.writes, row.step, row.labels)
    packed = ormsgpack.packb([*encoded[:3], row.epoch, row.rev, row.nexts, *counts, row.lease, *encoded[3:]])
    facts = (row.nexts[0] if row.nexts else 0, thread_checksum(row), row.family, row.top_writes, row.early_writes)
    plain = ",".join(["" if each is None else str(each) for each in facts])
    if row.lease is not None:
        length = "" if row.sealed is None else str(len(row.sealed))
        return b"%b,%b,1\n%b%b" % (plain.encode(), length.encode(), row.sealed or b"", packed)
    if row.sealed is not None:
        return b"%b,%d\n%b%b" % (plain.encode(), len(row.sealed), row.sealed, packed)
    return b"%b\n%b" % (plain.encode(), packed)


def read_thread(stored: bytes, size: bytes, key: ThreadKey) -> ThreadRow:
    """Read the row of a thread. Corrupt if it is damaged."""
    try:
        row = thread_row(stored, size)
    except Exception as error:
        raise Corrupt(f"the row of thread {key.id!r} cannot be read: {reason(error)}") from error
    return checked_thread(row, key)


def thread_row(stored: bytes, size: bytes) -> ThreadRow:
    """Read the row that `pack_thread` was given, and its size: a number twice, once in rows of older versions."""
    plain, _, packed = stored.partition(b"\n")
    facts = [int(each) if each else None for each in plain.split(b",")[1:]]
    sealed = None
    if len(facts) > _FACTS:
        length = facts[_FACTS]
        if length is not None:
            sealed, packed = packed[:length], packed[length:]
        del facts[_FACTS:]
    checksum, family, top_writes, early_writes = facts or (None, 0, None, None)
    number, _, again = size.partition(b":")
    tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, step, labels, lease, *texts = (
        ormsgpack.unpackb(packed)
    )
    top, run, source, status, early, early_status, description = map(_maybe_text, (*texts, None)[:_TEXTS])
    return ThreadRow(
        key=ThreadKey(*map(from_bytes, (tenant, kind, id))),  # type: ignore[arg-type]
        epoch=epoch,
        rev=rev,
        nexts=tuple(nexts),
        created=created,
        updated=updated,
        checkpoints=checkpoints,
        writes=writes,
        bytes=int(number),
        top=top,
        run=run,
        step=step,
        source=source,
        status=status or "idle",
        labels=labels,
        early=early,
        early_status=early_status,
        lease=lease,
        family=family or 0,
        top_writes=top_writes,
        early_writes=early_writes,
        bytes_check=int(again) if again else None,
        checksum=checksum,
        sealed=sealed,
        description=description,
    )


def family_of(stored: bytes) -> int:
    """Return the family in a thread's row, or 0 if there is none or it is damaged."""
    facts = stored.partition(b"\n")[0].split(b",")
    return int(facts[2]) if len(facts) > 2 and facts[2].isdigit() else 0


def sealed_of(stored: bytes) -> bytes | None:
    """Return `sealed` of a thread's row, or None if there is none or it is damaged."""
    plain, _, rest = stored.partition(b"\n")
    facts = plain.split(b",")
    return rest[: int(facts[_FACTS + 1])] if len(facts) > _FACTS + 1 and facts[_FACTS + 1].isdigit() else None


def pack_checkpoint(row: CheckpointRow) -> bytes:
    """Return a checkpoint's row as bytes. In plain form: labels, refs, and the parent's encoded id after its length."""
    ns, id, parent, run, step, source, labels, time, hidden, refs, body = row
    run_bytes = run.encode(*_UTF8) if run is not None else None
    source_bytes = source.encode(*_UTF8) if source is not None else None
    packed = ormsgpack.packb([ns.encode(*_UTF8), id.encode(*_UTF8), run_bytes, step, source_bytes, time, hidden, body])
    numbers = ",".join(map(str, chain((labels,), *refs))).encode()
    if parent is None:
        return b"%b\n:%b" % (numbers, packed)
    parent_bytes = encode_segment(parent)
    return b"%b\n%d:%b%b" % (numbers, len(parent_bytes), parent_bytes, packed)


def checkpoint_row(stored: bytes) -> CheckpointRow:
    """Read the row that `pack_checkpoint` was given."""
    numbers, _, rest = stored.partition(b"\n")
    length, _, rest = rest.partition(b":")
    end = int(length or 0)
    parent = decode(rest[:end] + b"\x00\x01")[0] if length else None
    labels, *refs = map(int, numbers.split(b","))
    ns, id, run, step, source, time, hidden, body = ormsgpack.unpackb(rest[end:])
    run = run.decode(*_UTF8) if run is not None else None
    source = source.decode(*_UTF8) if source is not None else None
    columns = (ns.decode(*_UTF8), id.decode(*_UTF8), parent, run, step, source, labels, time, hidden)
    return new_tuple(CheckpointRow, (*columns, _ranges(refs), body))


def checkpoint_at(field: bytes, stored: bytes) -> CheckpointRow:
    """Read the row of the checkpoint with a field. ValueError if it is that of another one."""
    row = checkpoint_row(stored)
    if checkpoint_field(row.ns, row.id) != field:
        raise ValueError(f"the row is that of checkpoint {row.id!r} of namespace {row.ns!r}")
    return row


def pack_write(row: WriteRow) -> bytes:
    """Return a row of writes as bytes. In plain form: its refs."""
    ns, checkpoint, task, path, run, time, index, refs, body = row
    texts = (ns.encode(*_UTF8), checkpoint.encode(*_UTF8), task.encode(*_UTF8), path.encode(*_UTF8))
    run_bytes = run.encode(*_UTF8) if run is not None else None
    packed = ormsgpack.packb([*texts, run_bytes, time, index, body])
    return b"%b\n%b" % (",".join(map(str, chain.from_iterable(refs))).encode(), packed)


def write_row(stored: bytes) -> WriteRow:
    """Read the row that `pack_write` was given."""
    numbers, _, packed = stored.partition(b"\n")
    ns, checkpoint, task, path, run, time, index, body = ormsgpack.unpackb(packed)
    refs = _ranges(list(map(int, numbers.split(b",")))) if numbers else ()
    texts = (ns.decode(*_UTF8), checkpoint.decode(*_UTF8), task.decode(*_UTF8), path.decode(*_UTF8))
    run = run.decode(*_UTF8) if run is not None else None
    return new_tuple(WriteRow, (*texts, run, time, tuple(index), refs, body))


def rows_at(ns: str, id: str, row: bytes | None, writes: Sequence[bytes]) -> CheckpointRows:
    """Read the row of a checkpoint, if it is there, and those of the writes on it.

    ValueError if one of them is that of another checkpoint, or if two are those of one task.
    """
    checkpoint = checkpoint_row(row) if row is not None else None
    found = tuple(map(write_row, writes))
    if checkpoint is not None and (checkpoint.id != id or checkpoint.ns != ns):
        raise ValueError(f"the row is that of checkpoint {checkpoint.id!r} of namespace {checkpoint.ns!r}")
    for each in found:
        if each.checkpoint != id or each.ns != ns:
            raise ValueError(f"a row is that of task {each.task!r} on checkpoint {each.checkpoint!r}")
    if len(found) > 1 and len(set(map(_TASK, found))) < len(found):
        raise ValueError("two rows are those of one task")
    return CheckpointRows(checkpoint, found)


def _ranges(flat: Sequence[int]) -> tuple[ItemRange, ...]:
    numbers = iter(flat)
    try:
        return tuple(map(new_tuple, repeat(ItemRange), zip(numbers, numbers, numbers, strict=True)))
    except ValueError as error:
        raise TypeError("an item range is cut off") from error
