"""Measures recall and time of vector search on real texts, through the public API of threadkeep's store.

    python bench/recall.py                      # 40,000 texts; some minutes
    python bench/recall.py --texts 15000        # a short look

The texts are docstrings and comments of the standard library, and their sentences, without duplicates. WordLlama embeds
them in 256 dimensions before anything is measured; its weights are in its package. Namespaces are modules, in groups:
one has half of all texts, one a tenth, one a hundredth. Questions are texts that are not stored.

Recall is the share of the ten exact nearest texts, computed by numpy, that a search returns among its ten. PostgreSQL
is queried twice: by a Keep without a cache, so that pgvector ranks, and by one with the default cache, which ranks
itself, as on SQLite.
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
from storages import postgres_storage, sqlite_storage

DIMS, LIMIT, QUESTIONS, WARM_UP, BATCH = 256, 10, 100, 5, 500
ROOT = "library"
GROUPS = {"half": 0.5, "tenth": 0.1, "hundredth": 0.01}
KINDS = 30
SENTENCE = re.compile(r"\n\s*\n|(?<=[.!?])\s+")
COMMENTS = re.compile(r"(?:^[ \t]*#.*\n?)+", re.MULTILINE)
MARK = re.compile(r"^[ \t]*#+", re.MULTILINE)
INDEX_COUNT = (
    "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam"
    " WHERE a.amname = 'hnsw' AND i.indisvalid"
)
TIMEOUT = 600
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
    """A search under a prefix, for texts of some kinds."""

    what: str
    prefix: tuple[str, ...] = (ROOT,)
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
    *(Search(f"{share:.0%} by prefix", (ROOT, group)) for group, share in GROUPS.items()),
    Search("33% by filter", kinds=KINDS // 3),
    Search("3% by filter", kinds=1),
    Search("a third of 50%", (ROOT, "half"), kinds=KINDS // 3),
]


def passages(source: str) -> Iterator[str]:
    """Yield docstrings and blocks of comments, and their sentences."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, owners)]
    texts += [MARK.sub("", block[0]) for block in COMMENTS.finditer(source)]
    for each in texts:
        yield from (" ".join(text.split()) for text in (each, *SENTENCE.split(each)))


def is_prose(text: str) -> bool:
    return 25 <= len(text) <= 1000 and sum(map(str.isalpha, text)) > 0.6 * len(text)


def modules() -> Iterator[tuple[str, str]]:
    """Yield names (at most two levels deep) and sources of modules."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts:
            name = ".".join(path.relative_to(root).with_suffix("").parts[:2])
            yield name, path.read_text("utf-8", errors="replace")


def collect_texts() -> list[tuple[str, str]]:
    """Return modules and texts, each text once, in a fixed shuffled order."""
    found: dict[str, str] = {}
    for module, source in modules():
        try:
            texts = list(passages(source))
        except (SyntaxError, ValueError):  # some test files are wrong on purpose
            continue
        for text in filter(is_prose, texts):
            found.setdefault(text, module)
    found_texts = [(module, text) for text, module in found.items()]
    random.Random(1).shuffle(found_texts)
    return found_texts


def assign_groups(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the group of each module, given its number of texts."""
    names = sorted(sizes)
    random.Random(2).shuffle(names)
    capacity = {group: share * sum(sizes.values()) for group, share in GROUPS.items()}
    group_of: dict[str, str] = {}
    for name in names:
        group = next((group for group, left in capacity.items() if left >= sizes[name]), "others")
        group_of[name] = group
        if group in capacity:
            capacity[group] -= sizes[name]
    return group_of


