"""Lists over many threads in SQL: checkpoints by condition, pages of threads, and the threads of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.rows import THREAD_COLUMNS, Row, maybe_bytes, maybe_pack, thread_row
from threadkeep.engine.identity import ThreadKey, decode_lossy, from_bytes, pack_id, to_bytes
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.requests import (
    MALFORMED_ROW_ERRORS,
    FindThreadsOfRuns,
    ListedThread,
    ListThreads,
    ScanCheckpoints,
    ScannedCheckpoint,
    damaged_scan,
)
from threadkeep.errors import Corrupt
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
        self.blocks += [self._tag_condition(n, alias) for n in range(len(tags))]
        self.values |= {f"tag{n}": tag for n, tag in enumerate(tags)}

    def add_any_tags(self, tags: Sequence[bytes]) -> None:
        """Add the condition that a thread has labels with all these tags, unless there are none."""
        tags = tags[:_MAX_TAGS]
        if tags:
            more = "".join(f" AND {self._tag_condition(n, 'a')}" for n in range(1, len(tags)))
            self.blocks.append(self.dialect.sql["where-any-tags"].replace("{more}", more))
            self.values |= {f"tag{n}": tag for n, tag in enumerate(tags)}

    def _tag_condition(self, n: int, alias: str) -> str:
        return self.dialect.sql["where-tag"].replace("{alias}", alias).replace("{tag}", f"tag{n}")

    def put_into(self, block: str, **parts: str) -> str:
        """Return a block with its `{conditions}` and other parts filled in."""
        sql = self.dialect.sql[block].replace("{conditions}", "\n  AND ".join(self.blocks))
        for part, text in parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        return sql


def _scan_checkpoints(db: SqlContext, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
    where = scan_conditions(db.dialect, request)
    rows = db.cursor.rows(where.put_into("scan-checkpoints"), where.values)
    return tuple(scanned_checkpoint(db.dialect, row) for row in rows)


def scan_conditions(dialect: SqlBackend, request: ScanCheckpoints) -> Conditions:
    """Return the conditions of a scan, and its limit."""
    where = Conditions(dialect, {"limit": request.limit})
    if request.thread is not None:
        where.add("where-thread", **_known_values(dialect, ThreadKey(request.tenant, request.kind, request.thread)))
    else:
        where.add("where-tenant", tenant=to_bytes(request.tenant))
        where.add("where-kind", kind=request.kind)
    if not request.hidden:
        where.add("where-visible")
    where.add("where-ns", ns=maybe_bytes(request.ns))
    where.add("where-id", id=maybe_bytes(request.id))
    below = [request.before] if request.before is not None else []
    if request.after is not None:
        id, thread, ns = request.after
        if request.thread is None or request.ns is None:
            last = {"after_id": to_bytes(id), "after_thread": to_bytes(thread), "after_ns": to_bytes(ns)}
            where.add("where-after", **last)
        else:  # within one namespace of one thread, an id is unique
            below.append(id)
    where.add("where-below", below=to_bytes(min(below)) if below else None)
    where.add("where-source", source=request.source)
    where.add("where-step", step=request.step)
    where.add("where-run", run=maybe_pack(request.run))
    where.add_tags(request.tags, "c")
    return where


def _known_values(dialect: SqlBackend, key: ThreadKey) -> dict[str, Any]:
    """Return the values of a thread's key; the number is missing where the database assigns it."""
    return {name: value for name, value in dialect.key_values(key).items() if value is not None}


def scanned_checkpoint(dialect: SqlBackend, row: Row) -> ScannedCheckpoint:
    """Read a row of `scan-checkpoints`. Corrupt if its thread's key cannot be read."""
    try:
        key = ThreadKey(from_bytes(row[0]), row[1], from_bytes(row[2]))
    except MALFORMED_ROW_ERRORS as error:
        raise Corrupt(f"the row of a thread cannot be read: {error!r}") from error
    try:
        family = row[15] if type(row[15]) is int else 0
        return ScannedCheckpoint(key, dialect.checkpoint_row(row[3:14]), row[14], family)
    except (*MALFORMED_ROW_ERRORS, Corrupt) as error:
        return damaged_scan(key, decode_lossy(row[3]), decode_lossy(row[4]), f"its row cannot be read: {error!r}")


def _list_threads(db: SqlContext, request: ListThreads) -> tuple[ListedThread, ...]:
    where = Conditions(db.dialect, {"limit": request.limit})
    where.add("where-tenant", tenant=to_bytes(request.tenant))
    where.add("where-kind", kind=request.kind)
    where.add("where-status", status=request.status)
    where.add_prefix(request.prefix)
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
        key = ThreadKey(request.tenant, str(kind), decode_lossy(id) or "")
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
