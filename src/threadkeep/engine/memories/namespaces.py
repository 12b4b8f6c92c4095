"""Namespaces of memories as bytes, and which of them a pattern means.

Each segment is UTF-8 with NUL written as 00 FF, and ends with 00 01. So different namespaces have different bytes, the
order of bytes is the order of tuples, and a prefix of whole segments is a prefix of bytes: no pattern is ever matched
against what a user wrote. The partition of a memory is the first segment of its namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from threadkeep.engine.identity import from_bytes, to_bytes

Space: TypeAlias = tuple[str, ...]
WILDCARD = "*"
"""In a pattern, any one segment."""
_END = b"\x00\x01"


class MemoryKey(NamedTuple):
    """Where a memory is."""

    namespace: Space
    key: str


class NamespacePattern(NamedTuple):
    """Segments that a namespace begins with, or ends with."""

    at_end: bool
    segments: Space

    def fits(self, space: Space) -> bool:
        """Whether a namespace is so."""
        if len(space) < len(self.segments):
            return False
        own = space[len(space) - len(self.segments) :] if self.at_end else space
        return all(wanted in (WILDCARD, segment) for wanted, segment in zip(self.segments, own, strict=False))


@lru_cache(maxsize=4096)
def encode(space: Space) -> bytes:
    """A namespace as bytes."""
    return b"".join([to_bytes(segment).replace(b"\x00", b"\x00\xff") + _END for segment in space])


@lru_cache(maxsize=4096)
def decode(data: bytes) -> Space:
    """The namespace that `encode` was given."""
    if not data.endswith(_END):
        raise ValueError(f"no namespace: {data!r}")
    return tuple(from_bytes(part.replace(b"\x00\xff", b"\x00")) for part in data.split(_END)[:-1])


def end_of(prefix: bytes) -> bytes:
    """What comes after all namespaces with this prefix, which is not empty."""
    return prefix[:-1] + b"\x02"


def known_prefix(patterns: Sequence[NamespacePattern]) -> Space:
    """The longest prefix without wildcards that all these patterns demand."""
    begins = [_before_wildcard(pattern.segments) for pattern in patterns if not pattern.at_end]
    return max(begins, key=len, default=())


def _before_wildcard(segments: Space) -> Space:
    return segments[: segments.index(WILDCARD)] if WILDCARD in segments else segments


def memory_number(tenant: str, place: MemoryKey) -> int:
    """64 bits of a hash. The row has the place too: were two the same, the second could not be stored."""
    return _hash(_hash_prefix(tenant, place.namespace) + _length_prefixed(to_bytes(place.key)))


@lru_cache(maxsize=4096)
def partition_number(tenant: str, first: str) -> int:
    """The number of a partition."""
    return _hash(_length_prefixed(to_bytes(tenant)) + _length_prefixed(to_bytes(first)))


@lru_cache(maxsize=4096)
def _hash_prefix(tenant: str, space: Space) -> bytes:
    return _length_prefixed(to_bytes(tenant)) + _length_prefixed(encode(space))


def _length_prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def _hash(said: bytes) -> int:
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "big", signed=True)
