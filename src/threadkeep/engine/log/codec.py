"""Values to parts and back: a list becomes its elements, a large dict its entries, anything else one whole.

A msgpack array is a header and its elements' bytes one after the other, and a map likewise. So the serializer's own
bytes split and join without decoding: what is read back is byte for byte what the serializer would have stored.
That holds for LangGraph's JsonPlusSerializer; the values of any other serializer stay whole and opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine.log.message_cache import MESSAGES, MessageCache
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, header
from threadkeep.engine.log.type_gate import KeepSerializer, gated
from threadkeep.errors import Corrupt

MSGPACK = "msgpack"
DICT_WORTH_SPLITTING = 1024


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

    @property
    def data(self) -> bytes:
        """The value as one whole."""
        joined = b"".join(self.parts)
        return joined if self.kind == WHOLE else header(self.kind, len(self.parts)) + joined


class _NotMsgpackError(Exception):
    """The pickle fallback was needed: the value stays whole."""


class Codec:
    """A serializer, and how its values split."""

    def __init__(self, serde: Any, *, given: Any = None) -> None:
        self.given = given
        self._serde = gated(serde)
        self._splits = type(self._serde) is KeepSerializer
        self._memo = MessageCache()

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
            if split is not None and split.size >= DICT_WORTH_SPLITTING:
                return split
        return None

    def _split_list(self, value: Sequence[Any]) -> Parts | None:
        """The elements, each as it would stand in the list; messages that are as they were are not encoded again."""
        try:
            return Parts(LIST, MSGPACK, self._memo.encode(value, self._element))
        except _NotMsgpackError:
            return None

    def _element(self, value: Any) -> bytes:
        tag, data = self._serde.dumps_typed([value])
        if tag != MSGPACK:
            raise _NotMsgpackError
        return bytes(data[1:])

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

    def decode_list(self, parts: Sequence[bytes], what: str) -> list[Any] | None:
        """A list of messages, each one's bytes at hand: those that were read before are copied. None for other lists."""
        if not self._splits or parts[0][:1] not in _EXTENSIONS:
            return None
        memo, found = self._memo, []
        for part in parts:
            element: Any = memo.copy(part)
            if element is None:
                element = self.loads(MSGPACK, part, what)
                if type(element) in MESSAGES:
                    memo.decoded(element, part)
            found.append(element)
        return found


_EXTENSIONS = frozenset((b"\xc7", b"\xc8", b"\xc9"))
"""How objects begin in msgpack."""


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
