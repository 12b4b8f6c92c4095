"""Numbers with their nouns, for people."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: 1 thread, 1,204 threads. `many` is the plural if it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
