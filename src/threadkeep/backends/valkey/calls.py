"""Calls: the scripts and commands that the Valkey backend sends, and ordered merges over many partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

from threadkeep.engine.log.itemlog import new_tuple

AT_ONCE = 512
"""How many items one call reads or copies: a server does nothing else meanwhile."""
_FIRST_PAGE = 4
"""How many members of each set the first call asks for, when only the first of many sets are wanted."""


class Call(NamedTuple):
    """A script (its name is in lower case) or a command (upper case), its keys, and its other arguments."""

    name: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...] = ()


class CallExecutor(Protocol):
    """Executes calls. It raises the error of a call."""

    def call(self, call: Call) -> Any:
        """Execute one call."""

    def calls(self, calls: Sequence[Call]) -> list[Any]:
        """Execute several calls concurrently."""


def script(name: str) -> str:
    """Return the text of a script, with the shared functions before it."""
    folder = files("threadkeep.backends.valkey").joinpath("lua")
    return folder.joinpath("prelude.lua").read_text() + folder.joinpath(f"{name}.lua").read_text()


def merge_members(
    executor: CallExecutor,
    keys: Sequence[bytes],
    command_after: Callable[[bytes], tuple[str, tuple[bytes, bytes]]],
    *,
    reverse: bool = False,
) -> Iterator[bytes]:
    """Yield the members of sorted sets, in order over all sets.

    `command_after` returns the command and bounds for the members after a member, or for all members if it is empty.
    """

    def page_call(key: bytes, last: bytes, limit: int) -> Call:
        name, bounds = command_after(last)
        return Call(name, (key,), (*bounds, "LIMIT", 0, limit))

    def members(key: bytes, page: list[bytes]) -> Iterator[bytes]:
        limit = _FIRST_PAGE
        while page:
            yield from page
            if len(page) < limit:
                return
            limit = min(4 * limit, AT_ONCE)
            page = executor.call(page_call(key, page[-1], limit))

    firsts = executor.calls(_same_call(page_call(b"", b"", _FIRST_PAGE), keys))
    return merge(*(members(key, page) for key, page in zip(keys, firsts, strict=True) if page), reverse=reverse)


def _same_call(call: Call, keys: Sequence[bytes]) -> list[Call]:
    """Return a call once for each key."""
    name, _, args = call
    return [new_tuple(Call, (name, (key,), args)) for key in keys]


Ranked = tuple[float, bytes, bytes]
"""A member of a sorted set: its score, the member, and the key of the set."""


def merge_by_score(executor: CallExecutor, keys: Sequence[bytes], high: Any) -> Iterator[Ranked]:
    """Yield the members of sorted sets by score, descending from `high`. Members with the same score are in order."""

    def page_call(key: bytes, start: int, limit: int) -> Call:
        return Call("ZREVRANGEBYSCORE", (key,), (high, "-inf", "WITHSCORES", "LIMIT", start, limit))

    def members(key: bytes, page: list[bytes]) -> Iterator[Ranked]:
        start, limit, held = 0, _FIRST_PAGE, list[Ranked]()
        while True:
            held += [(float(score), member, key) for member, score in zip(page[::2], page[1::2], strict=True)]
            is_last = len(page) < 2 * limit
            ready = [each for each in held if is_last or each[0] > held[-1][0]]  # the next page may have equal scores
            yield from sorted(ready, key=_by_rank)
            held = held[len(ready) :]
            if is_last:
                return
            start, limit = start + limit, min(4 * limit, AT_ONCE)
            page = executor.call(page_call(key, start, limit))

    firsts = executor.calls(_same_call(page_call(b"", 0, _FIRST_PAGE), keys))
    return merge(*(members(key, page) for key, page in zip(keys, firsts, strict=True) if page), key=_by_rank)


def _by_rank(ranked: Ranked) -> tuple[float, bytes]:
    return (-ranked[0], ranked[1])
