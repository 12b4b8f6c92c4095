"""The PostgreSQL dialect: threads are numbered by a hash of their key, and references are arrays that SQL can follow.

So the two requests that matter most are one statement each, and one round trip: a `LoadCheckpoints` brings a thread's row, its
checkpoints, their writes and the items of both; a group of `Commit`s makes each batch whose precondition holds. What
is rarer, or would not fit into one statement, goes the way of all SQL backends, statement by statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from threadkeep.backends.postgres import pgvector
from threadkeep.backends.sql import filters
from threadkeep.backends.sql.backend import (
    SqlBackend,
    SqlContext,
    SqlCursor,
    item_values,
    only_adds,
    sense,
    tag_values,
    with_names,
)
from threadkeep.backends.sql.memories import memory_values, numbered
from threadkeep.backends.sql.rows import Row, Values, maybe_bytes, thread_row
from threadkeep.engine.identity import ThreadKey, pack_id, to_bytes
from threadkeep.engine.log.itemlog import BEGINNING, NAMES, RUN_LISTS, ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.memories.filters import FilterNode
from threadkeep.engine.memories.namespaces import partition_number
from threadkeep.engine.memories.requests import (
    CreateVectorIndex,
    LoadVectorChanges,
    NewMemory,
    SearchVectors,
    WriteMemories,
)
from threadkeep.engine.memories.vectors import numpy
from threadkeep.engine.requests import (
    Batch,
    CheckpointRows,
    Commit,
    LoadCheckpoints,
    LoadedRows,
    LoadThreadRows,
    MeasureStorage,
    StorageSize,
    ranges_of,
)
from threadkeep.plan import Request

_TICK = 8
"""`tick` is `updated` without its last 8 bits: a quarter of a second."""
_NAME = re.compile(
    r"\btk_(schema|threads|items|checkpoints|writes|tags|runs|memories|vectors|parts"
    r"|v_threads|v_checkpoints|v_writes|v_sizes|v_activity)\b|\{schema\}"
)
_VALUE = re.compile(r"(?<!:):([a-z_0-9]+)(?:::([a-z]+)\[\])?")
_LARGE = 64 * 1024 * 1024
"""A batch of more bytes goes statement by statement, since one statement must not pass a gigabyte."""

# Where the columns of `load` and `survey` stand, for each kind of row.
_THREAD = itemgetter(1, 11, 18, 12, 2, 3, 13, 4, 5, 6, 7, 8, 14, 15, 9, 19, 20, 10, 16, 21, 17)
_CHECKPOINT = itemgetter(11, 12, 13, 14, 9, 18, 10, 8, 7, 22, 15)
_WRITES = itemgetter(11, 12, 13, 14, 15, 8, 18, 22, 16)
_LANE, _N, _LENGTH, _PAYLOAD, _LENGTHS = 10, 1, 9, 11, 22


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that answers a request, and how its rows are read. None means: it takes more than one."""

    sql: str
    values: Values
    read: Callable[[list[Row]], Any]


class BoundStatement(NamedTuple):
    """A statement with $1, $2, … in it; and the names of these values, with the element's type of those that are arrays."""

    text: str
    values: tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class _RowsByKind:
    """Rows by kind; checkpoints and writes with the place of who wanted them."""

    thread: ThreadRow | None = None
    checkpoints: list[tuple[int, CheckpointRow]] = field(default_factory=list)
    writes: list[tuple[int, WriteRow]] = field(default_factory=list)
    items: dict[ItemId, bytes] = field(default_factory=dict)
    stored: list[ItemRange] = field(default_factory=list)


