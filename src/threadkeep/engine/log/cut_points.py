"""Cut a long element at the edges of its long strings, so that two elements can share these strings.

A message without an id gets one when it enters its channel. The write and the channel's element then differ in a few
bytes, and both would be stored. Cut into pieces, they share the long strings, and only the rest is stored twice.
"""

from __future__ import annotations

import itertools

from threadkeep.engine.log.msgpack import KEYWORDS, METHOD, POSITIONAL, PYDANTIC_1, PYDANTIC_2, SINGLE, SNAPSHOT

LONG = 512
"""A string of this many bytes or more becomes an item of its own."""

_NO_ID = b"\xa2id\xc0"
"""The msgpack of a field `id` that is None. Such an element will probably be stored again, with an id."""
_NESTED_MSGPACK = frozenset((SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2, SNAPSHOT))
"""The extension codes whose payload is msgpack."""


def may_change(element: bytes) -> bool:
    """Whether an element of a write will probably be in its channel with an id added."""
    return len(element) >= LONG and _NO_ID in element


def cut(element: bytes) -> list[bytes]:
    """Return the pieces of an element: its long strings and what is before, between and after them.

    Returns one piece if the element has no long strings or is not valid msgpack.
    """
    edges = [0]
    try:
        _walk(element, 0, edges)
    except (IndexError, RecursionError):
        return [element]
    edges.append(len(element))
    return [element[start:end] for start, end in itertools.pairwise(edges) if end > start]


def _walk(data: bytes, at: int, edges: list[int]) -> int:
    """Add the edges of the long strings of the object at `at` to `edges`; return where the object ends."""
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
