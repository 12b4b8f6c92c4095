"""Reads named SQL blocks from files: each has a name, one line of purpose, and a statement or a part of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_USE = re.compile(r"\{([a-z-]+)(?: ([^{}]+))?\}")
_ARGUMENT = "{it}"
_HEADER = re.compile(r"^-- ([a-z0-9-]+): .+$", re.MULTILINE)


@cache
def read_blocks(*names: str) -> Mapping[str, str]:
    """Return the blocks of some SQL files below `backends/` by name, without comments. The files are read once.

    A block replaces a block of the same name in an earlier file. `{name}` inside a block is replaced by the block of
    that name, and `{text t.id}` by the block `text` with `t.id` in place of its `{it}`. A `{name}` that is no block is
    left for the caller to fill in.
    """
    blocks = {block: sql for name in names for block, sql in _read_file(name)}

    def expand(sql: str) -> str:
        if "{" not in sql:
            return sql
        expanded = _USE.sub(lambda use: _fill_in(blocks.get(use[1], use[0]), use[2]), sql)
        return expanded if expanded == sql else expand(expanded)

    return {block: expand(sql) for block, sql in blocks.items()}


def _fill_in(block: str, argument: str | None) -> str:
    return block.replace(_ARGUMENT, argument) if argument else block


def _read_file(name: str) -> list[tuple[str, str]]:
    pieces = _HEADER.split(files("threadkeep.backends").joinpath(*name.split("/")).read_text("utf-8"))[1:]
    return [(block, _strip_comments(sql)) for block, sql in zip(pieces[::2], pieces[1::2], strict=True)]


def _strip_comments(sql: str) -> str:
    if "--" not in sql:
        return sql.strip()
    return "\n".join(line for line in sql.strip().splitlines() if not line.startswith("--"))
