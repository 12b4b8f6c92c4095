"""The item log of a thread: append-only, compressed, checksummed pieces of state, and runs of them.

An item's id is (lane, n). Each channel has a lane of its own and its items are numbered consecutively there, so a
list that only grows is one run for ever, whatever else the thread stores in between. Three lanes are the engine's:

    lane 0   names of channels and nodes, interned; a name's number is its n
    lane 1   run lists that became too long for a row
    lane 2   what many checkpoints share: sets of labels (metadata) and shapes (see `records`)

A stored item is `format byte, [group count], crc32, body`; the checksum is seeded with the id, so an item that
stands in another's place is noticed. The format byte: bits 0-3 the compression (0 none, 1 zstd, 2 zstd with the
shipped dictionary no. 1), bit 4 a group of several small elements, bit 7 is reserved for encrypted bodies.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

import zstandard

from threadkeep.errors import Corrupt

NAMES = 0
RUN_LISTS = 1
SHARED = 2
FIRST_CHANNEL = 3
"""The lane of the channel whose name has number k is FIRST_CHANNEL + k."""

CHUNK = 512 * 1024
"""No item holds more bytes than this before compression; a longer value is several consecutive items."""

BEGINNING = 32
"""So many bytes of a stored item tell how long it is without compression."""

_RAW, _ZSTD, _ZSTD_DICTIONARY = 0, 1, 2
_COMPRESSION, _GROUP = 0x0F, 0x10
_LEVEL = 6  # the first that makes Huffman tables of its own: hex and run lists become a third smaller than at level 5
_WORTH_COMPRESSING = 128  # what is shorter would become 3 % smaller


class ItemId(NamedTuple):
    """Where an item stands in its thread's log."""

    lane: int
    n: int


class ItemRange(NamedTuple):
    """Consecutive items of one lane."""

    lane: int
    start: int
    length: int

    def ids(self) -> Iterator[ItemId]:
        """The ids in the run, in order."""
        return (ItemId(self.lane, n) for n in range(self.start, self.start + self.length))


class Item(NamedTuple):
    """What an item holds: some bytes, which are `elements` whole elements of a list or entries of a dict.

    Of an element longer than CHUNK the first item says 1, those that go on with it say 0.
    """

    data: bytes
    elements: int = 1


class _Compression:
    """Compressors that are lent out, since zstd's contexts must not be shared between threads."""

    def __init__(self, dictionary: bytes | None) -> None:
        shape = zstandard.FORMAT_ZSTD1_MAGICLESS
        self._params = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, format=shape, write_content_size=True, write_checksum=False, write_dict_id=False
        )
        self._shape = shape
        self._dict = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        if self._dict is not None:
            self._dict.precompute_compress(compression_params=self._params)
        self._compressors: list[zstandard.ZstdCompressor] = []
        self._decompressors: list[zstandard.ZstdDecompressor] = []

    def compress(self, data: bytes) -> bytes:
        worker = (
            self._compressors.pop()
            if self._compressors
            else zstandard.ZstdCompressor(dict_data=self._dict, compression_params=self._params)
        )
        try:
            return worker.compress(data)
        finally:
            self._compressors.append(worker)

    def decompress(self, data: bytes) -> bytes:
        size = zstandard.get_frame_parameters(data, format=self._shape).content_size
        if size > 2 * CHUNK:
            raise zstandard.ZstdError(f"{size} bytes are more than an item may hold")
        worker = (
            self._decompressors.pop()
            if self._decompressors
            else zstandard.ZstdDecompressor(dict_data=self._dict, format=self._shape)
        )
        try:
            return worker.decompress(data)
        finally:
            self._decompressors.append(worker)


@cache
def _compression(method: int) -> _Compression:
    if method == _ZSTD:
        return _Compression(None)
    if method == _ZSTD_DICTIONARY:
        return _Compression(files("threadkeep.engine.log").joinpath("dictionary.zdict").read_bytes())
    raise zstandard.ZstdError(f"unknown compression {method}")


