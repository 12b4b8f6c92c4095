"""Encrypt a storage that has plain data, and replace its keys.

All of them may be interrupted and started again: they continue where they stopped. No two should run at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from threadkeep.drivers.retries import TryLater, repeat
from threadkeep.engine.health.requests import CleanFiles, FilesState, ListStoredThreads
from threadkeep.engine.identity import SEALING, UNFINISHED, ThreadKey
from threadkeep.engine.requests import DropThread
from threadkeep.engine.search.requests import DropSearchIndex
from threadkeep.engine.tenants.requests import TenantRow
from threadkeep.errors import Conflict
from threadkeep.jobs.tenants import drop_cache, rows_of_others
from threadkeep.plan import send
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.work import Blocking, OnProgress, Progress, Work, change, with_progress

if TYPE_CHECKING:
    from threadkeep.encryption.keys import Keys
    from threadkeep.encryption.translation import Translation

_PAGE = 256
_NOTICE_SECONDS = 70
"""After this time, all processes have read a tenant's row again."""
_TRIES = 50
_NAMED = 20
"""At most so many tenants are named."""


@dataclass(frozen=True, slots=True)
class EncryptResult:
    """What `encrypt` or `reencrypt` encrypted. `remains` says where plain data may be left, and how to remove it.

    After `encrypt` of the default tenant it also names tenants that are not encrypted.
    """

    threads: int
    memories: int
    remains: tuple[str, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class RotateResult:
    """How many data keys `rotate` wrapped anew: of threads, and of partitions of memories; and the master key.

    After `rotate` of the default tenant, `remains` names tenants that still need another of the keys.
    """

    threads: int
    partitions: int
    primary: str
    remains: tuple[str, ...] = ()

    __repr__ = short_repr


def encrypt(session: Session, *, on_progress: OnProgress | None = None) -> Work[EncryptResult]:
    """Encrypt everything of a tenant whose data is plain, with the keys that the Keep was opened with.

    From its start on, processes without these keys get WrongKey at every change. Each thread is encrypted in one
    commit, and processes with the keys can read and change it all the time. At the end SQLite's file is rewritten, so
    that no plain page is left; the result says what other storages may keep. If it is interrupted, call it again.
    Nothing happens if everything is encrypted already. The cache is cleared. Other tenants are not encrypted: `remains`
    names those that are plain. ValueError if the Keep has no keys.
    """
    return with_progress(_encrypt(session), on_progress)


def _encrypt(session: Session) -> Work[EncryptResult]:
    from threadkeep.encryption import opening  # noqa: PLC0415 - imports cryptography

    transport, tenant, keys = session.transport, session.tenant, _keys_of(session)
    hide_ids = bool(transport.tenant(tenant).hide_ids)
    start = partial(opening.start_encryption, transport.execute, keys, tenant, hide_ids=hide_ids)
    is_needed = yield _step(partial(_repeatedly, start))
    session.heads.clear()
    if is_needed:
        yield from drop_cache(transport.execute, tenant)
        yield _step(partial(transport.execute, DropSearchIndex(tenant)))
    translation: Translation = yield _step(partial(transport.reopen, tenant))
    threads = memories = 0
    if is_needed:
        yield from _remove_unfinished(session)
        while True:  # a statement without keys may have begun before they were stored, and ended afterwards
            more_threads = yield from _seal_threads(session, translation, threads)
            more_memories = yield from _seal_pages(translation.memories.seal_plain_page, memories)
            threads, memories = threads + more_threads, memories + more_memories
            if not more_threads and not more_memories:
                break
        yield _step(partial(_repeatedly, partial(opening.finish_encryption, transport.execute, keys, tenant)))
        session.heads.clear()
        yield _step(partial(transport.reopen, tenant))
    yield Progress(threads, threads, "the files")
    left: FilesState = yield from change(None, partial(send, CleanFiles()))
    others = yield from _others(session, lambda row: row is None or not row.sealed)
    plain = _named("not encrypted are", others, "threadkeep encrypt --tenant NAME")
    return EncryptResult(threads, memories, left.remains + plain)


def _others(session: Session, wanted: Callable[[TenantRow | None], bool]) -> Work[list[str]]:
    """Return the tenants whose rows are as wanted; none if this is not the Keep of the default tenant."""
    if session.tenant:
        return []
    return [name for name, row in (yield from rows_of_others(session)) if wanted(row)]


def _named(what: str, tenants: list[str], command: str) -> tuple[str, ...]:
    """Return a sentence about tenants, if there are any."""
    if not tenants:
        return ()
    more = f" and {len(tenants) - _NAMED} more" if len(tenants) > _NAMED else ""
    return (f"{what} tenants {', '.join(map(repr, tenants[:_NAMED]))}{more}: run `{command}` for each",)


def _step(call: Callable[[], Any]) -> Blocking:
    """Return a step that calls a function, again if the storage is away for a moment."""
    return Blocking(partial(_while_away, call))


def _while_away(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TryLater as error:
        return repeat(call, error)


def _keys_of(session: Session) -> Keys:
    keys: Keys | None = session.transport.tenant(session.tenant).keys
    if keys is None:
        raise ValueError("this Keep has no keys: open it with keys=, or on the command line with --keys FILE")
    return keys


def _remove_unfinished(session: Session) -> Work[None]:
    """Remove what interrupted transfers left: nothing refers to it."""
    execute = session.transport.execute
    for tenant in (UNFINISHED + session.tenant, SEALING + session.tenant):
        while page := (yield _step(partial(execute, ListStoredThreads(tenant, _PAGE)))):
            for entry in page:
                yield _step(
                    partial(execute, DropThread(ThreadKey(tenant, entry.kind, entry.id), leased=True, sealed=True))
                )


def _seal_threads(session: Session, translation: Translation, before: int) -> Work[int]:
    """Encrypt the threads that are plain. Return how many; `before` says how many were counted already."""
    done, after = 0, None
    while True:
        request = ListStoredThreads(session.tenant, _PAGE, after)
        page = yield _step(partial(session.transport.execute, request))
        if not page:
            return done
        for entry in page:
            key = ThreadKey(session.tenant, entry.kind, entry.id)
            if (yield _step(partial(_repeatedly, partial(translation.threads.seal_plain_thread, key)))):
                done += 1
                yield Progress(before + done, None, entry.id)
        after = page[-1].cursor


def _seal_pages(seal_page: Callable[[Any], tuple[int, Any]], before: int) -> Work[int]:
    """Encrypt memories page by page. Return how many; `before` says how many were counted already."""
    done, after = 0, None
    sealed: int
    while True:
        sealed, after = yield _step(partial(seal_page, after))
        done += sealed
        yield Progress(before + done, None, "memories")
        if after is None:
            return done


def _repeatedly(once: Any) -> Any:
    """Call a function again after each Conflict: somebody else changed the thread first."""
    for _ in range(_TRIES - 1):
        try:
            return once()
        except Conflict:
            continue
    return once()


def rotate(session: Session, *, on_progress: OnProgress | None = None) -> Work[RotateResult]:
    """Replace the key of a tenant, wrap it with the primary master key, and wrap all data keys with it.

    Run it after a new master key was given as `primary` beside the old one; then the old one is no longer needed. Data
    is not encrypted anew: if a data key leaked, use `reencrypt`. The tenant's key before this one stays in the tenant's
    row until the next `rotate`, and keys that were replaced in the last ten minutes stay too, for processes that have
    not noticed the new one. Two round trips for each thread. Other tenants are not rotated: `remains` names those that
    still need one of the keys before.
    """
    return with_progress(_rotate(session), on_progress)


def _rotate(session: Session) -> Work[RotateResult]:
    from threadkeep.encryption import opening  # noqa: PLC0415 - imports cryptography
    from threadkeep.encryption.tenant_key import TenantKey  # noqa: PLC0415 - the same

    transport, tenant, keys = session.transport, session.tenant, _keys_of(session)
    yield _step(partial(transport.opened, tenant))
    yield _step(partial(_repeatedly, partial(opening.add_tenant_key, transport.execute, keys, tenant)))
    translation: Translation = yield _step(partial(transport.reopen, tenant))
    threads, after = 0, None
    while page := (yield _step(partial(transport.read, ListStoredThreads(tenant, _PAGE, after)))):
        for entry in page:
            key = ThreadKey(tenant, entry.kind, entry.id)
            if entry.unreadable is None:
                threads += yield _step(partial(_repeatedly, partial(translation.threads.rewrap_data_key, key)))
        after = page[-1].cursor
        yield Progress(threads, None, page[-1].id)
    partitions = yield _step(translation.memories.rewrap_data_keys)
    yield _step(partial(_repeatedly, partial(opening.drop_old_tenant_keys, transport.execute, keys, tenant)))
    yield _step(partial(transport.reopen, tenant))
    others = yield from _others(
        session, lambda row: row is not None and row.sealed and keys.given_beside_primary(TenantKey.master_ids(row))
    )
    left = _named("the keys before are still needed by", others, "threadkeep rotate --tenant NAME")
    return RotateResult(threads, partitions, keys.primary, left)


def reencrypt(session: Session, *, wait: bool = True, on_progress: OnProgress | None = None) -> Work[EncryptResult]:
    """Encrypt everything of a tenant anew: for the case that a data key, or the tenant's key, became known.

    All keys below the master key are replaced, the one that hides values too. Meanwhile, and after an interruption
    until it was called again, every other call about this tenant raises Unavailable. The cache is cleared. It first
    waits for 70 seconds, so that all other processes have noticed; `wait=False` if there are none. Backups and copies
    that were made before are as readable as they were. Replace the master key too, with `rotate`, if that one may be
    known. ValueError if the Keep has no keys.
    """
    return with_progress(_reencrypt(session, wait=wait), on_progress)


def _reencrypt(session: Session, *, wait: bool) -> Work[EncryptResult]:
    from threadkeep.encryption import opening  # noqa: PLC0415 - imports cryptography
    from threadkeep.encryption.translation import Translation  # noqa: PLC0415 - the same

    transport, tenant, keys = session.transport, session.tenant, _keys_of(session)
    key = yield _step(partial(_repeatedly, partial(opening.start_reencryption, transport.execute, keys, tenant)))
    transport.recheck(tenant)
    session.heads.clear()
    for second in range(_NOTICE_SECONDS if wait else 0):
        yield Blocking(partial(time.sleep, 1))
        yield Progress(second, _NOTICE_SECONDS, "waiting for other processes")
    translate = partial(Translation, execute=transport.execute, compress=transport.compress)
    old, new = translate(key.before), translate(key.without_before())
    threads = memories = 0
    yield from drop_cache(transport.execute, tenant)
    while True:
        yield from _remove_unfinished(session)
        more_threads = yield from _seal_again(session, old, new, threads)
        more_memories = yield from _seal_pages(partial(new.memories.seal_page_again, old.memories), memories)
        threads, memories = threads + more_threads, memories + more_memories
        if not more_threads and not more_memories:
            break
    yield _step(new.memories.delete_other_data_keys)
    yield _step(partial(_repeatedly, partial(opening.finish_reencryption, transport.execute, keys, tenant)))
    session.heads.clear()
    yield _step(partial(transport.reopen, tenant))
    yield Progress(threads, threads, "the files")
    left: FilesState = yield from change(None, partial(send, CleanFiles()))
    return EncryptResult(threads, memories, left.remains)


def _seal_again(session: Session, old: Translation, new: Translation, before: int) -> Work[int]:
    """Encrypt the threads that need the old keys with the new ones. Return how many."""
    done, after, execute = 0, None, session.transport.execute
    while page := (yield _step(partial(execute, ListStoredThreads(session.tenant, _PAGE, after)))):
        for entry in page:
            again = partial(new.threads.seal_again, old.threads, entry.id, entry.kind)
            if (yield _step(partial(_repeatedly, again))):
                done += 1
                yield Progress(before + done, None, "threads")
        after = page[-1].cursor
    return done
