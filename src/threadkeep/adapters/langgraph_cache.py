"""LangGraph's cache (BaseCache) for what nodes with a CachePolicy returned, sync and async on one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import maybe_add_typed_methods

from threadkeep import clock
from threadkeep.engine import cache
from threadkeep.engine.identity import as_id
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.type_gate import Name
from threadkeep.engine.log.upcasters import Upcaster
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.engine.memories.requests import GetMemories, MemoryRow, NewMemory, WriteMemories
from threadkeep.plan import Request
from threadkeep.session import Session

_MAX_SECONDS = 60 * 10**9
"""Times that are later do not fit into 64 bits everywhere."""


class KeepCache(BaseCache[Any]):
    """LangGraph's cache on a Keep. Get one from `Keep.cache`.

    Entries are decoded as the values of checkpoints are: behind the type gate, with the Keep's `serde` and upcasters.
    """

    def __init__(self, session: Session, *, serde: Any, upcasters: Mapping[Name, Upcaster] | None = None) -> None:
        super().__init__(serde=serde)
        self._session = session
        self._upcasters = upcasters
        self._cached_codec: Codec | None = None
        self._refuses_plain = False

    def _codec(self) -> Codec:
        """Return the codec of the current serializer; a caller may have replaced `serde`."""
        serde = self.serde
        if self._cached_codec is None or self._cached_codec.given is not serde:
            self._cached_codec = Codec(
                maybe_add_typed_methods(serde), given=serde, cache_bytes=0, upcasters=self._upcasters
            )
        return self._cached_codec

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the values of these keys; those that are missing or have expired are left out. One round trip.

        Corrupt if an entry is damaged: clear its namespace.
        """
        places = _places(keys)
        if not places:
            return {}
        return self._values(places, self._session.read(self._get_request(places)))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Async version of `get`."""
        places = _places(keys)
        if not places:
            return {}
        return await self._session.aread(self._get_request(places), lambda rows: self._values(places, rows))

    def _get_request(self, places: Mapping[FullKey, MemoryKey]) -> Request[Any]:
        return GetMemories(cache.cache_tenant(self._session.tenant), tuple(places.values()), clock.now_us())

    def _values(self, places: Mapping[FullKey, MemoryKey], rows: Sequence[MemoryRow | None]) -> dict[FullKey, Any]:
        codec, found = self._codec(), dict[FullKey, Any]()
        for full, row in zip(places, rows, strict=True):
            if row is not None:
                found[full] = codec.loads(*cache.stored_value(row), f"entry {full[1]!r} of the cache in {full[0]!r}")
        return found

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Store values, each with the seconds it lives, or None. One round trip; one more at first use with keys."""
        if pairs:
            if self._must_refuse_plain():
                self._session.change_outside_threads(self._refuse_plain)
                self._refuses_plain = True
            self._session.write_memories(self._set_request(pairs))

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Async version of `set`."""
        if pairs:
            if self._must_refuse_plain():
                await self._session.achange_outside_threads(self._refuse_plain)
                self._refuses_plain = True
            await self._session.awrite_memories(lambda: self._set_request(pairs))

    def _must_refuse_plain(self) -> bool:
        return not self._refuses_plain and self._session.keys is not None

    def _refuse_plain(self) -> Any:
        return cache.refuse_plain_entries(self._session.tenant, clock.nonce())

    def _set_request(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> WriteMemories:
        codec, now, compress = self._codec(), clock.now_us(), self._session.transport.compress
        puts: list[NewMemory] = []
        for full, place in _places(pairs).items():
            value, ttl = pairs[full]
            if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float))):
                raise TypeError(f"a ttl must be a number of seconds or None, not {type(ttl).__name__}")
            if ttl is not None and not abs(ttl) < _MAX_SECONDS:
                raise ValueError(f"a ttl must be less than {_MAX_SECONDS:,} seconds, not {ttl!r}")
            puts.append(cache.new_entry(place, *codec.dumps(value), ttl=ttl, now=now, compress=compress))
        return WriteMemories(cache.cache_tenant(self._session.tenant), tuple(puts), (), now)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the entries of these namespaces, not of those below them; all entries if None is given.

        Two round trips for each 100 entries.
        """
        wanted = _namespaces(namespaces)
        self._session.change_outside_threads(lambda: self._clear(wanted))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Async version of `clear`."""
        wanted = _namespaces(namespaces)
        await self._session.achange_outside_threads(lambda: self._clear(wanted))

    def _clear(self, namespaces: Sequence[Namespace] | None) -> Any:
        tenant = self._session.tenant
        return cache.clear(tenant) if namespaces is None else cache.clear_namespaces(tenant, namespaces)


def _places(keys: Any) -> dict[FullKey, MemoryKey]:
    """Return where the entries of keys are stored. A key that is given twice is there once."""
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys must be a sequence of (namespace, key), not a single text")
    return {(namespace, key): cache.entry_key(_namespace(namespace), as_id(key, "key")) for namespace, key in keys}


def _namespaces(given: Any) -> list[Namespace] | None:
    if isinstance(given, (str, bytes)):
        raise TypeError("namespaces must be a sequence of namespaces, not a single text")
    return None if given is None else list(map(_namespace, given))


def _namespace(given: Any) -> Namespace:
    if not isinstance(given, (tuple, list)) or not all(isinstance(segment, str) for segment in given):
        raise TypeError(f"a namespace must be a tuple of str, not {given!r}")
    return tuple(given)
