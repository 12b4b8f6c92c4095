"""The keys of threads on Valkey: which partition a thread is in, and the names of its keys and set members."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.memories.namespaces import encode

PARTITIONS = 1024


def key_of(prefix: bytes, partition: int, what: bytes, rest: bytes) -> bytes:
    """Return a key. The part in braces decides its slot."""
    return b"%s{%03x}:%s:%s" % (prefix, partition, what, rest)


@lru_cache(maxsize=16)
def keys_of_partitions(prefix: bytes, what: bytes, tenant: str) -> tuple[bytes, ...]:
    """Return one key of a tenant in each partition."""
    return tuple(key_of(prefix, partition, what, to_bytes(tenant)) for partition in range(PARTITIONS))


def tenants_key(prefix: bytes, partition: int) -> bytes:
    """Return the key of the tenants of a partition: `t` and the name if it has threads there, `s` if it is sealed."""
    return key_of(prefix, partition, b"a", b"")


def staging_key(prefix: bytes, key: ThreadKey, epoch: int) -> bytes:
    """Return the key under which the items of a new thread are collected, in the thread's slot."""
    return key_of(prefix, partition_of(key), b"s", encode(key[:2]) + to_bytes(key.id) + b"%d" % epoch)


class ThreadKeys(NamedTuple):
    """The keys that a script on a thread gets, and the thread's members in the partition's sets.

    `member` is the thread in the sets by time and bytes, `id` in the set by id. `last` is the end of its members in the
    sets of runs and of greatest checkpoints. `tenant` is what the members of its tenant in the set of tenants
    end with.
    """

    keys: tuple[bytes, ...]
    member: bytes
    id: bytes
    last: bytes
    tenant: bytes

    @property
    def rows(self) -> tuple[bytes, ...]:
        """The keys of the thread's own rows: the hash and its order."""
        return self.keys[:2]

    @property
    def hash(self) -> tuple[bytes, ...]:
        """The key of the thread's hash."""
        return self.keys[:1]

    @property
    def members(self) -> tuple[bytes, bytes, bytes, bytes]:
        """What `drop` in the scripts needs to delete the thread's entries."""
        return (self.member, self.id, self.last, self.tenant)


@lru_cache(maxsize=4096)
def thread_keys(prefix: bytes, key: ThreadKey) -> ThreadKeys:
    """Return the keys of a thread."""
    partition = partition_of(key)
    thread, tenant, kind = encode(key[:2]) + to_bytes(key.id), to_bytes(key.tenant), encode((key.kind,))
    keys = [key_of(prefix, partition, what, thread) for what in (b"t", b"o")]
    keys += [key_of(prefix, partition, what, tenant) for what in (b"u", b"c", b"b", b"n", b"g", b"r", b"k")]
    id = to_bytes(key.id)
    keys.append(tenants_key(prefix, partition))
    return ThreadKeys(tuple(keys), kind + id, encode((key.id,)) + to_bytes(key.kind), kind + id, tenant)


def partition_of(key: ThreadKey) -> int:
    """Return the partition of a thread."""
    return int.from_bytes(blake2b(encode(key), digest_size=8).digest(), "big") % PARTITIONS