def seal(data: bytes, seed: int, *, elements: int = 1) -> bytes:
    """Bytes as they are stored: compressed where that helps, with format byte and checksum."""
    if len(data) > 2 * CHUNK:
        raise ValueError(f"{len(data)} bytes in one row: metadata is for small values, keep large ones in channels")
    method, body = _RAW, data
    if len(data) >= _WORTH_COMPRESSING:
        smaller = _compression(_ZSTD_DICTIONARY).compress(data)
        if len(smaller) < len(data):
            method, body = _ZSTD_DICTIONARY, smaller
    head = bytes([method]) if elements == 1 else bytes([method | _GROUP]) + varint(elements)
    return head + _CRC.pack(_checksum(body, seed, head[0], elements)) + body


def unseal(stored: bytes, seed: int, what: str) -> Item:
    """What `seal` was given; `what` names the row in the error."""
    try:
        method, elements, at = stored[0], 1, 1
        if method & _GROUP:
            elements, at = read_varint(stored, 1)
        body = stored[at + 4 :]
        if _CRC.unpack_from(stored, at)[0] != _checksum(body, seed, method, elements):
            raise Corrupt(f"{what}: the checksum does not fit the stored bytes")
        compression = method & _COMPRESSION
        data = body if compression == _RAW else _compression(compression).decompress(body)
    except (IndexError, struct.error, zstandard.ZstdError, MemoryError) as error:
        raise Corrupt(f"{what}: {error}") from error
    return Item(data, elements)


