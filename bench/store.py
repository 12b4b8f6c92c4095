"""Time that stores take, and what they find: threadkeep's beside the official one of the same database, all in one run.

    python bench/store.py                       # SQLite, beside SqliteStore with sqlite-vec; a minute or two
    python bench/store.py --postgres            # PostgreSQL with pgvector, beside PostgresStore
    python bench/store.py --memory              # in memory, beside InMemoryStore
    python bench/store.py --notes 2000          # a short look
    python bench/store.py --parts vectors       # some rows only: plain, words, vectors

Contenders take turns in small pieces and change who goes first, so that a busy machine hurts both alike.
Read the ratios: times of two runs cannot be compared, and nothing here fails because of a time.
Recall is the share of the ten nearest notes, computed by numpy, that a search has among its ten.
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
from grounds import on_postgres, on_sqlite
from notes import DIMS, KINDS, Embedder, Note, note, question
from rounds import Row, Times, in_turn, medians, report

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


class Where(Protocol):
    """A place is a URL with one contender's data behind it."""

    def place(self, name: str) -> str: ...

    def parts(self, contender: Contender, place: str) -> Mapping[str, int]: ...

    def vacuumed(self, place: str) -> int | None: ...


class Nowhere:
    """Memory: each place is gone when it is closed, and nothing is on disk."""

    def place(self, name: str) -> str:  # noqa: ARG002
        return "memory://"

    def parts(self, contender: Contender, place: str) -> Mapping[str, int]:  # noqa: ARG002
        return {}

    def vacuumed(self, place: str) -> None:
        """There is nothing to tidy up."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender with an index, at a place of its own."""

    contender: StoreContender
    place: str
    durability: Durability
    index: Index

    def open(self) -> AbstractContextManager[BaseStore]:
        return self.contender.open(self.place, self.durability, self.index)


