"""SQL lives in files: named blocks, one line of purpose each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_PART = re.compile(r"\{([a-z-]+)\}")
_NAME = re.compile(r"^-- ([a-z0-9-]+): .+$", re.MULTILINE)


@cache
def read_blocks(name: str) -> Mapping[str, str]:
    """The blocks of a file in `sql/`, by name, comments taken out and parts put in; read once."""
    text = files("threadkeep.backends").joinpath("sql", name).read_text("utf-8")
    pieces = _NAME.split(text)[1:]
    blocks = {block: _without_comments(sql) for block, sql in zip(pieces[::2], pieces[1::2], strict=True)}
    return {block: _PART.sub(lambda part: blocks.get(part[1], part[0]), sql) for block, sql in blocks.items()}


def _without_comments(sql: str) -> str:
    return "\n".join(line for line in sql.strip().splitlines() if not line.startswith("--"))
