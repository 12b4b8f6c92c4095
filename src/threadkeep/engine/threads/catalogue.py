"""The catalogue: which threads there are, from their rows alone, however many checkpoints they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey
from threadkeep.engine.log.records import unpack_labels, unpack_own
from threadkeep.engine.requests import CheckpointRef, ListedThread, ListThreads, LoadCheckpoints, LoadItems
from threadkeep.engine.threads import metadata as about
from threadkeep.engine.threads.status import STATUSES
from threadkeep.errors import Missing

ORDERS = ("updated", "created", "bytes", "id")
_SLICE, _PAGE = 256, 10_000


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread: how much it holds, when it changed, and where its newest root checkpoint stands.

    `bytes` is what is stored: items, rows' bodies and references, without the database's own overhead.
    """

    id: str
    kind: str
    checkpoints: int
    writes: int
    created: datetime
    updated: datetime
    step: int | None
    source: str | None
    status: str
    bytes: int


def query(
    tenant: str,
    *,
    limit: int,
    after: str | ThreadInfo | None,
    prefix: str,
    metadata: Mapping[str, Any] | None,
    status: str | None,
    order: str,
    kind: str | None,
) -> ListThreads:
    """A checked query."""
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    if status is not None and status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    tags = about.tags(metadata or {})
    cursor = _cursor(after, order) if isinstance(after, ThreadInfo) else None
    return ListThreads(tenant, order, limit, cursor, prefix, kind, status, tags)


def _cursor(last: ThreadInfo, order: str) -> tuple[int | str, str, str]:
    value = getattr(last, order)
    return (_milliseconds(value) if isinstance(value, datetime) else value, last.kind, last.id)


async def threads(
    query: ListThreads, wanted: Mapping[str, Any], after: str | None, contains: str = ""
) -> list[ThreadInfo]:
    """A page of the catalogue. One round trip, one more to find `after` by its id, more if the filter is not indexed.

    Nothing indexes what ids contain, so that reads on until the page is full or all were seen.
    """
    if after is not None:
        query = replace(query, after=await _place_of(query, after))
    found: list[ThreadInfo] = []
    while len(found) < query.limit:
        size = _SLICE if contains else min(_SLICE if wanted else _PAGE, query.limit)
        listed = await replace(query, limit=size)
        near = [one for one in listed if not contains or contains.casefold() in one.row.key.id.casefold()]
        found += [info(one) for one in near if _matches(one, await _own(one, wanted), wanted)]
        if len(listed) < size:
            break
        query = replace(query, after=_cursor(info(listed[-1]), query.order))
    return found[: query.limit]


async def _place_of(query: ListThreads, id: str) -> tuple[int | str, str, str]:
    """Where a thread stands in this order now."""
    wide = replace(query, order="id", prefix=id, status=None, tags=(), limit=8, after=None)
    named = [info(one) for one in await wide if one.row.key.id == id]
    if not named:
        raise ValueError(f"after={id!r}: there is no such thread (any more); page on with its ThreadInfo instead")
    if len(named) > 1:
        raise ValueError(f"after={id!r}: there are two such threads; page on with a ThreadInfo instead")
    return _cursor(named[0], query.order)


async def thread(tenant: str, id: str, kind: str | None) -> ThreadInfo | None:
    """One thread, of the kind that there is if none is said."""
    key = await key_of(tenant, id, kind)
    row = (await LoadItems(key, ())).thread if key is not None else None
    return info(ListedThread(row, None)) if row is not None else None


async def known(tenant: str, id: str, kind: str | None) -> ThreadKey:
    """The same as `key_of`, but Missing if there is no such thread."""
    key = await key_of(tenant, id, kind)
    if key is None:
        raise Missing(f"there is no thread {id!r}")
    return key


async def key_of(tenant: str, id: str, kind: str | None) -> ThreadKey | None:
    """The thread of that id and kind; of the kind that there is, if none is said. None if there is no such thread."""
    keys = [ThreadKey(tenant, each, id) for each in (GRAPH, CUBE) if kind in (None, each)]
    found = [key for key in keys if (await LoadItems(key, ())).thread is not None]
    if len(found) > 1:
        raise ValueError(f"there are two threads {id!r}: say which by its kind, {GRAPH} or {CUBE}")
    return found[0] if found else None


async def _own(listed: ListedThread, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in the newest checkpoint itself, if somebody asks for that."""
    row = listed.row
    if row.top is None or not any(key in wanted for key in about.OWN):
        return {}
    loaded = await LoadCheckpoints(row.key, (CheckpointRef("", row.top, items=False),))
    top = loaded.checkpoints[0].row if loaded.checkpoints else None
    return unpack_own(top, f"thread {row.key.id!r}") if top else {}


def _matches(listed: ListedThread, own: dict[str, Any], wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    row = listed.row
    labels = unpack_labels(row.labels, listed.labels, f"thread {row.key.id!r}") if row.labels is not None else {}
    return about.matches(about.join(about.SplitMetadata(row.source, row.step, row.run, labels, own)), wanted)


def info(listed: ListedThread) -> ThreadInfo:
    """What a row of the catalogue tells."""
    row = listed.row
    return ThreadInfo(
        id=row.key.id, kind=row.key.kind, checkpoints=row.checkpoints, writes=row.writes,
        created=_time(row.created), updated=_time(row.updated), step=row.step, source=row.source,
        status=row.status, bytes=row.bytes,
    )  # fmt: skip


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
