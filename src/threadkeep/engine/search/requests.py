"""Requests about the search index, which not every storage has. Their guarantees are those of `engine.requests`.

An index belongs to a tenant. It has, for each thread, the documents of one version of the thread, (epoch, rev). A
storage without an index does not have to be changed to answer these requests. What is removed from a thread leaves the
index with the same change: the epoch is another one then, and documents of an old epoch are neither found nor kept.
In SQL, a read first looks whether there is an index; the one statement that then reads it is consistent by itself.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.search.documents import Document, ThreadDocuments
from threadkeep.engine.search.hits import Condition, Ranked
from threadkeep.engine.search.query import Query
from threadkeep.plan import IDEMPOTENT_WRITE, READ, READ_ONE_STATEMENT, Access, Request

FORMAT = 2
"""The format of the documents in an index: one of another format is built anew."""
REMEDY = "`threadkeep search --drop` removes the index, and `--build` builds it anew"
"""What to do about a damaged index."""


class ChangedThreads(NamedTuple):
    """Threads whose version in the index is not theirs, by id, and how many there are of them after `after`."""

    threads: tuple[ThreadKey, ...]
    total: int


class FindChangedThreads(Request[ChangedThreads | None]):
    """Find at most `limit` threads that the index does not have as they are; None if the tenant has no index.

    Among them may be threads that do not exist, but that the index has. Versions are compared, not times. `after` is
    the last thread of the page before.
    """

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    limit: int
    after: ThreadKey | None = None

    def says_nothing(self, reply: ChangedThreads | None) -> bool:
        """Whether no thread was found."""
        return reply is None or not reply.total


class CreateSearchIndex(Request[None]):
    """Create the index of a tenant, without any thread. Do nothing if it has one of this format."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    tenant: str


class DropSearchIndex(Request[bool]):
    """Delete the index of a tenant, and return whether there was one."""

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    tenant: str


class IndexThreads(Request[None]):
    """Replace the documents of some threads in the index.

    A thread that is no longer at the epoch leaves the index, so nothing that was removed comes back. Do nothing if the
    tenant has no index. WrongKey if the tenant is encrypted.
    """

    access: ClassVar[Access] = IDEMPOTENT_WRITE
    is_refused: ClassVar[bool] = True
    tenant: str
    threads: tuple[ThreadDocuments, ...]


class SearchIndex(Request[tuple[Ranked, ...] | None]):
    """Find the first `limit` documents in the order of hits; None if the tenant has no index.

    With `exact`, only threads that the index has as they are: their documents are found, and no others. With
    `if_current`, None unless the backend knows, without comparing versions, that the index has all threads as they are:
    nothing was committed since a FindChangedThreads found none. It may always say None.

    Corrupt if the index contradicts itself: then it has to be dropped and built again.
    """

    access: ClassVar[Access] = READ_ONE_STATEMENT
    tenant: str
    query: Query
    condition: Condition
    limit: int
    exact: bool = False
    if_current: bool = False


class IndexedThread(NamedTuple):
    """What the index has of a thread, and what the backend found wrong with it.

    `key` is None if there is no such thread. `version` is that of the thread if the index has the thread as it is, else
    None. `documents` are those that can be read and that are found by their words, in the order of their numbers.
    """

    key: ThreadKey | None
    problems: tuple[str, ...] = ()
    version: tuple[int, int] | None = None
    documents: tuple[Document, ...] = ()


class IndexedPage(NamedTuple):
    """A part of the index. `cursor` is where the next part begins, None at the end."""

    threads: tuple[IndexedThread, ...]
    problems: tuple[str, ...] = ()
    cursor: Any = None


class InspectSearchIndex(Request[IndexedPage | None]):
    """Read the index from a cursor on as it is stored, about `limit` threads; None if the tenant has no index.

    After the threads come what belongs to none and words that lead nowhere, in parts of a bounded size.
    """

    access: ClassVar[Access] = READ
    tenant: str
    limit: int
    after: Any = None
