"""The first sentence of a docstring or comment, cut to fit a table or a tree."""

from __future__ import annotations

import re

_END = re.compile(r"[.!?](?=\s+\S)(?!\s+[a-z])")
_CLAUSE = re.compile(r"[;:,](?=\s)")


def first_sentence(text: str | None) -> str:
    """Return the first sentence of the first paragraph on one line, without its full stop."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    end = _END.search(paragraph)
    return (paragraph[: end.start()] if end else paragraph).rstrip(".")


def shortened(sentence: str, width: int) -> str:
    """Return a sentence of at most `width` characters: cut after a clause if there is one, else after a word."""
    if len(sentence) <= width:
        return sentence
    room = sentence[: width - 1]
    clauses = [match.start() for match in _CLAUSE.finditer(room) if match.start() >= width // 2]
    return room[: clauses[-1] if clauses else room.rfind(" ")] + " …"
