"""Changes of one memory as a script of statements, which the transport executes in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from threadkeep.backends.sql.memories import memory_columns
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories.namespaces import memory_number, partition_number
from threadkeep.engine.memories.requests import WriteMemories

Script: TypeAlias = tuple[str, tuple[Any, ...]]
"""Statements, and their values in order, one statement after the other."""


def write_script(blocks: Mapping[str, str], request: WriteMemories) -> Script | None:
    """Return a change of one memory without vectors as a script; None if there is more to change.

    Four Python calls; `tests/test_store_steps.py` counts them.
    """
    if len(request.puts) + len(request.deletes) != 1 or request.expired:
        return None
    tenant = request.tenant
    if not request.puts:
        (key,) = request.deletes
        number, part = memory_number(tenant, key), partition_number(tenant, key.namespace[0])
        return blocks["delete-memory-at-once"], (number, number, number, part, to_bytes(tenant))
    (memory,) = request.puts
    _, vectors, words = memory
    if vectors:
        return None
    row = memory_columns(tenant, memory)
    if not words:
        return blocks["put-memory-at-once"], row
    return blocks["put-memory-with-words-at-once"], (*row, words, row[0])
