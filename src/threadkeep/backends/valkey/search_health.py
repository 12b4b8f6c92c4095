"""What `verify` reads of the search index on Valkey: some threads of one partition at a time.

A cursor is (partition, last thread, words so far, versions). At the end of a partition, the words of its threads are
counted, unless its versions changed meanwhile: each of them was found, so if there are more, they lead nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from threadkeep.backends.valkey.calls import Call, CallExecutor
from threadkeep.backends.valkey.keys import PARTITIONS, key_of, thread_keys
from threadkeep.backends.valkey.rows import segments
from threadkeep.backends.valkey.search import DOCUMENTS, VERSIONS, WORDS, ValkeySearch, fields_of, read_documents
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.requests import MALFORMED_ROW_ERRORS
from threadkeep.engine.search.requests import IndexedPage, IndexedThread, InspectSearchIndex
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

_PARTITIONS = 64
"""Of so many partitions, one call after the other asks how much they have."""


class _NextPart(NamedTuple):
    """Where the next part begins."""

    partition: int = 0
    after: bytes = b""
    words: int = 0
    versions: int = 0


class _Part(NamedTuple):
    """The keys of the index of a tenant in one partition."""

    versions: bytes
    documents: bytes
    words: bytes


def handlers(prefix: bytes, search: ValkeySearch) -> dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]]:
    """Return the functions that answer the requests of `search`, and those of `verify` about it."""

    def inspect(executor: CallExecutor, request: InspectSearchIndex) -> IndexedPage | None:
        return _inspect(prefix, executor, request) if search.has_index(executor, request.tenant) else None

    return {**search.handlers, InspectSearchIndex: inspect}


def _inspect(prefix: bytes, executor: CallExecutor, request: InspectSearchIndex) -> IndexedPage:
    """Return what the index has of some threads of the next partition that has any. Four round trips."""
    place = _NextPart(*(request.after or ()))
    if not place.after:
        found = _next_partition(prefix, executor, request.tenant, place.partition)
        if found is None:
            last = place.partition + _PARTITIONS
            return IndexedPage((), (), _NextPart(last) if last < PARTITIONS else None)
        place = _NextPart(found)
    part = _part(prefix, place.partition, request.tenant)
    versions = dict(fields_of(executor.call(Call("HGETALL", (part.versions,)))))
    state = crc32(repr(sorted(versions.items())).encode())
    members = [member for member in sorted(versions) if member > place.after][: request.limit]
    said = executor.calls([Call("HGET", (part.documents,), (member,)) for member in members])
    threads = _indexed_threads(prefix, executor, request.tenant, part, list(zip(members, said, strict=True)), versions)
    words = place.words + sum(len(_words(each)) for each in said)
    unchanged = not place.after or place.versions == state
    if len(members) == request.limit:
        return IndexedPage(threads, (), _NextPart(place.partition, members[-1], words, state if unchanged else -1))
    problems = _lost(executor, part, versions, words) if unchanged else ()
    return IndexedPage(threads, problems, _NextPart(place.partition + 1) if place.partition + 1 < PARTITIONS else None)


def _part(prefix: bytes, partition: int, tenant: str) -> _Part:
    return _Part(*(key_of(prefix, partition, what, to_bytes(tenant)) for what in (VERSIONS, DOCUMENTS, WORDS)))


def _next_partition(prefix: bytes, executor: CallExecutor, tenant: str, first: int) -> int | None:
    """Return the next of some partitions that has anything in the index."""
    numbers = range(first, min(first + _PARTITIONS, PARTITIONS))
    calls = [Call("EXISTS", (key,)) for number in numbers for key in _part(prefix, number, tenant)]
    replies = executor.calls(calls)
    size = len(_Part._fields)
    return next((number for n, number in enumerate(numbers) if any(replies[n * size : (n + 1) * size])), None)


def _indexed_threads(
    prefix: bytes,
    executor: CallExecutor,
    tenant: str,
    part: _Part,
    found: Sequence[tuple[bytes, bytes | None]],
    versions: dict[bytes, bytes],
) -> tuple[IndexedThread, ...]:
    keys = [ThreadKey(tenant, *segments(member, 1)) for member, _ in found]
    calls = [Call("HGET", thread_keys(prefix, key).hash, (b"v",)) for key in keys]
    calls += [
        Call("ZMSCORE", (part.words,), tuple(word + b"\x00" + member for word in _words(said)))
        for member, said in found
        if _words(said)
    ]
    replies = executor.calls(calls)
    scores = iter(replies[len(keys) :])
    return tuple(
        _indexed_thread(key, member, said, versions[member], stored, next(scores) if _words(said) else ())
        for key, (member, said), stored in zip(keys, found, replies, strict=False)
    )


def _indexed_thread(
    key: ThreadKey, member: bytes, said: bytes | None, indexed: bytes, stored: bytes | None, scores: Sequence[Any]
) -> IndexedThread:
    if stored is None:
        return IndexedThread(None, (f"the search index has thread {key.id!r}, which does not exist",))
    if said is None:
        return IndexedThread(key, (f"the search index has nothing that thread {key.id!r} says",))
    try:
        documents = read_documents(key, member, said)
    except (Corrupt, *MALFORMED_ROW_ERRORS) as error:
        return IndexedThread(key, (str(error),))
    missing = sum(score is None for score in scores)
    wrong = {word.encode() for each in documents for word in each.words.split()} != set(_words(said))
    problems = (f"the search index does not find thread {key.id!r} by all its words",) * bool(missing or wrong)
    epoch, _, rev = stored.partition(b":")
    return IndexedThread(key, problems, (int(epoch), int(rev)) if stored == indexed else None, tuple(documents))


def _words(said: bytes | None) -> list[bytes]:
    """Return all words of a thread, which the first line of its documents has."""
    return said.partition(b"\n")[0].split(b" ") if said and not said.startswith(b"\n") else []


def _lost(executor: CallExecutor, part: _Part, versions: dict[bytes, bytes], words: int) -> tuple[str, ...]:
    """Return what the index has of threads that are not in it, if nothing changed meanwhile."""
    held, count, now = executor.calls(
        [Call("HKEYS", (part.documents,)), Call("ZCARD", (part.words,)), Call("HGETALL", (part.versions,))]
    )
    if dict(fields_of(now)) != versions:
        return ()
    lost = set(held) - versions.keys()
    problems = [f"the search index has texts of {len(lost)} threads that are not in it"] * bool(lost)
    if count > words:
        problems.append(f"the search index has {count - words} words that lead to nothing")
    return tuple(problems)
