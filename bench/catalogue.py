"""Measures a page of `keep.threads()` with many threads, and with long threads.

    python bench/catalogue.py [--threads 100000] [--postgres]      (make bench-threads)

Three storages are queried in turn: 1,000 short threads, many short threads, 1,000 threads of 50 checkpoints. One thread
is put, and SQL multiplies its rows.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
from rich.console import Console
from rich.table import Table

import threadkeep
from measuring import medians

sys.path.append(str(Path(__file__).parents[1] / "tests"))
FEW, LONG, ROUNDS, PAGE = 1_000, 50, 41, 50
NAMES = ("1,000 threads", "many", "1,000 long ones")
ROWS = {
    "tk_threads": "thread + {n}, {columns}",
    "tk_items": "thread + {n}, lane, n, payload",
    "tk_checkpoints": "thread + {n}, {columns}",
    "tk_tags": "thread + {n}, {columns}",
}
CHANGED = {"created": "created + {n}", "updated": "updated + {n}", "checksum": "NULL", "bytes_check": "NULL"}
"""Rows without checksums are not checked."""
QUERIES: dict[str, Callable[[threadkeep.Keep], Any]] = {
    "the last changed": lambda keep: keep.threads(limit=PAGE),
    "by id": lambda keep: keep.threads(limit=PAGE, order="id"),
    "the next page": lambda keep: keep.threads(limit=PAGE, after="t500"),
    "of one user, as all are": lambda keep: keep.threads(limit=PAGE, metadata={"user": "ann"}),
    "the largest": lambda keep: keep.threads(limit=PAGE, order="bytes"),
    "interrupted, of which there are none": lambda keep: keep.threads(limit=PAGE, status="interrupted"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=100_000, help="number of threads in the large storage")
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    console = Console()
    storages = [("SQLite", files)] + [("PostgreSQL", schemas)] * options.postgres
    for name, open_storage in storages:
        with open_storage() as make_keep:
            measure(console, name, make_keep, options.threads)


def measure(console: Console, storage: str, make_keep: Callable[[str, int, int], threadkeep.Keep], many: int) -> None:
    sizes = ((FEW, 1), (many, 1), (FEW, LONG))
    keeps = {name: make_keep(f"n{at}", *size) for at, (name, size) in enumerate(zip(NAMES, sizes, strict=True))}
    table = Table(f"{storage}, ms a page of {PAGE}", *NAMES, "many", "long")
    for query, run in QUERIES.items():
        times = list(medians({name: partial(run, keep) for name, keep in keeps.items()}, ROUNDS).values())
        table.add_row(query, *(f"{time:.2f}" for time in times), *(f"{time / times[0]:.1f}x" for time in times[1:]))
    console.print(f"many: {many:,}", table)
    for keep in keeps.values():
        keep.close()


def put_one(url: str, checkpoints: int) -> None:
    chains = importlib.import_module("checkpoint_chains")
    with threadkeep.open(url) as keep:
        chain = chains.Chain(keep.checkpointer, "t")
        for step in range(checkpoints):
            chain.put({"messages": [f"message {n}" for n in range(step + 1)]}, user="ann")


def statements(columns: Callable[[str], list[str]], series: str) -> Iterator[str]:
    """Yield statements that multiply the rows of the only thread."""
    for table, selected in ROWS.items():
        is_postgres = "generate_series" in series
        id = "convert_to('t' || s.k, 'UTF8')" if is_postgres else "CAST('t' || s.k AS BLOB)"
        changed = CHANGED | {"tick": f"(updated + {{n}}) >> {8 if is_postgres else 12}"}
        changed |= {"id": id} if table == "tk_threads" else {}
        rest = ", ".join(changed.get(name, name).format(n="s.k") for name in columns(table)[1:])
        values = selected.format(n="s.k", columns=rest)
        yield f"INSERT INTO {table} SELECT {values} FROM {table}, {series}"  # noqa: S608 - our own names


@contextmanager
def files() -> Iterator[Callable[[str, int, int], threadkeep.Keep]]:
    with tempfile.TemporaryDirectory() as folder:

        def make_keep(name: str, threads: int, checkpoints: int) -> threadkeep.Keep:
            return threadkeep.open(make_file(Path(folder) / f"{name}.db", threads, checkpoints))

        yield make_keep


def make_file(path: Path, threads: int, checkpoints: int) -> str:
    """Make a file with so many threads of so many checkpoints each; return its URL."""
    url = f"sqlite:///{path}"
    put_one(url, checkpoints)
    file = apsw.Connection(str(path))
    numbers = f"SELECT 1 UNION ALL SELECT k + 1 FROM s WHERE k < {threads - 1}"  # noqa: S608 - a number
    series = f"(WITH RECURSIVE s(k) AS ({numbers}) SELECT k FROM s WHERE k < {threads}) s"  # noqa: S608
    with file:
        for statement in statements(partial(columns_of, file), series):
            file.execute(statement)
    file.close()
    return url


def columns_of(file: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in file.execute(f"PRAGMA table_info({table})")]


@contextmanager
def schemas() -> Iterator[Callable[[str, int, int], threadkeep.Keep]]:
    server: Any = importlib.import_module("postgres_servers").shared()

    def make_keep(name: str, threads: int, checkpoints: int) -> threadkeep.Keep:
        url = server.url(schema=name)
        put_one(url, checkpoints)
        series = f"generate_series(1, {threads - 1}) s(k)"

        def columns(table: str) -> list[str]:
            condition = f"table_schema = '{name}' and table_name = '{table}' order by ordinal_position"
            query = "select column_name from information_schema.columns where " + condition  # noqa: S608
            return [row[0] for row in server.execute(query)]

        inserts = list(statements(columns, series))
        server.execute(f"set search_path to {name}; {'; '.join(inserts)}; analyze")
        return threadkeep.open(url)

    yield make_keep


if __name__ == "__main__":
    main()
