"""SqlBackend, the base class of the SQL dialects: it answers each request with statements from named SQL blocks.

A transport runs it inside one transaction. The functions that answer the requests are in `reads`, `lists`, `commits`,
`memories`, `health` and `tenants`. A dialect says what differs: how a thread is numbered, how item ranges are stored,
how many rows one statement fetches. It may also answer a request in a statement of its own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from threadkeep.backends import sql
from threadkeep.backends.sql import commits, lists, reads
from threadkeep.backends.sql.blocks import read_blocks
from threadkeep.backends.sql.rows import (
    Row,
    Values,
    maybe_bytes,
    maybe_pack,
    pack_index,
    range_values,
    thread_row,
    unpack_index,
)
from threadkeep.engine.identity import ThreadKey, decode_lossy, pack_id, pack_path, to_bytes, unpack_id, unpack_path
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import PREFIX_LENGTH, ItemRange, new_tuple
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow, checked_thread, thread_checksum
from threadkeep.errors import Corrupt, WrongKey, reason
from threadkeep.plan import Request
from threadkeep.value import Value

if TYPE_CHECKING:
    from threadkeep.engine.health.requests import IntegrityProblem
    from threadkeep.engine.memories.filters import FilterNode
    from threadkeep.engine.memories.namespaces import MemoryKey
    from threadkeep.engine.memories.requests import NewMemory, WriteMemories

T = TypeVar("T")
_UTF8 = ("utf-8", "surrogatepass")
_FEW = 4
"""The writes of so many checkpoints are read one checkpoint at a time."""
_SCANS = 256
"""How many statements of scans are cached."""
_HIDDEN = {0: False, 1: True}
_OTHER_TYPE = "a column has a value of another type"  # SQLite does not check the types of what it reads


class SqlCursor(Protocol):
    """Runs SQL on a connection that a transport owns, inside the transport's transaction."""

    marks: dict[str, Any]
    """What the connection remembers of the search index of each tenant since it had all threads as they are."""

    def rows(self, sql: str, values: Values) -> list[Row]:
        """Run a statement and return its rows."""

    def many(self, sql: str, values: Sequence[Any]) -> int:
        """Run a statement once for each set of values and return the number of rows changed.

        A set is a mapping by name; SQLite also takes a tuple in the order of the names.
        """


