"""What a cluster costs and carries: beside threadkeep's own PostgreSQL, and by the servers' own accounts.

    python bench/cluster.py [--threads 2000]      (make bench-valkey)

The cluster is 3 x (1 + 2) valkey-server processes on this machine. A change is acknowledged when the primary and one
replica have it in memory; PostgreSQL acknowledges after fsync. Neither number is the other's: they are two promises.
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
from recording import Call, areplay, record
from rounds import Row, amedians, report
from workload import Saver

sys.path.append(str(Path(__file__).parents[1] / "tests"))
postgres: Any = importlib.import_module("postgres")
valkeys: Any = importlib.import_module("valkeys")

TURNS, CROWD, ROUNDS = 2, 200, 5
LONG, LONG_SHARE = 12, 10
"""Turns of longer threads, and how many fewer of them there are."""
AT_ONCE = 100
PAGES = 9
NAMES = ("PostgreSQL", "Valkey")


@dataclass(frozen=True, slots=True)
class Account:
    """What primaries say of themselves, summed."""

    cpu: float
    memory: int
    commands: int
    received: int

    @classmethod
    def of(cls, cluster: Any) -> Account:
        told: list[Mapping[str, Any]] = [server.client.info("all") for server in cluster.servers[: cluster.primaries]]
        return cls(
            cpu=sum(each["used_cpu_user"] + each["used_cpu_sys"] for each in told),
            memory=sum(each["used_memory_dataset"] for each in told),
            commands=sum(each["total_commands_processed"] for each in told),
            received=sum(each["total_net_input_bytes"] for each in told),
        )


async def crowd(savers: Mapping[str, Saver], calls: list[Call]) -> Row:
    """Many short conversations side by side, on new threads each round."""
    numbers = count()

    async def talk(saver: Saver) -> None:
        await asyncio.gather(*(areplay(saver, calls, thread=f"crowd-{next(numbers)}") for _ in range(CROWD)))

    taken = await amedians({name: partial(talk, saver) for name, saver in savers.items()}, ROUNDS)
    steps = CROWD * sum(call.method == "put" for call in calls)
    rates = {name: steps / (milliseconds / 1e3) for name, milliseconds in taken.items()}
    return Row(f"{CROWD} async threads, {TURNS} turns each", "supersteps/s", rates, rate=True)


async def fill(saver: Saver, calls: list[Call], threads: range) -> None:
    for start in range(threads.start, threads.stop, AT_ONCE):
        some = range(start, min(start + AT_ONCE, threads.stop))
        await asyncio.gather(*(areplay(saver, calls, thread=f"thread-{n}") for n in some))


async def costs(keep: threadkeep.Keep, cluster: Any, turns: int, threads: range) -> list[Row]:
    """Of threads of so many turns, in the primaries' own words."""
    calls = list(chain.from_iterable(record(turns)))
    before = Account.of(cluster)
    await fill(keep.checkpointer, calls, threads)
    after = Account.of(cluster)
    count, each = len(threads), len(threads) * turns
    whole = sum(len(JsonPlusSerializer().dumps_typed(call.rest[0])[1]) for call in calls if call.method == "put")
    return [
        Row(f"threads of {turns} turns: primaries' CPU time", "ms a turn", {"Valkey": (after.cpu - before.cpu) * 1e3 / each}),
        Row("commands that primaries execute, in scripts too", "a turn", {"Valkey": (after.commands - before.commands) / each}),
        Row("received by primaries", "KB a turn", {"Valkey": (after.received - before.received) / 1e3 / each}),
        Row("memory of primaries", "KB a thread", {"Valkey": (after.memory - before.memory) / 1e3 / count}),
        Row("whole checkpoints, as other savers store them", "KB a thread", {"Valkey": whole / 1e3}),
    ]  # fmt: skip


async def listing(keep: threadkeep.Keep, cluster: Any) -> list[Row]:
    """A page of all threads, from all partitions."""
    before, taken = Account.of(cluster), []
    for _ in range(PAGES):
        start = perf_counter()
        await keep.athreads(limit=50)
        taken.append(perf_counter() - start)
    cpu = (Account.of(cluster).cpu - before.cpu) * 1e3 / PAGES
    figures = (("the first page of keep.threads()", statistics.median(taken) * 1e3), ("its CPU time in primaries", cpu))
    return [Row(what, "ms", {"Valkey": figure}) for what, figure in figures]


async def main(threads: int) -> None:
    calls = list(chain.from_iterable(record(TURNS)))
    console = Console(width=140)
    with postgres.fresh_server(postgres.DURABLE) as server:
        cluster = valkeys.fresh_cluster(**{"min-replicas-to-write": "1"})
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