def full_length(length: int, beginning: bytes, what: str) -> int:
    """How many bytes a stored item holds, told by its stored length and its beginning; nothing is decompressed."""
    try:
        at = read_varint(beginning, 1)[1] + 4 if beginning[0] & _GROUP else 5
        if beginning[0] & _COMPRESSION == _RAW:
            return length - at
        frame = zstandard.get_frame_parameters(beginning[at:], format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    except (IndexError, zstandard.ZstdError) as error:
        raise Corrupt(f"{what}: {error}") from error
    return int(frame.content_size)


def reseed(stored: bytes, seed: int, other: int, what: str) -> bytes:
    """The same sealed bytes under another seed."""
    elements = unseal(stored, seed, what).elements
    at = 1 if elements == 1 else 1 + len(varint(elements))
    body = stored[at + 4 :]
    return stored[:at] + _CRC.pack(_checksum(body, other, stored[0], elements)) + body


_CRC = struct.Struct("<I")


def _checksum(body: bytes, seed: int, method: int, elements: int) -> int:
    """Of the body, and of all that is said about it."""
    return zlib.crc32(body, (seed ^ method * 0x01000193 ^ elements * 0x85EBCA6B) & 0xFFFFFFFF)


def seal_item(at: ItemId, item: Item) -> bytes:
    """An item as it is stored."""
    return seal(item.data, _item_seed(at), elements=item.elements)


def unseal_item(at: ItemId, stored: bytes, where: str) -> Item:
    """A stored item; Corrupt if it is not the one that was stored under this id."""
    try:
        return unseal(stored, _item_seed(at), "it")
    except Corrupt as error:
        raise Corrupt(f"item {at.lane}:{at.n} of {where}{str(error).removeprefix('it')}") from error


def unseal_items(
    stored: Mapping[ItemId, bytes], is_here: Callable[[ItemId], bool], where: str
) -> Iterator[tuple[ItemId, bytes, int]]:
    """Many items, as (id, data, elements), but for those at hand. The same as `unseal_item`, in one loop."""
    usual = _compression(_ZSTD_DICTIONARY)
    for at, payload in stored.items():
        if is_here(at):
            continue
        if payload[:1] != _USUAL_FORMAT or len(payload) < 6:
            yield at, *unseal_item(at, payload, where)
            continue
        body = payload[5:]
        if int.from_bytes(payload[1:5], "little") != _checksum(body, _item_seed(at), _ZSTD_DICTIONARY, 1):
            unseal_item(at, payload, where)  # says what is wrong
        try:
            yield at, usual.decompress(body), 1
        except (zstandard.ZstdError, MemoryError) as error:
            raise Corrupt(f"item {at[0]}:{at[1]} of {where}: {error}") from error


_USUAL_FORMAT = bytes([_ZSTD_DICTIONARY])


def _item_seed(at: ItemId) -> int:
    return (at[0] * 0x9E3779B1 + at[1]) & 0xFFFFFFFF


_SMALL = [bytes([number]) for number in range(0x80)]


def varint(number: int) -> bytes:
    """A non-negative integer, seven bits a byte."""
    if number < 0x80:
        return _SMALL[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer that starts there, and where the next one starts."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def read_varints(data: bytes) -> Iterator[int]:
    """All integers of the data."""
    at = 0
    while at < len(data):
        number, at = read_varint(data, at)
        yield number


@lru_cache(maxsize=1024)
def pack_ranges(runs: tuple[ItemRange, ...]) -> bytes:
    """Runs in the clear, as varints: what must stay is known without reading, or decrypting, any state."""
    return b"".join([varint(number) for run in runs for number in run])


def unpack_ranges(data: bytes) -> tuple[ItemRange, ...]:
    """The runs that `pack_ranges` was given."""
    numbers = list(read_varints(data))
    if len(numbers) % 3:
        raise ValueError("a run is cut short")
    return tuple(ItemRange(*numbers[i : i + 3]) for i in range(0, len(numbers), 3))


def spilled(at: ItemId, stored: bytes) -> tuple[ItemRange, ...]:
    """The runs of a stored run list."""
    return unpack_ranges(unseal_item(at, stored, "a thread").data)


def join_ranges(ids: Iterable[tuple[int, int]]) -> tuple[ItemRange, ...]:
    """Ids in the order given, as the fewest runs."""
    runs: list[list[int]] = []
    for lane, n in ids:
        if runs and runs[-1][0] == lane and runs[-1][1] + runs[-1][2] == n:
            runs[-1][2] += 1
        else:
            runs.append([lane, n, 1])
    return tuple(ItemRange(*run) for run in runs)


def add_to_ranges(runs: tuple[ItemRange, ...], ids: Iterable[tuple[int, int]]) -> tuple[ItemRange, ...]:
    """Runs and, after them, more ids."""
    more = list(join_ranges(ids))
    if runs and more and runs[-1].lane == more[0].lane and runs[-1].start + runs[-1].length == more[0].start:
        more[0] = ItemRange(more[0].lane, runs[-1].start, runs[-1].length + more[0].length)
        runs = runs[:-1]
    return (*runs, *more)


def union(runs: Iterable[ItemRange]) -> list[ItemRange]:
    """The items of all these runs, each once, as sorted disjoint runs."""
    merged: list[ItemRange] = []
    for run in sorted(runs):
        last = merged[-1] if merged else None
        if last is not None and last.lane == run.lane and last.start + last.length >= run.start:
            end = max(last.start + last.length, run.start + run.length)
            merged[-1] = ItemRange(last.lane, last.start, end - last.start)
        else:
            merged.append(run)
    return merged


def minus(stored: Iterable[ItemRange], used: Iterable[ItemRange]) -> tuple[ItemRange, ...]:
    """What is stored but not used."""
    left: list[ItemRange] = []
    kept = union(used)
    starts = [(run.lane, run.start) for run in kept]
    for lane, start, length in union(stored):
        at, end = start, start + length
        first = max(bisect_right(starts, (lane, start)) - 1, 0)
        for cut in kept[first : bisect_left(starts, (lane, end))]:
            if cut.lane == lane and cut.start + cut.length > at:
                if cut.start > at:
                    left.append(ItemRange(lane, at, cut.start - at))
                at = cut.start + cut.length
        if at < end:
            left.append(ItemRange(lane, at, end - at))
    return tuple(left)
