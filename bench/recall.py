"""What vector search finds of real texts, and how long it takes: threadkeep's store, through its public API.

    python bench/recall.py                      # 40,000 texts; some minutes
    python bench/recall.py --texts 15000        # a short look

The texts are docstrings and comments of the standard library, and their sentences, each once. WordLlama embeds them, in
256 dimensions and before anything is measured; its weights are in its package. The namespaces are modules, and lie on
shelves: one has half of all texts, one a tenth, one a hundredth. Questions are texts that are not stored.

Recall is the share of the ten nearest, told by numpy, that a search has among its ten. PostgreSQL is asked twice: by a
Keep that holds no vectors, so that pgvector ranks, and by one with the default cache, which ranks itself, as on SQLite.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import random
import re
import statistics
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
import psycopg
import wordllama
from langgraph.store.base import BaseStore, PutOp
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import threadkeep
from grounds import on_postgres, on_sqlite

DIMS, LIMIT, QUESTIONS, WARM_UP, BATCH = 256, 10, 100, 5, 500
ROOM = "library"
SHELVES = {"half": 0.5, "tenth": 0.1, "hundredth": 0.01}
KINDS = 30
SENTENCE = re.compile(r"\n\s*\n|(?<=[.!?])\s+")
COMMENTS = re.compile(r"(?:^[ \t]*#.*\n?)+", re.MULTILINE)
MARK = re.compile(r"^[ \t]*#+", re.MULTILINE)
IS_THERE = (
    "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam"
    " WHERE a.amname = 'hnsw' AND i.indisvalid"
)
PATIENCE = 600
NO_CACHE, DEFAULT_CACHE = 0, 128 * 1024 * 1024

Filter = dict[str, Any]


class Text(NamedTuple):
    namespace: tuple[str, ...]
    key: str
    text: str
    kind: int

    @property
    def put(self) -> PutOp:
        return PutOp(self.namespace, self.key, {"text": self.text, "kind": self.kind})


class Search(NamedTuple):
    """What is searched: below a prefix, and of the kinds up to a number."""

    what: str
    prefix: tuple[str, ...] = (ROOM,)
    kinds: int = KINDS

    @property
    def filter(self) -> Filter | None:
        return {"kind": {"$lt": self.kinds}} if self.kinds < KINDS else None

    def fits(self, text: Text) -> bool:
        return text.namespace[: len(self.prefix)] == self.prefix and text.kind < self.kinds


class Figures(NamedTuple):
    recall: float
    median: float
    slowest: float
    """The 95th percentile, in milliseconds."""

    def cells(self) -> tuple[str, ...]:
        return f"{self.recall:.3f}", f"{self.median:.1f}", f"{self.slowest:.1f}"


SEARCHES = [
    Search("everything"),
    *(Search(f"{share:.0%} by prefix", (ROOM, shelf)) for shelf, share in SHELVES.items()),
    Search("33% by filter", kinds=KINDS // 3),
    Search("3% by filter", kinds=1),
    Search("a third of 50%", (ROOM, "half"), kinds=KINDS // 3),
]


def passages(source: str) -> Iterator[str]:
    """Docstrings and blocks of comments, and their sentences."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    told = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, owners)]
    told += [MARK.sub("", block[0]) for block in COMMENTS.finditer(source)]
    for each in told:
        yield from (" ".join(text.split()) for text in (each, *SENTENCE.split(each)))


def is_prose(text: str) -> bool:
    return 25 <= len(text) <= 1000 and sum(map(str.isalpha, text)) > 0.6 * len(text)


