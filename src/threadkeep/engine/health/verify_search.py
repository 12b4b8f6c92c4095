"""Compare what the search index has of a thread with what the thread says. Nothing is changed.

Only a thread that the index has as it is can be compared: the next search reads the others anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from threadkeep.engine.health.thread_scan import Problem
from threadkeep.engine.search.documents import Document, ThreadDocuments, thread_documents
from threadkeep.engine.search.requests import REMEDY, IndexedPage, IndexedThread
from threadkeep.engine.threads.heads import Heads
from threadkeep.errors import Corrupt, Missing

SEARCH = "search index"


def search_problem(message: str, thread: IndexedThread | None = None) -> Problem:
    """Return a problem of the index, with what to do."""
    key = thread.key if thread is not None else None
    return Problem(SEARCH, f"{message}: {REMEDY}", *((key.id, key.kind) if key is not None else ()))


def page_problems(page: IndexedPage) -> Iterator[Problem]:
    """Yield what the backend found wrong with a part of the index."""
    yield from (search_problem(message) for message in page.problems)
    for thread in page.threads:
        yield from (search_problem(message, thread) for message in thread.problems)


async def verify_indexed_thread(heads: Heads, indexed: IndexedThread) -> list[Problem]:
    """Compare the documents of a thread with what it says. Two round trips, none if it changed since it was indexed."""
    if indexed.key is None or indexed.version is None or indexed.problems:
        return []
    try:
        said = await thread_documents(heads, indexed.key)
    except (Missing, Corrupt):  # it is gone, or damaged, which is reported as what it is
        return []
    if said.damaged or (said.epoch, said.rev) != indexed.version:
        return []
    return [search_problem(message, indexed) for message in _differences(said, indexed.documents)]


def _differences(said: ThreadDocuments, indexed: tuple[Document, ...]) -> Iterator[str]:
    there = {document.n: document for document in indexed}
    known = {document.n: document for document in said.documents}
    for what, numbers in (
        ("does not have", known.keys() - there.keys()),
        ("has, though they were not said,", there.keys() - known.keys()),
        ("has otherwise", {n for n in known.keys() & there.keys() if known[n] != there[n]}),
    ):
        if numbers:
            place = (known | there)[min(numbers)].place
            yield f"the search index {what} {len(numbers)} texts of thread {said.key.id!r}, the first at {place}"
