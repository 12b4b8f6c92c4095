"""What messages were encoded to and decoded from, so that a conversation is not done again at every step.

LangGraph hands over the whole list of messages each time. Dumping a message takes 15 us, most of it in pydantic; packing
its fields as they are takes one, and for all ordinary messages that gives the same bytes. So the bytes of a message that
was stored or read under the same id are used again if its fields, packed now, are what those bytes end with. Whatever was
changed in place is noticed, and it does not matter whether it is the same object, a copy, or one sent again by a client.
Messages are looked at in blocks first: mostly a list is the one before with something added at its end. (Blocks are small
on purpose: packing all in one takes a megabyte of fresh memory each time, and that takes longer than the packing.)

A message that was read before is copied instead of decoded: its strings are shared, what can change inside is unpacked
anew. That takes a third of the time.

Only LangChain's own message classes are remembered, and only while their fields are plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import ormsgpack
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from threadkeep.engine.log.messages import filled

MESSAGES = {
    kind: [kind.__module__, kind.__name__]
    for kind in (AIMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage)
}
_PLAIN_DATA_ONLY = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_METHOD = "model_validate_json"
"""What LangGraph writes after the fields."""
_LONGEST_HEADER = 6
"""Of msgpack's extension values, in front of the packed fields."""
_BLOCK = 16
_GENERATION = 16 * 1024 * 1024
_OVERHEAD = 200

K = TypeVar("K")
V = TypeVar("V")


class _Generations(Generic[K, V]):
    """A bounded memory. When the younger of two generations is full, the older one is forgotten."""

    def __init__(self) -> None:
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._size = 0

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        return found if found is not None else self._old.get(key)

    def add(self, key: K, value: V, size: int) -> None:
        if self._size > _GENERATION:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = value
        self._size += size + _OVERHEAD


class _MessageTemplate(NamedTuple):
    """A message to make copies of: its class, its fields, and those of them that can change inside, packed."""

    kind: type[BaseMessage]
    fields: dict[str, Any]
    inside: bytes
    names: set[str]

    def copy(self) -> Any:
        fields = self.fields.copy()
        fields.update(ormsgpack.unpackb(self.inside))
        return filled(self.kind, fields, self.names.copy())


class _MessageBlock(NamedTuple):
    """Neighbours in a list of messages: their classes, their fields packed one after the other, and their bytes."""

    kinds: tuple[type, ...]
    packed: bytes
    parts: list[bytes]


class MessageCache:
    """Messages by their ids and by their bytes, and lists of them by the first one's id."""

    def __init__(self) -> None:
        self._lists: _Generations[str, list[_MessageBlock]] = _Generations()
        self._parts: _Generations[str, bytes] = _Generations()
        self._forms: _Generations[bytes, _MessageTemplate | bool] = _Generations()

    def encode(self, values: Sequence[Any], encode: Callable[[Any], bytes]) -> list[bytes]:
        """The bytes of each of some values; those that are not remembered are encoded, and then are."""
        parts: list[bytes] = []
        whole = len(values) - len(values) % _BLOCK
        if whole:
            for block in self._blocks(values[:whole], encode):
                parts += block.parts
        parts += [self._encode(value, encode) for value in values[whole:]]
        return parts

    def _blocks(self, values: Sequence[Any], encode: Callable[[Any], bytes]) -> list[_MessageBlock]:
        """Values block by block; those that stood in the same place before are not looked at one by one."""
        first = getattr(values[0], "id", None)
        known = self._lists.get(first) or [] if type(first) is str else []
        blocks: list[_MessageBlock] = []
        size = 0
        for at in range(0, len(values), _BLOCK):
            some = values[at : at + _BLOCK]
            kinds, before = tuple(map(type, some)), known[len(blocks)] if len(blocks) < len(known) else None
            packed = _packed(some) if MESSAGES.keys() >= set(kinds) else b""
            if before is None or not packed or before.packed != packed or before.kinds != kinds:
                before = _MessageBlock(kinds, packed, [self._encode(value, encode) for value in some])
                size += 2 * len(packed)
            blocks.append(before)
        if size and type(first) is str:
            self._lists.add(first, blocks, size)
        return blocks

    def _encode(self, value: Any, encode: Callable[[Any], bytes]) -> bytes:
        if type(value) not in MESSAGES:
            return encode(value)
        part = self.part(value)
        if part is None:
            part = encode(value)
            self.encoded(value, part)
        return part

    def part(self, message: Any) -> bytes | None:
        """The bytes of a message whose like was remembered."""
        fields = message.__dict__
        id = fields.get("id")
        part = self._parts.get(id) if type(id) is str else None
        if part is None or message.__pydantic_extra__:
            return None
        packed = _plain([*MESSAGES[type(message)], fields, _METHOD])
        return part if packed and part.endswith(packed) and len(part) - len(packed) <= _LONGEST_HEADER else None

    def copy(self, part: bytes) -> Any:
        """A new message like the one that was decoded from these bytes before, or None."""
        form = self._forms.get(part)
        return form.copy() if isinstance(form, _MessageTemplate) else None

    def encoded(self, message: Any, part: bytes) -> None:
        """Remember what a message was encoded to."""
        if type(message.id) is str:
            self._parts.add(message.id, part, len(part))

    def decoded(self, message: Any, part: bytes) -> None:
        """Remember what a message was decoded from; from the second time on, how to copy it."""
        self.encoded(message, part)
        if self._forms.get(part) is None:
            self._forms.add(part, False, 0)
        elif self.part(message) is part:
            fields = message.__dict__.copy()
            inside = {name: value for name, value in fields.items() if type(value) in (dict, list)}
            form = _MessageTemplate(type(message), fields, ormsgpack.packb(inside), set(fields))
            self._forms.add(part, form, 2 * len(part))


_fields = attrgetter("__dict__")
_extra = attrgetter("__pydantic_extra__")


def _packed(messages: Sequence[Any]) -> bytes:
    """The fields of some messages, packed; nothing if one of them has something odd."""
    if any(map(_extra, messages)):
        return b""
    return _plain(list(map(_fields, messages)))


def _plain(value: Any) -> bytes:
    """Plain data packed; nothing if it is not."""
    try:
        return ormsgpack.packb(value, option=_PLAIN_DATA_ONLY)
    except (ormsgpack.MsgpackEncodeError, RecursionError):
        return b""
