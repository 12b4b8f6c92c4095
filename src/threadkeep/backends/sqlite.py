"""The SQLite backend: requests to named SQL blocks, rows to records. Run inside one transaction by its transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from threadkeep.backends.blocks import read_blocks
from threadkeep.engine import itemlog
from threadkeep.engine.backend import (
    Ancestors,
    Batch,
    Catalogue,
    Commit,
    Drop,
    Duplicate,
    Found,
    Have,
    Hit,
    Items,
    Listed,
    Load,
    Loaded,
    RunThreads,
    Scan,
    Survey,
    refs_of,
)
from threadkeep.engine.identity import ThreadKey, from_bytes, pack_id, to_bytes, unpack_id
from threadkeep.engine.itemlog import NAMES, RUN_LISTS, SHARED, ItemId, Run
from threadkeep.engine.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.errors import Conflict, Corrupt
from threadkeep.plan import Request

Row = tuple[Any, ...]
SCHEMA_VERSION = 1
_ORDERS = ("updated", "created", "bytes")
_END_OF_IDS = b"\xff"
"""Greater than any UTF-8."""


class Session(Protocol):
    """One transaction, as the transport lends it."""

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Run a statement and return its rows."""

    def many(self, sql: str, values: Sequence[Mapping[str, Any]]) -> int:
        """Run a statement for each set of values and return how many rows changed."""


class Sqlite:
    """Answers requests in a session. Holds nothing but its SQL, which is read at first use."""

    @cached_property
    def sql(self) -> Mapping[str, str]:
        """The SQL blocks by name."""
        blocks = read_blocks("sqlite.sql")
        orders = {f"catalogue-{order}": blocks["catalogue"].replace("{order}", order) for order in _ORDERS}
        return {**blocks, **orders}

    def answer(self, session: Session, request: Request[Any]) -> Any:
        """Execute one request. A column that cannot be read is Corrupt."""
        try:
            return _VERBS[type(request)](_Work(self.sql, session), request)
        except (IndexError, ValueError) as error:
            key = getattr(request, "key", None)
            whose = f"thread {key.id!r}" if isinstance(key, ThreadKey) else "a thread"
            raise Corrupt(f"a row of {whose} does not make sense: {error!r}") from error


@dataclass(frozen=True, slots=True)
class _Work:
    """A session and the blocks to run in it."""

    sql: Mapping[str, str]
    session: Session

    def rows(self, block: str, **values: Any) -> list[Row]:
        return self.session.rows(self.sql[block], values)

    def one(self, block: str, **values: Any) -> Row | None:
        rows = self.rows(block, **values)
        return rows[0] if rows else None

    def many(self, block: str, values: Iterable[Mapping[str, Any]]) -> int:
        listed = list(values)
        return self.session.many(self.sql[block], listed) if listed else 0

    def thread(self, key: ThreadKey) -> tuple[int, ThreadRow] | None:
        row = self.one("thread", **_key(key))
        return (row[0], _thread_row(row)) if row else None


def _key(key: ThreadKey) -> dict[str, Any]:
    return {"tenant": to_bytes(key.tenant), "kind": key.kind, "id": to_bytes(key.id)}


def _load(work: _Work, request: Load) -> Loaded:
    there = work.thread(request.key)
    if there is None:
        return Loaded(None)
    number, row = there
    found = tuple(_found(work, number, want.ns, want.id) for want in request.wanted)
    runs = [run for want, f in zip(request.wanted, found, strict=True) if want.items for run in refs_of(f)]
    return Loaded(row, found, _sent(work, number, row, found, runs, request.have))


def _found(work: _Work, number: int, ns: str, id: str | None) -> Found:
    space = to_bytes(ns)
    if id is None:
        latest = work.one("latest", thread=number, ns=space)
        if latest is None:
            return Found(None, ())
        at = latest[0]
    else:
        at = to_bytes(id)
    row = work.one("checkpoint", thread=number, ns=space, id=at)
    writes = work.rows("writes", thread=number, ns=space, id=at)
    return Found(_checkpoint_row(row) if row else None, tuple(map(_write_row, writes)))


def _items(work: _Work, request: Items) -> Loaded:
    there = work.thread(request.key)
    if there is None:
        return Loaded(None)
    return Loaded(there[1], (), _sent(work, *there, (), request.runs, request.have))


