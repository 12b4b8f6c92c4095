"""msgpack as bytes: headers of arrays and maps, and where objects end. What splits and joins values without decoding them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

WHOLE, LIST, MAP = 0, 1, 2
"""How a value is stored: as one, as the elements of a list, or as the entries of a dict."""
SNAPSHOT = 7
"""The extension code of LangGraph's _DeltaSnapshot."""


def header(kind: int, count: int) -> bytes:
    """The msgpack header of an array or a map of so many."""
    if count < 16:
        return bytes([(0x90 if kind == LIST else 0x80) | count])
    if count < 1 << 16:
        return struct.pack(">BH", 0xDC if kind == LIST else 0xDE, count)
    return struct.pack(">BI", 0xDD if kind == LIST else 0xDF, count)


def opened(data: bytes, at: int) -> tuple[int, int, int]:
    """What begins there: LIST or MAP, how many it has and where the first is; (WHOLE, 0, at) if it is neither."""
    first = data[at]
    if 0x80 <= first < 0xA0:
        return (LIST if first >= 0x90 else MAP), first & 0x0F, at + 1
    if first not in _NESTED:
        return WHOLE, 0, at
    width, each = _NESTED[first]
    return each, int.from_bytes(data[at + 1 : at + 1 + width]), at + 1 + width


def extension(data: bytes, at: int) -> tuple[int, int] | None:
    """The code of the extension object that begins there, and where its payload does; None if it is another object."""
    first = data[at]
    if 0xD4 <= first <= 0xD8:
        return data[at + 1], at + 2
    if 0xC7 <= first <= 0xC9:
        width = _COUNTED[first][0]
        return data[at + 1 + width], at + 2 + width
    return None


def split_parts(data: bytes, count: int) -> Iterator[bytes]:
    """So many parts that stand one after the other: elements of a list, or entries of a dict (two objects each)."""
    ends = [0]
    while ends[-1] < len(data):
        ends.append(end(data, ends[-1]))
    step = (len(ends) - 1) // count
    return (data[start:end] for start, end in zip(ends[::step], ends[step::step], strict=False))


_FIXED = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5,
          0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}  # fmt: skip
"""msgpack's objects of fixed length, by first byte."""
_COUNTED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0),
            0xDA: (2, 0), 0xDB: (4, 0)}  # fmt: skip
"""Objects with a length: how many bytes that takes, and how many more than it says follow."""
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Arrays and maps: how many bytes their count takes, and how many objects each of it is."""


def end(data: bytes, at: int) -> int:
    """Where the msgpack object that starts there ends; IndexError, or an end beyond that of the data, if it is none."""
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1
    if 0xA0 <= first < 0xC0:
        return at + 1 + (first & 0x1F)
    if first in _FIXED:
        return at + _FIXED[first]
    if first in _COUNTED:
        width, more = _COUNTED[first]
        return at + 1 + width + more + int.from_bytes(data[at + 1 : at + 1 + width])
    width, each = _NESTED.get(first, (0, 1 if first >= 0x90 else 2))
    count = int.from_bytes(data[at + 1 : at + 1 + width]) if width else first & 0x0F
    at += 1 + width
    for _ in range(count * each):
        at = end(data, at)
    return at
