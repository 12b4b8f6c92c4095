"""Encode values to parts and decode them: a list becomes its elements, a large dict its entries, others one part.

A list or dict of many small elements is one part too: encoding and comparing each of them would take far longer than
encoding all at once. Lists of messages are always split.

A msgpack array is a header followed by the bytes of its elements; a map likewise. So the bytes of LangGraph's
JsonPlusSerializer can be split and joined without decoding: what is read back is byte for byte what the serializer
would have stored. Values of any other serializer are stored as one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine.log.encoder import OPTIONS, encode_message, encode_metadata
from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.log.message_cache import GENERATION, MESSAGES, MessageCache
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE, header, read_header
from threadkeep.engine.log.type_gate import KeepSerializer, Name, with_type_gate
from threadkeep.errors import Corrupt, UpcastFailed

if TYPE_CHECKING:
    from threadkeep.engine.log.upcasters import Upcaster

MSGPACK = "msgpack"
DICT_WORTH_SPLITTING = 1024
_MANY, _VERY_MANY = 16, 1024
"""From _MANY elements on, small ones are joined in one part; from _VERY_MANY on, all are."""
SMALL = 256
"""An element of fewer bytes is small."""
_SAMPLE = 8


class Parts(NamedTuple):
    """An encoded value: one part, or the elements of a list, or the entries of a dict.

    `kind` is WHOLE, LIST or MAP. `tag` is the serializer's name for the encoding. `snapshot` is true if the value was
    wrapped in LangGraph's _DeltaSnapshot. `joined` is the number of elements or entries if they are all in one part,
    with the msgpack header before them, else 0.
    """

    kind: int
    tag: str
    parts: Sequence[bytes]
    snapshot: bool = False
    joined: int = 0

    @property
    def elements(self) -> int:
        """The number of elements of a list, or entries of a dict; 1 if it is whole."""
        return self.joined or len(self.parts)

    @property
    def size(self) -> int:
        """The number of bytes of all parts."""
        return sum(map(len, self.parts))

    @property
    def data(self) -> bytes:
        """The value as the serializer would have written it."""
        if self.kind == WHOLE or self.joined:
            return self.parts[0]
        return header(self.kind, self.elements) + b"".join(self.parts)


class _NotMsgpackError(Exception):
    """The serializer fell back to pickle, so the value cannot be split."""


class Codec:
    """Encodes values with a serializer and splits them. `given` is the serializer as the user passed it.

    `cache_bytes` limits how much of messages is cached; 0 caches nothing. A codec shares its cache with no other one,
    whose upcasters may differ.
    """

    def __init__(
        self,
        serde: Any,
        *,
        given: Any = None,
        cache_bytes: int = 8 * GENERATION,
        upcasters: Mapping[Name, Upcaster] | None = None,
    ) -> None:
        self.given = given
        self._serde = with_type_gate(serde, upcasters)
        self._splits = type(self._serde) is KeepSerializer
        self.unpack: Callable[[bytes], Any] | None = self._serde.unpack if self._splits else None
        """Decodes a value that is tagged MSGPACK; None if the serializer is not LangGraph's."""
        self._messages = MessageCache(min(cache_bytes // 8, GENERATION))

    def encode_all(self, values: Iterable[Any]) -> list[Parts]:
        """Encode some values, each as `encode` does. Makes no call for None, texts and numbers."""
        encoded = []
        for value in values:
            if self._splits and value is None:
                encoded.append(_NULL)
                continue
            if self._splits and type(value) in _SCALARS:
                try:
                    data = ormsgpack.packb(value, option=OPTIONS)
                except ormsgpack.MsgpackEncodeError:  # a lone surrogate, or an integer of more than 64 bits
                    pass
                else:
                    encoded.append(new_tuple(Parts, (WHOLE, MSGPACK, (data,), False, 0)))
                    continue
            encoded.append(self.encode(value))
        return encoded

    def encode(self, value: Any) -> Parts:
        """Return a value as parts. Raises what the serializer raises for values that it cannot encode."""
        if self._splits:
            if type(value) is _DeltaSnapshot:
                split = self._split(value.value)
                split = split._replace(snapshot=True) if split is not None else None
            else:
                split = self._split_list(value) if type(value) is list and value else self._split(value)
            if split is not None:
                return split
        tag, data = self.dumps(value)
        return Parts(WHOLE, tag, [data])

    def dumps(self, value: Any) -> tuple[str, bytes]:
        """Return a value as (tag, bytes), not split."""
        if self._splits and type(value) is dict:
            try:
                return MSGPACK, ormsgpack.packb(value, option=OPTIONS)
            except ormsgpack.MsgpackEncodeError:  # there are objects in it
                pass
        tag, data = self._serde.dumps_typed(value)
        return tag, bytes(data)

    def loads(self, tag: str, data: bytes, what: str) -> Any:
        """Decode what `dumps` returned. `what` names the value if it is Corrupt, or cannot be upcast.

        The errors of a serializer that is not LangGraph's are not known, and passed on.
        """
        try:
            return self._serde.loads_typed((tag, data))
        except ImportError as error:
            if not self._splits:
                raise
            raise ImportError(f"{what} cannot be read: {error}") from error.__cause__
        except UpcastFailed as error:
            raise UpcastFailed(f"{what} cannot be read: {error}") from error.__cause__
        except ormsgpack.MsgpackDecodeError as error:
            raise Corrupt(f"{what} cannot be decoded: {error}") from error
        except (ValueError, RecursionError) as error:
            if not self._splits:
                raise
            raise Corrupt(f"{what} cannot be decoded: {why_not_decoded(error)}") from error

    def _split(self, value: Any) -> Parts | None:
        """Split a list or dict. Other threads may change it meanwhile: it is encoded at once, or a copy of it is."""
        if type(value) in (list, tuple) and value:
            return self._split_list(value)
        if type(value) is dict and len(value) > 1:
            return self._split_dict(value)
        return None

    def _split_list(self, value: Sequence[Any]) -> Parts | None:
        """Encode the elements of a list. Messages that did not change are not encoded again."""
        try:
            if len(value) >= _MANY:
                sample = value[:: len(value) // _SAMPLE]
                has_messages = bool(sample) and (
                    isinstance(sample[0], BaseMessage) or isinstance(sample[-1], BaseMessage)
                )
                size = 0 if has_messages else len(self._encode_element(sample)) / max(len(sample), 1)
                if not has_messages and is_joined(len(value), size):
                    return self._join(value)
            parts = self._messages.encode(list(value), self._encode_element)
            return new_tuple(Parts, (LIST, MSGPACK, parts, False, 0))
        except _NotMsgpackError:
            return None

    def _encode_element(self, value: Any) -> bytes:
        if type(value) in MESSAGES and not self._serde.pickle_fallback:
            return encode_message(value)
        tag, data = self._serde.dumps_typed([value])
        if tag != MSGPACK:
            raise _NotMsgpackError
        return bytes(data[1:])

    def _split_dict(self, value: dict[Any, Any]) -> Parts | None:
        """Encode each entry as a dict of its own, and drop that dict's header of one byte."""
        if len(value) >= _MANY:
            try:
                sample = _sample_entries(value)
            except RuntimeError:  # another thread changed it meanwhile
                sample = _sample_entries(value.copy())
            tag, data = self._serde.dumps_typed(sample)
            if tag == MSGPACK and is_joined(len(value), len(data) / max(len(sample), 1)):
                return self._join(value)
        encoded = [self._serde.dumps_typed({key: entry}) for key, entry in value.copy().items()]
        if any(tag != MSGPACK or data[0] != _ONE_ENTRY for tag, data in encoded):
            return None
        split = Parts(MAP, MSGPACK, [data[1:] for _, data in encoded])
        return split if split.size >= DICT_WORTH_SPLITTING else None

    def _join(self, value: Sequence[Any] | dict[Any, Any]) -> Parts | None:
        """Encode all elements or entries as one part."""
        tag, data = self._serde.dumps_typed(value)
        if tag != MSGPACK or len(data) <= 1:  # another thread may have emptied it
            return None
        return joined_parts(data)

    def decode(self, kind: int, tag: str, count: int, data: bytes, *, snapshot: bool, what: str) -> Any:
        """Decode a value from its joined parts. `count` is their number."""
        value = self.loads(tag, data if kind == WHOLE else header(kind, count) + data, what)
        return _DeltaSnapshot(value) if snapshot else value

    def decode_list(self, parts: Sequence[bytes], what: str) -> list[Any] | None:
        """Decode a list of messages; those that were decoded before are copied. None if it is another list."""
        if self.unpack is None or parts[0][:1] not in EXTENSIONS:
            return None
        try:
            return self._messages.decode(parts, self.unpack)
        except Exception:  # noqa: BLE001 - decoding them one by one says what is wrong
            return [self.loads(MSGPACK, part, what) for part in parts]


_SCALARS = frozenset((str, int, bool, float))
_NULL = Parts(WHOLE, "null", (b"",))

EXTENSIONS = frozenset((b"\xc7", b"\xc8", b"\xc9"))
"""The first bytes of msgpack's extension objects, which messages are."""
_ONE_ENTRY = 0x81
"""The first byte of a dict of one entry."""


def joined_parts(data: bytes) -> Parts:
    """Return an encoded list or dict with all elements or entries in one part; whole if it is neither, or small."""
    kind, count, first = read_header(data, 0)
    if kind == WHOLE or (kind == MAP and len(data) - first < DICT_WORTH_SPLITTING):
        return Parts(WHOLE, MSGPACK, [data])
    return Parts(kind, MSGPACK, [data], joined=count)


def is_joined(count: int, size: float) -> bool:
    """Whether this many elements (which are not messages) of this average size are stored as one part."""
    return count >= _VERY_MANY or (count >= _MANY and size < SMALL)


unpack_plain = KeepSerializer().unpack
"""Decodes what `pack` returned, through the type gate. ValueError if it is damaged, or empty."""


def pack(value: Any) -> bytes:
    """Encode metadata and records of threadkeep's own as msgpack, whatever serializer the user chose."""
    if value is None:
        return b""
    try:
        return ormsgpack.packb(value, option=OPTIONS)
    except ormsgpack.MsgpackEncodeError:  # there are objects, lone surrogates or very large integers in it
        return encode_metadata(value)


def unpack(data: bytes, what: str) -> Any:
    """Decode what `pack` returned, through the type gate. `what` names it if it is Corrupt."""
    try:
        return unpack_plain(data) if data else None
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{what} cannot be decoded: {why_not_decoded(error)}") from error


def why_not_decoded(error: Exception) -> str:
    """Return what is wrong with a value that cannot be decoded, for people."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "an object in it is damaged or nested too deeply" if "ext_hook" in str(error) else str(error)


def _sample_entries(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return some of the first and the last entries. RuntimeError if the dict is changed meanwhile."""
    return dict([*islice(value.items(), _SAMPLE), *islice(reversed(value.items()), _SAMPLE)])
