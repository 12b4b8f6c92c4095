"""The values of PostgreSQL's `write-memories` and `write-vectors`: one array for each column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeAlias

from threadkeep.backends.sql.memories import MEMORY_COLUMNS, memory_columns, memory_id_values
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories.checksums import vector_checksum
from threadkeep.engine.memories.namespaces import MemoryKey, memory_numbers, partition_number
from threadkeep.engine.memories.requests import NewMemory, WriteMemories
from threadkeep.engine.memories.words import MARKS, mark

Put: TypeAlias = tuple[tuple[Any, ...], NewMemory]
"""A memory to store, and its row as the values of `MEMORY_COLUMNS`."""
_NUMBER, _PART, _SPACE, _COUNT = map(MEMORY_COLUMNS.index, ("memory", "part", "space", "vectors"))
_MANY_TIMES = re.compile(f"[{MARKS[2]}-{MARKS[-1]}]")
"""The marks of words that occur more than once."""
_LEXEME = re.compile(r"'([^']+)':([\d,]+)")
"""A word of a tsvector in its text form, with its positions."""
_COLUMNS = {
    "spaces": "space",
    "keys": "key",
    "created": "created",
    "updated": "updated",
    "expires": "expires",
    "values": "value",
    "counts": "vectors",
    "checksums": "checksum",
    "times": "times",
    "words_checks": "words_check",
}


def in_lock_order(request: WriteMemories) -> tuple[list[Put], list[dict[str, Any]]]:
    """Return what is stored and what is deleted, sorted by number, so that two transactions do not deadlock."""
    puts = [(memory_columns(request.tenant, memory), memory) for memory in request.puts]
    deletes = [memory_id_values(request.tenant, key) for key in request.deletes]
    puts.sort(key=lambda put: put[0][_NUMBER])
    return puts, sorted(deletes, key=itemgetter("memory"))


def shared_values(request: WriteMemories, puts: Sequence[Put], deletes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values that both statements use."""
    return {
        "tenant": to_bytes(request.tenant),
        "memories": [row[_NUMBER] for row, _ in puts],
        "parts": [row[_PART] for row, _ in puts],
        "gone_memories": [each["memory"] for each in deletes],
        "gone_parts": [each["part"] for each in deletes],
    }


def row_values(request: WriteMemories, puts: Sequence[Put]) -> dict[str, Any]:
    """Return the values of `write-memories`."""
    columns = dict(zip(MEMORY_COLUMNS, zip(*[row for row, _ in puts], strict=True), strict=False))
    return {
        "now": request.now,
        "expired": request.expired,
        "sealed": request.sealed,
        **{name: columns.get(column, ()) for name, column in _COLUMNS.items()},
        "ttls": [None if ttl is None else repr(ttl) for ttl in columns.get("ttl", ())],
        "words": [_lexemes(memory.words) if memory.words else None for _, memory in puts],
    }


def lock_values(tenant: str, keys: Sequence[MemoryKey]) -> dict[str, Any]:
    """Return the values of `lock-memories`."""
    return {"tenant": to_bytes(tenant), "memories": memory_numbers(tenant, keys)}


def put_values(request: WriteMemories) -> dict[str, Any]:
    """Return the values of `put-memory`."""
    (memory,) = request.puts
    return row_of((memory_columns(request.tenant, memory), memory)) | {"sealed": request.sealed}


def row_of(put: Put) -> dict[str, Any]:
    """Return a memory as the values of its columns."""
    row, memory = put
    values = dict(zip(MEMORY_COLUMNS, row, strict=True))
    values["words"] = _lexemes(memory.words) if memory.words else None
    return values


def _lexemes(words: str) -> str:
    """Return marked words in the text form of a tsvector. Each occurrence has a position of its own.

    PostgreSQL's own parser would split words at letters that its locale does not know. No word contains a space, a
    quote or a percent sign, so this needs no Python call for a word.
    """
    text = "'" + words.replace(" ", " '").replace(MARKS[1], "':%d")
    text = _MANY_TIMES.sub(_places, text)
    return text % tuple(range(1, text.count("%") + 1))


def _places(mark: re.Match[str]) -> str:
    """Return a place for each position that a mark stands for."""
    return "':" + ",".join(["%d"] * MARKS.index(mark[0]))


def marked_words(words: str | None) -> str:
    """Return the words of a tsvector, in its text form, as `engine.memories.words` marks them."""
    found = _LEXEME.findall(words or "")
    return mark({word: positions.count(",") + 1 for word, positions in found})


def vector_values(request: WriteMemories, puts: Sequence[Put]) -> dict[str, Any]:
    """Return the values of `write-vectors`. All vectors are one array of numbers, cut up by start and dimensions."""
    firsts = sorted({memory.row.namespace[0] for _, memory in puts} | {key.namespace[0] for key in request.deletes})
    stored = {memory.row.namespace[0] for _, memory in puts if memory.vectors}
    vectors = [(row, n, vector) for row, memory in puts for n, vector in enumerate(memory.vectors)]
    dims = [len(vector) // 4 for _, _, vector in vectors]
    return {
        "now": request.now,
        "counts": [row[_COUNT] for row, _ in puts],
        "changed_parts": [partition_number(request.tenant, first) for first in firsts],
        "changed_firsts": [to_bytes(first) for first in firsts],
        "changed_stored": [int(first in stored) for first in firsts],
        "vector_memories": [row[_NUMBER] for row, _, _ in vectors],
        "vector_parts": [row[_PART] for row, _, _ in vectors],
        "vector_fields": [n for _, n, _ in vectors],
        "vector_spaces": [row[_SPACE] for row, _, _ in vectors],
        "vector_starts": list(accumulate(dims, initial=0))[:-1],
        "vector_dims": dims,
        "vector_checksums": [
            vector_checksum(row[_NUMBER], n, row[_COUNT], row[_SPACE], vector) for row, n, vector in vectors
        ],
        "numbers": b"".join(vector for _, _, vector in vectors),
    }
