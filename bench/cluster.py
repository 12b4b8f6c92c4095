"""Measures a Valkey cluster: speed compared with PostgreSQL, and CPU, memory and traffic as the servers report them.

    python bench/cluster.py [--threads 2000]      (make bench-valkey)

The cluster is 3 x (1 + 2) valkey-server processes on this machine. It acknowledges a change when the primary and one
replica have it in memory; PostgreSQL acknowledges after fsync. The guarantees differ, so the numbers are not comparable
one to one.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from time import perf_counter
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from rich.console import Console

import threadkeep
from comparison import Row, amedians, report
from recording import Call, areplay, record
from workload import Saver

sys.path.append(str(Path(__file__).parents[1] / "tests"))
postgres_servers: Any = importlib.import_module("postgres_servers")
valkey_servers: Any = importlib.import_module("valkey_servers")

TURNS, CROWD, ROUNDS = 2, 200, 5
LONG, LONG_SHARE = 12, 10
"""Turns of longer threads, and the factor by which there are fewer of them."""
CONCURRENT = 100
PAGES = 9
NAMES = ("PostgreSQL", "Valkey")


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage that the primaries report, summed."""

    cpu: float
    memory: int
    commands: int
    received: int

    @classmethod
    def of(cls, cluster: Any) -> Usage:
        infos: list[Mapping[str, Any]] = [server.client.info("all") for server in cluster.servers[: cluster.primaries]]
        return cls(
            cpu=sum(each["used_cpu_user"] + each["used_cpu_sys"] for each in infos),
            memory=sum(each["used_memory_dataset"] for each in infos),
            commands=sum(each["total_commands_processed"] for each in infos),
            received=sum(each["total_net_input_bytes"] for each in infos),
        )


async def crowd(savers: Mapping[str, Saver], calls: list[Call]) -> Row:
    """Measure many concurrent short conversations, on new threads each round."""
    numbers = count()

    async def replay_all(saver: Saver) -> None:
        await asyncio.gather(*(areplay(saver, calls, thread=f"crowd-{next(numbers)}") for _ in range(CROWD)))

    taken = await amedians({name: partial(replay_all, saver) for name, saver in savers.items()}, ROUNDS)
    steps = CROWD * sum(call.method == "put" for call in calls)
    rates = {name: steps / (milliseconds / 1e3) for name, milliseconds in taken.items()}
    return Row(f"{CROWD} async threads, {TURNS} turns each", "supersteps/s", rates, rate=True)


async def fill(saver: Saver, calls: list[Call], threads: range) -> None:
    for start in range(threads.start, threads.stop, CONCURRENT):
        some = range(start, min(start + CONCURRENT, threads.stop))
        await asyncio.gather(*(areplay(saver, calls, thread=f"thread-{n}") for n in some))


async def costs(keep: threadkeep.Keep, cluster: Any, turns: int, threads: range) -> list[Row]:
    """Measure the primaries' resources for threads of this many turns."""
    calls = list(chain.from_iterable(record(turns)))
    before = Usage.of(cluster)
    await fill(keep.checkpointer, calls, threads)
    after = Usage.of(cluster)
    count, each = len(threads), len(threads) * turns
    whole = sum(len(JsonPlusSerializer().dumps_typed(call.rest[0])[1]) for call in calls if call.method == "put")
    return [
        Row(
            f"threads of {turns} turns: primaries' CPU time",
            "ms a turn",
            {"Valkey": (after.cpu - before.cpu) * 1e3 / each},
        ),
        Row(
            "commands that primaries execute, in scripts too",
            "a turn",
            {"Valkey": (after.commands - before.commands) / each},
        ),
        Row("received by primaries", "KB a turn", {"Valkey": (after.received - before.received) / 1e3 / each}),
        Row("memory of primaries", "KB a thread", {"Valkey": (after.memory - before.memory) / 1e3 / count}),
        Row("whole checkpoints, as other savers store them", "KB a thread", {"Valkey": whole / 1e3}),
    ]


async def listing(keep: threadkeep.Keep, cluster: Any) -> list[Row]:
    """Measure a page of all threads, from all partitions."""
    before, taken = Usage.of(cluster), []
    for _ in range(PAGES):
        start = perf_counter()
        await keep.athreads(limit=50)
        taken.append(perf_counter() - start)
    cpu = (Usage.of(cluster).cpu - before.cpu) * 1e3 / PAGES
    figures = (("the first page of keep.threads()", statistics.median(taken) * 1e3), ("its CPU time in primaries", cpu))
    return [Row(what, "ms", {"Valkey": figure}) for what, figure in figures]


async def main(threads: int) -> None:
    calls = list(chain.from_iterable(record(TURNS)))
    console = Console(width=140)
    with postgres_servers.fresh_server(postgres_servers.DURABLE) as server:
        cluster = valkey_servers.fresh_cluster(**{"min-replicas-to-write": "1"})
        async with threadkeep.open(server.url()) as base, threadkeep.open(cluster.url("bench")) as spread:
            savers = dict(zip(NAMES, (base.checkpointer, spread.checkpointer), strict=True))
            rows = [await crowd(savers, calls)]
            rates = rows[0].figures
            console.print(f"Valkey carries {rates['Valkey'] / rates['PostgreSQL']:.1f}x the supersteps of PostgreSQL")
        async with threadkeep.open(cluster.url("costs")) as keep:
            rows += await costs(keep, cluster, TURNS, range(threads))
            rows += await costs(keep, cluster, LONG, range(threads, threads + threads // LONG_SHARE))
            rows += await listing(keep, cluster)
    report(console, NAMES, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2000)
    asyncio.run(main(parser.parse_args().threads))
