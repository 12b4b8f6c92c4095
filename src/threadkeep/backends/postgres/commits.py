"""Commits as one PostgreSQL statement: its parameters, and its SQL, assembled from the parts that it needs.

Each row becomes a list of parameters (`_thread_row`, `_checkpoint_row`, `_write_row`). A batch that adds few rows is
committed by a statement of its own, whose parameters are these lists. A group of batches has one array for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from threadkeep.backends.postgres.parameters import (
    BIGINT,
    BIGINTS,
    BYTEA,
    BYTEAS,
    TEXT,
    TypedSql,
    array_of,
    array_type_of,
    byteas,
    ints,
    pack_int,
)
from threadkeep.backends.sql.commits import only_adds
from threadkeep.backends.sql.rows import pack_index
from threadkeep.engine.identity import pack_path, to_bytes
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.log.records import CheckpointRow, WriteRow, thread_checksum
from threadkeep.engine.requests import Batch

if TYPE_CHECKING:
    from threadkeep.backends.postgres.dialect import PostgresDialect

TICK_BITS = 8
"""The column `tick` is `updated` without its last 8 bits: a quarter of a second."""
_FEW_ITEMS = 3
"""So many items have parameters of their own; more are sent as arrays."""
_ALL_BYTES = 0x80
"""Numbers below this are one byte as a varint."""

Columns: TypeAlias = tuple[tuple[str, int], ...]
"""The names of columns, or of parameters, and their types."""
Parts: TypeAlias = tuple[str, ...]
"""The parts of a commit statement. The block of a part is `commit-<part>`."""

_EXISTING: Columns = (
    ("number", BIGINT), ("expect_epoch", BIGINT), ("expect_rev", BIGINT), ("epoch", BIGINT), ("rev", BIGINT),
    ("nexts", BYTEA), ("updated", BIGINT), ("tick", BIGINT), ("checkpoints", BIGINT), ("writes", BIGINT),
    ("bytes", BIGINT), ("top", BYTEA), ("run", BYTEA), ("step", BIGINT), ("source", TEXT), ("status", TEXT),
    ("labels", BIGINT), ("early", BYTEA), ("early_status", TEXT), ("top_writes", BIGINT), ("early_writes", BIGINT),
    ("checksum", BIGINT), ("lease", BYTEA), ("description", TEXT), ("sealed", BYTEA),
)  # fmt: skip
_DROPPED: Columns = (*_EXISTING[:3], _EXISTING[-1])
"""What the deletion of a thread needs. A lent connection cannot send NULLs that a statement does not use."""
_NEW: Columns = (
    ("number", BIGINT), ("tenant", BYTEA), ("kind", TEXT), ("thread_id", BYTEA), ("created", BIGINT),
    ("family", BIGINT), *_EXISTING[3:],
)  # fmt: skip
_ITEM: Columns = (("thread", BIGINT), ("lane", BIGINT), ("n", BIGINT), ("payload", BYTEA))
_CHECKPOINT: Columns = (
    ("thread", BIGINT), ("ns", BYTEA), ("id", BYTEA), ("parent", BYTEA), ("run", BYTEA), ("step", BIGINT),
    ("source", TEXT), ("labels", BIGINT), ("time", BIGINT), ("hidden", BIGINT), ("refs", TEXT), ("body", BYTEA),
)  # fmt: skip
_WRITE: Columns = (
    ("thread", BIGINT), ("ns", BYTEA), ("checkpoint", BYTEA), ("task", BYTEA), ("path", BYTEA), ("run", BYTEA),
    ("time", BIGINT), ("entries", TEXT), ("refs", TEXT), ("body", BYTEA),
)  # fmt: skip
_TAG: Columns = (("thread", BIGINT), ("labels", BIGINT), ("tag", BYTEA))
_RUN: Columns = (("thread", BIGINT), ("run", BYTEA))
_ROWS: Mapping[str, Columns] = {
    "existing": _EXISTING,
    "new": _NEW,
    "items": _ITEM,
    "checkpoints": _CHECKPOINT,
    "changed_checkpoints": _CHECKPOINT,
    "writes": _WRITE,
    "changed_writes": _WRITE,
    "tags": _TAG,
    "runs": _RUN,
}
"""The parts that add or change rows, in their order in a statement, and the columns of these."""
_THREAD_PARTS = {
    "existing": "existing_threads",
    "new": "new_threads",
    "shrinking": "existing_threads",
    "dropped": "existing_threads",
}
"""The parts that change the rows of threads, and the CTE that returns which ones."""


# --- rows as parameters


def _thread_row(dialect: PostgresDialect, batch: Batch) -> list[bytes | None]:
    """Return the parameters of a thread's row, in the order of `_EXISTING` or `_NEW`. Five Python calls."""
    (
        key, epoch, rev, nexts, created, updated, checkpoints, writes, size, top, run, step, source, status, labels,
        early, early_status, lease, family, top_writes, early_writes, _, _, sealed,
        description,
    ) = batch.thread  # fmt: skip
    number = pack_int(dialect.number_of(key))
    expect = batch.expect
    parameters: list[bytes | None]
    if expect is not None:
        parameters = [number, pack_int(expect[0]), pack_int(expect[1])]
    else:
        tenant, id = key.tenant.encode("utf-8", "surrogatepass"), key.id.encode("utf-8", "surrogatepass")
        parameters = [number, tenant, key.kind.encode(), id, pack_int(created), pack_int(family)]
    parameters += (
        pack_int(epoch),
        pack_int(rev),
        bytes(nexts) if not nexts or max(nexts) < _ALL_BYTES else _varints(nexts),
        pack_int(updated),
        pack_int(updated >> TICK_BITS),
        pack_int(checkpoints),
        pack_int(writes),
        pack_int(size),
        None if top is None else top.encode("utf-8", "surrogatepass"),
        None if run is None else dialect.pack_id(run),
        None if step is None else pack_int(step),
        None if source is None else source.encode(),
        status.encode(),
        None if labels is None else pack_int(labels),
        None if early is None else early.encode("utf-8", "surrogatepass"),
        None if early_status is None else early_status.encode(),
        None if top_writes is None else pack_int(top_writes),
        None if early_writes is None else pack_int(early_writes),
        pack_int(thread_checksum(batch.thread)),
        lease,
        None if description is None else description.encode(),
        sealed,
    )
    return parameters