def _ancestors(work: _Work, request: Ancestors) -> Loaded:
    there = work.thread(request.key)
    if there is None:
        return Loaded(None)
    line: dict[str, Found] = {}
    id: str | None = request.id
    while id is not None and id not in line and len(line) < request.limit:
        found = _found(work, there[0], request.ns, id)
        if found.row is None:
            break
        line[id] = found
        id = found.row.parent
    found_all = tuple(line.values())
    return Loaded(there[1], found_all, _sent(work, *there, found_all, (), None))


def _survey(work: _Work, request: Survey) -> Loaded:
    there = work.thread(request.key)
    if there is None:
        return Loaded(None)
    rows = {(row.ns, row.id): row for row in map(_checkpoint_row, work.rows("checkpoints", thread=there[0]))}
    writes: dict[tuple[str, str], list[WriteRow]] = {place: [] for place in rows}
    for write in map(_write_row, work.rows("all-writes", thread=there[0])):
        writes.setdefault((write.ns, write.checkpoint), []).append(write)
    found = tuple(Found(rows.get(place), tuple(held)) for place, held in sorted(writes.items()))
    stored = itemlog.join_runs(ItemId(*row) for row in work.rows("item-ids", thread=there[0]))
    return Loaded(there[1], found, _sent(work, *there, found, (), None), stored)


def _sent(
    work: _Work, number: int, row: ThreadRow, found: Sequence[Found], runs: Iterable[Run], have: Have | None
) -> dict[ItemId, bytes]:
    """Names, labels and run lists of these rows, and these items, but for what the asker has."""
    have = have if have is not None and have.epoch == row.epoch else None
    names, known = (row.nexts[NAMES] if row.nexts else 0), (have.names if have else 0)
    wanted = [*runs, *(Run(SHARED, f.row.labels, 1) for f in found if f.row is not None)]
    if names > known:
        wanted.append(Run(NAMES, known, names - known))
    lists = [run for f in found for run in refs_of(f) if run.lane in (RUN_LISTS, SHARED)]
    sent = dict(_fetched(work, number, _lacking(lists, None)))
    if any(run.lane == RUN_LISTS for run in wanted):
        wanted += [run for at, stored in sent.items() if at.lane == RUN_LISTS for run in itemlog.spilled(at, stored)]
    return sent | dict(_fetched(work, number, _lacking(wanted, have)))


def _lacking(runs: Iterable[Run], have: Have | None) -> Iterable[Run]:
    merged = itemlog.union(runs)
    if have is None:
        return merged
    return have.items.lacking(merged)


def _fetched(work: _Work, number: int, runs: Iterable[Run]) -> Iterator[tuple[ItemId, bytes]]:
    for run in runs:
        for lane, n, payload in work.rows("items", thread=number, **_span(run)):
            yield ItemId(lane, n), payload


def _span(run: Run) -> dict[str, int]:
    return {"lane": run.lane, "start": run.start, "end": run.start + run.length}


def _scan(work: _Work, request: Scan) -> tuple[Hit, ...]:
    after = request.after
    common = {
        "tenant": to_bytes(request.tenant),
        "kind": request.kind,
        "thread": _bytes(request.thread),
        "ns": _bytes(request.ns),
        "id": _bytes(request.id),
        "source": request.source,
        "step": request.step,
        "run": pack_id(request.run) if request.run is not None else None,
        "tags": _hexes(request.tags),
        "limit": request.limit,
    }
    if request.thread is not None and request.ns is not None:
        bounds = [to_bytes(bound) for bound in (request.before, after[0] if after else None) if bound is not None]
        return tuple(map(_hit, work.rows("scan-namespace", **common, below=min(bounds, default=_END_OF_IDS))))
    place = dict(zip(("after_id", "after_thread", "after_ns"), map(_bytes, after or (None,) * 3), strict=True))
    return tuple(map(_hit, work.rows("scan", **common, before=_bytes(request.before), **place)))


def _hit(row: Row) -> Hit:
    key = ThreadKey(from_bytes(row[0]), row[1], from_bytes(row[2]))
    try:
        return Hit(key, _checkpoint_row(row[3:14]), row[14])
    except (IndexError, ValueError) as error:
        raise Corrupt(f"a checkpoint of thread {key.id!r} does not make sense: {error!r}") from error


