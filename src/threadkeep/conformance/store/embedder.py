"""An embedder without a model: a vector counts words, so texts that share words are similar."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from langchain_core.embeddings import Embeddings

WORDS = ("apple", "pear", "plum", "rain", "snow", "wind", "sea")
"""Each word is one dimension; one more is for texts without any of them."""

DIMS = len(WORDS) + 1
UNEMBEDDABLE = "unembeddable"
"""A text with this word raises an error, as if the model were unavailable."""


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return one vector per text: how often each word occurs."""
    return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    words = re.findall(r"\w+", text.lower())
    if UNEMBEDDABLE in words:
        raise RuntimeError(f"this text cannot be embedded: {text!r}")
    counts = [float(words.count(word)) for word in WORDS]
    return [*counts, 0.0 if any(counts) else 1.0]


def cosine(one: str, other: str) -> float:
    """Return the cosine similarity of two texts: 1 for the same direction, 0 if they share no word."""
    a, b = _vector(one), _vector(other)
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


class Embedder(Embeddings):
    """The same embedder as a LangChain object."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector per text."""
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return _vector(text)
