"""The memories behind our store figures: notes about users, the same in every run.

A note is about 250 bytes of JSON. Ten users have the same number of notes each, in ten namespaces each. The texts are
docstrings of the standard library. The vectors are clustered, as those of real texts are, and come from a dictionary,
so no model's time is measured, and the exact nearest notes are known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workload import corpus

DIMS = 384
USERS, TOPICS = 10, 10
CLUSTERS, SPREAD = 100, 0.7
TEXT = 120
KINDS = ("fact", "wish", "habit", "event", "person")
QUERIES = 200


class Note(NamedTuple):
    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]


@functools.cache
def note(number: int) -> Note:
    """Return a note, the same object each time, so that making it does not count.

    Importance has two digits, because PostgresStore compares text.
    """
    prose = corpus().prose
    start = number * TEXT % (len(prose) - TEXT)
    user, topic, rest = number % USERS, number // USERS % TOPICS, number // (USERS * TOPICS)
    value = {
        "text": f"{number}: {prose[start : start + TEXT]}",
        "kind": KINDS[rest % len(KINDS)],
        "importance": 10 + number * 7 % 90,
        "number": number,
        "source": {"thread": f"thread-{number % 997}", "step": number % 23},
    }
    return Note(("notes", f"user-{user}", f"topic-{topic}"), f"note-{number}", value)


def question(number: int) -> str:
    return f"question {number % QUERIES}"


class Embedder:
    """Vectors of notes and questions, looked up by their text."""

    def __init__(self, notes: int, *, more: int) -> None:
        """Make vectors of this many notes that questions may find, and of some more notes."""
        texts = [note(number).value["text"] for number in range(notes + more)]
        texts += [question(number) for number in range(QUERIES)]
        draw = np.random.default_rng(7)
        middles = draw.normal(size=(CLUSTERS, DIMS))
        chosen = middles[draw.integers(CLUSTERS, size=len(texts))]
        rows = (chosen + SPREAD * draw.normal(size=chosen.shape)).astype(np.float32)
        self._vectors = {text: row.tolist() for text, row in zip(texts, rows, strict=True)}
        self._notes, self._questions = _normed(rows[:notes]), _normed(rows[-QUERIES:])

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._vectors[text] for text in texts]

    def nearest(self, number: int, limit: int, fits: Callable[[Note], bool]) -> set[str]:
        """Return the keys of the notes nearest to a question, among those that fit."""
        best_first = np.argsort(-(self._notes @ self._questions[number % QUERIES])).tolist()
        return {each.key for each in islice(filter(fits, map(note, best_first)), limit)}


def _normed(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    exact: NDArray[np.float64] = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return exact