def _catalogue(work: _Work, request: Catalogue) -> tuple[Listed, ...]:
    value, kind, id = request.after or (None, None, None)
    rows = work.rows(
        f"catalogue-{request.order}",
        tenant=to_bytes(request.tenant),
        value=1 if request.order == "id" and request.after else value,
        after_kind=kind,
        after_id=_bytes(id),
        kind=request.kind,
        status=request.status,
        prefix=to_bytes(request.prefix),
        tags=_hexes(request.tags),
        limit=request.limit,
    )
    return tuple(Listed(_thread_row(row), row[21]) for row in rows)


def _run_threads(work: _Work, request: RunThreads) -> tuple[ThreadKey, ...]:
    tenant = to_bytes(request.tenant)
    rows = [
        row
        for run in request.runs
        for row in work.rows("run-threads", run=pack_id(run), tenant=tenant, kind=request.kind)
    ]
    return tuple(dict.fromkeys(ThreadKey(from_bytes(row[0]), row[1], from_bytes(row[2])) for row in rows))


def _commit(work: _Work, request: Commit) -> None:
    batch = request.batch
    values = _thread_values(batch.thread)
    if batch.expect is None:
        made = work.one("new-thread", **values)
    else:
        made = work.one("next-thread", **values, expect_epoch=batch.expect[0], expect_rev=batch.expect[1])
    if made is None:
        raise Conflict
    if batch.ends:
        _drop_all(work, made[0])
        return
    _remove(work, made[0], batch)
    _add(work, made[0], batch)


def _remove(work: _Work, number: int, batch: Batch) -> None:
    work.many(
        "gone-checkpoints",
        ({"thread": number, "ns": to_bytes(ns), "id": to_bytes(id)} for ns, id in batch.gone_checkpoints),
    )
    work.many(
        "gone-writes",
        (
            {"thread": number, "ns": to_bytes(ns), "checkpoint": to_bytes(id), "task": pack_id(task)}
            for ns, id, task in batch.gone_writes
        ),
    )
    freed = sum(work.rows("held", thread=number, **_span(run))[0][0] for run in batch.gone_items)
    work.many("gone-items", ({"thread": number, **_span(run)} for run in batch.gone_items))
    work.many(
        "gone-tags",
        (
            {"thread": number, "start": run.start, "end": run.start + run.length}
            for run in batch.gone_items
            if run.lane == SHARED
        ),
    )
    work.many("gone-runs", ({"thread": number, "run": pack_id(run)} for run in batch.gone_runs))
    if freed:
        work.rows("less-bytes", thread=number, freed=freed)


def _add(work: _Work, number: int, batch: Batch) -> None:
    work.many(
        "new-items", ({"thread": number, "lane": at.lane, "n": at.n, "payload": stored} for at, stored in batch.items)
    )
    _all_new(work.many("new-checkpoints", _checkpoint_values(number, batch.new_checkpoints)), batch.new_checkpoints)
    work.many("changed-checkpoints", _checkpoint_values(number, batch.changed_checkpoints))
    _all_new(work.many("new-writes", _write_values(number, batch.new_writes)), batch.new_writes)
    work.many("changed-writes", _write_values(number, batch.changed_writes))
    work.many(
        "new-tags", ({"thread": number, "labels": label.n, "tag": tag} for label in batch.labels for tag in label.tags)
    )
    work.many("new-runs", ({"thread": number, "run": pack_id(run)} for run in batch.runs))


def _all_new(added: int, rows: Sequence[Any]) -> None:
    if added != len(rows):
        raise Conflict


def _duplicate(work: _Work, request: Duplicate) -> None:
    there = work.thread(request.source)
    if there is None or (there[1].epoch, there[1].rev) != request.expect:
        raise Conflict
    made = work.one("new-thread", **_thread_values(request.thread))
    if made is None:
        raise Conflict
    for block in ("copy-items", "copy-checkpoints", "copy-writes", "copy-tags", "copy-runs"):
        work.rows(block, thread=there[0], target=made[0])
    for at, stored, tags in request.labels:
        work.rows("replace-item", thread=made[0], lane=at.lane, n=at.n, payload=stored)
        work.rows("gone-tags", thread=made[0], start=at.n, end=at.n + 1)
        work.many("new-tags", ({"thread": made[0], "labels": at.n, "tag": tag} for tag in tags))


