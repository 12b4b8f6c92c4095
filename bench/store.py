"""Compares speed and recall of stores: threadkeep's and the official one of the same database, in one run.

    python bench/store.py                       # SQLite, compared with SqliteStore with sqlite-vec; a minute or two
    python bench/store.py --postgres            # PostgreSQL with pgvector, compared with PostgresStore
    python bench/store.py --memory              # in memory, compared with InMemoryStore
    python bench/store.py --notes 2000          # a short look
    python bench/store.py --parts vectors       # some rows only: plain, words, vectors

Contenders take turns in small pieces, and the first one changes, so that a busy machine slows both equally.
Read the ratios: times of two runs cannot be compared, and no time makes a run fail.
Recall is the share of the ten exact nearest notes, computed by numpy, that a search returns among its ten.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from langgraph.store.base import BaseStore, GetOp, PutOp
from rich.console import Console

from comparison import Row, Times, medians, report, rotate
from contenders import (
    MEMORY_STORE,
    POSTGRES_STORE,
    SQLITE_STORE,
    THREADKEEP_STORE,
    Contender,
    Durability,
    Index,
    StoreContender,
)
from notes import DIMS, KINDS, Embedder, Note, note, question
from storages import postgres_storage, sqlite_storage

Stores = Mapping[str, BaseStore]
Action = Callable[[BaseStore, int], object]
Filter = dict[str, Any]

BATCH = 100
ROUNDS, CALLS = 30, 10
COLD_ROUNDS = 5
QUERIES = 50
USER = ("notes", "user-3")
IS_FACT: Filter = {"kind": KINDS[0]}
IS_WEIGHTY: Filter = {"importance": {"$gte": 90}}


class Storage(Protocol):
    """Creates and measures databases, each with a URL and one contender's data."""

    def new_url(self, name: str) -> str: ...

    def disk_usage(self, contender: Contender, url: str) -> Mapping[str, int]: ...

    def vacuum(self, url: str) -> int | None: ...


