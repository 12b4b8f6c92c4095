"""Erase what belongs to a person: threads and memories, and what they left in the storage's files. Give a receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from threadkeep.clock import now_us
from threadkeep.engine.health.requests import CleanFiles, FilesState, InspectedMemory, InspectMemories, InspectThread
from threadkeep.engine.identity import CUBE, GRAPH, Kind, as_id, as_kind
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, memory_number
from threadkeep.engine.memories.requests import GetMemories, ListMemories, WriteMemories
from threadkeep.engine.threads import catalogue
from threadkeep.engine.threads.matching import MatchedThread
from threadkeep.engine.threads.metadata import ANY, Match, as_filter, as_match
from threadkeep.errors import Corrupt
from threadkeep.jobs.catalogue import delete_matched
from threadkeep.jobs.over_threads import MatchedThreads, match_threads
from threadkeep.plan import send
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import OnProgress, Work, change, read, with_progress

_PAGE = 1000
_NOTHING_EXPIRED = 0
"""The time at which no memory had expired yet: expired memories that were not swept are erased too."""


@dataclass(frozen=True, slots=True)
class ErasedNamespace:
    """How many memories of a namespace were erased."""

    namespace: tuple[str, ...]
    memories: int

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class EraseReceipt:
    """What was erased, or would be in a dry run, and when.

    `files_clean` says whether the storage's files contain no byte of it any more: always True in memory, True or False
    on SQLite, None on servers. `remains` says what may be left where, and how to remove it. `skipped` lists damaged
    threads and memories of which it is not known whether they match, `missing` ids that do not exist, `leased` threads
    that somebody else holds a lease of, which stay.
    """

    erased_at: str
    tenant: str
    dry_run: bool
    threads: tuple[MatchedThread, ...]
    namespaces: tuple[ErasedNamespace, ...]
    checkpoints: int
    memories: int
    bytes: int
    files_clean: bool | None = None
    remains: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    leased: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def ok(self) -> bool:
        """Whether everything that matches was erased, from the files too as far as the storage can tell."""
        return not (self.skipped or self.leased) and self.files_clean is not False


def erase(
    session: Session,
    *,
    thread_id: str | Sequence[str] | None = None,
    prefix: str = "",
    metadata: Mapping[str, Any] | None = None,
    match: Match = ANY,
    partly: bool = True,
    kind: Kind | None = None,
    namespace: Sequence[str] | Sequence[Sequence[str]] | None = None,
    dry_run: bool = False,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Work[EraseReceipt]:
    """Erase threads and memories, and remove what they left in the storage's files. Return a receipt.

    Threads are selected by id (or ids), and by `prefix` and `metadata` together; memories by `namespace`, or several,
    with all namespaces below. Threads of both kinds are erased, unless `kind` is given. `metadata` is compared as
    `match` says; a thread that matches is erased completely, or left alone if only some of its checkpoints match and
    `partly` is False. A thread is erased by its id even if its row is damaged. `dry_run` changes nothing. Raise
    ValueError if nothing is selected. A thread that somebody else holds a lease of stays, unless `force` is
    given.

    SQLite rewrites the file and empties its log; the receipt says if another connection prevented that. On a server,
    the receipt says what remains and how to remove it. Repeating the call is harmless.
    """
    wanted, prefix, match = as_filter(metadata), as_id(prefix, "prefix"), as_match(match)
    is_one = not isinstance(thread_id, Iterable) or isinstance(thread_id, (str, bytes))
    ids = [] if thread_id is None else [thread_id] if is_one else list(thread_id)
    namespaces = _as_namespaces(namespace)
    if not (ids or prefix or wanted or namespaces):
        raise ValueError("erase needs thread ids, a prefix, metadata or a namespace")
    selected = _select(session, [as_id(id, "thread_id") for id in ids], prefix, wanted, match, as_kind(kind))
    work = _erase(session, selected, namespaces, partly=partly, dry_run=dry_run, force=force)
    return with_progress(work, on_progress)


def _as_namespaces(given: Any) -> list[Namespace]:
    """Return namespaces as tuples; ValueError for an empty one, which would mean all memories."""
    if given is None or given == []:
        return []
    several = given if isinstance(given, (tuple, list)) else [given]
    if all(isinstance(each, str) for each in several):
        several = [given]
    if any(not isinstance(each, (tuple, list)) or not each for each in several):
        raise ValueError(f"namespace must be a tuple of segments, or a list of such tuples, not {given!r}")
    return [tuple(as_id(segment, "namespace") for segment in each) for each in several]


def _select(
    session: Session, ids: list[str], prefix: str, wanted: Mapping[str, Any], match: Match, kind: Kind | None
) -> Work[tuple[MatchedThreads, list[str]]]:
    found, missing = MatchedThreads([], []), list[str]()
    for id in ids:
        of_id = yield from _find(session, id, (kind,) if kind else (GRAPH, CUBE))
        found.threads.extend(of_id)
        missing += [] if of_id else [id]
    if prefix or wanted:
        matched = yield from match_threads(session.tenant, prefix=prefix, kind=kind, metadata=wanted, match=match)
        known = {(each.id, each.kind) for each in found.threads}
        found.threads.extend(each for each in matched.threads if (each.id, each.kind) not in known)
        found.skipped.extend(matched.skipped)
    return found, missing


def _find(session: Session, id: str, kinds: Iterable[Kind]) -> Work[list[MatchedThread]]:
    found = []
    for kind in kinds:
        try:
            info = yield from read(partial(catalogue.get_thread, session.tenant, id, kind))
        except Corrupt:
            found += yield from _find_damaged(session, id, kind)
            continue
        if info is not None:
            found.append(MatchedThread(info.id, info.kind, info.checkpoints, None, info.bytes))
    return found


def _find_damaged(session: Session, id: str, kind: Kind) -> Work[list[MatchedThread]]:
    """Find a thread whose row is damaged. Its checkpoints are counted, since the row's numbers may be wrong."""
    stored = yield from read(partial(send, InspectThread(session.key(kind, id))))
    visible = sum(not row.hidden for row in stored.checkpoints)
    size = sum(size for _lane, _n, size in stored.item_sizes)
    return [MatchedThread(id, kind, visible, None, size)] if stored.exists else []


