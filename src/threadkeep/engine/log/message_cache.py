"""A cache of encoded messages, so that a conversation is not encoded and decoded again at every step.

LangGraph passes the complete list of messages at every step. Dumping a message takes 15 us, most of it in pydantic.
Packing its fields directly takes 1 us and gives the same bytes for all ordinary messages. So if a message of the same
id was encoded or decoded before, and its bytes end with the fields as packed now, these bytes are used again. Changes
in place are detected, and it does not matter whether it is the same object, a copy, or one that a client sent again.

Lists are compared in blocks first, because most lists are the one before with something added at the end. A block that
did not change is found without packing its texts: strings and numbers are compared as they are, and only what can be
changed in place (dicts and lists) is packed and compared.

A message that was decoded before is copied instead: its strings are shared, and only fields that can be changed in
place are copied too. That takes a third of the time, and less for blocks of messages (see `message_copies`).

Only LangChain's own message classes are cached, and only if their fields are plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress
from operator import attrgetter, is_, not_
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

from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.log.message_copies import BLOCK, MessageTemplate, TemplateBlock, block_of, copy_block
from threadkeep.engine.log.messages import setters
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
_set_fields, _set_names, _set_extra, _set_private = setters(BaseMessage)
_METHOD = "model_validate_json"
"""LangGraph writes this name after the fields."""
_LONGEST_HEADER = 6
"""The most bytes of the msgpack extension header before the packed fields."""
_BLOCK = 32
"""Messages per block."""
_BLOCK_SIZE = BLOCK * 300
"""Bytes of memory that a block of templates takes besides these, roughly."""
_WORTH_CACHING = 4
"""Shorter lists, such as those of writes, are not cached as lists, only their messages."""
GENERATION = 16 * 1024 * 1024
"""Bytes of a generation of a cache, at most."""
_REMEMBERED_AT_ONCE = 256
"""So many decoded messages are added to a generation before its size is compared."""
_JOINED_AT_ONCE = 32
"""So many parts are unpacked together. To join all of a list takes new memory for a copy of it: a tenth of the time."""
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

    def has(self, key: Any) -> bool:
        return key in self.young or key in self.old

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


class _MessageBlock(NamedTuple):
    """Consecutive messages of a list: what they were when they were last encoded or compared, and the bytes of each.

    `kinds` are their classes; `names`, `types` and `values` those of all their fields. `is_fixed` says which values
    cannot be changed in place. `containers` are the others, and `packed` is what was in them.
    """

    messages: list[Any]
    kinds: list[type]
    names: list[str]
    types: list[type]
    values: list[Any]
    is_fixed: list[bool]
    containers: list[Any]
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
        self._templates: _Generations[bytes, MessageTemplate | bool] = _Generations(generation)
        self._blocks: _Generations[bytes, TemplateBlock | list[bytes]] = _Generations(generation)

    def encode(self, values: Sequence[Any], encode: Callable[[Any], bytes]) -> list[bytes]:
        """Return the bytes of each value. Values that are not cached are encoded with `encode`.

        Makes one call per block that is as before, and about three per message after these.
        """
        if not self._is_on:
            return list(map(encode, values))
        first = values[0].id if len(values) >= _WORTH_CACHING and type(values[0]) in MESSAGES else None
        if type(first) is not str:
            parts = []
            for value in values:
                parts.append(self._encode(value, encode))
            return parts
        known, parts = self._lists.get(first) or [], []
        count, length = 0, 0
        for block in known:
            matching = _match(block, values[length : length + len(block.parts)])
            if matching is None:
                break
            known[count] = matching
            parts += block.parts
            count, length = count + 1, len(parts)
        if length == len(values):
            return parts
        for value in values[length:]:
            parts.append(self._encode(value, encode))
        self._cache_list(first, known[:count], values, parts)
        return parts

    def _cache_list(self, first: str, blocks: list[_MessageBlock], values: Sequence[Any], parts: list[bytes]) -> None:
        """Cache a list that starts with the messages of these blocks. A last block that is not full is made anew."""
        if blocks and len(blocks[-1].parts) < _BLOCK:
            blocks.pop()
        size = 0
        for at in range(len(blocks) * _BLOCK, len(values), _BLOCK):
            block = _block(values[at : at + _BLOCK], parts[at : at + _BLOCK])
            if block is None:
                break
            blocks.append(block)
            size += sum(map(len, block.parts))
        if blocks:
            self._lists.add(first, blocks, size)

    def _encode(self, value: Any, encode: Callable[[Any], bytes]) -> bytes:
        if type(value) not in MESSAGES:
            return encode(value)
        id = value.id
        part = self.part(value) if self._parts.has(id) else None
        if part is None:
            part = encode(value)
            if type(id) is str:
                self._parts.add(id, part, len(part))
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

    def decode(self, parts: Sequence[bytes], unpack: Callable[[bytes], Any]) -> list[Any]:  # noqa: C901 - straight loops
        """Return the messages in these parts. Those that were decoded before are copied, in no call or one per block.

        The others are decoded together, some at a time. ValueError if a part is not exactly one object.
        """
        young, old = self._templates.young, self._templates.old
        messages: list[Any] = []
        new: list[int] = []
        for start in range(0, len(parts), BLOCK):
            some = parts[start : start + BLOCK]
            block = self._blocks.get(some[0]) if len(some) == BLOCK else None
            if type(block) is TemplateBlock and block.parts == some:
                messages += copy_block(block)
                continue
            missing = len(new)
            for part in some:
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
                _set_fields(message, fields)
                _set_names(message, names.copy())
                _set_extra(message, {})
                _set_private(message, None)
                messages.append(message)
            if len(some) == BLOCK and len(new) == missing:
                self._remember_block(list(some), is_repeated=block == some)
        if new:
            encoded = [parts[at] for at in new]
            found: list[Any] = []
            for start in range(0, len(encoded), _JOINED_AT_ONCE):
                joined = encoded[start : start + _JOINED_AT_ONCE]
                found += unpack(header(LIST, len(joined)) + b"".join(joined))
            if len(found) != len(new):
                raise ValueError("a part is not one object")
            for at, message in zip(new, found, strict=True):
                messages[at] = message
            for start in range(0, len(new), _REMEMBERED_AT_ONCE):
                stop = start + _REMEMBERED_AT_ONCE
                self._remember(found[start:stop], encoded[start:stop])
        return messages

    def _remember_block(self, parts: list[bytes], *, is_repeated: bool) -> None:
        """Cache which messages were copied one after the other; when that happens again, their block."""
        if not is_repeated:
            self._blocks.add(parts[0], parts, _BLOCK_SIZE)
            return
        young, old = self._templates.young, self._templates.old
        templates: list[Any] = [young.get(part) or old.get(part) for part in parts]
        if set(map(type, templates)) == {MessageTemplate} and all(map(_containers, templates)):
            self._blocks.add(parts[0], block_of(parts, templates), _BLOCK_SIZE)

    def _remember(self, messages: Sequence[Any], parts: Sequence[bytes]) -> None:
        """Cache the bytes that messages were decoded from; when that happens again, also how to copy them."""
        if not self._is_on:
            return
        known = [(message, part) for message, part in zip(messages, parts, strict=True) if type(message) in MESSAGES]
        by_id = {message.id: part for message, part in known if type(message.id) is str}
        self._parts.update(by_id, sum(map(len, by_id.values())))
        young, old = self._templates.young, self._templates.old
        again = [(message, part) for message, part in known if part in young or part in old]
        new: dict[bytes, MessageTemplate | bool] = dict.fromkeys(by_id.values(), False)
        new.update(_templates(again))
        self._templates.update(new, 2 * sum(map(len, new)))

    def encoded(self, message: Any, part: bytes) -> None:
        """Cache the bytes that a message was encoded to."""
        if type(message.id) is str:
            self._parts.add(message.id, part, len(part))


def _templates(messages: Iterable[tuple[Any, bytes]]) -> dict[bytes, MessageTemplate | bool]:
    """Return templates of messages by the bytes that they were decoded from, for those with plain data. Makes no call.

    A template shares nothing with its message that can be changed.
    """
    templates: dict[bytes, MessageTemplate | bool] = {}
    for message, part in messages:
        kind, fields = type(message), message.__dict__.copy()
        try:
            packed = ormsgpack.packb([*MESSAGES[kind], fields, _METHOD], option=_PLAIN_DATA_ONLY)
        except (ormsgpack.MsgpackEncodeError, RecursionError):
            continue
        if message.__pydantic_extra__ or not part.endswith(packed) or len(part) - len(packed) > _LONGEST_HEADER:
            continue
        containers: list[tuple[int, Any]] = []
        copies: list[Any] = [fields]
        for holder, container in enumerate(copies):  # it grows meanwhile
            for key, value in container.items() if type(container) is dict else enumerate(container):
                if type(value) is dict or type(value) is list:
                    copied = container[key] = value.copy()
                    containers.append((holder, key))
                    copies.append(copied)
        templates[part] = new_tuple(MessageTemplate, (kind, fields, tuple(containers), set(fields)))
    return templates


_fields = attrgetter("__dict__")
_containers = attrgetter("containers")
_extra = attrgetter("__pydantic_extra__")
_FIXED = frozenset((str, int, bool, type(None)))
"""Values of these types are equal exactly if their types and values are, and cannot be changed in place."""


def _block(messages: Sequence[Any], parts: list[bytes]) -> _MessageBlock | None:
    """Return a block of these messages; None if they are not all messages with plain data. Makes no call."""
    kinds = list(map(type, messages))
    if not MESSAGES.keys() >= set(kinds) or any(map(_extra, messages)):
        return None
    fields = list(map(_fields, messages))
    values = list(chain.from_iterable(map(dict.values, fields)))
    types = list(map(type, values))
    is_fixed = list(map(_FIXED.__contains__, types))
    containers = list(compress(values, map(not_, is_fixed)))
    try:
        packed = ormsgpack.packb(containers, option=_PLAIN_DATA_ONLY)
    except (ormsgpack.MsgpackEncodeError, RecursionError):
        return None
    block = (list(messages), kinds, list(chain.from_iterable(fields)), types, values, is_fixed, containers, packed)
    return new_tuple(_MessageBlock, (*block, parts))


def _match(block: _MessageBlock, messages: Sequence[Any]) -> _MessageBlock | None:
    """Return the block if the messages equal those that it was made from; None if not.

    Usually they are the same objects with the same objects in their fields. Then only what can be changed in place is
    packed and compared. Other objects may be equal: then the block that is returned has these. This runs for each block
    of each put, and makes no call.
    """
    known, kinds, names, types, values, is_fixed, containers, packed, parts = block
    if len(messages) != len(known):
        return None
    are_same = all(map(is_, messages, known))
    if (not are_same and list(map(type, messages)) != kinds) or any(map(_extra, messages)):
        return None
    fields = list(map(_fields, messages))
    found = chain.from_iterable(map(dict.values, fields))
    if not are_same or sum(map(len, fields)) != len(values) or not all(map(is_, found, values)):
        others = list(chain.from_iterable(map(dict.values, fields)))
        if list(map(type, others)) != types or list(chain.from_iterable(fields)) != names:
            return None
        if list(compress(others, is_fixed)) != list(compress(values, is_fixed)):
            return None
        containers = list(compress(others, map(not_, is_fixed)))
        rest = (kinds, names, types, others, is_fixed, containers, packed, parts)
        block = new_tuple(_MessageBlock, (list(messages), *rest))
    try:
        return block if ormsgpack.packb(containers, option=_PLAIN_DATA_ONLY) == packed else None
    except (ormsgpack.MsgpackEncodeError, RecursionError):
        return None


def _pack_plain(value: Any) -> bytes:
    """Return packed data; empty if it is not plain data."""
    try:
        return ormsgpack.packb(value, option=_PLAIN_DATA_ONLY)
    except (ormsgpack.MsgpackEncodeError, RecursionError):
        return b""
