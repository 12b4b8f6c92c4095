"""Text as words, the same on every backend: full text finds a memory by the words of a query, one of them is enough.

Words are letters and digits, without case and accents. Scripts that do not put spaces between words (Chinese, Japanese,
Thai and others) are taken character by character.
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
"""So many words of a memory are found."""
MAX_BYTES, _BYTES_PER_POSITION = 800_000, 8
"""And no more than these bytes, each word with its place: PostgreSQL takes a megabyte."""


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    plain = text.casefold()
    if not plain.isascii():
        spread = unicodedata.normalize("NFKD", plain).casefold()
        plain = unicodedata.normalize("NFC", "".join(c for c in spread if not unicodedata.combining(c)))
    return [word[:_MAX_WORD_LENGTH] for word in _WORD.findall(plain)][:MAX_WORDS]


def index_words(texts: Iterable[str]) -> str:
    """The words of a memory, from all of its texts: as many as databases take, with spaces between them."""
    return " ".join(_limit_bytes(islice(chain.from_iterable(map(words, texts)), MAX_WORDS)))


def _limit_bytes(found: Iterable[str]) -> Iterator[str]:
    room = MAX_BYTES
    for word in found:
        room -= len(word.encode()) + _BYTES_PER_POSITION
        if room < 0:
            return
        yield word


def leaf_texts(value: Any) -> Iterator[str]:
    """The strings and numbers in a value, not the names of its keys."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaf_texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaf_texts(inner)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)
