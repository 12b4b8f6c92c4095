"""Where a long element may be cut, so that its long strings can be shared.

A message without an id gets one when it enters its channel: then write and channel differ in a few bytes, and would
both be stored whole. Cut at the edges of their long strings, they share these, and only the rest is stored twice.
"""

from __future__ import annotations

import itertools

LONG = 512
"""Strings from this many bytes on are worth an item of their own."""

_NO_ID = b"\xa2id\xc0"
"""The msgpack of a field `id` that is None: such an element is expected to come again, with an id."""
_DOCUMENTS = frozenset((0, 1, 2, 3, 4, 5, 7))
"""Extension codes whose payload is msgpack again."""


def may_change(element: bytes) -> bool:
    """Whether an element of a write looks as if its channel will hold it with an id."""
    return len(element) >= LONG and _NO_ID in element


def cut(element: bytes) -> list[bytes]:
    """The element in pieces: long strings, and what stands before, between and after them. One piece if there is none."""
    edges = [0]
    try:
        _walk(element, 0, edges)
    except (IndexError, RecursionError):
        return [element]  # no msgpack that we know: it stays whole
    edges.append(len(element))
    return [element[start:end] for start, end in itertools.pairwise(edges) if end > start]


def _walk(data: bytes, at: int, edges: list[int]) -> int:
    """Pass over the object that starts there, noting the edges of long strings; returns where it ends."""
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
"""Lengths of the objects from 0xC0 to 0xD8 that have always the same; 0 where they have not."""


def _walk_container(data: bytes, at: int, edges: list[int]) -> int:
    first = data[at]
    width = 0 if first < 0xA0 else 2 if first in (0xDC, 0xDE) else 4
    count = int.from_bytes(data[at + 1 : at + 1 + width]) if width else first & 0x0F
    is_map = first < 0x90 or first >= 0xDE
    at += 1 + width
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
    if end - start >= LONG and data[start - 1] in _DOCUMENTS:
        _walk(data, start, edges)
    return end
