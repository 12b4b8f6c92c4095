"""Changes of memories as scripts of statements, each of which the transport executes in one call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from threadkeep.backends.sql.memories import MEMORY_COLUMNS, memory_columns
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories.namespaces import memory_number, partition_number
from threadkeep.engine.memories.requests import WriteMemories

Script: TypeAlias = tuple[str, Sequence[Any]]
"""Statements, and their values in order, one statement after the other."""
_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256, 320, 400, 500)
"""The numbers of rows of a script. Each is prepared once, and a script for 500 rows is the longest that apsw caches."""
_ROW = f"({', '.join('?' * len(MEMORY_COLUMNS))}, %s)"
"""A row of placeholders. The last column says whether the memory is encrypted."""


def write_script(blocks: Mapping[str, str], request: WriteMemories) -> Script | None:
    """Return a change as a script; None if a memory has vectors, or if there are too many memories.

    Three Python calls, and one for each memory; `tests/test_store_steps.py` counts them. A script may have more rows
    than there are memories: the last one is stored again, with the same values.
    """
    puts, deletes, tenant = request.puts, request.deletes, request.tenant
    if not puts:
        return _delete_script(blocks, request) if len(deletes) == 1 else None
    if deletes or len(puts) > _SIZES[-1]:
        return None
    size = _SIZES[bisect_left(_SIZES, len(puts))]
    with_words = bool(puts[0][2])
    values: list[Any] = []
    words: list[Any] = []
    for memory in puts if len(puts) == size else (*puts, *puts[-1:] * (size - len(puts))):
        _, vectors, own_words = memory
        if vectors or bool(own_words) is not with_words:
            return None
        row = memory_columns(tenant, memory)
        values += row
        if with_words:
            words += (row[0], own_words)
    if not with_words:
        return _with_rows(blocks["put-at-once"], size, request.sealed), values
    return _with_rows(blocks["put-with-words-at-once"], size, request.sealed), [*values, size, *words]


@lru_cache(maxsize=64)
def _with_rows(sql: str, count: int, sealed: bool) -> str:  # noqa: FBT001 - these are the key of a cache
    row = _ROW % ("1" if sealed else "NULL")
    return sql.replace("{rows}", ", ".join([row] * count)).replace("{words}", ", ".join(["(?, ?)"] * count))


def _delete_script(blocks: Mapping[str, str], request: WriteMemories) -> Script | None:
    """Return the deletion of one memory as a script."""
    if request.expired:
        return None
    (key,) = request.deletes
    number, part = memory_number(request.tenant, key), partition_number(request.tenant, key.namespace[0])
    tenant = to_bytes(request.tenant)
    return blocks["delete-at-once"], (number, tenant, int(request.sealed), number, number, part, tenant)