def _drop(work: _Work, request: Drop) -> None:
    there = work.thread(request.key)
    if there is not None:
        _drop_all(work, there[0])


def _drop_all(work: _Work, number: int) -> None:
    for block in ("drop-items", "drop-checkpoints", "drop-writes", "drop-tags", "drop-runs", "drop-thread"):
        work.rows(block, thread=number)


def _bytes(text: str | None) -> bytes | None:
    return to_bytes(text) if text is not None else None


def _text(data: bytes | None) -> str | None:
    return from_bytes(data) if data is not None else None


def _id(data: bytes | None) -> str | None:
    return unpack_id(data) if data is not None else None


def _hexes(tags: Iterable[bytes]) -> str:
    return json.dumps([tag.hex() for tag in tags])


def _thread_row(row: Row) -> ThreadRow:
    _, tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, size, *told = row[:21]
    top, run, step, source, status, labels, early, early_status, lease = told
    return ThreadRow(
        key=ThreadKey(from_bytes(tenant), kind, from_bytes(id)), epoch=epoch, rev=rev,
        nexts=tuple(itemlog.read_varints(nexts)), created=created, updated=updated, checkpoints=checkpoints,
        writes=writes, bytes=size, top=_text(top), run=_id(run), step=step, source=source, status=status,
        labels=labels, early=_text(early), early_status=early_status, lease=lease,
    )  # fmt: skip


def _thread_values(row: ThreadRow) -> dict[str, Any]:
    return _key(row.key) | {
        "epoch": row.epoch, "rev": row.rev, "nexts": b"".join(map(itemlog.varint, row.nexts)),
        "created": row.created, "updated": row.updated, "checkpoints": row.checkpoints, "writes": row.writes,
        "bytes": row.bytes, "top": _bytes(row.top), "run": pack_id(row.run) if row.run is not None else None, "step": row.step, "source": row.source, "status": row.status,
        "labels": row.labels, "early": _bytes(row.early), "early_status": row.early_status, "lease": row.lease,
    }  # fmt: skip


def _checkpoint_row(row: Row) -> CheckpointRow:
    ns, id, parent, run, step, source, labels, time, hidden, refs, body = row
    return CheckpointRow(
        from_bytes(ns), from_bytes(id), _id(parent), _id(run), step, source, labels, time, bool(hidden),
        itemlog.unpack_runs(refs), body,
    )  # fmt: skip


def _checkpoint_values(number: int, rows: Iterable[CheckpointRow]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {
            "thread": number, "ns": to_bytes(row.ns), "id": to_bytes(row.id),
            "parent": pack_id(row.parent) if row.parent is not None else None,
            "run": pack_id(row.run) if row.run is not None else None,
            "step": row.step, "source": row.source, "labels": row.labels, "time": row.time,
            "hidden": int(row.hidden), "refs": itemlog.pack_runs(row.refs), "body": row.body,
        }  # fmt: skip


def _write_row(row: Row) -> WriteRow:
    ns, checkpoint, task, path, run, time, entries, refs, body = row
    return WriteRow(
        from_bytes(ns), from_bytes(checkpoint), unpack_id(task), from_bytes(path), _id(run), time,
        tuple(json.loads(entries)), itemlog.unpack_runs(refs), body,
    )  # fmt: skip


def _write_values(number: int, rows: Iterable[WriteRow]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {
            "thread": number, "ns": to_bytes(row.ns), "checkpoint": to_bytes(row.checkpoint),
            "task": pack_id(row.task), "path": to_bytes(row.path),
            "run": pack_id(row.run) if row.run is not None else None, "time": row.time,
            "entries": json.dumps(row.index, separators=(",", ":")), "refs": itemlog.pack_runs(row.refs),
            "body": row.body,
        }  # fmt: skip


_VERBS: dict[type[Request[Any]], Callable[[_Work, Any], Any]] = {
    Load: _load,
    Items: _items,
    Ancestors: _ancestors,
    Survey: _survey,
    Scan: _scan,
    Catalogue: _catalogue,
    RunThreads: _run_threads,
    Commit: _commit,
    Duplicate: _duplicate,
    Drop: _drop,
}
