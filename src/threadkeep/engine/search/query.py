"""Words and phrases to search for: what matches, its rank, and the part of a text that shows the match.

A text matches if it has all words of the query, and all its phrases ("in quotation marks") word by word. Words are
those of `engine.memories.words`: letters and digits, without case and accents.

The rank of a text is computed from it alone, so it is the same however the text was found. Each word adds more the more
often the text has it, up to a limit, and the shorter the text is: the weight of BM25 for a text of ordinary length,
without the rarity of words. It is a whole number, so databases compute the same one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from threadkeep.engine.memories.words import UNSPACED, words

RANK_SCALE = 1000
MOST, COUNT, BASE, LENGTH = 2200, 1000, 300, 9
"""A word that a text of `length` words has `count` times adds MOST - MOST * base // (COUNT * count + base) to the rank,
where base = BASE + LENGTH * length: BM25 with k1 = 1.2 and b = 0.75, for texts of 100 words on average, in thousandths.
"""
_PHRASE = re.compile(r'"([^"]*)"')
_RUN = re.compile(rf"[{UNSPACED}]|(?:[^\W_{UNSPACED}]|[\u0300-\u036f])+")
"""What may be a word in a text as it is written."""
_WIDTH, _BEFORE = 160, 40
"""The length of a snippet, and how much of it comes before the first match."""
_MAX_WORDS = 32


class Query(NamedTuple):
    """The different words of a query, those of its phrases included, and the phrases as `join_words` joins them."""

    words: tuple[str, ...]
    phrases: tuple[str, ...] = ()


class Snippet(NamedTuple):
    """A part of a text on one line, and the (start, end) of each match in it."""

    text: str
    marks: tuple[tuple[int, int], ...]


def parse_query(text: str) -> Query:
    """Parse a query. ValueError if it has no words, or more than 32."""
    if not isinstance(text, str):
        raise TypeError(f"query must be a str, not {type(text).__name__}")
    found = tuple(dict.fromkeys(words(text)))
    if not found:
        raise ValueError(f"query {text!r} has no words: give at least one letter or digit")
    if len(found) > _MAX_WORDS:
        raise ValueError(f"query has {len(found)} words; at most {_MAX_WORDS} can be searched for")
    phrases = [words(phrase) for phrase in _PHRASE.findall(text)]
    return Query(found, tuple(dict.fromkeys(join_words(each) for each in phrases if len(each) > 1)))


def join_words(words: Iterable[str]) -> str:
    """Join words so that each word, and each phrase, is found as a part of the text and can be counted."""
    return "".join([f" {word} " for word in words])


def rank(query: Query, joined: str, length: int) -> int | None:
    """Return the rank of a text with these joined words; None if it does not match."""
    total, base = 0, BASE + LENGTH * length
    for word in query.words:
        count = joined.count(f" {word} ")
        if not count:
            return None
        total += MOST - MOST * base // (COUNT * count + base)
    for phrase in query.phrases:
        if phrase not in joined:
            return None
    return total


def snippet(query: Query, text: str) -> Snippet:
    """Return the part of a text that has most of the query's words, with the matches marked."""
    line = " ".join(text.split())
    found = _matches(query, line)
    start = _best_start(found) if len(query.words) > 1 else found[0][0] if found else 0
    start = max(0, start - _BEFORE) if len(line) > _WIDTH else 0
    if start:
        start = line.find(" ", start, start + _BEFORE) + 1 or start
    end = min(len(line), start + _WIDTH)
    before, after = "…" if start else "", "…" if end < len(line) else ""
    shift = len(before) - start
    marks = [(low + shift, high + shift) for low, high, _ in found if low >= start and high <= end]
    return Snippet(before + line[start:end] + after, tuple(marks))


def _matches(query: Query, line: str) -> list[tuple[int, int, Collection[str]]]:
    """Return where the words of a query are in a text, and which they are."""
    if line.isascii():  # without folding each word of the text, which takes most of the time of a search
        return [(*match.span(), (match[0],)) for match in _ascii_words(query.words).finditer(line.lower())]
    wanted, known, found = frozenset(query.words), dict[str, frozenset[str]](), list[tuple[int, int, Collection[str]]]()
    for run in _RUN.finditer(line):
        written = run[0]
        if written not in known:
            known[written] = wanted.intersection(words(written))
        if known[written]:
            found.append((*run.span(), known[written]))
    return found


@lru_cache(maxsize=64)
def _ascii_words(words: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds whole words in a small text. It starts with the words: so it looks at few places."""
    return re.compile("|".join(f"{word}(?<![a-z0-9]{word})(?![a-z0-9])" for word in words))


def _best_start(found: Sequence[tuple[int, int, Collection[str]]]) -> int:
    """Return the first match of the window that has the most different words; the first such window."""
    if len(found) == 1:
        return found[0][0]
    best, most = 0, 0
    for n, (start, _, _) in enumerate(found):
        room = start + _WIDTH - _BEFORE
        inside = [names for _, end, names in found[n : n + _MAX_WORDS] if end <= room]
        different = len(frozenset[str]().union(*inside))
        if different > most:
            best, most = start, different
    return best