def _varints(numbers: Iterable[int]) -> bytes:
    """Return numbers as varints; the same as `itemlog.varint` of each."""
    packed = bytearray()
    for number in numbers:
        rest = number
        while rest >= _ALL_BYTES:
            packed.append(rest & 0x7F | 0x80)
            rest >>= 7
        packed.append(rest)
    return bytes(packed)


def _checkpoint_row(dialect: PostgresDialect, row: CheckpointRow) -> tuple[bytes | None, ...]:
    """Return the parameters of a checkpoint, in the order of `_CHECKPOINT` without the thread."""
    ns, id, parent, run, step, source, labels, time, hidden, refs, body = row
    return (
        ns.encode("utf-8", "surrogatepass"),
        id.encode("utf-8", "surrogatepass"),
        dialect.pack_id(parent) if parent is not None else b"",
        dialect.pack_id(run) if run is not None else b"",
        None if step is None else pack_int(step),
        None if source is None else source.encode(),
        pack_int(labels),
        pack_int(time),
        pack_int(hidden),
        _pack_refs(refs),
        body,
    )


def _write_row(dialect: PostgresDialect, row: WriteRow) -> tuple[bytes | None, ...]:
    """Return the parameters of a task's writes, in the order of `_WRITE` without the thread."""
    ns, checkpoint, task, path, run, time, index, refs, body = row
    return (
        ns.encode("utf-8", "surrogatepass"),
        checkpoint.encode("utf-8", "surrogatepass"),
        dialect.pack_id(task),
        pack_path(path),
        dialect.pack_id(run) if run is not None else b"",
        pack_int(time),
        pack_index(index).encode(),
        _pack_refs(refs),
        body,
    )


def _pack_refs(refs: Iterable[ItemRange]) -> bytes:
    """Return item ranges as numbers with commas; the same as `PostgresDialect.pack_refs`."""
    numbers: list[int] = []
    for each in refs:
        numbers += each
    return str(numbers)[1:-1].replace(" ", "").encode()


# --- one batch


class Form(NamedTuple):
    """What a batch of few rows has: it determines the statement."""

    is_new: bool
    items: int
    """How many; `_FEW_ITEMS` + 1 stands for any greater number."""
    checkpoints: int
    changed_checkpoints: int
    writes: int
    has_tags: bool
    has_runs: bool


