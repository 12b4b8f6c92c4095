"""The item log of a thread: append-only, compressed, checksummed items of state, and ranges of them.

An item's id is (lane, n). Each channel has a lane, in which its items are numbered consecutively. So a list that only
grows is always one range, whatever else the thread stores in between. Three lanes are used by the engine:

    lane 0   names of channels and nodes, interned; a name's number is its n
    lane 1   range lists that became too long for a row
    lane 2   what many checkpoints share: sets of labels (metadata) and shapes (see `records`)

A stored item is `format byte, [group count], crc32, body`. The checksum is seeded with the id and with the family of
the thread (see `records.ThreadRow`), so an item that is stored under another's id or in another thread is detected. In
the format byte, bits 0-3 are the compression (0 none, 1 zstd, 2 and 3 zstd with the shipped dictionary no. 1 or 2), bit
4 means a group of several small elements. Dictionary no. 1 is only read. With keys, bit 7 means that everything after
the format byte is encrypted, and bit 6 that a signature follows: see `threadkeep.encryption`.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from itertools import chain, repeat
from typing import NamedTuple

import zstandard

from threadkeep.errors import Corrupt, WrongKey

NAMES = 0
RANGE_LISTS = 1
SHARED = 2
FIRST_CHANNEL = 3
"""The lane of the channel whose name has number k is FIRST_CHANNEL + k."""

CHUNK = 512 * 1024
"""The most bytes that an item holds before compression. A longer value is several consecutive items."""

PREFIX_LENGTH = 32
"""The number of bytes at the start of a stored item that `full_length` needs."""

_RAW, _ZSTD, _ZSTD_DICTIONARY = 0, 1, 3
_DICTIONARIES = {2: "dictionary-1.zdict", _ZSTD_DICTIONARY: "dictionary-2.zdict"}
"""The files of the dictionaries, by compression. Stored items need the exact bytes that they were written with."""
_COMPRESSION, _GROUP, _SIGNED, _ENCRYPTED = 0x0F, 0x10, 0x40, 0x80
_UNREADABLE = 0xFF
"""The format byte of what could not be decrypted; it is never stored."""
ENCRYPTION_BYTES = 29
"""An encrypted or signed item is longer by so many bytes: format byte, nonce and tag."""
_LEVEL = 6  # the first level with Huffman tables of its own: hex and range lists are a third smaller than at level 5
_LONG_FRAME = b"\x80"
"""A zstd frame whose first byte is less states at most 65,791 bytes, or no size: then decompression refuses it."""
_WORTH_COMPRESSING = 128  # shorter data would become only 3 % smaller


new_tuple = tuple.__new__
"""Makes a NamedTuple of its fields without running Python code: `new_tuple(ItemId, (lane, n))`. For the hot path."""


class ItemId(NamedTuple):
    """The id of an item in its thread's log."""

    lane: int
    n: int


class ItemRange(NamedTuple):
    """Consecutive items of one lane."""

    lane: int
    start: int
    length: int

    def ids(self) -> Iterator[ItemId]:
        """Return the ids of the items, in order."""
        return (ItemId(self.lane, n) for n in range(self.start, self.start + self.length))


class Item(NamedTuple):
    """The content of an item: `elements` complete elements of a list, or entries of a dict, as bytes.

    An element that is stored in several items counts 1 in the first of them and 0 in the others.
    """

    data: bytes
    elements: int = 1


class _Compression:
    """A pool of zstd contexts. Each is used by one thread at a time, because threads must not share one."""

    def __init__(self, dictionary: bytes | None, level: int = _LEVEL) -> None:
        self._format = zstandard.FORMAT_ZSTD1_MAGICLESS
        self._params = zstandard.ZstdCompressionParameters.from_level(
            level, format=self._format, write_content_size=True, write_checksum=False, write_dict_id=False
        )
        self._dictionary = dictionary
        self._dict = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._compressors: list[zstandard.ZstdCompressor] = []
        self.decompressors: list[zstandard.ZstdDecompressor] = []

    def compress(self, data: bytes) -> bytes:
        worker = (
            self._compressors.pop()
            if self._compressors
            else zstandard.ZstdCompressor(dict_data=self._prepared, compression_params=self._params)
        )
        try:
            return worker.compress(data)
        finally:
            self._compressors.append(worker)

    @cached_property
    def _prepared(self) -> zstandard.ZstdCompressionDict | None:
        """The dictionary as compressors use it. Preparing it takes a millisecond, which a reader need not wait for.

        It has an object of its own, because preparing changes it: another thread may be using that of decompressors.
        """
        if self._dictionary is None:
            return None
        prepared = zstandard.ZstdCompressionDict(self._dictionary)
        prepared.precompute_compress(compression_params=self._params)
        return prepared

    def decompress(self, data: bytes) -> bytes:
        if data[:1] >= _LONG_FRAME:
            self.check_size(data)
        worker = self.take_decompressor()
        try:
            return worker.decompress(data)
        finally:
            self.decompressors.append(worker)

    def check_size(self, data: bytes) -> None:
        """Raise ZstdError if more bytes would be allocated than an item may hold."""
        size = zstandard.get_frame_parameters(data, format=self._format).content_size
        if size > 2 * CHUNK:
            raise zstandard.ZstdError(f"{size} bytes are more than an item may hold")

    def take_decompressor(self) -> zstandard.ZstdDecompressor:
        """Return a context that no other thread has. Append it to `decompressors` afterwards."""
        try:
            return self.decompressors.pop()
        except IndexError:
            return zstandard.ZstdDecompressor(dict_data=self._dict, format=self._format)