class PostgresDialect(SqlBackend):
    """PostgreSQL, in a schema or in the one that the server chooses."""

    files = (
        "sql/common.sql", "sql/memories.sql", "sql/health.sql", "postgres/blocks.sql", "postgres/memories.sql", "postgres/health.sql",
        "postgres/views.sql",
    )  # fmt: skip
    drops = ("drop-all",)

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema
        self.pgvector: str | None = None
        """The schema that pgvector is in, if it is there."""
        self._spelled: dict[str, BoundStatement] = {}
        self._commits: dict[tuple[tuple[str, ...], bool], str] = {}

    def spelled(self, sql: str) -> BoundStatement:
        """A statement as the driver takes it, with its tables named in full, so that no connection needs a setting."""
        known = self._spelled.get(sql)
        if known is None:
            known = self._spelled[sql] = self._spell(sql)
        return known

    def _spell(self, sql: str) -> BoundStatement:
        values: dict[str, str | None] = {}

        def numbered(value: re.Match[str]) -> str:
            name, kind = value.groups()
            values[name] = kind or values.get(name)
            cast = f"::{kind}[]" if kind else ""
            return f"${list(values).index(name) + 1}{cast}"

        schema = quoted(self.schema or "")
        prefix = f"{schema}." if self.schema is not None else ""
        text = _VALUE.sub(numbered, sql)
        return BoundStatement(
            _NAME.sub(lambda name: prefix + name[0] if name[1] else schema, text), tuple(values.items())
        )

    def number(self, key: ThreadKey) -> int:
        """64 bits of a hash. The row has the key too: were two the same, the second thread could not be made."""
        parts = (to_bytes(part) for part in (key.tenant, key.kind, key.id))
        said = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return int.from_bytes(blake2b(said, digest_size=8).digest(), "big", signed=True)

    def pack_refs(self, runs: Iterable[ItemRange]) -> str:
        """Runs as the text of an array."""
        return f"{{{str([number for run in runs for number in run])[1:-1]}}}"

    def unpack_refs(self, stored: list[int]) -> tuple[ItemRange, ...]:
        """An array as runs."""
        if len(stored) % 3:
            raise ValueError("a run is cut short")
        return tuple(ItemRange(*stored[i : i + 3]) for i in range(0, len(stored), 3))

    def thread_values(self, row: ThreadRow) -> dict[str, Any]:
        """A thread's row as values."""
        return super().thread_values(row) | {"tick": row.updated >> _TICK}

    def checkpoint_values(self, number: int, rows: Iterable[CheckpointRow]) -> Iterator[dict[str, Any]]:
        """Checkpoints as values, without NULLs."""
        for values in super().checkpoint_values(number, rows):
            yield values | {"parent": values["parent"] or b"", "run": values["run"] or b""}

    def write_values(self, number: int, rows: Iterable[WriteRow]) -> Iterator[dict[str, Any]]:
        """Writes as values, without NULLs."""
        for values in super().write_values(number, rows):
            yield values | {"run": values["run"] or b""}

    def fetch_items(self, work: SqlContext, number: int, runs: Iterable[ItemRange]) -> Iterator[Row]:
        """These items, in one statement."""
        spans = list(runs)
        if spans:
            yield from work.rows("items", thread=number, **_spans(spans))

    def fetch_lengths(self, work: SqlContext, number: int, runs: Iterable[ItemRange]) -> Iterator[Row]:
        """How long these items are, in one statement."""
        spans = list(runs)
        if spans:
            yield from work.rows("lengths", thread=number, beginning=BEGINNING, **_spans(spans))

    def weigh(self, work: SqlContext, number: int, runs: Iterable[ItemRange]) -> int:
        """The bytes of these items, in one statement."""
        spans = list(runs)
        return int(work.rows("held-all", thread=number, **_spans(spans))[0][0]) if spans else 0

    def fetch_writes(self, work: SqlContext, number: int, ns: bytes, ids: Sequence[bytes]) -> Iterator[Row]:
        """The writes on these checkpoints, in one statement."""
        if ids:
            yield from work.rows("writes", thread=number, ns=ns, ids=list(ids))

    def fetch_memories(self, work: SqlContext, values: dict[str, Any], numbers: Sequence[int]) -> list[Row]:
        """Memories by number, in one statement."""
        return work.rows("memories", **values, memories=numbers)

    def prefilter(self, filter: FilterNode) -> tuple[str, dict[str, Any]]:
        """PostgreSQL's JSON operators on the stored text."""
        condition, given = filters.postgres(filter, "m.value")
        texts = [list(map(str, each)) if isinstance(each, list) else each for each in given]
        return with_names(condition.replace("%s::numeric[]", "%s::text[]::numeric[]"), "%s", texts)

    def any_of(self, words: Iterable[str]) -> str:
        """A query for one of some words."""
        return " | ".join(f"'{word}'" for word in words)

    def unpack_vector(self, stored: bytes) -> bytes:
        """An array of reals as it is sent: a header, then each number after its size."""
        np = numpy()
        pairs = np.frombuffer(stored, ">f4", offset=_ARRAY_HEADER).reshape(-1, 2)
        data: bytes = pairs[:, 1].astype("<f4").tobytes()
        return data

    def remember_in(self, work: SqlContext, request: WriteMemories) -> int:
        """Store and remove memories; how many were removed."""
        memories, vectors = self.remember(request)
        gone = work.cursor.rows(*memories)[0][0]
        work.cursor.rows(*vectors)
        return int(gone)

    def refresh_in(self, work: SqlContext, values: Sequence[Values]) -> None:
        """Let memories live on, in one statement."""
        first = {name: values[0][name] for name in ("tenant", "now")}
        work.rows(
            "refresh-memories",
            **first,
            memories=[each["memory"] for each in values],
            parts=[each["part"] for each in values],
        )

    def remember(self, request: WriteMemories, synchronous: str | None = None) -> list[tuple[str, Values]]:
        """Memories stored and removed, which tells how many were removed; and their vectors, in the same transaction."""
        puts, gone = _in_order(request)
        sql = self.sql["remember"].replace("{setting}", self.sql["remember-setting"] if synchronous else "")
        shared = {
            "tenant": to_bytes(request.tenant),
            "memories": [values["memory"] for values, _ in puts],
            "parts": [values["part"] for values, _ in puts],
            "gone_memories": [each["memory"] for each in gone],
            "gone_parts": [each["part"] for each in gone],
        }
        memories = remember_values(request, puts) | {"synchronous": synchronous}
        return [(sql, shared | memories), (self.sql["remember-vectors"], shared | vector_values(request, puts))]

    def answer(self, cursor: SqlCursor, request: Request[Any]) -> Any:
        """Execute one request; what pgvector can do, by pgvector."""
        if self.pgvector is not None and isinstance(request, (LoadVectorChanges, SearchVectors)):
            work, schema = SqlContext(self, cursor), quoted(self.pgvector)
            if isinstance(request, SearchVectors):
                return pgvector.nearest(work, request, schema)
            return pgvector.told_changes(work, request)
        if isinstance(request, MeasureStorage):
            return self._footprint(cursor)
        return super().answer(cursor, request)

    def _footprint(self, cursor: SqlCursor) -> StorageSize:
        """What our tables take, with their indexes."""
        parts: dict[str, int] = dict(cursor.rows(self.sql["footprint"], {"table": self.named("tk_threads")}))
        return StorageSize("postgresql", sum(parts.values()), parts)

    def named(self, name: str) -> str:
        """A table or an index with its schema."""
        return f"{quoted(self.schema)}.{name}" if self.schema is not None else name

    def index_blocks(self, request: CreateVectorIndex) -> tuple[str, str, str]:
        """The full name of an index of vectors, how it is dropped, and how it is made."""
        name, schema = pgvector.index_name(request), quoted(self.pgvector or "")
        full = self.named(name)
        made = self.sql["index-vectors"]
        for part, text in pgvector.index_parts(request, schema).items():
            made = made.replace(f"{{{part}}}", text)
        return full, self.sql["drop-index"].replace("{index}", full), made

    def load(self, request: LoadCheckpoints) -> Statement:
        """A load in one statement; it reads None if there are run lists, whose items take a second one."""
        have, spans = request.cached, dict[int, tuple[int, int]]()
        if have is not None:
            spans = {**have.items.spans, NAMES: (0, have.names)}
        values = self.key_values(request.key) | {
            "ats": list(range(len(request.wanted))),
            "spaces": [to_bytes(want.ns) for want in request.wanted],
            "ids": [maybe_bytes(want.id) for want in request.wanted],
            "whole": [want.items for want in request.wanted],
            "have_epoch": have.epoch if have else 0,
            "have_lanes": list(spans),
            "have_spans": [f"{{[{low},{high})}}" for low, high in spans.values()],
        }
        return Statement(self.sql["load"], values, lambda rows: sense(request)(lambda: self._loaded(request, rows)))

    def _loaded(self, request: LoadCheckpoints, rows: list[Row]) -> LoadedRows | None:
        told = self._told(rows)
        if told.thread is None:
            return LoadedRows(None)
        checkpoints = dict(told.checkpoints)
        writes: list[list[WriteRow]] = [[] for _ in request.wanted]
        for at, row in told.writes:
            writes[at].append(row)
        found = tuple(CheckpointRows(checkpoints.get(at), tuple(held)) for at, held in enumerate(writes))
        if any(want.items and _has_run_lists(f) for want, f in zip(request.wanted, found, strict=True)):
            return None
        return LoadedRows(told.thread, found, told.items)

    def survey(self, request: LoadThreadRows) -> Statement:
        """A survey in one statement."""
        values = self.key_values(request.key)
        return Statement(self.sql["survey"], values, lambda rows: sense(request)(lambda: self._surveyed(rows)))

    def _surveyed(self, rows: list[Row]) -> LoadedRows:
        told = self._told(rows)
        if told.thread is None:
            return LoadedRows(None)
        checkpoints = {(row.ns, row.id): row for _, row in told.checkpoints}
        writes: dict[tuple[str, str], list[WriteRow]] = {place: [] for place in checkpoints}
        for _, row in told.writes:
            writes.setdefault((row.ns, row.checkpoint), []).append(row)
        found = tuple(CheckpointRows(checkpoints.get(place), tuple(held)) for place, held in sorted(writes.items()))
        return LoadedRows(told.thread, found, told.items, tuple(sorted(told.stored)))

    def _told(self, rows: list[Row]) -> _RowsByKind:
        """What rows of several kinds tell."""
        told = _RowsByKind()
        for row in rows:
            what = row[0]
            if what == 3:
                told.items.update(_apart(row[_LANE], row[_LENGTHS], row[_PAYLOAD]))
            elif what == 0:
                told.thread = thread_row(_THREAD(row))
            elif what == 1:
                told.checkpoints.append((row[1], self.checkpoint_row(_CHECKPOINT(row))))
            elif what == 2:
                told.writes.append((row[1], self.write_row(_WRITES(row))))
            else:
                told.stored.append(ItemRange(row[_LANE], row[_N], row[_LENGTH]))
        return told

    def commit(self, batches: Sequence[Batch], synchronous: str | None = None) -> Statement:
        """Some batches that only add, or one, in a statement which reads the numbers of the threads whose batch was made.

        `synchronous` is PostgreSQL's synchronous_commit, where it is to be another than the server's.
        """
        given = self._rows(batches)
        values = {
            f"{part}_{column}": [row[column] for row in held] for part, held in given.items() for column in held[0]
        }
        batch = batches[0]
        if only_adds(batch):
            return self._commit(tuple(given), values, synchronous)
        values |= {f"known_{column}": value for column, value in self._expected_values(batch).items()}
        values |= _gone_values(batch)
        added = (part for part in given if part != "known")
        return self._commit(("ended",) if batch.drops_thread else ("shrunk", *added), values, synchronous)

    def _rows(self, batches: Iterable[Batch]) -> dict[str, list[Values]]:
        """What batches add, by the part of the statement that adds it."""
        rows: dict[str, list[Values]] = {part: [] for part in _PARTS}
        for batch in batches:
            values = self._expected_values(batch)
            number = values["number"]
            rows["known" if batch.expect else "made"].append(values)
            rows["items"] += item_values(number, batch)
            rows["checkpoints"] += self.checkpoint_values(number, batch.new_checkpoints)
            rows["changed_checkpoints"] += self.checkpoint_values(number, batch.changed_checkpoints)
            rows["writes"] += self.write_values(number, batch.new_writes)
            rows["changed_writes"] += self.write_values(number, batch.changed_writes)
            rows["tags"] += tag_values(number, batch)
            rows["runs"] += ({"thread": number, "run": pack_id(run)} for run in batch.runs)
        return {part: held for part, held in rows.items() if held}

    def _expected_values(self, batch: Batch) -> dict[str, Any]:
        values = self.thread_values(batch.thread)
        return values | {"expect_epoch": batch.expect[0], "expect_rev": batch.expect[1]} if batch.expect else values

    def _commit(self, parts: tuple[str, ...], values: dict[str, Any], synchronous: str | None) -> Statement:
        text = self._commit_sql(parts, set_synchronous=synchronous is not None)
        return Statement(text, values | {"synchronous": synchronous}, lambda made: {row[0] for row in made})

    def _commit_sql(self, parts: tuple[str, ...], *, set_synchronous: bool) -> str:
        known = self._commits.get((parts, set_synchronous))
        if known is None:
            known = self._commits[(parts, set_synchronous)] = self._put_together(parts, set_synchronous=set_synchronous)
        return known

    def _put_together(self, parts: tuple[str, ...], *, set_synchronous: bool) -> str:
        threads = [part for part in parts if part in _THREADS]
        done = " UNION ALL ".join(f"SELECT thread FROM {_THREADS[part]}" for part in threads)  # noqa: S608 - our own names
        blocks = [
            self.sql[f"commit-{part.replace('_', '-')}"].replace("{given}", part)
            for part in parts
            if part not in threads
        ]
        return (
            self.sql["commit"]
            .replace("{threads}", ", ".join(self.sql[f"commit-{part}"] for part in threads))
            .replace("{done}", done)
            .replace("{setting}", self.sql["commit-setting"] if set_synchronous else "")
            .replace("{parts}", "".join(f", {block}" for block in blocks))
        )


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"{}"'.format(name.replace('"', '""'))


