"""SQL lives in files: named blocks, one line of purpose each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_PART = re.compile(r"\{([a-z-]+)(?: ([^{}]+))?\}")
_IT = "{it}"
_NAME = re.compile(r"^-- ([a-z0-9-]+): .+$", re.MULTILINE)


@cache
def read_blocks(*names: str) -> Mapping[str, str]:
    """The blocks of SQL files below `backends/`, by name, comments taken out and parts put in; read once.

    A block of a later file replaces that of an earlier one. `{text t.id}` is the block `text` with `t.id` in place of
    its `{it}`. Parts that no block names are left for the caller.
    """
    blocks = {block: sql for name in names for block, sql in _blocks(name)}

    def with_parts(sql: str) -> str:
        put_in = _PART.sub(lambda part: _part(blocks.get(part[1], part[0]), part[2]), sql)
        return put_in if put_in == sql else with_parts(put_in)

    return {block: with_parts(sql) for block, sql in blocks.items()}


def _part(block: str, it: str | None) -> str:
    return block.replace(_IT, it) if it else block


def _blocks(name: str) -> list[tuple[str, str]]:
    pieces = _NAME.split(files("threadkeep.backends").joinpath(*name.split("/")).read_text("utf-8"))[1:]
    return [(block, _without_comments(sql)) for block, sql in zip(pieces[::2], pieces[1::2], strict=True)]


def _without_comments(sql: str) -> str:
    return "\n".join(line for line in sql.strip().splitlines() if not line.startswith("--"))