@dataclass(frozen=True, slots=True)
class Race:
    """Who is measured, where, and with how many notes."""

    where: Where
    contenders: Sequence[StoreContender]
    durability: Durability
    notes: int

    def entrants(self, label: str, ours: Index, theirs: Index) -> dict[str, Entrant]:
        return {
            one.name: Entrant(
                one,
                self.where.place(f"{label}-{one.name}"),
                self.durability,
                ours if one is THREADKEEP_STORE else theirs,
            )
            for one in self.contenders
        }

    def with_vectors(self) -> Race:
        """Without those that cannot have them here."""
        for one in self.contenders:
            if one.lacks_vectors:
                print(f"no {one.name} with vectors: {one.lacks_vectors}")
        return replace(self, contenders=[one for one in self.contenders if not one.lacks_vectors])

    def fill(self, stores: Stores, entrants: Mapping[str, Entrant], how: str) -> Row:
        """Store all notes. Then the database tidies up, as it would by itself within a minute or so."""
        taken = measured(stores, put_batch, rounds=self.notes // BATCH)
        for one in entrants.values():
            self.where.vacuumed(one.place)
        return Row(f"batch put of {BATCH}{how}", "ms", taken)

    def later(self, action: Action) -> Action:
        """The same on notes that come after those that are searched."""
        return lambda store, number: action(store, self.notes + number)

    def sizes(self, what: str, entrants: Mapping[str, Entrant]) -> Iterator[Row]:
        """Megabytes on disk; nobody may have them open."""
        parts = {name: self.where.parts(one.contender.saver, one.place) for name, one in entrants.items()}
        if all(parts.values()):
            yield Row(f"size on disk, {what}", "MB", {name: sum(each.values()) / 1e6 for name, each in parts.items()})


def opened(stack: ExitStack, entrants: Mapping[str, Entrant]) -> dict[str, BaseStore]:
    return {name: stack.enter_context(one.open()) for name, one in entrants.items()}


def measured(stores: Stores, action: Action, *, rounds: int = ROUNDS, calls: int = 1) -> dict[str, float]:
    """Median milliseconds of a call. Calls are numbered, the same for every store."""
    times = Times()
    for number in range(rounds):
        for name in in_turn(list(stores), number):
            start = perf_counter()
            for call in range(number * calls, (number + 1) * calls):
                action(stores[name], call)
            times.since(start, name)
    return {name: taken / calls for name, taken in times.medians().items()}


# --- what is done


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
    """A search without a query."""

    def action(store: BaseStore, _: int) -> None:
        assert store.search(prefix, filter=filter, limit=10)

    return action


def ask(query: str) -> Action:
    return lambda store, _: store.search((), query=query, limit=10)


def list_namespaces(**options: Any) -> Action:
    return lambda store, _: store.list_namespaces(**options)


# --- found by place and value alone


def plain(race: Race) -> Iterator[Row]:
    entrants = race.entrants("plain", ours={"search": "off"}, theirs=None)
    with ExitStack() as stack:
        stores = opened(stack, entrants)
        yield race.fill(stores, entrants, "")
        yield from changes(race, stores, "")
        yield Row("get", "ms", measured(stores, get, calls=CALLS))
        yield Row(f"batch get of {BATCH}", "ms", measured(stores, get_batch, rounds=race.notes // BATCH))
        for what, action in SEARCHES.items():
            yield Row(what, "ms", measured(stores, action))
    yield from race.sizes("no index", entrants)


def changes(race: Race, stores: Stores, how: str) -> Iterator[Row]:
    """One note more, the same again, and gone."""
    for what, action in (("put, new", put), ("put, again", put), ("delete", delete)):
        yield Row(f"{what}{how}", "ms", measured(stores, race.later(action), calls=CALLS))


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


# --- found by words too


def words(race: Race) -> Iterator[Row]:
    """What threadkeep does unless it is told otherwise. The official stores have no words: theirs is the time without."""
    entrants = race.entrants("words", ours=None, theirs=None)
    with ExitStack() as stack:
        stores = opened(stack, entrants)
        yield race.fill(stores, entrants, ", words")
        yield from changes(race, stores, ", words")
        ours = {THREADKEEP_STORE.name: stores[THREADKEEP_STORE.name]}
        yield Row("search by two rare words", "ms", measured(ours, ask("deprecated asynchronous")))
        yield Row("search by a frequent word", "ms", measured(ours, ask("the")))
    yield from race.sizes("words", entrants)


# --- found by vectors too


def vectors(race: Race) -> Iterator[Row]:
    embedder = Embedder(race.notes, more=ROUNDS * CALLS)
    index = {"dims": DIMS, "embed": embedder}
    race = race.with_vectors()
    entrants = race.entrants("vectors", ours=index, theirs=index)
    with ExitStack() as stack:
        stores = opened(stack, entrants)
        yield race.fill(stores, entrants, ", vectors")
        for aim in AIMS:
            yield Row(f"vector search{aim.what}", "ms", measured(stores, aim.search))
            yield Row(f"recall{aim.what}", "", aim.recall(stores, embedder), compared=False)
        yield from changes(race, stores, ", vectors")
        yield Row("put, then vector search", "ms", measured(stores, race.later(put_and_search)))
    if not isinstance(race.where, Nowhere):
        first = {name: lambda one=one: first_search(one) for name, one in entrants.items()}
        yield Row("open and first vector search", "ms", medians(first, COLD_ROUNDS))
    yield from race.sizes("vectors", entrants)


class Aim(NamedTuple):
    """What a vector search is about."""

    what: str
    prefix: tuple[str, ...] = ()
    filter: Filter | None = None

    def search(self, store: BaseStore, number: int) -> set[str]:
        """The keys that it finds."""
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


def first_search(one: Entrant) -> None:
    with one.open() as store:
        assert AIMS[0].search(store, 0)


PARTS: Mapping[str, Callable[[Race], Iterable[Row]]] = {"plain": plain, "words": words, "vectors": vectors}
PLACES: Mapping[str, tuple[Callable[[], AbstractContextManager[Where]], StoreContender]] = {
    "sqlite": (on_sqlite, SQLITE_STORE),
    "postgres": (on_postgres, POSTGRES_STORE),
    "memory": (lambda: nullcontext(Nowhere()), MEMORY_STORE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time that stores take, threadkeep's beside the official ones.")
    for name in ("postgres", "memory"):
        help = f"{name} instead of SQLite"
        parser.add_argument(f"--{name}", dest="place", action="store_const", const=name, default="sqlite", help=help)
    parser.add_argument("--notes", type=int, default=10_000)
    parser.add_argument("--durability", choices=("strict", "relaxed"), default="strict")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    make, official = PLACES[options.place]
    with make() as where:
        race = Race(where, (official, THREADKEEP_STORE), options.durability, options.notes)
        rows = chain.from_iterable(PARTS[part](race) for part in options.parts)
        report(Console(), [one.name for one in race.contenders], rows)


if __name__ == "__main__":
    main()