def small_commit(dialect: PostgresDialect, batch: Batch) -> tuple[Form, list[bytes | None]] | None:
    """Return a batch that adds or changes at most one checkpoint and adds one task's writes as a statement of its own.

    None if it does more than that. About ten Python calls; `tests/test_postgres_commits.py` counts them.
    """
    _, _, items, checkpoints, changed, writes, changed_writes, labels, runs, *removed = batch
    if len(checkpoints) + len(changed) > 1 or changed_writes or len(writes) > 1 or any(removed):
        return None
    parameters = _thread_row(dialect, batch)
    few = len(items) <= _FEW_ITEMS
    if few:
        for (lane, n), payload in items:
            parameters += (pack_int(lane), pack_int(n), payload)
    else:
        parameters += (ints([i[0] for i, _ in items]), ints([i[1] for i, _ in items]), byteas([p for _, p in items]))
    if checkpoints or changed:
        parameters += _checkpoint_row(dialect, (checkpoints or changed)[0])
    if writes:
        parameters += _write_row(dialect, writes[0])
    tags = [(each.n, tag) for each in labels for tag in each.tags] if labels else ()
    if tags:
        parameters += (ints([n for n, _ in tags]), byteas([tag for _, tag in tags]))
    if runs:
        parameters.append(byteas([dialect.pack_id(run) for run in runs]))
    count = len(items) if few else _FEW_ITEMS + 1
    form = Form(batch.expect is None, count, len(checkpoints), len(changed), len(writes), bool(tags), bool(runs))
    return form, parameters


def assemble_small(dialect: PostgresDialect, form: Form, *, synchronous: str | None) -> TypedSql:
    """Return the statement of a form."""
    sql = dialect.sql
    columns = list(_NEW if form.is_new else _EXISTING)
    parts = []
    if form.items > _FEW_ITEMS:
        parts.append(sql["commit-many-items"])
        columns += [("item_lanes", BIGINTS), ("item_ns", BIGINTS), ("item_payloads", BYTEAS)]
    elif form.items:
        rows = [f"(:item_lane_{k}, :item_n_{k}, :item_payload_{k})" for k in range(form.items)]
        parts.append(sql["commit-few-items"].replace("{rows}", ", ".join(rows)))
        for k in range(form.items):
            columns += [(f"item_lane_{k}", BIGINT), (f"item_n_{k}", BIGINT), (f"item_payload_{k}", BYTEA)]
    if form.checkpoints or form.changed_checkpoints:
        parts.append(sql["commit-one-checkpoint" if form.checkpoints else "commit-changed-checkpoint"])
        columns += [(f"checkpoint_{name}", type) for name, type in _CHECKPOINT[1:]]
    if form.writes:
        parts.append(sql["commit-one-write"])
        columns += [(f"write_{name}", type) for name, type in _WRITE[1:]]
    if form.has_tags:
        parts.append(sql["commit-some-tags"])
        columns += [("tag_labels", BIGINTS), ("tags", BYTEAS)]
    if form.has_runs:
        parts.append(sql["commit-some-runs"])
        columns += [("runs", BYTEAS)]
    text = (
        sql["commit-small"]
        .replace("{change}", sql["commit-one-new" if form.is_new else "commit-one-existing"])
        .replace("{parts}", "".join(f", {part}" for part in parts))
        .replace("{setting}", setting(sql, synchronous))
    )
    return dialect.typed_sql(text, columns)


def setting(sql: Mapping[str, str], synchronous: str | None) -> str:
    """Return the end of a statement that sets synchronous_commit for its transaction; empty if that is right."""
    if synchronous is None:
        return ""
    assert synchronous.isalpha()
    return sql["commit-setting"].replace("{synchronous}", f"'{synchronous}'")


# --- a group of batches


def group_commit(dialect: PostgresDialect, batches: Sequence[Batch]) -> tuple[Parts, list[bytes | None]]:
    """Return the parts of the statement for some batches, and its parameters.

    Several batches must all only add rows. A batch that removes rows comes alone.
    """
    rows = _added_rows(dialect, batches)
    batch = batches[0]
    parameters: list[bytes | None] = []
    parts: Parts = tuple(rows)
    if not only_adds(batch):
        thread = rows.pop("existing")[0]
        if batch.drops_thread:
            return ("dropped",), [*thread[:3], thread[-1]]
        parameters += thread
        parameters += _removed_parameters(dialect, batch)
        parts = ("shrinking", *rows)
    for part, added in rows.items():
        for (_, type), column in zip(_ROWS[part], zip(*added, strict=True), strict=True):
            parameters.append(array_of(type, column))
    return parts, parameters


