"""Split text into words for word search, count them, and rank memories by them, in the same way on every backend.

A memory matches a query if it has at least one of its words. Words are letters and digits, without case and accents.
In scripts without spaces between words (Chinese, Japanese, Thai and others), each character is a word.

The words of a memory are stored as one text, in order, each with a mark for its count: U+E000 plus the count. No word
contains such a character. Databases index the marked words as they are, so they need no rule for splitting text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any
from zlib import crc32

UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_ASCII_WORD = re.compile("[a-z0-9]+")
"""The same for text in ASCII without capital letters, and faster."""
_MAX_WORD_LENGTH = 100
MAX_WORDS = 16_000
"""The number of words of a memory that are indexed. A tsvector of PostgreSQL has 16,383 positions."""
MAX_COUNT = 255
"""A word that occurs more often counts as if it occurred so often: a tsvector has 256 positions for a word."""
MAX_BYTES, _BYTES_PER_POSITION = 800_000, 8
"""Indexed words take no more bytes than this, positions included: PostgreSQL's limit is a megabyte."""
_FEW_WORDS = MAX_BYTES // (4 * _MAX_WORD_LENGTH + _BYTES_PER_POSITION)
"""So many words never take more bytes than this."""
MARK = 0xE000
"""The code point of the mark for a count of 0."""
MARKS = "".join([chr(MARK + count) for count in range(MAX_COUNT + 1)])
"""The mark of each count."""


def words(text: str) -> list[str]:
    """Return the words of a text, in order."""
    plain = text.casefold()
    if plain.isascii():
        found = _ASCII_WORD.findall(plain)
    else:
        decomposed = unicodedata.normalize("NFKD", plain).casefold()
        plain = unicodedata.normalize("NFC", "".join([c for c in decomposed if not unicodedata.combining(c)]))
        found = _WORD.findall(plain)
    if found and max(map(len, found)) > _MAX_WORD_LENGTH:
        found = [word[:_MAX_WORD_LENGTH] for word in found]
    return found if len(found) <= MAX_WORDS else found[:MAX_WORDS]


def index_words(texts: Iterable[str], limits: Mapping[str, int] | None = None) -> str:
    """Return the marked words of all texts of a memory: as many as databases accept.

    With `limits`, a word counts at most as often as it says: some texts may have been given twice.
    """
    found = words(" ".join(texts))  # a space ends a word, and no character before it changes one after it
    if len(found) > _FEW_WORDS:
        found = limit_bytes(found)
    counts: dict[str, int] = {}
    for word in found:
        counts[word] = counts.get(word, 0) + 1
    if limits is not None:
        counts = {word: min(count, limits[word]) for word, count in counts.items() if limits.get(word, 0) > 0}
    if len(found) > MAX_COUNT:
        counts = {word: min(count, MAX_COUNT) for word, count in counts.items()}
    marks = MARKS
    return " ".join(sorted([word + marks[count] for word, count in counts.items()]))


def limit_bytes(words: list[str]) -> list[str]:
    """Return these words without the last ones, if they would take more than `MAX_BYTES` in an index."""
    if len(words) <= _FEW_WORDS:
        return words
    left = MAX_BYTES
    for n, word in enumerate(words):
        left -= len(word.encode()) + _BYTES_PER_POSITION
        if left < 0:
            return words[:n]
    return words


def unmark(marked: str) -> dict[str, int]:
    """Return the counts of marked words. The inverse of `index_words`."""
    return {word[:-1]: ord(word[-1]) - MARK for word in marked.split()}


def mark(counts: Mapping[str, int]) -> str:
    """Return words with these counts as `index_words` returns them."""
    return " ".join(sorted([word + MARKS[count] for word, count in counts.items()]))


def words_check(marked: str) -> int:
    """Return a checksum of marked words, as a signed 32-bit number; 0 if there are none."""
    check = crc32(marked.encode())
    return check - (1 << 32) if check >= 1 << 31 else check


def word_score(distinct: int, frequency: int) -> float:
    """Return the score of a memory that has so many words of a query, which occur so often in it.

    More different words are better; of memories with equally many, the one in which they occur more often.
    """
    return distinct + frequency / (frequency + 1)


def leaf_texts(value: Any) -> list[str]:
    """Return the strings and numbers in a value as text, without the names of keys."""
    texts: list[str] = []
    _add_leaf_texts((value,), texts)
    return texts


def _add_leaf_texts(values: Iterable[Any], texts: list[str]) -> None:
    """Append the leaves of some values. One call for each dict and list in them."""
    for value in values:
        if isinstance(value, str):
            texts.append(str(value))
        elif isinstance(value, (int, float)):
            if not isinstance(value, bool):
                texts.append(str(value))
        elif isinstance(value, dict):
            _add_leaf_texts(value.values(), texts)
        elif isinstance(value, (list, tuple)):
            _add_leaf_texts(value, texts)


def count_words(value: Any, wanted: AbstractSet[str] | None = None) -> Counter[str]:
    """Count the words that any fields of a value can give, or those of them that are wanted."""
    found = chain.from_iterable(map(words, _all_texts(value)))
    return Counter(found if wanted is None else (word for word in found if word in wanted))


def _all_texts(value: Any) -> Iterator[str]:
    """Yield what `leaf_texts` yields, and what only a field's path gives: bools, and the texts in JSON strings."""
    if isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _all_texts(inner)
    elif value is not None:
        yield str(value)
        yield from texts_in_json(value) or () if isinstance(value, str) else ()


def texts_in_json(text: str) -> list[str] | None:
    """Return the texts in a JSON list or object; None if the text is none."""
    if text[:1] not in ("[", "{"):
        return None
    try:
        return leaf_texts(json.loads(text))
    except (ValueError, RecursionError):
        return None
