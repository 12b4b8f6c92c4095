"""Read and write msgpack headers, and find where objects end: enough to split and join values without decoding them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

WHOLE, LIST, MAP = 0, 1, 2
"""How a value is stored: in one part, as the elements of a list, or as the entries of a dict."""
SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2, NUMPY, SNAPSHOT = range(8)
"""LangGraph's msgpack extension codes: an object as the class and its only argument, its positional arguments, its
keyword arguments, or a method call; pydantic models; numpy arrays; _DeltaSnapshot."""
TEXT, ENTRIES, INTEGER, LARGE = range(100, 104)
"""threadkeep's own extension codes: text with lone surrogates, a dict with such keys, an integer of any size, and what
stands for a large value of metadata."""
OPAQUE, JSON = -1, -2
"""In place of an extension code: of a value that only its own serializer can read, such as a pickle; of an object that
an old saver stored as JSON."""


def header(kind: int, count: int) -> bytes:
    """Return the msgpack header of an array (LIST) or map (MAP) of this many elements or entries."""
    if count < 16:
        return bytes([(0x90 if kind == LIST else 0x80) | count])
    if count < 1 << 16:
        return struct.pack(">BH", 0xDC if kind == LIST else 0xDE, count)
    return struct.pack(">BI", 0xDD if kind == LIST else 0xDF, count)


def read_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Read the header of the array or map at `at`: (LIST or MAP, count, start of the first element or entry).

    (WHOLE, 0, at) if the object there is neither.
    """
    first = data[at]
    if 0x80 <= first < 0xA0:
        return (LIST if first >= 0x90 else MAP), first & 0x0F, at + 1
    if first not in _NESTED:
        return WHOLE, 0, at
    width, each = _NESTED[first]
    return each, int.from_bytes(data[at + 1 : at + 1 + width]), at + 1 + width


def read_extension(data: bytes, at: int) -> tuple[int, int] | None:
    """Return (code, start of the payload) of the extension object at `at`; None if the object is none."""
    first = data[at]
    if 0xD4 <= first <= 0xD8:
        return data[at + 1], at + 2
    if 0xC7 <= first <= 0xC9:
        width = _COUNTED[first][0]
        return data[at + 1 + width], at + 2 + width
    return None


def split_parts(data: bytes, count: int) -> Iterator[bytes]:
    """Split joined parts into this many: elements of a list, or entries of a dict, which are two objects each."""
    ends = [0]
    while ends[-1] < len(data):
        ends.append(object_end(data, ends[-1]))
    step = (len(ends) - 1) // count
    return (data[start:stop] for start, stop in zip(ends[::step], ends[step::step], strict=False))


_FIXED = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5,
          0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}  # fmt: skip
"""The lengths of objects of fixed length, by first byte."""
_COUNTED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0),
            0xDA: (2, 0), 0xDB: (4, 0)}  # fmt: skip
"""Objects that state their length, by first byte: (bytes of the length field, bytes that it does not count)."""
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Large arrays and maps, by first byte: (bytes of the count field, objects per counted entry)."""


def object_end(data: bytes, at: int) -> int:
    """Return where the object at `at` ends. If it is cut off: IndexError, or a number beyond the end of the data."""
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
        at = object_end(data, at)
    return at


class ExtensionHook(Protocol):
    """Decodes an extension object. `depth` is how deeply it is nested: arrays, maps and objects around it, 0 if few."""

    def __call__(self, code: int, data: bytes, *, depth: int) -> Any:
        """Return the value of the object with this extension code and payload."""


INSIDE_AN_OBJECT = 2048
"""The depth of an object inside another: ormsgpack decodes 1024 arrays and maps around each of the two at most."""
_DEEPEST = 11_000
"""How deeply a value may be nested. Each level takes 550 bytes of the stack, which has 8 MB, and a crash cannot be
caught. What ormsgpack encodes is not as deep: it refuses 255 levels of arrays in one object."""
_FRAMES = 3
"""What the decoder of an object takes of the stack, in levels."""
_OPENING = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])


def hook_inside(data: bytes, hook: ExtensionHook, depth: int) -> Callable[[int, bytes], Any]:
    """Return the hook to decode the payload of an object that is nested this deeply. ValueError if it is too deep.

    ormsgpack limits the nesting of one payload only, and objects inside objects are payloads inside payloads.
    """
    own = len(data) - len(data.translate(None, _OPENING))  # as many arrays and maps at most; text may have such bytes
    depth += _FRAMES + (own if own < 16 else nesting(data))
    if depth > _DEEPEST:
        raise ValueError("the value is nested too deeply")
    return partial(hook, depth=depth)


def nesting(data: bytes) -> int:
    """Return how deeply arrays and maps are nested in msgpack, without those in extension objects. Does not recurse.

    What is cut off counts as far as it is there.
    """
    at, deepest, left = 0, 0, [1]
    while left:
        if not left[-1] or at >= len(data):
            left.pop()
            continue
        left[-1] -= 1
        kind, count, first = read_header(data, at)
        if kind == WHOLE:
            at = object_end(data, at)
        else:
            at = first
            left.append(count * kind)  # LIST is 1 object for each element, MAP is 2
            deepest = max(deepest, len(left) - 1)
    return deepest