def _added_rows(dialect: PostgresDialect, batches: Iterable[Batch]) -> dict[str, list[Sequence[bytes | None]]]:
    """Return what batches add, by the part of the statement that adds it."""
    rows: dict[str, list[Sequence[bytes | None]]] = {part: [] for part in _ROWS}
    for batch in batches:
        thread = _thread_row(dialect, batch)
        number = thread[0]
        rows["existing" if batch.expect else "new"].append(thread)
        rows["items"] += [(number, pack_int(lane), pack_int(n), payload) for (lane, n), payload in batch.items]
        rows["checkpoints"] += [(number, *_checkpoint_row(dialect, row)) for row in batch.new_checkpoints]
        rows["changed_checkpoints"] += [(number, *_checkpoint_row(dialect, row)) for row in batch.changed_checkpoints]
        rows["writes"] += [(number, *_write_row(dialect, row)) for row in batch.new_writes]
        rows["changed_writes"] += [(number, *_write_row(dialect, row)) for row in batch.changed_writes]
        rows["tags"] += [(number, pack_int(labels.n), tag) for labels in batch.labels for tag in labels.tags]
        rows["runs"] += [(number, dialect.pack_id(run)) for run in batch.runs]
    return {part: added for part, added in rows.items() if added}


_REMOVED: Columns = (
    ("removed_lanes", BIGINTS), ("removed_starts", BIGINTS), ("removed_ends", BIGINTS), ("removed_spaces", BYTEAS),
    ("removed_ids", BYTEAS), ("removed_write_spaces", BYTEAS), ("removed_write_ids", BYTEAS),
    ("removed_tasks", BYTEAS), ("removed_runs", BYTEAS),
)  # fmt: skip


def _removed_parameters(dialect: PostgresDialect, batch: Batch) -> tuple[bytes, ...]:
    """Return what a batch removes, in the order of `_REMOVED`."""
    items, checkpoints, writes = batch.removed_items, batch.removed_checkpoints, batch.removed_writes
    return (
        ints([each.lane for each in items]),
        ints([each.start for each in items]),
        ints([each.start + each.length for each in items]),
        byteas([to_bytes(ns) for ns, _ in checkpoints]),
        byteas([to_bytes(id) for _, id in checkpoints]),
        byteas([to_bytes(ns) for ns, _, _ in writes]),
        byteas([to_bytes(id) for _, id, _ in writes]),
        byteas([dialect.pack_id(task) for _, _, task in writes]),
        byteas([dialect.pack_id(run) for run in batch.removed_runs]),
    )


def assemble_group(dialect: PostgresDialect, parts: Parts, *, synchronous: str | None) -> TypedSql:
    """Return the statement with these parts."""
    sql = dialect.sql
    threads = [part for part in parts if part in _THREAD_PARTS]
    selects = [f"SELECT thread FROM {_THREAD_PARTS[part]}" for part in threads]  # noqa: S608 - our own names
    blocks = [sql[f"commit-{part.replace('_', '-')}"].replace("{rows}", part) for part in parts if part not in threads]
    text = (
        sql["commit"]
        .replace("{threads}", ", ".join(sql[f"commit-{part}"] for part in threads))
        .replace("{committed}", " UNION ALL ".join(selects))
        .replace("{parts}", "".join(f", {block}" for block in blocks))
        .replace("{setting}", setting(sql, synchronous))
    )
    columns: list[tuple[str, int]] = []
    for part in parts:
        if part in _ROWS:
            columns += [(f"{part}_{name}", array_type_of(type)) for name, type in _ROWS[part]]
        elif part == "dropped":
            columns += [(f"existing_{name}", type) for name, type in _DROPPED]
        else:
            columns += [(f"existing_{name}", type) for name, type in _EXISTING]
            columns += _REMOVED
    return dialect.typed_sql(text, columns)


def range_arrays(ranges: Sequence[ItemRange]) -> dict[str, Any]:
    """Return item ranges as one array for each column."""
    return {
        "lanes": [each.lane for each in ranges],
        "starts": [each.start for each in ranges],
        "ends": [each.start + each.length for each in ranges],
    }