def _apart(lane: int, told: Sequence[int], joined: bytes) -> Iterator[tuple[ItemId, bytes]]:
    """Items that came together; `told` are their numbers, then their lengths."""
    count, at = len(told) // 2, 0
    for n, length in zip(told[:count], told[count:], strict=True):
        yield ItemId(lane, n), joined[at : at + length]
        at += length


_THREADS = {"known": "known", "made": "made", "shrunk": "known", "ended": "known"}
"""Parts that change rows of threads, and where they tell which."""
_PARTS = ("known", "made", "items", "checkpoints", "changed_checkpoints", "writes", "changed_writes", "tags", "runs")


def remember_values(request: WriteMemories, puts: Sequence[_Put]) -> dict[str, Any]:
    """What a batch says of memories, column by column."""
    return {
        "now": request.now,
        "expired": request.expired,
        **{name: [values[column] for values, _ in puts] for name, column in _MEMORY_COLUMNS.items()},
        "ttls": [None if values["ttl"] is None else repr(values["ttl"]) for values, _ in puts],
        "words": [lexemes(memory.words) if memory.words else None for _, memory in puts],
    }


def lexemes(words: str) -> str:
    """Words as PostgreSQL writes a tsvector: its own parser would take letters apart that its locale does not know."""
    places: dict[str, list[str]] = {}
    for n, word in enumerate(words.split(" "), 1):
        places.setdefault(word, []).append(str(min(n, _LAST_PLACE)))
    return " ".join(f"'{word}':{','.join(at[:_MOST_PLACES])}" for word, at in places.items())


