"""What a page of the catalogue costs when there are many threads, and when threads are long.

    python bench/catalogue.py [--threads 100000] [--postgres] [--valkey]      (make bench-threads)

Three storages side by side, asked in turn: 1,000 short threads, many short threads, 1,000 threads of 50 checkpoints.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from rich.console import Console
from rich.table import Table

import threadkeep
from rounds import medians

sys.path.append(str(Path(__file__).parents[1] / "tests"))
FEW, LONG, AT_ONCE, ROUNDS, PAGE = 1_000, 50, 500, 41, 50
NAMES = ("1,000", "many", "long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=100_000, help="how many are many")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--valkey", action="store_true")
    options = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        storages = [("SQLite", stack.enter_context(files()))]
        if options.postgres:
            storages.append(("PostgreSQL", stack.enter_context(schemas())))
        if options.valkey:
            storages.append(("Valkey", stack.enter_context(prefixes())))
        for name, place in storages:
            measure(console, name, place, options.threads)


def measure(console: Console, storage: str, place: Callable[[str], str], many: int) -> None:
    sizes = dict(zip(NAMES, ((FEW, 1), (many, 1), (FEW, LONG)), strict=True))
    keeps = {name: filled(place(f"n{number}"), *size) for number, (name, size) in enumerate(sizes.items())}
    questions: dict[str, Callable[[Any], list[Any]]] = {
        "newest": lambda keep: keep.threads(limit=PAGE),
        "by id, with a prefix": lambda keep: keep.threads(limit=PAGE, order="id", prefix="thread-0005"),
        "largest": lambda keep: keep.threads(limit=PAGE, order="bytes"),
        "by metadata": lambda keep: keep.threads(limit=PAGE, metadata={"user": "3"}),
        "interrupted ones, of which there are none": lambda keep: keep.threads(limit=PAGE, status="interrupted"),
    }
    table = Table(f"{storage}, ms a page of {PAGE}", *NAMES, "many", "long")
    for question, ask in questions.items():
        times = list(medians({name: partial(ask, keep) for name, keep in keeps.items()}, ROUNDS).values())
        ratios = [f"{time / times[0]:.1f}x" for time in times[1:]]
        table.add_row(question, *(f"{time:.2f}" for time in times), *ratios)
    console.print(f"{many:,} are many", table)
    for keep in keeps.values():
        keep.close()


def filled(url: str, threads: int, checkpoints: int) -> threadkeep.Keep:
    """A Keep with so many threads."""
    with threadkeep.open(url, durability="relaxed") as keep:
        asyncio.run(fill(keep, threads, checkpoints))
    return threadkeep.open(url)


async def fill(keep: threadkeep.Keep, threads: int, checkpoints: int) -> None:
    waiting = iter(range(threads))

    async def some() -> None:
        for number in waiting:
            await one(keep, number, checkpoints)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def one(keep: threadkeep.Keep, number: int, checkpoints: int) -> None:
    config: Any = {
        "configurable": {"thread_id": f"thread-{number:07}", "checkpoint_ns": ""},
        "metadata": {"user": str(number % 100)},
    }
    for step in range(checkpoints):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": [f"message {step} of thread {number}"]}
        checkpoint["channel_versions"] = {"messages": step + 1}
        config = config | await keep.checkpointer.aput(
            config, checkpoint, {"source": "loop", "step": step}, {"messages": step + 1}
        )


@contextmanager
def files() -> Iterator[Callable[[str], str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield lambda name: f"sqlite:///{folder}/{name}.db"


@contextmanager
def schemas() -> Iterator[Callable[[str], str]]:
    server = importlib.import_module("postgres").shared()
    yield lambda name: server.url(schema=f"catalogue_{name}")


@contextmanager
def prefixes() -> Iterator[Callable[[str], str]]:
    cluster = importlib.import_module("valkeys").shared()
    yield lambda name: cluster.url(prefix=name)


if __name__ == "__main__":
    main()
