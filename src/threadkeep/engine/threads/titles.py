"""Titles for threads that were given none: the text of the first human message, on one line.

It is that of the newest root checkpoint, in its channel `messages`. Of each thread, the checkpoint's row is read and
the first few items of the channel, for many threads at once. A thread has no title if its messages are in another
channel, in a delta channel or encrypted by its own serializer, or if none of the first is a human one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from threadkeep.engine.cube.channels import MESSAGES, decode_json_text
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.codec import MSGPACK
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.plain import is_message, message_text, plain, role_of
from threadkeep.engine.log.records import Slot
from threadkeep.engine.requests import (
    CheckpointRef,
    ItemsOf,
    LoadCheckpoints,
    LoadedRows,
    LoadSeveral,
    LoadSeveralItems,
)
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.thread_rows import slot_value
from threadkeep.errors import Corrupt

THREADS_AT_ONCE = 500
"""How many threads' titles are found in the same round trips."""
_TITLE = 80
"""The most characters of such a title."""
_BEGINNING = 4000
"""So many characters of a text are looked at."""
_FIRST, _MORE = 4, 64
"""How many items of the messages are read; and how many if no human message was found in these."""
_HUMAN = ("human", "user")


class DerivedTitles(NamedTuple):
    """Titles by thread. `damaged` has a message for each thread whose messages cannot be read."""

    titles: dict[ThreadKey, str]
    damaged: list[str]


class _Unread(NamedTuple):
    """A thread whose title is not known yet, and how its messages are stored."""

    head: Head
    slot: Slot


async def derive_titles(heads: Heads, keys: Sequence[ThreadKey]) -> DerivedTitles:
    """Return the titles of threads. At most three round trips for each 500; more if a thread is damaged."""
    found = DerivedTitles({}, [])
    for start in range(0, len(keys), THREADS_AT_ONCE):
        unread = await _read_slots(heads, keys[start : start + THREADS_AT_ONCE], found)
        for count in (_FIRST, _MORE):
            unread = await _read_messages(unread, count, found)
    return found


async def _read_slots(heads: Heads, keys: Sequence[ThreadKey], found: DerivedTitles) -> list[_Unread]:
    unread: list[_Unread] = []
    for key, loaded in await _load_newest(keys, found.damaged):
        row = loaded.checkpoints[0].row if loaded.checkpoints else None
        if row is None:
            continue
        try:
            head = heads.head_from(key, loaded, None)
            slot = head.checkpoint(row).slots.get(MESSAGES)
        except Corrupt as error:
            found.damaged.append(str(error))
            continue
        if slot is not None:
            unread.append(_Unread(head, slot))
    return unread


async def _load_newest(keys: Sequence[ThreadKey], damaged: list[str]) -> Iterable[tuple[ThreadKey, LoadedRows]]:
    """Load the newest root checkpoint of each thread. If one of them is damaged, each is loaded by itself."""
    loads = [LoadCheckpoints(key, (CheckpointRef("", None, items=False),)) for key in keys]
    if not loads:
        return ()
    try:
        return zip(keys, await LoadSeveral(tuple(loads)), strict=True)
    except Corrupt:
        pass
    found: list[tuple[ThreadKey, LoadedRows]] = []
    for load in loads:
        try:
            found.append((load.key, await load))
        except Corrupt as error:
            damaged.append(str(error))
    return found


async def _read_messages(unread: Sequence[_Unread], count: int, found: DerivedTitles) -> list[_Unread]:
    """Look for a human message in the first `count` items of each thread. Return those to look further in."""
    wanted = [_first_items(each.slot, count) for each in unread]
    loads = [
        ItemsOf(each.head.row, ranges) for each, ranges in zip(unread, wanted, strict=True) if ranges and each.head.row
    ]
    replies = iter(await LoadSeveralItems(tuple(loads)) if loads else ())
    rest: list[_Unread] = []
    for each, ranges in zip(unread, wanted, strict=True):
        head, slot = each
        try:
            if ranges:
                items = next(replies)
                if not items:
                    continue  # it was pruned meanwhile
                head.cache.fill(items, head.where, head.family)
            title = _title(_messages(head, slot, ranges))
        except Corrupt as error:
            found.damaged.append(str(error))
            continue
        if title:
            found.titles[head.key] = title
        elif not _is_whole(slot, ranges):
            rest.append(each)
    return rest


def _first_items(slot: Slot, count: int) -> tuple[ItemRange, ...]:
    """Return the first items of a value."""
    first: list[ItemRange] = []
    for lane, start, length in slot.ranges:
        if count <= 0:
            break
        first.append(ItemRange(lane, start, min(length, count)))
        count -= length
    return tuple(first)


def _is_whole(slot: Slot, ranges: Sequence[ItemRange]) -> bool:
    """Return whether the first items of a value are all that it has."""
    return sum(each.length for each in ranges) == sum(each.length for each in slot.ranges)


def _messages(head: Head, slot: Slot, ranges: Sequence[ItemRange]) -> Iterator[Any]:
    """Yield the messages in some items of a value as plain data. One that is only there in part ends them."""
    what, is_whole = f"messages of {head.where}", _is_whole(slot, ranges)
    if slot.kind != LIST or slot.tag != MSGPACK or slot.inline is not None:
        value = slot_value(head, slot, what) if is_whole else None
        yield from value if isinstance(value, list) else ()
        return
    for element in (element for group in head.cache.groups(ranges) for element in group):
        try:
            message = plain(MSGPACK, element, what=what)
        except Corrupt:
            if is_whole:
                raise
            return
        yield decode_json_text(message) if head.key.kind == CUBE else message


def _title(messages: Iterator[Any]) -> str | None:
    """Return the text of the first human message that has one, on one line."""
    for message in messages:
        if isinstance(message, Mapping) and is_message(message) and role_of(message) in _HUMAN:
            words = " ".join(message_text(message)[:_BEGINNING].split())
            if words:
                return words if len(words) <= _TITLE else words[: _TITLE - 1].rstrip() + "…"
    return None