class SqlBackend(ABC):
    """Answers requests with statements on a cursor. Its only state is its SQL, which is read on first use."""

    files: ClassVar[tuple[str, ...]]
    """The SQL files, the dialect's own last."""
    drops: ClassVar[tuple[str, ...]] = (
        "drop-items",
        "drop-checkpoints",
        "drop-writes",
        "drop-tags",
        "drop-runs",
        "drop-thread",
    )
    """The blocks that delete a whole thread."""
    tenant_lists: tuple[str, ...] = ("list-tenants",)
    """The blocks that list tenants, together all of them."""
    by_partition = False
    """Whether a statement on memories should name their partitions, because these are on several machines."""

    @cached_property
    def sql(self) -> Mapping[str, str]:
        """The SQL blocks by name."""
        return read_blocks(*self.files)

    @cached_property
    def scan_sql(self) -> Callable[[str, tuple[str, ...]], str]:
        """Returns the statement of a scan, see `lists.scan_sql`; those used last are cached."""
        return lru_cache(_SCANS)(partial(lists.scan_sql, self))

    @cached_property
    def search_sql(self) -> Callable[[str, tuple[str, ...], int], str]:
        """Returns the statement of a search, see `search.search_sql`; those used last are cached."""
        return lru_cache(_SCANS)(partial(sql.search.search_sql, self))

    def answer(self, cursor: SqlCursor, request: Request[Any]) -> Any:
        """Execute one request. Raise Corrupt if a column cannot be read."""
        try:
            return _HANDLERS[type(request)](SqlContext(self, cursor), request)
        except (IndexError, ValueError, Corrupt) as error:
            raise unreadable(request, error) from error

    # --- what a dialect must say

    @abstractmethod
    def thread_number(self, key: ThreadKey) -> int | None:
        """Return the number of a thread, or None if the database assigns it."""

    @abstractmethod
    def pack_refs(self, ranges: Iterable[ItemRange]) -> Any:
        """Return item ranges as the value of the column `refs`."""

    @abstractmethod
    def unpack_refs(self, stored: Any) -> tuple[ItemRange, ...]:
        """Return the item ranges that `pack_refs` was given."""

    @abstractmethod
    def prefilter(self, filter: FilterNode) -> tuple[str, dict[str, Any]]:
        """Return a condition that is true for every memory that matches a filter, and its values."""

    # --- what a dialect may do in fewer statements

    def fetch_items(self, db: SqlContext, number: int, ranges: Iterable[ItemRange]) -> Iterable[Row]:
        """Return (lane, n, payload) for the items in some ranges."""
        sql, found = self.sql["items"], list[Row]()
        for lane, start, length in ranges:
            found += db.cursor.rows(sql, {"thread": number, "lane": lane, "start": start, "end": start + length})
        return found

    def fetch_lengths(self, db: SqlContext, number: int, ranges: Iterable[ItemRange]) -> Iterator[Row]:
        """Yield (lane, n, stored length, first bytes) for the items in some ranges."""
        for each in ranges:
            yield from db.rows("item-lengths", thread=number, beginning=PREFIX_LENGTH, **range_values(each))

    def fetch_checkpoint(self, db: SqlContext, number: int, ns: bytes, id: bytes | None) -> Row | None:
        """Return a checkpoint; without an id, the latest visible one. None if there is none."""
        latest = db.one("latest-checkpoint", thread=number, ns=ns) if id is None else (id,)
        row = db.one("checkpoint", thread=number, ns=ns, id=latest[0]) if latest is not None else None
        if latest is not None and row is None and id is None:
            name = ns.decode(*_UTF8)
            raise ValueError(f"the latest checkpoint of namespace {name!r} is in an index but not in the table")
        return row

    def fetch_writes(
        self, db: SqlContext, number: int, ns: bytes, ids: Sequence[bytes], *, adjacent: bool = False
    ) -> Iterable[Row]:
        """Return the writes of some checkpoints. `adjacent` says that there are few others between them."""
        if adjacent and len(ids) > _FEW:
            values = {"thread": number, "ns": ns, "low": min(ids), "high": max(ids)}
            wanted = set(ids)
            return [row for row in db.cursor.rows(self.sql["writes-between"], values) if row[1] in wanted]
        sql, found = self.sql["writes"], list[Row]()
        for id in ids:
            found += db.cursor.rows(sql, {"thread": number, "ns": ns, "id": id})
        return found

    def check_plain(self, db: SqlContext, tenant: str) -> None:
        """Raise WrongKey if nothing may be stored for a tenant that is not encrypted."""
        self.refuse_sealed(db, tenant)

    def refuse_sealed(self, db: SqlContext, tenant: str) -> None:
        """Raise WrongKey if a tenant is encrypted."""
        if db.rows("sealed-tenant", tenant=to_bytes(tenant)):
            raise WrongKey

    def refuse_plain(self, db: SqlContext) -> None:
        """Refuse what is not encrypted, of sealed tenants. Here there is nothing to do: statements look that up."""
        del db

    def count_bytes(self, db: SqlContext, number: int, ranges: Iterable[ItemRange]) -> int:
        """Return the total size of the items in some ranges."""
        return sum(int(db.rows("item-bytes", thread=number, **range_values(each))[0][0]) for each in ranges)

    def fetch_memories(self, db: SqlContext, values: dict[str, Any], numbers: Sequence[int]) -> list[Row]:
        """Return memories by number."""
        return db.rows("memories", **values, memories=json.dumps(numbers))

    def lock_memories(self, db: SqlContext, tenant: str, keys: Sequence[MemoryKey]) -> None:
        """Lock memories until the transaction ends. Here there is no concurrent writer."""
        del db, tenant, keys

    def add_memory(self, db: SqlContext, request: WriteMemories, memory: NewMemory) -> bool:
        """Add a memory of a change, which will store it again, and return whether there was none.

        Here there is no concurrent writer, so nothing needs to be added before.
        """
        del db, request, memory
        return True

    def store_memories(self, db: SqlContext, request: WriteMemories) -> int:
        """Add, replace and delete memories, and return the number deleted."""
        return sql.memories.store_memories(db, request)

    def restart_ttl(self, db: SqlContext, values: Sequence[Values]) -> None:
        """Start the ttl of memories again."""
        db.many("refresh-memories", values)

    def store_words(self, db: SqlContext, words: Sequence[tuple[int, str]]) -> None:
        """Store the words of memories by number; an empty text deletes the entry."""
        db.many("put-words", ({"memory": number, "words": text} for number, text in words if text))
        db.many("delete-words", ({"memory": number} for number, text in words if not text))

    def word_values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the words of a query as the values of `search-words`."""
        return {"words": json.dumps(words)}

    def marked_words(self, _words: Any) -> str | None:
        """Return the words of a row of `inspect-memories`, marked; None if `word_problems` checks them."""
        return None

    def word_problems(self, db: SqlContext) -> Iterable[IntegrityProblem]:
        """Yield what is wrong with the index of words, if it is not part of the memories' rows."""
        return sql.health.word_problems(db)

    def run_script(self, db: SqlContext, block: str, **values: Any) -> None:
        """Run the statements of a block, one after the other."""
        for statement in self.sql[block].split(";"):
            if statement.strip():
                db.cursor.rows(statement, values)

    @abstractmethod
    def match_values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values by which `search-index` finds the documents that have all these words."""

    @abstractmethod
    def leads_to_document(self, db: SqlContext, terms: Collection[str], evidence: Any) -> bool:
        """Return whether these terms, and no others, lead to a document: `evidence` is its column for this.

        If `term_rows` returns rows, others may.
        """

    def term_rows(self, db: SqlContext, term: str, skip: int) -> list[Row]:
        """Return terms from this one on, without so many: (term, row of a document, whether that lacks the term).

        An empty list at the end. Here there is no index of terms that could differ from the documents.
        """
        del db, term, skip
        return []

    @abstractmethod
    def list_value(self, texts: Sequence[str]) -> Any:
        """Return a list of texts as the value of one parameter."""

    def store_documents(self, db: SqlContext, documents: Sequence[Values]) -> None:
        """Add documents to the search index."""
        db.many("insert-documents", documents)

    def unpack_vector(self, stored: bytes) -> bytes:
        """Return a stored vector as little-endian float32."""
        return stored

    # --- rows and values

    def key_values(self, key: ThreadKey) -> dict[str, Any]:
        """Return the values that identify a thread in a statement."""
        return {
            "tenant": key.tenant.encode(*_UTF8),
            "kind": key.kind,
            "thread_id": key.id.encode(*_UTF8),
            "number": self.thread_number(key),
        }

    def thread_values(self, row: ThreadRow) -> dict[str, Any]:
        """Return a thread's row as values."""
        return self.key_values(row.key) | {
            "epoch": row.epoch, "rev": row.rev, "nexts": b"".join(map(itemlog.varint, row.nexts)),
            "created": row.created, "updated": row.updated, "checkpoints": row.checkpoints, "writes": row.writes,
            "bytes": row.bytes, "top": maybe_bytes(row.top), "run": maybe_pack(row.run), "step": row.step,
            "source": row.source, "status": row.status, "labels": row.labels, "early": maybe_bytes(row.early),
            "early_status": row.early_status, "lease": row.lease, "family": row.family, "top_writes": row.top_writes,
            "early_writes": row.early_writes, "checksum": thread_checksum(row), "sealed": row.sealed,
            "description": row.description,
        }  # fmt: skip

    def checkpoint_values(self, number: int, rows: Iterable[CheckpointRow]) -> Iterator[dict[str, Any]]:
        """Yield checkpoints as values."""
        for row in rows:
            yield {
                "thread": number, "ns": to_bytes(row.ns), "id": to_bytes(row.id), "parent": maybe_pack(row.parent),
                "run": maybe_pack(row.run), "step": row.step, "source": row.source, "labels": row.labels,
                "time": row.time, "hidden": int(row.hidden), "refs": self.pack_refs(row.refs), "body": row.body,
            }  # fmt: skip

    def write_values(self, number: int, rows: Iterable[WriteRow]) -> Iterator[dict[str, Any]]:
        """Yield writes as values."""
        for row in rows:
            yield {
                "thread": number, "ns": to_bytes(row.ns), "checkpoint": to_bytes(row.checkpoint),
                "task": pack_id(row.task), "path": pack_path(row.path), "run": maybe_pack(row.run), "time": row.time,
                "entries": pack_index(row.index), "refs": self.pack_refs(row.refs), "body": row.body,
            }  # fmt: skip

    def checkpoint_row(self, row: Row) -> CheckpointRow:
        """Read a row of the block `checkpoint-columns`. Corrupt if a column has no such value."""
        ns, id, parent, run, step, source, labels, time, hidden, refs, body = row
        if type(body) is not bytes or type(labels) is not int or type(time) is not int:
            raise _damaged_checkpoint(row, _OTHER_TYPE)
        try:
            return new_tuple(CheckpointRow, (
                ns.decode(*_UTF8), id.decode(*_UTF8), unpack_id(parent) if parent else None,
                unpack_id(run) if run else None, step, source, labels, time, _HIDDEN[hidden], self.unpack_refs(refs),
                body,
            ))  # fmt: skip
        except Exception as error:
            raise _damaged_checkpoint(row, repr(error)) from error

    def write_row(self, row: Row) -> WriteRow:
        """Read a row of the block `write-columns`. Corrupt if a column has no such value."""
        ns, checkpoint, task, path, run, time, entries, refs, body = row
        if type(body) is not bytes or type(time) is not int:
            raise _damaged_writes(row, _OTHER_TYPE)
        try:
            return new_tuple(WriteRow, (
                ns.decode(*_UTF8), checkpoint.decode(*_UTF8), unpack_id(task), unpack_path(path),
                unpack_id(run) if run else None, time, unpack_index(entries), self.unpack_refs(refs), body,
            ))  # fmt: skip
        except Exception as error:
            raise _damaged_writes(row, repr(error)) from error


