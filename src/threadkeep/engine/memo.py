"""What messages were encoded to, so that a conversation is not encoded again at every step.

LangGraph hands over the whole list of messages each time, mostly the same objects. An object may have been changed in
place meanwhile, so it is looked at each time: all its fields must be the very objects that they were, and those that
can change inside, dicts and lists, must still marshal to the same bytes. That takes a fifth of encoding it.
Only LangChain's own message classes are remembered: what their bytes depend on is known.
"""

from __future__ import annotations

import marshal
from operator import is_
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage

MESSAGES = frozenset((AIMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage))
_UNCHANGING = frozenset((str, int, float, bool, bytes, type(None)))
_CONTAINERS = frozenset((dict, list, type(None)))
"""While such a one is empty, nothing inside it has changed."""
_PLAIN = 2
"""The marshal format that depends on values alone, and not on who else refers to them."""
_GENERATION = 16 * 1024 * 1024
_OVERHEAD = 500


_Entry: TypeAlias = tuple[type, tuple[Any, ...], tuple[Any, ...], bytes, bytes]
"""The class of a message, its fields, those of them that can change inside, what these marshal to, and the encoded message."""


class Memo:
    """Encoded messages by identity. Two generations: when the younger one is full, the older one is forgotten."""

    def __init__(self) -> None:
        self._young: dict[int, _Entry] = {}
        self._old: dict[int, _Entry] = {}
        self._size = 0

    def get(self, message: Any) -> bytes | None:
        """The bytes of a message that is as it was when it was remembered."""
        entry = self._young.get(id(message)) or self._old.get(id(message))
        if entry is None:
            return None
        kind, fields, inside, mark, part = entry
        now, extra = message.__dict__, message.__pydantic_extra__
        if extra is not inside[0] or len(now) != len(fields) or kind is not type(message):
            return None
        if not all(map(is_, now.values(), fields)):
            return None
        same = marshal.dumps(inside, _PLAIN) == mark if mark else not any(inside)
        return part if same else None

    def remember(self, message: Any, part: bytes) -> None:
        """Keep the bytes of a message, if it can be told whether it changes."""
        fields = tuple(message.__dict__.values())
        inside = (message.__pydantic_extra__, *[value for value in fields if type(value) not in _UNCHANGING])
        mark = b""
        if any(inside) or not _CONTAINERS.issuperset(map(type, inside)):
            try:
                mark = marshal.dumps(inside, _PLAIN)
            except ValueError:
                return
        if self._size > _GENERATION:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[id(message)] = (type(message), fields, inside, mark, part)
        self._size += len(part) * 2 + len(mark) + _OVERHEAD
