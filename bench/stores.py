"""Rows about the store: threadkeep's and the official one of the same database, without an index, with words, with vectors.

Recall is the share of the ten exact nearest notes, computed by numpy, that a search returns among its ten.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from langgraph.store.base import BaseStore, GetOp, PutOp

from benchmark import Benchmark
from contenders import POSTGRES_STORE, SQLITE_STORE, THREADKEEP_STORE, Index, StoreContender
from measuring import Action, measure
from notes import DIMS, KINDS, Embedder, Note, note, question
from storages import SqliteFiles

Stores = Mapping[str, BaseStore]
Filter = dict[str, Any]

BATCH = 100
ROUNDS, CALLS = 10, 5
COLD_ROUNDS = 2
QUERIES = 50
USER = ("notes", "user-3")
IS_FACT: Filter = {"kind": KINDS[0]}
IS_WEIGHTY: Filter = {"importance": {"$gte": 90}}


@dataclass(frozen=True, slots=True)
class Installation:
    """A contender with an index and its own database."""

    contender: StoreContender
    url: str
    index: Index

    @contextmanager
    def opened(self) -> Iterator[BaseStore]:
        with self.contender.open(self.url, "strict", self.index) as store:
            yield store


@contextmanager
def installations(benchmark: Benchmark, label: str, ours: Index, theirs: Index) -> Iterator[dict[str, Installation]]:
    official = SQLITE_STORE if isinstance(benchmark.storage, SqliteFiles) else POSTGRES_STORE
    chosen = [one for one in (official, THREADKEEP_STORE) if label != "vectors" or not one.lacks_vectors]
    if len(chosen) == 1:
        benchmark.say(f"no {official.name} with vectors: {official.lacks_vectors}")
    with benchmark.databases(label, len(chosen)) as urls:
        yield {
            one.name: Installation(one, url, ours if one is THREADKEEP_STORE else theirs)
            for one, url in zip(chosen, urls, strict=True)
        }


def fill(benchmark: Benchmark, installed: Mapping[str, Installation], stores: Stores, how: str) -> None:
    """Measure storing all notes, a part in each repetition. Then vacuum, as autovacuum would within a minute or so."""
    batches = benchmark.scale.notes // BATCH // benchmark.scale.repetitions
    for number in range(stored(benchmark) + ROUNDS * CALLS * benchmark.scale.repetitions):
        note(number)  # so that making it does not count
    for number in range(benchmark.scale.repetitions):
        put = measure(stores, put_batch, batches, first=number * batches)
        benchmark.rows.add_timed(f"store batch put{how}", f"batch put of {BATCH}{how}", put)
    for one in installed.values():
        benchmark.storage.vacuum(one.url)


def stored(benchmark: Benchmark) -> int:
    """Return how many notes `fill` has stored."""
    scale = benchmark.scale
    return scale.notes // BATCH // scale.repetitions * scale.repetitions * BATCH


def sizes(benchmark: Benchmark, installed: Mapping[str, Installation], what: str) -> None:
    """Measure megabytes on disk of databases that nobody has open."""
    usage = benchmark.storage.disk_usage
    figures = {name: sum(usage(one.contender.saver, one.url).values()) / 1e6 for name, one in installed.items()}
    benchmark.rows.add(f"store bytes, {what}", f"bytes on disk, {what}", "MB", figures)


def repeat(
    benchmark: Benchmark, stores: Stores, key: str, what: str, action: Action, *, calls: int = 1, rounds: int = ROUNDS
) -> None:
    """Measure an action in each repetition; its calls are numbered throughout."""
    for number in range(benchmark.scale.repetitions):
        timed = measure(stores, action, rounds, calls=calls, first=number * rounds)
        benchmark.rows.add_timed(f"store {key}", what, timed)


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

    def action(store: BaseStore, _: int) -> list[Any]:
        found = store.search(prefix, filter=filter, limit=10)
        assert found
        return found

    return action


def ask(query: str) -> Action:
    return lambda store, _: store.search((), query=query, limit=10)


def list_namespaces(**options: Any) -> Action:
    return lambda store, _: store.list_namespaces(**options)


# --- without an index


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


def plain(benchmark: Benchmark) -> None:
    benchmark.say(f"a store of {stored(benchmark):,} notes")
    with installations(benchmark, "plain", {"search": "off"}, None) as installed:
        with ExitStack() as stack:
            stores = {name: stack.enter_context(one.opened()) for name, one in installed.items()}
            fill(benchmark, installed, stores, "")
            changes(benchmark, stores, "")
            repeat(benchmark, stores, "get", "get", get, calls=CALLS)
            batches = benchmark.scale.notes // BATCH // benchmark.scale.repetitions
            repeat(benchmark, stores, "batch get", f"batch get of {BATCH}", get_batch, rounds=min(ROUNDS, batches))
            for what, action in SEARCHES.items():
                repeat(benchmark, stores, what, what, action)
            check_equal(stores)
        sizes(benchmark, installed, "no index")


def changes(benchmark: Benchmark, stores: Stores, how: str) -> None:
    """Measure adding a note, putting it again, and deleting it. These notes are not among those that are searched."""
    first = stored(benchmark)
    for key, action in (("put", put), ("put again", put), ("delete", delete)):
        later = lambda store, number, action=action: action(store, first + number)  # noqa: E731
        what = {"put": "put, new", "put again": "put, again"}.get(key, key)
        repeat(benchmark, stores, f"{key}{how}", f"{what}{how}", later, calls=CALLS)


def check_equal(stores: Stores) -> None:
    """Fail unless all stores return the same notes. Notes of one batch may come in another order."""
    for number in (0, 1, 123):
        first, *others = (store.get(note(number).namespace, note(number).key) for store in stores.values())
        assert first is not None
        assert all(other is not None and other.value == first.value for other in others)
    found = [sorted(each.key for each in store.search(USER, filter=IS_FACT, limit=10_000)) for store in stores.values()]
    assert all(found)
    assert all(keys == found[0] for keys in found)


# --- with an index of words


def words(benchmark: Benchmark) -> None:
    """Measure threadkeep's default. The official stores have no word index, so theirs is the time without one."""
    benchmark.say("a store with an index of words")
    with installations(benchmark, "words", None, None) as installed:
        with ExitStack() as stack:
            stores = {name: stack.enter_context(one.opened()) for name, one in installed.items()}
            fill(benchmark, installed, stores, ", words")
            changes(benchmark, stores, ", words")
            ours = {THREADKEEP_STORE.name: stores[THREADKEEP_STORE.name]}
            repeat(benchmark, ours, "rare words", "search by two rare words", ask("deprecated asynchronous"))
            repeat(benchmark, ours, "frequent word", "search by a frequent word", ask("the"))
        sizes(benchmark, installed, "words")


