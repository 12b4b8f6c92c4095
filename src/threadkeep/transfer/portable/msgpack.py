"""Finding where the objects of msgpack begin and end, so that they can be changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from threadkeep.engine.log.msgpack import ENTRIES

DEEPEST = 500


class Span(NamedTuple):
    """One object: its first byte, where its content starts and ends, and the code of an extension.

    The content is the elements of a list or map, the payload of an extension, the bytes of any other value.
    """

    first: int
    start: int
    end: int
    code: int | None = None
    depth: int = 0

    @property
    def is_text(self) -> bool:
        """Whether it is a string."""
        return 0xA0 <= self.first < 0xC0 or 0xD9 <= self.first <= 0xDB

    @property
    def is_binary(self) -> bool:
        """Whether it is binary."""
        return 0xC4 <= self.first <= 0xC6

    @property
    def is_number(self) -> bool:
        """Whether it is a number that takes more than one byte."""
        return 0xCA <= self.first <= 0xD3

    @property
    def is_float(self) -> bool:
        """Whether it is a float."""
        return self.first in (0xCA, 0xCB)

    @property
    def is_map(self) -> bool:
        """Whether it is a map."""
        return 0x80 <= self.first < 0x90 or self.first in (0xDE, 0xDF)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return 0x90 <= self.first < 0xA0 or self.first in (0xDC, 0xDD)


_NUMBERS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_COUNTED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_NESTED = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_DOCUMENTS = frozenset((*range(8), ENTRIES))
"""Extension codes whose payload is msgpack."""


def spans(data: bytes, start: int = 0, end: int | None = None, depth: int = 0) -> Iterator[Span]:
    """Return the objects that follow one another. ValueError if this is not msgpack."""
    stop = len(data) if end is None else end
    at = start
    while at < stop:
        span = _span(data, at, depth)
        at = span.end
        if at > stop:
            raise ValueError("msgpack is cut short")
        yield span


def children(data: bytes, span: Span) -> list[Span]:
    """Return the elements of a list, the keys and values of a map, the content of an extension."""
    if span.code is not None:
        if span.code not in _DOCUMENTS or span.end == span.start:
            return []
        (inner,) = list(spans(data, span.start, span.end, span.depth + 1))
        return children(data, inner) if inner.is_list and span.code != _SNAPSHOT else [inner]
    if not (span.is_list or span.is_map):
        return []
    return list(spans(data, span.start, span.end, span.depth + 1))


_SNAPSHOT = 7


def _span(data: bytes, at: int, depth: int) -> Span:
    if depth > DEEPEST:
        raise ValueError(f"msgpack is nested deeper than {DEEPEST}")
    first = data[at]
    if first < 0x80 or first >= 0xE0 or 0xC0 <= first <= 0xC3:
        return Span(first, at + 1, at + 1, depth=depth)
    if 0xA0 <= first < 0xC0:
        return Span(first, at + 1, at + 1 + (first & 0x1F), depth=depth)
    if first in _NUMBERS:
        return Span(first, at + 1, at + 1 + _NUMBERS[first], depth=depth)
    if first in _COUNTED:
        start, length = _length(data, at, _COUNTED[first])
        return Span(first, start, start + length, depth=depth)
    if first in _EXTENSIONS:
        start, length = _length(data, at, _EXTENSIONS[first])
        return Span(first, start + 1, start + 1 + length, code=data[start], depth=depth)
    if first in _FIXED_EXTENSIONS:
        return Span(first, at + 2, at + 2 + _FIXED_EXTENSIONS[first], code=data[at + 1], depth=depth)
    return _nested(data, at, depth)


def _nested(data: bytes, at: int, depth: int) -> Span:
    first = data[at]
    start, count = _length(data, at, _NESTED[first]) if first in _NESTED else (at + 1, first & 0x0F)
    each = 2 if first < 0x90 or first >= 0xDE else 1
    end = start
    for _ in range(count * each):
        end = _span(data, end, depth + 1).end
    return Span(first, start, end, depth=depth)


def _length(data: bytes, at: int, width: int) -> tuple[int, int]:
    return at + 1 + width, int.from_bytes(data[at + 1 : at + 1 + width])
