"""The SQL backends: requests to named SQL blocks, rows to records. Run inside one transaction by a transport.

Everything is here that databases do alike, statement by statement. A dialect says what differs: how a thread is
numbered, how references are stored, how many rows are asked for at once; and it may answer a request in one statement.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

from threadkeep.backends.sql import health, memories
from threadkeep.backends.sql.blocks import read_blocks
from threadkeep.backends.sql.rows import Row, Values, maybe_bytes, maybe_pack, maybe_unpack, thread_row
from threadkeep.engine.identity import ThreadKey, from_bytes, pack_id, to_bytes, unpack_id
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import BEGINNING, NAMES, RUN_LISTS, SHARED, ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.memories.filters import FilterNode
from threadkeep.engine.memories.requests import WriteMemories
from threadkeep.engine.requests import (
    Batch,
    CachedItems,
    CheckpointRows,
    Commit,
    CopyThread,
    DropThread,
    FindThreadsOfRuns,
    ForkThread,
    ItemSizes,
    ListedThread,
    ListThreads,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadThreadRows,
    MeasureItems,
    ScanCheckpoints,
    ScannedCheckpoint,
    ranges_of,
)
from threadkeep.errors import Conflict, Corrupt
from threadkeep.plan import Request

_BEGINNING = (2**63 - 1, "", "")
"""Before the first thread of any order."""
_MOST_TAGS = 8
"""So many tags a query compares; the asker compares all of them anyway."""


class SqlCursor(Protocol):
    """Runs SQL on the connection that a transport lends, inside its transaction."""

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run a statement and return its rows."""

    def many(self, sql: str, values: Sequence[Values]) -> int:
        """Run a statement for each set of values and return how many rows changed."""


