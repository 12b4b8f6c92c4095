"""Changes of threads in SQL, statement by statement: commit a batch, copy, fork and drop a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.rows import range_values, thread_row
from threadkeep.engine.identity import ThreadKey, pack_id, to_bytes
from threadkeep.engine.log.itemlog import SHARED
from threadkeep.engine.log.records import checked_thread
from threadkeep.engine.requests import Batch, Commit, CopyThread, DropThread, ForkThread
from threadkeep.errors import Conflict
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext


def item_values(number: int, change: Batch | CopyThread) -> Iterator[dict[str, Any]]:
    """Yield the new items of a change as values."""
    return ({"thread": number, "lane": item.lane, "n": item.n, "payload": stored} for item, stored in change.items)


def tag_values(number: int, batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield the new index entries of a batch as values."""
    return ({"thread": number, "labels": labels.n, "tag": tag} for labels in batch.labels for tag in labels.tags)


def run_values(number: int, batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield the runs of a batch as values."""
    return ({"thread": number, "run": pack_id(run)} for run in batch.runs)


def only_adds(batch: Batch) -> bool:
    """Return whether a batch removes nothing."""
    return not (
        batch.drops_thread
        or batch.removed_checkpoints
        or batch.removed_writes
        or batch.removed_items
        or batch.removed_runs
    )


def _commit(db: SqlContext, request: Commit) -> None:
    _apply(db, request.batch)


def _apply(db: SqlContext, batch: Batch) -> int:
    """Apply a batch and return the thread's number. Raise Conflict if the thread is not as the batch expects."""
    if batch.thread.sealed is None:
        db.dialect.check_plain(db, batch.thread.key.tenant)
    values = db.dialect.thread_values(batch.thread)
    if batch.expect is None:
        changed = db.one("insert-thread", **values)
    else:
        changed = db.one("update-thread", **values, expect_epoch=batch.expect[0], expect_rev=batch.expect[1])
    if changed is None:
        raise Conflict
    number = int(changed[0])
    if batch.drops_thread:
        _delete_thread(db, number)
        return number
    if not only_adds(batch):
        _remove_rows(db, number, batch)
    _add_rows(db, number, batch)
    return number


def _remove_rows(db: SqlContext, number: int, batch: Batch) -> None:
    db.many(
        "delete-checkpoints",
        ({"thread": number, "ns": to_bytes(ns), "id": to_bytes(id)} for ns, id in batch.removed_checkpoints),
    )
    db.many(
        "delete-writes",
        (
            {"thread": number, "ns": to_bytes(ns), "checkpoint": to_bytes(id), "task": pack_id(task)}
            for ns, id, task in batch.removed_writes
        ),
    )
    ranges = [(each.lane, {"thread": number, **range_values(each)}) for each in batch.removed_items]
    freed = db.dialect.count_bytes(db, number, batch.removed_items)
    db.many("delete-items", (values for _, values in ranges))
    db.many("delete-tags", (values for lane, values in ranges if lane == SHARED))
    db.many("delete-runs", ({"thread": number, "run": pack_id(run)} for run in batch.removed_runs))
    if freed:
        db.rows("subtract-bytes", thread=number, freed=freed)


def _add_rows(db: SqlContext, number: int, batch: Batch) -> None:
    dialect = db.dialect
    if batch.items:
        db.many("insert-items", item_values(number, batch))
    if rows := batch.new_checkpoints:
        _expect_all_added(db.many("insert-checkpoints", dialect.checkpoint_values(number, rows)), rows)
    if batch.changed_checkpoints:
        db.many("upsert-checkpoints", dialect.checkpoint_values(number, batch.changed_checkpoints))
    if tasks := batch.new_writes:
        _expect_all_added(db.many("insert-writes", dialect.write_values(number, tasks)), tasks)
    if batch.changed_writes:
        db.many("upsert-writes", dialect.write_values(number, batch.changed_writes))
    if batch.labels:
        db.many("insert-tags", tag_values(number, batch))
    if batch.runs:
        db.many("insert-runs", run_values(number, batch))


def _expect_all_added(added: int, rows: Sequence[Any]) -> None:
    if added != len(rows):
        raise Conflict


def _lock_expected(db: SqlContext, key: ThreadKey, expect: tuple[int, int]) -> int:
    """Lock a thread and return its number. Raise Conflict if it is not at the expected version."""
    thread = db.thread(key, lock=True)
    if thread is None or (thread[1].epoch, thread[1].rev) != expect:
        raise Conflict
    return thread[0]


def _fork_thread(db: SqlContext, request: ForkThread) -> None:
    source = _lock_expected(db, request.source, request.expect)
    target = _apply(db, request.batch)
    db.many("copy-item-range", ({"thread": source, "target": target, **range_values(each)} for each in request.ranges))
    db.rows("subtract-bytes", thread=target, freed=-db.dialect.count_bytes(db, source, request.ranges))


def _copy_thread(db: SqlContext, request: CopyThread) -> None:
    if request.thread.sealed is None:
        db.dialect.check_plain(db, request.thread.key.tenant)
    source = _lock_expected(db, request.source, request.expect)
    if request.replaces is not None:
        _delete_thread(db, _lock_expected(db, request.thread.key, request.replaces))
    inserted = db.one("insert-thread", **db.dialect.thread_values(request.thread))
    if inserted is None:
        raise Conflict
    target = inserted[0]
    for block in ("copy-items", "copy-checkpoints", "copy-writes", "copy-tags", "copy-runs"):
        db.rows(block, thread=source, target=target)
    if request.items:
        db.many("insert-items", item_values(target, request))
    for item, stored, tags in request.labels:
        db.rows("replace-item", thread=target, lane=item.lane, n=item.n, payload=stored)
        db.rows("delete-tags", thread=target, start=item.n, end=item.n + 1)
        db.many("insert-tags", ({"thread": target, "labels": item.n, "tag": tag} for tag in tags))


def _drop_thread(db: SqlContext, request: DropThread) -> None:
    """Delete a thread, even if its row is damaged; but not another thread that a damaged index leads to."""
    if not request.sealed:
        db.dialect.refuse_sealed(db, request.key.tenant)
    key = db.dialect.key_values(request.key)
    row = db.one("lock-thread", **key)
    if row is None:
        return
    lease = None
    try:
        lease = checked_thread(thread_row(row), request.key).lease
    except Exception:  # its key may come from the index, so read the table
        if db.one("thread-key", thread=row[0]) != (key["tenant"], key["kind"], key["thread_id"]):
            raise
    if lease is not None and not request.leased:
        raise Conflict
    _delete_thread(db, row[0])


def _delete_thread(db: SqlContext, number: int) -> None:
    for block in db.dialect.drops:
        db.rows(block, thread=number)


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    Commit: _commit,
    CopyThread: _copy_thread,
    ForkThread: _fork_thread,
    DropThread: _drop_thread,
}
