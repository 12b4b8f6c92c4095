"""Compares threadkeep with the official savers, stores and checkpointers, and prints a table: `make bench`.

    python bench/run.py                                 # a short run: some minutes
    python bench/run.py --full --record                 # all of it, into docs/benchmarks.md: `make bench-full`
    python bench/run.py --rows store --storages sqlite  # some rows, on some storages

Contenders take turns in small pieces, and the first one changes, so that a busy machine slows both equally. They have
the same durability, and must end with the same state, or the run fails. Read the ratios: times of two runs cannot be
compared, and no time makes a run fail. A full run needs 3 GB of temporary space on a disk, and about an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from time import perf_counter
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import results
from benchmark import FULL, SHORT, Benchmark
from concurrency import crowd, parallel_tasks, valkey
from conversations import conversation, growth, long_thread
from cubes import cube
from deltas import deltas
from encryption import encryption, encryption_on_valkey
from measuring import Row, Rows
from small_checkpoints import small_checkpoints
from storages import Storage, postgres_storage, sqlite_storage
from stores import store

Group = Callable[[Benchmark], None]
GROUPS: Mapping[str, Group] = {
    "conversation": conversation,
    "long": long_thread,
    "growth": growth,
    "delta": deltas,
    "small": small_checkpoints,
    "crowd": crowd,
    "tasks": parallel_tasks,
    "store": store,
    "cube": cube,
    "encryption": encryption,
}


class Place(NamedTuple):
    """How to make a storage, and the rows that are measured on it."""

    open: Callable[[], AbstractContextManager[Storage]]
    groups: Mapping[str, Group]


STORAGES = {
    "sqlite": Place(sqlite_storage, GROUPS),
    "postgres": Place(postgres_storage, GROUPS),
    "valkey": Place(postgres_storage, {"valkey": valkey, "encryption": encryption_on_valkey}),
}


def show(console: Console, storage: str, group: str, rows: Iterable[Row]) -> None:
    found = list(rows)
    of_keys = group == results.ENCRYPTION
    headings = results.HEADINGS_OF_KEYS if of_keys else results.headings(storage)
    table = Table(title=results.TITLES[storage], title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in found:
        cells = results.cells_of_keys(row) if of_keys else results.cells(storage, row)
        table.add_row(*(cell.replace("**", "") for cell in cells))
    console.print(table)
    if not of_keys:
        console.print(results.verdict(storage, found))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare threadkeep with the official savers and stores.")
    parser.add_argument("--full", action="store_true", help="all repetitions at full size, instead of a short run")
    parser.add_argument("--record", action="store_true", help="write the results into docs/benchmarks.md")
    parser.add_argument("--storages", choices=STORAGES, nargs="+", default=list(STORAGES))
    parser.add_argument("--rows", choices=[*GROUPS, "valkey"], nargs="+", default=[*GROUPS, "valkey"])
    parser.add_argument("--repetitions", type=int)
    options = parser.parse_args()
    scale = FULL if options.full else SHORT
    scale = scale._replace(repetitions=options.repetitions or scale.repetitions)
    errors, console = Console(stderr=True), Console(width=190)
    for name in options.storages:
        chosen = {group: run for group, run in STORAGES[name].groups.items() if group in options.rows}
        if not chosen:
            continue
        with STORAGES[name].open() as storage:
            for group, run in chosen.items():
                measured = results.conditions(scale.repetitions, full=options.full)
                start, rows = perf_counter(), Rows()
                run(Benchmark(storage, scale, rows, lambda what: errors.print(f"  {what}", style="dim")))
                errors.print(f"{name}, {group}: {perf_counter() - start:.0f} s", style="dim")
                show(console, name, group, rows)
                if options.record:
                    results.record(name, group, rows, measured)
    if options.record:
        results.write_page()
        console.print(f"written: {results.PAGE.relative_to(results.ROOT)}")


if __name__ == "__main__":
    main()
