"""The data keys of partitions of memories: one for each first segment of namespaces, stored in a table of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from threadkeep.encryption.data_key import DataKey
from threadkeep.encryption.tenant_key import TenantKey
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.tenants.requests import DeleteDataKeys, ListDataKeys, LoadDataKeys, StoreDataKey
from threadkeep.errors import Corrupt
from threadkeep.plan import Request

_CACHED = 4096
_NAME_BYTES = 16
_PAGE = 256


class DataKeys:
    """The data keys of a tenant's partitions, each loaded once. A key is stored under a digest of its partition."""

    def __init__(self, key: TenantKey, execute: Callable[[Request[Any]], Any]) -> None:
        self._tenant = key
        self._execute = execute
        self._keys: dict[str, DataKey] = {}

    def existing(self, partitions: Iterable[str]) -> dict[str, DataKey]:
        """Return the keys of some partitions, without those that have none yet. One round trip for all unknown ones."""
        wanted = set(partitions)
        found = {first: key for first in wanted if (key := self._keys.get(first)) is not None}
        if len(found) == len(wanted):
            return found
        names = {self._name(first): first for first in wanted if first not in found}
        for name, wrapped in self._execute(LoadDataKeys(self._tenant.tenant, tuple(names))).items():
            found[names[name]] = self._remember(names[name], self._unwrapped(wrapped, names[name]))
        return found

    def intact(self, partitions: Iterable[str]) -> dict[str, DataKey]:
        """Return the keys of some partitions, without damaged ones. If there are any, one round trip for each key."""
        wanted = set(partitions)
        try:
            return self.existing(wanted)
        except Corrupt:
            found: dict[str, DataKey] = {}
            for partition in wanted:
                with suppress(Corrupt):  # each of its memories is reported
                    found |= self.existing((partition,))
            return found

    def of(self, partition: str) -> DataKey:
        """Return the key of a partition. If it has none, make one; if another process is first, return that one."""
        known = self._keys.get(partition) or self.existing((partition,)).get(partition)
        if known is not None:
            return known
        name = self._name(partition)
        made = self._tenant.new_data_key(_owner(name))
        stored = self._execute(StoreDataKey(self._tenant.tenant, name, made.wrapped))
        if stored != made.wrapped:
            made = self._unwrapped(stored, partition)
        return self._remember(partition, made)

    def rewrap(self) -> int:
        """Wrap all keys with the tenant's current key, and return how many were wrapped by another."""
        tenant, after, count = self._tenant, None, 0
        while page := self._execute(ListDataKeys(tenant.tenant, after, _PAGE)):
            for name, wrapped in page:
                if not tenant.is_current(wrapped):
                    again = tenant.rewrap(wrapped, _owner(name))
                    self._execute(StoreDataKey(tenant.tenant, name, again, replaces=wrapped))
                    count += 1
            after = page[-1][0]
        return count

    def delete_others(self) -> None:
        """Delete all keys that are not wrapped by the tenant's keys."""
        tenant, after = self._tenant, None
        while page := self._execute(ListDataKeys(tenant.tenant, after, _PAGE)):
            if names := tuple([name for name, wrapped in page if not tenant.has_wrapped(wrapped)]):
                self._execute(DeleteDataKeys(tenant.tenant, names))
            after = page[-1][0]

    def _unwrapped(self, wrapped: bytes, partition: str) -> DataKey:
        try:
            return self._tenant.data_key(wrapped, _owner(self._name(partition)))
        except Corrupt as error:
            raise Corrupt(f"memories under {partition!r} cannot be decrypted: {error}") from error

    def _name(self, partition: str) -> bytes:
        return self._tenant.digest("partition", to_bytes(partition), _NAME_BYTES)

    def _remember(self, partition: str, key: DataKey) -> DataKey:
        while len(self._keys) >= _CACHED:
            self._keys.pop(next(iter(self._keys)), None)
        self._keys[partition] = key
        return key


def _owner(name: bytes) -> bytes:
    """Return what a data key is bound to. The name, because `rewrap` does not know the partition."""
    return b"memories " + name