def _erase(
    session: Session,
    selected: Work[tuple[MatchedThreads, list[str]]],
    namespaces: list[Namespace],
    *,
    partly: bool,
    dry_run: bool,
    force: bool,
) -> Work[EraseReceipt]:
    found, missing = yield from selected
    matched = [each for each in found.threads if partly or each.matching in (None, each.checkpoints)]
    threads, leased = yield from delete_matched(session, matched, dry_run=dry_run, force=force)
    counts, skipped = Counter[Namespace](), list(found.skipped)
    for namespace in namespaces:
        erased = yield from _erase_memories(session, namespace, dry_run=dry_run)
        counts += erased.counts
        skipped += [name for name in erased.skipped if name not in skipped]
    files = FilesState(None) if dry_run else (yield from change(None, partial(send, CleanFiles())))
    return EraseReceipt(
        erased_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tenant=session.tenant,
        dry_run=dry_run,
        threads=tuple(threads),
        namespaces=tuple(ErasedNamespace(namespace, count) for namespace, count in sorted(counts.items())),
        checkpoints=sum(thread.checkpoints for thread in threads),
        memories=counts.total(),
        bytes=sum(thread.bytes for thread in threads),
        files_clean=files.clean,
        remains=files.remains,
        skipped=tuple(skipped),
        missing=tuple(missing),
        leased=tuple(leased),
    )


def delete_memories(
    session: Session, namespace: Sequence[str], *, key: str | None = None, dry_run: bool = False
) -> Work[int]:
    """Delete the memories of a namespace and of those below it, or only the one with `key` in the namespace itself.

    Expired memories that were not swept count too, and damaged ones. Return how many there were. Raise ValueError if
    the namespace is empty, and Corrupt, after deleting the others, if the keys of some cannot be read. Two round trips
    for each 1,000.
    """
    where = _as_namespaces([namespace])[0]
    if key is None:
        erased = yield from _erase_memories(session, where, dry_run=dry_run)
        if erased.skipped:
            raise Corrupt(f"not deleted, since it is not known where they belong: {'; '.join(erased.skipped)}")
        return erased.counts.total()
    wanted = MemoryKey(where, as_id(key, "key"))
    try:
        (found,) = yield from read(partial(send, GetMemories(session.tenant, (wanted,), _NOTHING_EXPIRED)))
        exists = found is not None
    except Corrupt:
        exists = True
    if exists and not dry_run:
        yield from _delete(session, [wanted])
    return int(exists)


class _ErasedMemories(NamedTuple):
    """The numbers of erased memories by namespace, and the names of those of which the namespace is not known."""

    counts: Counter[Namespace]
    skipped: list[str]


def _erase_memories(session: Session, namespace: Namespace, *, dry_run: bool) -> Work[_ErasedMemories]:
    """Erase the memories below a namespace, expired and damaged ones too, a page at a time."""
    erased = _ErasedMemories(Counter(), [])
    try:
        yield from _erase_listed(session, namespace, erased, dry_run=dry_run)
    except Corrupt:
        if dry_run:
            erased.counts.clear()  # what was listed is counted again
        yield from _erase_inspected(session, namespace, erased, dry_run=dry_run)
    return erased


def _erase_listed(session: Session, namespace: Namespace, erased: _ErasedMemories, *, dry_run: bool) -> Work[None]:
    """Erase the memories that a list gives. Corrupt if one is damaged."""
    offset = 0
    while True:
        listing = ListMemories(session.tenant, namespace, _NOTHING_EXPIRED, _PAGE, offset)
        rows = yield from read(partial(send, listing))
        if not dry_run:
            yield from _delete(session, [row.memory_key for row in rows])
        erased.counts.update(row.namespace for row in rows)
        if len(rows) < _PAGE:
            return
        offset += _PAGE if dry_run else 0


def _erase_inspected(session: Session, namespace: Namespace, erased: _ErasedMemories, *, dry_run: bool) -> Work[None]:
    """Look at every memory of the tenant as it is stored, and erase those below a namespace."""
    after = None
    while True:
        page = yield from read(partial(send, InspectMemories(session.tenant, _PAGE, after)))
        keys = [memory.key for memory in page.memories if memory.key is not None and _is_found_by_key(session, memory)]
        keys = [key for key in keys if key.namespace[: len(namespace)] == namespace]
        if not dry_run:
            yield from _delete(session, keys)
        erased.counts.update(key.namespace for key in keys)
        lost = (memory for memory in page.memories if not _is_found_by_key(session, memory))
        erased.skipped.extend(f"memory number {memory.number}: {memory.problems[0]}" for memory in lost)
        after = page.cursor
        if after is None:
            return


def _is_found_by_key(session: Session, memory: InspectedMemory) -> bool:
    """Whether the key of a stored memory can be read and leads to it, so that its namespace is known."""
    return memory.key is not None and memory.number == memory_number(session.tenant, memory.key)


def _delete(session: Session, keys: Sequence[MemoryKey]) -> Work[None]:
    if keys:
        yield from change(None, partial(send, WriteMemories(session.tenant, (), tuple(keys), now_us())))
