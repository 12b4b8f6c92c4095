"""Values under LangGraph's EncryptedSerializer: SqliteSaver encrypts a checkpoint as a whole, a Keep each value.

If the Keep has such a serializer too, with the same key, encrypted values stay as they are. Otherwise they are
decrypted while they are read, and stored as any other state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.msgpack import SNAPSHOT, WHOLE
from threadkeep.engine.log.splitter import Splitter
from threadkeep.errors import WrongKey
from threadkeep.transfer.sources.checkpoint_bytes import SplitCheckpoint, split_checkpoint
from threadkeep.transfer.sources.source import UnreadableError

AES_KEY = "LANGGRAPH_AES_KEY"
_KEY_BYTES = (16, 24, 32)
_SAMPLES = 20
"""So many encrypted values are tried before a key is refused: some may be damaged."""


def is_encrypted(tag: str | None) -> bool:
    """Whether EncryptedSerializer wrote a value with this tag."""
    return tag is not None and "+" in tag


class ValueCipher:
    """Opens and seals stored values with the cipher of the target's EncryptedSerializer."""

    def __init__(self, cipher: Any) -> None:
        self._cipher = cipher

    def opened(self, tag: str, data: bytes) -> tuple[str, bytes]:
        """Return a value as it was before it was encrypted. UnreadableError if it has another key, or was changed."""
        inner, _, name = tag.partition("+")
        if not name:
            return tag, data
        try:
            return inner, bytes(self._cipher.decrypt(name, data))
        except Exception as error:  # a user's cipher may raise anything
            raise UnreadableError(f"it cannot be decrypted ({type(error).__name__})") from error

    def sealed(self, tag: str, data: bytes) -> tuple[str, bytes]:
        """Return an encrypted value, as EncryptedSerializer writes it."""
        name, ciphertext = self._cipher.encrypt(data)
        return f"{tag}+{name}", bytes(ciphertext)

    def sealed_parts(self, parts: Parts) -> Parts:
        """Return an encrypted value in one part. A snapshot becomes the object that stands for it in msgpack."""
        data = parts.data
        if parts.snapshot:
            data = b"\xc9" + len(data).to_bytes(4) + bytes([SNAPSHOT]) + data
        tag, ciphertext = self.sealed(parts.tag, data)
        return Parts(WHOLE, tag, [ciphertext])


class OpeningCipher(ValueCipher):
    """Opens values that are then stored as they were before they were encrypted."""

    def sealed(self, tag: str, data: bytes) -> tuple[str, bytes]:
        """Return the value as it is."""
        return tag, data

    def sealed_parts(self, parts: Parts) -> Parts:
        """Return the value as it is."""
        return parts

    def splitter(self) -> Splitter:
        """Return a splitter that opens values before."""
        return _OpeningSplitter(self)


class _OpeningSplitter(Splitter):
    """Splits values after they were decrypted. One that cannot be decrypted stays as it is, and keeps its tag."""

    def __init__(self, cipher: ValueCipher) -> None:
        super().__init__()
        self._cipher = cipher

    def split(self, key: Any, tag: str, data: bytes) -> Parts:
        """Decrypt and split a value."""
        try:
            return super().split(key, *self._cipher.opened(tag, data))
        except UnreadableError:
            return Parts(WHOLE, tag, [data])


@runtime_checkable
class ReadsEncrypted(Protocol):
    """A source that can read encrypted checkpoints, if it has the cipher."""

    cipher: ValueCipher | None

    def encrypted_values(self) -> Iterator[tuple[str, bytes]]:
        """Read encrypted values with their tags, in any order."""


def splitter_of(cipher: ValueCipher | None) -> Splitter:
    """Return what splits the values of a source."""
    return cipher.splitter() if isinstance(cipher, OpeningCipher) else Splitter()


def split_whole(
    cipher: ValueCipher | None, splitter: Splitter, ns: str, tag: str | None, data: bytes | None
) -> SplitCheckpoint:
    """Split a checkpoint that may be encrypted as a whole. The values are encrypted again, one by one, if need be."""
    if cipher is None or tag is None or data is None or not is_encrypted(tag):
        return split_checkpoint(splitter, ns, tag, data)
    found = split_checkpoint(splitter, ns, *cipher.opened(tag, bytes(data)))
    return found._replace(
        values={name: cipher.sealed_parts(parts) for name, parts in found.values.items()},
        rest=cipher.sealed(*found.rest) if found.rest is not None else None,
    )


def read_serializer(key_file: Path) -> EncryptedSerializer:
    """Return the EncryptedSerializer with the AES key of a file, which may end with a line break."""
    key = key_file.read_bytes()
    if len(key) not in _KEY_BYTES:
        key = key.rstrip(b"\r\n")
    if len(key) not in _KEY_BYTES:
        raise ValueError(f"{key_file} must have 16, 24 or 32 bytes, not {len(key)}")
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


def cipher_of(serde: Any) -> ValueCipher | None:
    """Return the cipher of LangGraph's EncryptedSerializer; None if a serializer is another one."""
    return ValueCipher(serde.cipher) if isinstance(serde, EncryptedSerializer) else None


def cipher_for(source: ReadsEncrypted, target: ValueCipher | None, serde: Any) -> ValueCipher | None:
    """Return the cipher for the values of a source: that of the target, or of `serde`, or of LANGGRAPH_AES_KEY.

    WrongKey if the source has encrypted values and there is none, or if it opens none of those that were tried.
    """
    samples = list(islice(source.encrypted_values(), _SAMPLES))
    if not samples:
        return target
    cipher = target if target is not None else _opening_cipher(serde)
    if cipher is None:
        raise WrongKey(
            f"the source is encrypted ({samples[0][0]}) with LangGraph's EncryptedSerializer: set {AES_KEY}, or pass "
            "its serde=, on the command line --source-key FILE"
        )
    if not any(_opens(cipher, *each) for each in samples):
        raise WrongKey(f"the source is encrypted ({samples[0][0]}) with another key than the one that was given")
    return cipher


def _opening_cipher(serde: Any) -> OpeningCipher | None:
    if not isinstance(serde, EncryptedSerializer):
        if not os.environ.get(AES_KEY):
            return None
        serde = EncryptedSerializer.from_pycryptodome_aes()
    return OpeningCipher(serde.cipher)


def _opens(cipher: ValueCipher, tag: str, data: bytes) -> bool:
    try:
        cipher.opened(tag, bytes(data))
    except UnreadableError:
        return False
    return True