class Corpus:
    """Texts to store, questions, and their vectors."""

    def __init__(self, count: int) -> None:
        texts = collect_texts()[: count + QUESTIONS]
        vectors = _model().embed([text for _, text in texts], norm=True)
        self._vectors = np.asarray(vectors, dtype=np.float32)
        self._exactly = self._vectors.astype(np.float64)
        self._rows = {text: n for n, (_, text) in enumerate(texts)}
        self.questions = [text for _, text in texts[-QUESTIONS:]]
        stored = texts[:-QUESTIONS]
        group_of = assign_groups(Counter(module for module, _ in stored))
        self.texts = [
            Text((ROOT, group_of[module], *module.split(".")), f"text-{n}", text, n % KINDS)
            for n, (module, text) in enumerate(stored)
        ]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        found: list[list[float]] = self._vectors[[self._rows[text] for text in texts]].tolist()
        return found

    def scores(self, question: str) -> NDArray[np.float64]:
        """Return the scores of all stored texts."""
        scores: NDArray[np.float64] = self._exactly[:-QUESTIONS] @ self._exactly[self._rows[question]]
        return scores

    def nearest(self, search: Search) -> list[set[str]]:
        """Return for each question the keys of the nearest texts that fit."""
        fits = np.flatnonzero([search.fits(text) for text in self.texts])
        best = (fits[np.argsort(-self.scores(question)[fits])[:LIMIT]] for question in self.questions)
        return [{self.texts[n].key for n in each.tolist()} for each in best]


def _model() -> Any:
    folder = pathlib.Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def open_keep(url: str, corpus: Corpus, cache_bytes: int) -> threadkeep.Keep:
    index: Any = {"dims": DIMS, "embed": corpus.embed, "fields": ["text"]}
    return threadkeep.open(url, index=index, cache_bytes=cache_bytes)


def fill(store: BaseStore, texts: Sequence[Text]) -> float:
    """Store the texts, and return the seconds it took."""
    start = perf_counter()
    for first in range(0, len(texts), BATCH):
        store.batch([text.put for text in texts[first : first + BATCH]])
    return perf_counter() - start


def measure(store: BaseStore, search: Search, questions: Sequence[str], nearest: Sequence[set[str]]) -> Figures:
    times, hits = list[float](), 0
    for question in questions[:WARM_UP]:
        store.search(search.prefix, query=question, filter=search.filter, limit=LIMIT)
    for question, best in zip(questions, nearest, strict=True):
        start = perf_counter()
        found = store.search(search.prefix, query=question, filter=search.filter, limit=LIMIT)
        times.append((perf_counter() - start) * 1e3)
        hits += len(best & {item.key for item in found})
    return Figures(hits / sum(map(len, nearest)), statistics.median(times), statistics.quantiles(times, n=20)[-1])


def wait_for_index(store: BaseStore, url: str, corpus: Corpus) -> float:
    """Trigger the index by a search, wait for it, and return the seconds it took."""
    start = perf_counter()
    store.search((ROOT,), query=corpus.questions[0])
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(INDEX_COUNT).fetchall() != [(1,)]:
            if perf_counter() > start + TIMEOUT:
                raise SystemExit(f"no index was created within {TIMEOUT} seconds")
            sleep(0.1)
    return perf_counter() - start


def report(console: Console, corpus: Corpus, stores: Mapping[str, BaseStore]) -> None:
    table = Table("what", "texts")
    for name in stores:
        for figure in ("recall", "median ms", "95% ms"):
            table.add_column(f"{name}\n{figure}", justify="right")
    for search in SEARCHES:
        nearest = corpus.nearest(search)
        count = sum(map(search.fits, corpus.texts))
        figures = (measure(store, search, corpus.questions, nearest) for store in stores.values())
        table.add_row(search.what, f"{count:,}", *(cell for each in figures for cell in each.cells()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=40_000, help="number of stored texts; up to 10,000 need no index")
    count = parser.parse_args().texts
    console = Console(width=140)
    corpus = Corpus(count)
    with ExitStack() as stack:
        url, file = (
            stack.enter_context(open_storage()).new_url(ROOT) for open_storage in (postgres_storage, sqlite_storage)
        )
        indexed = stack.enter_context(open_keep(url, corpus, NO_CACHE)).store
        client = stack.enter_context(open_keep(url, corpus, DEFAULT_CACHE)).store
        sqlite = stack.enter_context(open_keep(file, corpus, DEFAULT_CACHE)).store
        console.print(f"{len(corpus.texts):,} texts, stored in PostgreSQL in {fill(indexed, corpus.texts):.1f} s")
        console.print(f"and in SQLite in {fill(sqlite, corpus.texts):.1f} s")
        console.print(f"the index was ready after {wait_for_index(indexed, url, corpus):.1f} s")
        report(console, corpus, {"pgvector": indexed, "client": client, "SQLite": sqlite})


if __name__ == "__main__":
    main()