class SqlBackend(ABC):
    """Answers requests by statements on a cursor. Holds nothing but its SQL, which is read at first use."""

    files: ClassVar[tuple[str, ...]]
    """Where the blocks are, the dialect's own last."""
    drops: ClassVar[tuple[str, ...]] = (
        "drop-items", "drop-checkpoints", "drop-writes", "drop-tags", "drop-runs", "drop-thread",
    )  # fmt: skip
    """The blocks that remove a whole thread."""

    @cached_property
    def sql(self) -> Mapping[str, str]:
        """The SQL blocks by name."""
        return read_blocks(*self.files)

    @abstractmethod
    def number(self, key: ThreadKey) -> int | None:
        """The number of a thread, if that is not the database's to give."""

    @abstractmethod
    def pack_refs(self, runs: Iterable[ItemRange]) -> Any:
        """References as the column holds them."""

    @abstractmethod
    def unpack_refs(self, stored: Any) -> tuple[ItemRange, ...]:
        """The references that `pack_refs` was given."""

    def fetch_items(self, work: SqlContext, number: int, runs: Iterable[ItemRange]) -> Iterator[Row]:
        """These items as (lane, n, payload)."""
        for run in runs:
            yield from work.rows("items", thread=number, **span(run))

    def fetch_lengths(self, work: SqlContext, number: int, runs: Iterable[ItemRange]) -> Iterator[Row]:
        """Of these items (lane, n, stored length, beginning)."""
        for run in runs:
            yield from work.rows("lengths", thread=number, beginning=BEGINNING, **span(run))

    def fetch_writes(self, work: SqlContext, number: int, ns: bytes, ids: Sequence[bytes]) -> Iterator[Row]:
        """The writes on these checkpoints."""
        for id in ids:
            yield from work.rows("writes", thread=number, ns=ns, id=id)

    def weigh(self, work: SqlContext, number: int, runs: Iterable[ItemRange]) -> int:
        """The bytes of these items."""
        return sum(int(work.rows("held", thread=number, **span(run))[0][0]) for run in runs)

    def fetch_memories(self, work: SqlContext, values: dict[str, Any], numbers: Sequence[int]) -> list[Row]:
        """Memories by number."""
        if len(numbers) == 1:
            return work.rows("memory", **values, memory=numbers[0])
        return work.rows("memories", **values, memories=json.dumps(numbers))

    def remember_in(self, work: SqlContext, request: WriteMemories) -> int:
        """Store and remove memories; how many were removed."""
        return memories.remember(work, request)

    def refresh_in(self, work: SqlContext, values: Sequence[Values]) -> None:
        """Let memories live on."""
        work.many("refresh-memories", values)

    def put_words(self, work: SqlContext, words: Sequence[tuple[int, str]]) -> None:
        """The words of memories, by number; those that have none are not found by words any more."""
        work.many("put-words", ({"memory": number, "words": text} for number, text in words if text))
        work.many("gone-words", ({"memory": number} for number, text in words if not text))

    def any_of(self, words: Iterable[str]) -> str:
        """A query for one of some words; as they come from `words`, they have no quotes in them."""
        return " OR ".join(f'"{word}"' for word in words)

    def unpack_vector(self, stored: bytes) -> bytes:
        """A vector as it was given, float32 in little-endian."""
        return stored

    @abstractmethod
    def prefilter(self, filter: FilterNode) -> tuple[str, dict[str, Any]]:
        """A condition on memories that is true for all that match a filter, and its values."""

    def answer(self, cursor: SqlCursor, request: Request[Any]) -> Any:
        """Execute one request. A column that cannot be read is Corrupt."""
        try:
            return _VERBS[type(request)](SqlContext(self, cursor), request)
        except (IndexError, ValueError) as error:
            raise nonsense(request, error) from error

    def key_values(self, key: ThreadKey) -> dict[str, Any]:
        """What a statement says of a thread."""
        return {
            "tenant": to_bytes(key.tenant),
            "kind": key.kind,
            "thread_id": to_bytes(key.id),
            "number": self.number(key),
        }

    def thread_values(self, row: ThreadRow) -> dict[str, Any]:
        """A thread's row as values."""
        return self.key_values(row.key) | {
            "epoch": row.epoch, "rev": row.rev, "nexts": b"".join(map(itemlog.varint, row.nexts)),
            "created": row.created, "updated": row.updated, "checkpoints": row.checkpoints, "writes": row.writes,
            "bytes": row.bytes, "top": maybe_bytes(row.top), "run": maybe_pack(row.run), "step": row.step,
            "source": row.source, "status": row.status, "labels": row.labels, "early": maybe_bytes(row.early),
            "early_status": row.early_status, "lease": row.lease,
        }  # fmt: skip

    def checkpoint_values(self, number: int, rows: Iterable[CheckpointRow]) -> Iterator[dict[str, Any]]:
        """Checkpoints as values."""
        for row in rows:
            yield {
                "thread": number, "ns": to_bytes(row.ns), "id": to_bytes(row.id), "parent": maybe_pack(row.parent),
                "run": maybe_pack(row.run), "step": row.step, "source": row.source, "labels": row.labels,
                "time": row.time, "hidden": int(row.hidden), "refs": self.pack_refs(row.refs), "body": row.body,
            }  # fmt: skip

    def write_values(self, number: int, rows: Iterable[WriteRow]) -> Iterator[dict[str, Any]]:
        """Writes as values."""
        for row in rows:
            yield {
                "thread": number, "ns": to_bytes(row.ns), "checkpoint": to_bytes(row.checkpoint),
                "task": pack_id(row.task), "path": to_bytes(row.path), "run": maybe_pack(row.run), "time": row.time,
                "entries": _entries(row.index), "refs": self.pack_refs(row.refs),
                "body": row.body,
            }  # fmt: skip

    def checkpoint_row(self, row: Row) -> CheckpointRow:
        """A row of {checkpoint-columns}."""
        ns, id, parent, run, step, source, labels, time, hidden, refs, body = row
        return CheckpointRow(
            from_bytes(ns), from_bytes(id), maybe_unpack(parent), maybe_unpack(run), step, source, labels, time, bool(hidden),
            self.unpack_refs(refs), body,
        )  # fmt: skip

    def write_row(self, row: Row) -> WriteRow:
        """A row of {write-columns}."""
        ns, checkpoint, task, path, run, time, entries, refs, body = row
        return WriteRow(
            from_bytes(ns), from_bytes(checkpoint), unpack_id(task), from_bytes(path), maybe_unpack(run), time,
            tuple(json.loads(entries)), self.unpack_refs(refs), body,
        )  # fmt: skip


