"""The keys that users give to a Keep: master keys by id, or the functions of a key management service."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from threadkeep.errors import WrongKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE = 12
_EXAMPLE = "Make one with: openssl rand -base64 32"


class Keys:
    """Master keys of 32 bytes by id. `primary` names the one that wraps new keys; the others only unwrap.

    A master key encrypts no data: it wraps the key of each tenant. So a storage has few things to wrap again when a
    master key is replaced: give the new one as `primary` beside the old one, and run `threadkeep rotate`.
    """

    def __init__(self, keys: Mapping[str, bytes], primary: str) -> None:
        if not isinstance(keys, Mapping):
            raise TypeError(f"keys must be a mapping of ids to 32 bytes, not {type(keys).__name__}")
        for id, key in keys.items():
            _check(id, key)
        if _check_id(primary) not in keys:  # what was given may be a key: do not show it
            raise ValueError(f"primary must be the id of one of the keys: {', '.join(keys) or 'there are none'}")
        self.primary = primary
        self._ciphers = {id: _cipher(bytes(key)) for id, key in keys.items()}
        self._kms: tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]] | None = None

    @classmethod
    def from_env(cls, name: str = "THREADKEEP_KEYS") -> Self:
        """Read keys from an environment variable: `id:key` pairs with commas, the key in base64, the primary first."""
        text = os.environ.get(name, "")
        if not text.strip():
            raise ValueError(f"the environment variable {name} is not set")
        return cls._parse(text.split(","), f"the environment variable {name}")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read keys from a text file: a line `id:key` for each, the key in base64, the primary first.

        Empty lines and lines that start with # are skipped.
        """
        source = f"the file {os.fspath(path)}"
        try:
            lines = Path(path).read_text("utf-8-sig").splitlines()  # some editors write a BOM
        except UnicodeDecodeError:  # which would show what is in the file
            lines = None
        if lines is None:
            raise ValueError(f"{source} is not text: it must have lines with `id:` and 32 bytes in base64. {_EXAMPLE}")
        return cls._parse([line for line in lines if not line.lstrip().startswith("#")], source)

    @classmethod
    def from_kms(cls, id: str, *, wrap: Callable[[bytes], bytes], unwrap: Callable[[bytes], bytes]) -> Self:
        """Let a key management service wrap the keys of tenants: `wrap` encrypts 32 bytes, `unwrap` reverses that.

        `wrap` is called when a tenant is first used with keys, and by `encrypt`, `rotate` and `reencrypt`. `unwrap` is
        called once for each key of a tenant when a process first uses it, and again once a minute while the process
        writes; more often if several threads start together. Both may be called in any thread. `id` names the service's
        key in the storage. What `unwrap` raises for a key that it cannot unwrap becomes the cause of a WrongKey.
        """
        if not all(map(callable, (wrap, unwrap))):
            raise TypeError("wrap and unwrap must be functions that take bytes and return bytes")
        keys = cls.__new__(cls)
        keys.primary = _check_id(id)
        keys._ciphers, keys._kms = {}, (wrap, unwrap)  # noqa: SLF001 - its own class
        return keys

    @classmethod
    def _parse(cls, entries: list[str], source: str) -> Self:
        keys: dict[str, bytes] = {}
        for entry in filter(None, map(str.strip, entries)):
            id, colon, text = entry.partition(":")
            try:
                key = base64.b64decode(text.strip(), validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if not colon or not id.strip() or len(key) != KEY_BYTES:  # never show the entry: it may contain a key
                raise ValueError(f"{source}: entry {len(keys) + 1} is not `id:` and 32 bytes in base64. {_EXAMPLE}")
            if id.strip() in keys:
                raise ValueError(f"{source}: key {id.strip()!r} is given twice")
            keys[id.strip()] = key
        if not keys:
            raise ValueError(f"{source} has no keys")
        return cls(keys, primary=next(iter(keys)))

    def __repr__(self) -> str:
        """Name the keys, without showing them."""
        ids = [self.primary, *(id for id in self._ciphers if id != self.primary)]
        return f"Keys({', '.join(ids)})"

    def given_beside_primary(self, ids: Iterable[str]) -> bool:
        """Return whether one of these ids names a key that was given, and not the primary one."""
        return any(id in self._ciphers and id != self.primary for id in ids)

    def wrap(self, key: bytes, context: bytes) -> tuple[str, bytes]:
        """Encrypt a key with the primary master key. Return the id of that, and the wrapped key."""
        if self._kms is not None:
            wrapped: object = self._kms[0](key)
            if not isinstance(wrapped, bytes):
                raise TypeError(f"wrap must return bytes, not {type(wrapped).__name__}")
            return self.primary, wrapped
        nonce = os.urandom(_NONCE)
        return self.primary, nonce + self._ciphers[self.primary].encrypt(nonce, key, context)

    def unwrap(self, id: str, wrapped: bytes, context: bytes) -> bytes:
        """Reverse `wrap`. WrongKey if there is no such master key, or if it is another one of the same id."""
        if self._kms is not None:
            return self._unwrap_by_service(id, wrapped)
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - on use

        cipher = self._ciphers.get(id)
        if cipher is None:
            given = ", ".join(map(repr, self._ciphers))
            raise WrongKey(f"the storage is encrypted with the key {id!r}; the keys that were given are {given}")
        try:
            return cipher.decrypt(wrapped[:_NONCE], wrapped[_NONCE:], context)
        except (InvalidTag, ValueError) as error:
            raise WrongKey(f"the key {id!r} is not the one that the storage is encrypted with") from error

    def _unwrap_by_service(self, id: str, wrapped: bytes) -> bytes:
        assert self._kms is not None
        if id != self.primary:
            raise WrongKey(f"the storage is encrypted with the key {id!r}, not with {self.primary!r}")
        try:
            key: object = self._kms[1](wrapped)
        except Exception as error:
            raise WrongKey(f"the key management service did not unwrap a key with {id!r}") from error
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise WrongKey(f"the key management service returned something else than a key of {KEY_BYTES} bytes")
        return key


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - takes 12 ms

    return AESGCM(key)


def _check(id: Any, key: Any) -> None:
    _check_id(id)
    if not isinstance(key, (bytes, bytearray)):  # the id may be the key: do not show it
        raise TypeError(f"a key must be bytes, not {type(key).__name__}")
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key {id!r} must have {KEY_BYTES} bytes, not {len(key)}. {_EXAMPLE}")


def _check_id(id: Any) -> str:
    if not isinstance(id, str):
        raise TypeError(f"the id of a key must be a str, not {type(id).__name__}")
    if not id or len(id) > 200 or not id.isprintable():
        raise ValueError("the id of a key must be 1 to 200 printable characters")
    return id
