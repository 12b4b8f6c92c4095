"""List, describe, delete and copy threads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any

from threadkeep.clock import nonce, now_ms
from threadkeep.engine.health.verify import stored_thread_key
from threadkeep.engine.identity import GRAPH, Kind, ThreadKey, as_count, as_id, as_kind
from threadkeep.engine.log.records import Status
from threadkeep.engine.threads import catalogue, description, prune
from threadkeep.engine.threads import copy as engine_copy
from threadkeep.engine.threads.catalogue import Order, ThreadInfo
from threadkeep.engine.threads.description import Description
from threadkeep.engine.threads.matching import MatchedThread
from threadkeep.engine.threads.metadata import ANY, LATEST, Match, as_filter, as_match
from threadkeep.errors import Corrupt, Leased
from threadkeep.jobs.leases import check_lease
from threadkeep.jobs.over_threads import MatchedThreads, match_threads
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import OnProgress, Progress, Work, change, read, with_progress

_damage_logger = logging.getLogger("threadkeep.damage")


class ThreadList(list[ThreadInfo]):
    """A list of threads, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from threadkeep.engine.history.notebook import threads_html  # noqa: PLC0415 - on use

        return threads_html(self)


async def threads(
    session: Session,
    *,
    limit: int = 50,
    after: str | ThreadInfo | None = None,
    prefix: str = "",
    metadata: Mapping[str, Any] | None = None,
    match: Match = LATEST,
    status: Status | None = None,
    order: Order = "updated",
    kind: Kind | None = None,
    contains: str = "",
    labels: Iterable[str] | None = None,
    archived: bool | None = None,
    titles: bool = True,
    columns: Iterable[str] = (),
) -> list[ThreadInfo]:
    """Return one page of threads, of both kinds unless `kind` is given.

    `order` is `updated`, `created` or `bytes` (greatest first), or `id`. `after` is the last thread of the previous
    page: its ThreadInfo, or its id, which costs one more round trip. `prefix` is matched with the id; `contains` with
    the id, a given title and labels, in any case. `labels` must all be there; `archived` says whether only archived
    threads are wanted, or only others: without it, both. These three have no index: all rows are read. `metadata` is
    compared with the newest root checkpoint, and only thread rows are read; with `match="any"` it is compared with
    every checkpoint of a thread, hidden ones included. A damaged thread of which it is not known whether it matches is
    left out, and a warning on the logger `threadkeep.damage` names it. One round trip; more if `metadata` is not
    indexed, and one for each thread with `match="any"`. Titles of threads that were given none take up to three more
    for each 500 threads, unless `titles` is False: then they are None. `columns` are keys of metadata: each thread has
    what its newest root checkpoint has for them in `metadata`, without a further round trip.
    """
    metadata_filter = as_filter(metadata)
    query = catalogue.query(
        session.tenant,
        limit=as_count(limit, "limit"),
        after=after,
        prefix=as_id(prefix, "prefix"),
        metadata=metadata_filter,
        status=status,
        order=order,
        kind=as_kind(kind),
        match=match,
    )
    last_id = None if after is None or isinstance(after, ThreadInfo) else as_id(after, "after")
    described = description.as_filter(labels, archived)
    found = await catalogue.list_threads(
        query, metadata_filter, last_id, as_id(contains, "contains"), described, as_columns(columns)
    )
    _warn(found.damaged)
    return ThreadList(await _with_titles(session, found.threads) if titles else found.threads)


async def thread(
    session: Session, thread_id: str, *, kind: Kind | None = None, titles: bool = True
) -> ThreadInfo | None:
    """Return one thread, or None if it does not exist.

    Raise ValueError if there is a thread of each kind with this id and `kind` is not given. Two round trips; one more
    without `kind`; up to three more if it was given no title, unless `titles` is False.
    """
    found = await catalogue.get_thread(session.tenant, as_id(thread_id, "thread_id"), as_kind(kind))
    return (await _with_titles(session, [found]))[0] if found is not None and titles else found