def sense(request: Request[Any]) -> Callable[[Callable[[], Any]], Any]:
    """Runs what reads rows for a request; rows that make no sense are Corrupt."""

    def run(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (IndexError, ValueError) as error:
            raise nonsense(request, error) from error

    return run


def nonsense(request: Request[Any], error: Exception) -> Corrupt:
    """Rows that cannot be read."""
    key = getattr(request, "key", None)
    about = "a memory" if type(request) in memories.VERBS else "a thread"
    whose = f"thread {key.id!r}" if isinstance(key, ThreadKey) else about
    return Corrupt(f"a row of {whose} does not make sense: {error!r}")


@dataclass(frozen=True, slots=True)
class SqlContext:
    """A dialect, and the cursor that runs its SQL."""

    dialect: SqlBackend
    cursor: SqlCursor

    def rows(self, block: str, **values: Any) -> list[Row]:
        """The rows of a block."""
        return self.cursor.rows(self.dialect.sql[block], values)

    def one(self, block: str, **values: Any) -> Row | None:
        """The first row of a block."""
        rows = self.rows(block, **values)
        return rows[0] if rows else None

    def many(self, block: str, values: Iterable[Values]) -> int:
        """How many rows a block changes in all."""
        listed = list(values)
        return self.cursor.many(self.dialect.sql[block], listed) if listed else 0

    def thread(self, key: ThreadKey, *, lock: bool = False) -> tuple[int, ThreadRow] | None:
        """A thread's number and row."""
        row = self.one("lock-thread" if lock else "thread", **self.dialect.key_values(key))
        return (row[0], thread_row(row)) if row else None


def _load(work: SqlContext, request: LoadCheckpoints) -> LoadedRows:
    there = work.thread(request.key)
    if there is None:
        return LoadedRows(None)
    number, row = there
    found = tuple(_found(work, number, want.ns, want.id) for want in request.wanted)
    runs = [run for want, f in zip(request.wanted, found, strict=True) if want.items for run in ranges_of(f)]
    return LoadedRows(row, found, _sent(work, number, row, found, runs, request.cached))


def _found(work: SqlContext, number: int, ns: str, id: str | None) -> CheckpointRows:
    space = to_bytes(ns)
    if id is None:
        latest = work.one("latest", thread=number, ns=space)
        if latest is None:
            return CheckpointRows(None, ())
        at = latest[0]
    else:
        at = to_bytes(id)
    row = work.one("checkpoint", thread=number, ns=space, id=at)
    writes = work.dialect.fetch_writes(work, number, space, [at])
    return CheckpointRows(work.dialect.checkpoint_row(row) if row else None, tuple(map(work.dialect.write_row, writes)))


def _items(work: SqlContext, request: LoadItems) -> LoadedRows:
    there = work.thread(request.key)
    if there is None:
        return LoadedRows(None)
    return LoadedRows(there[1], (), _sent(work, *there, (), request.ranges, request.cached))


def _measure(work: SqlContext, request: MeasureItems) -> ItemSizes:
    there = work.thread(request.key)
    if there is None:
        return ItemSizes(None)
    return ItemSizes(there[1], tuple(work.dialect.fetch_lengths(work, there[0], request.ranges)))


def _ancestors(work: SqlContext, request: LoadAncestors) -> LoadedRows:
    there = work.thread(request.key)
    if there is None:
        return LoadedRows(None)
    space = to_bytes(request.ns)
    line = _line(work, there[0], space, request)
    writes: dict[str, list[WriteRow]] = {id: [] for id in line}
    for row in work.dialect.fetch_writes(work, there[0], space, list(map(to_bytes, line))):
        write = work.dialect.write_row(row)
        writes[write.checkpoint].append(write)
    found = tuple(CheckpointRows(row, tuple(writes[id])) for id, row in line.items())
    return LoadedRows(there[1], found, _sent(work, *there, found, (), None))


def _line(work: SqlContext, number: int, space: bytes, request: LoadAncestors) -> dict[str, CheckpointRow]:
    """A checkpoint and its parents. Parents mostly have the next lower ids, so some more are read with each."""
    line: dict[str, CheckpointRow] = {}
    near: dict[str, CheckpointRow] = {}
    id: str | None = request.id
    while id is not None and id not in line and len(line) < request.limit:
        if id not in near:
            limit = min(request.limit, max(64, 2 * len(line)))
            down = work.rows("checkpoints-down", thread=number, ns=space, id=to_bytes(id), limit=limit)
            near = {row.id: row for row in map(work.dialect.checkpoint_row, down)}
        if id not in near:
            break
        line[id] = near[id]
        id = line[id].parent
    return line


def _survey(work: SqlContext, request: LoadThreadRows) -> LoadedRows:
    there = work.thread(request.key)
    if there is None:
        return LoadedRows(None)
    checkpoints = map(work.dialect.checkpoint_row, work.rows("checkpoints", thread=there[0]))
    rows = {(row.ns, row.id): row for row in checkpoints}
    writes: dict[tuple[str, str], list[WriteRow]] = {place: [] for place in rows}
    for write in map(work.dialect.write_row, work.rows("all-writes", thread=there[0])):
        writes.setdefault((write.ns, write.checkpoint), []).append(write)
    found = tuple(CheckpointRows(rows.get(place), tuple(held)) for place, held in sorted(writes.items()))
    stored = itemlog.join_ranges(ItemId(*row) for row in work.rows("item-ids", thread=there[0]))
    return LoadedRows(there[1], found, _sent(work, *there, found, (), None), stored)


def _sent(
    work: SqlContext,
    number: int,
    row: ThreadRow,
    found: Sequence[CheckpointRows],
    runs: Iterable[ItemRange],
    have: CachedItems | None,
) -> dict[ItemId, bytes]:
    """Names, labels and run lists of these rows, and these items, but for what the asker has."""
    have = have if have is not None and have.epoch == row.epoch else None
    names, known = (row.nexts[NAMES] if row.nexts else 0), (have.names if have else 0)
    wanted = [*runs, *(ItemRange(SHARED, f.row.labels, 1) for f in found if f.row is not None)]
    if names > known:
        wanted.append(ItemRange(NAMES, known, names - known))
    lists = [run for f in found for run in ranges_of(f) if run.lane in (RUN_LISTS, SHARED)]
    sent = _fetched(work, number, lists, None)
    if any(run.lane == RUN_LISTS for run in wanted):
        wanted += [run for at, stored in sent.items() if at.lane == RUN_LISTS for run in itemlog.spilled(at, stored)]
    return sent | _fetched(work, number, wanted, have)


def _fetched(work: SqlContext, number: int, runs: Iterable[ItemRange], have: CachedItems | None) -> dict[ItemId, bytes]:
    merged: Iterable[ItemRange] = itemlog.union(runs)
    lacking = have.items.lacking(merged) if have is not None else merged
    return {ItemId(lane, n): payload for lane, n, payload in work.dialect.fetch_items(work, number, lacking)}


def span(run: ItemRange) -> dict[str, int]:
    """A run as values."""
    return {"lane": run.lane, "start": run.start, "end": run.start + run.length}


@dataclass(slots=True)
class _Conditions:
    """What a query asks for: a block and its values for each thing that is asked."""

    dialect: SqlBackend
    blocks: list[str]
    values: dict[str, Any]

    def add(self, block: str, **values: Any) -> None:
        """One more condition, unless its value is None."""
        if all(value is not None for value in values.values()):
            self.blocks.append(self.dialect.sql[block])
            self.values |= values

    def add_tags(self, tags: Iterable[bytes], labelled: str) -> None:
        """One more condition for each tag."""
        for n, tag in enumerate(list(tags)[:_MOST_TAGS]):
            self.blocks.append(
                self.dialect.sql["where-tag"].replace("{labelled}", labelled).replace("{tag}", f"tag{n}")
            )
            self.values[f"tag{n}"] = tag

    def into(self, block: str, **parts: str) -> str:
        """A block with these conditions, and other parts."""
        sql = self.dialect.sql[block].replace("{conditions}", "\n  AND ".join(self.blocks))
        for part, text in parts.items():
            sql = sql.replace(f"{{{part}}}", text)
        return sql


def _scan(work: SqlContext, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
    asked = _Conditions(work.dialect, [], {"limit": request.limit})
    if request.thread is not None:
        asked.add("where-thread", **_known_key(work, ThreadKey(request.tenant, request.kind, request.thread)))
    else:
        asked.add("where-tenant", tenant=to_bytes(request.tenant))
        asked.add("where-kind", kind=request.kind)
    asked.add("where-ns", ns=maybe_bytes(request.ns))
    asked.add("where-id", id=maybe_bytes(request.id))
    below = [request.before] if request.before is not None else []
    if request.after is not None:
        id, thread, ns = request.after
        if request.thread is None or request.ns is None:
            place = {"after_id": to_bytes(id), "after_thread": to_bytes(thread), "after_ns": to_bytes(ns)}
            asked.add("where-after", **place)
        else:  # in one namespace of one thread, ids are places
            below.append(id)
    asked.add("where-below", below=to_bytes(min(below)) if below else None)
    asked.add("where-source", source=request.source)
    asked.add("where-step", step=request.step)
    asked.add("where-run", run=maybe_pack(request.run))
    asked.add_tags(request.tags, "c")
    return tuple(_hit(work.dialect, row) for row in work.cursor.rows(asked.into("scan"), asked.values))


def _known_key(work: SqlContext, key: ThreadKey) -> dict[str, Any]:
    return {name: value for name, value in work.dialect.key_values(key).items() if value is not None}


def _hit(dialect: SqlBackend, row: Row) -> ScannedCheckpoint:
    key = ThreadKey(from_bytes(row[0]), row[1], from_bytes(row[2]))
    try:
        return ScannedCheckpoint(key, dialect.checkpoint_row(row[3:14]), row[14])
    except (IndexError, ValueError) as error:
        raise Corrupt(f"a checkpoint of thread {key.id!r} does not make sense: {error!r}") from error


def _catalogue(work: SqlContext, request: ListThreads) -> tuple[ListedThread, ...]:
    asked = _Conditions(work.dialect, [], {"limit": request.limit})
    asked.add("where-tenant", tenant=to_bytes(request.tenant))
    asked.add("where-kind", kind=request.kind)
    asked.add("where-status", status=request.status)
    if request.prefix:
        prefix = to_bytes(request.prefix)
        asked.add("where-prefix", prefix=prefix, prefix_end=prefix[:-1] + bytes([prefix[-1] + 1]))
    asked.add_tags(request.tags, "t")
    value, kind, id = request.after or _BEGINNING
    asked.add(f"after-{request.order}", value=value, after_kind=kind, after_id=to_bytes(id))
    sql = asked.into("catalogue", order=work.dialect.sql[f"order-{request.order}"])
    return tuple(ListedThread(thread_row(row), row[21]) for row in work.cursor.rows(sql, asked.values))


def _run_threads(work: SqlContext, request: FindThreadsOfRuns) -> tuple[ThreadKey, ...]:
    tenant = to_bytes(request.tenant)
    rows = [
        row
        for run in request.runs
        for row in work.rows("run-threads", run=pack_id(run), tenant=tenant, kind=request.kind)
    ]
    return tuple(dict.fromkeys(ThreadKey(from_bytes(row[0]), row[1], from_bytes(row[2])) for row in rows))


def _commit(work: SqlContext, request: Commit) -> None:
    _make(work, request.batch)


def _make(work: SqlContext, batch: Batch) -> int:
    """Make a batch; the thread's number."""
    values = work.dialect.thread_values(batch.thread)
    if batch.expect is None:
        made = work.one("new-thread", **values)
    else:
        made = work.one("next-thread", **values, expect_epoch=batch.expect[0], expect_rev=batch.expect[1])
    if made is None:
        raise Conflict
    number = int(made[0])
    if batch.drops_thread:
        _drop_all(work, number)
        return number
    if not only_adds(batch):
        _remove(work, number, batch)
    _add(work, number, batch)
    return number


def only_adds(batch: Batch) -> bool:
    """Whether a batch removes nothing."""
    return not (
        batch.drops_thread
        or batch.removed_checkpoints
        or batch.removed_writes
        or batch.removed_items
        or batch.removed_runs
    )


def _remove(work: SqlContext, number: int, batch: Batch) -> None:
    work.many(
        "gone-checkpoints",
        ({"thread": number, "ns": to_bytes(ns), "id": to_bytes(id)} for ns, id in batch.removed_checkpoints),
    )
    work.many(
        "gone-writes",
        (
            {"thread": number, "ns": to_bytes(ns), "checkpoint": to_bytes(id), "task": pack_id(task)}
            for ns, id, task in batch.removed_writes
        ),
    )
    freed = work.dialect.weigh(work, number, batch.removed_items)
    work.many("gone-items", ({"thread": number, **span(run)} for run in batch.removed_items))
    work.many("gone-tags", ({"thread": number, **span(run)} for run in batch.removed_items if run.lane == SHARED))
    work.many("gone-runs", ({"thread": number, "run": pack_id(run)} for run in batch.removed_runs))
    if freed:
        work.rows("less-bytes", thread=number, freed=freed)


def _add(work: SqlContext, number: int, batch: Batch) -> None:
    dialect = work.dialect
    if batch.items:
        work.many("new-items", item_values(number, batch))
    if rows := batch.new_checkpoints:
        _all_new(work.many("new-checkpoints", dialect.checkpoint_values(number, rows)), rows)
    if batch.changed_checkpoints:
        work.many("changed-checkpoints", dialect.checkpoint_values(number, batch.changed_checkpoints))
    if tasks := batch.new_writes:
        _all_new(work.many("new-writes", dialect.write_values(number, tasks)), tasks)
    if batch.changed_writes:
        work.many("changed-writes", dialect.write_values(number, batch.changed_writes))
    if batch.labels:
        work.many("new-tags", tag_values(number, batch))
    if batch.runs:
        work.many("new-runs", ({"thread": number, "run": pack_id(run)} for run in batch.runs))


def item_values(number: int, batch: Batch) -> Iterator[dict[str, Any]]:
    """New items as values."""
    return ({"thread": number, "lane": at.lane, "n": at.n, "payload": stored} for at, stored in batch.items)


def tag_values(number: int, batch: Batch) -> Iterator[dict[str, Any]]:
    """New index entries as values."""
    return ({"thread": number, "labels": label.n, "tag": tag} for label in batch.labels for tag in label.tags)


def _all_new(added: int, rows: Sequence[Any]) -> None:
    if added != len(rows):
        raise Conflict


def _expected(work: SqlContext, key: ThreadKey, expect: tuple[int, int]) -> int:
    """The number of a thread that must be as expected."""
    there = work.thread(key, lock=True)
    if there is None or (there[1].epoch, there[1].rev) != expect:
        raise Conflict
    return there[0]


def _fork(work: SqlContext, request: ForkThread) -> None:
    source = _expected(work, request.source, request.expect)
    made = _make(work, request.batch)
    work.many("copy-run", ({"thread": source, "target": made, **span(run)} for run in request.ranges))
    work.rows("less-bytes", thread=made, freed=-work.dialect.weigh(work, source, request.ranges))


def _duplicate(work: SqlContext, request: CopyThread) -> None:
    source = _expected(work, request.source, request.expect)
    if request.replaces is not None:
        _drop_all(work, _expected(work, request.thread.key, request.replaces))
    made = work.one("new-thread", **work.dialect.thread_values(request.thread))
    if made is None:
        raise Conflict
    for block in ("copy-items", "copy-checkpoints", "copy-writes", "copy-tags", "copy-runs"):
        work.rows(block, thread=source, target=made[0])
    for at, stored, tags in request.labels:
        work.rows("replace-item", thread=made[0], lane=at.lane, n=at.n, payload=stored)
        work.rows("gone-tags", thread=made[0], start=at.n, end=at.n + 1)
        work.many("new-tags", ({"thread": made[0], "labels": at.n, "tag": tag} for tag in tags))


def _drop(work: SqlContext, request: DropThread) -> None:
    there = work.thread(request.key, lock=True)
    if there is not None:
        _drop_all(work, there[0])


def _drop_all(work: SqlContext, number: int) -> None:
    for block in work.dialect.drops:
        work.rows(block, thread=number)


def _entries(index: tuple[int, ...]) -> str:
    """JSON without spaces; json.dumps takes three times as long."""
    return str(list(index)).replace(" ", "")


_VERBS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    LoadCheckpoints: _load,
    LoadItems: _items,
    MeasureItems: _measure,
    LoadAncestors: _ancestors,
    LoadThreadRows: _survey,
    ScanCheckpoints: _scan,
    ListThreads: _catalogue,
    FindThreadsOfRuns: _run_threads,
    Commit: _commit,
    CopyThread: _duplicate,
    ForkThread: _fork,
    DropThread: _drop,
    **memories.VERBS,
    **health.VERBS,
}


def with_names(condition: str, mark: str, given: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """A condition whose parameters have names instead of marks."""
    values = {f"filter{n}": value for n, value in enumerate(given)}
    pieces = condition.split(mark)
    return "".join(piece + f":{name}" for piece, name in zip(pieces, values, strict=False)) + pieces[-1], values
