"""Values under LangGraph's EncryptedSerializer: SqliteSaver encrypts a checkpoint as a whole, a Keep each value."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.msgpack import SNAPSHOT, WHOLE
from threadkeep.transfer.sources.source import UnreadableError


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


@runtime_checkable
class ReadsEncrypted(Protocol):
    """A source that can read encrypted checkpoints, if it has the cipher."""

    cipher: ValueCipher | None


def cipher_of(serde: Any) -> ValueCipher | None:
    """Return the cipher of LangGraph's EncryptedSerializer; None if a serializer is another one."""
    return ValueCipher(serde.cipher) if isinstance(serde, EncryptedSerializer) else None
