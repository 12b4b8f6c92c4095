"""Measures what threads cost a Valkey cluster: CPU, memory and traffic as the servers report them.

    python bench/cluster.py [--threads 2000]      (make bench-valkey)

The cluster is 3 x (1 + 2) valkey-server processes on this machine. `make bench` compares its speed with PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from rich.console import Console
from rich.table import Table

import threadkeep
from recording import Call, areplay, record
from workload import Saver

sys.path.append(str(Path(__file__).parents[1] / "tests"))
valkey_servers: Any = importlib.import_module("valkey_servers")

TURNS = 2
LONG, LONG_SHARE = 12, 10
"""Turns of longer threads, and the factor by which there are fewer of them."""
CONCURRENT = 100
PAGES = 9
Figure = tuple[str, str, float]
"""What was measured, its unit, and its value."""


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


async def fill(saver: Saver, calls: list[Call], threads: range) -> None:
    for start in range(threads.start, threads.stop, CONCURRENT):
        some = range(start, min(start + CONCURRENT, threads.stop))
        await asyncio.gather(*(areplay(saver, calls, thread=f"thread-{n}") for n in some))


async def costs(keep: threadkeep.Keep, cluster: Any, turns: int, threads: range) -> list[Figure]:
    """Measure the primaries' resources for threads of this many turns."""
    calls = list(chain.from_iterable(record(turns)))
    before = Usage.of(cluster)
    await fill(keep.checkpointer, calls, threads)
    after = Usage.of(cluster)
    count, each = len(threads), len(threads) * turns
    whole = sum(len(JsonPlusSerializer().dumps_typed(call.rest[0])[1]) for call in calls if call.method == "put")
    return [
        (f"threads of {turns} turns: primaries' CPU time", "ms a turn", (after.cpu - before.cpu) * 1e3 / each),
        ("commands that primaries execute, in scripts too", "a turn", (after.commands - before.commands) / each),
        ("received by primaries", "KB a turn", (after.received - before.received) / 1e3 / each),
        ("memory of primaries", "KB a thread", (after.memory - before.memory) / 1e3 / count),
        ("whole checkpoints, as other savers store them", "KB a thread", whole / 1e3),
    ]


async def listing(keep: threadkeep.Keep, cluster: Any) -> list[Figure]:
    """Measure a page of all threads, from all partitions."""
    before, taken = Usage.of(cluster), []
    for _ in range(PAGES):
        start = perf_counter()
        await keep.athreads(limit=50)
        taken.append(perf_counter() - start)
    cpu = (Usage.of(cluster).cpu - before.cpu) * 1e3 / PAGES
    return [
        ("the first page of keep.threads()", "ms", statistics.median(taken) * 1e3),
        ("its CPU time in primaries", "ms", cpu),
    ]


async def main(threads: int) -> None:
    cluster = valkey_servers.fresh_cluster(**{"min-replicas-to-write": "1"})
    async with threadkeep.open(cluster.url("costs")) as keep:
        figures = await costs(keep, cluster, TURNS, range(threads))
        figures += await costs(keep, cluster, LONG, range(threads, threads + threads // LONG_SHARE))
        figures += await listing(keep, cluster)
    table = Table("what", "unit")
    table.add_column("Valkey", justify="right")
    for what, unit, value in figures:
        table.add_row(what, unit, f"{value:,.2f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2000)
    asyncio.run(main(parser.parse_args().threads))
