"""The PostgreSQL dialect: a thread's number is a hash of its key, and item ranges are arrays that SQL can follow.

So the most frequent requests are one statement and one round trip each: `LoadCheckpoints` returns a thread's row, its
checkpoints, their writes and the items of both; a group of `Commit`s applies each batch whose precondition holds. What
is rarer, or does not fit into one statement, uses the shared statements of `backends.sql` one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from threadkeep.backends.postgres import commits, filters, memories, pgvector
from threadkeep.backends.postgres.mixed_rows import split_by_kind
from threadkeep.backends.sql.backend import SqlBackend, SqlContext, SqlCursor, parse_rows
from threadkeep.backends.sql.filters import name_parameters
from threadkeep.backends.sql.rows import Row, Values, maybe_bytes
from threadkeep.engine.health.requests import IntegrityProblem
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.log.itemlog import NAMES, PREFIX_LENGTH, RANGE_LISTS, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow, checked_thread
from threadkeep.engine.memories.filters import FilterNode
from threadkeep.engine.memories.requests import CreateVectorIndex, LoadVectorChanges, SearchVectors, WriteMemories
from threadkeep.engine.memories.vectors import import_numpy
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

_TICK_BITS = 8
"""The column `tick` is `updated` without its last 8 bits: a quarter of a second."""
_NAME = re.compile(
    r"\btk_(schema|threads|items|checkpoints|writes|tags|runs|memories|vectors|parts"
    r"|v_threads|v_checkpoints|v_writes|v_sizes|v_activity)\b|\{schema\}"
)
_VALUE = re.compile(r"(?<!:):([a-z_0-9]+)(?:::([a-z]+)\[\])?")
_MAX_BYTES = 64 * 1024 * 1024
"""A larger batch is committed statement by statement, since one statement must not exceed a gigabyte."""
_ARRAY_HEADER = 20
"""Bytes before the first element of an array in binary form."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that answers a request, and the function that reads its rows.

    That function returns None if the request needs more statements.
    """

    sql: str
    values: Values
    read: Callable[[list[Row]], Any]


class BoundStatement(NamedTuple):
    """A statement with $1, $2, …, and the names of these values, each with its element type if it is an array."""

    text: str
    values: tuple[tuple[str, str | None], ...]


class PostgresDialect(SqlBackend):
    """PostgreSQL, in a named schema or in the one that the server chooses."""

    files = (
        "sql/common.sql",
        "sql/memories.sql",
        "sql/health.sql",
        "postgres/blocks.sql",
        "postgres/memories.sql",
        "postgres/health.sql",
        "postgres/views.sql",
    )
    drops = ("drop-all",)

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema
        self.pgvector: str | None = None
        """The schema that pgvector is installed in, or None."""
        self._bound: dict[str, BoundStatement] = {}
        self._commit_sql: dict[tuple[commits.Parts, bool], str] = {}

    # --- SQL as the driver takes it

    def bind(self, sql: str) -> BoundStatement:
        """Return a statement as the driver takes it. Tables have their schema, so no connection needs a setting."""
        bound = self._bound.get(sql)
        if bound is None:
            bound = self._bound[sql] = self._bind(sql)
        return bound

    def _bind(self, sql: str) -> BoundStatement:
        values: dict[str, str | None] = {}

        def placeholder(value: re.Match[str]) -> str:
            name, kind = value.groups()
            values[name] = kind or values.get(name)
            cast = f"::{kind}[]" if kind else ""
            return f"${list(values).index(name) + 1}{cast}"

        schema = quote(self.schema or "")
        prefix = f"{schema}." if self.schema is not None else ""
        text = _VALUE.sub(placeholder, sql)
        text = _NAME.sub(lambda name: prefix + name[0] if name[1] else schema, text)
        return BoundStatement(text, tuple(values.items()))

    def qualified_name(self, name: str) -> str:
        """Return the name of a table or an index with its schema."""
        return f"{quote(self.schema)}.{name}" if self.schema is not None else name

    # --- what differs from other databases

    def thread_number(self, key: ThreadKey) -> int:
        """Return 64 bits of a hash. The row has the key too: if two keys collide, the second thread is a Conflict."""
        parts = (to_bytes(part) for part in (key.tenant, key.kind, key.id))
        data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)

    def pack_refs(self, ranges: Iterable[ItemRange]) -> str:
        """Return item ranges as numbers with commas."""
        return ",".join([str(number) for each in ranges for number in each])

    def unpack_refs(self, stored: str) -> tuple[ItemRange, ...]:
        """Read item ranges from numbers with commas, in braces or not (see `refs-array`). ValueError if damaged."""
        numbers = [int(number) for number in stored.strip("{}").split(",")] if stored.strip("{}") else []
        if len(numbers) % 3 or min(numbers, default=0) < 0:
            raise ValueError("an item range is cut short or negative")
        return tuple(ItemRange(*numbers[i : i + 3]) for i in range(0, len(numbers), 3))

    def thread_values(self, row: ThreadRow) -> dict[str, Any]:
        """Return a thread's row as values."""
        return super().thread_values(row) | {"tick": row.updated >> _TICK_BITS}

    def checkpoint_values(self, number: int, rows: Iterable[CheckpointRow]) -> Iterator[dict[str, Any]]:
        """Yield checkpoints as values, without NULLs."""
        for values in super().checkpoint_values(number, rows):
            yield values | {"parent": values["parent"] or b"", "run": values["run"] or b""}

    def write_values(self, number: int, rows: Iterable[WriteRow]) -> Iterator[dict[str, Any]]:
        """Yield writes as values, without NULLs."""
        for values in super().write_values(number, rows):
            yield values | {"run": values["run"] or b""}

    def prefilter(self, filter: FilterNode) -> tuple[str, dict[str, Any]]:
        """Use PostgreSQL's JSON operators on the stored text."""
        condition, operands = filters.condition(filter, "m.value")
        texts = [list(map(str, each)) if isinstance(each, list) else each for each in operands]
        return name_parameters(condition.replace("%s::numeric[]", "%s::text[]::numeric[]"), "%s", texts)

    def word_values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the words of a query as the values of `search-words`. Words have no quotes."""
        query = " | ".join(f"'{word}'" for word in words)
        return {"words": list(words), "query": query, "is_one_word": len(words) == 1}

    def marked_words(self, words: Any) -> str:
        """Read the words of a memory, a tsvector as text."""
        return memories.marked_words(words)

    def word_problems(self, _db: SqlContext) -> Iterable[IntegrityProblem]:
        """Yield nothing: words are a column of the memory, and checked with it."""
        return ()

    def unpack_vector(self, stored: bytes) -> bytes:
        """Read a real[] in binary form: a header, then each number after its size."""
        np = import_numpy()
        pairs = np.frombuffer(stored, ">f4", offset=_ARRAY_HEADER).reshape(-1, 2)
        data: bytes = pairs[:, 1].astype("<f4").tobytes()
        return data

    # --- fetches in one statement

    def fetch_items(self, db: SqlContext, number: int, ranges: Iterable[ItemRange]) -> Iterator[Row]:
        """Yield the items in some ranges, in one statement."""
        if listed := list(ranges):
            yield from db.rows("items", thread=number, **commits.range_arrays(listed))

    def fetch_lengths(self, db: SqlContext, number: int, ranges: Iterable[ItemRange]) -> Iterator[Row]:
        """Yield the lengths of the items in some ranges, in one statement."""
        if listed := list(ranges):
            values = commits.range_arrays(listed)
            yield from db.rows("item-lengths", thread=number, beginning=PREFIX_LENGTH, **values)

    def count_bytes(self, db: SqlContext, number: int, ranges: Iterable[ItemRange]) -> int:
        """Return the total size of the items in some ranges, in one statement."""
        listed = list(ranges)
        return int(db.rows("item-bytes", thread=number, **commits.range_arrays(listed))[0][0]) if listed else 0

    def fetch_writes(self, db: SqlContext, number: int, ns: bytes, ids: Sequence[bytes]) -> Iterator[Row]:
        """Yield the writes of some checkpoints, in one statement."""
        if ids:
            yield from db.rows("writes", thread=number, ns=ns, ids=list(ids))

    def fetch_memories(self, db: SqlContext, values: dict[str, Any], numbers: Sequence[int]) -> list[Row]:
        """Return memories by number, in one statement."""
        return db.rows("memories", **values, memories=numbers)

    # --- requests in one statement

    def load_checkpoints(self, request: LoadCheckpoints) -> Statement:
        """Return a load as one statement. It reads as None if there are range lists, whose items need another one."""
        cached, spans = request.cached, dict[int, tuple[int, int]]()
        if cached is not None:
            spans = {**cached.items.spans, NAMES: (0, cached.names)}
        values = self.key_values(request.key) | {
            "positions": list(range(len(request.wanted))),
            "spaces": [to_bytes(want.ns) for want in request.wanted],
            "ids": [maybe_bytes(want.id) for want in request.wanted],
            "with_items": [want.items for want in request.wanted],
            "cached_epoch": cached.epoch if cached else 0,
            "cached_lanes": list(spans),
            "cached_spans": [f"{{[{low},{high})}}" for low, high in spans.values()],
        }
        sql = self.sql["load-checkpoints"]
        return Statement(sql, values, lambda rows: parse_rows(request, lambda: self._read_checkpoints(request, rows)))

    def _read_checkpoints(self, request: LoadCheckpoints, rows: list[Row]) -> LoadedRows | None:
        by_kind = split_by_kind(self, rows)
        if by_kind.thread is None:
            return LoadedRows(None)
        checkpoints = dict(by_kind.checkpoints)
        writes: list[list[WriteRow]] = [[] for _ in request.wanted]
        for position, row in by_kind.writes:
            writes[position].append(row)
        found = tuple(CheckpointRows(checkpoints.get(n), tuple(own)) for n, own in enumerate(writes))
        thread = checked_thread(by_kind.thread, request.key)
        if any(want.items and _has_range_lists(rows, thread) for want, rows in zip(request.wanted, found, strict=True)):
            return None
        return LoadedRows(thread, found, by_kind.items)

    def load_thread_rows(self, request: LoadThreadRows) -> Statement:
        """Return the load of all rows of a thread as one statement."""
        values = self.key_values(request.key)
        sql = self.sql["load-thread-rows"]
        return Statement(sql, values, lambda rows: parse_rows(request, lambda: self._read_thread_rows(request, rows)))

    def _read_thread_rows(self, request: LoadThreadRows, rows: list[Row]) -> LoadedRows:
        by_kind = split_by_kind(self, rows)
        if by_kind.thread is None:
            return LoadedRows(None)
        checkpoints = {(row.ns, row.id): row for _, row in by_kind.checkpoints}
        writes: dict[tuple[str, str], list[WriteRow]] = {key: [] for key in checkpoints}
        for _, row in by_kind.writes:
            writes.setdefault((row.ns, row.checkpoint), []).append(row)
        found = tuple(CheckpointRows(checkpoints.get(key), tuple(own)) for key, own in sorted(writes.items()))
        thread = checked_thread(by_kind.thread, request.key)
        return LoadedRows(thread, found, by_kind.items, tuple(sorted(by_kind.stored)))

    def commit(self, batches: Sequence[Batch], synchronous: str | None = None) -> Statement:
        """Return some batches that only add rows, or one of any kind, as one statement.

        It reads as the numbers of the threads whose batch was applied. `synchronous` is the value of PostgreSQL's
        synchronous_commit, if the server's own setting is not right.
        """
        parts, values = commits.commit_values(self, batches)
        form = (parts, synchronous is not None)
        sql = self._commit_sql.get(form)
        if sql is None:
            sql = commits.assemble_commit(self.sql, parts, sets_synchronous=form[1])
            self._commit_sql[form] = sql
        return Statement(sql, values | {"synchronous": synchronous}, lambda rows: {row[0] for row in rows})

    def write_memories(self, request: WriteMemories, synchronous: str | None = None) -> list[tuple[str, Values]]:
        """Return two statements for one transaction: memories, which returns the number deleted, and vectors."""
        puts, deletes = memories.in_lock_order(request)
        setting = self.sql["write-memories-setting"] if synchronous else ""
        sql = self.sql["write-memories"].replace("{setting}", setting)
        shared = memories.shared_values(request, puts, deletes)
        rows = memories.row_values(request, puts) | {"synchronous": synchronous}
        return [(sql, shared | rows), (self.sql["write-vectors"], shared | memories.vector_values(request, puts))]

    def store_memories(self, db: SqlContext, request: WriteMemories) -> int:
        """Add, replace and delete memories, and return the number deleted."""
        rows, vectors = self.write_memories(request)
        deleted = db.cursor.rows(*rows)[0][0]
        db.cursor.rows(*vectors)
        return int(deleted)

    def restart_ttl(self, db: SqlContext, values: Sequence[Values]) -> None:
        """Start the ttl of memories again, in one statement."""
        db.rows(
            "refresh-memories",
            tenant=values[0]["tenant"],
            now=values[0]["now"],
            memories=[each["memory"] for each in values],
            parts=[each["part"] for each in values],
        )

    # --- other requests

    def answer(self, cursor: SqlCursor, request: Request[Any]) -> Any:
        """Execute one request. Vector searches go to pgvector if it is installed."""
        if self.pgvector is not None and isinstance(request, (LoadVectorChanges, SearchVectors)):
            db, schema = SqlContext(self, cursor), quote(self.pgvector)
            if isinstance(request, SearchVectors):
                return pgvector.search_vectors(db, request, schema)
            return pgvector.load_vector_changes(db, request)
        if isinstance(request, MeasureStorage):
            return self._measure_storage(cursor)
        return super().answer(cursor, request)

    def _measure_storage(self, cursor: SqlCursor) -> StorageSize:
        parts: dict[str, int] = dict(
            cursor.rows(self.sql["storage-size"], {"table": self.qualified_name("tk_threads")})
        )
        return StorageSize("postgresql", sum(parts.values()), parts)

    def index_statements(self, request: CreateVectorIndex) -> tuple[str, str, str]:
        """Return the full name of a vector index, the statement that drops it, and the one that creates it."""
        name, schema = pgvector.index_name(request), quote(self.pgvector or "")
        full = self.qualified_name(name)
        create = self.sql["index-vectors"]
        for part, text in pgvector.index_parts(request, schema).items():
            create = create.replace(f"{{{part}}}", text)
        return full, self.sql["drop-index"].replace("{index}", full), create


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"{}"'.format(name.replace('"', '""'))


def _has_range_lists(rows: CheckpointRows, thread: ThreadRow) -> bool:
    return any(each.lane == RANGE_LISTS for each in ranges_of(rows, thread.nexts))


def fits_one_statement(request: Request[Any]) -> bool:
    """Return whether a request is a commit that is small enough for one statement."""
    return isinstance(request, Commit) and sum(len(stored) for _, stored in request.batch.items) <= _MAX_BYTES
