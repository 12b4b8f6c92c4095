"""Copies of messages that were decoded before: what is copied, and how a block of them is copied in few steps.

A copy shares only strings and numbers. Copying dicts and lists one by one takes most of its time in Python's loop, so
those of a whole block are copied column by column, by functions that are written in C: that takes two thirds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter, setitem
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from threadkeep.engine.log.messages import setters

BLOCK = 32
"""Messages per block."""
_set_fields, _set_names, _set_extra, _set_private = setters(BaseMessage)
_new: Callable[[type], Any] = object.__new__
_NO_FIELDS: dict[str, Any] = {}


class MessageTemplate(NamedTuple):
    """A message to copy: its class, its fields, and the dicts and lists in these, which must be copied too.

    `containers` has (holder, key) of each dict and list: it is the value of this key in number `holder` of them,
    counted from 1, or in the fields, which are number 0. A holder comes before what it holds.
    """

    kind: type[BaseMessage]
    fields: dict[str, Any]
    containers: tuple[tuple[int, Any], ...]
    names: set[str]


class TemplateBlock(NamedTuple):
    """Templates of consecutive messages, by column, and the bytes that these were decoded from.

    `dicts` are the fields of all messages, then the dicts in them; after these are counted the `lists`. `holders` and
    `held` take those that hold another one, and those that are held, from all of them; `keys` says where.
    """

    parts: list[bytes]
    kinds: list[type[BaseMessage]]
    names: list[set[str]]
    dicts: list[dict[Any, Any]]
    lists: list[list[Any]]
    holders: Callable[[list[Any]], Sequence[Any]]
    keys: list[Any]
    held: Callable[[list[Any]], Sequence[Any]]


def block_of(parts: list[bytes], templates: Sequence[MessageTemplate]) -> TemplateBlock:
    """Return the block of some templates. It costs as much as two copies of them. Makes no call.

    Each template must have a container, so that there are several: then `itemgetter` returns a tuple of them.
    """
    kinds, fields, containers, names = zip(*templates, strict=True)
    dicts, lists = list[Any](fields), list[Any]()
    keys: list[Any] = []
    holders: list[tuple[list[Any], int]] = []
    held: list[tuple[list[Any], int]] = []
    for number, places in enumerate(containers):
        found: list[tuple[list[Any], int]] = [(dicts, number)]
        for holder, key in places:
            same, n = found[holder]
            value = same[n][key]
            other = lists if type(value) is list else dicts
            found.append((other, len(other)))
            holders.append((same, n))
            keys.append(key)
            held.append(found[-1])
            other.append(value)
    first = len(dicts)
    return TemplateBlock(
        parts,
        list(kinds),
        list(names),
        dicts,
        lists,
        itemgetter(*[n + first if same is lists else n for same, n in holders]),
        keys,
        itemgetter(*[n + first if same is lists else n for same, n in held]),
    )


def copy_block(block: TemplateBlock) -> list[Any]:
    """Return new messages. They share nothing that can be changed, neither with the templates nor with each other."""
    _, kinds, names, dicts, lists, holders, keys, held = block
    copies: list[Any] = list(map(dict.copy, dicts))
    copies += map(list.copy, lists)
    deque(map(setitem, holders(copies), keys, held(copies)), maxlen=0)
    messages = list(map(_new, kinds))
    deque(map(_set_fields, messages, copies), maxlen=0)
    deque(map(_set_names, messages, map(set.copy, names)), maxlen=0)
    deque(map(_set_extra, messages, map(dict.copy, repeat(_NO_FIELDS))), maxlen=0)
    deque(map(_set_private, messages, repeat(None)), maxlen=0)
    return messages
