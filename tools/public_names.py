"""The table of public names in docs/reference/api.md: every name in `threadkeep.PUBLIC_NAMES`."""

from __future__ import annotations

import threadkeep
from sentences import first_sentence

HEAD = "| name | |\n|---|---|"


def public_names() -> str:
    """Return the table, one row for each name."""
    return "\n".join([HEAD, *map(_row, threadkeep.PUBLIC_NAMES)])


def _row(name: str) -> str:
    purpose = first_sentence(getattr(threadkeep, name).__doc__).replace("|", "\\|")
    return f"| `threadkeep.{name}` | {purpose} |"
