"""Encrypted portable files: the same bytes in chunks, each sealed with a key of the file's own.

    magic number, length of the head (4 bytes), head (msgpack: id of the master key, wrapped key of the file)
    chunk: its length (4 bytes, the highest bit set on the last one), encrypted bytes and tag

A chunk's nonce is its number, and its associated data has the head and whether it is the last one. So chunks cannot be
changed, moved, left out or cut off without notice.
"""

from __future__ import annotations

import io
import os
import struct
from typing import TYPE_CHECKING, Any

import ormsgpack

from threadkeep.errors import WrongKey

if TYPE_CHECKING:
    from threadkeep.encryption.keys import Keys

MAGIC = b"threadkeep sealed 1\n"
_LENGTH = struct.Struct(">I")
_LAST = 1 << 31
_CHUNK = 64 * 1024
_TAG = 16
_MAX_HEAD = 64 * 1024
_CONTEXT = b"portable file"


class SealingWriter:
    """A file to write to; what is written is encrypted into another file. `close` writes the last chunk."""

    def __init__(self, file: Any, keys: Keys) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - takes 12 ms

        key = os.urandom(32)
        self._head = ormsgpack.packb(list(keys.wrap(key, _CONTEXT)))
        self._encrypt = AESGCM(key).encrypt
        self._file = file
        self._waiting = bytearray()
        self._number = 0
        file.write(MAGIC + _LENGTH.pack(len(self._head)) + self._head)

    def write(self, data: bytes) -> int:
        """Encrypt what fills a chunk."""
        self._waiting += data
        while len(self._waiting) > _CHUNK:
            self._write_chunk(bytes(self._waiting[:_CHUNK]), last=False)
            del self._waiting[:_CHUNK]
        return len(data)

    def flush(self) -> None:
        """Do nothing: a chunk is written when it is full."""

    def close(self) -> None:
        """Write what is left, as the last chunk. The other file stays open."""
        self._write_chunk(bytes(self._waiting), last=True)
        self._waiting.clear()

    def _write_chunk(self, data: bytes, *, last: bool) -> None:
        sealed = self._encrypt(_nonce(self._number), data, _place(self._head, last=last))
        self._file.write(_LENGTH.pack(len(sealed) | (_LAST if last else 0)) + sealed)
        self._number += 1


class OpeningReader(io.RawIOBase):
    """A file to read from: the decrypted bytes of another file, whose magic number was read already.

    WrongKey if there are no keys, or others. ValueError if the file was changed or cut off.
    """

    def __init__(self, file: Any, keys: Keys | None) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._file = file
        if keys is None:
            raise WrongKey("the file is encrypted: open the storage with the keys of the one that it was exported from")
        (length,) = _LENGTH.unpack(self._exactly(4))
        if length > _MAX_HEAD:
            raise ValueError("the head of the encrypted file was changed")
        self._head = self._exactly(length)
        try:
            master, wrapped = ormsgpack.unpackb(self._head)
        except (ValueError, TypeError) as error:
            raise ValueError("the head of the encrypted file was changed") from error
        if (type(master), type(wrapped)) != (str, bytes):
            raise ValueError("the head of the encrypted file was changed")
        self._decrypt = AESGCM(keys.unwrap(master, wrapped, _CONTEXT)).decrypt
        self._number = 0
        self._chunk = memoryview(b"")
        self._is_at_end = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read up to as many bytes as fit; 0 at the end."""
        while not self._chunk and not self._is_at_end:
            self._read_chunk()
        taken = self._chunk[: len(buffer)]
        buffer[: len(taken)] = taken
        self._chunk = self._chunk[len(taken) :]
        return len(taken)

    def _read_chunk(self) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        (length,) = _LENGTH.unpack(self._exactly(4))
        last, length = bool(length & _LAST), length & ~_LAST
        if not _TAG <= length <= _CHUNK + _TAG:
            raise ValueError(f"chunk {self._number + 1} of the encrypted file was changed")
        try:
            plain = self._decrypt(_nonce(self._number), self._exactly(length), _place(self._head, last=last))
        except InvalidTag as error:
            raise ValueError(f"chunk {self._number + 1} of the encrypted file was changed") from error
        self._chunk, self._is_at_end, self._number = memoryview(plain), last, self._number + 1

    def _exactly(self, length: int) -> bytes:
        data = bytes(self._file.read(length))
        if len(data) < length:
            raise ValueError("the encrypted file is cut off")
        return data


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _place(head: bytes, *, last: bool) -> bytes:
    return (b"last " if last else b"chunk ") + head
