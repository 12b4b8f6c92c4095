"""The entries of a cache: memories of a tenant of their own, which no Keep has, so no search or export finds them.

For every tenant there is one such tenant, whose name starts with `CACHE`. It is encrypted with the keys of the other
one, and has no quota. Its namespaces start with a segment that LangGraph's store refuses, which spreads them over a few
partitions; a sealed entry can therefore not be taken for a memory of the same name. An entry has no words.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection
from hashlib import blake2b

from threadkeep.engine.health.requests import InspectedMemoryPage, InspectMemories
from threadkeep.engine.identity import CACHE
from threadkeep.engine.log.itemlog import CHUNK, seal, unseal
from threadkeep.engine.memories.checksums import damaged_memory
from threadkeep.engine.memories.json_text import dump, load
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, encode
from threadkeep.engine.memories.requests import ListMemories, MemoryRow, NewMemory, WriteMemories
from threadkeep.engine.tenants.requests import LoadTenant, StoreTenant, TenantRow
from threadkeep.errors import Conflict, Corrupt

_PARTITIONS = 16
_PAGE = 100
_ALWAYS = 0
"""A time at which nothing had expired: entries that have expired are listed too."""


def cache_tenant(tenant: str) -> str:
    """Return the tenant that has the entries of a tenant's cache."""
    return CACHE + tenant


def entry_key(namespace: Namespace, key: str) -> MemoryKey:
    """Return the namespace and key under which an entry is stored."""
    return MemoryKey(_stored_namespace(namespace), key)


def _stored_namespace(namespace: Namespace) -> Namespace:
    partition = blake2b(encode(namespace), digest_size=1).digest()[0] % _PARTITIONS
    return (f"\0cache {partition:x}", *namespace)


def new_entry(place: MemoryKey, tag: str, data: bytes, *, ttl: float | None, now: int, compress: bool) -> NewMemory:
    """Return an entry to store: a serialized value with its tag. `ttl` is in seconds."""
    pieces = [seal(data[at : at + CHUNK], 0, compress=compress) for at in range(0, len(data), CHUNK)]
    value = dump({"tag": tag, "data": [b64encode(piece).decode() for piece in pieces]})
    expires = None if ttl is None else now + int(ttl * 1_000_000)
    return NewMemory(MemoryRow(*place, value, now, now, expires, None if ttl is None else ttl / 60))


def stored_value(row: MemoryRow) -> tuple[str, bytes]:
    """Return the tag and the bytes of a stored entry. Corrupt if it is not one."""
    try:
        value = load(row.value)
        pieces = [unseal(b64decode(piece, validate=True), 0, "a piece of it").data for piece in value["data"]]
        return str(value["tag"]), b"".join(pieces)
    except (Corrupt, KeyError, TypeError, ValueError, RecursionError) as error:
        raise damaged_memory(row.memory_key, str(error)) from error


async def clear(tenant: str) -> None:
    """Delete all entries, damaged ones too. Two round trips for each 100."""
    after, cache = None, cache_tenant(tenant)
    while True:
        page: InspectedMemoryPage = await InspectMemories(cache, _PAGE, after)
        keys = tuple([memory.key for memory in page.memories if memory.key is not None])
        if keys:
            await WriteMemories(cache, (), keys, _ALWAYS)
        after = page.cursor
        if after is None:
            return


async def clear_namespaces(tenant: str, namespaces: Collection[Namespace]) -> None:
    """Delete the entries of some namespaces, not of those below them. Two round trips for each 100 entries."""
    cache = cache_tenant(tenant)
    for namespace in map(_stored_namespace, namespaces):
        after, rows = None, None
        while rows is None or len(rows) == _PAGE:
            rows = await ListMemories(cache, namespace, _ALWAYS, _PAGE, 0, after)
            keys = tuple([row.memory_key for row in rows if row.namespace == namespace])
            if keys:
                await WriteMemories(cache, (), keys, _ALWAYS)
            if rows:
                after = (rows[-1].updated, rows[-1].namespace, rows[-1].key)


async def refuse_plain_entries(tenant: str, version: int) -> None:
    """Make the storage refuse entries that are not encrypted, for an encrypted tenant. One or two round trips."""
    if await LoadTenant(cache_tenant(tenant)) is None:
        try:
            await StoreTenant(TenantRow(cache_tenant(tenant), version, sealed=True, key=None, quota=None), None)
        except Conflict:  # another process was first
            return
