"""List the tenants of a storage, and drop one. Rows are read and removed as they are stored, so no keys are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from threadkeep.clock import nonce, now_us
from threadkeep.drivers.retries import TryLater
from threadkeep.engine.cache import refuse_plain_entries
from threadkeep.engine.health.requests import InspectMemories, ListStoredThreads
from threadkeep.engine.identity import CACHE, RESERVED_TENANTS, UNFINISHED, ThreadKey, as_tenant
from threadkeep.engine.memories.requests import WriteMemories
from threadkeep.engine.requests import DropThread
from threadkeep.engine.search.requests import DropSearchIndex
from threadkeep.engine.tenants.requests import (
    DeleteDataKeys,
    DeleteTenant,
    ListDataKeys,
    ListTenants,
    LoadTenant,
    StoreTenant,
    TenantRow,
)
from threadkeep.errors import Conflict, Corrupt, Missing
from threadkeep.plan import Request, drive
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.tenants.reservation import record_of
from threadkeep.tenants.usage import Usage, measure
from threadkeep.work import Blocking, OnProgress, Progress, Work, with_progress

_PAGE = 500
_TRIES = 50


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A tenant: how many threads and memories it has, expired ones included, and the bytes that its quota counts.

    The default tenant has an empty `name`. `quota_bytes` is None if it has no quota.
    """

    name: str
    encrypted: bool
    threads: int
    memories: int
    bytes: int
    quota_bytes: int | None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class DroppedTenant:
    """What `drop_tenant` removed: threads, memories, and the keys of encrypted threads and partitions of memories."""

    name: str
    threads: int
    memories: int

    __repr__ = short_repr


def tenants(session: Session, *, on_progress: OnProgress | None = None) -> Work[list[TenantInfo]]:
    """Return all tenants that have a thread, a memory, keys or a quota, by name. No keys are needed for that.

    ValueError if this is not a Keep of the default tenant. For each tenant a round trip for its row, one for each 2,048
    threads, and one for each 500 memories, which are read.
    """
    _check_default(session)
    return with_progress(_tenants(session), on_progress)


def _tenants(session: Session) -> Work[list[TenantInfo]]:
    ask = partial(_execute, session)
    found: list[TenantInfo] = []
    after: str | None = None
    while page := (yield Blocking(partial(ask, ListTenants(_PAGE, after)))):
        for name in page:
            info = None if name.startswith(RESERVED_TENANTS) else (yield Blocking(partial(_measure, ask, name)))
            if info is not None:
                found.append(info)
                yield Progress(len(found), None, name)
        after = page[-1]
    return found


def rows_of_others(session: Session) -> Work[list[tuple[str, TenantRow | None]]]:
    """Return the names and rows of all tenants but the default one. One or two round trips for each."""
    ask = partial(_execute, session)
    found: list[tuple[str, TenantRow | None]] = []
    after: str | None = None
    while page := (yield Blocking(partial(ask, ListTenants(_PAGE, after)))):
        for name in page:
            if name and not name.startswith(RESERVED_TENANTS):
                row = yield Blocking(partial(ask, LoadTenant(name)))
                if row is not None or (yield Blocking(partial(_exists, ask, name))):
                    found.append((name, row))
        after = page[-1]
    return found


def _measure(ask: Callable[[Request[Any]], Any], name: str) -> TenantInfo | None:
    """Measure a tenant. None if it has nothing: Valkey also lists tenants whose memories are gone."""
    row: TenantRow | None = ask(LoadTenant(name))
    usage: Usage = measure(ask, name)
    if row is None and not usage.threads and not usage.memories:
        return None
    record = record_of(row)
    limit = record.limit if record is not None else None
    return TenantInfo(name, row is not None and row.sealed, *usage, quota_bytes=limit)


def drop_tenant(session: Session, name: str, *, on_progress: OnProgress | None = None) -> Work[DroppedTenant]:
    """Delete all threads and memories of a tenant, its cache, its keys and its quota. Its keys are not needed for that.

    The key of an encrypted tenant is destroyed first: from then on nobody can read it, not even in the pages that
    deleted rows leave in files. Backups keep what they have. Nobody can store anything for the tenant until it is
    dropped; afterwards it can be used again. If this is interrupted, call it again.

    Missing if there is no such tenant. ValueError if this is not a Keep of the default tenant, or if the name is empty.
    One or two round trips for each thread, and two for each 500 memories.
    """
    _check_default(session)
    name = as_tenant(name, "name")
    if not name:
        raise ValueError("the default tenant cannot be dropped; delete its threads and memories instead")
    return with_progress(_drop_tenant(session, name), on_progress)


