"""TenantTransport: a transport for several tenants of one storage, each with its own keys, or none.

It implements `drivers.runner.Transport` on top of another one. At the first request of a tenant it reads the tenant's
row: WrongKey if the tenant is encrypted and the keys do not fit, at every call until they do. If no tenant has keys or
a quota, its methods are replaced after that: by those of the other transport, which cost nothing, and by the two of
`PlainTenants`, which only look at replies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from threadkeep.drivers import forks
from threadkeep.drivers.retries import TryLater
from threadkeep.engine.identity import CACHE, UNFINISHED, ThreadKey
from threadkeep.engine.requests import Batch, Commit, ForkThread
from threadkeep.engine.tenants.requests import LoadTenant, TenantRow, refuse_encrypted_row
from threadkeep.errors import SchemaTooOld, ThreadkeepError, Unavailable, WrongKey
from threadkeep.plan import Failure, Outcome, Request, result, try_call
from threadkeep.tenants.plain import PlainTenants, tenant_of

if TYPE_CHECKING:
    from threadkeep.drivers.runner import Transport
    from threadkeep.encryption.keys import Keys
    from threadkeep.encryption.translation import Translation
    from threadkeep.engine.memories.requests import WriteMemories
    from threadkeep.engine.schema_versions import SchemaVersions
    from threadkeep.tenants.reservation import Reservation

_REFRESH_SECONDS = 60.0
_TIMEOUT = 30.0
_METHODS_OF_PLAIN = ("read", "write")
_METHODS = (*_METHODS_OF_PLAIN, "try_commit", "try_drop", "write_at_once")


class Tenant:
    """A tenant that a Keep uses: its keys, if it has any, and how its requests are translated once these are unwrapped.

    `wanted_quota` is to be stored at its first use. `reservation` is what this process may store; None without a quota.
    """

    __slots__ = (
        "hide_ids", "is_checked", "keys", "name", "refresh_at", "reservation", "translation", "wanted_quota",
    )  # fmt: skip

    def __init__(
        self, name: str, keys: Keys | None, *, hide_ids: bool | None, wanted_quota: float | None = None
    ) -> None:
        self.name, self.keys, self.hide_ids, self.wanted_quota = name, keys, hide_ids, wanted_quota
        self.reservation: Reservation | None = None
        self.is_checked = False
        self.refresh_at = 0.0
        self.translation: Translation | None = None


class TenantTransport:
    """Passes requests to another transport, those of encrypted tenants sealed. May be used from any thread."""

    read: Callable[[Request[Any]], Any]
    write: Callable[[Sequence[Request[Any]]], list[Outcome]]
    try_commit: Callable[[Batch], bool]
    try_drop: Callable[..., bool]
    write_at_once: Callable[[WriteMemories], bool]
    writers: int
    read_only: bool
    commits_at_once: bool

    def __init__(
        self,
        inner: Transport,
        tenant: str,
        keys: Keys | None = None,
        *,
        hide_ids: bool | None = None,
        compress: bool = True,
    ) -> None:
        self.inner = inner
        self._plain = PlainTenants(inner, self._load_row)
        self.compress = compress
        self._lock = threading.RLock()
        self._tenants: dict[str, Tenant] = {}
        self._has_quotas = False
        self.writers, self.read_only = inner.writers, inner.read_only
        self.writes_at_once = hasattr(inner, "write_at_once")
        if not self.writes_at_once:
            self.write_at_once = _not_at_once
        if not isinstance(getattr(type(inner), "commits_at_once", None), property):
            self.commits_at_once = inner.commits_at_once
        self.add(Tenant(tenant, keys, hide_ids=hide_ids))
        forks.watch(self)

    def __getattr__(self, name: str) -> Any:
        """Return what only the other transport has."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def before_fork(self) -> None:
        """Hold the lock, so that no other thread does. Nothing is sent to the storage while it is held."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002 - parent and child do the same
        """Reverse `before_fork`."""
        self._lock.release()

    # --- tenants

    def add(self, tenant: Tenant) -> Tenant:
        """Add a tenant, to be checked at its first request. One that is there already stays if it has the same keys."""
        with self._lock:
            known, quota = self._tenants.get(tenant.name), tenant.wanted_quota
            if known is not None:
                tenant.reservation = known.reservation
                if tenant.keys in (None, known.keys):
                    if quota is None or (known.reservation is not None and known.reservation.limit == quota):
                        return known
                    known.wanted_quota, known.is_checked = quota, False
                    tenant = known
            self._tenants[tenant.name] = tenant
            self._step_in()
        return tenant

    def open_tenant(self, name: str, keys: Keys | None, quota_bytes: float | None) -> None:
        """Add a tenant for `Keep.tenant`: with the keys given, or those that it has here, or those of this Keep."""
        own = next(iter(self._tenants.values()))
        # What is given without keys says nothing about tenants that have some.
        hide_ids = own.hide_ids if keys is None or own.keys is not None else None
        if keys is None and name not in self._tenants:
            keys = own.keys
        self.add(Tenant(name, keys, hide_ids=hide_ids, wanted_quota=quota_bytes))

    def close_tenant(self, name: str) -> None:
        """Return what is left of the slice of a tenant's quota, if the storage is there."""
        reservation = self.tenant(name).reservation
        if reservation is not None:
            with suppress(ThreadkeepError):
                reservation.end()

    def forget(self, name: str) -> None:
        """Read a tenant's row before its next request, with the keys that it was opened with: it was dropped."""
        with self._lock:
            tenant = self._tenants.get(name)
            if tenant is not None:
                self._tenants[name] = Tenant(name, tenant.keys, hide_ids=tenant.hide_ids)
                self._step_in()

    def _step_in(self) -> None:
        """Reverse `_step_aside`."""
        for name in _METHODS:
            of_plain = getattr(self._plain if name in _METHODS_OF_PLAIN else self.inner, name, None)
            if of_plain is not None and self.__dict__.get(name) in (None, of_plain):
                setattr(self, name, getattr(self, f"_{name}"))

    def opened(self, name: str) -> Translation | None:
        """Return how requests of a tenant, or of its cache, are translated; None if it has no keys.

        At first use, check it.
        """
        tenant = self.tenant(name)
        if not tenant.is_checked:  # without a lock: callers must not wait for each other's timeouts
            self._check(tenant)
        translation = tenant.translation
        return translation.of_cache if translation is not None and name.startswith(CACHE) else translation

    def tenant(self, name: str) -> Tenant:
        """Return a tenant. One that was not added has no keys."""
        name = name.removeprefix(UNFINISHED).removeprefix(CACHE)
        tenant = self._tenants.get(name)
        return self.add(Tenant(name, None, hide_ids=None)) if tenant is None else tenant

    def recheck(self, name: str) -> None:
        """Read a tenant's row again before the next request about it."""
        self.tenant(name).is_checked = False

    def reopen(self, name: str) -> Translation | None:
        """Read a tenant's row again, after it was changed."""
        self.tenant(name).is_checked = False
        return self.opened(name)

    def _reopened(self, name: str) -> Translation:
        """Return how a request is translated that found a data key which none of the tenant's keys had wrapped.

        The tenant's key was replaced, or the data key is damaged: that is Corrupt, and no reason to refuse a list.
        """
        translation = self.reopen(name)
        assert translation is not None
        return translation.with_newest_keys()

    def _opened_to_write(self, name: str) -> Translation | None:
        """Return how changes of a tenant are translated.

        Its row is read again once a minute, so that a key which `rotate` replaced soon wraps no new data keys.
        """
        tenant = self.tenant(name)
        return self._refreshed(tenant, name) if tenant.translation is not None else self.opened(name)

    def _refreshed(self, tenant: Tenant, name: str) -> Translation | None:
        """Return how requests of an encrypted tenant are translated, after its row was read again if it is time."""
        if monotonic() <= tenant.refresh_at:
            return self.opened(name)
        tenant.refresh_at = monotonic() + _REFRESH_SECONDS
        return self.reopen(name)

    def _check(self, tenant: Tenant) -> None:
        row: TenantRow | None
        is_new = False
        if tenant.keys is None:
            row = self._load_row(tenant.name)
            refuse_encrypted_row(row)
        else:
            from threadkeep.encryption.opening import open_tenant  # noqa: PLC0415 - imports cryptography
            from threadkeep.encryption.tenant_key import NEW  # noqa: PLC0415 - the same
            from threadkeep.encryption.translation import Translation  # noqa: PLC0415 - the same

            key = open_tenant(
                self.execute,
                tenant.keys,
                tenant.name,
                hide_ids=tenant.hide_ids,
                hides_new=lambda: self._hides_ids_of_others(tenant),
                read_only=self.read_only,
            )
            tenant.translation = Translation(key, self.execute, compress=self.compress)
            tenant.refresh_at = monotonic() + _REFRESH_SECONDS
            is_new = key.state.state == NEW  # read-only, and another process will make the keys
            row = self._load_row(tenant.name)
        wanted_quota = tenant.wanted_quota
        has_quota = wanted_quota is not None or (row is not None and row.quota is not None)
        limit = self._store_quota(tenant.name, wanted_quota, row) if has_quota else None
        with self._lock:
            if limit is None:
                tenant.reservation = None
            else:
                self._reserve(tenant, limit)
            if tenant.wanted_quota == wanted_quota:  # nobody has asked for another one meanwhile
                tenant.wanted_quota, tenant.is_checked = None, not is_new
            if all(
                each.is_checked and each.translation is None and each.reservation is None
                for each in self._tenants.values()
            ):
                self._step_aside()

    def _hides_ids_of_others(self, tenant: Tenant) -> bool:
        """Return whether the tenant that the storage was opened for hides its ids: a new one does as it does."""
        from threadkeep.encryption.tenant_key import TenantKey  # noqa: PLC0415 - imports cryptography

        own = next(iter(self._tenants.values()))
        if own.translation is not None:
            return own.translation.key.state.hides_ids
        row = self._load_row(own.name) if own is not tenant and own.keys is not None else None
        if row is None or not row.sealed or own.keys is None:
            return False
        with suppress(ThreadkeepError):  # if its keys do not open it, it raises that when it is used
            return TenantKey.from_row(row, own.keys).state.hides_ids
        return False

    def _store_quota(self, name: str, wanted: float | None, row: TenantRow | None) -> int | None:
        """Store the quota that was asked for, if any. Return the one that the tenant has then."""
        from threadkeep.tenants.reservation import store_limit  # noqa: PLC0415 - few tenants have quotas

        return store_limit(self.execute, name, None if self.read_only else wanted, row)

    def _reserve(self, tenant: Tenant, limit: int) -> None:
        """Prepare to enforce a quota."""
        from threadkeep.tenants.reservation import Reservation  # noqa: PLC0415 - few tenants have quotas

        if tenant.reservation is None:
            tenant.reservation = Reservation(tenant.name, self.execute)
        tenant.reservation.limit = limit
        self._has_quotas = True

    def _load_row(self, name: str) -> TenantRow | None:
        """Read the row of a tenant. A storage that is too old to be used, but may be copied as it is, has none."""
        try:
            row: TenantRow | None = self.execute(LoadTenant(name))
        except SchemaTooOld:
            return None
        return row

    def _step_aside(self) -> None:
        """Let the methods of the other transport take the place of these, except those that somebody replaced."""
        for name in _METHODS:
            if getattr(self, name, None) == getattr(self, f"_{name}"):
                setattr(self, name, getattr(self._plain if name in _METHODS_OF_PLAIN else self.inner, name))

    def execute(self, request: Request[Any]) -> Any:
        """Execute a request as it is: rows of encrypted tenants are sealed already, or not opened."""
        if request.access.writes:
            return result(self.inner.write([request])[0])
        return self.inner.read(request)

    # --- requests, as long as some tenant has keys or a quota, or was not checked yet

    def _read(self, request: Request[Any]) -> Any:
        name = tenant_of(request)
        translation = self.opened(name) if name is not None else None
        if name is not None and translation is not None and translation.is_mixed:  # soon, plain rows are refused
            translation = self._refreshed(self.tenant(name), name)
        translate = translation.reads.get(type(request)) if translation is not None else None
        if name is None or translate is None:
            return self.inner.read(request) if translation is not None else self._plain.read(request)
        try:
            return translate(request)
        except WrongKey:
            return self._reopened(name).reads[type(request)](request)

    def _write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes. Those of encrypted tenants are sealed before, outside of any transaction."""
        outcomes: dict[int, Outcome] = {}
        sealed: dict[int, Request[Any]] = {}
        spent: list[tuple[int, Reservation, int]] = []
        for at, request in enumerate(requests):
            try:
                change = self._sealed(request)
                reservation = self._reservation_of(request) if self._has_quotas else None
                if reservation is not None:
                    spent.append((at, reservation, _spend(reservation, change, waits=self._is_of_one(requests))))
                sealed[at] = change
            except Exception as error:  # noqa: BLE001 - a change that fails undoes only itself
                outcomes[at] = Failure(error)
        if sealed:
            made = try_call(lambda: self.inner.write(list(sealed.values())))
            made_by_at = (
                dict.fromkeys(sealed, made) if isinstance(made, Failure) else zip(sealed, made.value, strict=True)
            )
            outcomes |= dict(made_by_at)
        for at, reservation, added in spent:
            reservation.settle(added, sealed[at], is_made=not isinstance(outcomes[at], Failure))
        return [outcomes[at] for at in range(len(requests))]

    def _reservation_of(self, request: Request[Any]) -> Reservation | None:
        name = tenant_of(request)
        return self.tenant(name).reservation if name is not None else None

    def _is_of_one(self, requests: Sequence[Request[Any]]) -> bool:
        return len(requests) == 1 or len(set(map(tenant_of, requests))) == 1

    def _sealed(self, request: Request[Any]) -> Request[Any]:
        name = tenant_of(request)
        translation = self._opened_to_write(name) if name is not None else None
        translate = translation.writes.get(type(request)) if translation is not None else None
        if name is None or translate is None:
            if translation is None:
                self._plain.ask_before(request)
            return request
        try:
            return translate(request)
        except WrongKey:
            return self._reopened(name).writes[type(request)](request)

    def _try_commit(self, batch: Batch) -> bool:
        translation = self._opened_to_write(batch.thread.key.tenant)
        sealed = batch
        if translation is not None:
            try:
                sealed = translation.threads.seal_batch(batch)
            except WrongKey:
                sealed = self._reopened(translation.key.tenant).threads.seal_batch(batch)
        reservation = self.tenant(batch.thread.key.tenant).reservation
        if reservation is None:
            return self.inner.try_commit(sealed)
        return _within_quota(reservation, Commit(sealed), lambda: self.inner.try_commit(sealed))

    def _try_drop(self, key: ThreadKey) -> bool:
        translation = self.opened(key.tenant)
        reservation = self.tenant(key.tenant).reservation
        if translation is None:
            is_made = self.inner.try_drop(key)
        else:
            is_made = self.inner.try_drop(translation.threads.existing_key(key), sealed=True)
        if reservation is not None:
            reservation.note_drop()
        return is_made

    def _write_at_once(self, request: WriteMemories) -> bool:
        inner: Any = self.inner
        sealed: Any = self._sealed(request)
        reservation = self.tenant(request.tenant).reservation
        if reservation is None:
            return bool(inner.write_at_once(sealed))
        return _within_quota(reservation, sealed, lambda: bool(inner.write_at_once(sealed)))

    # --- the storage as a whole

    def setup(self) -> None:
        """Make the storage ready, and check every tenant; again those without keys, which may be encrypted by now."""
        self.inner.setup()
        for name, tenant in list(self._tenants.items()):
            if tenant.translation is None:
                tenant.is_checked = False
            self.opened(name)

    def schema(self) -> SchemaVersions:
        """Return the schema versions that the storage states."""
        return self.inner.schema()

    def migrate(self) -> None:
        """Create or migrate the schema."""
        self.inner.migrate()

    def copy_to_file(self, path: Path, on_progress: Callable[[int, int], object]) -> bool:
        """Copy the whole storage as it is: encrypted tenants stay encrypted."""
        for name in list(self._tenants):
            self.opened(name)
        return self.inner.copy_to_file(path, on_progress)

    def close(self) -> None:
        """Return what is left of quotas, and close the other transport."""
        for name in list(self._tenants):
            self.close_tenant(name)
        self.inner.close()


def _spend(reservation: Reservation, change: Request[Any], *, waits: bool) -> int:
    """Spend what a change adds. If others must not wait for a slice, raise TryLater: the change is then sent alone."""
    from threadkeep.tenants.quota import added_bytes  # noqa: PLC0415 - few tenants have quotas

    if waits:
        return reservation.spend(change)
    added = added_bytes(change)
    if (isinstance(change, ForkThread) and added) or not reservation.spend_at_once(added):
        raise TryLater(Unavailable("a slice of the quota could not be taken"), started=monotonic(), timeout=_TIMEOUT)
    return added


def _within_quota(reservation: Reservation, change: Request[Any], make: Callable[[], bool]) -> bool:
    """Make a change at once, if there is so much left of the quota. Return whether it was made."""
    added, is_made = reservation.spend(change), False
    try:
        is_made = make()
    finally:
        reservation.settle(added, change, is_made=is_made)
    return is_made


def _not_at_once(_: WriteMemories) -> bool:
    """Take the place of `write_at_once` if the other transport has none."""
    return False
