"""Encrypted storages give the same results as the models of `test_agreement`, with visible and with hidden ids.

The state machines for checkpoints, CubeLoop threads and memories run on Keeps that were opened with `keys=`: in memory,
on SQLite and PostgreSQL, and on Valkey in fewer examples. Each storage is checked with `verify` at the end.
`THREADKEEP_HYPOTHESIS=prove` searches longer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import shared_pool
import test_agreement
import test_cube_agreement
import test_store_agreement
from hypothesis_profiles import machine_settings
from row_invariants import Rows, used_items
from sealed_storages import KEYS
from threadkeep import Problem
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.identity import CUBE, GRAPH
from threadkeep.engine.log.itemlog import NAMES, ItemId, pack_ranges
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.keep import Keep
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport
from threadkeep.transports.direct import Direct
from threadkeep.transports.sqlite import SqliteFile

CACHES = [1 << 26, 0, 1 << 26]
"""The second Keep of each storage caches nothing, so it reads and decrypts everything."""


def encrypted(reach: Callable[[], Any], tenant: str, *, hide_ids: bool) -> Callable[[], TenantTransport]:
    """Return a function that opens a transport to an encrypted tenant."""
    return lambda: TenantTransport(reach(), tenant, KEYS, hide_ids=hide_ids)


def in_memory() -> Callable[[], Any]:
    rows = InMemoryBackend()
    return lambda: Direct(rows)


def in_file(path: Path) -> Callable[[], Any]:
    return lambda: SqliteFile(path, SqliteDialect(), durability="relaxed", timeout=30)


def on_postgres(group: str | None = None) -> Callable[[], Any]:
    return lambda: shared_pool.transport(group)


def on_valkey() -> Callable[[], Any]:
    return lambda: shared_pool.transport(url=shared_pool.cluster())


def unused_items(keep: Keep, kind: str, thread: str) -> set[ItemId]:
    """Return the items that no row of a thread refers to, as `row_invariants` does for plain storages."""
    found = keep._session.transport.read(InspectThread(keep._session.key(kind, thread)))
    if found.thread is None:
        return set()
    rows = [{"refs": pack_ranges(row.refs), "labels": row.labels} for row in found.checkpoints]
    writes = [{"refs": pack_ranges(row.refs)} for row in found.writes]
    items = {ItemId(lane, n): found.items.get(ItemId(lane, n), b"") for lane, n, _ in found.item_sizes}
    used = used_items(Rows({"family": found.thread.family}, items, rows, writes))
    return {at for at in items if at.lane != NAMES} - used


# --- checkpoints


class EncryptedStore(test_agreement.Store):
    """Checks with `verify` and by decrypted rows what others check in the tables."""

    def __init__(
        self, name: str, reach: Callable[[], Any], *, hide_ids: bool, is_async: bool, tenant: str = ""
    ) -> None:
        reach = encrypted(reach, tenant, hide_ids=hide_ids)

        def opened(which: int) -> Keep:
            return Keep(Session(reach(), tenant=tenant, caches=Caches(CACHES[which])), None)

        super().__init__(name, opened, is_async=is_async)

    def problems(self) -> list[Problem]:
        return [each for each in self._keeps[2].verify().problems if each.problem != "missing parent"]

    def unused_items(self, thread: str) -> set[ItemId]:
        return unused_items(self._keeps[2], GRAPH, thread)


def stores(folder: Path) -> list[EncryptedStore]:
    tenants = [shared_pool.fresh_tenant() for _ in range(2)]
    return [
        EncryptedStore("memory", in_memory(), hide_ids=False, is_async=False),
        EncryptedStore("memory, ids hidden", in_memory(), hide_ids=True, is_async=True),
        EncryptedStore("sqlite", in_file(folder / "keys.db"), hide_ids=False, is_async=True),
        EncryptedStore("sqlite, ids hidden", in_file(folder / "hidden.db"), hide_ids=True, is_async=False),
        EncryptedStore("postgres", on_postgres(), hide_ids=False, is_async=False, tenant=tenants[0]),
        EncryptedStore("postgres, ids hidden", on_postgres("thread"), hide_ids=True, is_async=True, tenant=tenants[1]),
    ]


def valkey_stores(_: Path) -> list[EncryptedStore]:
    tenant = shared_pool.fresh_tenant()
    return [EncryptedStore("valkey, ids hidden", on_valkey(), hide_ids=True, is_async=False, tenant=tenant)]


class EncryptedAgreement(test_agreement.Agreement):
    stores_in = staticmethod(stores)


class ValkeyAgreement(test_agreement.Agreement):
    stores_in = staticmethod(valkey_stores)


TestEncryptedAgreement = EncryptedAgreement.TestCase
TestEncryptedAgreement.settings = machine_settings(few=5, many=200)
TestValkeyAgreement = ValkeyAgreement.TestCase
TestValkeyAgreement.settings = machine_settings(few=2, many=60)


# --- CubeLoop threads


class EncryptedCubeStore(test_cube_agreement.Store):
    """Checks with `verify` and by decrypted rows what others check in the tables."""

    def __init__(self, name: str, reach: Callable[[], Any], *, hide_ids: bool, tenant: str = "") -> None:
        opened = test_cube_agreement.on(encrypted(reach, tenant, hide_ids=hide_ids), tenant)
        super().__init__(name, opened, None, tenant)

    def problems(self) -> list[Problem]:
        return self.keeps[2].verify().problems

    def check_rows(self, pruned: str | None = None) -> None:
        if pruned is not None:
            assert unused_items(self.keeps[2], CUBE, pruned) == set(), self.name


def cube_stores(folder: Path) -> list[EncryptedCubeStore]:
    tenant = shared_pool.fresh_tenant()
    return [
        EncryptedCubeStore("memory, ids hidden", in_memory(), hide_ids=True),
        EncryptedCubeStore("sqlite", in_file(folder / "keep.db"), hide_ids=False),
        EncryptedCubeStore("postgres, ids hidden", on_postgres(), hide_ids=True, tenant=tenant),
    ]


def valkey_cube_stores(_: Path) -> list[EncryptedCubeStore]:
    return [EncryptedCubeStore("valkey", on_valkey(), hide_ids=False, tenant=shared_pool.fresh_tenant())]


class EncryptedCubeAgreement(test_cube_agreement.Agreement):
    stores_in = staticmethod(cube_stores)


class ValkeyCubeAgreement(test_cube_agreement.Agreement):
    stores_in = staticmethod(valkey_cube_stores)


TestEncryptedCubeAgreement = EncryptedCubeAgreement.TestCase
TestEncryptedCubeAgreement.settings = machine_settings(few=5, many=150)
TestValkeyCubeAgreement = ValkeyCubeAgreement.TestCase
TestValkeyCubeAgreement.settings = machine_settings(few=2, many=50)


# --- memories


class EncryptedStorage(test_store_agreement.Storage):
    """Checks with `verify` what others check in the tables."""

    def __init__(self, name: str, reach: Callable[[], Any], *, hide_ids: bool, tenant: str = "") -> None:
        super().__init__(name, encrypted(reach, tenant, hide_ids=hide_ids), where=None, tenant=tenant)

    def number(self, memory_key: MemoryKey) -> int:
        """Return the number by which a memory is stored, which orders those of equal score."""
        translation = self._keeps[0]._session.transport.opened(self.tenant)
        return super().number(translation.memories._cipher.stored_key(memory_key))

    def left_behind(self) -> list[str]:
        return [each.message for each in self._keeps[0].verify().problems]


def storages(folder: Path) -> list[EncryptedStorage]:
    tenants = [shared_pool.fresh_tenant() for _ in range(2)]
    return [
        EncryptedStorage("memory", in_memory(), hide_ids=False),
        EncryptedStorage("memory, ids hidden", in_memory(), hide_ids=True),
        EncryptedStorage("sqlite", in_file(folder / "keys.db"), hide_ids=False),
        EncryptedStorage("sqlite, ids hidden", in_file(folder / "hidden.db"), hide_ids=True),
        EncryptedStorage("postgres", on_postgres(), hide_ids=False, tenant=tenants[0]),
        EncryptedStorage("postgres, ids hidden", on_postgres(), hide_ids=True, tenant=tenants[1]),
    ]


def valkey_storages(_: Path) -> list[EncryptedStorage]:
    return [EncryptedStorage("valkey, ids hidden", on_valkey(), hide_ids=True, tenant=shared_pool.fresh_tenant())]


class EncryptedStoreAgreement(test_store_agreement.Agreement):
    storages_in = staticmethod(storages)


class ValkeyStoreAgreement(test_store_agreement.Agreement):
    storages_in = staticmethod(valkey_storages)


TestEncryptedStoreAgreement = EncryptedStoreAgreement.TestCase
TestEncryptedStoreAgreement.settings = machine_settings(few=6, many=300, few_steps=25, many_steps=50)
TestValkeyStoreAgreement = ValkeyStoreAgreement.TestCase
TestValkeyStoreAgreement.settings = machine_settings(few=2, many=60, few_steps=25, many_steps=50)
