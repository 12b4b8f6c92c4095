"""Rebuild a thread's own row from its other rows: its newest checkpoint, its status, its counters.

The row is rebuilt if it is damaged, and corrected if it does not match the other rows. Both use the function with which
`prune` counts what remains of a thread.
"""

from __future__ import annotations

from typing import NamedTuple

from threadkeep.engine.commit import Decision, Seen, commit
from threadkeep.engine.cube import channels
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.health.thread_scan import ThreadScan, scan_thread
from threadkeep.engine.health.verify_rows import rows_size
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.requests import Batch, Commit
from threadkeep.engine.threads import description
from threadkeep.engine.threads.damaged_rows import rows_of_scan
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.survivors import PruneSelection, find_survivors, recount
from threadkeep.engine.threads.thread_rows import ThreadRows
from threadkeep.errors import Corrupt

_FIXED = ("epoch", "rev", "created", "bytes", "family", "bytes_check", "checksum")


class RowRepair(NamedTuple):
    """What became of a thread's row: whether it was damaged, and the columns that are changed."""

    was_damaged: bool = False
    columns: tuple[str, ...] = ()


async def repair_thread_row(heads: Heads, key: ThreadKey, nonce: int, *, dry_run: bool) -> RowRepair:
    """Rebuild the row of a thread if it is damaged or does not match the other rows. `nonce` is its new epoch.

    Corrupt if not even its fixed columns can be read. One round trip, one more for a cube thread, and one to commit.
    """

    async def read() -> Seen[tuple[ThreadScan, ThreadRow] | None]:
        scan = scan_thread(key, await InspectThread(key))
        if not scan.inspected.exists:
            return Seen(None, None)
        row = None if is_row_damaged(scan) else scan.row  # a lease in a damaged row does not count
        return Seen((scan, await _rebuilt_row(scan)), row)

    def decide(seen: Seen[tuple[ThreadScan, ThreadRow] | None], attempt: int) -> Decision[RowRepair]:
        if seen.state is None:
            return Decision(RowRepair())
        scan, row = seen.state
        found, damaged = scan.inspected, is_row_damaged(scan)
        if found.fixed is None or (found.unreadable and not damaged):
            return Decision(RowRepair())  # rows that cannot be read cannot be counted
        epoch, rev, _, stored = found.fixed
        size = sum(size for _, _, size in found.item_sizes) + rows_size(found)
        names = (name for name in row._fields if name not in _FIXED)
        columns = [name for name in names if found.thread is None or getattr(row, name) != getattr(found.thread, name)]
        columns += ["bytes"] * (size != stored)
        if not columns and not damaged:
            return Decision(RowRepair())
        row = row._replace(epoch=nonce + attempt, rev=rev + 1, bytes=size - stored)
        return Decision(RowRepair(damaged, tuple(columns)), None if dry_run else Commit(Batch((epoch, rev), row)))

    return await commit(heads, key, read, decide)


def is_row_damaged(scan: ThreadScan) -> bool:
    """Return whether the thread's own row is damaged. Call it before the rows are compared with each other."""
    return scan.row is None or scan.is_row_damaged


async def _rebuilt_row(scan: ThreadScan) -> ThreadRow:
    """The row as it follows from the other rows. Of a row that is not damaged, what they do not tell stays."""
    if is_row_damaged(scan):
        fixed = scan.inspected.fixed
        if fixed is None:
            raise Corrupt(f"the row of {scan.where} cannot be rebuilt: not even its version can be read")
        empty = ThreadRow(scan.key, fixed.epoch, fixed.rev, (), fixed.created, fixed.created, family=scan.family)
        empty = empty._replace(sealed=scan.inspected.sealed, description=_readable_description(scan))
        scan = scan_thread(scan.key, scan.inspected._replace(thread=empty))
        times = [record.row.time for record in scan.records.values()]
        times += [task.row.time for tasks in scan.tasks.values() for task in tasks]
        updated = max(times, default=fixed.created)
        row = _recounted(rows_of_scan(scan))._replace(updated=updated)
    else:
        row = _recounted(rows_of_scan(scan))
    return await with_cube_status(scan, row)


def _readable_description(scan: ThreadScan) -> str | None:
    """Return what people said about a thread, as far as a damaged row can be read: nothing else tells it."""
    row = scan.inspected.thread
    try:
        return description.pack(description.unpack(row.description, scan.where)) if row is not None else None
    except Corrupt:
        return None


async def with_cube_status(scan: ThreadScan, row: ThreadRow) -> ThreadRow:
    """Return the row of a cube thread with the status that its newest checkpoint gives; others are unchanged.

    One round trip for a cube thread.
    """
    record = scan.records.get(("", row.top or ""))
    if scan.key.kind != CUBE or record is None:
        return row
    await scan.fetch(record.slots[name] for name in (channels.EVENTS, channels.PENDING) if name in record.slots)
    try:
        return row._replace(status=channels.status_at(scan.head(), record))
    except Corrupt:
        return row


def _recounted(thread: ThreadRows) -> ThreadRow:
    hidden = {key for key, record in thread.records.items() if record.row.hidden}
    everything = PruneSelection(thread.records.keys() - hidden, lambda *_: True, hidden)
    return recount(thread, find_survivors(thread, everything))
