"""Read retention policies, given in Python or in a file `threadkeep.toml`.

    [[retention]]
    prefix = "chat-"
    keep_last = 20
    drop_idle = "90d"

Each table is a `Policy`, with the same keys. The first one that matches a thread decides.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

from threadkeep.engine.threads.retention import Policy

TABLE = "retention"
COMMAND_KEYS = frozenset(("url", "tenant", "keys", "timeout"))
"""What the same file may tell the command `threadkeep` about its storage."""
Retention: TypeAlias = Policy | Iterable[Policy] | str | os.PathLike[str] | None
"""A policy, several policies, or the path of a file."""
_KEYS = tuple(field.name for field in fields(Policy))


def policies(given: Any, what: str = "retention") -> tuple[Policy, ...]:
    """Return the given policies; none for None. Raise TypeError for anything else, ValueError for a bad file."""
    if given is None:
        return ()
    if isinstance(given, Policy):
        return (given,)
    if isinstance(given, (str, os.PathLike)):
        return read(Path(given))
    listed = tuple(given) if isinstance(given, Iterable) else (given,)
    for policy in listed:
        if not isinstance(policy, Policy):
            raise TypeError(
                f"{what} must be a Policy, a list of them, or the path of a threadkeep.toml, not {policy!r}"
            )
    return listed


def read(path: Path) -> tuple[Policy, ...]:
    """Return the policies of a file. A ValueError names the file, the table and the key that is wrong."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    unknown = sorted(document.keys() - {TABLE} - COMMAND_KEYS)
    if unknown:
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; expected [[{TABLE}]]")
    tables = document.get(TABLE, [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError(f"{path}: {TABLE} must be an array of tables, each starting with [[{TABLE}]]")
    return tuple(_policy(table, f"{path}: [[{TABLE}]] {n}") for n, table in enumerate(tables, 1))


def _policy(table: Mapping[str, Any], where: str) -> Policy:
    unknown = sorted(table.keys() - set(_KEYS))
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; expected one of {', '.join(_KEYS)}")
    try:
        return Policy(**table)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
