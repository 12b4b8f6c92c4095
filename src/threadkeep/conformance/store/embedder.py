"""An embedder without a model: texts are near that share words. What it gives can be counted on fingers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from langchain_core.embeddings import Embeddings

WORDS = ("apple", "pear", "plum", "rain", "snow", "wind", "sea")
"""Each has a dimension of its own; one more is for texts without any of them."""

DIMS = len(WORDS) + 1
UNEMBEDDABLE = "unembeddable"
"""A text with this word cannot be embedded, as if the model were out of order."""


def embed(texts: Sequence[str]) -> list[list[float]]:
    """How often each word is in each text."""
    return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    said = re.findall(r"\w+", text.lower())
    if UNEMBEDDABLE in said:
        raise RuntimeError(f"this text cannot be embedded: {text!r}")
    counts = [float(said.count(word)) for word in WORDS]
    return [*counts, 0.0 if any(counts) else 1.0]


def cosine(one: str, other: str) -> float:
    """How near two texts are: 1 in the same direction, 0 if they share no word."""
    a, b = _vector(one), _vector(other)
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


class Embedder(Embeddings):
    """The same as an object of LangChain's."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of these texts."""
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return _vector(text)
