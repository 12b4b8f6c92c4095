"""A cache of encoded messages, so that a conversation is not encoded and decoded again at every step.

LangGraph passes the complete list of messages at every step. Dumping a message takes 15 us, most of it in pydantic.
Packing its fields directly takes 1 us and gives the same bytes for all ordinary messages. So if a message of the same
id was encoded or decoded before, and its bytes end with the fields as packed now, these bytes are used again. Changes
in place are detected, and it does not matter whether it is the same object, a copy, or one that a client sent again.

Lists are compared in blocks first, because most lists are the one before with something added at the end. Blocks are
small: packing a whole list takes a megabyte of new memory each time, which costs more than the packing.

A message that was decoded before is copied instead: its strings are shared, and only fields that can be changed in
place are unpacked again. That takes a third of the time.

Only LangChain's own message classes are cached, and only if their fields are plain data.
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

from threadkeep.engine.log.messages import set_extra, set_fields, set_names, set_private
from threadkeep.engine.log.msgpack import LIST, header

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
"""LangGraph writes this name after the fields."""
_LONGEST_HEADER = 6
"""The most bytes of the msgpack extension header before the packed fields."""
_BLOCK = 16
"""Messages per block."""
GENERATION = 16 * 1024 * 1024
"""Bytes of a generation of a cache, at most."""
_REMEMBERED_AT_ONCE = 256
"""So many decoded messages are added to a generation before its size is compared."""
_OVERHEAD = 200
"""Bytes of memory that an entry takes besides its data, roughly."""

K = TypeVar("K")
V = TypeVar("V")


class _Generations(Generic[K, V]):
    """A bounded cache of two generations. When the younger one is full, the older one is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.young: dict[K, V] = {}
        self.old: dict[K, V] = {}
        self._size = 0

    def get(self, key: K) -> V | None:
        found = self.young.get(key)
        return found if found is not None else self.old.get(key)

    def add(self, key: K, value: V, size: int) -> None:
        if self._size > self._limit:
            self.old, self.young, self._size = self.young, {}, 0
        self.young[key] = value
        self._size += size + _OVERHEAD

    def update(self, values: dict[K, V], size: int) -> None:
        """Add several values, which take `size` bytes together."""
        if self._size > self._limit:
            self.old, self.young, self._size = self.young, {}, 0
        self.young.update(values)
        self._size += size + _OVERHEAD * len(values)


class _MessageTemplate(NamedTuple):
    """A message to copy: its class, its fields, and the dicts and lists in these, which must be copied too.

    `containers` has (holder, key) of each dict and list: it is the value of this key in number `holder` of them,
    counted from 1, or in the fields, which are number 0. A holder comes before what it holds.
    """

    kind: type[BaseMessage]
    fields: dict[str, Any]
    containers: tuple[tuple[int, Any], ...]
    names: set[str]

    @classmethod
    def of(cls, message: BaseMessage) -> _MessageTemplate:
        """Return the template of a message whose fields are plain data. It shares nothing that can be changed."""
        fields = message.__dict__.copy()
        found: list[tuple[int, Any]] = []
        copies: list[Any] = [fields]
        for holder, container in enumerate(copies):  # it grows meanwhile
            for key, value in container.items() if type(container) is dict else enumerate(container):
                if type(value) is dict or type(value) is list:
                    copied = container[key] = value.copy()
                    found.append((holder, key))
                    copies.append(copied)
        return cls(type(message), fields, tuple(found), set(fields))


class _MessageBlock(NamedTuple):
    """Consecutive messages of a list: their classes, their packed fields, and the bytes of each message."""

    kinds: tuple[type, ...]
    packed: bytes
    parts: list[bytes]


