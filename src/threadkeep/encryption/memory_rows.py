"""Memories and their vectors, sealed and opened, and the names under which they are stored.

The value of a sealed memory is a JSON string, so that every database stores it where it stores JSON: base64 of the
sealed bytes. These contain the JSON text, usually compressed, and before it a digest of the memory's words and the
number of its vectors. Associated data binds them to tenant, namespace, key, ttl and time of update. The database itself
changes `created` (a replaced memory keeps it) and `expires` (a refresh moves it), so these are not bound.

A sealed vector has no format byte: nonce and tag are as long as 7 numbers, and a database that stores vectors as arrays
of numbers stores it as one. It is bound to its memory's namespace and number, its field, and the number of vectors.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.encryption.data_key import OVERHEAD, SEALED, DataKey
from threadkeep.encryption.tenant_key import TenantKey
from threadkeep.engine.identity import from_bytes, to_bytes
from threadkeep.engine.log.itemlog import CHUNK, seal, unseal
from threadkeep.engine.memories.checksums import damaged_memory
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, encode, memory_number
from threadkeep.engine.memories.requests import MemoryRow, NewMemory, VectorRow, is_sealed
from threadkeep.errors import Corrupt

VECTOR_OVERHEAD = OVERHEAD - len(SEALED)
"""So many bytes longer is a sealed vector."""
_SEGMENT, _KEY, _WORD, _WORDS = "segment", "key", "word", "words"
_WORD_BYTES, _WORDS_BYTES = 8, 8
_CACHED_WORDS = 1 << 16
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What decoding a damaged value may raise."""


class RevealedRow(MemoryRow):
    """A memory whose namespace and key are hidden in the storage. It is stored under the number of the hidden ones."""

    stored: MemoryKey

    def number(self, tenant: str) -> int:
        """Return the number under which this memory is stored."""
        return memory_number(tenant, self.stored)


class OpenedMemory(NamedTuple):
    """What a sealed value contains: the JSON text, the number of vectors, and a digest of the words."""

    value: str
    vectors: int
    words: bytes


