"""Data keys: AES-256-GCM over rows, with associated data that binds each row to its place.

Sealed bytes are: a format byte (0x80), a nonce of 12 random bytes, the encrypted bytes, a tag of 16 bytes. A data key
belongs to one thread, or to one partition of memories, so a nonce is very unlikely to repeat before 2^32 rows.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from threadkeep.errors import Corrupt

SEALED = b"\x80"
"""The format byte of sealed bytes. Nothing that is stored without keys starts with it."""
OVERHEAD = 29
"""So many bytes longer are sealed bytes than plain ones."""
UNREADABLE = b"\xff"
"""Stands for bytes that could not be opened: every decoder refuses it, and names the row."""


class DataKey:
    """A key that seals rows. `wrapped` is the key as it is stored, encrypted with the tenant's key."""

    __slots__ = ("_decrypt", "_encrypt", "wrapped")

    def __init__(self, key: bytes, wrapped: bytes) -> None:
        cipher = AESGCM(key)
        self._encrypt, self._decrypt = cipher.encrypt, cipher.decrypt
        self.wrapped = wrapped

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Encrypt bytes, for this place only."""
        nonce = os.urandom(12)
        return SEALED + nonce + self._encrypt(nonce, data, place)

    def open(self, stored: bytes, place: bytes) -> bytes:
        """Reverse `seal`. Corrupt if the bytes are not sealed, were changed, or come from another place."""
        if stored[:1] != SEALED:
            raise Corrupt("it is not encrypted, although its thread is")
        try:
            return self._decrypt(stored[1:13], stored[13:], place)
        except (InvalidTag, ValueError) as error:
            raise Corrupt("it cannot be decrypted: it was changed, or stored somewhere else") from error
