"""Measures dead rows and bloat in PostgreSQL after changes and removals, by table settings, and the cost of partitions.

    python bench/upkeep.py                  # 200 concurrent threads of 4 turns, several times; some minutes

Autovacuum is off, to show what the tables do without it. Counts and bytes hardly differ between two runs; of times,
read the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from rich.console import Console
from rich.table import Table

import threadkeep
from contenders import THREADKEEP
from recording import Call, Method, Stopwatch, areplay, record, replay
from storages import PostgresDatabases
from workload import Saver

THREADS, TURNS, ROUNDS = 200, 4, 5
FILL = "ALTER TABLE tk_threads SET (fillfactor = {})"
SETTINGS = {
    "fillfactor 100": [FILL.format(100)],
    "fillfactor 90": [FILL.format(90)],
    "fillfactor 70": [FILL.format(70)],
    "fillfactor 50, as it is": [],
    "fillfactor 30": [FILL.format(30)],
    "as it is, and an index of `updated`": ["CREATE INDEX ON tk_threads (tenant, updated)"],
}
OPEN_TRANSACTION = "as it is, while a transaction of others stays open"
TABLES = {
    "tk_threads": " WITH (fillfactor = 50)",
    "tk_items": " WITH (toast_tuple_target = 8160)",
    "tk_checkpoints": "",
    "tk_writes": "",
    "tk_tags": "",
    "tk_runs": "",
}
PARTITIONS = (0, 16, 64)

Turns = Sequence[list[Call]]


class Updates(NamedTuple):
    """Updates of tk_threads, and its size after a VACUUM."""

    made: int
    hot: int
    dead: int
    heap: int
    indexes: int


@contextmanager
def storage_without_autovacuum() -> Iterator[PostgresDatabases]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    servers = importlib.import_module("postgres_servers")
    with servers.fresh_server({**servers.DURABLE, "autovacuum": "off"}) as server:
        yield PostgresDatabases(server)


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            cursor = connection.execute(statement.encode())
            found = cursor.fetchall() if cursor.description else []
        return found


def settle(url: str) -> None:
    """Wait until all other connections have ended, so that their statistics are complete."""
    others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while execute(url, others):
        time.sleep(0.05)


async def run_conversations(saver: Saver, turns: Turns, name: str = "t") -> None:
    """Run many conversations concurrently, each in its own thread."""

    async def one(thread: str) -> None:
        for calls in turns:
            await areplay(saver, calls, thread=thread)

    await asyncio.gather(*(one(f"{name}{n}") for n in range(THREADS)))


def updates(url: str, name: str, statements: Sequence[str], turns: Turns) -> Updates:
    with threadkeep.open(url, durability="relaxed") as keep, ExitStack() as stack:
        keep.threads()  # creates the tables
        execute(url, *statements)
        if name == OPEN_TRANSACTION:
            other = stack.enter_context(psycopg.connect(url))
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT count(*) FROM tk_threads")
        asyncio.run(run_conversations(keep.checkpointer, turns))
    settle(url)
    counted = "SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'tk_threads'"
    sizes = "SELECT pg_relation_size('tk_threads'), pg_indexes_size('tk_threads')"
    return Updates(*execute(url, counted)[0], *execute(url, "VACUUM", sizes)[0])


def report_updates(console: Console, storage: PostgresDatabases, turns: Turns) -> None:
    table = Table("tk_threads", title=f"{THREADS} threads, {TURNS} turns", title_justify="left")
    for heading in ("updates", "HOT", "dead before VACUUM", "KB after it", "KB of indexes"):
        table.add_column(heading, justify="right")
    for number, (name, statements) in enumerate({**SETTINGS, OPEN_TRANSACTION: []}.items()):
        result = updates(storage.new_url(f"updates-{number}"), name, statements, turns)
        share = f"{result.hot / result.made:.1%}"
        kilobytes = (f"{size / 1e3:,.0f}" for size in (result.heap, result.indexes))
        table.add_row(name, f"{result.made:,}", share, f"{result.dead:,}", *kilobytes)
    console.print(table)


def report_removals(console: Console, storage: PostgresDatabases, turns: Turns) -> None:
    table = Table("all tables")
    for heading in ("dead rows", "MB"):
        table.add_column(heading, justify="right")
    url = storage.new_url("removals")

    def add_row(what: str) -> None:
        settle(url)
        ((dead,),) = execute(url, "SELECT sum(n_dead_tup)::int FROM pg_stat_user_tables")
        table.add_row(what, f"{dead:,}", f"{storage.size(THREADKEEP, url) / 1e6:,.2f}")

    def use(work: Callable[[Saver], None], what: str) -> None:
        with threadkeep.open(url, durability="relaxed") as keep:
            work(keep.checkpointer)
        add_row(what)

    def execute_and_report(statement: str) -> None:
        execute(url, statement, "ANALYZE")
        add_row(statement)

    first, second = ([f"{name}{n}" for n in range(THREADS)] for name in "ab")
    use(lambda saver: asyncio.run(run_conversations(saver, turns, "a")), f"{THREADS} threads")
    use(lambda saver: saver.prune(first), "all but their latest checkpoints pruned")
    execute_and_report("VACUUM")
    use(lambda saver: saver.prune(first, strategy="delete"), "all deleted")
    execute_and_report("VACUUM")
    use(lambda saver: asyncio.run(run_conversations(saver, turns, "b")), f"{THREADS} other threads")
    use(lambda saver: saver.prune(second, strategy="delete"), "all deleted")
    execute_and_report("VACUUM FULL")
    console.print(table)


def partition_tables(url: str, count: int) -> None:
    """Partition the empty tables, as docs/howto/postgres.md describes."""
    for name, options in TABLES.items():
        execute(
            url,
            f"ALTER TABLE {name} RENAME TO {name}_plain",
            f"CREATE TABLE {name} (LIKE {name}_plain INCLUDING ALL) PARTITION BY HASH (thread)",
            f"DROP TABLE {name}_plain",
        )
        for n in range(count):
            part = f"CREATE TABLE {name}_{n} PARTITION OF {name} FOR VALUES WITH (MODULUS {count}, REMAINDER {n})"
            execute(url, part + options)


def report_partitions(console: Console, storage: PostgresDatabases, turns: Turns) -> None:
    table = Table("partitions of each table")
    methods: tuple[Method, ...] = ("put", "put_writes", "get_tuple")
    for method in methods:
        table.add_column(f"{method}, ms", justify="right")
    watches = {count: Stopwatch() for count in PARTITIONS}
    with ExitStack() as stack:
        savers = {}
        for count in PARTITIONS:
            url = storage.new_url(f"partitions-{count}")
            keep = stack.enter_context(threadkeep.open(url))
            keep.threads()  # creates the tables
            if count:
                partition_tables(url, count)
            savers[count] = keep.checkpointer
        for number in range(ROUNDS):
            for calls in turns:
                for count, saver in savers.items():
                    replay(saver, calls, thread=f"r{number}", watch=watches[count])
    for count, watch in watches.items():
        medians = (f"{watch.median(method) * 1e3:.2f}" for method in methods)
        table.add_row(str(count or "none"), *medians)
    console.print(table)


def main() -> None:
    argparse.ArgumentParser(
        description="Measure dead rows and bloat in PostgreSQL after changes and removals."
    ).parse_args()
    console, turns = Console(), list(record(TURNS))
    with storage_without_autovacuum() as storage:
        report_updates(console, storage, turns)
        report_removals(console, storage, turns)
        report_partitions(console, storage, turns)


if __name__ == "__main__":
    main()