def _drop_tenant(session: Session, name: str) -> Work[DroppedTenant]:
    ask = partial(_execute, session)
    yield Blocking(partial(_destroy_key, ask, name))
    session.transport.forget(name)
    threads = yield from _drop_threads(ask, name)
    yield from _drop_threads(ask, UNFINISHED + name)
    yield Blocking(partial(ask, DropSearchIndex(name)))
    memories = yield from drop_memories(ask, name)
    yield from drop_cache(ask, name)
    yield Blocking(partial(_delete_row, ask, CACHE + name))
    while page := (yield Blocking(partial(ask, ListDataKeys(name, None, _PAGE)))):
        yield Blocking(partial(ask, DeleteDataKeys(name, tuple(key for key, _ in page))))
    yield Blocking(partial(_delete_row, ask, name))
    session.caches.clear()
    session.transport.forget(name)
    return DroppedTenant(name, threads, memories)


def _destroy_key(ask: Callable[[Request[Any]], Any], name: str) -> None:
    """Replace the tenant's row by one that says it is encrypted, without a key: nobody can store anything any more."""
    for _ in range(_TRIES):
        row: TenantRow | None = ask(LoadTenant(name))
        if row is None and not _exists(ask, name):
            raise Missing(f"there is no tenant {name!r}")
        empty = TenantRow(name, nonce(), sealed=True, key=None, quota=None)
        try:
            ask(StoreTenant(empty, row.version if row is not None else None))
        except Conflict:
            continue
        return
    raise Conflict(f"the row of tenant {name!r} was changed by others at every try")


def _exists(ask: Callable[[Request[Any]], Any], name: str) -> bool:
    if ask(ListStoredThreads(name, 1)):
        return True
    return any(ask(InspectMemories(tenant, 1)).memories for tenant in (name, CACHE + name))


def _drop_threads(ask: Callable[[Request[Any]], Any], tenant: str) -> Work[int]:
    dropped, after = 0, None
    while page := (yield Blocking(partial(ask, ListStoredThreads(tenant, _PAGE, after)))):
        for entry in page:
            if entry.unreadable is not None:
                raise Corrupt(f"thread {entry.id!r} of tenant {tenant!r} cannot be dropped: {entry.unreadable}")
            yield Blocking(partial(ask, DropThread(ThreadKey(tenant, entry.kind, entry.id), leased=True, sealed=True)))
            dropped += 1
            yield Progress(dropped, None, entry.id)
        after = page[-1].cursor
    return dropped


def drop_cache(ask: Callable[[Request[Any]], Any], tenant: str) -> Work[None]:
    """Delete the entries of a tenant's cache, as they are stored. From then on, plain ones are refused."""
    yield Blocking(lambda: drive(refuse_plain_entries(tenant, nonce()), ask))
    yield from drop_memories(ask, CACHE + tenant)


def drop_memories(ask: Callable[[Request[Any]], Any], tenant: str) -> Work[int]:
    """Delete all memories of a tenant, as they are stored. Return how many there were."""
    dropped, after = 0, None
    while True:
        page = yield Blocking(partial(ask, InspectMemories(tenant, _PAGE, after)))
        keys = tuple(memory.key for memory in page.memories if memory.key is not None)
        if len(keys) < len(page.memories):
            raise Corrupt(
                f"a memory of tenant {tenant!r} cannot be dropped: its key is damaged; see `threadkeep verify`"
            )
        if keys:
            yield Blocking(partial(ask, WriteMemories(tenant, (), keys, now_us(), sealed=True)))
        dropped += len(keys)
        yield Progress(dropped, None, "memories")
        after = page.cursor
        if after is None:
            return dropped


def _delete_row(ask: Callable[[Request[Any]], Any], name: str) -> None:
    row: TenantRow | None = ask(LoadTenant(name))
    if row is not None:
        ask(DeleteTenant(name, row.version))


def _check_default(session: Session) -> None:
    if session.tenant:
        raise ValueError(
            "only a Keep of the default tenant can list and drop tenants: open the storage without tenant="
        )


def _execute(session: Session, request: Request[Any]) -> Any:
    """Execute a request about any tenant, as it is stored."""
    session.runner.check_open()
    try:
        return session.transport.execute(request)
    except TryLater as error:
        raise error.error from error
