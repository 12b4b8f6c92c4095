"""Which function translates which request of an encrypted tenant. Requests about the whole storage have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from threadkeep.encryption.memories import MemoryTranslation
from threadkeep.encryption.tenant_key import ENCRYPTING, TenantKey
from threadkeep.encryption.threads import ThreadTranslation
from threadkeep.plan import Request


class Translation:
    """Translates the requests of one tenant: reads are executed and their replies opened, writes are sealed."""

    def __init__(self, key: TenantKey, execute: Callable[[Request[Any]], Any], *, compress: bool = True) -> None:
        self.key = key
        self._execute = execute
        self._compress = compress
        self.is_mixed = key.state.state == ENCRYPTING
        self.threads = ThreadTranslation(key, execute, compress=compress)
        self.memories = MemoryTranslation(key, execute, compress=compress)
        self.reads: Mapping[type, Callable[[Any], Any]] = {**self.threads.reads, **self.memories.reads}
        self.writes: Mapping[type, Callable[[Any], Request[Any]]] = {**self.threads.writes, **self.memories.writes}

    @cached_property
    def of_cache(self) -> Translation:
        """How requests about the tenant's cache are translated: the names of entries are always hidden.

        They contain names of nodes. Nobody lists them in order, so it costs nothing.
        """
        return Translation(self.key.with_hidden_ids(), self._execute, compress=self._compress)

    def with_newest_keys(self) -> Translation:
        """Return a translation for which a data key is damaged if none of the tenant's keys has wrapped it.

        Otherwise that is a WrongKey, because `rotate` may have replaced the tenant's key. To be used right after the
        tenant's row was read.
        """
        return Translation(self.key.as_newest(), self._execute, compress=self._compress)
