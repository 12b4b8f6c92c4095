"""The search index in dicts, for the in-memory backend: for each word, the threads that have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.search.documents import ThreadDocuments
from threadkeep.engine.search.hits import Ranked, best, first
from threadkeep.engine.search.requests import (
    ChangedThreads,
    CreateSearchIndex,
    DropSearchIndex,
    FindChangedThreads,
    IndexedPage,
    IndexedThread,
    IndexThreads,
    InspectSearchIndex,
    SearchIndex,
)
from threadkeep.plan import Request


class _Index:
    """The index of a tenant."""

    def __init__(self) -> None:
        self.threads: dict[ThreadKey, ThreadDocuments] = {}
        self.by_word: dict[str, set[ThreadKey]] = {}

    def add(self, said: ThreadDocuments) -> None:
        self.remove(said.key)
        self.threads[said.key] = said
        for word in _words(said):
            self.by_word.setdefault(word, set()).add(said.key)

    def remove(self, key: ThreadKey) -> None:
        said = self.threads.pop(key, None)
        for word in _words(said) if said is not None else ():
            self.by_word[word].discard(key)
            if not self.by_word[word]:
                del self.by_word[word]


def _words(said: ThreadDocuments) -> set[str]:
    return {word for document in said.documents for word in document.words.split()}


class InMemorySearch:
    """The search indexes of all tenants of one Keep. `rows` yields the rows of a tenant's threads."""

    def __init__(self, rows: Callable[[str], Iterator[ThreadRow]], check_plain: Callable[[str], None]) -> None:
        self._rows = rows
        self._check_plain = check_plain
        self._indexes: dict[str, _Index] = {}
        self.handlers: dict[type[Request[Any]], Callable[[Any], Any]] = {
            FindChangedThreads: self._find_changed,
            CreateSearchIndex: self._create,
            DropSearchIndex: lambda request: self._indexes.pop(request.tenant, None) is not None,
            IndexThreads: self._index_threads,
            SearchIndex: self._search,
            InspectSearchIndex: self._inspect,
        }

    def forget(self, key: ThreadKey) -> None:
        """Remove a thread from the index of its tenant: it was deleted, or something in it was removed."""
        index = self._indexes.get(key.tenant)
        if index is not None:
            index.remove(key)

    def _versions(self, tenant: str) -> dict[ThreadKey, tuple[int, int]]:
        return {row.key: (row.epoch, row.rev) for row in self._rows(tenant)}

    def _find_changed(self, request: FindChangedThreads) -> ChangedThreads | None:
        index = self._indexes.get(request.tenant)
        if index is None:
            return None
        changed = sorted(
            (
                key
                for key, version in self._versions(request.tenant).items()
                if version != _version(index.threads.get(key))
                and (request.after is None or _place(key) > _place(request.after))
            ),
            key=_place,
        )
        return ChangedThreads(tuple(changed[: request.limit]), len(changed))

    def _is_current(self, index: _Index, tenant: str) -> bool:
        return self._versions(tenant) == {key: _version(said) for key, said in index.threads.items()}

    def _create(self, request: CreateSearchIndex) -> None:
        self._check_plain(request.tenant)
        self._indexes.setdefault(request.tenant, _Index())

    def _index_threads(self, request: IndexThreads) -> None:
        self._check_plain(request.tenant)
        index, versions = self._indexes.get(request.tenant), self._versions(request.tenant)
        for said in request.threads if index is not None else ():
            assert index is not None
            index.remove(said.key)
            if said.key in versions and versions[said.key][0] == said.epoch:
                index.add(said)

    def _search(self, request: SearchIndex) -> tuple[Ranked, ...] | None:
        index = self._indexes.get(request.tenant)
        if index is None or (request.if_current and not self._is_current(index, request.tenant)):
            return None
        keys = set.intersection(*(index.by_word.get(word, set()) for word in request.query.words))
        if request.exact:
            versions = self._versions(request.tenant)
            keys = {key for key in keys if _version(index.threads[key]) == versions.get(key)}
        found = [
            each for key in keys for each in best(request.query, request.condition, key, index.threads[key].documents)
        ]
        return tuple(first(found, request.limit))

    def _inspect(self, request: InspectSearchIndex) -> IndexedPage | None:
        index, versions = self._indexes.get(request.tenant), self._versions(request.tenant)
        if index is None:
            return None
        after = request.after or 0
        page = sorted(index.threads, key=_place)[after : after + request.limit]
        threads = tuple(_indexed_thread(index, key, versions.get(key)) for key in page)
        if page:
            return IndexedPage(threads, (), after + request.limit)
        pairs = sum(len(_words(said)) for said in index.threads.values())
        extra = sum(map(len, index.by_word.values())) - pairs
        return IndexedPage((), ("the search index has words of threads that do not have them",) * (extra > 0))


def _indexed_thread(index: _Index, key: ThreadKey, version: tuple[int, int] | None) -> IndexedThread:
    said = index.threads[key]
    if version is None:
        return IndexedThread(None, (f"the search index has thread {key.id!r}, which does not exist",))
    missing = [word for word in _words(said) if key not in index.by_word.get(word, ())]
    problems = (f"the search index does not find thread {key.id!r} by {len(missing)} of its words",) * bool(missing)
    return IndexedThread(key, problems, version if version == _version(said) else None, said.documents)


def _version(said: ThreadDocuments | None) -> tuple[int, int] | None:
    return (said.epoch, said.rev) if said is not None else None


def _place(key: ThreadKey) -> tuple[str, str]:
    return key.id, key.kind