# --- with an index of vectors


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


def vectors(benchmark: Benchmark) -> None:
    benchmark.say(f"a store with an index of vectors with {DIMS} dimensions")
    repetitions = benchmark.scale.repetitions
    embedder = Embedder(stored(benchmark), more=ROUNDS * CALLS * repetitions)
    index = {"dims": DIMS, "embed": embedder}
    with installations(benchmark, "vectors", index, index) as installed:
        with ExitStack() as stack:
            stores = {name: stack.enter_context(one.opened()) for name, one in installed.items()}
            fill(benchmark, installed, stores, ", vectors")
            for aim in AIMS:
                repeat(benchmark, stores, f"vector search{aim.what}", f"vector search{aim.what}", aim.search)
                recall = aim.recall(stores, embedder)
                benchmark.rows.add(f"store recall{aim.what}", f"recall{aim.what}", "", recall, compared=False)
            changes(benchmark, stores, ", vectors")
            later = lambda store, number: put_and_search(store, stored(benchmark) + number)  # noqa: E731
            repeat(benchmark, stores, "put and vector search", "put, then vector search", later)
        for number in range(repetitions):
            first = measure(installed, lambda one, _: first_search(one), COLD_ROUNDS, first=number)
            benchmark.rows.add_timed("store first vector search", "open and first vector search", first)
        sizes(benchmark, installed, "vectors")


def put_and_search(store: BaseStore, number: int) -> None:
    put(store, number)
    AIMS[0].search(store, number)


def first_search(one: Installation) -> None:
    with one.opened() as store:
        assert AIMS[0].search(store, 0)


PARTS: tuple[Callable[[Benchmark], None], ...] = (plain, words, vectors)


def store(benchmark: Benchmark) -> None:
    for part in PARTS:
        part(benchmark)
