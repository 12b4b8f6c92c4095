"""A group of commits as one PostgreSQL statement: its values, and its SQL, assembled from the parts that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.commits import item_values, only_adds, run_values, tag_values
from threadkeep.backends.sql.rows import Values
from threadkeep.engine.identity import pack_id, to_bytes
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.requests import Batch

if TYPE_CHECKING:
    from threadkeep.backends.postgres.dialect import PostgresDialect

Parts = tuple[str, ...]
"""The parts of a commit statement. The block of a part is `commit-<part>`."""

_ROW_PARTS = (
    "existing",
    "new",
    "items",
    "checkpoints",
    "changed_checkpoints",
    "writes",
    "changed_writes",
    "tags",
    "runs",
)
_THREAD_PARTS = {
    "existing": "existing_threads",
    "new": "new_threads",
    "shrinking": "existing_threads",
    "dropped": "existing_threads",
}
"""The parts that change the rows of threads, and the CTE that returns which ones."""


def commit_values(dialect: PostgresDialect, batches: Sequence[Batch]) -> tuple[Parts, dict[str, Any]]:
    """Return the parts of the statement for some batches, and its values.

    Several batches must all only add rows. A batch that removes rows comes alone.
    """
    rows = _added_rows(dialect, batches)
    values: dict[str, Any] = {
        f"{part}_{column}": [row[column] for row in added] for part, added in rows.items() for column in added[0]
    }
    batch = batches[0]
    if only_adds(batch):
        return tuple(rows), values
    values |= {f"existing_{column}": value for column, value in _thread_values(dialect, batch).items()}
    values |= _removed_values(batch)
    added_parts = (part for part in rows if part != "existing")
    return ("dropped",) if batch.drops_thread else ("shrinking", *added_parts), values


def _added_rows(dialect: PostgresDialect, batches: Iterable[Batch]) -> dict[str, list[Values]]:
    """Return what batches add, by the part of the statement that adds it."""
    rows: dict[str, list[Values]] = {part: [] for part in _ROW_PARTS}
    for batch in batches:
        values = _thread_values(dialect, batch)
        number = values["number"]
        rows["existing" if batch.expect else "new"].append(values)
        rows["items"] += item_values(number, batch)
        rows["checkpoints"] += dialect.checkpoint_values(number, batch.new_checkpoints)
        rows["changed_checkpoints"] += dialect.checkpoint_values(number, batch.changed_checkpoints)
        rows["writes"] += dialect.write_values(number, batch.new_writes)
        rows["changed_writes"] += dialect.write_values(number, batch.changed_writes)
        rows["tags"] += tag_values(number, batch)
        rows["runs"] += run_values(number, batch)
    return {part: added for part, added in rows.items() if added}


def _thread_values(dialect: PostgresDialect, batch: Batch) -> dict[str, Any]:
    values = dialect.thread_values(batch.thread)
    return values | {"expect_epoch": batch.expect[0], "expect_rev": batch.expect[1]} if batch.expect else values


def range_arrays(ranges: Sequence[ItemRange], prefix: str = "") -> dict[str, Any]:
    """Return item ranges as one array for each column."""
    return {
        f"{prefix}lanes": [each.lane for each in ranges],
        f"{prefix}starts": [each.start for each in ranges],
        f"{prefix}ends": [each.start + each.length for each in ranges],
    }


def _removed_values(batch: Batch) -> dict[str, Any]:
    return {
        **range_arrays(batch.removed_items, "removed_"),
        "removed_spaces": [to_bytes(ns) for ns, _ in batch.removed_checkpoints],
        "removed_ids": [to_bytes(id) for _, id in batch.removed_checkpoints],
        "removed_write_spaces": [to_bytes(ns) for ns, _, _ in batch.removed_writes],
        "removed_write_ids": [to_bytes(id) for _, id, _ in batch.removed_writes],
        "removed_tasks": [pack_id(task) for _, _, task in batch.removed_writes],
        "removed_runs": [pack_id(run) for run in batch.removed_runs],
    }


def assemble_commit(sql: Mapping[str, str], parts: Parts, *, sets_synchronous: bool) -> str:
    """Return the SQL of a commit statement with these parts."""
    threads = [part for part in parts if part in _THREAD_PARTS]
    selects = [f"SELECT thread FROM {_THREAD_PARTS[part]}" for part in threads]  # noqa: S608 - our own names
    blocks = [sql[f"commit-{part.replace('_', '-')}"].replace("{rows}", part) for part in parts if part not in threads]
    return (
        sql["commit"]
        .replace("{threads}", ", ".join(sql[f"commit-{part}"] for part in threads))
        .replace("{committed}", " UNION ALL ".join(selects))
        .replace("{setting}", sql["commit-setting"] if sets_synchronous else "")
        .replace("{parts}", "".join(f", {block}" for block in blocks))
    )
