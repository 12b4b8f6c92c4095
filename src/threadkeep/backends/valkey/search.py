"""The search index on Valkey: in each partition, for each word, the threads that have it, and what these threads say.

    {n}:fv:…    the versions of the threads in the index
    {n}:fd:…    their documents: a line of all their words, then a checksum and JSON
    {n}:fw:…    the words, each with a thread
    {n}:a:      the tenants that have an index, after an `f`; see `tenants.py`

A thread and its part of the index are in one slot. The script that deletes a thread says whether there is an index;
then a second call removes the thread from it. What is left if that does not happen is not found, since versions are
compared, and the next update of the index removes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any
from zlib import crc32

from threadkeep.backends.valkey.calls import AT_ONCE, Call, CallExecutor
from threadkeep.backends.valkey.commits import REFUSED
from threadkeep.backends.valkey.keys import (
    PARTITIONS,
    key_of,
    keys_of_partitions,
    partition_of,
    tenants_key,
    thread_keys,
)
from threadkeep.backends.valkey.rows import segments
from threadkeep.engine.identity import ThreadKey, from_bytes, to_bytes
from threadkeep.engine.search.documents import Document, ThreadDocuments, unsaid
from threadkeep.engine.search.hits import Ranked, best, first
from threadkeep.engine.search.requests import (
    ChangedThreads,
    CreateSearchIndex,
    DropSearchIndex,
    FindChangedThreads,
    IndexThreads,
    SearchIndex,
)
from threadkeep.errors import Corrupt, WrongKey
from threadkeep.plan import Request

VERSIONS, DOCUMENTS, WORDS = b"fv", b"fd", b"fw"
"""Documents of another format need other keys."""
_DIGITS = 8
"""A checksum has eight hexadecimal digits."""


def _index_member(tenant: str) -> bytes:
    """Return the member of the set of tenants that says that a tenant has an index."""
    return b"f" + to_bytes(tenant)


class ValkeySearch:
    """The search indexes below a prefix of keys."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self.handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            FindChangedThreads: self._find_changed,
            CreateSearchIndex: self._create,
            DropSearchIndex: self._drop,
            IndexThreads: self._index_threads,
            SearchIndex: self._search,
        }

    def forget(self, executor: CallExecutor, key: ThreadKey) -> None:
        """Remove a deleted thread from the index of its tenant."""
        self._index(executor, [unsaid(key)])

    # --- whether there is one

    def _tenant_keys(self) -> list[bytes]:
        return [tenants_key(self._prefix, partition) for partition in range(PARTITIONS)]

    def has_index(self, executor: CallExecutor, tenant: str) -> bool:
        """Whether a tenant has an index."""
        call = Call("ZSCORE", (tenants_key(self._prefix, 0),), (_index_member(tenant),))
        return executor.call(call) is not None

    def _create(self, executor: CallExecutor, request: CreateSearchIndex) -> None:
        """Note the index in all partitions; in the first one at last, since that one is asked."""
        start, *others = self._tenant_keys()
        if executor.call(Call("ZSCORE", (start,), (b"s" + to_bytes(request.tenant),))) is not None:
            raise WrongKey
        args = (0, _index_member(request.tenant))
        executor.calls([Call("ZADD", (key,), args) for key in others])
        executor.call(Call("ZADD", (start,), args))

    def _drop(self, executor: CallExecutor, request: DropSearchIndex) -> bool:
        """Delete the note in all partitions, so that nothing is added any more, and then the index."""
        args = (_index_member(request.tenant),)
        removed = executor.calls([Call("ZREM", (key,), args) for key in self._tenant_keys()])
        for what in (VERSIONS, DOCUMENTS, WORDS):
            keys = keys_of_partitions(self._prefix, what, request.tenant)
            executor.calls([Call("UNLINK", (key,)) for key in keys])
        return any(removed)

    # --- bring it up to date

    def _find_changed(self, executor: CallExecutor, request: FindChangedThreads) -> ChangedThreads | None:
        """Compare the versions of all threads with those in the index. Three round trips."""
        tenant = request.tenant
        if not self.has_index(executor, tenant):
            return None
        indexed = self._indexed_versions(executor, tenant)
        keys = {*self._listed(executor, tenant), *indexed}
        versions = self._versions(executor, keys).items()
        changed = [key for key, version in versions if version != indexed.get(key) and _is_after(request.after, key)]
        changed.sort(key=_place)
        return ChangedThreads(tuple(changed[: request.limit]), len(changed))

    def _indexed_versions(self, executor: CallExecutor, tenant: str) -> dict[ThreadKey, bytes]:
        keys = keys_of_partitions(self._prefix, VERSIONS, tenant)
        found: dict[ThreadKey, bytes] = {}
        for pairs in executor.calls([Call("HGETALL", (key,)) for key in keys]):
            for member, version in fields_of(pairs):
                kind, id = segments(member, 1)
                found[ThreadKey(tenant, kind, id)] = version
        return found

    def _listed(self, executor: CallExecutor, tenant: str) -> Iterable[ThreadKey]:
        keys = keys_of_partitions(self._prefix, b"n", tenant)
        for members in executor.calls([Call("ZRANGE", (key,), (0, -1)) for key in keys]):
            for member in members:
                id, kind = segments(member, 1)
                yield ThreadKey(tenant, kind, id)

    def _versions(self, executor: CallExecutor, keys: Iterable[ThreadKey]) -> dict[ThreadKey, bytes | None]:
        """Return the versions of threads; None for those that do not exist."""
        listed = list(keys)
        calls = [Call("HGET", thread_keys(self._prefix, key).hash, (b"v",)) for key in listed]
        return dict(zip(listed, executor.calls(calls), strict=True))

    def _index_threads(self, executor: CallExecutor, request: IndexThreads) -> None:
        self._index(executor, request.threads)

    def _index(self, executor: CallExecutor, said: Sequence[ThreadDocuments]) -> None:
        if REFUSED in executor.calls([self._index_call(each) for each in said]):
            raise WrongKey

    def _index_call(self, said: ThreadDocuments) -> Call:
        tenant, names = said.key.tenant, thread_keys(self._prefix, said.key)
        partition = partition_of(said.key)
        keys = [key_of(self._prefix, partition, what, to_bytes(tenant)) for what in (VERSIONS, DOCUMENTS, WORDS)]
        words = sorted({word.encode() for each in said.documents for word in each.words.split()})
        documents = to_bytes(json.dumps(said.documents, ensure_ascii=False))
        stored = b"%s\n%08x%s" % (b" ".join(words), crc32(documents, crc32(names.member)), documents)
        return Call(
            "index_thread",
            (*names.hash, *keys, tenants_key(self._prefix, partition)),
            (names.member, names.tenant, f"{said.epoch}:", f"{said.epoch}:{said.rev}", stored, *words),
        )

    # --- search

    def _search(self, executor: CallExecutor, request: SearchIndex) -> tuple[Ranked, ...] | None:
        """Find the threads that have all words, and compare what they say. Four round trips, more for many threads."""
        if request.if_current or not self.has_index(executor, request.tenant):
            return None
        candidates = (key for key in self._candidates(executor, request) if request.condition.has_thread(key))
        found: list[Ranked] = []
        while page := list(islice(candidates, AT_ONCE)):
            for key, documents in self._documents(executor, request, page):
                found += best(request.query, request.condition, key, documents)
            found = first(found, request.limit)
        return tuple(found)

    def _candidates(self, executor: CallExecutor, request: SearchIndex) -> Iterable[ThreadKey]:
        """Yield the threads that have all words of the query, though not in one text."""
        keys = keys_of_partitions(self._prefix, WORDS, request.tenant)
        starts = [word.encode() + b"\x00" for word in request.query.words]
        calls = [
            Call("ZRANGEBYLEX", (key,), (b"[" + start, b"(" + start[:-1] + b"\x01")) for key in keys for start in starts
        ]
        replies = iter(executor.calls(calls))
        for _ in keys:
            members = [{each[len(start) :] for each in next(replies)} for start in starts]
            for member in sorted(set.intersection(*members)):
                kind, id = segments(member, 1)
                yield ThreadKey(request.tenant, kind, id)

    def _documents(
        self, executor: CallExecutor, request: SearchIndex, keys: Sequence[ThreadKey]
    ) -> Iterable[tuple[ThreadKey, list[Document]]]:
        """Yield what threads say, according to the index. Those that have changed are left out."""
        names = [
            (self._part(key, VERSIONS), self._part(key, DOCUMENTS), thread_keys(self._prefix, key)) for key in keys
        ]
        calls = [Call("HGET", name.hash, (b"v",)) for _, _, name in names]
        calls += [Call("HGET", (versions,), (name.member,)) for versions, _, name in names]
        calls += [Call("HGET", (documents,), (name.member,)) for _, documents, name in names]
        replies = executor.calls(calls)
        size = len(keys)
        for key, name, stored, indexed, said in zip(
            keys, names, replies[:size], replies[size : 2 * size], replies[2 * size :], strict=True
        ):
            if stored is None or indexed is None or not _is_current(stored, indexed, exact=request.exact):
                continue
            if said is None:
                raise Corrupt(f"the search index has words of thread {key.id!r}, but not what it says")
            yield key, read_documents(key, name[2].member, said)

    def _part(self, key: ThreadKey, what: bytes) -> bytes:
        return key_of(self._prefix, partition_of(key), what, to_bytes(key.tenant))


def _is_current(stored: bytes, indexed: bytes, *, exact: bool) -> bool:
    """Whether a thread has the version that is in the index; without `exact`, whether nothing was removed since."""
    return stored == indexed if exact else stored.partition(b":")[0] == indexed.partition(b":")[0]


def read_documents(key: ThreadKey, member: bytes, stored: bytes) -> list[Document]:
    """Return what the index has of a thread. Corrupt if it is not what was stored of this thread."""
    _, _, summed = stored.partition(b"\n")
    checksum, documents = summed[:_DIGITS], summed[_DIGITS:]
    if checksum != b"%08x" % crc32(documents, crc32(member)):
        raise Corrupt(f"what the search index has of thread {key.id!r} does not match its checksum")
    return [Document(*each) for each in json.loads(from_bytes(documents))]


def fields_of(flat: Sequence[bytes] | Mapping[bytes, bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields and values of a hash, as a server sent them."""
    return flat.items() if isinstance(flat, Mapping) else zip(flat[::2], flat[1::2], strict=True)


def _is_after(last: ThreadKey | None, key: ThreadKey) -> bool:
    return last is None or _place(key) > _place(last)


def _place(key: ThreadKey) -> tuple[str, str]:
    return key.id, key.kind
