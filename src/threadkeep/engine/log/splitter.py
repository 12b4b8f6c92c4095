"""Encoded values to parts, without decoding them: what `Codec.encode` would have made, from the serializer's bytes.

Whoever stored a list whole at every step has almost the same bytes at every step. So the last value of each place is
remembered, and a list that grew is only looked at where it is new.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from threadkeep.engine.log.codec import DICT_WORTH_SPLITTING, MSGPACK, Parts
from threadkeep.engine.log.msgpack import LIST, MAP, SNAPSHOT, WHOLE, end, extension, opened

_REMEMBERED = 16 * 1024 * 1024
"""So many bytes of last values are remembered, roughly."""


class _Last(NamedTuple):
    body: bytes
    parts: list[bytes]


class Splitter:
    """Splits values; `fresh` counts the bytes that were not in the value before of the same place."""

    def __init__(self) -> None:
        self.fresh = 0
        self._last: dict[Any, _Last] = {}
        self._size = 0

    def split(self, place: Any, tag: str, data: bytes) -> Parts:
        """A value that stands alone; ValueError if it calls itself msgpack and is none."""
        if tag != MSGPACK:
            self.fresh += len(data)
            return Parts(WHOLE, tag, [data])
        try:
            parts, at = self.take(place, data, 0)
        except (IndexError, RecursionError) as error:
            raise ValueError("its bytes are no msgpack") from error
        if at != len(data):
            raise ValueError("its bytes are no msgpack")
        return parts

    def take(self, place: Any, data: bytes, at: int) -> tuple[Parts, int]:
        """The value that begins there, and where it ends. IndexError or RecursionError if there is none."""
        kind, count, first = opened(data, at)
        if kind == LIST and count:
            return self._list(place, data, first, count)
        if kind == MAP and count > 1:
            return self._map(data, at, first, count)
        until = end(data, at)
        known = extension(data, at)
        if known is not None and known[0] == SNAPSHOT:
            inner, stop = self.take(place, data[known[1] : until], 0)
            if inner.kind != WHOLE and stop == until - known[1]:
                return inner._replace(snapshot=True), until
        self.fresh += until - at
        return Parts(WHOLE, MSGPACK, [data[at:until]]), until

    def _list(self, place: Any, data: bytes, first: int, count: int) -> tuple[Parts, int]:
        last = self._last.get(place)
        at, parts = first, list[bytes]()
        if last is not None and len(last.parts) <= count and data.startswith(last.body, first):
            at, parts = first + len(last.body), list(last.parts)
        known = at
        for _ in range(count - len(parts)):
            until = end(data, at)
            parts.append(data[at:until])
            at = until
        self.fresh += at - known
        self._remember(place, _Last(data[first:at], parts))
        return Parts(LIST, MSGPACK, parts), at

    def _map(self, data: bytes, at: int, first: int, count: int) -> tuple[Parts, int]:
        entries, start = list[bytes](), first
        for _ in range(count):
            until = end(data, end(data, start))
            entries.append(data[start:until])
            start = until
        self.fresh += start - at
        if start - first < DICT_WORTH_SPLITTING:
            return Parts(WHOLE, MSGPACK, [data[at:start]]), start
        return Parts(MAP, MSGPACK, entries), start

    def _remember(self, place: Any, last: _Last) -> None:
        if self._size > _REMEMBERED:
            self._last.clear()
            self._size = 0
        before = self._last.get(place)
        self._size += len(last.body) - (len(before.body) if before else 0)
        self._last[place] = last
