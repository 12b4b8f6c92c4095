"""Checksums of memories and vectors. Every read compares them, so that a damaged row raises Corrupt and is not served.

A memory's `checksum` covers number, tenant, namespace, key, ttl, number of vectors and value. The database sets some
times (a replaced memory keeps `created`, a refresh moves `expires`), so `times` is their sum, and the statements that
change a time change the sum. A vector's checksum covers its memory, its field, how many vectors the memory has, the
namespace and the numbers; SQL databases add the vector's sequence number to it. Rows that were written before there
were checksums have None and are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from threadkeep.engine.identity import decode_lossy
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, decode, memory_number
from threadkeep.engine.memories.requests import MemoryRow, VectorRow
from threadkeep.errors import Corrupt

MALFORMED_MEMORY_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What decoding a damaged memory or vector may raise."""
_MAX_TIME = 1 << 57
"""Later than the year 4000. A memory without checksums may not have a time outside of this."""
CHECKSUM_HEAD = b"%d,%a,%a,%d,%d,%b%b"
"""What a memory's checksum covers besides its value: see `memory_checksum`."""
_WAY_ON = "delete it, or put it again"


class StoredVector(NamedTuple):
    """A vector as it is stored. `checksum` is without the sequence number."""

    memory: int
    field: int
    space: bytes
    vector: bytes
    checksum: int | None


def memory_checksum(
    number: int, tenant: str, space: bytes, key: bytes, ttl: float | None, vectors: int, value: bytes
) -> int:
    """Return the checksum of a memory. `space` is its encoded namespace, `value` its JSON text."""
    minutes = ttl or (None if ttl is None else 0.0)  # SQLite stores -0.0 as 0.0
    return crc32(value, crc32(CHECKSUM_HEAD % (number, tenant, minutes, vectors, len(space), space, key)))


def sum_of_times(created: int, updated: int, expires: int | None) -> int:
    """Return the value of the column `times`."""
    return created + updated + (expires or 0)


def vector_checksum(memory: int, field: int, count: int, space: bytes, vector: bytes) -> int:
    """Return the checksum of a vector of a memory that has `count` vectors."""
    return crc32(vector, crc32(b"%d,%d,%d,%b" % (memory, field, count, space)))


def read_memory(tenant: str, *columns: Any) -> MemoryRow:
    """Return the memory in a stored row. Corrupt if it cannot be decoded or is not what was stored."""
    return read_memories(tenant, (columns,))[0]


def read_memories(tenant: str, rows: Iterable[Sequence[Any]]) -> list[MemoryRow]:
    """Return the memories in stored rows. Corrupt if one cannot be decoded or is not what was stored.

    Each read of memories ends here. The loop makes no call of a Python function for a memory that has a checksum and
    whose namespace was read before: `tests/test_store_steps.py` counts them.
    """
    memories: list[MemoryRow] = []
    make_row = tuple.__new__
    for number, space, key, value, created, updated, expires, ttl, vectors, checksum, times in rows:
        try:
            data = value if type(value) is bytes else value.encode("utf-8", "surrogatepass")
            row = make_row(
                MemoryRow,
                (
                    decode(space),
                    key.decode("utf-8", "surrogatepass"),
                    data.decode("utf-8", "surrogatepass"),
                    created,
                    updated,
                    expires,
                    ttl,
                ),
            )
            if checksum is None and times is None:
                _check_without_checksum(tenant, number, row)
            elif times != created + updated + (expires or 0):
                raise ValueError("its times do not match their checksum")
            else:  # as in `memory_checksum`
                minutes = ttl or (None if ttl is None else 0.0)
                head = CHECKSUM_HEAD % (number, tenant, minutes, vectors or 0, len(space), space, key)
                if checksum != crc32(data, crc32(head)):
                    raise ValueError("it does not match its checksum")
        except MALFORMED_MEMORY_ERRORS as error:
            raise damaged_row(space, key, number, error) from error
        memories.append(row)
    return memories


def _check_without_checksum(tenant: str, number: int, row: MemoryRow) -> None:
    """Raise ValueError if a memory that has no checksum has another number, or times that cannot be used."""
    if number != memory_number(tenant, row.memory_key):
        raise ValueError(f"it has the number {number}, which is not its own")
    times = [row.created, row.updated, *([] if row.expires is None else [row.expires])]
    if any(type(time) is not int or not -_MAX_TIME < time < _MAX_TIME for time in times):
        raise ValueError("one of its times is not a time")
    if row.ttl is not None and not (type(row.ttl) is float and 0 <= row.ttl < _MAX_TIME):
        raise ValueError("its ttl is not a number of minutes")


def read_vectors(stored: Sequence[StoredVector]) -> tuple[VectorRow, ...]:
    """Return vectors; those of a memory are all there or none. Corrupt if one is missing or not what was stored."""
    counts = Counter(each.memory for each in stored)
    return tuple([check_vector(each, counts[each.memory]) for each in stored])


def check_vector(stored: StoredVector, count: int) -> VectorRow:
    """Return one of the `count` vectors of a memory. Corrupt as in `read_vectors`."""
    memory, field, space, vector, checksum = stored
    try:
        if checksum is not None and checksum != vector_checksum(memory, field, count, space, vector):
            raise ValueError("it does not match its checksum, or another vector of the memory is missing")
        return VectorRow(memory, field, decode(space), vector)
    except MALFORMED_MEMORY_ERRORS as error:
        raise Corrupt(
            f"vector {field} of memory number {memory} in {_lossy_namespace(space)} is damaged: {_reason(error)}; "
            "`threadkeep verify` names the memory: put it again"
        ) from error


def memory_name(namespace: Namespace, key: str) -> str:
    """Return a memory's name for messages."""
    return f"memory {key!r} in {'/'.join(namespace)}"


def damaged_memory(key: MemoryKey, why: str) -> Corrupt:
    """Return the error for a memory that is damaged."""
    return Corrupt(f"{memory_name(*key)} is damaged: {why}; {_WAY_ON}")


def damaged_row(space: Any, key: Any, number: int | None, error: Exception) -> Corrupt:
    """Return the error for a row of a memory that cannot be read. It names the memory as far as possible."""
    text = decode_lossy(key)
    name = f"memory number {number}" if text is None else f"memory {text!r} in {_lossy_namespace(space)}"
    return Corrupt(f"{name} is damaged: {_reason(error)}; {_WAY_ON}")


def _lossy_namespace(space: Any) -> str:
    return (decode_lossy(space) or "an unreadable namespace").replace("\x00\x01", "/").rstrip("/")


def _reason(error: Exception) -> str:
    """Return our own messages as they are, and others with their type."""
    return str(error) if type(error) is ValueError else repr(error)
