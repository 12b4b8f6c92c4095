"""Values to parts and back: a list becomes its elements, a large dict its entries, anything else one whole.

A msgpack array is a header and its elements' bytes one after the other, and a map likewise. So the serializer's own
bytes split and join without decoding: what is read back is byte for byte what the serializer would have stored.
That holds for LangGraph's JsonPlusSerializer; the values of any other serializer stay whole and opaque.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine.gate import KeepSerializer, gated
from threadkeep.engine.memo import MESSAGES, Memo
from threadkeep.errors import Corrupt

WHOLE, LIST, MAP = 0, 1, 2
MSGPACK = "msgpack"
_DICT_WORTH_SPLITTING = 1024


class Parts(NamedTuple):
    """An encoded value: one whole, the elements of a list, or the entries of a dict.

    `tag` is the serializer's name for the bytes; `snapshot` says that it stood in LangGraph's _DeltaSnapshot.
    """

    kind: int
    tag: str
    parts: Sequence[bytes]
    snapshot: bool = False

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))


class Codec:
    """A serializer, and how its values split."""

    def __init__(self, serde: Any, *, given: Any = None) -> None:
        self.given = given
        self._serde = gated(serde)
        self._splits = type(self._serde) is KeepSerializer
        self._memo = Memo()

    def encode(self, value: Any) -> Parts:
        """A value as parts. Raises what the serializer raises for values that it cannot take."""
        if self._splits:
            inner = value.value if type(value) is _DeltaSnapshot else value
            split = self._split(inner)
            if split is not None:
                return split if inner is value else split._replace(snapshot=True)
        tag, data = self.dumps(value)
        return Parts(WHOLE, tag, [data])

    def dumps(self, value: Any) -> tuple[str, bytes]:
        """A value as one whole."""
        tag, data = self._serde.dumps_typed(value)
        return tag, bytes(data)

    def loads(self, tag: str, data: bytes, what: str) -> Any:
        """A value that was one whole; `what` names the place in the error."""
        try:
            return self._serde.loads_typed((tag, data))
        except ormsgpack.MsgpackDecodeError as error:
            raise Corrupt(f"{what} cannot be decoded: {error}") from error

    def _split(self, value: Any) -> Parts | None:
        if type(value) in (list, tuple) and value:
            return self._split_list(value)
        if type(value) is dict and len(value) > 1:
            split = self._split_dict(value)
            if split is not None and split.size >= _DICT_WORTH_SPLITTING:
                return split
        return None

    def _split_list(self, value: Sequence[Any]) -> Parts | None:
        """The elements, each as it would stand in the list; messages that are as they were are not encoded again."""
        dumps, memo = self._serde.dumps_typed, self._memo
        parts = []
        for element in value:
            is_message = type(element) in MESSAGES
            part = memo.get(element) if is_message else None
            if part is None:
                tag, data = dumps([element])
                if tag != MSGPACK:
                    return None  # the pickle fallback: the value stays whole
                part = data[1:]
                if is_message:
                    memo.remember(element, part)
            parts.append(part)
        return Parts(LIST, MSGPACK, parts)

    def _split_dict(self, value: dict[Any, Any]) -> Parts | None:
        """The entries: each is encoded as the only one of a dict, without that dict's one-byte header."""
        encoded = [self._serde.dumps_typed({key: entry}) for key, entry in value.items()]
        if any(tag != MSGPACK for tag, _ in encoded):
            return None
        return Parts(MAP, MSGPACK, [data[1:] for _, data in encoded])

    def decode(self, kind: int, tag: str, count: int, data: bytes, *, snapshot: bool, what: str) -> Any:
        """The value of joined parts."""
        value = self.loads(tag, data if kind == WHOLE else header(kind, count) + data, what)
        return _DeltaSnapshot(value) if snapshot else value


def header(kind: int, count: int) -> bytes:
    """The msgpack header of an array or a map of so many."""
    if count < 16:
        return bytes([(0x90 if kind == LIST else 0x80) | count])
    if count < 1 << 16:
        return struct.pack(">BH", 0xDC if kind == LIST else 0xDE, count)
    return struct.pack(">BI", 0xDD if kind == LIST else 0xDF, count)


def split_parts(data: bytes, count: int) -> Iterator[bytes]:
    """So many parts that stand one after the other: elements of a list, or entries of a dict (two objects each)."""
    ends = [0]
    while ends[-1] < len(data):
        ends.append(_end(data, ends[-1]))
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


def _end(data: bytes, at: int) -> int:
    """Where the msgpack object that starts there ends."""
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
        at = _end(data, at)
    return at


_plain = KeepSerializer()


def pack(value: Any) -> bytes:
    """Our own records and metadata as msgpack, whatever serializer the user gave."""
    tag, data = _plain.dumps_typed(value)
    assert tag == MSGPACK or value is None
    return bytes(data)


def unpack(data: bytes, what: str) -> Any:
    """What `pack` was given, through the gate."""
    try:
        return _plain.loads_typed((MSGPACK, data)) if data else None
    except ormsgpack.MsgpackDecodeError as error:
        raise Corrupt(f"{what} cannot be decoded: {error}") from error
