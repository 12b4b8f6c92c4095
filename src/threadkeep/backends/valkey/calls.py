"""Calls on keys: what backends on Valkey ask for, and merging what many partitions say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

PARTITIONS = 1024
AT_ONCE = 512
"""So many items are read or copied at once: a server does nothing else meanwhile."""
_FEW = 4
"""So many members of each set are asked for at first, when the first of many sets are wanted."""


class Call(NamedTuple):
    """A script (in small letters) or a command, its keys, and other arguments."""

    name: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...] = ()


class CallExecutor(Protocol):
    """What executes calls. An error of one is raised."""

    def call(self, call: Call) -> Any:
        """Execute one."""

    def calls(self, calls: Sequence[Call]) -> list[Any]:
        """Execute several, side by side."""


def key_of(prefix: bytes, partition: int, what: bytes, rest: bytes) -> bytes:
    """A key. What is in braces decides its slot."""
    return b"%s{%03x}:%s:%s" % (prefix, partition, what, rest)


def script(name: str) -> str:
    """The text of a script."""
    folder = files("threadkeep.backends.valkey").joinpath("lua")
    return folder.joinpath("prelude.lua").read_text() + folder.joinpath(f"{name}.lua").read_text()


def merged(
    executor: CallExecutor,
    keys: Sequence[bytes],
    ask: Callable[[bytes], tuple[str, tuple[bytes, bytes]]],
    *,
    reverse: bool = False,
) -> Iterator[bytes]:
    """Members of sorted sets, in order over all of them; `ask` gives the command for those after a member, or for all."""

    def call(key: bytes, last: bytes, limit: int) -> Call:
        name, bounds = ask(last)
        return Call(name, (key,), (*bounds, "LIMIT", 0, limit))

    def one_by_one(key: bytes, some: list[bytes]) -> Iterator[bytes]:
        limit = _FEW
        while some:
            yield from some
            if len(some) < limit:
                return
            limit = min(4 * limit, AT_ONCE)
            some = executor.call(call(key, some[-1], limit))

    firsts = executor.calls([call(key, b"", _FEW) for key in keys])
    return merge(*(one_by_one(key, some) for key, some in zip(keys, firsts, strict=True) if some), reverse=reverse)


def merged_ranks(executor: CallExecutor, keys: Sequence[bytes], high: Any) -> Iterator[tuple[float, bytes, bytes]]:
    """Members of sorted sets by score, descending from `high`, with their set's key; those of one score in order."""

    def call(key: bytes, start: int, limit: int) -> Call:
        return Call("ZREVRANGEBYSCORE", (key,), (high, "-inf", "WITHSCORES", "LIMIT", start, limit))

    def one_by_one(key: bytes, some: list[bytes]) -> Iterator[tuple[float, bytes, bytes]]:
        start, limit, held = 0, _FEW, list[tuple[float, bytes, bytes]]()
        while True:
            held += [(float(score), member, key) for member, score in zip(some[::2], some[1::2], strict=True)]
            is_all = len(some) < 2 * limit
            ready = [each for each in held if is_all or each[0] > held[-1][0]]
            yield from sorted(ready, key=_by_rank)
            held = held[len(ready) :]
            if is_all:
                return
            start, limit = start + limit, min(4 * limit, AT_ONCE)
            some = executor.call(call(key, start, limit))

    firsts = executor.calls([call(key, 0, _FEW) for key in keys])
    return merge(*(one_by_one(key, some) for key, some in zip(keys, firsts, strict=True) if some), key=_by_rank)


def _by_rank(ranked: tuple[float, bytes, bytes]) -> tuple[float, bytes]:
    return (-ranked[0], ranked[1])
