"""The catalogue: list threads and find them by id or metadata.

It reads thread rows only, unless metadata is compared with any checkpoint of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from threadkeep.engine.commit import new_row
from threadkeep.engine.identity import CUBE, GRAPH, Kind, ThreadKey
from threadkeep.engine.lease import is_empty
from threadkeep.engine.log.encoder import LargeValue
from threadkeep.engine.log.records import STATUSES, ThreadRow, unpack_labels
from threadkeep.engine.requests import ListedThread, ListThreads, LoadItems
from threadkeep.engine.threads import description
from threadkeep.engine.threads import metadata as checkpoint_metadata
from threadkeep.engine.threads.description import EVERY_THREAD, Description, DescriptionFilter
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.matching import check_row, matches_any, matches_latest, row_problem
from threadkeep.engine.threads.metadata import ANY, LATEST, as_match
from threadkeep.engine.threads.row_changes import change_row
from threadkeep.engine.threads.titles import derive_titles
from threadkeep.errors import Corrupt, Missing
from threadkeep.short_repr import short_repr

Order: TypeAlias = Literal["updated", "created", "bytes", "id"]
ORDERS: tuple[Order, ...] = get_args(Order)
DAMAGED = "damaged"
"""The status of a thread whose row is damaged."""
_MAX_NUMBER = 1 << 47
_FILTERED_SLICE, _MAX_SLICE = 256, 10_000
"""Rows per round trip: with a filter that the index does not answer alone, and without one."""


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread: its size, when it changed, and the step, source and status of its newest root checkpoint.

    `title`, `labels` and `archived` are what `Keep.describe` was told. If it was told no title, `titled` is False and
    `title` is the text of the first human message, on one line and cut at 80 characters; None if there is none.

    The status `damaged` means that the thread's row is damaged: the other fields may be wrong, and `verify` says more.
    `metadata` has what the newest root checkpoint has for the keys that were asked for, without large values; threads
    that differ in nothing else are equal.

    `bytes` counts items and the bodies and references of rows, without the database's own overhead.
    """

    id: str
    kind: Kind
    checkpoints: int
    writes: int
    created: datetime
    updated: datetime
    step: int | None
    source: str | None
    status: str
    bytes: int
    title: str | None = None
    titled: bool = False
    labels: tuple[str, ...] = ()
    archived: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    __repr__ = short_repr


class ThreadPage(NamedTuple):
    """A page of the catalogue. `damaged` has a message for each thread of which it is not known whether it matches."""

    threads: list[ThreadInfo]
    damaged: list[str]


def query(
    tenant: str,
    *,
    limit: int,
    after: str | ThreadInfo | None,
    prefix: str,
    metadata: Mapping[str, Any] | None,
    status: str | None,
    order: str,
    kind: Kind | None,
    match: str = LATEST,
) -> ListThreads:
    """Return a query. ValueError if `order`, `status` or `match` is unknown."""
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    if status is not None and status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    unindexed = checkpoint_metadata.OWN_OF_CUBE if kind != GRAPH else ()
    tags = checkpoint_metadata.tags({key: value for key, value in (metadata or {}).items() if key not in unindexed})
    cursor = _cursor(after, order) if isinstance(after, ThreadInfo) else None
    return ListThreads(tenant, order, limit, cursor, prefix, kind, status, tags, as_match(match) == ANY)


def _cursor(last: ThreadInfo, order: str) -> tuple[int | str, str, str]:
    value = getattr(last, order)
    return (_milliseconds(value) if isinstance(value, datetime) else value, last.kind, last.id)


