"""List, delete and copy threads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from threadkeep.clock import nonce, now_ms
from threadkeep.engine.health.verify import stored_thread_key
from threadkeep.engine.identity import ThreadKey, as_count, as_id, as_kind
from threadkeep.engine.threads import catalogue, prune
from threadkeep.engine.threads import copy as engine_copy
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.metadata import as_filter
from threadkeep.errors import Corrupt
from threadkeep.session import Session
from threadkeep.work import Work, change, read

_damage_logger = logging.getLogger("threadkeep.damage")


async def threads(
    session: Session,
    *,
    limit: int = 50,
    after: str | ThreadInfo | None = None,
    prefix: str = "",
    metadata: Mapping[str, Any] | None = None,
    status: str | None = None,
    order: str = "updated",
    kind: str | None = None,
    contains: str = "",
) -> list[ThreadInfo]:
    """Return one page of threads, of both kinds unless `kind` is given.

    `order` is `updated`, `created` or `bytes` (greatest first), or `id`. `after` is the last thread of the previous
    page: its ThreadInfo, or its id, which costs one more round trip. `prefix` and `contains` are matched with the id;
    `contains` ignores case and reads all threads. `metadata` is matched with that of the newest root checkpoint.
    One round trip; more if `metadata` is not indexed. Only thread rows are read.
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
    )
    last_id = None if after is None or isinstance(after, ThreadInfo) else as_id(after, "after")
    return await catalogue.list_threads(query, metadata_filter, last_id, as_id(contains, "contains"))


async def thread(session: Session, thread_id: str, *, kind: str | None = None) -> ThreadInfo | None:
    """Return one thread, or None if it does not exist.

    Raise ValueError if there is a thread of each kind with this id and `kind` is not given. Two round trips; one more
    without `kind`.
    """
    return await catalogue.get_thread(session.tenant, as_id(thread_id, "thread_id"), as_kind(kind))


def delete(session: Session, thread_id: str, *, kind: str | None = None) -> Work[bool]:
    """Delete a thread and everything in it, even if its row is damaged. Return whether it existed.

    Raise ValueError if there is a thread of each kind with this id and `kind` is not given. Two round trips; one more
    without `kind`.
    """
    try:
        key = yield from _find(session, thread_id, kind)
    except Corrupt:
        key = yield from read(lambda: stored_thread_key(session.tenant, as_id(thread_id, "thread_id"), as_kind(kind)))
    if key is not None:
        yield from change(key, lambda: prune.delete(session.heads, key))
    return key is not None


def copy(
    session: Session, source_thread_id: str, target_thread_id: str, *, kind: str | None = None, salvage: bool = False
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
    session: Session, source_thread_id: str, target_thread_id: str, *, kind: str | None, salvage: bool
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


def _find(session: Session, thread_id: str, kind: str | None) -> Work[ThreadKey | None]:
    id, thread_kind = as_id(thread_id, "thread_id"), as_kind(kind)
    return read(lambda: catalogue.find_key(session.tenant, id, thread_kind))


async def thread_key(session: Session, thread_id: str, kind: str | None) -> ThreadKey:
    """Return the key of a thread that exists.

    Raise Missing if it does not, ValueError if there is a thread of each kind with this id and `kind` is None.
    """
    return await catalogue.require_key(session.tenant, as_id(thread_id, "thread_id"), as_kind(kind))
