"""Rows about encryption: the same work on threadkeep without keys, with keys, and with hidden ids as well.

The three take turns in small pieces, and the first one changes. They must end with the same state, or the run fails.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import threadkeep
from benchmark import Benchmark
from contenders import THREADKEEP, Contender, Durability
from conversations import DURABILITIES, GETS, PAGES, THREAD, WRITES, config_of
from equality import check_equal
from measuring import measure, rotate
from recording import Stopwatch, record, replay
from storages import Storage

KEYS = threadkeep.Keys({"k1": os.urandom(32)}, primary="k1")
VARIANTS: Mapping[str, dict[str, Any]] = {
    "without keys": {},
    "with keys": {"keys": KEYS},
    "with hidden ids": {"keys": KEYS, "hide_ids": True},
}
SEARCHES, MEMORIES = 15, 2_000
Keeps = Mapping[str, threadkeep.Keep]


def encryption(benchmark: Benchmark) -> None:
    """Measure a conversation, strict and relaxed, and memories."""
    for _ in benchmark.repetitions("with and without keys"):
        for durability in DURABILITIES:
            _conversation(benchmark, durability)
        _memories(benchmark)


def encryption_on_valkey(benchmark: Benchmark) -> None:
    """Measure the same on a cluster of six servers on this machine. Bytes are those of keys in memory."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    cluster = importlib.import_module("valkey_servers").fresh_cluster(replicas=1)
    try:
        encryption(replace(benchmark, storage=ValkeyPrefixes(cluster)))
    finally:
        cluster.stop()


class ValkeyPrefixes(Storage):
    """Prefixes of a Valkey cluster, for threadkeep alone. Their keys stay until the cluster stops."""

    official = THREADKEEP
    official_prunes = False
    size_limit = 0

    def __init__(self, cluster: Any) -> None:
        self._cluster, self._numbers = cluster, count()

    def new_url(self, name: str) -> str:
        return str(self._cluster.url(f"{name}-{next(self._numbers)}-"))

    def drop(self, url: str) -> None:
        """Do nothing."""

    def written(self) -> float:
        return 0.0

    def size(self, contender: Contender, url: str) -> int:  # noqa: ARG002 - there is one contender
        prefix = url.partition("prefix=")[2].partition("&")[0]
        clients = [server.client for server in self._cluster.living_primaries()]
        keys = [(client, key) for client in clients for key in client.scan_iter(f"{prefix}*", count=10_000)]
        return sum(client.memory_usage(key, samples=0) for client, key in keys)

    def disk_usage(self, contender: Contender, url: str) -> dict[str, int]:
        return {"memory": self.size(contender, url)}

    def vacuum(self, url: str) -> None:
        """Do nothing."""


def _conversation(benchmark: Benchmark, durability: Durability) -> None:
    """Replay a conversation in each variant, then read it."""
    turns = benchmark.scale.turns
    with benchmark.databases("keys", len(VARIANTS)) as given:
        urls = dict(zip(VARIANTS, given, strict=True))
        watches = {name: Stopwatch() for name in VARIANTS}
        with ExitStack() as stack:
            keeps = _opened(stack, urls, durability)
            for number, calls in enumerate(record(turns)):
                for name in rotate(list(VARIANTS), number):
                    replay(keeps[name].checkpointer, calls, thread=THREAD, watch=watches[name])
            check_equal([keep.checkpointer for keep in keeps.values()], config_of())
            wall = {name: each.total(*WRITES) for name, each in watches.items()}
            cpu = {name: each.total_cpu(*WRITES) for name, each in watches.items()}
            what = f"put and put_writes, {turns} turns, {durability}"
            benchmark.rows.add(f"keys, saver time, {durability}", what, "s", wall, cpu)
            if durability == "strict":
                latest = measure(keeps, lambda keep, _: keep.checkpointer.get_tuple(config_of()), GETS)
                benchmark.rows.add_timed("keys, get", "get_tuple, latest, warm", latest)
                page = measure(keeps, lambda keep, _: list(keep.checkpointer.list(config_of(), limit=10)), PAGES)
                benchmark.rows.add_timed("keys, list(10)", "list(limit=10)", page)
        if durability == "strict":
            with ExitStack() as stack:
                first = measure(
                    _opened(stack, urls, durability), lambda keep, _: keep.checkpointer.get_tuple(config_of()), 1
                )
            benchmark.rows.add_timed("keys, first get", "get_tuple, latest, the first one of a Keep", first)
            _add_bytes(benchmark, "keys, bytes", f"bytes on disk after {turns} turns", urls)


def _memories(benchmark: Benchmark) -> None:
    """Put, get and search memories in each variant."""
    with benchmark.databases("memories", len(VARIANTS)) as given:
        urls = dict(zip(VARIANTS, given, strict=True))
        with ExitStack() as stack:
            keeps = _opened(stack, urls, "strict")

            def add(what: str, action: Callable[[Any, int], object], rounds: int) -> None:
                benchmark.rows.add_timed(f"keys, store {what}", f"store: {what}", measure(keeps, action, rounds))

            add("put", _put_memory, MEMORIES)
            add("get", lambda keep, n: keep.store.get(("users", f"u{n % 40}"), f"k{n}"), MEMORIES // 4)
            add("search by prefix", lambda keep, n: keep.store.search(("users", f"u{n}"), limit=20), SEARCHES)
            words = lambda keep, n: keep.store.search(("users",), query=f"plan{n}", limit=10)  # noqa: E731
            add("search by words", words, SEARCHES)
            one = lambda keep, n: keep.store.search(("users",), filter={"rank": n}, limit=10)  # noqa: E731
            add(f"filter over {MEMORIES:,} memories", one, SEARCHES)
        _add_bytes(benchmark, "keys, store bytes", f"store: bytes on disk, {MEMORIES:,} memories", urls)


def _put_memory(keep: threadkeep.Keep, number: int) -> None:
    value = {"text": f"prefers the plan{number % 50} and is called in the morning", "rank": number}
    keep.store.put(("users", f"u{number % 40}"), f"k{number}", value)


def _opened(stack: ExitStack, urls: Mapping[str, str], durability: Durability) -> Keeps:
    keeps = {
        name: stack.enter_context(threadkeep.open(url, durability=durability, **VARIANTS[name]))
        for name, url in urls.items()
    }
    for keep in keeps.values():
        _ = keep.setup()
    return keeps


def _add_bytes(benchmark: Benchmark, key: str, what: str, urls: Mapping[str, str]) -> None:
    """Add what databases take on disk; nobody may have them open."""
    usage = {name: sum(benchmark.storage.disk_usage(THREADKEEP, url).values()) / 1e6 for name, url in urls.items()}
    benchmark.rows.add(key, what, "MB", usage)