def as_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return checked keys of metadata. TypeError unless they are texts."""
    keys = () if isinstance(columns, str) else tuple(columns)
    if isinstance(columns, str) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"columns must be a list of metadata keys, not {columns!r}")
    return keys


def describe(
    session: Session,
    thread_id: str,
    *,
    title: str | EllipsisType | None = ...,
    labels: Iterable[str] | EllipsisType = ...,
    add_labels: Iterable[str] = (),
    remove_labels: Iterable[str] = (),
    archived: bool | EllipsisType = ...,
    kind: Kind | None = None,
) -> Work[ThreadInfo]:
    """Set the title and the labels of a thread, and whether it is archived. Return the thread.

    What is not given stays as it is; `title=None` removes the title, and `labels=[]` all labels. `add_labels` and
    `remove_labels` change the labels that are there, so several callers may do so at once. A thread may be described
    before its first run: then it is listed, without checkpoints; `kind` says of which kind it will be, `graph` by
    default. A thread without checkpoints is deleted when its last title, label or mark is removed. Nobody's lease
    matters, and `updated` stays: it says when an agent last wrote.

    Raise ValueError if nothing is given, if there is a thread of each kind with this id and `kind` is not given, or for
    a text that is empty, too long or has control characters. Two round trips; two more without `kind`, and up to three
    for a derived title.
    """
    changes, id = description.as_changes(title, labels, archived), as_id(thread_id, "thread_id")
    added, removed = description.label_set(add_labels), description.label_set(remove_labels)
    if not (changes or added or removed):
        raise ValueError("describe needs a title, labels or archived")
    key = (yield from _find(session, id, kind)) or session.key(as_kind(kind) or GRAPH, id)

    def changed(before: Description) -> Description:
        return before._replace(**changes).with_labels(added, removed)

    info = yield from change(key, lambda: catalogue.describe(session.heads, key, changed, now_ms(), nonce()))
    return (yield from read(lambda: _with_titles(session, [info])))[0]


async def _with_titles(session: Session, threads: list[ThreadInfo]) -> list[ThreadInfo]:
    found = await catalogue.with_titles(session.heads, session.tenant, threads)
    _warn(found.damaged)
    return found.threads


def _warn(damaged: Sequence[str]) -> None:
    for message in damaged:
        _damage_logger.warning("%s; see `threadkeep verify`", message)


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The threads that a delete by prefix or metadata removed, or would remove in a dry run, and their totals.

    `skipped` lists damaged threads of which it is not known whether they match, `leased` those that somebody else holds
    a lease of; they are left unchanged.
    """

    dry_run: bool
    threads: tuple[MatchedThread, ...]
    checkpoints: int
    bytes: int
    skipped: tuple[str, ...] = ()
    leased: tuple[str, ...] = ()

    __repr__ = short_repr


