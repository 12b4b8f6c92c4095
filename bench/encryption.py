"""What encryption costs: the same work on threadkeep without keys, with keys, and with hidden ids: `make bench-encryption`.

    python bench/encryption.py                       # SQLite and PostgreSQL
    python bench/encryption.py --storages valkey     # a cluster; bytes are those of its keys in memory
    python bench/encryption.py --turns 200           # the whole conversation

The three take turns in small pieces, and the first one changes. They must end with the same state, or the run fails.
Read the ratios: how many times more time or bytes than without keys.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

import threadkeep
from contenders import THREADKEEP, Contender, Durability
from conversations import THREAD, config_of
from equality import check_equal
from measuring import Figures, measure, rotate
from recording import Stopwatch, record, replay
from storages import open_storage

KEYS = threadkeep.Keys({"k1": os.urandom(32)}, primary="k1")
VARIANTS: Mapping[str, dict[str, Any]] = {
    "no keys": {},
    "keys": {"keys": KEYS},
    "hidden ids": {"keys": KEYS, "hide_ids": True},
}
PUTS = ("put", "put_writes")
GETS, PAGES, SEARCHES, MEMORIES = 15, 5, 15, 2_000
Ratios = dict[str, list[Figures]]


class Storage(Protocol):
    """What is measured here of a `storages.Storage`."""

    def new_url(self, name: str) -> str: ...
    def drop(self, url: str) -> None: ...
    def disk_usage(self, contender: Contender, url: str) -> dict[str, int]: ...


class ValkeyPrefixes:
    """Prefixes of a Valkey cluster. Their keys stay until the cluster stops."""

    def __init__(self, cluster: Any) -> None:
        self._cluster, self._numbers = cluster, count()

    def new_url(self, name: str) -> str:
        return str(self._cluster.url(f"{name}-{next(self._numbers)}-"))

    def drop(self, url: str) -> None:
        """Do nothing."""

    def disk_usage(self, contender: Contender, url: str) -> dict[str, int]:  # noqa: ARG002 - there is one contender
        prefix = url.partition("prefix=")[2].partition("&")[0]
        clients = [server.client for server in self._cluster.living_primaries()]
        keys = [(client, key) for client in clients for key in client.scan_iter(f"{prefix}*", count=10_000)]
        return {"memory": sum(client.memory_usage(key, samples=0) for client, key in keys)}


@contextmanager
def valkey_prefixes() -> Iterator[Storage]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    cluster = importlib.import_module("valkey_servers").fresh_cluster(replicas=1)
    try:
        yield ValkeyPrefixes(cluster)
    finally:
        cluster.stop()


def open_one(name: str) -> AbstractContextManager[Storage]:
    return valkey_prefixes() if name == "valkey" else open_storage(postgres=name == "postgres")


def conversation(storage: Storage, turns: int, durability: Durability, ratios: Ratios) -> None:
    """Replay a conversation on each variant, then read it."""
    urls = {name: storage.new_url(f"{durability}-{number}") for number, name in enumerate(VARIANTS)}
    watches = {name: Stopwatch() for name in VARIANTS}
    with ExitStack() as stack:
        keeps = opened(stack, urls, durability)
        for number, calls in enumerate(record(turns)):
            for name in rotate(list(VARIANTS), number):
                replay(keeps[name].checkpointer, calls, thread=THREAD, watch=watches[name])
        check_equal([keep.checkpointer for keep in keeps.values()], config_of())
        add(ratios, f"put and put_writes, {durability}", {name: each.total(*PUTS) for name, each in watches.items()})
        add(ratios, f"the same, CPU, {durability}", {name: each.total_cpu(*PUTS) for name, each in watches.items()})
        if durability == "strict":
            timed(ratios, "get_tuple, warm", keeps, lambda keep, _: keep.checkpointer.get_tuple(config_of()), GETS)
            listed = lambda keep, _: list(keep.checkpointer.list(config_of(), limit=10))  # noqa: E731
            timed(ratios, "list(limit=10)", keeps, listed, PAGES)
    with ExitStack() as stack:
        cold = opened(stack, urls, durability)
        timed(ratios, f"get_tuple, first, {durability}", cold, lambda keep, _: keep.checkpointer.get(config_of()), 1)
    sizes = {name: float(sum(storage.disk_usage(THREADKEEP, url).values())) for name, url in urls.items()}
    add(ratios, f"bytes on disk, {durability}", sizes)
    for url in urls.values():
        storage.drop(url)


def memories(storage: Storage, ratios: Ratios) -> None:
    """Put, get and search memories in each variant."""
    urls = {name: storage.new_url(f"memories-{number}") for number, name in enumerate(VARIANTS)}
    with ExitStack() as stack:
        keeps = opened(stack, urls, "strict")
        timed(ratios, "store put", keeps, put_memory, MEMORIES)
        found = lambda keep, number: keep.store.get(("users", f"u{number % 40}"), f"k{number}")  # noqa: E731
        timed(ratios, "store get", keeps, found, MEMORIES // 4)
        one_user = lambda keep, number: keep.store.search(("users", f"u{number}"), limit=20)  # noqa: E731
        timed(ratios, "store search, by prefix", keeps, one_user, SEARCHES)
        words = lambda keep, number: keep.store.search(("users",), query=f"plan{number}", limit=10)  # noqa: E731
        timed(ratios, "store search, by words", keeps, words, SEARCHES)
        filtered = lambda keep, number: keep.store.search(("users",), filter={"rank": number}, limit=10)  # noqa: E731
        timed(ratios, f"store search, filter over {MEMORIES:,} memories", keeps, filtered, SEARCHES)
    sizes = {name: float(sum(storage.disk_usage(THREADKEEP, url).values())) for name, url in urls.items()}
    add(ratios, f"bytes of {MEMORIES:,} memories on disk", sizes)
    for url in urls.values():
        storage.drop(url)


def put_memory(keep: threadkeep.Keep, number: int) -> None:
    value = {"text": f"prefers the plan{number % 50} and is called in the morning", "rank": number}
    keep.store.put(("users", f"u{number % 40}"), f"k{number}", value)


def opened(stack: ExitStack, urls: Mapping[str, str], durability: Durability) -> dict[str, threadkeep.Keep]:
    keeps = {
        name: stack.enter_context(threadkeep.open(url, durability=durability, **VARIANTS[name]))
        for name, url in urls.items()
    }
    for keep in keeps.values():
        _ = keep.setup()
    return keeps


def timed(
    ratios: Ratios,
    what: str,
    keeps: Mapping[str, threadkeep.Keep],
    action: Callable[[threadkeep.Keep, int], object],
    rounds: int,
) -> None:
    add(ratios, what, measure(keeps, action, rounds)[0])


def add(ratios: Ratios, what: str, figures: Figures) -> None:
    ratios.setdefault(what, []).append(figures)


def show(console: Console, title: str, ratios: Ratios) -> None:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(("times more than without keys", *list(VARIANTS)[1:])):
        table.add_column(heading, justify="right" if number else "left")
    for what, figures in ratios.items():
        table.add_row(
            what, *(spread([each[name] / each["no keys"] for each in figures]) for name in list(VARIANTS)[1:])
        )
    console.print(table)


def spread(ratios: Sequence[float]) -> str:
    middle = f"{statistics.median(ratios):.2f}x"
    return f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else middle


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what encryption costs.")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--storages", choices=("sqlite", "postgres", "valkey"), nargs="+", default=["sqlite", "postgres"]
    )
    options = parser.parse_args()
    console, errors = Console(width=140), Console(stderr=True)
    for name in options.storages:
        ratios: Ratios = {}
        with open_one(name) as storage:
            for number in range(options.repetitions):
                errors.print(f"  {name}, repetition {number + 1} of {options.repetitions}", style="dim")
                conversation(storage, options.turns, "strict", ratios)
                conversation(storage, options.turns, "relaxed", ratios)
                memories(storage, ratios)
        show(console, f"{name}, {options.turns} turns", ratios)


if __name__ == "__main__":
    main()
