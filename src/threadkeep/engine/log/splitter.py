"""Split values that another saver encoded, without decoding them, into the parts that `Codec.encode` would have made.

Other savers store a complete list at every step, so most of its bytes are the same as before. The last list of each
channel is cached, and a list that grew is split only where it is new.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from threadkeep.engine.log.codec import DICT_WORTH_SPLITTING, EXTENSIONS, MSGPACK, Parts, is_joined
from threadkeep.engine.log.msgpack import LIST, MAP, SNAPSHOT, WHOLE, header, object_end, read_extension, read_header

_CACHED = 16 * 1024 * 1024
"""The most bytes of lists that are cached, roughly."""


class _CachedList(NamedTuple):
    body: bytes
    parts: list[bytes]


class Splitter:
    """Splits values. `fresh` counts the bytes that were not in the last value of the same key."""

    def __init__(self) -> None:
        self.fresh = 0
        self._cached: dict[Any, _CachedList] = {}
        self._size = 0

    def split(self, key: Any, tag: str, data: bytes) -> Parts:
        """Split a value; successive values of a channel have the same `key`. ValueError if it is not valid msgpack."""
        if tag != MSGPACK:
            self.fresh += len(data)
            return Parts(WHOLE, tag, [data])
        try:
            parts, at = self.take(key, data, 0)
        except (IndexError, RecursionError) as error:
            raise ValueError("its bytes are not valid msgpack") from error
        if at != len(data):
            raise ValueError("its bytes are not valid msgpack")
        return parts

    def take(self, key: Any, data: bytes, at: int) -> tuple[Parts, int]:
        """Split the value at `at`, and return where it ends. IndexError or RecursionError if it is not valid."""
        kind, count, first = read_header(data, at)
        if kind == LIST and count:
            return self._list(key, data, first, count)
        if kind == MAP and count > 1:
            return self._map(data, at, first, count)
        until = object_end(data, at)
        code, payload = read_extension(data, at) or (None, 0)
        if code == SNAPSHOT:
            inner, stop = self.take(key, data[payload:until], 0)
            if inner.kind != WHOLE and stop == until - payload:
                return inner._replace(snapshot=True), until
        self.fresh += until - at
        return Parts(WHOLE, MSGPACK, [data[at:until]]), until

    def _list(self, key: Any, data: bytes, first: int, count: int) -> tuple[Parts, int]:
        last = self._cached.get(key)
        at, parts = first, list[bytes]()
        if last is not None and len(last.parts) <= count and data.startswith(last.body, first):
            at, parts = first + len(last.body), list(last.parts)
        start = at
        for _ in range(count - len(parts)):
            until = object_end(data, at)
            parts.append(data[at:until])
            at = until
        self.fresh += at - start
        self._cache(key, _CachedList(data[first:at], parts))
        if parts[0][:1] not in EXTENSIONS and is_joined(count, (at - first) / count):
            return Parts(LIST, MSGPACK, [header(LIST, count) + data[first:at]], joined=count), at
        return Parts(LIST, MSGPACK, parts), at

    def _map(self, data: bytes, at: int, first: int, count: int) -> tuple[Parts, int]:
        entries, start = list[bytes](), first
        for _ in range(count):
            until = object_end(data, object_end(data, start))
            entries.append(data[start:until])
            start = until
        self.fresh += start - at
        if start - first < DICT_WORTH_SPLITTING:
            return Parts(WHOLE, MSGPACK, [data[at:start]]), start
        if is_joined(count, (start - first) / count):
            return Parts(MAP, MSGPACK, [data[at:start]], joined=count), start
        return Parts(MAP, MSGPACK, entries), start

    def _cache(self, key: Any, new: _CachedList) -> None:
        if self._size > _CACHED:
            self._cached.clear()
            self._size = 0
        old = self._cached.get(key)
        self._size += len(new.body) - (len(old.body) if old else 0)
        self._cached[key] = new