def delete(
    session: Session,
    thread_id: str | None = None,
    *,
    prefix: str = "",
    metadata: Mapping[str, Any] | None = None,
    match: Match = ANY,
    kind: Kind | None = None,
    dry_run: bool = False,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Work[bool | DeleteResult]:
    """Delete a thread and everything in it, and return whether it existed. Or delete many and return a DeleteResult.

    A thread is deleted even if its row is damaged. If somebody else holds a lease of it, raise Leased; of many, such
    threads stay and are listed in `leased`. With `force`, leases do not matter.
    Many are all threads whose id starts with `prefix` and that have `metadata`: in any of their checkpoints, or with
    `match="latest"` in the newest root checkpoint. The result has the number of matching checkpoints of each thread.
    `dry_run` changes nothing. Raise ValueError if nothing is given, if a thread is given together with `prefix` or
    `metadata`, or if there is a thread of each kind with this id and `kind` is not given. Two round trips for a thread;
    one more without `kind`. For many as `threads`, and one or two more for each.
    """
    wanted, prefix, match = as_filter(metadata), as_id(prefix, "prefix"), as_match(match)
    if thread_id is not None and (prefix or wanted):
        raise ValueError("give a thread_id, or prefix and metadata, not both")
    if thread_id is None and not (prefix or wanted):
        raise ValueError("delete needs a thread_id, a prefix or metadata: without them it would delete every thread")
    if thread_id is None:
        selected = match_threads(session.tenant, prefix=prefix, kind=as_kind(kind), metadata=wanted, match=match)
        return with_progress(_delete_many(session, selected, dry_run=dry_run, force=force), on_progress)
    return with_progress(_delete_one(session, thread_id, kind, dry_run=dry_run, force=force), on_progress)


def _delete_one(
    session: Session, thread_id: str, kind: Kind | None, *, dry_run: bool, force: bool
) -> Work[bool | DeleteResult]:
    try:
        key = yield from _find(session, thread_id, kind)
    except Corrupt:
        key = yield from read(lambda: stored_thread_key(session.tenant, as_id(thread_id, "thread_id"), as_kind(kind)))
    if key is not None and not dry_run:
        yield from change(key, lambda: prune.delete(session.heads, key), force=force)
    elif key is not None and not force:
        yield from check_lease(session, key)
    return key is not None


def _delete_many(
    session: Session, selected: Work[MatchedThreads], *, dry_run: bool, force: bool
) -> Work[bool | DeleteResult]:
    matched, skipped = yield from selected
    threads, leased = yield from delete_matched(session, matched, dry_run=dry_run, force=force)
    return DeleteResult(
        dry_run=dry_run,
        threads=tuple(threads),
        checkpoints=sum(thread.checkpoints for thread in threads),
        bytes=sum(thread.bytes for thread in threads),
        skipped=tuple(skipped),
        leased=tuple(leased),
    )


def delete_matched(
    session: Session, matched: Sequence[MatchedThread], *, dry_run: bool, force: bool
) -> Work[tuple[list[MatchedThread], list[str]]]:
    """Delete threads. Return which, and the ids of those that somebody else holds a lease of, which stay."""
    deleted, leased = list[MatchedThread](), list[str]()
    for done, thread in enumerate(matched, start=1):
        key = session.key(thread.kind, thread.id)
        try:
            if not dry_run:
                yield from change(key, partial(prune.delete, session.heads, key), force=force)
            elif not force:
                yield from check_lease(session, key)
        except Leased:
            leased.append(thread.id)
        else:
            deleted.append(thread)
        yield Progress(done, len(matched), thread.id)
    return deleted, leased


def copy(
    session: Session, source_thread_id: str, target_thread_id: str, *, kind: Kind | None = None, salvage: bool = False
) -> Work[bool]:
    """Copy a thread with all its checkpoints. Return whether the source existed. The copy is independent of it.

    If a LangGraph target exists, its own checkpoints stay and the missing ones are added. If a CubeLoop target exists,
    raise ValueError. The items are read, to check them, and copied inside the database.

    Raise Corrupt, and copy nothing, if anything in the source is damaged. With `salvage`, copy the intact part; a
    warning on the logger `threadkeep.damage` names each thing that is left out. Raise Corrupt if nothing is intact.
    """
    left_out = yield from copy_thread(session, source_thread_id, target_thread_id, kind=kind, salvage=salvage)
    for each in left_out or ():
        _damage_logger.warning("thread %r: %s", source_thread_id, each)
    return left_out is not None


def copy_thread(
    session: Session, source_thread_id: str, target_thread_id: str, *, kind: Kind | None, salvage: bool
) -> Work[tuple[str, ...] | None]:
    """Copy a thread as `copy` does. Return what is damaged and left out; None if the source does not exist."""
    target_id = as_id(target_thread_id, "target_thread_id")
    source = yield from _find(session, source_thread_id, kind)
    if source is None:
        return None
    target, heads = session.key(source.kind, target_id), session.heads
    return (
        yield from change(target, lambda: engine_copy.copy(heads, source, target, now_ms(), nonce(), salvages=salvage))
    )


def _find(session: Session, thread_id: str, kind: Kind | None) -> Work[ThreadKey | None]:
    id, thread_kind = as_id(thread_id, "thread_id"), as_kind(kind)
    return read(lambda: catalogue.find_key(session.tenant, id, thread_kind))


async def thread_key(session: Session, thread_id: str, kind: Kind | None) -> ThreadKey:
    """Return the key of a thread that exists.

    Raise Missing if it does not, ValueError if there is a thread of each kind with this id and `kind` is None.
    """
    return await catalogue.require_key(session.tenant, as_id(thread_id, "thread_id"), as_kind(kind))