class MemoryCipher:
    """Seals and opens the memories of one tenant, with the data keys of their partitions."""

    def __init__(self, key: TenantKey, *, compress: bool = True) -> None:
        self._key = key
        self._compress = compress
        self._tenant = to_bytes(key.tenant)
        self.hides_ids = key.state.hides_ids
        self.hidden_word = lru_cache(_CACHED_WORDS)(self._hidden_word)

    # --- names

    def stored_namespace(self, namespace: Namespace) -> Namespace:
        """Return a namespace, or a prefix of one, as it is stored."""
        hide = self._key.hide
        return tuple([hide(_SEGMENT, segment) for segment in namespace]) if self.hides_ids else namespace

    def stored_key(self, key: MemoryKey) -> MemoryKey:
        """Return a memory's key as it is stored."""
        if not self.hides_ids:
            return key
        return MemoryKey(self.stored_namespace(key.namespace), self._key.hide(_KEY, key.key))

    def real_namespace(self, stored: Namespace) -> Namespace:
        """Reverse `stored_namespace`. Corrupt if it was changed."""
        if not self.hides_ids:
            return stored
        try:
            reveal = self._key.reveal
            return tuple([reveal(_SEGMENT, segment) for segment in stored])
        except Corrupt as error:
            raise Corrupt(f"the namespace {'/'.join(stored)} is damaged: {error}") from error

    def real_key(self, stored: MemoryKey) -> MemoryKey:
        """Reverse `stored_key`. Corrupt if it was changed."""
        if not self.hides_ids:
            return stored
        try:
            return MemoryKey(self.real_namespace(stored.namespace), self._key.reveal(_KEY, stored.key))
        except Corrupt as error:
            raise damaged_memory(stored, str(error)) from error

    # --- words

    def _hidden_word(self, word: str) -> str:
        """Return the digest of a word as text that every database takes for one word."""
        return self._key.digest(_WORD, to_bytes(word), _WORD_BYTES).hex()

    def hidden_words(self, marked: str) -> str:
        """Return marked words as they are stored: each replaced by its digest, with the same mark, in order."""
        hidden = self.hidden_word
        return " ".join(sorted([hidden(word[:-1]) + word[-1] for word in marked.split(" ")])) if marked else ""

    def words_digest(self, hidden: str) -> bytes:
        """Return a digest of all stored words of a memory."""
        return self._key.digest(_WORDS, hidden.encode(), _WORDS_BYTES) if hidden else b""

    # --- values

    def seal(self, memory: NewMemory, key: DataKey) -> NewMemory:
        """Return a memory as it is stored."""
        row, vectors, words = memory
        place, stored, hidden = self._place(row), self.stored_key(row.memory_key), self.hidden_words(words)
        data = to_bytes(row.value)
        pieces = [
            seal(data[at : at + CHUNK], 0, compress=self._compress, quick=True) for at in range(0, len(data), CHUNK)
        ]
        sealed = key.seal(ormsgpack.packb([self.words_digest(hidden), len(vectors), *pieces]), place)
        text = f'"{b64encode(sealed).decode()}"'
        if vectors:
            number = memory_number(self._key.tenant, stored)
            vectors = tuple(
                [
                    key.seal(vector, self._vector_place(row.namespace, number, field, len(vectors)))[len(SEALED) :]
                    for field, vector in enumerate(vectors)
                ]
            )
        return NewMemory(row._replace(namespace=stored.namespace, key=stored.key, value=text), vectors, hidden)

    def open(self, row: MemoryRow, real: MemoryKey, keys: Mapping[str, DataKey]) -> OpenedMemory:
        """Open the value of a stored memory. Corrupt if it is not sealed, was changed, or belongs to another memory."""
        try:
            key = _key_of(real.namespace, keys)
            data = key.open(
                b64decode(_sealed_text(row.value), validate=True),
                self._place(row._replace(namespace=real.namespace, key=real.key)),
            )
            words, count, *pieces = ormsgpack.unpackb(data)
            text = b"".join([unseal(piece, 0, "its value").data for piece in pieces])
            return OpenedMemory(from_bytes(text), count, words)
        except (Corrupt, *MALFORMED) as error:
            raise damaged_memory(real, str(error)) from error

    def opened(self, row: MemoryRow, real: MemoryKey, keys: Mapping[str, DataKey]) -> MemoryRow:
        """Return a memory as the engine knows it."""
        values = (*real, self.open(row, real, keys).value, *row[3:])
        if not self.hides_ids:
            return tuple.__new__(MemoryRow, values)
        return self._revealed(row, values)

    def revealed(self, row: MemoryRow) -> MemoryRow:
        """Return a stored memory with its real namespace and key; its value stays sealed."""
        real = self.real_key(row.memory_key)
        return self._revealed(row, (*real, *row[2:])) if self.hides_ids else row

    def _revealed(self, row: MemoryRow, values: tuple[Any, ...]) -> RevealedRow:
        revealed = tuple.__new__(RevealedRow, values)
        revealed.stored = row.stored if isinstance(row, RevealedRow) else row.memory_key
        return revealed

    def _place(self, row: MemoryRow) -> bytes:
        minutes = row.ttl or (None if row.ttl is None else 0.0)  # SQLite stores -0.0 as 0.0
        return b"m" + ormsgpack.packb([self._tenant, encode(row.namespace), to_bytes(row.key), minutes, row.updated])

    # --- vectors

    def open_vector(self, row: VectorRow, namespace: Namespace, count: int, keys: Mapping[str, DataKey]) -> VectorRow:
        """Open one of the `count` vectors of a memory in this namespace. Corrupt as in `open`."""
        try:
            key = _key_of(namespace, keys)
            place = self._vector_place(namespace, row.memory, row.field, count)
            return VectorRow(row.memory, row.field, namespace, key.open(SEALED + row.vector, place))
        except (Corrupt, *MALFORMED) as error:
            raise Corrupt(
                f"vector {row.field} of memory number {row.memory} in {'/'.join(namespace)} is damaged: {error}, or "
                "another vector of the memory is missing; `threadkeep verify` names the memory: put it again"
            ) from error

    def _vector_place(self, namespace: Namespace, number: int, field: int, count: int) -> bytes:
        return b"v" + ormsgpack.packb([self._tenant, encode(namespace), number, field, count])


def _key_of(namespace: Namespace, keys: Mapping[str, DataKey]) -> DataKey:
    key = keys.get(namespace[0])
    if key is None:
        raise Corrupt("there is no data key of its partition")
    return key


def _sealed_text(value: str) -> str:
    if not is_sealed(value):
        raise Corrupt("it is not encrypted")
    return value[1:-1]
