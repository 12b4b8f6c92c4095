"""The PostgreSQL dialect: a thread's number is a hash of its key, and item ranges are arrays that SQL can follow.

So the most frequent requests are one statement and one round trip each: `LoadCheckpoints` returns a thread's row, its
checkpoints, their writes and the items of both; a group of `Commit`s applies each batch whose precondition holds. What
is rarer, or does not fit into one statement, uses the shared statements of `backends.sql` one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from threadkeep.backends import postgres, sql
from threadkeep.backends.postgres import commits, mixed_rows
from threadkeep.backends.postgres.mixed_rows import split_by_kind, split_by_thread
from threadkeep.backends.postgres.parameters import (
    BIGINT,
    BIGINTS,
    BOOLEANS,
    BYTEA,
    BYTEAS,
    TEXT,
    TEXTS,
    Parameters,
    TypedSql,
    array_of,
    array_type,
    booleans,
    byteas,
    ints,
    pack_array,
    pack_int,
    pack_value,
)
from threadkeep.backends.sql.backend import SqlBackend, SqlContext, SqlCursor, parse_rows
from threadkeep.backends.sql.blocks import read_blocks
from threadkeep.backends.sql.lists import scan_conditions, scanned_checkpoints
from threadkeep.backends.sql.rows import Row, Values, maybe_bytes
from threadkeep.engine import health, memories
from threadkeep.engine.identity import ThreadKey, pack_id, to_bytes
from threadkeep.engine.log.itemlog import NAMES, PREFIX_LENGTH, RANGE_LISTS, ItemId, ItemRange, union, unpack_range_list
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow, checked_thread
from threadkeep.engine.requests import (
    Batch,
    CheckpointRows,
    Commit,
    DropThread,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadSeveral,
    LoadSeveralItems,
    LoadThreadRows,
    ScanCheckpoints,
    ScannedCheckpoint,
    ranges_of,
)
from threadkeep.engine.tenants.requests import LoadTenant
from threadkeep.errors import Corrupt, Unavailable
from threadkeep.plan import Request
from threadkeep.value import Value

if TYPE_CHECKING:
    from threadkeep.engine.health.requests import IntegrityProblem, StorageSize
    from threadkeep.engine.memories.filters import FilterNode
    from threadkeep.engine.memories.namespaces import MemoryKey
    from threadkeep.engine.memories.requests import CreateVectorIndex, NewMemory, WriteMemories

_NAME = re.compile(
    r"\btk_(schema|threads|items|checkpoints|writes|tags|runs|memories|vectors|parts|tenants|keys"
    r"|search|search_texts|search_threads|search_tenants"
    r"|v_threads|v_checkpoints|v_writes|v_sizes|v_activity)\b|(?<=DROP INDEX )tk_\w+|\{schema\}"
)
"""What a statement's schema is added to. An index is created in the schema of its table, so only DROP needs it."""
_VALUE = re.compile(r"(?<!:):([a-z_0-9]+)(?:::([a-z]+)\[\])?")
_LOAD_COLUMNS = (
    ("number", BIGINT), ("tenant", BYTEA), ("kind", TEXT), ("thread_id", BYTEA), ("positions", BIGINTS),
    ("spaces", BYTEAS), ("ids", BYTEAS), ("with_items", BOOLEANS), ("cached_lanes", BIGINTS),
    ("cached_spans", TEXTS), ("cached_epoch", BIGINT),
)  # fmt: skip
"""The parameters of `load-checkpoints`."""
DISTRIBUTED = "postgres/distributed.sql"
"""The file with what differs for databases that distribute tables over machines."""
_MANY_NAMES = 1 << 30
"""More than a thread has."""
_MAX_BYTES = 64 * 1024 * 1024
"""A larger batch is committed statement by statement, since one statement must not exceed a gigabyte."""
_REMEMBERED = 4096
"""How many numbers of threads and packed ids are remembered."""
_ARRAY_HEADER = 20
"""Bytes before the first element of an array in binary form."""


