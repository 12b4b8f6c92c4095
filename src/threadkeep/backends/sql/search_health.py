"""What `verify` reads of the search index in SQL: documents as they are stored, and the terms that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from threadkeep.backends.sql.rows import Row
from threadkeep.backends.sql.search import REPEATED, has_index, read_document, repeated_words
from threadkeep.engine.identity import Kind, ThreadKey, decode_lossy, from_bytes, to_bytes
from threadkeep.engine.requests import MALFORMED_ROW_ERRORS
from threadkeep.engine.search.documents import Document
from threadkeep.engine.search.requests import IndexedPage, IndexedThread, InspectSearchIndex
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.sql.backend import SqlContext

_BEFORE_ALL = -(1 << 63)
_THREADS, _ROWS, _TERMS = "threads", "rows", "terms"
"""What a cursor is in: the threads, then the rows of no thread, then the terms."""


def _inspect(db: SqlContext, request: InspectSearchIndex) -> IndexedPage | None:
    if not has_index(db, request.tenant):
        return None
    part, *place = request.after or (_THREADS, _BEFORE_ALL)
    if part == _THREADS:
        return _thread_page(db, request, *place)
    if part == _ROWS:
        counted = [(what, count) for what, count in db.rows("lost-documents") if count]
        problems = tuple(f"{count} {what} of the search index belong to nothing" for what, count in counted)
        return IndexedPage((), problems, (_TERMS, "", 0))
    return _term_page(db, *place)


def _thread_page(db: SqlContext, request: InspectSearchIndex, after: int) -> IndexedPage:
    values = {"tenant": to_bytes(request.tenant), "after": after, "limit": request.limit}
    rows = db.rows("indexed-threads", **values)
    threads = tuple(_indexed_thread(db, request.tenant, *row) for row in rows)
    return IndexedPage(threads, (), (_THREADS, rows[-1][0]) if len(rows) == request.limit else (_ROWS,))


def _indexed_thread(
    db: SqlContext, tenant: str, number: int, kind: Kind | None, id: bytes | None, owner: bytes | None, *version: int
) -> IndexedThread:
    *indexed, epoch, rev = version
    if kind is None or id is None or owner != to_bytes(tenant):
        return IndexedThread(None, (f"the search index has thread number {number}, which does not exist",))
    try:
        key = ThreadKey(tenant, kind, from_bytes(id))
    except MALFORMED_ROW_ERRORS:
        return IndexedThread(None, (f"the search index has thread {decode_lossy(id)!r}, whose id is no valid text",))
    documents, problems = list[Document](), list[str]()
    for row in db.rows("indexed-documents", thread=number):
        try:
            documents.append(_checked_document(db, tenant, row))
        except (Corrupt, *MALFORMED_ROW_ERRORS) as error:
            problems.append(f"{error} (thread {key.id!r})")
    return IndexedThread(key, tuple(problems), (epoch, rev) if indexed == [epoch, rev] else None, tuple(documents))


def _checked_document(db: SqlContext, tenant: str, row: Row) -> Document:
    """Return a document. Corrupt if it is not what was stored, or if one of its words does not lead to it."""
    *columns, evidence, repeated = row
    _, document = read_document(tenant, columns)
    words = document.words.split()
    terms = {*words, *repeated_words(words)}
    if repeated is not None and set(repeated.split()) != {term for term in terms if term.endswith(REPEATED)}:
        raise Corrupt(f"the words that {document.place} has more than once are wrong in the search index")
    if not db.dialect.leads_to_document(db, terms, evidence):
        raise Corrupt(f"the search index does not find {document.place} by its words")
    return document


def _term_page(db: SqlContext, term: str, skip: int) -> IndexedPage:
    """Return terms that lead to documents which do not have them, or which do not exist."""
    rows = db.dialect.term_rows(db, term, skip)
    problems = tuple(_wrong_terms(rows))
    if not rows:
        return IndexedPage((), problems)
    last = rows[-1][0]
    count = sum(row[0] == last for row in rows)
    return IndexedPage((), problems, (_TERMS, last, count + skip if last == term else count))


def _wrong_terms(rows: list[Row]) -> Iterator[str]:
    wrong = [row[1] for row in rows if row[2]]
    if wrong:
        yield f"the search index has words of {len(wrong)} texts that do not have them, the first in row {wrong[0]}"


HANDLERS: dict[type[Request[Any]], Callable[[SqlContext, Any], Any]] = {InspectSearchIndex: _inspect}