class MessageCache:
    """Caches messages by id and by bytes, and lists of messages by the id of the first.

    `generation` is the size of a generation of each of these caches; 0 caches nothing.
    """

    def __init__(self, generation: int = GENERATION) -> None:
        self._is_on = generation > 0
        self._lists: _Generations[str, list[_MessageBlock]] = _Generations(generation)
        self._parts: _Generations[str, bytes] = _Generations(generation)
        self._templates: _Generations[bytes, _MessageTemplate | bool] = _Generations(generation)

    def encode(self, values: Sequence[Any], encode: Callable[[Any], bytes]) -> list[bytes]:
        """Return the bytes of each value. Values that are not cached are encoded with `encode`."""
        if not self._is_on:
            return [encode(value) for value in values]
        parts: list[bytes] = []
        in_blocks = len(values) - len(values) % _BLOCK
        if in_blocks:
            for block in self._blocks(values[:in_blocks], encode):
                parts += block.parts
        parts += [self._encode(value, encode) for value in values[in_blocks:]]
        return parts

    def _blocks(self, values: Sequence[Any], encode: Callable[[Any], bytes]) -> list[_MessageBlock]:
        """Encode values block by block. A block that was at the same position before is found at once."""
        first = getattr(values[0], "id", None)
        known = self._lists.get(first) or [] if type(first) is str else []
        blocks: list[_MessageBlock] = []
        size = 0
        for at in range(0, len(values), _BLOCK):
            some = values[at : at + _BLOCK]
            kinds, before = tuple(map(type, some)), known[len(blocks)] if len(blocks) < len(known) else None
            packed = _pack_messages(some) if MESSAGES.keys() >= set(kinds) else b""
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
        """Return the cached bytes of a message; None if there are none, or the message has changed."""
        fields = message.__dict__
        id = fields.get("id")
        part = self._parts.get(id) if type(id) is str else None
        if part is None or message.__pydantic_extra__:
            return None
        packed = _pack_plain([*MESSAGES[type(message)], fields, _METHOD])
        return part if packed and part.endswith(packed) and len(part) - len(packed) <= _LONGEST_HEADER else None

    def decode(self, parts: Sequence[bytes], unpack: Callable[[bytes], Any]) -> list[Any]:
        """Return the messages in these parts. Those that were decoded before are copied, in no call.

        The others are decoded together, as one list. ValueError if a part is not exactly one object.
        """
        young, old = self._templates.young, self._templates.old
        messages: list[Any] = []
        new: list[int] = []
        for part in parts:
            template = young.get(part) or old.get(part)
            if not isinstance(template, tuple):  # None, or False if it was decoded once
                new.append(len(messages))
                messages.append(None)
                continue
            kind, fields, containers, names = template
            fields = fields.copy()
            copies: list[Any] = [fields]
            for holder, key in containers:
                container = copies[holder]
                copied = container[key] = container[key].copy()
                copies.append(copied)
            message: Any = kind.__new__(kind)
            set_fields(message, fields)
            set_names(message, names.copy())
            set_extra(message, {})
            set_private(message, None)
            messages.append(message)
        if new:
            encoded = [parts[at] for at in new]
            found = unpack(header(LIST, len(new)) + b"".join(encoded))
            if len(found) != len(new):
                raise ValueError("a part is not one object")
            for at, message in zip(new, found, strict=True):
                messages[at] = message
            for start in range(0, len(new), _REMEMBERED_AT_ONCE):
                stop = start + _REMEMBERED_AT_ONCE
                self._remember(found[start:stop], encoded[start:stop])
        return messages

    def _remember(self, messages: Sequence[Any], parts: Sequence[bytes]) -> None:
        """Cache the bytes that messages were decoded from; when that happens again, also how to copy them."""
        if not self._is_on:
            return
        known = [(message, part) for message, part in zip(messages, parts, strict=True) if type(message) in MESSAGES]
        by_id = {message.id: part for message, part in known if type(message.id) is str}
        self._parts.update(by_id, sum(map(len, by_id.values())))
        new: dict[bytes, _MessageTemplate | bool] = {}
        size = 0
        for message, part in known:
            if self._templates.get(part) is None:
                new[part] = False
            elif self.part(message) is part:
                new[part] = _MessageTemplate.of(message)
                size += 2 * len(part)
        self._templates.update(new, size)

    def encoded(self, message: Any, part: bytes) -> None:
        """Cache the bytes that a message was encoded to."""
        if type(message.id) is str:
            self._parts.add(message.id, part, len(part))


_fields = attrgetter("__dict__")
_extra = attrgetter("__pydantic_extra__")


def _pack_messages(messages: Sequence[Any]) -> bytes:
    """Return the packed fields of messages; empty if one has extra fields or values that are not plain data."""
    if any(map(_extra, messages)):
        return b""
    return _pack_plain(list(map(_fields, messages)))


def _pack_plain(value: Any) -> bytes:
    """Return packed data; empty if it is not plain data."""
    try:
        return ormsgpack.packb(value, option=_PLAIN_DATA_ONLY)
    except (ormsgpack.MsgpackEncodeError, RecursionError):
        return b""