async def list_threads(
    query: ListThreads,
    wanted: Mapping[str, Any],
    after: str | None,
    contains: str = "",
    described: DescriptionFilter = EVERY_THREAD,
    columns: Collection[str] = (),
) -> ThreadPage:
    """Return a page of the catalogue, without derived titles. `columns` are the keys of metadata to return.

    One round trip; one more to find `after` by its id; more if the filter is not indexed, and one for each thread if it
    is compared with any checkpoint. `contains` and `described` are never indexed: rows are read until the page is full
    or no more are left. `contains` is looked for in ids, given titles and labels.
    """
    if after is not None:
        query = query._replace(after=await _find_cursor(query, after))
    query = query._replace(described=described.needs_description)
    found: list[ThreadInfo] = []
    damaged: list[str] = []
    while len(found) < query.limit:
        reads_all = contains or described != EVERY_THREAD
        size = _FILTERED_SLICE if reads_all else min(_FILTERED_SLICE if wanted else _MAX_SLICE, query.limit)
        listed = await query._replace(limit=size)
        for each in listed:
            if contains and not _contains(each, contains):
                continue
            if each.row.lease is not None and is_empty(each.row) and not is_damaged(each):
                continue  # its lease was taken before anything was stored
            try:
                if await _is_match(each, wanted, described, any_checkpoint=query.any_checkpoint):
                    found.append(_with_metadata(thread_info(each), each, columns))
            except Corrupt as error:
                damaged.append(f"thread {each.row.key.id!r} is damaged and left out of a filtered list: {error}")
        if len(listed) < size:
            break
        query = query._replace(after=_next_page(listed[-1], query.order))
    return ThreadPage(found[: query.limit], damaged)


def _next_page(last: ListedThread, order: str) -> tuple[Any, Any, Any]:
    """The cursor after a thread, from its row as it is stored."""
    key = last.row.key
    return last.cursor or (key.id if order == "id" else getattr(last.row, order), key.kind, key.id)


async def _find_cursor(query: ListThreads, id: str) -> tuple[int | str, str, str]:
    """The current position of a thread in the order of the query."""
    by_id = query._replace(order="id", prefix=id, status=None, tags=(), limit=8, after=None)
    named = [thread_info(each) for each in await by_id if each.row.key.id == id]
    if not named:
        raise ValueError(f"after={id!r}: thread not found; if it was deleted, pass its ThreadInfo instead of its id")
    if len(named) > 1:
        raise ValueError(f"after={id!r}: two threads have this id; pass a ThreadInfo instead")
    return _cursor(named[0], query.order)


async def get_thread(tenant: str, id: str, kind: Kind | None) -> ThreadInfo | None:
    """Return one thread, of any kind if `kind` is None; None if it does not exist. Up to three round trips.

    ValueError if `kind` is None and both kinds have a thread with this id.
    """
    key = await find_key(tenant, id, kind)
    row = (await LoadItems(key, ())).thread if key is not None else None
    return thread_info(ListedThread(row, None)) if row is not None else None


async def require_key(tenant: str, id: str, kind: Kind | None) -> ThreadKey:
    """Return the key of a thread, of any kind if `kind` is None. Up to two round trips.

    Missing if it does not exist; ValueError if `kind` is None and both kinds have a thread with this id.
    """
    key = await find_key(tenant, id, kind)
    if key is None:
        raise Missing(f"thread {id!r} not found")
    return key


async def find_key(tenant: str, id: str, kind: Kind | None) -> ThreadKey | None:
    """Return the key of a thread, of any kind if `kind` is None; None if it does not exist. Up to two round trips.

    A thread with a damaged row exists: it can be deleted and repaired. ValueError if `kind` is None and both kinds have
    a thread with this id.
    """
    keys = [ThreadKey(tenant, each, id) for each in (GRAPH, CUBE) if kind in (None, each)]
    found, damage = list[ThreadKey](), None
    for key in keys:
        try:
            exists = (await LoadItems(key, (), unchecked=True)).thread is not None
        except Corrupt as error:
            exists, damage = True, error
        found += [key] * exists
    if len(found) > 1 and damage is not None:
        raise damage  # it is not known which of them exist
    if len(found) > 1:
        raise ValueError(f"two threads have the id {id!r}: choose one by its kind, {GRAPH} or {CUBE}")
    return found[0] if found else None


def _contains(listed: ListedThread, text: str) -> bool:
    """Return whether the id of a thread, its given title or a label contains a text. Of a damaged one, only the id."""
    if text.casefold() in listed.row.key.id.casefold():
        return True
    return listed.row.description is not None and not is_damaged(listed) and description_of(listed.row).mentions(text)