def modules() -> Iterator[tuple[str, str]]:
    """Names, packages at most two deep, and sources."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts:
            name = ".".join(path.relative_to(root).with_suffix("").parts[:2])
            yield name, path.read_text("utf-8", errors="replace")


def gathered() -> list[tuple[str, str]]:
    """Modules and texts, each text once, in an order that is always the same."""
    found: dict[str, str] = {}
    for module, source in modules():
        try:
            told = list(passages(source))
        except (SyntaxError, ValueError):  # some are there to be wrong
            continue
        for text in filter(is_prose, told):
            found.setdefault(text, module)
    texts = [(module, text) for text, module in found.items()]
    random.Random(1).shuffle(texts)
    return texts


def shelved(sizes: Mapping[str, int]) -> dict[str, str]:
    """Where modules stand, given how many texts each has."""
    names = sorted(sizes)
    random.Random(2).shuffle(names)
    room = {shelf: share * sum(sizes.values()) for shelf, share in SHELVES.items()}
    places: dict[str, str] = {}
    for name in names:
        shelf = next((shelf for shelf, left in room.items() if left >= sizes[name]), "others")
        places[name] = shelf
        if shelf in room:
            room[shelf] -= sizes[name]
    return places


class Library:
    """Texts to store, questions, and their vectors."""

    def __init__(self, count: int) -> None:
        told = gathered()[: count + QUESTIONS]
        vectors = _model().embed([text for _, text in told], norm=True)
        self._vectors = np.asarray(vectors, dtype=np.float32)
        self._exactly = self._vectors.astype(np.float64)
        self._rows = {text: n for n, (_, text) in enumerate(told)}
        self.questions = [text for _, text in told[-QUESTIONS:]]
        stored = told[:-QUESTIONS]
        places = shelved(Counter(module for module, _ in stored))
        self.texts = [
            Text((ROOM, places[module], *module.split(".")), f"text-{n}", text, n % KINDS)
            for n, (module, text) in enumerate(stored)
        ]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        found: list[list[float]] = self._vectors[[self._rows[text] for text in texts]].tolist()
        return found

    def nearness(self, question: str) -> NDArray[np.float64]:
        """Of all texts that are stored."""
        scores: NDArray[np.float64] = self._exactly[:-QUESTIONS] @ self._exactly[self._rows[question]]
        return scores

    def nearest(self, search: Search) -> list[set[str]]:
        """The keys of the nearest texts that fit, for each question."""
        fits = np.flatnonzero([search.fits(text) for text in self.texts])
        best = (fits[np.argsort(-self.nearness(question)[fits])[:LIMIT]] for question in self.questions)
        return [{self.texts[n].key for n in each.tolist()} for each in best]


def _model() -> Any:
    folder = pathlib.Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def opened(url: str, library: Library, cache_bytes: int) -> threadkeep.Keep:
    index: Any = {"dims": DIMS, "embed": library.embed, "fields": ["text"]}
    return threadkeep.open(url, index=index, cache_bytes=cache_bytes)


def fill(store: BaseStore, texts: Sequence[Text]) -> float:
    """How many seconds it took to store the texts."""
    start = perf_counter()
    for first in range(0, len(texts), BATCH):
        store.batch([text.put for text in texts[first : first + BATCH]])
    return perf_counter() - start


def measured(store: BaseStore, search: Search, questions: Sequence[str], nearest: Sequence[set[str]]) -> Figures:
    times, hits = list[float](), 0
    for question in questions[:WARM_UP]:
        store.search(search.prefix, query=question, filter=search.filter, limit=LIMIT)
    for question, best in zip(questions, nearest, strict=True):
        start = perf_counter()
        found = store.search(search.prefix, query=question, filter=search.filter, limit=LIMIT)
        times.append((perf_counter() - start) * 1e3)
        hits += len(best & {item.key for item in found})
    return Figures(hits / sum(map(len, nearest)), statistics.median(times), statistics.quantiles(times, n=20)[-1])


def have_index(store: BaseStore, place: str, library: Library) -> float:
    """How many seconds it took from meeting the vectors until there was an index."""
    start = perf_counter()
    store.search((ROOM,), query=library.questions[0])
    with psycopg.connect(place, autocommit=True) as connection:
        while connection.execute(IS_THERE).fetchall() != [(1,)]:
            if perf_counter() > start + PATIENCE:
                raise SystemExit("no index was made")
            sleep(0.1)
    return perf_counter() - start


def report(console: Console, library: Library, stores: Mapping[str, BaseStore]) -> None:
    table = Table("what", "texts")
    for name in stores:
        for figure in ("recall", "median ms", "95% ms"):
            table.add_column(f"{name}\n{figure}", justify="right")
    for search in SEARCHES:
        nearest = library.nearest(search)
        count = sum(map(search.fits, library.texts))
        figures = (measured(store, search, library.questions, nearest) for store in stores.values())
        table.add_row(search.what, f"{count:,}", *(cell for each in figures for cell in each.cells()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--texts", type=int, default=40_000, help="how many are stored; up to 10,000 have no need of an index"
    )
    count = parser.parse_args().texts
    console = Console(width=140)
    library = Library(count)
    with ExitStack() as stack:
        place, file = (stack.enter_context(ground()).place(ROOM) for ground in (on_postgres, on_sqlite))
        indexed = stack.enter_context(opened(place, library, NO_CACHE)).store
        client = stack.enter_context(opened(place, library, DEFAULT_CACHE)).store
        sqlite = stack.enter_context(opened(file, library, DEFAULT_CACHE)).store
        console.print(f"{len(library.texts):,} texts, stored in PostgreSQL in {fill(indexed, library.texts):.1f} s")
        console.print(f"and in SQLite in {fill(sqlite, library.texts):.1f} s")
        console.print(f"the index was there after {have_index(indexed, place, library):.1f} s")
        report(console, library, {"pgvector": indexed, "client": client, "SQLite": sqlite})


if __name__ == "__main__":
    main()