class NoStorage:
    """Memory: data is gone when a store is closed, and nothing is on disk."""

    def new_url(self, name: str) -> str:  # noqa: ARG002
        return "memory://"

    def disk_usage(self, contender: Contender, url: str) -> Mapping[str, int]:  # noqa: ARG002
        return {}

    def vacuum(self, url: str) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A contender with an index and its own database."""

    contender: StoreContender
    url: str
    durability: Durability
    index: Index

    def open(self) -> AbstractContextManager[BaseStore]:
        return self.contender.open(self.url, self.durability, self.index)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The contenders, the storage and the number of notes of a run."""

    storage: Storage
    contenders: Sequence[StoreContender]
    durability: Durability
    notes: int

    def installations(self, label: str, ours: Index, theirs: Index) -> dict[str, Installation]:
        return {
            one.name: Installation(
                one,
                self.storage.new_url(f"{label}-{one.name}"),
                self.durability,
                ours if one is THREADKEEP_STORE else theirs,
            )
            for one in self.contenders
        }

    def with_vectors(self) -> Benchmark:
        """Return this benchmark without contenders that cannot store vectors here."""
        for one in self.contenders:
            if one.lacks_vectors:
                print(f"no {one.name} with vectors: {one.lacks_vectors}")
        return replace(self, contenders=[one for one in self.contenders if not one.lacks_vectors])

    def fill(self, stores: Stores, installations: Mapping[str, Installation], how: str) -> Row:
        """Measure storing all notes. Then vacuum, as autovacuum would within a minute or so."""
        taken = measure(stores, put_batch, rounds=self.notes // BATCH)
        for one in installations.values():
            self.storage.vacuum(one.url)
        return Row(f"batch put of {BATCH}{how}", "ms", taken)

    def later(self, action: Action) -> Action:
        """Return the same action on notes after those that are searched."""
        return lambda store, number: action(store, self.notes + number)

    def sizes(self, what: str, installations: Mapping[str, Installation]) -> Iterator[Row]:
        """Measure megabytes on disk of databases that nobody has open."""
        parts = {name: self.storage.disk_usage(one.contender.saver, one.url) for name, one in installations.items()}
        if all(parts.values()):
            yield Row(f"size on disk, {what}", "MB", {name: sum(each.values()) / 1e6 for name, each in parts.items()})


def open_all(stack: ExitStack, installations: Mapping[str, Installation]) -> dict[str, BaseStore]:
    return {name: stack.enter_context(one.open()) for name, one in installations.items()}


def measure(stores: Stores, action: Action, *, rounds: int = ROUNDS, calls: int = 1) -> dict[str, float]:
    """Return the median milliseconds of a call. Calls are numbered, the same for every store."""
    times = Times()
    for number in range(rounds):
        for name in rotate(list(stores), number):
            start = perf_counter()
            for call in range(number * calls, (number + 1) * calls):
                action(stores[name], call)
            times.since(start, name)
    return {name: taken / calls for name, taken in times.medians().items()}


# --- actions


def numbers(batch: int) -> Iterable[int]:
    return range(batch * BATCH, (batch + 1) * BATCH)


def put_op(number: int) -> PutOp:
    return PutOp(*note(number), index=["text"])


def put(store: BaseStore, number: int) -> None:
    store.batch([put_op(number)])


def put_batch(store: BaseStore, batch: int) -> None:
    store.batch([put_op(number) for number in numbers(batch)])


def get(store: BaseStore, number: int) -> None:
    namespace, key, value = note(number)
    found = store.get(namespace, key)
    assert found is not None
    assert found.value == value


def get_batch(store: BaseStore, batch: int) -> None:
    assert all(store.batch([GetOp(each.namespace, each.key) for each in map(note, numbers(batch))]))


def delete(store: BaseStore, number: int) -> None:
    store.delete(note(number).namespace, note(number).key)


def find(prefix: tuple[str, ...] = (), filter: Filter | None = None) -> Action:
    """Return an action that searches without a query."""

    def action(store: BaseStore, _: int) -> None:
        assert store.search(prefix, filter=filter, limit=10)

    return action


def ask(query: str) -> Action:
    return lambda store, _: store.search((), query=query, limit=10)


def list_namespaces(**options: Any) -> Action:
    return lambda store, _: store.list_namespaces(**options)


# --- without an index


def plain(benchmark: Benchmark) -> Iterator[Row]:
    installations = benchmark.installations("plain", ours={"search": "off"}, theirs=None)
    with ExitStack() as stack:
        stores = open_all(stack, installations)
        yield benchmark.fill(stores, installations, "")
        yield from changes(benchmark, stores, "")
        yield Row("get", "ms", measure(stores, get, calls=CALLS))
        yield Row(f"batch get of {BATCH}", "ms", measure(stores, get_batch, rounds=benchmark.notes // BATCH))
        for what, action in SEARCHES.items():
            yield Row(what, "ms", measure(stores, action))
    yield from benchmark.sizes("no index", installations)


def changes(benchmark: Benchmark, stores: Stores, how: str) -> Iterator[Row]:
    """Measure adding a note, putting it again, and deleting it."""
    for what, action in (("put, new", put), ("put, again", put), ("delete", delete)):
        yield Row(f"{what}{how}", "ms", measure(stores, benchmark.later(action), calls=CALLS))


SEARCHES: Mapping[str, Action] = {
    "search, everything": find(),
    "search, prefix": find(USER),
    "search, prefix, equality": find(USER, IS_FACT),
    "search, prefix, range": find(USER, IS_WEIGHTY),
    "search, prefix, both": find(USER, IS_FACT | IS_WEIGHTY),
    "search, both": find((), IS_FACT | IS_WEIGHTY),
    "search, equality, one matches": find((), {"number": 123}),
    "list_namespaces": list_namespaces(),
    "list_namespaces, max_depth=2": list_namespaces(max_depth=2),
    "list_namespaces, prefix": list_namespaces(prefix=USER),
    "list_namespaces, suffix": list_namespaces(suffix=("topic-4",)),
}


# --- with an index of words


def words(benchmark: Benchmark) -> Iterator[Row]:
    """Measure threadkeep's default. The official stores have no word index, so theirs is the time without one."""
    installations = benchmark.installations("words", ours=None, theirs=None)
    with ExitStack() as stack:
        stores = open_all(stack, installations)
        yield benchmark.fill(stores, installations, ", words")
        yield from changes(benchmark, stores, ", words")
        ours = {THREADKEEP_STORE.name: stores[THREADKEEP_STORE.name]}
        yield Row("search by two rare words", "ms", measure(ours, ask("deprecated asynchronous")))
        yield Row("search by a frequent word", "ms", measure(ours, ask("the")))
    yield from benchmark.sizes("words", installations)


# --- with an index of vectors


def vectors(benchmark: Benchmark) -> Iterator[Row]:
    embedder = Embedder(benchmark.notes, more=ROUNDS * CALLS)
    index = {"dims": DIMS, "embed": embedder}
    benchmark = benchmark.with_vectors()
    installations = benchmark.installations("vectors", ours=index, theirs=index)
    with ExitStack() as stack:
        stores = open_all(stack, installations)
        yield benchmark.fill(stores, installations, ", vectors")
        for aim in AIMS:
            yield Row(f"vector search{aim.what}", "ms", measure(stores, aim.search))
            yield Row(f"recall{aim.what}", "", aim.recall(stores, embedder), compared=False)
        yield from changes(benchmark, stores, ", vectors")
        yield Row("put, then vector search", "ms", measure(stores, benchmark.later(put_and_search)))
    if not isinstance(benchmark.storage, NoStorage):
        first = {name: lambda one=one: first_search(one) for name, one in installations.items()}
        yield Row("open and first vector search", "ms", medians(first, COLD_ROUNDS))
    yield from benchmark.sizes("vectors", installations)


class Aim(NamedTuple):
    """A prefix and a filter of a vector search."""

    what: str
    prefix: tuple[str, ...] = ()
    filter: Filter | None = None

    def search(self, store: BaseStore, number: int) -> set[str]:
        """Return the keys that the search finds."""
        return {hit.key for hit in store.search(self.prefix, query=question(number), filter=self.filter, limit=10)}

    def fits(self, each: Note) -> bool:
        return each.namespace[: len(self.prefix)] == self.prefix and (self.filter or {}).items() <= each.value.items()

    def recall(self, stores: Stores, embedder: Embedder) -> dict[str, float]:
        wanted = [embedder.nearest(number, 10, self.fits) for number in range(QUERIES)]
        return {
            name: statistics.fmean(len(self.search(store, n) & keys) / len(keys) for n, keys in enumerate(wanted))
            for name, store in stores.items()
        }


AIMS = (Aim(""), Aim(", prefix", USER), Aim(", filter", (), IS_FACT), Aim(", both", USER, IS_FACT))


def put_and_search(store: BaseStore, number: int) -> None:
    put(store, number)
    AIMS[0].search(store, number)


def first_search(one: Installation) -> None:
    with one.open() as store:
        assert AIMS[0].search(store, 0)


PARTS: Mapping[str, Callable[[Benchmark], Iterable[Row]]] = {"plain": plain, "words": words, "vectors": vectors}
STORAGES: Mapping[str, tuple[Callable[[], AbstractContextManager[Storage]], StoreContender]] = {
    "sqlite": (sqlite_storage, SQLITE_STORE),
    "postgres": (postgres_storage, POSTGRES_STORE),
    "memory": (lambda: nullcontext(NoStorage()), MEMORY_STORE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of threadkeep's store and the official ones.")
    for name in ("postgres", "memory"):
        help = f"{name} instead of SQLite"
        parser.add_argument(f"--{name}", dest="storage", action="store_const", const=name, default="sqlite", help=help)
    parser.add_argument("--notes", type=int, default=10_000)
    parser.add_argument("--durability", choices=("strict", "relaxed"), default="strict")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    make, official = STORAGES[options.storage]
    with make() as storage:
        benchmark = Benchmark(storage, (official, THREADKEEP_STORE), options.durability, options.notes)
        rows = chain.from_iterable(PARTS[part](benchmark) for part in options.parts)
        report(Console(), [one.name for one in benchmark.contenders], rows)


if __name__ == "__main__":
    main()