@cache
def _compression(method: int) -> _Compression:
    if method == _ZSTD:
        return _Compression(None)
    if method in _DICTIONARIES:
        return _Compression(files("threadkeep.engine.log").joinpath(_DICTIONARIES[method]).read_bytes())
    raise zstandard.ZstdError(f"unknown compression {method}")


_QUICK_LEVEL, _MAX_QUICK = 4, 4096
"""Up to so many bytes may be compressed at this level, in a third of the time; they take 7 % more space."""


@cache
def _quick_compression() -> _Compression:
    dictionary = files("threadkeep.engine.log").joinpath(_DICTIONARIES[_ZSTD_DICTIONARY])
    return _Compression(dictionary.read_bytes(), _QUICK_LEVEL)


def seal(data: bytes, seed: int, *, elements: int = 1, compress: bool = True, quick: bool = False) -> bytes:
    """Return bytes as they are stored: compressed if that makes them smaller, with format byte and checksum.

    With `quick`, a short text is compressed less, in less time. ValueError if they are too many for a row.
    """
    length, method, body = len(data), _RAW, data
    if length > 2 * CHUNK:
        raise ValueError(f"{length} bytes in one row: keep large values in channels or metadata")
    if compress and length >= _WORTH_COMPRESSING:
        compression = _quick_compression() if quick and length <= _MAX_QUICK else _compression(_ZSTD_DICTIONARY)
        smaller = compression.compress(data)
        if len(smaller) < length:
            method, body = _ZSTD_DICTIONARY, smaller
    if elements != 1:
        method |= _GROUP
        head = bytes((method,)) + varint(elements)
        return head + _CRC.pack(_checksum(body, seed, method, elements)) + body
    # As `_checksum` has it, for one element.
    return _HEADER.pack(method, zlib.crc32(body, (seed ^ method * 0x01000193 ^ 0x85EBCA6B) & 0xFFFFFFFF)) + body


def unseal(stored: bytes, seed: int, what: str) -> Item:
    """Reverse `seal`. Corrupt if the checksum does not match; `what` names the row in the error."""
    try:
        method, elements, at = stored[0], 1, 1
        if method & _ENCRYPTED:
            _refuse_encrypted(method, what)
        if method & _GROUP:
            elements, at = read_varint(stored, 1)
        body = stored[at + 4 :]
        if _CRC.unpack_from(stored, at)[0] != _checksum(body, seed, method, elements):
            raise Corrupt(f"{what}: the checksum does not match the stored bytes")
        compression = method & _COMPRESSION
        data = body if compression == _RAW else _compression(compression).decompress(body)
    except (IndexError, TypeError, struct.error, zstandard.ZstdError, MemoryError) as error:
        raise Corrupt(f"{what}: {error}") from error
    return Item(data, elements)


def _refuse_encrypted(method: int, what: str) -> None:
    if method == _UNREADABLE:
        raise Corrupt(f"{what}: it cannot be decrypted; it was changed, is not encrypted, or belongs elsewhere")
    raise WrongKey(f"{what} is encrypted: open the storage with keys=")


def sign_item(stored: bytes, signature: bytes) -> bytes:
    """Return a stored item with a signature of ENCRYPTION_BYTES bytes behind it."""
    return bytes((stored[0] | _SIGNED,)) + stored[1:] + signature


def split_signed(stored: bytes) -> tuple[bytes, bytes]:
    """Reverse `sign_item`. ValueError if there is no signature."""
    if not stored[0] & _SIGNED:
        raise ValueError("it is not signed")
    return bytes((stored[0] & ~_SIGNED,)) + stored[1:-ENCRYPTION_BYTES], stored[-ENCRYPTION_BYTES:]


