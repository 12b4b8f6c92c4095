"""Namespaces and keys of memories: their encoding as bytes, their numbers, and patterns that match namespaces.

Each segment is UTF-8 with NUL written as 00 FF, and ends with 00 01. So different namespaces have different bytes,
bytes sort as tuples do, and a prefix of whole segments is a prefix of the bytes: databases need no LIKE over text that
users wrote. The partition of a memory is the first segment of its namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.identity import from_bytes, to_bytes

Namespace: TypeAlias = tuple[str, ...]
WILDCARD = "*"
"""Matches any one segment of a namespace."""
END = b"\x00\x01"
pack_length, unpack_number = Struct(">I").pack, Struct(">q").unpack
"""The length of a key and the number of a memory, as `memory_numbers` hashes and reads them."""


class MemoryKey(NamedTuple):
    """The namespace and key of a memory."""

    namespace: Namespace
    key: str


class NamespacePattern(NamedTuple):
    """Segments that a namespace must start with or, if `at_end`, end with."""

    at_end: bool
    segments: Namespace

    def matches(self, namespace: Namespace) -> bool:
        """Whether a namespace matches."""
        if len(namespace) < len(self.segments):
            return False
        compared = namespace[len(namespace) - len(self.segments) :] if self.at_end else namespace
        return all(wanted in (WILDCARD, segment) for wanted, segment in zip(self.segments, compared, strict=False))


@lru_cache(maxsize=4096)
def encode(namespace: Namespace) -> bytes:
    """Return a namespace as bytes."""
    return b"".join([encode_segment(segment) + END for segment in namespace])


@lru_cache(maxsize=4096)
def encode_segment(segment: str) -> bytes:
    """Return a segment as bytes, without its end."""
    return segment.encode("utf-8", "surrogatepass").replace(b"\x00", b"\x00\xff")


@lru_cache(maxsize=4096)
def decode(data: bytes) -> Namespace:
    """Return the namespace that `encode` was given; ValueError if these bytes are none."""
    if not data.endswith(END):
        raise ValueError(f"not an encoded namespace: {data!r}")
    return tuple(from_bytes(part.replace(b"\x00\xff", b"\x00")) for part in data.split(END)[:-1])


def prefix_end(prefix: bytes) -> bytes:
    """Return the bytes that sort right after all namespaces with this prefix, which must not be empty."""
    return prefix[:-1] + b"\x02"


def known_prefix(patterns: Sequence[NamespacePattern]) -> Namespace:
    """Return the longest prefix without wildcards that a namespace needs to match all patterns."""
    prefixes = [_before_wildcard(pattern.segments) for pattern in patterns if not pattern.at_end]
    return max(prefixes, key=len, default=())


def _before_wildcard(segments: Namespace) -> Namespace:
    return segments[: segments.index(WILDCARD)] if WILDCARD in segments else segments


class EncodedNamespace(NamedTuple):
    """What the rows of all memories of a namespace have in common, and what their numbers are hashed with."""

    tenant: bytes
    space: bytes
    partition: int
    hasher: Any
    """A blake2b object to copy, which has hashed tenant and namespace: that halves the time of a key."""


@lru_cache(maxsize=4096)
def place(tenant: str, namespace: Namespace) -> EncodedNamespace:
    """Return what is the same for all memories of a namespace."""
    return EncodedNamespace(
        to_bytes(tenant), encode(namespace), partition_number(tenant, namespace[0]), _hasher(tenant, namespace)
    )


def memory_number(tenant: str, memory_key: tuple[Namespace, str]) -> int:
    """Return the number of a memory: a 64-bit hash of its key.

    The row has the key too. If two keys had the same number, the second memory could not be stored.
    """
    namespace, key = memory_key
    name, hashed = key.encode("utf-8", "surrogatepass"), _hasher(tenant, namespace).copy()
    hashed.update(pack_length(len(name)) + name)  # as in `_length_prefixed`
    number: int = unpack_number(hashed.digest())[0]
    return number


def memory_numbers(tenant: str, memory_keys: Iterable[tuple[Namespace, str]]) -> list[int]:
    """Return the number of each memory, as `memory_number` does, in one Python call if the namespaces are known."""
    numbers: list[int] = []
    for namespace, key in memory_keys:
        name, hashed = key.encode("utf-8", "surrogatepass"), _hasher(tenant, namespace).copy()
        hashed.update(pack_length(len(name)) + name)
        numbers += unpack_number(hashed.digest())
    return numbers


@lru_cache(maxsize=4096)
def partition_number(tenant: str, first: str) -> int:
    """Return the number of a partition: a 64-bit hash of its name."""
    data = _length_prefixed(to_bytes(tenant)) + _length_prefixed(to_bytes(first))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)


@lru_cache(maxsize=4096)
def _hasher(tenant: str, namespace: Namespace) -> Any:
    return blake2b(_length_prefixed(to_bytes(tenant)) + _length_prefixed(encode(namespace)), digest_size=8)


def _length_prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
