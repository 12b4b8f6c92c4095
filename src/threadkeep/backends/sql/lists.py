"""Lists over many threads in SQL: checkpoints by condition, pages of threads, and the threads of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from threadkeep.backends.sql.rows import FAMILY, SEALED, THREAD_COLUMNS, Row, sealed_of, thread_row
from threadkeep.engine.identity import Kind, ThreadKey, decode_lossy, from_bytes, pack_id, to_bytes
from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.log.records import ThreadRow, checked_thread
from threadkeep.engine.requests import (
    MALFORMED_ROW_ERRORS,
    FindThreadsOfRuns,
    ListedThread,
    ListThreads,
    ScanCheckpoints,
    ScannedCheckpoint,
    damaged_scan,
)
from threadkeep.errors import Corrupt, reason
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlBackend, SqlContext

_START = (2**63 - 1, "", "")
"""A position before the first thread, in any order."""
_END = -(2**63)
"""A number after the last thread, in any descending order."""
_MAX_TAGS = 8
"""A query compares at most so many tags. The engine compares all of them again anyway."""


class Conditions:
    """The WHERE clause of a query: SQL blocks joined by AND, and their values."""

    def __init__(self, dialect: SqlBackend, values: dict[str, Any], *blocks: str) -> None:
        self.dialect, self.values, self.blocks = dialect, values, [*blocks]

    def add(self, block: str, **values: Any) -> None:
        """Add a condition, unless one of its values is None."""
        if all(value is not None for value in values.values()):
            self.blocks.append(self.dialect.sql[block])
            self.values |= values

    def add_prefix(self, prefix: str) -> None:
        """Add the condition that a thread's id starts with a prefix, unless the prefix is empty."""
        if prefix:
            low = to_bytes(prefix)
            self.add("where-prefix", prefix=low, prefix_end=low[:-1] + bytes([low[-1] + 1]))

    def add_tags(self, tags: Sequence[bytes], alias: str) -> None:
        """Add a condition for each tag on the labels of the table with this alias."""
        tags = tags[:_MAX_TAGS]
        self.blocks += [self.tag_condition(f"tag{n}", alias) for n in range(len(tags))]
        self.values |= {f"tag{n}": tag for n, tag in enumerate(tags)}

    def add_any_tags(self, tags: Sequence[bytes]) -> None:
        """Add the condition that a thread has labels with all these tags, unless there are none."""
        tags = tags[:_MAX_TAGS]
        if tags:
            more = "".join(f" AND {self.tag_condition(f'tag{n}', 'a')}" for n in range(1, len(tags)))
            self.blocks.append(self.dialect.sql["where-any-tags"].replace("{more}", more))
            self.values |= {f"tag{n}": tag for n, tag in enumerate(tags)}

    def tag_condition(self, tag: str, alias: str) -> str:
        """Return the condition that the labels of the table with this alias have a tag, which is a value's name."""
        return self.dialect.sql["where-tag"].replace("{alias}", alias).replace("{tag}", tag)

    def put_into(self, block: str, **parts: str) -> str:
        """Return a block with its `{conditions}` and other parts filled in."""
        sql = self.dialect.sql[block].replace("{conditions}", "\n  AND ".join(self.blocks))
        for part, text in parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        return sql


