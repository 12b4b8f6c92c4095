"""Split text into words for full-text search, in the same way on every backend.

A memory matches a query if it has at least one of its words. Words are letters and digits, without case and accents.
In scripts without spaces between words (Chinese, Japanese, Thai and others), each character is a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_MAX_WORD_LENGTH = 100
MAX_WORDS = 20_000
"""The number of words of a memory that are indexed."""
MAX_BYTES, _BYTES_PER_POSITION = 800_000, 8
"""Indexed words take no more bytes than this, positions included: PostgreSQL's limit is a megabyte."""


def words(text: str) -> list[str]:
    """Return the words of a text, in order."""
    plain = text.casefold()
    if not plain.isascii():
        decomposed = unicodedata.normalize("NFKD", plain).casefold()
        plain = unicodedata.normalize("NFC", "".join(c for c in decomposed if not unicodedata.combining(c)))
    return [word[:_MAX_WORD_LENGTH] for word in _WORD.findall(plain)][:MAX_WORDS]


def index_words(texts: Iterable[str]) -> str:
    """Return the words of all texts of a memory, separated by spaces: as many as databases accept."""
    return " ".join(_limit_bytes(islice(chain.from_iterable(map(words, texts)), MAX_WORDS)))


def _limit_bytes(words: Iterable[str]) -> Iterator[str]:
    left = MAX_BYTES
    for word in words:
        left -= len(word.encode()) + _BYTES_PER_POSITION
        if left < 0:
            return
        yield word


def leaf_texts(value: Any) -> Iterator[str]:
    """Yield the strings and numbers in a value as text, without the names of keys."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaf_texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaf_texts(inner)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)