def _damaged_checkpoint(row: Row, problem: str) -> Corrupt:
    return Corrupt(f"checkpoint {_shown(row[1])} of namespace {_shown(row[0])} cannot be read: {problem}")


def _damaged_writes(row: Row, problem: str) -> Corrupt:
    return Corrupt(f"writes of task {_shown(row[2])} on checkpoint {_shown(row[1])} cannot be read: {problem}")


def _shown(id: Any) -> str:
    """Return an id that may be damaged, for an error message."""
    return repr(decode_lossy(id) or id)


def parse_rows(request: Request[Any], parse: Callable[[], T]) -> T:
    """Call `parse`, which reads the rows of a request. Raise Corrupt if one of them cannot be read."""
    try:
        return parse()
    except (IndexError, ValueError, Corrupt) as error:
        raise unreadable(request, error) from error


def unreadable(request: Request[Any], error: Exception) -> Corrupt:
    """Return the error for a row that cannot be read. It names the thread."""
    key = getattr(request, "key", None)
    if isinstance(key, ThreadKey):
        owner = f"thread {key.id!r}"
    elif request.access.subject == "memories":
        owner = sql.memories.names_of(request) or "a memory"
    else:
        owner = "a thread"
    if isinstance(error, Corrupt):
        return error if owner in str(error) or not isinstance(key, ThreadKey) else Corrupt(f"{owner}: {error}")
    return Corrupt(f"a row of {owner} cannot be read: {reason(error)}")