def unseal_usual(stored: bytes, seed: int) -> bytes:
    """Return what `unseal` returns, of one element. ValueError if it is a group or does not match its checksum."""
    method = stored[0]
    body = stored[5:]
    checksum = zlib.crc32(body, (seed ^ method * 0x01000193 ^ 0x85EBCA6B) & 0xFFFFFFFF)
    if method & _GROUP or int.from_bytes(stored[1:5], "little") != checksum:
        raise ValueError("unusual or damaged")
    return body if method == _RAW else _compression(method & _COMPRESSION).decompress(body)


def full_length(length: int, beginning: bytes, what: str) -> int:
    """Return how many bytes a stored item holds, given its stored length and first bytes, without decompressing it.

    With the bit for encryption, the length is that of the encrypted item, the first bytes are those of the plain one.
    """
    try:
        if beginning[0] & _ENCRYPTED:
            length -= ENCRYPTION_BYTES
        at = read_varint(beginning, 1)[1] + 4 if beginning[0] & _GROUP else 5
        if beginning[0] & _COMPRESSION == _RAW:
            return length - at
        frame = zstandard.get_frame_parameters(beginning[at:], format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    except (IndexError, zstandard.ZstdError) as error:
        raise Corrupt(f"{what}: {error}") from error
    return int(frame.content_size)


def reseed(stored: bytes, seed: int) -> bytes:
    """Return sealed bytes with another seed in their checksum. They must be intact."""
    elements, at = read_varint(stored, 1) if stored[0] & _GROUP else (1, 1)
    body = stored[at + 4 :]
    return stored[:at] + _CRC.pack(_checksum(body, seed, stored[0], elements)) + body


_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<BI")


def _checksum(body: bytes, seed: int, method: int, elements: int) -> int:
    """Return the checksum of a body, its seed and its format."""
    return zlib.crc32(body, (seed ^ method * 0x01000193 ^ elements * 0x85EBCA6B) & 0xFFFFFFFF)


def seal_item(at: ItemId, item: Item, family: int, *, compress: bool = True) -> bytes:
    """Return an item as it is stored under this id, in a thread of this family."""
    return seal(item.data, _item_seed(at, family), elements=item.elements, compress=compress)


def seal_items(
    items: Iterable[tuple[ItemId, Item]],
    family: int,
    raw: Collection[ItemId] = (),
    *,
    compress: bool = True,
    quick: bool = False,
) -> tuple[tuple[ItemId, bytes], ...]:
    """Return items as they are stored in a thread of this family. Those in `raw` are not compressed."""
    sealed = []
    for at, (data, elements) in items:
        seed = (at[0] * 0x9E3779B1 + at[1]) & 0xFFFFFFFF ^ family  # as `_item_seed`
        packs = compress and (not raw or at not in raw)
        sealed.append((at, seal(data, seed, elements=elements, compress=packs, quick=quick)))
    return tuple(sealed)


def expand_item(at: ItemId, stored: bytes, family: int) -> bytes:
    """Return a stored item without compression. Corrupt if the bytes were not stored under this id."""
    if not stored[0] & _COMPRESSION:
        return stored
    return seal_item(at, unseal_item(at, stored, "the thread", family), family, compress=False)


def unseal_item(at: ItemId, stored: bytes, where: str, family: int) -> Item:
    """Reverse `seal_item`. Corrupt if the bytes were not stored under this id; `where` names the thread."""
    try:
        return unseal(stored, _item_seed(at, family), "it")
    except Corrupt as error:
        raise Corrupt(f"item {at.lane}:{at.n} of {where}{str(error).removeprefix('it')}") from error


def unseal_items(
    stored: Mapping[ItemId, bytes], cached: Mapping[int, Mapping[int, bytes]], where: str, family: int
) -> list[tuple[ItemId, bytes, int]]:
    """Unseal the items that are not `cached` (bytes by lane and n), as (id, data, elements).

    Does what `unseal_item` does, without a Python call for each item of the usual format.
    """
    usual, at, unsealed = _compression(_ZSTD_DICTIONARY), ItemId(0, 0), list[tuple[ItemId, bytes, int]]()
    worker, crc32, from_bytes, add = usual.take_decompressor(), zlib.crc32, int.from_bytes, unsealed.append
    decompress = worker.decompress
    try:
        for at, payload in stored.items():
            lane, n = at
            if lane in cached and n in cached[lane]:
                continue
            if type(payload) is not bytes or payload[:1] != _USUAL_FORMAT or len(payload) < 6:
                unsealed.append((at, *unseal_item(at, payload, where, family)))
                continue
            body, seed = payload[5:], (lane * 0x9E3779B1 + n) & 0xFFFFFFFF ^ family ^ _USUAL_SEED
            if from_bytes(payload[1:5], "little") != crc32(body, seed):
                unseal_item(at, payload, where, family)  # raises the error
            if payload[5] >= _LONG_FRAME[0]:
                usual.check_size(body)
            add((at, decompress(body), 1))
    except (zstandard.ZstdError, MemoryError, TypeError) as error:
        raise Corrupt(f"item {at[0]}:{at[1]} of {where}: {error}") from error
    finally:
        usual.decompressors.append(worker)
    return unsealed


_USUAL_FORMAT = bytes([_ZSTD_DICTIONARY])
_USUAL_SEED = _ZSTD_DICTIONARY * 0x01000193 ^ 0x85EBCA6B
"""What `_checksum` adds to the seed of one element that is compressed with the dictionary."""


def _item_seed(at: ItemId, family: int) -> int:
    return (at[0] * 0x9E3779B1 + at[1]) & 0xFFFFFFFF ^ family


_SMALL = [bytes([number]) for number in range(0x80)]


def varint(number: int) -> bytes:
    """Encode a non-negative integer, seven bits per byte."""
    if number < 0x80:
        return _SMALL[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at `at`, and where the next one starts."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def read_varints(data: bytes) -> list[int]:
    """Return all integers of the data, in one call. IndexError if the last one is cut off."""
    if type(data) is bytes and data.isascii():
        return list(data)  # each of them has one byte
    numbers: list[int] = []
    number = shift = 0
    for at in range(len(data)):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
        else:
            shift += 7
    if shift:
        raise IndexError("index out of range")
    return numbers


@lru_cache(maxsize=1024)
def pack_ranges(ranges: tuple[ItemRange, ...]) -> bytes:
    """Return ranges as varints, never encrypted: which items are used is known without reading any state."""
    numbers = list(chain.from_iterable(ranges))
    return bytes(numbers) if not numbers or max(numbers) < 0x80 else pack_varints(numbers)


def pack_varints(numbers: Sequence[int]) -> bytes:
    """Encode non-negative integers, seven bits per byte. Makes no call if all are small."""
    if not numbers or max(numbers) < 0x80:
        return bytes(numbers)
    return b"".join([_SMALL[number] if number < 0x80 else varint(number) for number in numbers])


def unpack_ranges(data: bytes) -> tuple[ItemRange, ...]:
    """Reverse `pack_ranges`. ValueError if a range is incomplete."""
    numbers = iter(data if type(data) is bytes and data.isascii() else read_varints(data))
    try:
        return tuple(map(new_tuple, repeat(ItemRange), zip(numbers, numbers, numbers, strict=True)))
    except ValueError as error:
        raise ValueError("an item range is cut off") from error


def unpack_range_list(at: ItemId, stored: bytes, family: int) -> tuple[ItemRange, ...]:
    """Return the ranges of a stored range list."""
    if stored[:1] > b"\x3f" and stored[0] & _SIGNED and not stored[0] & _ENCRYPTED:
        stored = split_signed(stored)[0]
    try:
        return unpack_ranges(unseal_item(at, stored, "the thread", family).data)
    except WrongKey as error:  # range lists are signed, never encrypted
        raise Corrupt(f"range list {at.n}: another item is stored in its place") from error


def join_ranges(ids: Iterable[tuple[int, int]]) -> tuple[ItemRange, ...]:
    """Return ids, in their order, as the fewest ranges."""
    return add_to_ranges((), ids)


def add_to_ranges(ranges: tuple[ItemRange, ...], ids: Iterable[tuple[int, int]]) -> tuple[ItemRange, ...]:
    """Return ranges with more ids after them."""
    joined = list(ranges)
    lane, start, length = joined.pop() if joined else (-1, 0, 0)
    for id_lane, n in ids:
        if id_lane == lane and start + length == n:
            length += 1
            continue
        if length:
            joined.append(new_tuple(ItemRange, (lane, start, length)))
        lane, start, length = id_lane, n, 1
    if length:
        joined.append(new_tuple(ItemRange, (lane, start, length)))
    return tuple(joined)


def union(ranges: Iterable[ItemRange]) -> list[ItemRange]:
    """Return the items of all these ranges, each once, as sorted disjoint ranges."""
    merged: list[ItemRange] = []
    for each in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last.lane == each.lane and last.start + last.length >= each.start:
            end = max(last.start + last.length, each.start + each.length)
            merged[-1] = ItemRange(last.lane, last.start, end - last.start)
        else:
            merged.append(each)
    return merged


def subtract(stored: Iterable[ItemRange], used: Iterable[ItemRange]) -> tuple[ItemRange, ...]:
    """Return the items of `stored` that are not in `used`, as sorted disjoint ranges."""
    left: list[ItemRange] = []
    kept = union(used)
    starts = [(each.lane, each.start) for each in kept]
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