class RowsCursor(Protocol):
    """What runs statements and returns their rows."""

    def rows(self, sql: str, values: Values, /) -> list[Row]:
        """Run a statement and return its rows."""


class Statement(Value):
    """One statement that answers a request, and the function that reads its rows.

    That function returns None if the request needs more statements.
    """

    sql: TypedSql
    parameters: Parameters
    read: Callable[[list[Row]], Any]


class BoundStatement(NamedTuple):
    """A statement with $1, $2, …, and the names of these values, each with its element type if it is an array.

    `by_types` has the statement for each combination of types that its values had so far.
    """

    text: bytes
    values: tuple[tuple[str, str | None], ...]
    by_types: dict[tuple[int, ...], TypedSql]


class PostgresDialect(SqlBackend):
    """PostgreSQL, in a named schema or in the one that the server chooses."""

    files = (
        "sql/common.sql",
        "sql/memories.sql",
        "sql/health.sql",
        "sql/tenants.sql",
        "sql/search.sql",
        "postgres/blocks.sql",
        "postgres/memories.sql",
        "postgres/health.sql",
        "postgres/tenants.sql",
        "postgres/search.sql",
        "postgres/views.sql",
    )
    drops = ("drop-all",)

    def __init__(self, schema: str | None = None, *, by_partition: bool = False) -> None:
        self.schema = schema
        self.by_partition = by_partition
        if by_partition:
            self.tenant_lists = ("tenants-with-rows", "tenants-with-threads", "tenants-with-memories")
        self.distributes = False
        """Whether tables may be distributed by Citus; their sizes are then those on all nodes."""
        self.pgvector: str | None = None
        """The schema that pgvector is installed in, or None."""
        self._stores_vectors = False
        """Whether a memory with vectors was stored: then memories that are deleted may have some."""
        self._bound: dict[str, BoundStatement] = {}
        self._small_commits: dict[tuple[commits.Form, str | None], TypedSql] = {}
        self._group_commits: dict[tuple[commits.Parts, str | None], TypedSql] = {}
        self._load_sql: TypedSql | None = None
        self._scans: dict[tuple[str, ...], str] = {}
        self._one_statement: dict[type[Request[Any]], Callable[[Any], Statement]] = {
            LoadCheckpoints: self.load_checkpoints,
            LoadItems: self.load_items,
            LoadSeveralItems: self.load_several_items,
            LoadAncestors: self.load_ancestors,
            LoadThreadRows: self.load_thread_rows,
            ScanCheckpoints: self.scan_checkpoints,
        }
        self.number_of = lru_cache(_REMEMBERED)(_thread_number)
        self.pack_id = lru_cache(_REMEMBERED)(pack_id)

    # --- SQL as the driver takes it

    @cached_property
    def sql(self) -> Mapping[str, str]:
        """The SQL blocks by name."""
        return read_blocks(*self.files, *([DISTRIBUTED] if self.by_partition else []))

    def typed(self, sql: str, values: Values, *, keeps_plan: bool = False) -> tuple[TypedSql, Parameters]:
        """Return a statement and its values as the driver takes them. One or two Python calls for each value."""
        bound = self._bound.get(sql) or self.bind(sql)
        types, parameters = list[int](), list[bytes | None]()
        for name, kind in bound.values:
            value = values[name]
            if kind is not None:
                types.append(array_type(kind))
                parameters.append(pack_array(kind, value))
            else:
                type_, parameter = pack_value(value)
                types.append(type_)
                parameters.append(parameter)
        key = tuple(types)
        typed = bound.by_types.get(key)
        if typed is None:
            typed = bound.by_types[key] = TypedSql(bound.text, key, keeps_plan=keeps_plan)
        return typed, parameters

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

        text = self._with_schema(_VALUE.sub(placeholder, sql))
        return BoundStatement(text.encode(), tuple(values.items()), {})

    def _with_schema(self, sql: str) -> str:
        schema = quote(self.schema or "")
        prefix = f"{schema}." if self.schema is not None else ""
        return _NAME.sub(lambda name: schema if name[0] == "{schema}" else prefix + name[0], sql)

    def typed_sql(self, sql: str, columns: Sequence[tuple[str, int]]) -> TypedSql:
        """Return a statement whose parameters are sent in the order of `columns`, their names and types."""
        positions = {name: n for n, (name, _) in enumerate(columns, 1)}

        def placeholder(value: re.Match[str]) -> str:
            name, kind = value.groups()
            return f"${positions[name]}" + (f"::{kind}[]" if kind else "")

        text = self._with_schema(_VALUE.sub(placeholder, sql))
        return TypedSql(text.encode(), tuple(type for _, type in columns), keeps_plan=True)

    def qualified_name(self, name: str) -> str:
        """Return the name of a table or an index with its schema."""
        return f"{quote(self.schema)}.{name}" if self.schema is not None else name

    # --- what differs from other databases

    def thread_number(self, key: ThreadKey) -> int:
        """Return 64 bits of a hash. The row has the key too: if two keys collide, the second thread is a Conflict."""
        return self.number_of(key)

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
        return super().thread_values(row) | {"tick": row.updated >> commits.TICK_BITS}

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
        condition, operands = postgres.filters.condition(filter, "m.value")
        texts = [list(map(str, each)) if isinstance(each, list) else each for each in operands]
        return sql.filters.name_parameters(condition.replace("%s::numeric[]", "%s::text[]::numeric[]"), "%s", texts)

    def word_values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the words of a query as the values of `search-words`. Words have no quotes."""
        query = " | ".join(f"'{word}'" for word in words)
        return {"words": list(words), "query": query, "is_one_word": len(words) == 1}

    def marked_words(self, words: Any) -> str:
        """Read the words of a memory, a tsvector as text."""
        return postgres.memories.marked_words(words)

    def word_problems(self, _db: SqlContext) -> Iterable[IntegrityProblem]:
        """Yield nothing: words are a column of the memory, and checked with it."""
        return ()

    def match_values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return values of tsquery: all words; and one of them repeated, too. No word has quotation marks."""
        match = " & ".join(f"'{word}'" for word in words)
        repeated = " | ".join(f"'{word}{sql.search.REPEATED}'" for word in words)
        return {"match": match, "match_repeated": f"{match} & ({repeated})"}

    def leads_to_document(self, db: SqlContext, terms: Collection[str], evidence: Any) -> bool:
        """Return whether these are the terms in the document's row. GIN itself is not checked."""
        del db
        return set(evidence) == set(terms)

    def list_value(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the list: statements take arrays."""
        return texts

    def store_documents(self, db: SqlContext, documents: Sequence[Values]) -> None:
        """Add documents to the search index in one statement."""
        db.rows("insert-documents", **{name: [each[name] for each in documents] for name in documents[0]})

    def unpack_vector(self, stored: bytes) -> bytes:
        """Read a real[] in binary form: a header, then each number after its size."""
        np = memories.vectors.import_numpy()
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

    def fetch_writes(
        self, db: SqlContext, number: int, ns: bytes, ids: Sequence[bytes], *, adjacent: bool = False
    ) -> Iterable[Row]:
        """Return the writes of some checkpoints, in one statement."""
        del adjacent  # the same statement for both
        return db.rows("writes", thread=number, ns=ns, ids=list(ids)) if ids else ()

    def fetch_memories(self, db: SqlContext, values: dict[str, Any], numbers: Sequence[int]) -> list[Row]:
        """Return memories by number, in one statement."""
        return db.rows("memories", **values, memories=numbers)

    def lock_memories(self, db: SqlContext, tenant: str, keys: Sequence[MemoryKey]) -> None:
        """Lock memories until the transaction ends."""
        if self.by_partition:
            postgres.by_partition.lock_memories(db, tenant, keys)
        else:
            db.rows("lock-memories", **postgres.memories.lock_values(tenant, keys))

    def add_memory(self, db: SqlContext, request: WriteMemories, memory: NewMemory) -> bool:
        """Add a memory, and return whether there was none. It waits for a transaction that is adding the same one."""
        if self.by_partition and not request.sealed:
            self.check_plain(db, request.tenant)
        values = postgres.memories.put_values(request._replace(puts=(memory,)))
        return bool(db.cursor.rows(self.sql["add-memory"], values))

    # --- requests in one statement

    def one_statement(self, request: Request[Any]) -> Statement | None:
        """Return the statement that answers a read; None if there is none.

        It reads as another statement if more is needed, and as None if the request needs a transaction after all.
        """
        make = self._one_statement.get(type(request))
        return make(request) if make is not None else None

    def load_checkpoints(self, request: LoadCheckpoints) -> Statement:
        """Return a load as one statement. It reads as another one if range lists name items that are still missing.

        It reads as None if the request must be answered statement by statement.
        """
        key, wanted, cached = request.key, request.wanted, request.cached
        if self._load_sql is None:
            self._load_sql = self.typed_sql(self.sql["load-checkpoints"], _LOAD_COLUMNS)
        lanes, spans = [], []
        if cached is not None:
            lanes, spans = [NAMES, *cached.items.spans], [b"{[0,%d)}" % cached.names]
            for low, high in cached.items.spans.values():
                spans.append(b"{[%d,%d)}" % (low, high))
        parameters = (
            pack_int(self.number_of(key)),
            key.tenant.encode("utf-8", "surrogatepass"),
            key.kind.encode(),
            key.id.encode("utf-8", "surrogatepass"),
            ints(range(len(wanted))),
            byteas([want.ns.encode("utf-8", "surrogatepass") for want in wanted]),
            byteas([None if want.id is None else want.id.encode("utf-8", "surrogatepass") for want in wanted]),
            booleans([want.items for want in wanted]),
            ints(lanes),
            array_of(TEXT, spans),
            pack_int(cached.epoch if cached else 0),
        )
        return Statement(self._load_sql, parameters, partial(self._read_checkpoints, request))

    def load_several(self, request: LoadSeveral) -> Statement:
        """Return the loads of several threads as one statement. It reads as a list of what each load reads as."""
        loads = request.loads
        numbers = [self.number_of(load.key) for load in loads]
        owners = [number for number, load in zip(numbers, loads, strict=True) for _ in load.wanted]
        wanted = [want for load in loads for want in load.wanted]
        cached = [
            (number, lane, span)
            for number, load in zip(numbers, loads, strict=True)
            if load.cached is not None
            for lane, span in ((NAMES, (0, load.cached.names)), *load.cached.items.spans.items())
        ]
        values = {
            "numbers": numbers,
            "tenants": [to_bytes(load.key.tenant) for load in loads],
            "kinds": [load.key.kind for load in loads],
            "thread_ids": [to_bytes(load.key.id) for load in loads],
            "cached_epochs": [load.cached.epoch if load.cached is not None else 0 for load in loads],
            "positions": range(len(wanted)),
            "owners": owners,
            "spaces": [to_bytes(want.ns) for want in wanted],
            "ids": [maybe_bytes(want.id) for want in wanted],
            "with_items": [want.items for want in wanted],
            "cached_numbers": [number for number, _, _ in cached],
            "cached_lanes": [lane for _, lane, _ in cached],
            "cached_spans": [f"{{[{low},{high})}}" for _, _, (low, high) in cached],
        }
        sql, parameters = self.typed(self.sql["load-several"], values, keeps_plan=True)

        def read(rows: list[Row]) -> list[LoadedRows | Statement | None]:
            split, first, replies = split_by_thread(rows, numbers, owners), 0, []
            for number, load in zip(numbers, loads, strict=True):
                replies.append(self._read_checkpoints(load, split[number], first))
                first += len(load.wanted)
            return replies

        return Statement(sql, parameters, read)

    def _read_checkpoints(
        self, request: LoadCheckpoints, rows: list[Row], first: int = 0
    ) -> LoadedRows | Statement | None:
        """Read the rows of a load in few steps; if that is not possible, find out which row is damaged.

        `first` is the position of its first checkpoint in the statement.
        """
        if not rows:
            return LoadedRows(None)
        try:
            found = mixed_rows.read_checkpoints(rows, [want.items for want in request.wanted], first)
        except Exception:  # noqa: BLE001 - whatever a damaged row raises: the careful reader says what is wrong
            return parse_rows(request, lambda: self._read_carefully(request, rows, first))
        if found.thread is None:
            return LoadedRows(None)
        pairs = zip(found.checkpoints, found.writes, strict=True)
        loaded = LoadedRows(
            checked_thread(found.thread, request.key),
            tuple([CheckpointRows(row, tuple(writes)) for row, writes in pairs]),
            found.items,
        )
        return self._load_listed(request, loaded, found.lists) if found.lists else loaded

    def _read_carefully(self, request: LoadCheckpoints, rows: list[Row], first: int) -> LoadedRows | None:
        by_kind = split_by_kind(self, rows)
        if by_kind.thread is None:
            return LoadedRows(None)
        checkpoints = {position - first: row for position, row in by_kind.checkpoints}
        writes: list[list[WriteRow]] = [[] for _ in request.wanted]
        for position, row in by_kind.writes:
            writes[position - first].append(row)
        found = tuple(CheckpointRows(checkpoints.get(n), tuple(own)) for n, own in enumerate(writes))
        thread = checked_thread(by_kind.thread, request.key)
        if any(want.items and _has_range_lists(rows, thread) for want, rows in zip(request.wanted, found, strict=True)):
            return None
        return LoadedRows(thread, found, by_kind.items)

    def _load_listed(
        self, request: LoadCheckpoints, loaded: LoadedRows, lists: Iterable[int]
    ) -> LoadedRows | Statement | None:
        """Return a load with the items that range lists name: complete if they are cached, else a statement for them.

        None if a range list is damaged or missing: what is read statement by statement then raises the exact error.
        """
        thread = loaded.thread
        assert thread is not None
        cached = request.cached.items if request.cached and request.cached.epoch == thread.epoch else None
        ranges: list[ItemRange] = []
        try:
            for n in lists:
                at = ItemId(RANGE_LISTS, n)
                listed = cached.range_lists.get(n) if cached is not None else None
                ranges += listed or unpack_range_list(at, loaded.items[at], thread.family)
        except (KeyError, Corrupt):
            return None
        missing = union(ranges)
        if cached is not None:
            missing = list(cached.lacking(missing))
        if not missing:
            return loaded
        return self._load_ranges(request.key, missing, partial(self._read_listed, loaded))

    def _load_ranges(self, key: ThreadKey, ranges: Sequence[ItemRange], read: Callable[[list[Row]], Any]) -> Statement:
        values = self.key_values(key) | commits.range_arrays(ranges)
        return Statement(*self.typed(self.sql["load-items"], values, keeps_plan=True), read)

    def _read_listed(self, loaded: LoadedRows, rows: list[Row]) -> LoadedRows | None:
        """Add more items to a load. None if the thread was pruned meanwhile: its items may be others now."""
        found = split_by_kind(self, rows)
        assert loaded.thread is not None
        if found.thread is None or found.thread.epoch != loaded.thread.epoch:
            return None
        return loaded._replace(items=loaded.items | found.items)

    def load_items(self, request: LoadItems) -> Statement:
        """Return the load of items as one statement. It reads as another if the cached items are of another epoch."""
        cached = request.cached
        missing = union(request.ranges)
        if cached is not None:
            missing = list(cached.items.lacking(missing))
        missing.append(ItemRange(NAMES, cached.names if cached else 0, _MANY_NAMES))

        def read(rows: list[Row]) -> LoadedRows | Statement:
            found = split_by_kind(self, rows)
            if found.thread is None:
                return LoadedRows(None)
            thread = found.thread if request.unchecked else checked_thread(found.thread, request.key)
            if cached is not None and cached.epoch != thread.epoch:
                return self.load_items(request._replace(cached=None))
            return LoadedRows(thread, (), found.items)

        return self._load_ranges(request.key, missing, lambda rows: parse_rows(request, lambda: read(rows)))

    def load_several_items(self, request: LoadSeveralItems) -> Statement:
        """Return the load of items of several threads as one statement."""
        numbers = [self.number_of(load.thread.key) for load in request.loads]
        wanted = [
            (number, load.thread.epoch, *each)
            for number, load in zip(numbers, request.loads, strict=True)
            for each in load.ranges
        ]
        values = {
            "owners": [number for number, *_ in wanted],
            "epochs": [epoch for _, epoch, *_ in wanted],
            "lanes": [lane for *_, lane, _, _ in wanted],
            "starts": [start for *_, start, _ in wanted],
            "ends": [start + length for *_, start, length in wanted],
        }

        def read(rows: list[Row]) -> tuple[dict[ItemId, bytes], ...]:
            items: dict[int, dict[ItemId, bytes]] = {number: {} for number in numbers}
            for number, lane, n, payload in rows:
                items[number][ItemId(lane, n)] = payload
            return tuple(items[number] for number in numbers)

        return Statement(*self.typed(self.sql["load-several-items"], values, keeps_plan=True), read)

    def load_ancestors(self, request: LoadAncestors) -> Statement:
        """Return the load of ancestors as one statement. It reads as None if there are others between them."""
        values = self.key_values(request.key)
        values |= {"ns": to_bytes(request.ns), "id": to_bytes(request.id), "limit": request.limit}
        sql, parameters = self.typed(self.sql["load-ancestors"], values, keeps_plan=True)

        def read(rows: list[Row]) -> LoadedRows | None:
            by_kind = split_by_kind(self, rows)
            if by_kind.thread is None:
                return LoadedRows(None)
            nearby = {row.id: (n, row) for n, row in by_kind.checkpoints}
            writes: dict[int, list[WriteRow]] = {n: [] for n, _ in by_kind.checkpoints}
            for n, task in by_kind.writes:
                writes[n].append(task)
            found: dict[str, CheckpointRows] = {}
            id: str | None = request.id
            while id is not None and id not in found and len(found) < request.limit:
                if id not in nearby:
                    if len(nearby) >= request.limit or id > request.id:
                        return None
                    break
                n, row = nearby[id]
                found[id] = CheckpointRows(row, tuple(writes[n]))
                id = row.parent
            return LoadedRows(checked_thread(by_kind.thread, request.key), tuple(found.values()), by_kind.items)

        return Statement(sql, parameters, lambda rows: parse_rows(request, lambda: read(rows)))

    def scan_checkpoints(self, request: ScanCheckpoints) -> Statement:
        """Return a scan as one statement that is planned once for all values: planning took ten times as long."""
        blocks, values = scan_conditions(self, request)
        sql = self._scans.get(blocks)
        if sql is None:  # the planner does not know what a SELECT of a parameter returns
            sql = self._scans[blocks] = _VALUE.sub(r"(SELECT \g<0>)", self.scan_sql("load-scan", blocks))
        typed, parameters = self.typed(sql, values, keeps_plan=True)

        def read(rows: list[Row]) -> tuple[ScannedCheckpoint, ...]:
            return parse_rows(request, lambda: scanned_checkpoints(self, rows))

        return Statement(typed, parameters, read)

    def load_tenant(self, request: LoadTenant) -> Statement:
        """Return the load of a tenant's row as one statement: after others, a connection keeps no plans."""
        typed, parameters = self.typed(self.sql["tenant"], {"tenant": to_bytes(request.tenant)}, keeps_plan=True)
        return Statement(
            typed, parameters, lambda rows: sql.tenants.read_tenant_row(request.tenant, rows[0]) if rows else None
        )

    def load_thread_rows(self, request: LoadThreadRows) -> Statement:
        """Return the load of all rows of a thread as one statement."""
        sql, parameters = self.typed(self.sql["load-thread-rows"], self.key_values(request.key), keeps_plan=True)
        return Statement(
            sql, parameters, lambda rows: parse_rows(request, lambda: self._read_thread_rows(request, rows))
        )

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

    def small_commit(self, batch: Batch, synchronous: str | None = None) -> tuple[TypedSql, Parameters] | None:
        """Return a batch that only adds few rows as one statement, which returns a row if it is applied; else None.

        `synchronous` is the value of PostgreSQL's synchronous_commit, if the server's own setting is not right.
        """
        found = commits.small_commit(self, batch)
        if found is None:
            return None
        form, parameters = found
        sql = self._small_commits.get((form, synchronous))
        if sql is None:
            sql = commits.assemble_small(self, form, synchronous=synchronous)
            self._small_commits[form, synchronous] = sql
        return sql, parameters

    def commit(self, batches: Sequence[Batch], synchronous: str | None = None) -> Statement:
        """Return some batches that only add rows, or one of any kind, as one statement.

        It reads as the numbers of the threads whose batch was applied.
        """
        small = self.small_commit(batches[0], synchronous) if len(batches) == 1 else None
        if small is not None:
            return Statement(*small, _first_columns)
        parts, parameters = commits.group_commit(self, batches)
        sql = self._group_commits.get((parts, synchronous))
        if sql is None:
            sql = commits.assemble_group(self, parts, synchronous=synchronous)
            self._group_commits[parts, synchronous] = sql
        return Statement(sql, parameters, _first_columns)

    def drop_thread(self, request: DropThread, synchronous: str | None = None) -> Statement:
        """Return a deletion as one statement. It reads as False if the thread was changed meanwhile, or has a lease."""
        drop = self.sql["commit-drop-sealed" if request.sealed else "commit-drop"]
        drop = drop.replace("{setting}", commits.setting(self.sql, synchronous))
        values = {**self.key_values(request.key), "leased": request.leased}
        sql, parameters = self.typed(drop, values, keeps_plan=True)
        return Statement(sql, parameters, lambda rows: not rows or rows[0][0])

    def write_memories(self, request: WriteMemories, synchronous: str | None = None) -> list[tuple[str, Values]]:
        """Return two statements for one transaction: memories, which returns the number deleted, and vectors."""
        puts, deletes = postgres.memories.in_lock_order(request)
        setting = self.sql["write-memories-setting"] if synchronous else ""
        sql = self.sql["write-memories"].replace("{setting}", setting)
        shared = postgres.memories.shared_values(request, puts, deletes)
        rows = postgres.memories.row_values(request, puts) | {"synchronous": synchronous}
        return [
            (sql, shared | rows),
            (self.sql["write-vectors"], shared | postgres.memories.vector_values(request, puts)),
        ]

    def write_memories_at_once(
        self, request: WriteMemories, synchronous: str | None = None
    ) -> tuple[str, Values] | None:
        """Return a change of memories without vectors as one statement, which returns 1 if there is no more to do.

        None if it needs more than one.
        """
        if any(memory.vectors for memory in request.puts):
            self._stores_vectors = True
            return None
        if not request.deletes and len(request.puts) == 1:
            block, values = "put-memory", postgres.memories.put_values(request)
        elif not request.deletes:
            puts, _ = postgres.memories.in_lock_order(request)
            shared = postgres.memories.shared_values(request, puts, ())
            block, values = "put-many", shared | postgres.memories.row_values(request, puts)
        elif not request.puts and len(request.deletes) == 1 and not request.expired:
            block = "delete-memory-and-vectors" if self._stores_vectors else "delete-memory"
            values = sql.memories.memory_id_values(request.tenant, request.deletes[0]) | {"sealed": request.sealed}
        else:
            return None
        setting = self.sql["write-memories-setting"] if synchronous else ""
        return self.sql[block].replace("{setting}", setting), values | {"synchronous": synchronous}

    def store_memories(self, db: SqlContext, request: WriteMemories) -> int:
        """Add, replace and delete memories, and return the number deleted."""
        if self.by_partition:
            return postgres.by_partition.store_memories(db, request)
        rows, vectors = self.write_memories(request)
        deleted = db.cursor.rows(*rows)[0][0]
        db.cursor.rows(*vectors)
        return int(deleted)

    def restart_ttl(self, db: SqlContext, values: Sequence[Values]) -> None:
        """Start the ttl of memories again, in one statement."""
        if self.by_partition:
            super().restart_ttl(db, values)
            return
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
        if self.pgvector is not None and request.access.subject == "memories":
            db, schema = SqlContext(self, cursor), quote(self.pgvector)
            if isinstance(request, memories.requests.SearchVectors):
                return postgres.pgvector.search_vectors(db, request, schema)
            if isinstance(request, memories.requests.LoadVectorChanges):
                return postgres.pgvector.load_vector_changes(db, request)
        if request.access.subject == "storage" and isinstance(request, health.requests.MeasureStorage):
            return self._measure_storage(cursor)
        return super().answer(cursor, request)

    def _measure_storage(self, cursor: SqlCursor) -> StorageSize:
        at = {"table": self.qualified_name("tk_threads")}
        parts: dict[str, int] = dict(cursor.rows(self.sql["storage-size"], at)) | self.distributed_sizes(cursor)
        return health.requests.StorageSize("postgresql", sum(parts.values()), parts)

    def distributed_sizes(self, cursor: RowsCursor) -> dict[str, int]:
        """Return the size of each table that is distributed, on all nodes."""
        if not self.distributes:
            return {}
        distributed = cursor.rows(self.sql["distribution"], {"table": self.qualified_name("tk_threads")})
        named = {name: {"table": self.qualified_name(name)} for name, _ in distributed}
        return {name: int(cursor.rows(self.sql["size-of-table"], at)[0][0]) for name, at in named.items()}

    def run_script(self, db: SqlContext, block: str, **values: Any) -> None:
        """Run the statements of a block. Unavailable for the search index if tables may be distributed."""
        if self.distributes and block == "create-search":
            raise Unavailable("PostgreSQL: there is no search index in a database of Citus; search with scan=True")
        super().run_script(db, block, **values)

    def index_statements(self, request: CreateVectorIndex) -> tuple[str, str, str]:
        """Return the full name of a vector index, the statement that drops it, and the one that creates it."""
        name, schema = postgres.pgvector.index_name(request), quote(self.pgvector or "")
        full = self.qualified_name(name)
        create = self.sql["index-vectors"]
        for part, text in postgres.pgvector.index_parts(request, schema).items():
            create = create.replace(f"{{{part}}}", text)
        return full, self.sql["drop-index"].replace("{index}", full), create


def _thread_number(key: ThreadKey) -> int:
    parts = (to_bytes(part) for part in key)
    data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)


def _first_columns(rows: list[Row]) -> set[Any]:
    return {row[0] for row in rows}


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"{}"'.format(name.replace('"', '""'))


def _has_range_lists(rows: CheckpointRows, thread: ThreadRow) -> bool:
    return any(each.lane == RANGE_LISTS for each in ranges_of(rows, thread.nexts))


def fits_one_statement(request: Request[Any]) -> bool:
    """Return whether a request is a commit that is small enough for one statement."""
    return isinstance(request, Commit) and sum(len(stored) for _, stored in request.batch.items) <= _MAX_BYTES