def _scan_checkpoints(db: SqlContext, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
    blocks, values = scan_conditions(db.dialect, request)
    return scanned_checkpoints(db.dialect, db.cursor.rows(db.dialect.scan_sql("scan-checkpoints", blocks), values))


def scan_conditions(  # noqa: C901, PLR0912 - one straight list
    dialect: SqlBackend, request: ScanCheckpoints
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the blocks that are the conditions of a scan, and their values. Makes few calls."""
    values: dict[str, Any] = {"limit": request.limit}
    blocks: list[str] = []
    if request.thread is not None:
        values.update(dialect.key_values(new_tuple(ThreadKey, (request.tenant, request.kind, request.thread))))
        if values["number"] is None:  # the database assigns it
            del values["number"]
        blocks.append("where-thread")
    else:
        values["tenant"], values["kind"] = to_bytes(request.tenant), request.kind
        blocks += ("where-tenant", "where-kind")
    if not request.hidden:
        blocks.append("where-visible")
    if request.ns is not None:
        values["ns"] = to_bytes(request.ns)
        blocks.append("where-ns")
    if request.id is not None:
        values["id"] = to_bytes(request.id)
        blocks.append("where-id")
    below = request.before
    if request.after is not None:
        id, thread, ns = request.after
        if request.thread is None or request.ns is None:
            values |= {"after_id": to_bytes(id), "after_thread": to_bytes(thread), "after_ns": to_bytes(ns)}
            blocks.append("where-after")
        else:  # within one namespace of one thread, an id is unique
            below = id if below is None else min(id, below)
    if below is not None:
        values["below"] = to_bytes(below)
        blocks.append("where-below")
    if request.source is not None:
        values["source"] = request.source
        blocks.append("where-source")
    if request.step is not None:
        values["step"] = request.step
        blocks.append("where-step")
    if request.run is not None:
        values["run"] = pack_id(request.run)
        blocks.append("where-run")
    for n, tag in enumerate(request.tags[:_MAX_TAGS]):
        values[f"tag{n}"] = tag
        blocks.append(f"tag{n}")
    return tuple(blocks), values


def scan_sql(dialect: SqlBackend, block: str, blocks: Sequence[str]) -> str:
    """Return the statement of a scan with these conditions."""
    where = Conditions(dialect, {})
    for name in blocks:
        if name.startswith("tag"):
            where.blocks.append(where.tag_condition(name, "c"))
        else:
            where.add(name)
    return where.put_into(block)


def scanned_checkpoints(dialect: SqlBackend, rows: Sequence[Row]) -> tuple[ScannedCheckpoint, ...]:
    """Read the rows of a scan. Corrupt if the key of a thread cannot be read. Two calls a row, and two a thread.

    A thread's row that is damaged is left out here: whoever loads the checkpoint says what is wrong.
    """
    found: list[ScannedCheckpoint] = []
    threads: dict[int, tuple[ThreadKey, ThreadRow | None]] = {}
    for row in rows:
        known = threads.get(row[0])
        if known is None:
            known = threads[row[0]] = _scanned_thread(row)
        key, thread = known
        try:
            checkpoint = dialect.checkpoint_row(row[THREAD_COLUMNS:-2])
        except (*MALFORMED_ROW_ERRORS, Corrupt) as error:
            ns, id = row[THREAD_COLUMNS : THREAD_COLUMNS + 2]
            damage = f"its row cannot be read: {reason(error)}"
            found.append(damaged_scan(key, decode_lossy(ns), decode_lossy(id), damage, sealed_of(row)))
            continue
        family = row[FAMILY] if type(row[FAMILY]) is int else 0
        sealed = row[SEALED] if type(row[SEALED]) is bytes else None  # as `sealed_of`
        columns = (key, checkpoint, row[-2], family, None, thread, row[-1] != 0, sealed)
        found.append(new_tuple(ScannedCheckpoint, columns))
    return tuple(found)


def _scanned_thread(row: Row) -> tuple[ThreadKey, ThreadRow | None]:
    try:
        thread = thread_row(row)
        return thread.key, checked_thread(thread, thread.key)
    except Corrupt:
        pass
    try:
        return ThreadKey(from_bytes(row[1]), row[2], from_bytes(row[3])), None
    except MALFORMED_ROW_ERRORS as error:
        raise Corrupt(f"the row of a thread cannot be read: {reason(error)}") from error


def _list_threads(db: SqlContext, request: ListThreads) -> tuple[ListedThread, ...]:
    where = Conditions(db.dialect, {"limit": request.limit})
    where.add("where-tenant", tenant=to_bytes(request.tenant))
    where.add("where-kind", kind=request.kind)
    where.add("where-status", status=request.status)
    where.add_prefix(request.prefix)
    if request.described:
        where.add("where-described")
    if request.any_checkpoint:
        where.add_any_tags(request.tags)
    else:
        where.add_tags(request.tags, "t")
    value, kind, id = request.after or _START
    after_id = to_bytes(id) if isinstance(id, str) else id
    where.add(f"after-{request.order}", value=value, after_kind=kind, after_id=after_id)
    sql = where.put_into("list-threads", order=db.dialect.sql[f"order-{request.order}"])
    return tuple(_listed_thread(request, row) for row in db.cursor.rows(sql, where.values))


def _listed_thread(request: ListThreads, row: Row) -> ListedThread:
    """Return a thread with its row; with an empty one if that cannot be read."""
    try:
        return ListedThread(thread_row(row), row[THREAD_COLUMNS])
    except Exception as error:  # noqa: BLE001 - whatever a damaged row raises
        _, _, kind, id, _, _, _, created, updated, _, _, size, *_ = row
        value = {"created": created, "updated": updated, "bytes": size}.get(request.order, id)
        key = ThreadKey(request.tenant, cast("Kind", str(kind)), decode_lossy(id) or "")
        cursor = (_END if value is None else value, kind or "", id or b"")  # None sorts last in descending order
        return ListedThread(ThreadRow(key, 0, 0, (), 0, 0), None, repr(error), cursor)


def _find_threads_of_runs(db: SqlContext, request: FindThreadsOfRuns) -> tuple[ThreadKey, ...]:
    values = {"tenant": to_bytes(request.tenant), "kind": request.kind}
    rows = [row for run in request.runs for row in db.rows("threads-of-run", run=pack_id(run), **values)]
    return tuple(dict.fromkeys(ThreadKey(from_bytes(row[0]), row[1], from_bytes(row[2])) for row in rows))


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    ScanCheckpoints: _scan_checkpoints,
    ListThreads: _list_threads,
    FindThreadsOfRuns: _find_threads_of_runs,
}