class SqlContext(Value):
    """A dialect, and the cursor that runs its SQL: what the function for a request works with."""

    dialect: SqlBackend
    cursor: SqlCursor

    def rows(self, block: str, **values: Any) -> list[Row]:
        """Run a block and return its rows."""
        return self.cursor.rows(self.dialect.sql[block], values)

    def one(self, block: str, **values: Any) -> Row | None:
        """Run a block and return its first row, or None if there is none."""
        rows = self.rows(block, **values)
        return rows[0] if rows else None

    def many(self, block: str, values: Iterable[Any]) -> int:
        """Run a block once for each set of values and return the number of rows changed."""
        listed = list(values)
        return self.cursor.many(self.dialect.sql[block], listed) if listed else 0

    def thread(self, key: ThreadKey, *, lock: bool = False, unchecked: bool = False) -> tuple[int, ThreadRow] | None:
        """Return a thread's number and row, or None if it does not exist. Corrupt if its row is damaged."""
        dialect = self.dialect
        rows = self.cursor.rows(dialect.sql["lock-thread" if lock else "thread"], dialect.key_values(key))
        if not rows:
            return None
        row = thread_row(rows[0])
        return rows[0][0], row if unchecked else checked_thread(row, key)


class _LazyHandlers(dict[type[Request[Any]], Callable[[SqlContext, Any], Any]]):
    """The function for each kind of request. Those for memories, health, search and tenants are imported on use."""

    def __missing__(self, kind: type[Request[Any]]) -> Callable[[SqlContext, Any], Any]:
        self.update(sql.tenants.HANDLERS)
        if kind not in self:  # not needed to open a Keep
            self.update(sql.memories.HANDLERS)
            self.update(sql.health.HANDLERS)
        if kind not in self:
            self.update(sql.search.HANDLERS)
            self.update(sql.search_health.HANDLERS)
        return dict(self)[kind]


_HANDLERS = _LazyHandlers({**reads.HANDLERS, **lists.HANDLERS, **commits.HANDLERS})
