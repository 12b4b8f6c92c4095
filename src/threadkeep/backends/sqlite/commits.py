"""The usual commit as one string of SQLite statements, which the driver executes in a single call.

The first statement finds out whether the commit may be made, and fails otherwise: a row gets its thread's number only
if the thread is at the expected version. If not, the number is NULL, which no table accepts. A checkpoint or a row of
writes that exists already makes it fail too. So a commit that fails at its first statement has changed nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from threadkeep.backends.sql.blocks import read_blocks
from threadkeep.backends.sql.rows import pack_index
from threadkeep.engine.identity import ThreadKey, pack_id, pack_path
from threadkeep.engine.log.itemlog import pack_ranges, pack_varints
from threadkeep.engine.log.records import thread_checksum
from threadkeep.engine.requests import Batch

_MANY = 32
"""A batch with more new items or labels than this is not usual."""


def commit_script(batch: Batch, *, alone: bool) -> tuple[str, list[Any]] | None:
    """Return the statements of a batch with their values; None if it is not a usual change.

    Usual is: a new or changed checkpoint, or new rows of writes, and their items, labels and runs. With `alone`,
    the statements are a transaction that rolls itself back if they fail; else they are for one that has begun.
    This runs for every put and put_writes. It makes about 4 calls; `tests/test_budgets.py` counts them.
    """
    (
        expect, row, items, checkpoints, changed_checkpoints, writes, changed_writes, labels, runs,
        removed_checkpoints, removed_writes, removed_items, removed_runs, drops_thread,
    ) = batch  # fmt: skip
    if (
        len(checkpoints) + len(changed_checkpoints) > 1 or changed_writes or removed_checkpoints or removed_writes
        or removed_items or removed_runs or drops_thread or not (checkpoints or changed_checkpoints or writes)
        or len(items) > _MANY or len(writes) > _MANY or len(labels) > 1 or len(runs) > 1
    ):  # fmt: skip
        return None
    (
        (tenant, kind, thread), epoch, rev, nexts, created, updated, checkpoint_count, write_count, size, top, run,
        step, source, status, label, early, early_status, lease, family, top_writes, early_writes, _, _, sealed,
        description,
    ) = row  # fmt: skip
    key = (tenant.encode("utf-8", "surrogatepass"), kind, thread.encode("utf-8", "surrogatepass"))
    thread_values = (
        epoch, rev, pack_varints(nexts), updated, checkpoint_count, write_count, size,
        None if top is None else top.encode("utf-8", "surrogatepass"), None if run is None else pack_id(run), step,
        source, status, label, None if early is None else early.encode("utf-8", "surrogatepass"), early_status,
        top_writes, early_writes, size, thread_checksum(row), sealed, lease, description,
        *key,
    )  # fmt: skip
    if expect is None:
        this = (*key, epoch, rev)
        values: list[Any] = [*thread_values, created, family]
    else:
        this = (*key, *expect)
        values = []
    checkpoint_block = ""
    if checkpoints or changed_checkpoints:
        checkpoint_block = "insert-checkpoint" if checkpoints else "replace-checkpoint"
        ns, id, parent, run, step, source, label, time, hidden, refs, body = (checkpoints or changed_checkpoints)[0]
        values += this
        values += (
            ns.encode("utf-8", "surrogatepass"), id.encode("utf-8", "surrogatepass"),
            None if parent is None else pack_id(parent), None if run is None else pack_id(run), step, source, label,
            time, int(hidden), pack_ranges(refs), body,
        )  # fmt: skip
    for ns, id, task, path, run, time, index, refs, body in writes:
        values += this
        values += (
            ns.encode("utf-8", "surrogatepass"), id.encode("utf-8", "surrogatepass"), pack_id(task),
            pack_path(path), None if run is None else pack_id(run), time,
            pack_index(index), pack_ranges(refs), body,
        )  # fmt: skip
    for (lane, n), payload in items:
        values += (*this, lane, n, payload)
    tags = labels[0].tags if labels else ()
    if len(tags) > _MANY:
        return None
    for tag in tags:
        values += (*this, labels[0].n, tag)
    for each in runs:
        values += (*this, pack_id(each))
    if expect is not None:
        values += thread_values
    rows = (checkpoint_block, len(writes), len(items), len(tags), len(runs))
    return _script(alone, expect is None, *rows), values


@lru_cache(maxsize=1024)
def _script(
    alone: bool,  # noqa: FBT001 - these are the key of a cache
    new_thread: bool,  # noqa: FBT001
    checkpoint_block: str,
    writes: int,
    items: int,
    tags: int,
    runs: int,
) -> str:
    """Return the statements for so many rows."""
    sql = read_blocks("sqlite/commits.sql")
    statements = (
        sql["begin"] if alone else "",
        sql["insert-thread"] if new_thread else "",
        sql[checkpoint_block] if checkpoint_block else "",
        sql["insert-writes"] * writes,
        sql["insert-item"] * items,
        sql["insert-tag"] * tags,
        sql["insert-run"] * runs,
        "" if new_thread else sql["update-thread"],
        sql["commit"] if alone else "",
    )
    return "".join(statements).replace("{insert}", "INSERT OR ROLLBACK" if alone else "INSERT")


def drop_script(key: ThreadKey, *, sealed: bool) -> tuple[str, tuple[Any, ...]]:
    """Return the statements that delete a thread, as a transaction, with their values.

    They fail if it has a lease, and unless `sealed`, if its tenant is encrypted.
    """
    this = (key.tenant.encode("utf-8", "surrogatepass"), key.kind, key.id.encode("utf-8", "surrogatepass"))
    return read_blocks("sqlite/commits.sql")["drop"], (this[0], int(sealed), *this * 12)