async def _is_match(
    listed: ListedThread, wanted: Mapping[str, Any], described: DescriptionFilter, *, any_checkpoint: bool
) -> bool:
    """Return whether a thread matches the filters. Corrupt if that is not known because a row is damaged."""
    if described != EVERY_THREAD:
        check_row(listed)
        if not described.includes(description_of(listed.row)):
            return False
    if not wanted:
        return True
    if any_checkpoint:
        return await matches_any(listed, wanted)
    check_row(listed)
    return await matches_latest(listed, wanted)


def is_damaged(listed: ListedThread) -> bool:
    """Return whether the row of a listed thread is damaged."""
    return row_problem(listed) is not None


def description_of(row: ThreadRow) -> Description:
    """Return what was said about a thread. Corrupt if that cannot be read."""
    return description.unpack(row.description, f"thread {row.key.id!r}")


async def describe(
    heads: Heads, key: ThreadKey, change: Callable[[Description], Description], time: int, nonce: int
) -> ThreadInfo:
    """Change a thread's Description, and return the thread. Two round trips, as in `change_row`."""

    async def decide(before: ThreadRow | None) -> tuple[Mapping[str, Any] | None, ThreadInfo]:
        row = before or new_row(key, time, nonce)
        after = row._replace(description=description.pack(change(description_of(row))))
        columns = {"description": after.description} if after.description != row.description else None
        return columns, thread_info(ListedThread(after._replace(checksum=None, bytes_check=None), None))

    return await change_row(heads, key, decide, time, nonce)


async def with_titles(heads: Heads, tenant: str, threads: Sequence[ThreadInfo]) -> ThreadPage:
    """Return the same threads with derived titles, where they were given none. Round trips as `derive_titles`.

    `damaged` has a message for each thread whose messages cannot be read.
    """
    keys = [
        ThreadKey(tenant, each.kind, each.id)
        for each in threads
        if not (each.titled or each.status == DAMAGED) and each.checkpoints
    ]
    titles, damaged = await derive_titles(heads, keys)
    return ThreadPage(
        [replace(each, title=titles.get(ThreadKey(tenant, each.kind, each.id), each.title)) for each in threads],
        damaged,
    )


def thread_info(listed: ListedThread) -> ThreadInfo:
    """Return the ThreadInfo of a row of the catalogue."""
    row = listed.row
    if is_damaged(listed):
        return ThreadInfo(
            id=row.key.id,
            kind=row.key.kind,
            checkpoints=_number(row.checkpoints),
            writes=_number(row.writes),
            created=_datetime(_number(row.created)),
            updated=_datetime(_number(row.updated)),
            step=None,
            source=None,
            status=DAMAGED,
            bytes=_number(row.bytes),
        )
    said = description_of(row)
    return ThreadInfo(
        id=row.key.id,
        kind=row.key.kind,
        checkpoints=row.checkpoints,
        writes=row.writes,
        created=_datetime(row.created),
        updated=_datetime(row.updated),
        step=row.step,
        source=row.source,
        status=row.status,
        bytes=row.bytes,
        title=said.title,
        titled=said.title is not None,
        labels=said.labels,
        archived=said.archived,
    )


def _with_metadata(info: ThreadInfo, listed: ListedThread, columns: Collection[str]) -> ThreadInfo:
    """Return a thread with these keys of its newest root checkpoint's metadata, which the listing already has."""
    row = listed.row
    if not columns or info.status == DAMAGED or row.labels is None:
        return info
    try:
        labels = unpack_labels(row.labels, listed.labels, f"thread {info.id!r}", row.family)
    except Corrupt:
        return info  # whoever reads the checkpoint is told
    found = {key: labels[key] for key in columns if key in labels and type(labels[key]) is not LargeValue}
    return replace(info, metadata=found) if found else info


def _number(stored: Any) -> int:
    """A number of a damaged row, 0 if it cannot be one."""
    return stored if type(stored) is int and 0 <= stored < _MAX_NUMBER else 0


def _datetime(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