def vector_values(request: WriteMemories, puts: Sequence[_Put]) -> dict[str, Any]:
    """What it says of vectors."""
    firsts = sorted({memory.row.namespace[0] for _, memory in puts} | {place.namespace[0] for place in request.deletes})
    stored = {memory.row.namespace[0] for _, memory in puts if memory.vectors}
    vectors = [(values, n, vector) for values, memory in puts for n, vector in enumerate(memory.vectors)]
    dims = [len(vector) // 4 for _, _, vector in vectors]
    return {
        "counts": [len(memory.vectors) for _, memory in puts],
        "told_parts": [partition_number(request.tenant, first) for first in firsts],
        "told_firsts": [to_bytes(first) for first in firsts],
        "told_stored": [int(first in stored) for first in firsts],
        "vector_memories": [values["memory"] for values, _, _ in vectors],
        "vector_parts": [values["part"] for values, _, _ in vectors],
        "vector_fields": [n for _, n, _ in vectors],
        "vector_spaces": [values["space"] for values, _, _ in vectors],
        "vector_starts": list(accumulate(dims, initial=0))[:-1],
        "vector_dims": dims,
        "numbers": b"".join(vector for _, _, vector in vectors),
    }


def _in_order(request: WriteMemories) -> tuple[list[_Put], list[dict[str, Any]]]:
    """What is stored and what is removed, by number: two batches do not wait for each other crosswise."""
    puts = zip(memory_values(request.tenant, request.puts), request.puts, strict=True)
    gone = (numbered(request.tenant, place) for place in request.deletes)
    return sorted(puts, key=lambda put: put[0]["memory"]), sorted(gone, key=itemgetter("memory"))


_Put: TypeAlias = tuple[dict[str, Any], NewMemory]
_MEMORY_COLUMNS = {
    "spaces": "space", "keys": "key", "created": "created", "updated": "updated", "expires": "expires",
    "values": "value",
}  # fmt: skip
_ARRAY_HEADER = 20
_LAST_PLACE, _MOST_PLACES = 16383, 255


def _has_run_lists(found: CheckpointRows) -> bool:
    return any(run.lane == RUN_LISTS for run in ranges_of(found))


def _spans(runs: Sequence[ItemRange]) -> dict[str, list[int]]:
    return {
        "lanes": [run.lane for run in runs],
        "starts": [run.start for run in runs],
        "ends": [run.start + run.length for run in runs],
    }


def _gone_values(batch: Batch) -> dict[str, Any]:
    return {
        "gone_lanes": [run.lane for run in batch.removed_items],
        "gone_starts": [run.start for run in batch.removed_items],
        "gone_ends": [run.start + run.length for run in batch.removed_items],
        "gone_spaces": [to_bytes(ns) for ns, _ in batch.removed_checkpoints],
        "gone_ids": [to_bytes(id) for _, id in batch.removed_checkpoints],
        "gone_from": [to_bytes(ns) for ns, _, _ in batch.removed_writes],
        "gone_on": [to_bytes(id) for _, id, _ in batch.removed_writes],
        "gone_tasks": [pack_id(task) for _, _, task in batch.removed_writes],
        "gone_runs": [pack_id(run) for run in batch.removed_runs],
    }


def fits_one_statement(request: Request[Any]) -> bool:
    """Whether a change is not too much for one statement."""
    return isinstance(request, Commit) and sum(len(stored) for _, stored in request.batch.items) <= _LARGE
