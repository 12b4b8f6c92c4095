"""Load all rows of a thread, the damaged ones apart from the others.

An intact thread is one request. If one of its rows cannot be read, the thread is loaded again as `verify` reads it: row
by row, so that a damaged row does not hide the others.
"""

from __future__ import annotations

from threadkeep.engine.commit import Seen, missing_rows
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.health.thread_scan import ThreadScan, scan_thread
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.itemlog import NAMES, join_ranges
from threadkeep.engine.requests import LoadThreadRows
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import DamagedCheckpoint, DamagedWrites, ThreadRows, thread_rows
from threadkeep.errors import Corrupt, Missing


async def load_rows(heads: Heads, key: ThreadKey) -> ThreadRows | None:
    """Return all rows of a thread; None if it does not exist. One round trip; two if a row is damaged.

    Corrupt if the thread's own row is damaged: then `repair` has to rebuild it first.
    """
    try:
        loaded = await LoadThreadRows(key)
        found = thread_rows(heads, key, loaded)
        return found._replace(incomplete=missing_rows(loaded)) if found is not None else None
    except Corrupt:
        scan = scan_thread(key, await InspectThread(key))
        if not scan.inspected.exists:
            return None
        if scan.row is None or any(each.checkpoint is None and each.item is None for each in scan.problems):
            raise
        scan.cache.era = heads.era
        return rows_of_scan(scan)


async def load_thread_rows(heads: Heads, key: ThreadKey) -> ThreadRows:
    """Return all rows of a thread, as `load_rows` does. Missing if it does not exist."""
    found = await load_rows(heads, key)
    if found is None:
        raise Missing(f"thread {key.id!r} not found")
    return found


async def load_to_change(heads: Heads, key: ThreadKey) -> Seen[ThreadRows]:
    """Return all rows of a thread, for a verb that adds to it. Missing if it does not exist.

    Corrupt if names of channels or nodes are damaged: new rows could not refer to them. One round trip; two if a row is
    damaged.
    """
    found = await load_thread_rows(heads, key)
    if found.names_damaged:
        raise Corrupt(f"names of channels or nodes of thread {key.id!r} are damaged: nothing can be added to it")
    return Seen(found, found.head.row, found.records)


def rows_of_scan(scan: ThreadScan) -> ThreadRows:
    """Return the rows of a scanned thread whose own row can be read. A checkpoint without its labels is damaged."""
    reasons: dict[tuple[str | None, str | None, str | None], str] = {}
    for problem in scan.problems:
        reasons.setdefault((problem.ns, problem.checkpoint, problem.task), problem.message)
    rows = {(row.ns, row.id): row for row in scan.inspected.checkpoints}
    tasks = {(row.ns, row.checkpoint, row.task): row for row in scan.inspected.writes}
    damaged = {key: DamagedCheckpoint(reasons[(*key, None)], rows.get(key)) for key in scan.broken}
    for key, record in scan.records.items():
        if scan.labels(record.row.labels) is None:
            damaged[key] = DamagedCheckpoint(f"its labels (number {record.row.labels}) cannot be read", record.row)
    return ThreadRows(
        scan.head(),
        {key: record for key, record in scan.records.items() if key not in damaged},
        scan.tasks,
        join_ranges(sorted((lane, n) for lane, n, _ in scan.inspected.item_sizes)),
        damaged,
        {key: DamagedWrites(reasons[key], tasks.get(key)) for key in scan.broken_writes},
        any(id.lane == NAMES for id in scan.bad_items),
    )
