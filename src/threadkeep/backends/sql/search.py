"""The search index in SQL: tables with a full-text index, which are created when it is first used.

The database finds the documents that have the words, and computes their rank as `engine.search.query` does. What it
returns is compared with the query again: a row that does not match, or whose checksum is wrong, is Corrupt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from threadkeep.backends.sql.lists import Conditions
from threadkeep.backends.sql.rows import Row
from threadkeep.engine.identity import ThreadKey, from_bytes, to_bytes
from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.search.documents import Document
from threadkeep.engine.search.hits import Ranked, ranked
from threadkeep.engine.search.query import BASE, COUNT, LENGTH, MOST, join_words
from threadkeep.engine.search.requests import (
    FORMAT,
    ChangedThreads,
    CreateSearchIndex,
    DropSearchIndex,
    FindChangedThreads,
    IndexThreads,
    SearchIndex,
)
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlBackend, SqlContext


_raw_decode = json.JSONDecoder().raw_decode
_BASE = f"({BASE} + {LENGTH} * d.length)"
_MARKS = 1000
"""For so many tenants a connection remembers that their index is current."""
REPEATED = "\ue000"
"""The mark of a word that a document has more than once."""


class _Mark(NamedTuple):
    """What a connection remembers: the `commit-mark`, and whether no other tenant had an index."""

    mark: Any
    is_alone: bool


def has_index(db: SqlContext, tenant: str) -> bool:
    """Return whether a tenant has an index of our format."""
    row = db.one("search-format", tenant=to_bytes(tenant)) if db.rows("has-search") else None
    return row is not None and row[0] == FORMAT


def _create(db: SqlContext, request: CreateSearchIndex) -> None:
    db.dialect.refuse_sealed(db, request.tenant)
    if db.rows("has-search") and any(format != FORMAT for _, format in db.rows("search-formats")):
        db.dialect.run_script(db, "drop-search")
    if not db.rows("has-search"):
        db.dialect.run_script(db, "create-search")
    db.rows("add-search-tenant", tenant=to_bytes(request.tenant), format=FORMAT)


def _drop(db: SqlContext, request: DropSearchIndex) -> bool:
    tenants = [tenant for tenant, _ in db.rows("search-formats")] if db.rows("has-search") else []
    tenant = to_bytes(request.tenant)
    if tenant not in tenants:
        return False
    if len(tenants) == 1:
        db.dialect.run_script(db, "drop-search")
    else:
        db.dialect.run_script(db, "drop-search-tenant", tenant=tenant)
    return True


def _find_changed(db: SqlContext, request: FindChangedThreads) -> ChangedThreads | None:
    if not has_index(db, request.tenant):
        return None
    after = request.after
    rows = db.rows(
        "changed-threads",
        tenant=to_bytes(request.tenant),
        after_id=to_bytes(after.id) if after is not None else b"",
        after_kind=after.kind if after is not None else "",
        limit=request.limit,
    )
    if rows[0][1] is None:
        if after is None:
            if len(db.cursor.marks) >= _MARKS:
                db.cursor.marks.clear()
            db.cursor.marks[request.tenant] = _Mark(rows[0][0], len(db.rows("search-formats")) == 1)
        return ChangedThreads((), 0)
    keys = tuple(ThreadKey(request.tenant, kind, from_bytes(id)) for _, kind, id, _ in rows)
    return ChangedThreads(keys, rows[0][3])


def _is_current(db: SqlContext, tenant: str) -> bool:
    """Whether nothing was committed since this connection found that the index has all threads as they are.

    A commit that comes after this is made while the search is under way.
    """
    known = db.cursor.marks.get(tenant)
    return known is not None and known.mark is not None and db.rows("commit-mark") == [(known.mark,)]


def _index_threads(db: SqlContext, request: IndexThreads) -> None:
    if not has_index(db, request.tenant):
        return
    db.dialect.refuse_sealed(db, request.tenant)
    added: list[dict[str, Any]] = []
    for said in request.threads:
        values = db.dialect.key_values(said.key)
        row = db.one("put-search-thread", **values, epoch=said.epoch, rev=said.rev)
        if row is None:
            db.rows("forget-thread", **values)
        else:
            db.rows("delete-documents", thread=row[0])
            added += (_document_values(row[0], said.key, each) for each in said.documents)
    if added:
        db.dialect.store_documents(db, added)


def _document_values(thread: int, key: ThreadKey, document: Document) -> dict[str, Any]:
    texts = (document.ns, document.checkpoint, document.place, document.message_id, document.text)
    role = to_bytes(document.role) if document.role is not None else None
    values = (document.n, document.time, role, int(document.current), document.length)
    body = to_bytes(json.dumps(texts, ensure_ascii=False, separators=(",", ":")))
    checksum = _checksum((to_bytes(key.tenant), key.kind, to_bytes(key.id), *values), document.words, body)
    columns = dict(zip(("n", "time", "role", "current", "length"), values, strict=True))
    repeated = " ".join(repeated_words(document.words.split()))
    return {
        "thread": thread,
        **columns,
        "words": document.words,
        "repeated": repeated,
        "body": body,
        "checksum": checksum,
    }


def repeated_words(words: Sequence[str]) -> list[str]:
    """Return the words that come more than once, with their mark."""
    return [word + REPEATED for word, count in Counter(words).items() if count > 1]


def _checksum(columns: tuple[Any, ...], words: str, body: bytes) -> int:
    """Return the checksum of a document: also of the thread that it belongs to."""
    return crc32(body, crc32(words.encode(), crc32(repr(columns).encode())))


def _search(db: SqlContext, request: SearchIndex) -> tuple[Ranked, ...] | None:
    if not (_is_current if request.if_current else has_index)(db, request.tenant):
        return None
    block, words = _block(db, request), request.query.words
    where = _conditions(db, request, block)
    for n, word in enumerate(words):
        term = join_words([word])
        where.values |= {f"word{n}": term, f"size{n}": len(term.encode())}
    where.values |= db.dialect.match_values(words) | {"limit": request.limit}
    sql = db.dialect.search_sql(block, tuple(where.blocks), len(words))
    found = {each.order: each for each in [_read(request, row) for row in db.cursor.rows(sql, where.values)]}
    return tuple(sorted(found.values())[: request.limit])


def search_sql(dialect: SqlBackend, block: str, conditions: tuple[str, ...], words: int) -> str:
    """Return the statement of a search for so many words."""
    counts = [dialect.sql["count-word"].replace("{n}", str(n)) for n in range(words)]
    ranks = {"score": " + ".join(map(_score, counts)), "score-of-one": f"{words} * ({_score('1')})"}
    return Conditions(dialect, {}, *conditions).put_into(block, **ranks)


def _score(count: str) -> str:
    """Return what a word adds to the rank of a document that has it so often, in SQL; see `engine.search.query`."""
    return f"{MOST} - {MOST} * {_BASE} / ({COUNT} * ({count}) + {_BASE})"


def _block(db: SqlContext, request: SearchIndex) -> str:
    """Return the block that answers a search: the less is known, the more the database has to look up."""
    if not request.if_current:
        return "search-index"
    condition, known = request.condition, db.cursor.marks[request.tenant]
    is_selective = condition.prefix or condition.kind is not None or condition.threads is not None
    return "search-all" if known.is_alone and not is_selective else "search-current"


def _conditions(db: SqlContext, request: SearchIndex, block: str) -> Conditions:
    condition, sql = request.condition, db.dialect.sql
    tenant = "TRUE" if block == "search-all" else sql["where-tenant"]
    where = Conditions(db.dialect, {"tenant": to_bytes(request.tenant)}, tenant)
    if block == "search-index":
        where.blocks.append(sql["where-exact" if request.exact else "where-epoch"])
    where.add("where-kind", kind=condition.kind)
    where.add("where-role", role=to_bytes(condition.role) if condition.role is not None else None)
    where.add("where-since", since=condition.since)
    where.add("where-until", until=condition.until)
    where.add_prefix(condition.prefix)
    if condition.current:
        where.add("where-current")
    if condition.threads is not None:
        names = sorted(kind + to_bytes(id).hex().upper() for kind, id in condition.threads)
        where.add("where-threads", threads=db.dialect.list_value(names))
    for n, phrase in enumerate(request.query.phrases):
        where.blocks.append(sql["where-phrase"].replace("{n}", str(n)))
        where.values[f"phrase{n}"] = phrase
    return where


def _read(request: SearchIndex, row: Row) -> Ranked:
    """Return a document that was found, and its place in the order. Corrupt if it is not what was stored."""
    key, document = read_document(request.tenant, row)
    found = ranked(request.query, key, document)
    if found is None:
        raise Corrupt("the search index has words of a document that the document does not have")
    return found


def read_document(tenant: str, row: Sequence[Any]) -> tuple[ThreadKey, Document]:
    """Return a document and its thread. Corrupt if it is not what was stored. Makes 12 calls."""
    kind, id, n, time, role, current, length, words, body, checksum = row
    if n is None:
        raise Corrupt("the search index has words of a document that it does not have")
    stored = (to_bytes(tenant), kind, id, n, time, role, current, length)
    if words is None or _checksum(stored, words, body) != checksum:
        raise Corrupt("a document of the search index does not match its checksum")
    (ns, checkpoint, place, message, text), _ = _raw_decode(from_bytes(body))
    named = from_bytes(role) if role is not None else None
    columns = (n, ns, checkpoint, time, place, named, message, text, words, length, current == 1)
    return new_tuple(ThreadKey, (tenant, kind, from_bytes(id))), new_tuple(Document, columns)


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {
    FindChangedThreads: _find_changed,
    CreateSearchIndex: _create,
    DropSearchIndex: _drop,
    IndexThreads: _index_threads,
    SearchIndex: _search,
}
