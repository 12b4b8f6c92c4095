"""Cut long values into pieces, so that two values can share those that they have in common.

A long element is cut at the edges of its long strings. A message without an id gets one when it enters its channel. The
write and the channel's element then differ in a few bytes, and both would be stored. Cut into pieces, they share the
long strings, and only the rest is stored twice.

A value of many small elements is cut into chunks, at bytes that are chosen by what is before them. So two values that
differ in one place have the same chunks before it, and mostly after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from threadkeep.engine.log.msgpack import KEYWORDS, METHOD, POSITIONAL, PYDANTIC_1, PYDANTIC_2, SINGLE, SNAPSHOT

LONG = 512
"""A string of this many bytes or more becomes an item of its own."""

_SHORTEST_CHUNK, _LONG_CHUNK = 4 * 1024, 32 * 1024
"""Chunks are at least this long: _SHORTEST_CHUNK in short values, _LONG_CHUNK in values of a megabyte and more."""
_CHUNK_END = b"7"
"""Chunks end before this byte. Every 256th of random data is one, and it is common in texts and numbers."""
_MOST_OBJECTS = 4096
"""An element of more objects than this is not cut: finding its strings would take longer than storing it."""

NO_ID = b"\xa2id\xc0"
"""The msgpack of a field `id` that is None. Such an element will probably be stored again, with an id."""
_NESTED_MSGPACK = frozenset((SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2, SNAPSHOT))
"""The extension codes whose payload is msgpack."""


def may_change(element: bytes) -> bool:
    """Whether an element of a write will probably be in its channel with an id added."""
    return len(element) >= LONG and NO_ID in element


def chunks(data: bytes, start: int, stop: int) -> Iterator[bytes]:
    """Cut a part of the bytes of many small elements into chunks. The longest is twice as long as the shortest."""
    shortest = min(max(1 << len(data).bit_length() >> 6, _SHORTEST_CHUNK), _LONG_CHUNK)
    while stop - start > 2 * shortest:
        end = data.find(_CHUNK_END, start + shortest, start + 2 * shortest)
        if end < 0:
            end = start + 2 * shortest
        yield data[start:end]
        start = end
    if start < stop:
        yield data[start:stop]


def cut(element: bytes) -> list[bytes]:
    """Return the pieces of an element: its long strings and what is before, between and after them.

    Returns one piece if the element has no long strings, has very many objects or is not valid msgpack.
    """
    edges = [0]
    try:
        _walk(element, 0, edges)
    except (IndexError, RecursionError):
        return [element]
    edges.append(len(element))
    return [element[start:end] for start, end in itertools.pairwise(edges) if end > start]


def _walk(data: bytes, at: int, edges: list[int]) -> int:
    """Add the edges of the long strings of the object at `at` to `edges`; return where the object ends.

    IndexError if a container has too many objects.
    """
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1
    if first < 0xA0 or first >= 0xDC:
        return _walk_container(data, at, edges)
    if first < 0xC0:
        return at + 1 + (first & 0x1F)
    if 0xC4 <= first <= 0xC6 or 0xD9 <= first <= 0xDB:
        return _walk_string(data, at, edges)
    if 0xC7 <= first <= 0xC9:
        return _walk_extension(data, at, edges)
    return at + _FIXED[first - 0xC0]


_FIXED = (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18)
"""The lengths of the objects with first bytes 0xC0 to 0xD8; 0 if the length is not fixed."""


def _walk_container(data: bytes, at: int, edges: list[int]) -> int:
    first = data[at]
    width = 0 if first < 0xA0 else 2 if first in (0xDC, 0xDE) else 4
    count = int.from_bytes(data[at + 1 : at + 1 + width]) if width else first & 0x0F
    is_map = first < 0x90 or first >= 0xDE
    at += 1 + width
    if count > _MOST_OBJECTS:
        raise IndexError(f"a container of {count} objects")
    for _ in range(count * 2 if is_map else count):
        at = _walk(data, at, edges)
    return at


def _walk_string(data: bytes, at: int, edges: list[int]) -> int:
    first = data[at]
    width = 1 << (first - 0xC4 if first < 0xD9 else first - 0xD9)
    start = at + 1 + width
    end = start + int.from_bytes(data[at + 1 : start])
    if end - start >= LONG:
        edges += (start, end)
    return end


def _walk_extension(data: bytes, at: int, edges: list[int]) -> int:
    width = 1 << (data[at] - 0xC7)
    start = at + 2 + width
    end = start + int.from_bytes(data[at + 1 : at + 1 + width])
    if end - start >= LONG and data[start - 1] in _NESTED_MSGPACK:
        _walk(data, start, edges)
    return end
